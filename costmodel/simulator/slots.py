"""What waits and what decodes: slots in lists and heaps, events to come, and runs of equal decode steps; compiled.

A slot is in one list at most: the queue of an engine, the hand-overs before its gate, what runs in a lane, or the
prompts to hand over. Events wait in a binary heap, ordered
by time, kind and number. A lane has one event at most: a new one takes the place of the old one.

The decodes of a lane are counted lazily, in a heap by their last step. At decode step S of its lane a request has
processed offset + S tokens. It needs a new KV block in the step that finds it with q tokens if q mod block = 1, so a
lane counts its decodes by offset mod block and never looks at each of them.

While the batch stays, each step lasts `growth` longer than the one before: k steps take k d + g k (k - 1) / 2, with d
the first step's time and g = slope x batch. Which step is under way at a time follows by solving for k.
"""

from __future__ import annotations

import math

from .compiled import compiled
from .records import GAPS, NONE, ONE, RUN, STEP_END, WAKE, Engine, Event, Lane, Slot, World


@compiled
def insert(w: World, number: int, s: int, before: int) -> None:
    """Put slot s into the list with this number, before slot `before` or, if that is -1, last."""
    slot, ends = w.slots[s], w.chains[number]
    after = ends.tail if before < 0 else w.slots[before].previous
    slot.previous = after
    slot.next = before
    if after < 0:
        ends.head = s
    else:
        w.slots[after].next = s
    if before < 0:
        ends.tail = s
    else:
        w.slots[before].previous = s


@compiled
def append(w: World, number: int, s: int) -> None:
    """Put slot s last in a list."""
    insert(w, number, s, NONE)


@compiled
def remove(w: World, number: int, s: int) -> None:
    """Take slot s out of a list."""
    before, after, ends = w.slots[s].previous, w.slots[s].next, w.chains[number]
    if before < 0:
        ends.head = after
    else:
        w.slots[before].next = after
    if after < 0:
        ends.tail = before
    else:
        w.slots[after].previous = before


@compiled
def first_prompt(w: World, lane: Lane) -> int:
    """The oldest running request whose prompt is unfinished, -1 without one; looked for from the youngest on."""
    s, count = NONE, lane.prompts
    before = w.chains[lane.running].tail
    while count > 0:
        s, before = before, w.slots[before].previous
        if w.slots[s].joined < 0:
            count -= 1
    return s


@compiled
def next_prompt(w: World, s: int) -> int:
    """The next one behind slot s, -1 without one."""
    following = w.slots[s].next
    while following >= 0 and w.slots[following].joined >= 0:
        following = w.slots[following].next
    return following


@compiled
def heap_merge(w: World, a: int, b: int) -> int:
    """Root of two heaps made one: pairing heaps of decodes by total - offset, the lane's step at which each ends.

    Ties are broken by request. Insertion takes constant time, removal of the least amortized logarithmic time (Fredman
    et al. 1986).
    """
    if a < 0:
        return b
    if b < 0:
        return a
    slot_a, slot_b = w.slots[a], w.slots[b]
    first, second = slot_a.total - slot_a.offset, slot_b.total - slot_b.offset
    if second < first or (second == first and slot_b.request < slot_a.request):
        slot_a.sibling = slot_b.child
        slot_b.child = a
        return b
    slot_b.sibling = slot_a.child
    slot_a.child = b
    return a


@compiled
def heap_push(w: World, root: int, s: int) -> int:
    """Root after adding slot s."""
    slot = w.slots[s]
    slot.child = -1
    slot.sibling = -1
    return heap_merge(w, root, s)


@compiled
def heap_pop(w: World, root: int) -> int:
    """Root after removing the root: children are merged in pairs, then from the last pair to the first."""
    s, pairs = w.slots[root].child, -1
    while s >= 0:
        pair_root, neighbor, following = s, w.slots[s].sibling, -1
        if neighbor >= 0:
            following = w.slots[neighbor].sibling
            pair_root = heap_merge(w, s, neighbor)
        w.slots[pair_root].sibling = pairs
        pairs, s = pair_root, following
    root = NONE
    while pairs >= 0:
        following = w.slots[pairs].sibling
        root = heap_merge(w, root, pairs)
        pairs = following
    return root


