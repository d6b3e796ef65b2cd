"""Prefix caches of engines by the hash blocks of a trace ("pages"), and the KV tier below them; compiled.

As in vLLM's V1 engine, pages are found by a prompt's leading ones, referenced while a request holds them, unreferenced
from the last to the first when it leaves, and kept until their memory is needed, the longest unused first. A page that
two requests computed at the same time is kept once.

Blocks: `engine.free` counts all that no request holds, cached or not. Each request is charged all of its blocks;
whoever references a page that another request holds already is given the page's blocks back.

The tier, of one engine or of all of a pool, keeps as many pages as it has room for; the longest unused go first. Each
computed prompt is written there, which takes no time. The first prompt of a queue looks for the pages behind those that
the engine's own cache has, as in vLLM's V1 engine; reads of an engine take turns, one on each of its `nics`, others are
served meanwhile, and then the request is first again. It reads only where that takes less time than the prompt would
without them. Memory to read into is not limited.
"""

from __future__ import annotations

from .compiled import compiled
from .records import ZERO, Engine, Request, Slot, World
from .step_times import add_chunk, mixed_time, no_prompts


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
    if engine.cache >= 0:
        keep_pages(w, engine.cache, free // engine.page_blocks)


@compiled
def keep_pages(w: World, cache: int, most: int) -> None:
    """Drop the longest unused pages until `most` unreferenced ones are left."""
    while w.cached[cache].references > most:
        page = w.cached[cache].next
        take_page(w, cache, page)
        w.cached[cache + 1 + page].references = -1


@compiled
def leading_pages(w: World, cache: int, request: Request, start: int) -> int:
    """How many of the prompt's first pages are cached, or are before `start`; its last token is always computed."""
    count, most = start, min(request.pages, (request.isl - 1) // w.rules.page)
    while count < most and w.cached[cache + 1 + w.pages[request.page_at + count]].references >= 0:
        count += 1
    return count


@compiled
def find_prefix(w: World, engine: Engine, slot: Slot) -> int:
    """Set the tokens of a waiting prompt that need not be computed; blocks shared with running requests."""
    evict(w, engine, engine.free)
    request = w.requests[slot.request]
    count = leading_pages(w, engine.cache, request, ZERO)
    if slot.staged_from <= count < slot.staged:
        count = leading_pages(w, engine.cache, request, slot.staged)
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


@compiled
def use_page(w: World, tier: int, page: int) -> None:
    """Make a page the latest used one of the tier."""
    if w.cached[tier + 1 + page].references >= 0:
        take_page(w, tier, page)
    append_page(w, tier, page)


@compiled
def write_tier(w: World, engine: Engine, request: Request) -> None:
    """Write a computed prompt's pages, or note that they were used, from the last to the first."""
    if engine.tier_at < 0:
        return
    for k in range(request.pages - 1, -1, -1):
        use_page(w, engine.tier_at, w.pages[request.page_at + k])
    keep_pages(w, engine.tier_at, int(engine.tier.tokens) // w.rules.page)


@compiled
def read_tier(w: World, engine: Engine, slot: Slot, t: float) -> float:
    """Begin to read what the tier has of a waiting prompt and memory lacks, if that is quicker. When it ends, or t.

    `Slot.done` says what memory has (`find_prefix`).
    Without hash blocks the trace says how much that is: the last `Request.tier` of its cached tokens. The time saved is
    that of the prompt alone after what the engine has, less that after the rest too. What was read while memory lost
    the pages before it is not read twice.
    """
    request, size = w.requests[slot.request], w.rules.page
    own, count, missing = 0, 0, request.tier
    past = slot.done - missing
    if slot.done >= slot.prompt or (engine.tier_at < 0 and (missing == 0 or slot.staged > 0 or request.restarts > 0)):
        return t
    if engine.tier_at >= 0:
        own = slot.done // size
        count = leading_pages(w, engine.tier_at, request, own)
        past, missing = slot.done, (count - own) * size
        if own < slot.staged_from < min(slot.staged, count):
            missing -= (min(slot.staged, count) - slot.staged_from) * size
    if missing == 0:
        return t
    seconds, start = missing * engine.tier.seconds_per_token, max(t, engine.tier_free)
    ready = start + seconds + engine.tier.latency
    cached_tokens = past + missing if engine.tier_at < 0 else count * size
    if ready - t >= lone_prompt(w, engine, slot, past) - lone_prompt(w, engine, slot, cached_tokens):
        if engine.tier_at < 0:
            request.tier = 0
            slot.done = past
        return t
    engine.tier_free = start + seconds / engine.nics
    slot.staged_from = own
    slot.staged = max(count, 1)
    if engine.tier_at >= 0 and request.restarts == 0:
        request.tier = (count - own) * size
    for k in range(count - 1, own - 1, -1):
        use_page(w, engine.tier_at, w.pages[request.page_at + k])
    return float(ready)


@compiled
def lone_prompt(w: World, engine: Engine, slot: Slot, past: int) -> float:
    """Time of a step with what the prompt has after so many cached tokens, and nothing else [s]."""
    model = w.models[w.lanes[engine.first_lane].model]
    rest = add_chunk(model, w.tables, no_prompts(), slot.prompt - past, past)
    return mixed_time(model, w.tables, rest, ZERO, ZERO)
