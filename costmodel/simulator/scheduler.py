"""The one scheduler, which reads its policy: who enters a batch, what a step holds, who leaves; compiled.

Order in a step: decodes first (they take the KV blocks that they need, preempting the youngest if there are none), then
prompts already begun, then waiting requests, each as far as token budget, sequences and blocks go. With an exclusive
policy prompts go first and alone, and decodes run when no prompt can.

An engine that does not pull is sent KV as soon as its prompt is computed. One that does lets a finished prompt in when
it begins a step and has a sequence and the blocks for it, which are reserved from then on; until then it waits on the
prefill side, whose blocks it keeps, first come first served.

A hand-over of n tokens occupies one link (NIC) of each end, the ones free first: n x send seconds there, n x receive
seconds here, each in the order of the link. It has come when both are done; neither link idles for the other, as
transfers side by side share it. The blocks on the prefill side are held until the KV has come.
"""

from __future__ import annotations

from .compiled import compiled
from .pages import evict, find_prefix, hold_pages, read_tier, release_pages
from .records import HAND_OVER, IDLE, NONE, READ_END, RUN, SLEEP, STEP, STEP_END, WAKE, Engine, Lane, Slot, World
from .slots import (
    add_event,
    append,
    blocks_of,
    first_prompt,
    insert,
    join,
    next_blocks,
    next_prompt,
    note_gap,
    rebuild_heap,
    remove,
    run_time,
    set_event,
    steps_within,
    uncount,
    unfreshen,
)
from .step_times import Chosen, add_chunk, decode_piece, mixed_time, no_prompts


@compiled
def start_step(w: World, lane: Lane, t: float) -> None:
    """Begin the next step of the lane at time t, or leave it idle; lanes of a pipeline wait for the first stage."""
    note_formed(lane, t)
    lane.mode = IDLE
    engine = w.engines[lane.engine]
    if lane.stages > 1 and w.free_at[engine.stage_at] > t:
        lane.mode = SLEEP
        set_event(w, lane, STEP_END, w.free_at[engine.stage_at])
        return
    enter_ready(w, lane, engine)
    open_gate(w, lane, engine, t)
    if lane.stages > 1 and lane.policy.chunked:
        gather_prompts(w, lane, engine)
    preemptions = make_room(w, lane, engine) if not lane.policy.exclusive_prefill else 0
    if preemptions < 0:
        return
    chunks = fill_prompts(w, lane, engine, t, preemptions)
    while chunks.prompts == 0 and lane.decodes == 0 and lane.prompts > (1 if lane.stages == 1 else 0):
        preempt(w, lane, engine, w.chains[lane.running].tail)
        preemptions += 1
        chunks = fill_prompts(w, lane, engine, t, preemptions)
    if chunks.prompts > 0:
        begin_mixed(w, lane, engine, t, chunks)
        return
    room = make_room(w, lane, engine) if lane.policy.exclusive_prefill else 0
    if room >= 0 and lane.decodes > 0:
        begin_run(w, lane, engine, t, preemptions + room)
    elif lane.stages > 1 and preemptions + room > 0:
        wake_stalled(w, engine, t)


@compiled
def note_formed(lane: Lane, t: float) -> None:
    """A step that begins at t was formed when the last one began, if requests go on from one to the other."""
    lane.formed = t
    if lane.ahead and lane.mode in (STEP, RUN) and lane.decodes + lane.prompts > 0:
        lane.formed = lane.start + (run_time(lane, lane.run - 1) if lane.mode == RUN and lane.run > 1 else 0.0)


@compiled
def enter_ready(w: World, lane: Lane, engine: Engine) -> None:
    """Admit waiting requests whose KV is here already, as they were handed over."""
    if lane.policy.static and lane.decodes > 0:
        return
    s = w.chains[engine.waiting].head
    while s >= 0 and has_slot(w, lane, engine):
        slot = w.slots[s]
        processed_tokens = slot.done + lane.yields
        need = blocks_of(lane, processed_tokens - 1)
        if slot.done < slot.prompt or not (slot.gated == 1 or has_blocks(lane, engine, slot, need)):
            break
        queue_pop(w, engine, lane)
        if slot.gated == 1:
            come_in(engine, slot)
        append(w, lane.running, s)
        join(w, lane, s, processed_tokens)
        s = w.chains[engine.waiting].head


