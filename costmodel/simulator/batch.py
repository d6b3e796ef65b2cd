"""Forming the next step of a lane: the one scheduler, which reads the answers of its policy; compiled.

Order in a step: decodes first (they take the KV blocks that they need, preempting the youngest if there are none), then
prompts already begun, then waiting requests, each as far as token budget, sequences and blocks go. With an exclusive
policy prompts go first and alone, and decodes run when no prompt can.
"""

from __future__ import annotations

from .admission import enter_ready, fill_prompts, gather_prompts, has_unfinished, make_room, preempt
from .compiled import Events, compile_loop
from .decodes import blocks_needed, blocks_of, steps_within
from .gate import open_gate
from .rotation import begin_rotation, collect_rotated
from .runs import run_time
from .schedule import schedule_lane, wake_idle, wake_stalled
from .state import IDLE, RUN, SLEEP, STEP, Lane, World
from .step_kernel import decode_piece, mixed_time
from .step_numbers import Chosen


@compile_loop
def start_step(w: World, events: Events, lane: Lane, t: float) -> None:
    """Begin the next step of the lane at time t, or leave it idle; lanes of a pipeline wait for the first stage."""
    lane.mode = IDLE
    group = w.groups[lane.group]
    if lane.stages > 1 and w.numbers[group.stage_at] > t:
        lane.mode = SLEEP
        schedule_lane(w, events, lane, w.numbers[group.stage_at])
        return
    preempted = choose_step(w, events, lane, t)
    if lane.stages > 1 and lane.mode == IDLE and preempted > 0:
        wake_stalled(w, events, group, t)


@compile_loop
def choose_step(w: World, events: Events, lane: Lane, t: float) -> int:
    """Begin a step with prompts, or one of decodes, or none; requests preempted."""
    group = w.groups[lane.group]
    if group.wait_head >= 0:
        enter_ready(w, lane)
    if group.gate_head >= 0:
        open_gate(w, events, lane, t)
    if lane.rotating == 1:
        collect_rotated(w, lane)
    if lane.stages > 1 and lane.chunked == 1:
        gather_prompts(w, lane)
    preempted = make_room(w, lane) if lane.exclusive == 0 else 0
    if lane.prompts > 0 or group.wait_head >= 0:
        chosen = fill_prompts(w, lane, t, preempted)
        while chosen.prompts == 0 and lane.decodes == 0 and lane.prompts > (1 if lane.stages == 1 else 0):
            preempt(w, lane, lane.tail)
            preempted += 1
            chosen = fill_prompts(w, lane, t, 1)
        if chosen.prompts > 0:
            begin_mixed(w, events, lane, t, chosen)
            return preempted
    if lane.exclusive == 1:
        preempted += make_room(w, lane)
    if lane.decodes > 0:
        begin_run(w, events, lane, t, preempted)
    return preempted


@compile_loop
def begin_mixed(w: World, events: Events, lane: Lane, t: float, chosen: Chosen) -> None:
    """Begin a step with prompts and, unless the policy keeps them apart, all decodes."""
    batch = 0 if lane.exclusive == 1 else lane.decodes
    context = lane.context if batch > 0 else 0
    lane.mode = STEP
    lane.run = 1 if batch > 0 else 0
    lane.step_tokens = chosen.tokens
    lane.step_prompts = chosen.prompts
    lane.step_pairs = chosen.pairs
    lane.step_reach = chosen.reach
    lane.step_context = context
    launch(w, events, lane, t, mixed_time(w.models[lane.model], w.numbers, chosen, batch, context))
    if lane.stages > 1 and has_unfinished(w, lane):
        wake_idle(w, events, w.groups[lane.group], t)


@compile_loop
def begin_run(w: World, events: Events, lane: Lane, t: float, preempted: int) -> None:
    """Begin as many decode steps as are alike: to the first end, the last free block, or the end of the piece."""
    group, batch, context = w.groups[lane.group], lane.decodes, lane.context
    if lane.cap > 0 and context + batch > lane.cap:
        if lane.rotating == 0:
            group.free += blocks_needed(w, lane, 1)
        begin_rotation(w, events, lane, t)
        return
    duration, slope, limit = decode_piece(w.models[lane.model], w.numbers, batch, context)
    steps = 1
    if w.rules[0].fast_forward == 1 and lane.stages == 1 and preempted == 0 and lane.extra == 0.0:
        root = w.requests[lane.heap]
        steps = min(root.total - root.base - lane.steps, (limit - context) // batch + 1)
        if lane.cap > 0:
            steps = min(steps, (lane.cap - batch - context) // batch + 1)
        room = group.free - lane.spare
        if steps > 1 and room < lane.live * blocks_of(steps, lane.block):
            steps = max(1, min(steps, steps_within(w, lane, room + blocks_needed(w, lane, 1))))
    lane.mode = RUN
    lane.run = steps
    lane.step_tokens = 0
    lane.step_context = context
    lane.growth = slope * batch
    launch(w, events, lane, t, duration)


@compile_loop
def launch(w: World, events: Events, lane: Lane, t: float, duration: float) -> None:
    """Send the step through its pipeline stages, or its run of steps through the only one."""
    duration += lane.extra
    lane.extra = 0.0
    lane.start = t
    lane.first_duration = duration
    end = t + duration
    if lane.stages > 1:
        at, share, end = w.groups[lane.group].stage_at, duration / lane.stages, t
        for stage in range(at, at + lane.stages):
            end = max(end, w.numbers[stage]) + share
            w.numbers[stage] = end
        lane.first_duration = end - t
    elif lane.mode == RUN and lane.run > 1:
        end = t + run_time(lane, lane.run)
    schedule_lane(w, events, lane, end)
