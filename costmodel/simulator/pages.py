"""Prefix caches of engines by the hash blocks of a trace ("pages"); compiled.

As in vLLM's V1 engine, pages are found by a prompt's leading ones, referenced while a request holds them, unreferenced
from the last to the first when it leaves, and kept until their memory is needed, the longest unused first. A page that
two requests computed at the same time is kept once.

Blocks: `engine.free` counts all that no request holds, cached or not. Each request is charged all of its blocks;
whoever references a page that another request holds already is given the page's blocks back.
"""

from __future__ import annotations

from .compiled import compiled
from .records import Engine, Request, Slot, World


@compiled
def append_page(w: World, cache: int, page: int) -> None:
    """Put a page last in the list of unreferenced ones."""
    head, entry = w.cached[cache], w.cached[cache + 1 + page]
    entry.references = 0
    entry.next = -1
    entry.previous = head.previous
    if head.previous < 0:
        head.next = page
    else:
        w.cached[cache + 1 + head.previous].next = page
    head.previous = page
    head.references += 1


@compiled
def take_page(w: World, cache: int, page: int) -> None:
    """Take a page out of the list of unreferenced ones."""
    head, entry = w.cached[cache], w.cached[cache + 1 + page]
    if entry.previous < 0:
        head.next = entry.next
    else:
        w.cached[cache + 1 + entry.previous].next = entry.next
    if entry.next < 0:
        head.previous = entry.previous
    else:
        w.cached[cache + 1 + entry.next].previous = entry.previous
    head.references -= 1


@compiled
def evict(w: World, engine: Engine, free: int) -> None:
    """Drop cached pages whose memory requests have taken; called before `free` rises, and before a look into it."""
    cache = engine.cache
    while cache >= 0 and w.cached[cache].references > free // engine.page_blocks:
        page = w.cached[cache].next
        take_page(w, cache, page)
        w.cached[cache + 1 + page].references = -1


@compiled
def leading_pages(w: World, cache: int, request: Request) -> int:
    """How many of the prompt's first pages are cached; the last token of a prompt is always computed."""
    count, most = 0, min(request.pages, (request.isl - 1) // w.rules.page)
    while count < most and w.cached[cache + 1 + w.pages[request.page_at + count]].references >= 0:
        count += 1
    return count


@compiled
def find_prefix(w: World, engine: Engine, slot: Slot) -> int:
    """Set the tokens of a waiting prompt that need not be computed; blocks shared with running requests."""
    evict(w, engine, engine.free)
    request = w.requests[slot.request]
    count = leading_pages(w, engine.cache, request)
    shared = 0
    for k in range(count):
        if w.cached[engine.cache + 1 + w.pages[request.page_at + k]].references > 0:
            shared += engine.page_blocks
    slot.done = count * w.rules.page
    return shared


@compiled
def hold_pages(w: World, engine: Engine, slot: Slot) -> None:
    """Reference the pages of the prompt that are computed by now."""
    if engine.cache < 0:
        return
    request = w.requests[slot.request]
    full = min(request.pages, slot.done // w.rules.page)
    for k in range(slot.held_pages, full):
        page = w.pages[request.page_at + k]
        entry = w.cached[engine.cache + 1 + page]
        if entry.references == 0:
            take_page(w, engine.cache, page)
        elif entry.references > 0:
            engine.free += engine.page_blocks
        entry.references = max(entry.references, 0) + 1
    slot.held_pages = max(slot.held_pages, full)


@compiled
def release_pages(w: World, engine: Engine, slot: Slot) -> None:
    """Give up the pages of a request, from the last to the first; its blocks were all counted as free just now."""
    if slot.held_pages == 0:
        return
    request = w.requests[slot.request]
    for k in range(slot.held_pages - 1, -1, -1):
        page = w.pages[request.page_at + k]
        entry = w.cached[engine.cache + 1 + page]
        if entry.references > 1:
            entry.references -= 1
            engine.free -= engine.page_blocks
        else:
            append_page(w, engine.cache, page)
    slot.held_pages = 0