@compiled
def has_slot(w: World, lane: Lane, engine: Engine) -> bool:
    """Whether the lane may take a waiting request: less than its share run here, and less than all in the engine.

    A lane that took over a prompt may hold more than its share until it decodes no longer.
    """
    if lane.decodes + lane.prompts >= lane.seqs:
        return False
    return lane.stages == 1 or running_in(w, engine) < lane.seqs * lane.stages


@compiled
def running_in(w: World, engine: Engine) -> int:
    """Requests that run in the engine."""
    running = 0
    for e in range(engine.first_lane, engine.end_lane):
        running += w.lanes[e].decodes + w.lanes[e].prompts
    return running


@compiled
def too_long(engine: Engine, lane: Lane, slot: Slot) -> bool:
    """Whether the engine could never hold the request, even alone."""
    tokens = slot.prompt if lane.hands_over else slot.total
    return blocks_of(lane, tokens) + 2 + engine.watermark > engine.blocks


@compiled
def come_in(engine: Engine, slot: Slot) -> None:
    """A hand-over that was let through the gate is admitted: its reserved blocks are free for it to take."""
    engine.coming -= 1
    engine.free += slot.reserved
    slot.gated = 0
    slot.reserved = 0


@compiled
def has_blocks(lane: Lane, engine: Engine, slot: Slot, need: int) -> bool:
    """Whether a newcomer's blocks exist above the watermark, and those of its output, which are then promised to it.

    Free blocks only shrink while a batch runs, and promises stay; so a request that is refused stays refused until
    another one leaves, which is what lets runs be fast-forwarded.
    """
    promise = 0
    if lane.policy.reserve_output > 0.0 and not lane.hands_over:
        promise = blocks_of(lane, slot.prompt + int(lane.policy.reserve_output * (slot.total - slot.prompt)))
    if engine.free - need < engine.watermark or engine.blocks - engine.promised - promise < engine.watermark:
        return False
    engine.promised += promise
    slot.promise = promise
    return True


@compiled
def open_gate(w: World, lane: Lane, engine: Engine, t: float) -> None:
    """Let in the prompts that may come."""
    gate = w.chains[engine.gate]
    while gate.head >= 0 and may_come(w, lane, engine, w.slots[gate.head]):
        s = gate.head
        remove(w, engine.gate, s)
        w.slots[s].gated = 1
        engine.coming += 1
        send_kv(w, s, t)


@compiled
def may_come(w: World, lane: Lane, engine: Engine, slot: Slot) -> bool:
    """Whether the engine has room for the next hand-over, and reserves its blocks; one too long comes to be refused."""
    if too_long(engine, lane, slot):
        return True
    if w.chains[engine.waiting].head >= 0 or running_in(w, engine) + engine.coming >= lane.seqs * lane.stages:
        return False
    need = blocks_of(lane, slot.prompt + lane.yields - 1)
    if not has_blocks(lane, engine, slot, need):
        return False
    engine.free -= need
    slot.reserved = need
    return True


@compiled
def gather_prompts(w: World, lane: Lane, engine: Engine) -> None:
    """Take over the unfinished prompts of the engine's other lanes, to go on with their next chunks at once.

    A step goes through the stages behind the steps begun before it, so a prompt's earlier chunks, which may still be in
    flight in another lane, are always done first. A prompt whose last chunk is in flight stays where it is.
    """
    for e in range(engine.first_lane, engine.end_lane):
        donor = w.lanes[e]
        s = first_prompt(w, donor) if e != lane.index and engine.free > 0 else NONE
        while s >= 0:
            slot = w.slots[s]
            following = next_prompt(w, s)
            computed_tokens = slot.done + (slot.chunk if donor.mode == STEP else 0)
            if computed_tokens < slot.prompt:
                remove(w, donor.running, s)
                donor.prompts -= 1
                slot.done = computed_tokens
                slot.chunk = 0
                slot.lane = lane.index
                append(w, lane.running, s)
                lane.prompts += 1
            s = following


