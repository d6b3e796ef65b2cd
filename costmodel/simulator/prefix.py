"""Prefix caches of engines by the hash blocks of a trace ("pages"), least recently used first out; compiled.

A cache is a stretch of `World.counts`: first and last page of its list of unreferenced pages, their number, then for
each page of the trace its references (-1: absent), next and previous in that list. As in vLLM's V1 engine, pages are
found by a prompt's leading ones, referenced while a request holds them, unreferenced from the last to the first when it
leaves, and kept until their memory is needed, the longest unused first. A page that two requests computed at the same
time is kept once.

Blocks: `group.free` counts all that no request holds, cached or not. Each request is charged all of its blocks; whoever
references a page that another request holds already is given the page's blocks back.
"""

from __future__ import annotations

from .compiled import compile_loop
from .decodes import blocks_needed
from .runs import steps_by
from .state import RUN, Group, Request, World

HEAD = 3
"""Numbers before the pages of a cache: first, last, number of unreferenced pages."""
FIELDS = 3
"""Numbers per page: references, next, previous."""


@compile_loop
def append_page(w: World, cache: int, page: int) -> None:
    """Put a page last in the list of unreferenced ones."""
    at, last = cache + HEAD + FIELDS * page, w.counts[cache + 1]
    w.counts[at] = 0
    w.counts[at + 1] = -1
    w.counts[at + 2] = last
    if last < 0:
        w.counts[cache] = page
    else:
        w.counts[cache + HEAD + FIELDS * last + 1] = page
    w.counts[cache + 1] = page
    w.counts[cache + 2] += 1


@compile_loop
def take_page(w: World, cache: int, page: int) -> None:
    """Take a page out of the list of unreferenced ones."""
    at = cache + HEAD + FIELDS * page
    after, before = w.counts[at + 1], w.counts[at + 2]
    if before < 0:
        w.counts[cache] = after
    else:
        w.counts[cache + HEAD + FIELDS * before + 1] = after
    if after < 0:
        w.counts[cache + 1] = before
    else:
        w.counts[cache + HEAD + FIELDS * after + 2] = before
    w.counts[cache + 2] -= 1


@compile_loop
def keep_pages(w: World, cache: int, most: int) -> int:
    """Drop the longest unused pages until `most` unreferenced ones are left; how many were dropped."""
    dropped = 0
    while w.counts[cache + 2] > most:
        page = w.counts[cache]
        take_page(w, cache, page)
        w.counts[cache + HEAD + FIELDS * page] = -1
        dropped += 1
    return dropped


@compile_loop
def free_blocks(w: World, group: Group, t: float) -> int:
    """Blocks that no request holds at t; a run of decode steps has taken those of its steps begun by then."""
    free = group.free
    for e in range(group.first_lane, group.end_lane):
        lane = w.lanes[e]
        if lane.mode == RUN and lane.run > 1:
            free -= blocks_needed(w, lane, steps_by(lane, t)) - blocks_needed(w, lane, 1)
    return free


@compile_loop
def evict(w: World, group: Group, free: int) -> None:
    """Drop cached pages whose memory requests have taken; called before `free` rises, and before a look into it."""
    group.evicted_pages += keep_pages(w, group.cache, free // group.page_blocks)


@compile_loop
def leading_pages(w: World, cache: int, request: Request) -> int:
    """How many of the prompt's first pages are cached or staged; the last token of a prompt is always computed."""
    found, most = 0, min(request.pages, (request.prompt - 1) // w.rules[0].page)
    while found < most and (
        request.staged_from <= found < request.staged
        or w.counts[cache + HEAD + FIELDS * w.counts[request.page_at + found]] >= 0
    ):
        found += 1
    return found


@compile_loop
def find_prefix(w: World, group: Group, request: Request) -> int:
    """Set the tokens of a waiting prompt that need not be computed; blocks shared with running requests."""
    evict(w, group, group.free)
    found = leading_pages(w, group.cache, request)
    shared = 0
    for k in range(found):
        if w.counts[group.cache + HEAD + FIELDS * w.counts[request.page_at + k]] > 0:
            shared += group.page_blocks
    request.done = found * w.rules[0].page
    return shared


@compile_loop
def note_hits(group: Group, request: Request) -> None:
    """Count what an admitted prompt asked for and what it found; one that was preempted is not counted again."""
    if request.restarts == 0:
        request.hit = request.done
        group.asked_tokens += request.prompt
        group.hit_tokens += request.done
    request.staged = 0


@compile_loop
def hold_pages(w: World, group: Group, request: Request) -> None:
    """Reference the pages of the prompt that are computed by now."""
    full = min(request.pages, request.done // w.rules[0].page)
    for k in range(request.held, full):
        page = w.counts[request.page_at + k]
        at = group.cache + HEAD + FIELDS * page
        if w.counts[at] == 0:
            take_page(w, group.cache, page)
        elif w.counts[at] > 0:
            group.free += group.page_blocks
        w.counts[at] = max(w.counts[at], 0) + 1
    request.held = max(request.held, full)


@compile_loop
def release_pages(w: World, group: Group, request: Request) -> None:
    """Give up the pages of a request, from the last to the first; its blocks were all counted as free just now."""
    for k in range(request.held - 1, -1, -1):
        page = w.counts[request.page_at + k]
        at = group.cache + HEAD + FIELDS * page
        if w.counts[at] > 1:
            w.counts[at] -= 1
            group.free -= group.page_blocks
        else:
            append_page(w, group.cache, page)
    request.held = 0
