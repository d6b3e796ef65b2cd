"""The event loop: arrivals, hand-overs and step ends in order of time; routing and counters; compiled."""

from __future__ import annotations

from typing import Any

from .compiled import compiled, entry, opened
from .fleet import AFFINE, GRIDS, StepWork
from .pages import evict, hold_pages, leading_pages, release_pages, write_tier
from .records import (
    ARRIVAL,
    HAND_OVER,
    IDLE,
    READ_END,
    RUN,
    SLEEP,
    STEP,
    STEP_END,
    WAKE,
    ZERO,
    Engine,
    Lane,
    PoolRecord,
    Request,
    World,
)
from .scheduler import come_in, queue_front, send_kv, start_step, too_long, wake_lanes
from .slots import (
    add_event,
    advance_decodes,
    append,
    blocks_needed,
    blocks_of,
    first_prompt,
    free_blocks,
    heap_pop,
    join,
    next_blocks,
    next_prompt,
    note_gap,
    note_token,
    remove,
    run_time,
    set_event,
    steps_by,
    take_event,
    uncount,
)
from .step_times import least_bytes, least_flop

LEAST_LOADED, LENGTH_AWARE, PREFIX_AFFINE = range(3)
"""Routers, in the order of `Router`: fewest requests; fewest prompt tokens to compute; by prefix unless that engine has
over twice the mean number of requests (and two), else fewest prompt tokens. By prefix: with caches of hash blocks, the
engine that has most of the prompt, if any has."""
TIE = 1 << 20
"""Weight of a prompt token beside a request: of engines with equally many tokens the one with fewest requests."""
SLACK = 1.0 + 1e-9
"""By how much rounding may take a step below its floor [1]."""


@entry
def run_loop(world: Any, until: float) -> int:
    """Simulate the world until all is done or `until` [s]. Events handled."""
    w = opened(world)
    event_count = 0
    coming = next_opened(w, ZERO)
    while coming < w.rules.opened or w.rules.events > 0:
        first, subject = w.events[1], coming
        kind, t = ARRIVAL, 0.0
        if coming < w.rules.opened and (w.rules.events == 0 or w.requests[coming].arrival <= first.time):
            t = w.requests[coming].arrival
            coming = next_opened(w, coming + 1)
        else:
            t, kind, subject = first.time, first.kind, first.which
            take_event(w)
        if t > until:
            break
        event_count += 1
        if kind == ARRIVAL:
            arrive(w, subject, t)
        elif kind == HAND_OVER:
            receive(w, subject, t)
        elif kind == READ_END:
            enqueue(w, subject, t, True)
        else:
            lane = w.lanes[subject]
            end_step(w, lane, w.engines[lane.engine], t)
            while w.chains[w.rules.computed].head >= 0:
                s = w.chains[w.rules.computed].head
                remove(w, w.rules.computed, s)
                hand_over(w, s, t)
            start_step(w, lane, t)
    return event_count


@compiled
def next_opened(w: World, first: int) -> int:
    """The first request from `first` on that comes by itself, or as many as there are."""
    while first < w.rules.opened and w.requests[first].awaits == 1:
        first += 1
    return first


@compiled
def arrive(w: World, r: int, t: float) -> None:
    """Request r comes at t to an engine of the pool that computes its prompt."""
    request = w.requests[r]
    engine = w.engines[choose_engine(w, request, w.pools[request.pool], t)]
    lane, s = w.lanes[engine.first_lane], take_slot(w)
    slot = w.slots[s]
    slot.request = r
    slot.prompt = request.isl
    slot.done = request.cached
    slot.total = slot.prompt + request.osl
    slot.lane = lane.index
    slot.first_lane = lane.index
    if too_long(engine, lane, slot):
        engine.use.rejected += 1
        give_back(w, s, t)
        return
    request.engine = lane.engine
    engine.requests += 1
    engine.uncomputed += slot.prompt
    enqueue(w, s, t, False)


@compiled
def take_slot(w: World) -> int:
    """An empty slot."""
    rules = w.rules
    s: int = rules.free_slot
    if s >= 0:
        rules.free_slot = w.slots[s].next
    else:
        s = rules.slots
        rules.slots += 1
    slot = w.slots[s]
    slot.last = -1.0
    slot.chunk = -1
    slot.offset = 0
    slot.joined = -1
    slot.ended = 0
    slot.fresh = 0
    slot.promise = 0
    slot.held_pages = 0
    slot.staged_from = 0
    slot.staged = 0
    slot.gated = 0
    slot.reserved = 0
    return s


@compiled
def free_slot(w: World, s: int) -> None:
    """The slot is empty."""
    w.slots[s].next = w.rules.free_slot
    w.rules.free_slot = s


