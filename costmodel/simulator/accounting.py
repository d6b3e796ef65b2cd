"""What steps add to the counters of their engine, and whether each takes at least its floors; compiled."""

from __future__ import annotations

from .compiled import compile_loop
from .runs import run_time
from .state import LOG, ROTATE, RUN, Group, Lane, Rules, World
from .step_work import StepContent, least_bytes, least_flop

SLACK = 1.0 + 1e-9
"""By how much rounding may take a step below its floor [1]."""


@compile_loop
def tally(group: Group, t: float) -> None:
    """Sum up the blocks in use until now; called before their number changes. A run's growth comes at its end."""
    group.kv_time += (group.blocks - group.free) * (t - group.clock)
    group.clock = t


@compile_loop
def account(w: World, lane: Lane, t: float, grown: int) -> None:
    """Add the step, or run of steps, that ends at t to the engine's counters and to the log.

    grown: blocks that a run takes after its first step.
    """
    group, rules = w.groups[lane.group], w.rules[0]
    steps = max(1, lane.run)
    batch = lane.decodes if lane.run > 0 else 0
    if lane.mode == ROTATE:
        batch = lane.rotated_count
    group.all_steps += steps
    group.computed_prompts += lane.step_tokens
    group.computed_decodes += steps * min(batch, lane.live)
    used = group.blocks - group.free + grown
    if lane.mode == RUN and steps > 1:
        group.kv_time += grown_block_seconds(w, lane, steps)
    group.peak_blocks = max(group.peak_blocks, used)
    group.peak_running = max(group.peak_running, lane.decodes + lane.prompts)
    group.busy += t - lane.start
    count_work(w, group, lane, steps, batch)
    if rules.logged < rules.log_rows:
        row = rules.log_at + rules.logged * LOG
        w.numbers[row] = lane.index
        w.numbers[row + 1] = lane.start
        w.numbers[row + 2] = t
        w.numbers[row + 3] = lane.step_tokens
        w.numbers[row + 4] = batch
        w.numbers[row + 5] = lane.context
        w.numbers[row + 6] = steps
        rules.logged += 1


@compile_loop
def grown_block_seconds(w: World, lane: Lane, steps: int) -> float:
    """Blocks that a run takes after its first step, times how long it has them [block s].

    Step i = 1, 2, ... takes c_i blocks, c being periodic in the block size b, and keeps them for R(k) - R(i), with
    R(i) = h i + g i^2 / 2, h = d - g / 2 (`runs.run_time`). The first phases come once more than the others.
    """
    whole, cycles = run_time(lane, steps), (steps - 1) // lane.block
    rest, total = steps - 1 - cycles * lane.block, 0.0
    if rest > 0:
        total += kept_seconds(lane, whole, cycles, phase_moments(w, lane, 1, rest))
    if cycles > 0:
        total += kept_seconds(lane, whole, cycles - 1, phase_moments(w, lane, rest + 1, lane.block))
    return total


@compile_loop
def phase_moments(w: World, lane: Lane, first: int, last: int) -> tuple[int, int, int]:
    """Sums of c, c j and c j^2 over the phases j = first ... last of a run."""
    taken, once, twice = 0, 0, 0
    phase = (1 - lane.steps - first) % lane.block
    for j in range(first, last + 1):
        count = w.counts[lane.phase_at + phase]
        if count > 0:
            taken += count
            once += count * j
            twice += count * j * j
        phase = phase - 1 if phase > 0 else lane.block - 1
    return taken, once, twice


@compile_loop
def kept_seconds(lane: Lane, whole: float, cycles: int, moments: tuple[int, int, int]) -> float:
    """Block seconds of the steps i = j + b m, m = 0 ... M, of some phases j; R(k) = whole, M = cycles [block s].

    The sum over phases of c (M + 1) [R(k) - h (j + e / 2) - g / 2 (j^2 + j e + e (2 e + b) / 6)], e = b M.
    """
    taken, once, twice = moments
    growth, extent = 0.5 * lane.growth, lane.block * cycles
    half = lane.first_duration - growth
    kept = whole - half * 0.5 * extent - growth * extent * (2 * extent + lane.block) / 6.0
    return (cycles + 1) * (taken * kept - once * (half + growth * extent) - growth * twice)


@compile_loop
def count_work(w: World, group: Group, lane: Lane, steps: int, batch: int) -> None:
    """Add what the steps hold to the engine's sums, and check the first and the last of them against its floors.

    In between, the time of a run and its floors are both affine in the number of the step.
    """
    work, chunks, pairs, reach = w.models[lane.model], 0, 0, 0
    if lane.step_tokens > 0:
        chunks, pairs, reach = lane.step_prompts, lane.step_pairs, lane.step_reach
        group.prompt_steps += 1
        group.chunks += chunks
        group.pairs += pairs
        group.reach += reach
    tokens, context = lane.step_tokens + batch, lane.step_context
    capped = min(tokens, work.knee)
    group.capped += steps * capped
    group.decode_rows += steps * batch
    group.decode_context += steps * context + batch * (steps * (steps - 1) // 2)
    if work.peak > 0.0:
        held = StepContent(1, tokens, capped, chunks + batch, pairs, reach, batch, context)
        flop, moved = least_flop(work, held), least_bytes(work, held)
        check_floor(w.rules[0], lane, lane.start, lane.first_duration, max(flop / work.peak, moved / work.bandwidth))
        if steps > 1:
            later, last = (steps - 1) * batch, lane.first_duration + (steps - 1) * lane.growth
            flop, moved = flop + work.context_flop * later, moved + work.context_bytes * later
            floor = max(flop / work.peak, moved / work.bandwidth)
            check_floor(w.rules[0], lane, lane.start + run_time(lane, steps - 1), last, floor)


@compile_loop
def check_floor(rules: Rules, lane: Lane, start: float, duration: float, floor: float) -> None:
    """Count a step that is faster than its FLOP or its bytes allow; the first of them is kept for the message."""
    if duration * SLACK < floor:
        if rules.too_fast == 0:
            rules.fast_lane = lane.index
            rules.fast_start = start
            rules.fast_time = duration
            rules.fast_floor = floor
        rules.too_fast += 1
