"""Routing of requests to engines; compiled."""

from __future__ import annotations

from .compiled import compile_loop
from .prefix import evict, free_blocks, leading_pages
from .state import Group, PoolRecord, Request, World

ROUND_ROBIN, LEAST_LOADED, LEAST_KV, LENGTH_AWARE, PREFIX_AFFINE = range(5)
"""Routers: next in turn; fewest requests; fewest blocks in use; fewest prompt tokens to compute; by prefix unless that
engine has over twice the mean number of requests (and two). By prefix: with the caches of `prefix`, the engine that has
most of the prompt, if any has; without, an engine for each prefix number."""
TIE = 1 << 20
"""Weight of a prompt token beside a request: of engines with equally many tokens the one with fewest requests."""


@compile_loop
def choose_group(w: World, request: Request, pool: int, decode: int, t: float) -> int:
    """Engine of the pool (-1: of the pools with this role, the engine with the fewest requests) for the request."""
    if pool >= 0:
        return choose_in_pool(w, request, w.pools[pool], t)
    best, best_load, count = -1, 0, 0
    for p in range(len(w.pools)):
        if w.pools[p].decode == decode:
            count += 1
            best = p
    if count == 1:
        return choose_in_pool(w, request, w.pools[best], t)
    best = -1
    for p in range(len(w.pools)):
        if w.pools[p].decode == decode:
            for g in range(w.pools[p].first_group, w.pools[p].end_group):
                load = w.groups[g].requests
                if best < 0 or load < best_load:
                    best, best_load = g, load
    return best


@compile_loop
def choose_in_pool(w: World, request: Request, pool: PoolRecord, t: float) -> int:
    """Engine of the pool, by its router."""
    first, last = pool.first_group, pool.end_group
    count = last - first
    if count == 1:
        return first
    if pool.router == ROUND_ROBIN:
        pool.turn += 1
        return first + (pool.turn - 1) % count
    if pool.router == PREFIX_AFFINE and (request.prefix >= 0 or request.pages > 0):
        home = warmest(w, request, pool, t) if request.pages > 0 else first + request.prefix % count
        total = 0
        for g in range(first, last):
            total += w.groups[g].requests
        if home >= 0 and w.groups[home].requests * count <= 2 * total + 2 * count:
            return home
    best, best_load = -1, 0
    for g in range(first, last):
        load = load_of(w, w.groups[g], pool.router, t)
        if best < 0 or load < best_load:
            best, best_load = g, load
    return best


@compile_loop
def warmest(w: World, request: Request, pool: PoolRecord, t: float) -> int:
    """Engine whose cache has most of the prompt, of equal ones that with the fewest requests; -1 if none has any."""
    best, most = -1, 0
    for g in range(pool.first_group, pool.end_group):
        group = w.groups[g]
        if group.cache >= 0:
            evict(w, group, free_blocks(w, group, t))
            found = leading_pages(w, group.cache, request)
            if found > most or (best >= 0 and found == most and group.requests < w.groups[best].requests):
                best, most = g, found
    return best


@compile_loop
def load_of(w: World, group: Group, router: int, t: float) -> int:
    """What the router minimises. The blocks of a run of decode steps are those of its steps begun by t."""
    if router == LEAST_KV:
        return group.blocks - free_blocks(w, group, t)
    if router == LENGTH_AWARE:
        return group.prompt_tokens * TIE + group.requests
    return group.requests