@compiled
def give_back(w: World, s: int, t: float) -> None:
    """The request in slot s is over: the slot is free; when its client has it, the next one comes that waits for it."""
    rules, request = w.rules, w.requests[w.slots[s].request]
    if request.next_turn >= 0:
        back = t + request.late + request.pause
        w.requests[request.next_turn].arrival = back
        add_event(w, ARRIVAL, request.next_turn, back)
    if w.slots[s].ended == 0:
        free_slot(w, s)
    if 0 <= rules.released < rules.count:
        w.requests[rules.released].arrival = t + request.late
        add_event(w, ARRIVAL, rules.released, t + request.late)
        rules.released += 1


@compiled
def receive(w: World, s: int, t: float) -> None:
    """The KV of slot s has arrived at its decode engine; the prefill engine's blocks are free."""
    slot = w.slots[s]
    sender, lane = w.lanes[slot.first_lane], w.lanes[slot.lane]
    prefill, engine = w.engines[sender.engine], w.engines[lane.engine]
    request = w.requests[slot.request]
    tally(prefill, t)
    evict(w, prefill, prefill.free)
    prefill.free += blocks_of(sender, slot.prompt)
    release_pages(w, prefill, slot)
    request.moved = t
    request.decode_engine = lane.engine
    wake_lanes(w, prefill, t)
    if not too_long(engine, lane, slot):
        enqueue(w, s, t, slot.gated == 1)
        return
    engine.use.rejected += 1
    engine.requests -= 1
    if slot.gated == 1:
        come_in(engine, slot)
        notify(w, engine, t, True)
    give_back(w, s, t)


@compiled
def enqueue(w: World, s: int, t: float, first: bool) -> None:
    """Put slot s into the queue of its engine: first, or last."""
    slot = w.slots[s]
    lane = w.lanes[slot.lane]
    slot.came = t
    engine = w.engines[lane.engine]
    fresh = w.chains[engine.waiting].head < 0 or first
    fresh = fresh and not lane.policy.static and lane.decodes + lane.prompts < lane.seqs
    if first:
        queue_front(w, engine, s)
    else:
        append(w, engine.waiting, s)
    notify(w, engine, t, fresh)


@compiled
def notify(w: World, engine: Engine, t: float, fresh: bool) -> None:
    """Something waits for the engine: idle lanes look at once; if it is fresh, a run of steps ends early for it."""
    if engine.end_lane - engine.first_lane > 1:
        wake_lanes(w, engine, t)
        return
    lane = w.lanes[engine.first_lane]
    if lane.mode == IDLE:
        set_event(w, lane, WAKE, t)
    elif fresh and lane.mode == RUN and lane.run > 1:
        steps = steps_by(lane, t)  # the run ends with the first step that ends at or after t
        if lane.ahead and t > lane.start:  # or with the next, which is formed already
            steps += 1
        if steps < lane.run:
            lane.run = steps
            set_event(w, lane, STEP_END, lane.start + run_time(lane, steps))


@compiled
def hand_over(w: World, s: int, t: float) -> None:
    """Send the KV of the prompt in slot s to an engine of its decode pool, or let it wait before the engine's gate."""
    slot = w.slots[s]
    request = w.requests[slot.request]
    receiver = w.engines[choose_engine(w, request, w.pools[request.decode_pool], t)]
    slot.lane = receiver.first_lane
    receiver.requests += 1
    if receiver.pull == 0:
        send_kv(w, s, t)
        return
    append(w, receiver.gate, s)
    notify(w, receiver, t, w.chains[receiver.gate].head == s)


@compiled
def choose_engine(w: World, request: Request, pool: PoolRecord, t: float) -> int:
    """Engine of the pool, by its router."""
    first, last = pool.first_engine, pool.end_engine
    if last - first == 1:
        return first
    turn = 0
    if request.pages > 0:  # where it matters who has what, equal engines take turns, as a router chooses at random
        turn = pool.turn
        pool.turn += 1
    if pool.router == PREFIX_AFFINE and request.pages > 0:
        home = prefix_home(w, request, pool, turn, t)
        if home >= 0:
            return home
    best, best_load = -1, 0
    for k in range(last - first):
        e = first + (turn + k) % (last - first)
        load = w.engines[e].requests
        if pool.router != LEAST_LOADED:
            load += w.engines[e].uncomputed * TIE
        if best < 0 or load < best_load:
            best, best_load = e, load
    return best