@compiled
def is_earlier(event: Event, time: float, kind: int, sequence: int) -> bool:
    """Whether the event comes before one with this time, kind and number."""
    if event.time != time:
        return event.time < time
    if event.kind != kind:
        return event.kind < kind
    return event.sequence < sequence


@compiled
def place(w: World, at: int, time: float, kind: int, sequence: int, subject: int) -> None:  # noqa: PLR0917 -- an event
    """Put an event into the hole at place `at` of the heap: the hole moves up, or else down, to where it belongs."""
    events = w.events
    while at > 1 and not is_earlier(events[at // 2], time, kind, sequence):
        move(w, at // 2, at)
        at = at // 2
    child = 2 * at
    while child <= w.rules.events:
        later = events[child]
        if child < w.rules.events and is_earlier(events[child + 1], later.time, later.kind, later.sequence):
            child += 1
        if not is_earlier(events[child], time, kind, sequence):
            break
        move(w, child, at)
        at, child = child, 2 * child
    event = events[at]
    event.time = time
    event.kind = kind
    event.sequence = sequence
    event.which = subject
    if kind in (STEP_END, WAKE):
        w.lanes[subject].event = at


@compiled
def move(w: World, source: int, target: int) -> None:
    """Move an event to another place of the heap."""
    event, hole = w.events[source], w.events[target]
    hole.time = event.time
    hole.kind = event.kind
    hole.sequence = event.sequence
    hole.which = event.which
    if event.kind in (STEP_END, WAKE):
        w.lanes[event.which].event = target


@compiled
def set_event(w: World, lane: Lane, kind: int, t: float) -> None:
    """The step of the lane ends at t (STEP_END), or it looks for work then, after all else that happens (WAKE)."""
    rules = w.rules
    rules.sequence += 1
    at = lane.event
    if at == 0:
        rules.events += 1
        at = rules.events
    place(w, at, t, kind, rules.sequence, lane.index)


@compiled
def add_event(w: World, kind: int, subject: int, t: float) -> None:
    """A request arrives, or the KV of the request in a slot, at t."""
    rules = w.rules
    rules.sequence += 1
    rules.events += 1
    place(w, rules.events, t, kind, rules.sequence, subject)


@compiled
def take_event(w: World) -> None:
    """Take the first event out of the heap; what it was is the caller's to read before."""
    rules = w.rules
    first, last = w.events[1], w.events[rules.events]
    if first.kind in (STEP_END, WAKE):
        w.lanes[first.which].event = 0
    rules.events -= 1
    if rules.events > 0:
        place(w, ONE, last.time, last.kind, last.sequence, last.which)


@compiled
def blocks_of(lane: Lane, tokens: int) -> int:
    """KV blocks that hold so many tokens."""
    return (tokens + lane.limits.block_size - 1) // lane.limits.block_size


@compiled
def blocks_needed(w: World, lane: Lane, steps: int) -> int:
    """New blocks that the decodes take in their next `steps` steps."""
    need, phase = lane.live * (steps // lane.limits.block_size), (1 - lane.steps) % lane.limits.block_size
    for _ in range(steps % lane.limits.block_size):
        need += w.phases[lane.phase_at + phase]
        phase = phase - 1 if phase > 0 else lane.limits.block_size - 1
    return need


@compiled
def next_blocks(w: World, lane: Lane) -> int:
    """New blocks that the decodes take in their next step."""
    blocks: int = w.phases[lane.phase_at + (1 - lane.steps) % lane.limits.block_size]
    return blocks


@compiled
def steps_within(w: World, lane: Lane, room: int) -> int:
    """Most decode steps that take at most `room` blocks."""
    cycles = max(room, 0) // lane.live
    room -= cycles * lane.live
    steps = 0
    while steps < lane.limits.block_size:
        room -= w.phases[lane.phase_at + (1 - lane.steps - steps) % lane.limits.block_size]
        if room < 0:
            break
        steps += 1
    return cycles * lane.limits.block_size + steps


@compiled
def run_time(lane: Lane, steps: int) -> float:
    """Time of the first `steps` steps of a run: k d + g k (k - 1) / 2 [s]."""
    return steps * lane.first_duration + lane.growth * (0.5 * steps * (steps - 1))


@compiled
def steps_by(lane: Lane, t: float) -> int:
    """Number of the step of the run that ends first at or after t: k = 2 s / (h + sqrt(h^2 + 2 g s)), h = d - g / 2."""
    growth, span = lane.growth, t - lane.start
    half = lane.first_duration - 0.5 * growth
    steps = max(1, min(lane.run, int(2.0 * span / (half + math.sqrt(half * half + 2.0 * growth * span)))))
    while steps > 1 and lane.start + run_time(lane, steps - 1) >= t:
        steps -= 1
    while steps < lane.run and lane.start + run_time(lane, steps) < t:
        steps += 1
    return steps


@compiled
def join(w: World, lane: Lane, s: int, processed_tokens: int) -> None:
    """The request in slot s, already among the running, begins to decode with so many tokens processed.

    It takes their blocks; that of its newest token is taken in its next step, whose end is noted for it alone.
    """
    slot = w.slots[s]
    slot.offset = processed_tokens - lane.steps
    slot.joined = lane.steps
    lane.decodes += 1
    lane.live += 1
    lane.context += processed_tokens
    lane.heap = heap_push(w, lane.heap, s)
    w.engines[lane.engine].free -= blocks_of(lane, processed_tokens - 1)
    w.phases[lane.phase_at + slot.offset % lane.limits.block_size] += 1
    lane.gap_joined = 2
    if slot.fresh == 0:
        slot.fresh = 1
        slot.next_fresh = lane.fresh_head
        lane.fresh_head = s


@compiled
def unfreshen(w: World, lane: Lane, s: int) -> None:
    """Forget that s's next decode step is to be noted: it leaves the lane before, and may go on in another one."""
    if w.slots[s].fresh == 0:
        return
    w.slots[s].fresh = 0
    if lane.fresh_head == s:
        lane.fresh_head = w.slots[s].next_fresh
        return
    before = lane.fresh_head
    while before >= 0:
        if w.slots[before].next_fresh == s:
            w.slots[before].next_fresh = w.slots[s].next_fresh
        before = w.slots[before].next_fresh


@compiled
def uncount(w: World, lane: Lane, slot: Slot) -> int:
    """Take the request and its blocks out of the counts; tokens it has processed. The heap is the caller's to mend."""
    processed_tokens = slot.offset + lane.steps
    lane.decodes -= 1
    lane.live -= 1
    lane.context -= processed_tokens
    w.engines[lane.engine].free += blocks_of(lane, processed_tokens - 1)
    w.phases[lane.phase_at + slot.offset % lane.limits.block_size] -= 1
    slot.joined = -1
    if lane.decodes == 0:
        lane.depth = 0
    return processed_tokens


@compiled
def note_token(w: World, slot: Slot, t: float) -> None:
    """The request gets a token at t: its first, or one that ends a gap."""
    request = w.requests[slot.request]
    if request.first < 0.0:
        request.first = t
    else:
        request.itl = max(request.itl, t - slot.last)
        longer = edges_below(w, t - slot.last)
        if longer > 0:
            w.request_gaps[slot.request * w.rules.edges + longer - 1] += 1
    slot.last = t


@compiled
def edges_below(w: World, gap: float) -> int:
    """How many of the lengths at which gaps are counted a gap exceeds."""
    low, high = 0, w.rules.edges
    while low < high:
        middle = (low + high) // 2
        if gap > w.gap_edges[middle]:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def count_gaps(w: World, lane: Lane, steps: int) -> None:
    """Count the gaps d + g, d + 2 g, ... that the steps of a run after its first end, by the edges they exceed.

    As all decodes of a lane get a token at the same steps, each lane counts for all of them: a request's gaps are those
    counted since its first decode step.
    """
    longer = edges_below(w, lane.first_duration + lane.growth)
    most = edges_below(w, lane.first_duration + (steps - 1) * lane.growth)
    start, at = 0, lane.index * w.rules.edges - 1
    while longer < most:
        upto = int((w.gap_edges[longer] - lane.first_duration) / lane.growth)
        upto = max(start, min(upto, steps - 1))
        if longer > 0:
            w.lane_gaps[at + longer] += upto - start
        start = upto
        longer += 1
    if most > 0:
        w.lane_gaps[at + most] += steps - 1 - start


@compiled
def advance_decodes(w: World, lane: Lane, t: float) -> None:
    """The decode steps in flight have ended at t."""
    steps = lane.run
    first_end = t if steps == 1 else lane.start + lane.first_duration
    edges = w.rules.edges
    longer = edges_below(w, first_end - lane.last)
    if longer > 0:
        w.lane_gaps[lane.index * edges + longer - 1] += 1
    s = lane.fresh_head
    while s >= 0:
        slot = w.slots[s]
        slot.fresh = 0
        if slot.joined == lane.steps:
            note_token(w, slot, first_end)
            for k in range(edges):
                w.slot_gaps[s * edges + k] = w.lane_gaps[lane.index * edges + k]
        s = slot.next_fresh
    lane.fresh_head = -1
    push_gap(w, lane, lane.steps + 1, first_end - lane.last)
    if steps > 1:  # of all later steps the last one is the longest
        push_gap(w, lane, lane.steps + steps, lane.first_duration + (steps - 1) * lane.growth)
        if edges > 0:
            count_gaps(w, lane, steps)
    lane.steps += steps
    lane.context += steps * lane.decodes
    lane.last = t


@compiled
def push_gap(w: World, lane: Lane, step: int, gap: float) -> None:
    """Note that the decode step with this number ended `gap` seconds after the one before.

    All decodes of a lane get a token at the same steps, so a lane keeps its gaps as a stack, larger ones below smaller
    and later ones; a request's longest gap is the lowest entry after its first decode step. That first gap differs
    between requests and is settled once, when the step ends. Where no request joined between two entries they are one.
    A stack that overflows merges its two oldest entries (that can only lengthen the gap of requests older than GAPS
    joinings).
    """
    at, depth = lane.gap_at, lane.depth
    if depth > 0 and lane.gap_joined == 0:
        depth -= 1
        gap = max(gap, w.gaps[at + depth].seconds)
        step = w.gaps[at + depth].step
    elif lane.gap_joined > 0:
        lane.gap_joined -= 1
    while depth > 0 and w.gaps[at + depth - 1].seconds <= gap:
        depth -= 1
    if depth == GAPS:
        w.gaps[at].step = w.gaps[at + 1].step
        for k in range(at + 1, at + GAPS - 1):
            w.gaps[k].seconds = w.gaps[k + 1].seconds
            w.gaps[k].step = w.gaps[k + 1].step
        depth -= 1
    w.gaps[at + depth].step = step
    w.gaps[at + depth].seconds = gap
    lane.depth = depth + 1


@compiled
def note_gap(w: World, lane: Lane, s: int) -> None:
    """Write down the gaps of a decode, its first step aside, which is noted already."""
    slot, edges = w.slots[s], w.rules.edges
    for k in range(edges):
        since = w.lane_gaps[lane.index * edges + k] - w.slot_gaps[s * edges + k]
        w.request_gaps[slot.request * edges + k] += since
    k, longest = lane.gap_at + lane.depth - 1, 0.0
    while k >= lane.gap_at and w.gaps[k].step > slot.joined + 1:
        longest = w.gaps[k].seconds
        k -= 1
    request = w.requests[slot.request]
    request.itl = max(request.itl, longest)


@compiled
def rebuild_heap(w: World, lane: Lane) -> None:
    """Heap of the decodes, after one was taken from its middle."""
    root, s = NONE, w.chains[lane.running].head
    while s >= 0:
        slot = w.slots[s]
        if slot.joined >= 0 and slot.ended == 0:
            root = heap_push(w, root, s)
        s = slot.next
    lane.heap = root


@compiled
def free_blocks(w: World, engine: Engine, t: float) -> int:
    """Blocks that no request holds at t; a run of decode steps has taken those of its steps begun by then."""
    free = engine.free
    for e in range(engine.first_lane, engine.end_lane):
        lane = w.lanes[e]
        if lane.mode == RUN and lane.run > 1:
            free -= blocks_needed(w, lane, steps_by(lane, t)) - next_blocks(w, lane)
    return free
