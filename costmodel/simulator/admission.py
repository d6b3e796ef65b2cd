"""Who enters a lane's batch, and who must leave it for want of KV blocks; compiled."""

from __future__ import annotations

from .compiled import compile_loop
from .decodes import blocks_needed, blocks_of, join, rebuild_heap, settle, uncount, unfreshen
from .links import prompt_append, prompt_remove, queue_front, queue_pop, running_insert, running_remove
from .prefix import evict, find_prefix, hold_pages, note_hits, release_pages
from .state import RESERVED, STEP, Group, Lane, Request, World
from .step_kernel import add_chunk
from .step_numbers import EMPTY, Chosen


@compile_loop
def enter_ready(w: World, lane: Lane) -> None:
    """Admit waiting requests whose KV is here already: handed over, or swapped out before."""
    if lane.static == 1 and lane.decodes > 0:
        return
    group = w.groups[lane.group]
    mark = lane.head if lane.cap > 0 and lane.rotating == 0 else -1
    r = group.wait_head
    while r >= 0 and has_slot(w, lane):
        request = w.requests[r]
        processed = request.done + lane.yields
        need = blocks_of(processed - 1, lane.block)
        if request.done < request.prompt or not (request.gated == RESERVED or has_blocks(w, lane, request, need)):
            break
        queue_pop(w, group, lane)
        if request.gated > 0:
            come_in(group, request)
        running_insert(w, lane, r, mark)
        join(w, lane, r, processed)
        if request.restarts > 0:
            lane.extra += processed * lane.swap
        r = group.wait_head


@compile_loop
def has_slot(w: World, lane: Lane) -> bool:
    """Whether the lane may take a waiting request: less than its share run here, and less than all in the engine.

    A lane that took over a prompt may hold more than its share until it decodes no longer.
    """
    if lane.decodes + lane.prompts >= lane.seqs:
        return False
    if lane.stages == 1:
        return True
    return running_in(w, w.groups[lane.group]) < lane.seqs * lane.stages


@compile_loop
def running_in(w: World, group: Group) -> int:
    """Requests that run in the engine."""
    running = 0
    for e in range(group.first_lane, group.end_lane):
        running += w.lanes[e].decodes + w.lanes[e].prompts
    return running


@compile_loop
def too_long(group: Group, lane: Lane, request: Request) -> bool:
    """Whether the engine could never hold the request, even alone."""
    tokens = request.prompt if lane.hands_over == 1 else request.total
    return blocks_of(tokens, lane.block) + 2 + group.watermark > group.blocks


@compile_loop
def come_in(group: Group, request: Request) -> None:
    """A hand-over that was let through the gate is admitted: its reserved blocks are free for it to take."""
    group.coming -= 1
    group.free += request.reserved
    request.gated = 0
    request.reserved = 0


@compile_loop
def has_blocks(w: World, lane: Lane, request: Request, need: int) -> bool:
    """Whether a newcomer's blocks exist above the watermark, and those of its output, which are then promised to it.

    Free blocks only shrink while a batch runs, and promises stay; so a request that is refused stays refused until
    another one leaves, which is what lets runs be fast-forwarded.
    """
    group = w.groups[lane.group]
    promise = 0
    if lane.reserve > 0.0 and lane.hands_over == 0:
        promise = blocks_of(request.prompt + int(lane.reserve * (request.total - request.prompt)), lane.block)
    if group.free - need < group.watermark or group.blocks - group.promised - promise < group.watermark:
        return False
    group.promised += promise
    request.promise = promise
    return True


@compile_loop
def gather_prompts(w: World, lane: Lane) -> None:
    """Take over the unfinished prompts of the engine's other lanes, to go on with their next chunks at once.

    A step goes through the stages behind the steps begun before it, so a prompt's earlier chunks, which may still be in
    flight in another lane, are always done first. A prompt whose last chunk is in flight stays where it is.
    """
    group = w.groups[lane.group]
    for e in range(group.first_lane, group.end_lane):
        other = w.lanes[e]
        r = other.prompt_head if e != lane.index and group.free > 0 else -1
        while r >= 0:
            request = w.requests[r]
            following = request.next_prompt
            computed = request.done + (request.chunk if other.mode == STEP else 0)
            if computed < request.prompt:
                running_remove(w, other, r)
                prompt_remove(w, other, r)
                request.done = computed
                request.chunk = 0
                request.lane = lane.index
                running_insert(w, lane, r, -1)
                prompt_append(w, lane, r)
            r = following


@compile_loop
def has_unfinished(w: World, lane: Lane) -> bool:
    """Whether a prompt of the lane has tokens left after its chunk in flight."""
    r = lane.prompt_head
    while r >= 0:
        if w.requests[r].done + w.requests[r].chunk < w.requests[r].prompt:
            return True
        r = w.requests[r].next_prompt
    return False