@compiled
def prefix_home(w: World, request: Request, pool: PoolRecord, turn: int, t: float) -> int:
    """Engine that has most of the prompt, of equal ones that with the fewest requests; -1 if none has or it is full.

    One has it that has AFFINE of it, or all new sessions would go where the system prompt is. Of those that are still
    equal the next in turn: else the first would get most sessions, for it is as idle as others when they begin.
    """
    first, last = pool.first_engine, pool.end_engine
    home, most, total = -1, 0, 0
    for k in range(last - first):
        e = first + (turn + k) % (last - first)
        engine = w.engines[e]
        total += engine.requests
        if engine.cache >= 0:
            evict(w, engine, free_blocks(w, engine, t))
            count = leading_pages(w, engine.cache, request, ZERO)
            if engine.tier_at >= 0 and not engine.tier.shared:
                count = leading_pages(w, engine.tier_at, request, count)
            if count * w.rules.page < AFFINE * request.isl:
                continue
            if count > most or (home >= 0 and count == most and engine.requests < w.engines[home].requests):
                home, most = e, count
    if home >= 0 and w.engines[home].requests * (last - first) <= 2 * total + 2 * (last - first):
        return home
    return -1


@compiled
def end_step(w: World, lane: Lane, engine: Engine, t: float) -> None:
    """The step, run or sleep of the lane ends at t: tokens are handed out, prompts end, requests leave."""
    tally(engine, t)
    if lane.mode in (IDLE, SLEEP):
        return
    grown = blocks_needed(w, lane, lane.run) - next_blocks(w, lane) if lane.mode == RUN and lane.run > 1 else 0
    account(w, lane, engine, t, grown)
    if lane.run > 0:
        engine.free -= grown
        advance_decodes(w, lane, t)
        evict(w, engine, engine.free)
        end_decodes(w, lane, engine, t)
    if lane.mode == STEP:
        advance_prompts(w, lane, engine, t)
    if lane.stages > 1:
        wake_lanes(w, engine, t)


@compiled
def end_decodes(w: World, lane: Lane, engine: Engine, t: float) -> None:
    """Let all decodes go that have made their last token."""
    s = lane.heap
    while s >= 0:
        slot = w.slots[s]
        if slot.total - slot.offset > lane.steps:
            break
        lane.heap = heap_pop(w, s)
        note_gap(w, lane, s)
        if lane.policy.static:
            lane.live -= 1
            w.phases[lane.phase_at + slot.offset % lane.limits.block_size] -= 1
            slot.ended = 1
        else:
            uncount(w, lane, slot)
            remove(w, lane.running, s)
        leave(w, lane, engine, s, t)
        s = lane.heap
    if lane.live == 0 and lane.decodes > 0:
        release_batch(w, lane, engine)


@compiled
def release_batch(w: World, lane: Lane, engine: Engine) -> None:
    """The static batch has ended: its padding goes and its blocks are free."""
    s = w.chains[lane.running].head
    while s >= 0:
        slot = w.slots[s]
        following = slot.next
        remove(w, lane.running, s)
        engine.free += blocks_of(lane, slot.total - 1)
        engine.promised -= slot.promise
        free_slot(w, s)
        s = following
    lane.decodes = 0
    lane.context = 0
    lane.depth = 0


@compiled
def advance_prompts(w: World, lane: Lane, engine: Engine, t: float) -> None:
    """Count the chunks of the step; prompts that are complete end."""
    evict(w, engine, engine.free)
    s = first_prompt(w, lane)
    while s >= 0:
        slot = w.slots[s]
        following = next_prompt(w, s)
        slot.done += slot.chunk
        hold_pages(w, engine, slot)
        if slot.done >= slot.prompt:
            slot.chunk = -1
            lane.prompts -= 1
            if end_prompt(w, lane, engine, s, t):
                append(w, w.rules.computed, s)
        s = following


@compiled
def end_prompt(w: World, lane: Lane, engine: Engine, s: int, t: float) -> bool:
    """The prompt in slot s is computed: its request ends, decodes here, or is to be handed over (then True)."""
    slot = w.slots[s]
    request = w.requests[slot.request]
    if request.prompt_end < 0.0:
        request.prompt_end = t
        request.late = engine.fixed_ttft + (engine.first_token - 1.0) * (t - request.prompt_start)
        engine.uncomputed -= slot.prompt
    write_tier(w, engine, request)
    processed_tokens = slot.prompt + lane.yields
    if lane.yields == 1:
        note_token(w, slot, t)
    if processed_tokens < slot.total and not lane.hands_over:
        engine.free += blocks_of(lane, slot.prompt)
        join(w, lane, s, processed_tokens)
        return False
    remove(w, lane.running, s)
    if processed_tokens < slot.total:
        engine.requests -= 1
        return True
    engine.free += blocks_of(lane, slot.prompt)
    engine.promised -= slot.promise if lane.policy.static else 0
    leave(w, lane, engine, s, t)
    return False


