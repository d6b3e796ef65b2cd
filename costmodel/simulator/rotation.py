"""Round robin over decodes that do not fit into one step (a cap on the tokens of context in a step); compiled.

The running list is the queue. A step takes requests from its front while sum(context + 1) stays within the cap; those
that go on are put last, after requests that joined meanwhile. While a lane rotates, its step count stands still and
each request's base grows instead; blocks, of which such a lane has no limit, are not counted. Rotation ends when all
requests fit again.
"""

from __future__ import annotations

from .compiled import Events, compile_loop
from .decodes import count_blocks, freshen, note_token, rebuild_heap, settle, uncount_blocks
from .schedule import schedule_lane
from .state import ROTATE, Lane, World
from .step_kernel import decode_piece


@compile_loop
def begin_rotation(w: World, events: Events, lane: Lane, t: float) -> None:
    """Begin a step with the first decodes of the queue that fit (one at least)."""
    if lane.rotating == 0:
        stop_counting(w, lane)
    taken, context = 0, 0
    r, last = lane.head, -1
    while r >= 0:
        request = w.requests[r]
        tokens = request.base + lane.steps
        if taken > 0 and context + tokens + taken + 1 > lane.cap:
            break
        taken, context = taken + 1, context + tokens
        last = r
        r = request.next
    lane.rotated = lane.head
    lane.rotated_tail = last
    w.requests[last].next = -1
    lane.head = r
    if r < 0:
        lane.tail = -1
    else:
        w.requests[r].previous = -1
    lane.mode = ROTATE
    lane.run = 1
    lane.rotated_count = taken
    lane.step_tokens = 0
    lane.step_context = context
    lane.start = t
    lane.first_duration = decode_piece(w.models[lane.model], w.numbers, taken, context)[0]
    schedule_lane(w, events, lane, t + lane.first_duration)


@compile_loop
def stop_counting(w: World, lane: Lane) -> None:
    """From here on each request is counted by itself."""
    r = lane.head
    while r >= 0:
        request = w.requests[r]
        settle(w, lane, request)
        uncount_blocks(w, lane, request)
        request.fresh = 0
        r = request.next
    lane.rotating = 1
    lane.fresh_head = -1
    lane.heap = -1
    lane.depth = 0


@compile_loop
def count_rotated(w: World, lane: Lane, t: float) -> int:
    """The requests of the step that ended at t have one token more; a list of those that have made their last one."""
    ended = -1
    lane.context += lane.rotated_count
    r = lane.rotated
    while r >= 0:
        request = w.requests[r]
        following = request.next
        note_token(request, t)
        request.base += 1
        if request.base + lane.steps >= request.total:
            before = request.previous
            if before < 0:
                lane.rotated = following
            else:
                w.requests[before].next = following
            if following < 0:
                lane.rotated_tail = before
            else:
                w.requests[following].previous = before
            request.next = ended
            ended = r
        r = following
    return ended


@compile_loop
def collect_rotated(w: World, lane: Lane) -> None:
    """Put the requests of the last step back, last; count all lazily again if they fit into one step."""
    if lane.rotated >= 0:
        w.requests[lane.rotated].previous = lane.tail
        if lane.tail < 0:
            lane.head = lane.rotated
        else:
            w.requests[lane.tail].next = lane.rotated
        lane.tail = lane.rotated_tail
        lane.rotated = -1
    if lane.context + lane.decodes > lane.cap:
        return
    lane.rotating = 0
    r = lane.head
    while r >= 0:
        request = w.requests[r]
        if request.joined >= 0:
            request.joined = lane.steps
            count_blocks(w, lane, request)
            freshen(w, lane, r)
        r = request.next
    rebuild_heap(w, lane)