@compile_loop
def fill_prompts(w: World, lane: Lane, t: float, preempted: int) -> Chosen:
    """Choose the prompt tokens of the next step, begun prompts before waiting ones."""
    model, group = w.models[lane.model], w.groups[lane.group]
    room = lane.budget if lane.exclusive == 1 else lane.budget - lane.decodes
    chosen = EMPTY
    r = lane.prompt_head
    while r >= 0:
        request = w.requests[r]
        request.chunk = next_chunk(w, lane, request, room - chosen.tokens)
        if request.chunk > 0:
            chosen = add_chunk(model, w.numbers, chosen, request.chunk, request.done)
        r = request.next_prompt
    closed = (preempted > 0 and lane.after_preemption == 0) or (lane.static == 1 and lane.decodes > 0)
    r = -1 if closed else group.wait_head
    while r >= 0 and has_slot(w, lane):
        request, shared = w.requests[r], 0
        if group.cache >= 0 and request.done < request.prompt:
            shared = find_prefix(w, group, request)
        size = first_chunk(lane, request, room, chosen)
        if size <= 0 or not admit(w, lane, r, size, shared):
            break
        request.chunk = size
        if request.prompt_start < 0.0:
            request.prompt_start = t
        chosen = add_chunk(model, w.numbers, chosen, size, request.done)
        r = group.wait_head
    return chosen


@compile_loop
def next_chunk(w: World, lane: Lane, request: Request, room: int) -> int:
    """Tokens of a prompt already begun that fit into the step; the blocks for them are taken if not held already."""
    size = min(request.prompt - request.done, room, lane.threshold)
    if size > 0 and lane.whole == 0:
        group = w.groups[lane.group]
        held = blocks_of(request.done, lane.block)
        size = min(size, (held + group.free) * lane.block - request.done)
        group.free -= blocks_of(request.done + size, lane.block) - held
    return size


@compile_loop
def first_chunk(lane: Lane, request: Request, room: int, chosen: Chosen) -> int:
    """Tokens of a waiting prompt that fit into the step; a whole prompt longer than the budget may go alone."""
    size = request.prompt - request.done
    if lane.chunked == 1:
        return min(size, room - chosen.tokens, lane.threshold)
    used = (chosen.prompts + 1) * max(chosen.longest, size) if lane.padded == 1 else chosen.tokens + size
    return size if used <= room or (chosen.prompts == 0 and size > lane.budget) else 0


@compile_loop
def admit(w: World, lane: Lane, r: int, size: int, shared: int) -> bool:
    """Move the first waiting request to the unfinished prompts if its blocks are there, of which some may be shared."""
    request = w.requests[r]
    need = blocks_of(request.prompt if lane.whole == 1 else request.done + size, lane.block)
    if not has_blocks(w, lane, request, need - shared):
        return False
    group = w.groups[lane.group]
    group.free -= need
    if group.cache >= 0:
        note_hits(group, request)
        hold_pages(w, group, request)
    queue_pop(w, group, lane)
    running_insert(w, lane, r, -1)
    prompt_append(w, lane, r)
    return True


@compile_loop
def make_room(w: World, lane: Lane) -> int:
    """Take the blocks that the decodes need in one step, preempting the youngest if need be; how many were preempted.

    In order of admission each decode that needs a block (or, with `spare`, any) preempts the youngest running request
    until there is one; the last resort is itself.
    """
    if lane.live == 0 or lane.rotating == 1:
        return 0
    group = w.groups[lane.group]
    preempted = 0
    needed = blocks_needed(w, lane, 1)
    if group.free - needed < lane.spare:
        taken = 0
        r = lane.head
        while r >= 0:
            request = w.requests[r]
            if request.joined >= 0 and request.finish < 0.0:
                wanted = 1 if (request.base + lane.steps - 1) % lane.block == 0 else 0
                kept = True
                while kept and group.free - taken < max(wanted, lane.spare):
                    victim = lane.tail
                    kept = victim != r
                    preempt(w, lane, victim)
                    preempted += 1
                if not kept:
                    break
                taken += wanted
            r = request.next
        rebuild_heap(w, lane)
        needed = blocks_needed(w, lane, 1)
    group.free -= needed
    return preempted


@compile_loop
def preempt(w: World, lane: Lane, r: int) -> None:
    """Take running request r's blocks and put it first in the queue, to be computed again or swapped in."""
    group, request = w.groups[lane.group], w.requests[r]
    if group.cache >= 0:
        evict(w, group, group.free)
    running_remove(w, lane, r)
    group.promised -= request.promise
    request.promise = 0
    if request.joined >= 0:
        settle(w, lane, request)
        unfreshen(w, lane, r)
        processed = uncount(w, lane, request)
        if lane.swap > 0.0:
            lane.extra += processed * lane.swap
            request.prompt = processed - lane.yields
            request.done = request.prompt
        else:
            request.prompt = processed
            request.done = 0
    else:
        group.free += blocks_of(request.prompt if lane.whole == 1 else request.done, lane.block)
        prompt_remove(w, lane, r)
        if lane.partial_ends == 1:
            request.prompt = request.done
        request.done = 0
    if request.held > 0:
        release_pages(w, group, request)
    request.chunk = -1
    request.restarts += 1
    group.preemptions += 1
    queue_front(w, group, r)