@compiled
def fill_prompts(w: World, lane: Lane, engine: Engine, t: float, preemptions: int) -> Chosen:
    """Choose the prompt tokens of the next step, begun prompts before waiting ones."""
    model, chunks = w.models[lane.model], no_prompts()
    room = lane.limits.max_num_batched_tokens - (
        0 if lane.policy.exclusive_prefill else lane.limits.decode_tokens * lane.decodes
    )
    s = first_prompt(w, lane)
    while s >= 0:
        slot = w.slots[s]
        slot.chunk = next_chunk(lane, engine, slot, room - chunks.tokens)
        if slot.chunk > 0:
            chunks = add_chunk(model, w.tables, chunks, slot.chunk, slot.done)
        s = next_prompt(w, s)
    if (preemptions > 0 and not lane.policy.admit_after_preemption) or (lane.policy.static and lane.decodes > 0):
        return chunks
    s = w.chains[engine.waiting].head
    while s >= 0 and w.slots[s].came <= lane.formed and has_slot(w, lane, engine):
        slot = w.slots[s]
        shared = find_prefix(w, engine, slot) if engine.cache >= 0 and slot.done < slot.prompt else 0
        ready = read_tier(w, engine, slot, t) if chunks.tokens < room else t
        if ready > t:
            remove(w, engine.waiting, s)
            add_event(w, READ_END, s, ready)
            s = w.chains[engine.waiting].head
            continue
        slot.chunk = admit_prompt(w, lane, engine, s, room, chunks, shared)
        if slot.chunk < 0:
            break
        chunks = add_chunk(model, w.tables, chunks, slot.chunk, slot.done)
        request = w.requests[slot.request]
        if request.prompt_start < 0.0:
            request.prompt_start = t
        s = w.chains[engine.waiting].head
    return chunks


@compiled
def next_chunk(lane: Lane, engine: Engine, slot: Slot, room: int) -> int:
    """Tokens of a prompt already begun that fit into the step; the blocks for them are taken if not held already."""
    size = min(slot.prompt - slot.done, room, lane.limits.long_prefill_threshold)
    if size > 0 and not lane.policy.whole_prompt_blocks:
        blocks = blocks_of(lane, slot.done)
        if blocks_of(lane, slot.done + size) - blocks > engine.free:
            size = (blocks + engine.free) * lane.limits.block_size - slot.done
        engine.free -= blocks_of(lane, slot.done + size) - blocks
    return size


@compiled
def admit_prompt(  # noqa: PLR0917 -- compiled
    w: World, lane: Lane, engine: Engine, s: int, room: int, chunks: Chosen, shared: int
) -> int:
    """Admit the first waiting request if its prompt, or a chunk of it, fits into the step and its blocks are there.

    Tokens of the chunk, -1 if it is refused. shared: blocks that running requests have already; a whole prompt longer
    than the budget may go alone.
    """
    slot = w.slots[s]
    size = slot.prompt - slot.done
    if lane.policy.chunked:
        size = min(size, room - chunks.tokens, lane.limits.long_prefill_threshold)
    elif chunks.tokens + size > room and (chunks.prompts > 0 or size <= lane.limits.max_num_batched_tokens):
        return -1
    if size <= 0:
        return -1
    need = blocks_of(lane, slot.prompt if lane.policy.whole_prompt_blocks else slot.done + size)
    if not has_blocks(lane, engine, slot, need - shared):
        return -1
    engine.free -= need
    if engine.cache >= 0:
        request = w.requests[slot.request]
        if request.restarts == 0:  # one that was preempted is not counted again
            request.hit = slot.done
        hold_pages(w, engine, slot)
    queue_pop(w, engine, lane)
    append(w, lane.running, s)
    lane.prompts += 1
    return int(size)


@compiled
def make_room(w: World, lane: Lane, engine: Engine) -> int:
    """Take the blocks that the decodes need in one step, preempting the youngest if need be.

    How many were preempted, or -1 if the lane has to wait for blocks. In order of admission each decode that needs a
    block preempts the youngest running request until there is one; the last resort is itself.
    """
    if lane.live == 0:
        return 0
    preemptions = 0
    need = next_blocks(w, lane)
    if engine.free < need:
        used_blocks = 0
        s = w.chains[lane.running].head
        while s >= 0:
            slot = w.slots[s]
            if slot.joined >= 0 and slot.ended == 0:
                own_need = 1 if (slot.offset + lane.steps - 1) % lane.limits.block_size == 0 else 0
                stays = True
                while stays and engine.free - used_blocks < own_need:
                    giver = giving_lane(w, lane, engine)
                    if giver < 0:
                        rebuild_heap(w, lane)
                        return -1
                    victim = w.chains[w.lanes[giver].running].tail
                    stays = victim != s
                    preempt(w, w.lanes[giver], engine, victim)
                    if giver != lane.index:
                        rebuild_heap(w, w.lanes[giver])
                    preemptions += 1
                if not stays:
                    break
                used_blocks += own_need
            s = slot.next
        rebuild_heap(w, lane)
        need = next_blocks(w, lane)
    engine.free -= need
    return preemptions


