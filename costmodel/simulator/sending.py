"""The links between engines; compiled (see `transfer`)."""

from __future__ import annotations

from .compiled import Events, compile_loop
from .schedule import HAND_OVER, schedule_request
from .state import World


@compile_loop
def first_free(w: World, link: int, count: int) -> int:
    """Of `count` links from `link` on, the one that is free first."""
    best = link
    for other in range(link + 1, link + count):
        if w.numbers[other] < w.numbers[best]:
            best = other
    return best


@compile_loop
def send_kv(w: World, events: Events, r: int, t: float, hidden: float) -> None:
    """Send the KV of prompt r from its prefill to its decode engine; a share of it went out during the prefill."""
    request = w.requests[r]
    sender, receiver = w.groups[w.lanes[request.first_lane].group], w.groups[w.lanes[request.lane].group]
    begin, wire = t, request.prompt * max(sender.send, receiver.send)
    if wire > 0.0:
        out = first_free(w, sender.link_at, sender.nics)
        into = first_free(w, receiver.link_at + receiver.nics, receiver.nics)
        begin = max(t, w.numbers[out], w.numbers[into])
        begin += max(wire * (1.0 - hidden), wire - hidden * (request.prompt_end - request.prompt_start))
        w.numbers[out] = begin
        w.numbers[into] = begin
    schedule_request(w, events, HAND_OVER, r, begin + w.rules[0].latency)
