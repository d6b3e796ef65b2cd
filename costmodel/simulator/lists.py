"""What waits: requests in lists, decodes in heaps by their last step, and the events to come; compiled.

A slot is in one list at most: the queue of an engine, the hand-overs before its gate, what runs in a lane, or the
prompts to hand over; besides, it may be among the unfinished prompts of a lane. Events wait in a binary heap, ordered
by time, kind and number. A lane has one event at most: a new one takes the place of the old one.
"""

from __future__ import annotations

from .compiled import compiled
from .records import NONE, ONE, STEP_END, WAKE, Event, Lane, World


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
def prompt_append(w: World, lane: Lane, s: int) -> None:
    """Put s last among the unfinished prompts."""
    w.slots[s].next_prompt = -1
    if lane.prompt_tail < 0:
        lane.prompt_head = s
    else:
        w.slots[lane.prompt_tail].next_prompt = s
    lane.prompt_tail = s
    lane.prompts += 1


@compiled
def prompt_remove(w: World, lane: Lane, s: int) -> None:
    """Take s out of the unfinished prompts."""
    before, here = -1, lane.prompt_head
    while here != s:
        before = here
        here = w.slots[here].next_prompt
    after = w.slots[s].next_prompt
    if before < 0:
        lane.prompt_head = after
    else:
        w.slots[before].next_prompt = after
    if after < 0:
        lane.prompt_tail = before
    lane.prompts -= 1


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
