"""The queue of events, who is woken, and the links between engines; compiled.

Events wait in a binary heap, ordered by time, kind and number. A lane has one event at most: a new one takes the place
of the old one.

A hand-over of n tokens occupies one link (NIC) of each end, the ones free first, for n x max(send, receive) seconds;
hand-overs over the same link go one after the other. With a hidden share h = 1 - 1/layers the layers are sent as they
are computed, and the request waits for max(transfer (1 - h), transfer - h x prefill) of it (Splitwise §4.3); one that
the decode engine let in only later (a gate, see `scheduler`) waits for all of it. The blocks on the prefill side are
held until the KV has arrived.
"""

from __future__ import annotations

from .compiled import compiled
from .decodes import run_time, steps_by
from .records import HAND_OVER, IDLE, ONE, STEP_END, WAKE, Engine, Event, Lane, World


@compiled
def is_earlier(event: Event, time: float, kind: int, sequence: int) -> bool:
    """Whether the event comes before one with this time, kind and number."""
    if event.time != time:
        return event.time < time
    if event.kind != kind:
        return event.kind < kind
    return event.sequence < sequence


@compiled
def place(w: World, at: int, time: float, kind: int, sequence: int, which: int) -> None:  # noqa: PLR0917 -- an event
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
    event.which = which
    if kind in (STEP_END, WAKE):
        w.lanes[which].event = at


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
def add_event(w: World, kind: int, which: int, t: float) -> None:
    """A request arrives, or the KV of the request in a slot, at t."""
    rules = w.rules
    rules.sequence += 1
    rules.events += 1
    place(w, rules.events, t, kind, rules.sequence, which)


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
def wake_idle(w: World, engine: Engine, t: float) -> None:
    """All idle lanes of the engine look for work at t."""
    for e in range(engine.first_lane, engine.end_lane):
        if w.lanes[e].mode == IDLE:
            set_event(w, w.lanes[e], WAKE, t)


@compiled
def wake_lanes(w: World, engine: Engine, t: float) -> None:
    """Something came to the engine or left it: idle lanes look again, if requests wait for it.

    So does a lone lane whose prompt stopped half-way for want of blocks that prompts before it held.
    """
    lone = engine.end_lane - engine.first_lane == 1
    if engine.wait_head >= 0 or engine.gate_head >= 0 or (lone and w.lanes[engine.first_lane].prompts > 0):
        wake_idle(w, engine, t)


@compiled
def wake_stalled(w: World, engine: Engine, t: float) -> None:
    """If all lanes are idle after a preemption, no end of a step will wake them: do it now that the blocks are free."""
    for e in range(engine.first_lane, engine.end_lane):
        if w.lanes[e].mode != IDLE:
            return
    wake_lanes(w, engine, t)


@compiled
def interrupt(w: World, lane: Lane, t: float) -> None:
    """Cut the run of decode steps short at the first step that ends at or after t."""
    steps = steps_by(lane, t)
    if steps < lane.run:
        lane.run = steps
        set_event(w, lane, STEP_END, lane.start + run_time(lane, steps))


@compiled
def send_kv(w: World, s: int, t: float, hidden: float) -> None:
    """Send the KV of the prompt in slot s to its decode engine; a share of it went out during the prefill."""
    slot = w.slots[s]
    sender, receiver = w.engines[w.lanes[slot.first_lane].engine], w.engines[w.lanes[slot.lane].engine]
    begin, wire = t, slot.prompt * max(sender.send, receiver.send)
    if wire > 0.0:
        request = w.requests[slot.request]
        out = first_free(w, sender.link_at, sender.nics)
        into = first_free(w, receiver.link_at + receiver.nics, receiver.nics)
        begin = max(t, w.free_at[out], w.free_at[into])
        begin += max(wire * (1.0 - hidden), wire - hidden * (request.prompt_end - request.prompt_start))
        w.free_at[out] = begin
        w.free_at[into] = begin
    add_event(w, HAND_OVER, s, begin + w.rules.latency)


@compiled
def first_free(w: World, link: int, count: int) -> int:
    """Of `count` links from `link` on, the one that is free first."""
    best = link
    for other in range(link + 1, link + count):
        if w.free_at[other] < w.free_at[best]:
            best = other
    return best
