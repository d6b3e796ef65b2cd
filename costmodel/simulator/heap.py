"""A pairing heap over requests: which decode of a lane ends first. Links live in the requests; compiled.

Key: total - base, the value of lane.steps at which the request has made all its tokens. Ties are broken by number.
Insertion takes constant time, removal of the least amortised logarithmic time (Fredman et al. 1986).
"""

from __future__ import annotations

from .compiled import compile_loop
from .state import World


@compile_loop
def heap_merge(w: World, a: int, b: int) -> int:
    """Root of two heaps made one."""
    if a < 0:
        return b
    if b < 0:
        return a
    one, two = w.requests[a], w.requests[b]
    first, second = one.total - one.base, two.total - two.base
    if second < first or (second == first and b < a):
        one.sibling = two.child
        two.child = a
        return b
    two.sibling = one.child
    one.child = b
    return a


@compile_loop
def heap_push(w: World, root: int, r: int) -> int:
    """Root after adding r."""
    request = w.requests[r]
    request.child = -1
    request.sibling = -1
    return heap_merge(w, root, r)


@compile_loop
def heap_pop(w: World, root: int) -> int:
    """Root after removing the root: children are merged in pairs, then from the last pair to the first."""
    q = w.requests
    r = q[root].child
    pairs = -1
    while r >= 0:
        other = q[r].sibling
        if other < 0:
            q[r].sibling = pairs
            pairs = r
            break
        following = q[other].sibling
        merged = heap_merge(w, r, other)
        q[merged].sibling = pairs
        pairs = merged
        r = following
    root = -1
    while pairs >= 0:
        following = q[pairs].sibling
        root = heap_merge(w, root, pairs)
        pairs = following
    return root