@compiled
def giving_lane(w: World, lane: Lane, engine: Engine) -> int:
    """Lane whose youngest request gives its blocks up: this one; for its only request, the one of the youngest of all.

    -1 while others are in flight: it waits for what they do. Else lanes that hold the last blocks between them would
    take them from each other for ever.
    """
    youngest, giver = w.chains[lane.running].tail, lane.index
    if lane.stages == 1 or w.chains[lane.running].head != youngest:
        return giver
    for e in range(engine.first_lane, engine.end_lane):
        s = w.chains[w.lanes[e].running].tail
        if s >= 0 and w.lanes[e].mode not in (IDLE, SLEEP):
            return -1
        if s >= 0 and w.slots[s].request > w.slots[youngest].request:
            youngest, giver = s, e
    return giver


@compiled
def preempt(w: World, lane: Lane, engine: Engine, s: int) -> None:
    """Take running request s's blocks and put it first in the queue, to be computed again."""
    slot = w.slots[s]
    evict(w, engine, engine.free)
    remove(w, lane.running, s)
    engine.promised -= slot.promise
    slot.promise = 0
    if slot.joined >= 0:
        if slot.joined < lane.steps:
            note_gap(w, lane, s)
            slot.last = lane.last
        unfreshen(w, lane, s)
        processed_tokens = uncount(w, lane, slot)
        slot.prompt = processed_tokens
        slot.done = 0
    else:
        engine.free += blocks_of(lane, slot.prompt if lane.policy.whole_prompt_blocks else slot.done)
        lane.prompts -= 1
        slot.done = 0
    release_pages(w, engine, slot)
    slot.staged = 0  # what was read from the tier was dropped with the rest
    slot.chunk = -1
    slot.came = -1.0
    w.requests[slot.request].restarts += 1
    engine.use.preemptions += 1
    queue_front(w, engine, s)


@compiled
def begin_mixed(w: World, lane: Lane, engine: Engine, t: float, chunks: Chosen) -> None:
    """Begin a step with prompts and, unless the policy keeps them apart, all decodes."""
    batch = 0 if lane.policy.exclusive_prefill else lane.decodes
    context = lane.context if batch > 0 else 0
    lane.mode = STEP
    lane.run = 1 if batch > 0 else 0
    note_content(lane, engine, chunks, batch, context)
    launch(w, lane, engine, t, mixed_time(w.models[lane.model], w.tables, chunks, batch, context))
    if lane.stages > 1 and has_unfinished(w, lane):
        wake_idle(w, engine, t)


@compiled
def note_content(lane: Lane, engine: Engine, chunks: Chosen, batch: int, context: int) -> None:
    """Write down what the step, or each step of the run, holds."""
    content = lane.content
    content.steps = 1
    content.tokens = chunks.tokens + batch
    content.capped = min(content.tokens, engine.use.work.knee)
    content.rows = chunks.prompts + batch
    content.pairs = chunks.pairs
    content.reach = chunks.reach
    content.decodes = batch
    content.context = context


@compiled
def has_unfinished(w: World, lane: Lane) -> bool:
    """Whether a prompt of the lane has tokens left after its chunk in flight."""
    s = first_prompt(w, lane)
    while s >= 0:
        if w.slots[s].done + w.slots[s].chunk < w.slots[s].prompt:
            return True
        s = next_prompt(w, s)
    return False


