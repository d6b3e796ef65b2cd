"""The longest gap between two tokens of each request, without touching the requests at every step; compiled.

All decodes of a lane get a token at the same steps, so a lane keeps its gaps as a stack, larger ones below smaller and
later ones; a request's longest gap is the lowest entry after its first decode step. That first gap differs between
requests and is settled once, when the step ends. Where no request joined between two entries they are one. A stack
that overflows merges its two oldest entries (that can only lengthen the gap of requests older than GAPS joinings).
"""

from __future__ import annotations

from .compiled import compile_loop
from .state import GAPS, Lane, World


@compile_loop
def push_gap(w: World, lane: Lane, step: int, gap: float) -> None:
    """Note that the decode step with this number ended `gap` seconds after the one before."""
    sizes, numbers, depth = lane.gap_at, lane.gap_step_at, lane.depth
    if depth > 0 and lane.gap_joined == 0:
        gap = max(gap, w.numbers[sizes + depth - 1])
        step = w.counts[numbers + depth - 1]
        depth -= 1
    elif lane.gap_joined > 0:
        lane.gap_joined -= 1
    while depth > 0 and w.numbers[sizes + depth - 1] <= gap:
        depth -= 1
    if depth == GAPS:
        w.counts[numbers] = w.counts[numbers + 1]
        for k in range(1, GAPS - 1):
            w.numbers[sizes + k] = w.numbers[sizes + k + 1]
            w.counts[numbers + k] = w.counts[numbers + k + 1]
        depth -= 1
    w.counts[numbers + depth] = step
    w.numbers[sizes + depth] = gap
    lane.depth = depth + 1


@compile_loop
def longest_gap(w: World, lane: Lane, joined: int) -> float:
    """Longest gap of a request that joined when the lane had made `joined` decode steps, its first step aside [s]."""
    k, longest = lane.depth - 1, 0.0
    while k >= 0 and w.counts[lane.gap_step_at + k] > joined + 1:
        longest = w.numbers[lane.gap_at + k]
        k -= 1
    return longest
