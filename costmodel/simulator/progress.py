"""The end of a step: tokens are handed out, prompts end, requests leave, and the lane's next step begins; compiled."""

from __future__ import annotations

from .accounting import account, tally
from .batch import start_step
from .compiled import Events, compile_loop
from .decodes import advance_decodes, blocks_needed, blocks_of, join, note_token, uncount
from .gaps import longest_gap
from .heap import heap_pop
from .links import running_remove
from .prefix import evict, hold_pages, release_pages
from .rotation import count_rotated
from .schedule import ARRIVAL, schedule_request, wake_lanes
from .state import IDLE, ROTATE, RUN, SLEEP, STEP, Lane, World
from .store import store_pages
from .transfer import hand_over


@compile_loop
def end_step(w: World, events: Events, lane: Lane, t: float) -> None:
    """The step, run or sleep of the lane ends at t."""
    group = w.groups[lane.group]
    tally(group, t)
    if lane.mode not in (IDLE, SLEEP):
        grown = blocks_needed(w, lane, lane.run) - blocks_needed(w, lane, 1) if lane.mode == RUN and lane.run > 1 else 0
        account(w, lane, t, grown)
        if lane.mode == ROTATE:
            end_rotated(w, events, lane, t)
        elif lane.run > 0:
            group.free -= grown
            advance_decodes(w, lane, t)
            if group.cache >= 0:
                evict(w, group, group.free)
            end_decodes(w, events, lane, t)
        if lane.mode == STEP:
            advance_prompts(w, events, lane, t)
        if lane.stages > 1:
            wake_lanes(w, events, group, t)
    start_step(w, events, lane, t)


@compile_loop
def end_decodes(w: World, events: Events, lane: Lane, t: float) -> None:
    """Let all decodes go that have made their last token."""
    r = lane.heap
    while r >= 0:
        request = w.requests[r]
        if request.total - request.base > lane.steps:
            break
        lane.heap = heap_pop(w, r)
        request.itl = max(request.itl, longest_gap(w, lane, request.joined))
        if lane.static == 1:
            lane.live -= 1
            w.counts[lane.phase_at + request.base % lane.block] -= 1
        else:
            uncount(w, lane, request)
            running_remove(w, lane, r)
        leave(w, events, lane, r, t)
        r = lane.heap
    if lane.live == 0 and lane.decodes > 0:
        release_batch(w, lane)


@compile_loop
def release_batch(w: World, lane: Lane) -> None:
    """The static batch has ended: its padding goes and its blocks are free."""
    group = w.groups[lane.group]
    r = lane.head
    while r >= 0:
        request = w.requests[r]
        group.free += blocks_of(request.total - 1, lane.block)
        group.promised -= request.promise
        r = request.next
    lane.head = -1
    lane.tail = -1
    lane.decodes = 0
    lane.context = 0
    lane.depth = 0


@compile_loop
def end_rotated(w: World, events: Events, lane: Lane, t: float) -> None:
    """Count the step of a round robin, and let those go that have made their last token."""
    r = count_rotated(w, lane, t)
    while r >= 0:
        request = w.requests[r]
        following = request.next
        uncount(w, lane, request)
        leave(w, events, lane, r, t)
        r = following


@compile_loop
def advance_prompts(w: World, events: Events, lane: Lane, t: float) -> None:
    """Count the chunks of the step; prompts that are complete end."""
    group = w.groups[lane.group]
    if group.cache >= 0:
        evict(w, group, group.free)
    r, kept = lane.prompt_head, -1
    while r >= 0:
        request = w.requests[r]
        following = request.next_prompt
        request.done += request.chunk
        if group.cache >= 0:
            hold_pages(w, group, request)
        if request.done < request.prompt:
            kept = r
        else:
            request.chunk = -1
            lane.prompts -= 1
            if kept < 0:
                lane.prompt_head = following
            else:
                w.requests[kept].next_prompt = following
            end_prompt(w, events, lane, r, t)
        r = following
    lane.prompt_tail = kept


@compile_loop
def end_prompt(w: World, events: Events, lane: Lane, r: int, t: float) -> None:
    """Prompt r is computed: its request ends, is handed over, or decodes here."""
    group, request = w.groups[lane.group], w.requests[r]
    if request.prompt_end < 0.0:
        request.prompt_end = t
        group.prompt_tokens -= request.prompt
    if w.rules[0].store >= 0:
        store_pages(w, request)
    processed = request.prompt + lane.yields
    group.yielded += lane.yields
    if lane.yields == 1 or (lane.early == 1 and request.first < 0.0):
        note_token(request, t)
    if processed >= request.total:
        running_remove(w, lane, r)
        group.free += blocks_of(request.prompt, lane.block)
        group.promised -= request.promise if lane.static == 1 else 0
        leave(w, events, lane, r, t)
    elif lane.hands_over == 1:
        running_remove(w, lane, r)
        group.requests -= 1
        group.tokens -= request.total
        hand_over(w, events, r, t)
    else:
        group.free += blocks_of(request.prompt, lane.block)
        join(w, lane, r, processed)


@compile_loop
def leave(w: World, events: Events, lane: Lane, r: int, t: float) -> None:
    """Request r has its last token; in a closed loop the next one comes after the think time."""
    group, request = w.groups[lane.group], w.requests[r]
    request.finish = t
    group.requests -= 1
    group.tokens -= request.total
    if lane.static == 0:
        group.promised -= request.promise
    if request.held > 0:
        release_pages(w, group, request)
    release_next(w, events, t)


@compile_loop
def release_next(w: World, events: Events, t: float) -> None:
    """In a closed loop a user whose request is over sends the next one after the think time."""
    rules = w.rules[0]
    if 0 <= rules.released < len(w.requests):
        w.requests[rules.released].arrival = t + rules.think
        schedule_request(w, events, ARRIVAL, rules.released, t + rules.think)
        rules.released += 1