@compiled
def begin_run(w: World, lane: Lane, engine: Engine, t: float, preemptions: int) -> None:
    """Begin as many decode steps as are alike: to the first end, the last free block, or the end of the piece."""
    batch, context, steps = lane.decodes, lane.context, 1
    duration, slope, limit = decode_piece(w.models[lane.model], w.tables, batch, context)
    waiting = w.chains[w.engines[lane.engine].waiting].head
    comes = waiting >= 0 and w.slots[waiting].came > lane.formed  # into the next step
    if w.rules.fast_forward == 1 and lane.stages == 1 and preemptions == 0 and not comes:
        root = w.slots[lane.heap]
        steps = min(root.total - root.offset - lane.steps, (limit - context) // batch + 1)
        if steps > 1 and engine.free < lane.live * blocks_of(lane, steps):
            steps = max(1, min(steps, steps_within(w, lane, engine.free + next_blocks(w, lane))))
    lane.mode = RUN
    lane.run = steps
    note_content(lane, engine, no_prompts(), batch, context)
    lane.growth = slope * batch
    launch(w, lane, engine, t, duration)


@compiled
def launch(w: World, lane: Lane, engine: Engine, t: float, duration: float) -> None:
    """Send the step through its pipeline stages, or its run of steps through the only one."""
    lane.start = t
    lane.first_duration = duration
    end = t + duration
    if lane.stages > 1:
        share, end = duration / lane.stages, t
        for stage in range(engine.stage_at, engine.stage_at + lane.stages):
            end = max(end, w.free_at[stage]) + share
            w.free_at[stage] = end
        lane.first_duration = end - t
    elif lane.mode == RUN and lane.run > 1:
        end = t + run_time(lane, lane.run)
    set_event(w, lane, STEP_END, end)


@compiled
def queue_front(w: World, engine: Engine, s: int) -> None:
    """Put s first in the queue, behind requests whose blocks are reserved."""
    after = w.chains[engine.waiting].head
    while after >= 0 and w.slots[after].gated == 1:
        after = w.slots[after].next
    insert(w, engine.waiting, s, after)


@compiled
def queue_pop(w: World, engine: Engine, lane: Lane) -> None:
    """The lane takes the first request off its engine's queue, and keeps it until it ends or is preempted."""
    s = w.chains[engine.waiting].head
    w.slots[s].lane = lane.index
    remove(w, engine.waiting, s)


@compiled
def wake_idle(w: World, engine: Engine, t: float) -> None:
    """All idle lanes of the engine look for work at t."""
    for e in range(engine.first_lane, engine.end_lane):
        if w.lanes[e].mode == IDLE:
            set_event(w, w.lanes[e], WAKE, t)


@compiled
def wake_lanes(w: World, engine: Engine, t: float) -> None:
    """Something came to the engine or left it: idle lanes look again, first those whose requests wait for blocks."""
    for e in range(engine.first_lane, engine.end_lane):
        if w.lanes[e].mode == IDLE and w.lanes[e].decodes + w.lanes[e].prompts > 0:
            set_event(w, w.lanes[e], WAKE, t)
    if w.chains[engine.waiting].head < 0 and w.chains[engine.gate].head < 0:
        return
    for e in range(engine.first_lane, engine.end_lane):
        if w.lanes[e].mode == IDLE and w.lanes[e].decodes + w.lanes[e].prompts == 0:
            set_event(w, w.lanes[e], WAKE, t)


@compiled
def wake_stalled(w: World, engine: Engine, t: float) -> None:
    """If all lanes are idle after a preemption, no end of a step will wake them: do it now that the blocks are free."""
    for e in range(engine.first_lane, engine.end_lane):
        if w.lanes[e].mode != IDLE:
            return
    wake_lanes(w, engine, t)


@compiled
def send_kv(w: World, s: int, t: float) -> None:
    """Send the KV of the prompt in slot s to its decode engine."""
    slot = w.slots[s]
    sender, receiver = w.engines[w.lanes[slot.first_lane].engine], w.engines[w.lanes[slot.lane].engine]
    end = t
    if sender.send > 0.0 or receiver.send > 0.0:
        out = first_free(w, sender.link_at, sender.nics)
        into = first_free(w, receiver.link_at + receiver.nics, receiver.nics)
        w.free_at[out] = max(t, w.free_at[out]) + slot.prompt * sender.send
        w.free_at[into] = max(t, w.free_at[into]) + slot.prompt * receiver.send
        end = max(w.free_at[out], w.free_at[into])
    add_event(w, HAND_OVER, s, end)


@compiled
def first_free(w: World, link: int, count: int) -> int:
    """Of `count` links from `link` on, the one that is free first."""
    best = link
    for k in range(link + 1, link + count):
        if w.free_at[k] < w.free_at[best]:
            best = k
    return best
