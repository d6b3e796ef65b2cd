"""Joining, leaving and advancing the decodes of a lane, counted lazily; compiled.

At decode step S of its lane a request has processed base + S tokens. It needs a new KV block in the step that finds it
with q tokens if q mod block = 1, so a lane counts its decodes by base mod block and never looks at each of them.
"""

from __future__ import annotations

from .compiled import compile_loop
from .gaps import longest_gap, push_gap
from .heap import heap_push
from .state import Lane, Request, World


@compile_loop
def blocks_of(tokens: int, block: int) -> int:
    """KV blocks that hold so many tokens."""
    return (tokens + block - 1) // block


@compile_loop
def blocks_needed(w: World, lane: Lane, steps: int) -> int:
    """New blocks that the decodes take in their next `steps` steps."""
    counts, first, block = w.counts, lane.phase_at, lane.block
    need, phase = lane.live * (steps // block), (1 - lane.steps) % block
    for _ in range(steps % block):
        need += counts[first + phase]
        phase = phase - 1 if phase > 0 else block - 1
    return need


@compile_loop
def steps_within(w: World, lane: Lane, room: int) -> int:
    """Most decode steps that take at most `room` blocks."""
    cycles = max(room, 0) // lane.live
    room -= cycles * lane.live
    steps = 0
    while steps < lane.block:
        room -= w.counts[lane.phase_at + (1 - lane.steps - steps) % lane.block]
        if room < 0:
            break
        steps += 1
    return cycles * lane.block + steps


@compile_loop
def join(w: World, lane: Lane, r: int, processed: int) -> None:
    """Request r, already among the running, begins to decode with so many tokens processed."""
    request = w.requests[r]
    request.base = processed - lane.steps
    request.joined = lane.steps
    lane.decodes += 1
    lane.live += 1
    lane.context += processed
    count_blocks(w, lane, request)
    if lane.rotating == 0:
        freshen(w, lane, r)
        lane.heap = heap_push(w, lane.heap, r)


@compile_loop
def count_blocks(w: World, lane: Lane, request: Request) -> None:
    """Take the blocks of a decoding request (those of its newest token are taken in its next step)."""
    if lane.rotating == 0:
        w.groups[lane.group].free -= blocks_of(request.base + lane.steps - 1, lane.block)
        w.counts[lane.phase_at + request.base % lane.block] += 1


@compile_loop
def uncount_blocks(w: World, lane: Lane, request: Request) -> None:
    """Give back the blocks of a decoding request."""
    if lane.rotating == 0:
        w.groups[lane.group].free += blocks_of(request.base + lane.steps - 1, lane.block)
        w.counts[lane.phase_at + request.base % lane.block] -= 1


@compile_loop
def freshen(w: World, lane: Lane, r: int) -> None:
    """The end of r's next decode step is to be noted for it alone."""
    request = w.requests[r]
    lane.gap_joined = 2
    if request.fresh == 0:
        request.fresh = 1
        request.next_fresh = lane.fresh_head
        lane.fresh_head = r


@compile_loop
def unfreshen(w: World, lane: Lane, r: int) -> None:
    """Forget that r's next decode step is to be noted: it leaves the lane before, and may go on in another one."""
    if w.requests[r].fresh == 0:
        return
    w.requests[r].fresh = 0
    if lane.fresh_head == r:
        lane.fresh_head = w.requests[r].next_fresh
        return
    other = lane.fresh_head
    while other >= 0:
        if w.requests[other].next_fresh == r:
            w.requests[other].next_fresh = w.requests[r].next_fresh
        other = w.requests[other].next_fresh


@compile_loop
def settle(w: World, lane: Lane, request: Request) -> None:
    """Write the longest gap and the last token into the request, as it stops being counted lazily."""
    if request.joined < lane.steps:
        request.itl = max(request.itl, longest_gap(w, lane, request.joined))
        request.last = lane.last


@compile_loop
def uncount(w: World, lane: Lane, request: Request) -> int:
    """Take the request and its blocks out of the counts; tokens it has processed. The heap is the caller's to mend."""
    processed = request.base + lane.steps
    lane.decodes -= 1
    lane.live -= 1
    lane.context -= processed
    uncount_blocks(w, lane, request)
    request.joined = -1
    if lane.decodes == 0:
        lane.depth = 0
    return processed


@compile_loop
def note_token(request: Request, t: float) -> None:
    """The request gets a token at t: its first, or one that ends a gap."""
    if request.first < 0.0:
        request.first = t
    else:
        request.itl = max(request.itl, t - request.last)
    request.last = t


@compile_loop
def advance_decodes(w: World, lane: Lane, t: float) -> None:
    """The decode steps in flight have ended at t."""
    steps = lane.run
    first_end = t if steps == 1 else lane.start + lane.first_duration
    r = lane.fresh_head
    while r >= 0:
        request = w.requests[r]
        request.fresh = 0
        if request.joined == lane.steps:
            note_token(request, first_end)
        r = request.next_fresh
    lane.fresh_head = -1
    push_gap(w, lane, lane.steps + 1, first_end - lane.last)
    if steps > 1:
        push_gap(w, lane, lane.steps + steps, lane.first_duration + (steps - 1) * lane.growth)
    lane.steps += steps
    lane.context += steps * lane.decodes
    lane.last = t


@compile_loop
def rebuild_heap(w: World, lane: Lane) -> None:
    """Heap of the decodes, after one was taken from its middle."""
    root = -1
    r = lane.head
    while r >= 0:
        request = w.requests[r]
        if request.joined >= 0 and request.finish < 0.0:
            root = heap_push(w, root, r)
        r = request.next
    lane.heap = root
