"""The hand-over of KV between engines; compiled.

A hand-over of n tokens occupies one link (NIC) of each end, the ones free first, for n x max(send, receive) seconds;
hand-overs over the same link go one after the other. With a hidden share h = 1 - 1/layers the layers are sent as they
are computed, and the request waits for max(transfer (1 - h), transfer - h x prefill) of it (Splitwise §4.3); one that
the decode engine let in only later (`gate`) waits for all of it. The blocks on the prefill side are held until the KV
has arrived.
"""

from __future__ import annotations

from .compiled import Events, compile_loop
from .gate import gate_back, notify
from .routing import choose_group
from .sending import send_kv
from .state import World


@compile_loop
def hand_over(w: World, events: Events, r: int, t: float) -> None:
    """Send the KV of prompt r to a decode engine, or let it wait before its gate."""
    request = w.requests[r]
    receiver = w.groups[choose_group(w, request, request.decode_pool, 1, t)]
    request.lane = receiver.first_lane
    receiver.requests += 1
    receiver.tokens += request.total
    if receiver.gated == 1:
        request.gate_time = t
        gate_back(w, receiver, r)
        notify(w, events, receiver, t, receiver.gate_head == r)
        return
    send_kv(w, events, r, t, w.rules[0].hidden)