@compiled
def leave(w: World, lane: Lane, engine: Engine, s: int, t: float) -> None:
    """The request in slot s has its last token."""
    slot = w.slots[s]
    w.requests[slot.request].finish = t
    engine.requests -= 1
    if not lane.policy.static:
        engine.promised -= slot.promise
    release_pages(w, engine, slot)
    give_back(w, s, t)


@compiled
def tally(engine: Engine, t: float) -> None:
    """Sum up the blocks in use until now; called before their number changes. A run's growth comes at its end."""
    engine.use.kv_block_seconds += (engine.blocks - engine.free) * (t - engine.clock)
    engine.clock = t


@compiled
def account(w: World, lane: Lane, engine: Engine, t: float, grown: int) -> None:
    """Add the step, or run of steps, that ends at t to the engine's counters and to the log.

    grown: blocks that a run takes after its first step.
    """
    rules, use, content, model = w.rules, engine.use, lane.content, w.models[lane.model]
    steps, batch = max(1, lane.run), content.decodes
    if lane.mode == RUN and steps > 1:
        use.kv_block_seconds += grown_block_seconds(w, lane, steps)
    use.peak_blocks = max(use.peak_blocks, engine.blocks - engine.free + grown)
    use.peak_running = max(use.peak_running, lane.decodes + lane.prompts)
    use.busy += t - lane.start
    total = use.content
    total.steps += steps
    total.tokens += steps * content.tokens
    total.capped += steps * content.capped
    total.rows += steps * content.rows
    total.pairs += content.pairs
    total.reach += content.reach
    total.decodes += steps * batch
    total.context += steps * content.context + batch * (steps * (steps - 1) // 2)
    if use.work.peak > 0.0 and (model.kind != GRIDS or model.b0 == 1.0):  # token steps have no floors of their own
        check_floors(w, lane, use.work, steps)
    if rules.logged < rules.log_rows:
        row = w.log[rules.logged]
        row.lane = lane.index
        row.start = lane.start
        row.end = t
        row.prompt_tokens = content.tokens - batch
        row.decodes = batch
        row.context = lane.context
        row.steps = steps
        rules.logged += 1


@compiled
def check_floors(w: World, lane: Lane, work: StepWork, steps: int) -> None:
    """Count steps faster than their FLOP or bytes allow, and keep the first of them for the message.

    Of a run the first and the last: in between its time and its floors are affine.
    """
    rules, content = w.rules, lane.content
    flop, traffic = least_flop(work, content), least_bytes(work, content)
    for k in range(0, steps, max(steps - 1, 1)):
        later = k * content.decodes
        bandwidth_floor = (traffic + work.context_bytes * later) / work.bandwidth
        floor = max((flop + work.context_flop * later) / work.peak, bandwidth_floor)
        duration = lane.first_duration + k * lane.growth
        if duration * SLACK < floor:
            if rules.too_fast == 0:
                rules.fast_lane = lane.index
                rules.fast_start = lane.start + run_time(lane, k)
                rules.fast_time = duration
                rules.fast_floor = floor
            rules.too_fast += 1


@compiled
def grown_block_seconds(w: World, lane: Lane, steps: int) -> float:
    """Blocks that a run takes after its first step, times how long it has them [block s].

    Step i = 1, 2, ... takes c_i blocks, c being periodic in the block size b, and keeps them for R(k) - R(i), with
    R(i) = h i + g i^2 / 2, h = d - g / 2 (`run_time`). Phase j comes at the steps i = j + b m, m = 0 ... M; the sum
    over them is c (M + 1) [R(k) - h (j + e / 2) - g / 2 (j^2 + j e + e (2 e + b) / 6)], e = b M.
    """
    whole, growth = run_time(lane, steps), 0.5 * lane.growth
    half = lane.first_duration - growth
    total, phase = 0.0, (-lane.steps) % lane.limits.block_size
    for j in range(1, min(steps - 1, lane.limits.block_size) + 1):
        count = w.phases[lane.phase_at + phase]
        if count > 0:
            cycles = (steps - 1 - j) // lane.limits.block_size
            extent = lane.limits.block_size * cycles
            hold_time = whole - half * (j + 0.5 * extent)
            hold_time -= growth * (j * j + j * extent + extent * (2 * extent + lane.limits.block_size) / 6.0)
            total += count * (cycles + 1) * hold_time
        phase = phase - 1 if phase > 0 else lane.limits.block_size - 1
    return total
