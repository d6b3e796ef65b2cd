"""A KV store in DRAM or SSD that all engines share (Mooncake): each prompt writes it, and reads where that is quicker.

The store keeps `store_pages` pages, the longest unused go first. A prompt that comes to an engine looks for the pages
behind those that the engine's own cache has; n tokens of them take their turn on the store's bandwidth, shared by all,
and on the engine's own (the later of both ends counts), then the request joins the queue. It is done where it takes
less time than the prompt would without them, by the step model. Writing takes no time; memory to stage pages in is not
limited.
"""

from __future__ import annotations

from .compiled import Events, compile_loop
from .prefix import FIELDS, HEAD, append_page, evict, free_blocks, keep_pages, leading_pages, take_page
from .schedule import FETCHED, schedule_request
from .state import Group, Request, World
from .step_kernel import add_chunk, mixed_time
from .step_numbers import EMPTY


@compile_loop
def store_pages(w: World, request: Request) -> None:
    """Write a computed prompt's pages, or note that they were used, from the last to the first."""
    rules = w.rules[0]
    for k in range(request.pages - 1, -1, -1):
        use_page(w, w.counts[request.page_at + k])
    keep_pages(w, rules.store, rules.store_pages)


@compile_loop
def use_page(w: World, page: int) -> None:
    """Make a page the latest used one of the store."""
    store = w.rules[0].store
    if w.counts[store + HEAD + FIELDS * page] >= 0:
        take_page(w, store, page)
    append_page(w, store, page)


@compile_loop
def fetch_pages(w: World, events: Events, group: Group, r: int, t: float) -> bool:
    """Begin to read the pages of prompt r that the store has and the engine lacks, if that is quicker."""
    request, rules = w.requests[r], w.rules[0]
    own = 0
    if group.cache >= 0:
        evict(w, group, free_blocks(w, group, t))
        own = leading_pages(w, group.cache, request)
    found, most = own, min(request.pages, (request.prompt - 1) // rules.page)
    while found < most and w.counts[rules.store + HEAD + FIELDS * w.counts[request.page_at + found]] >= 0:
        found += 1
    tokens = (found - own) * rules.page
    all_end = max(t, rules.store_free) + tokens * rules.store_read
    own_end = max(t, group.store_free) + tokens * group.store_read
    ready = max(all_end, own_end) + rules.store_latency
    if tokens == 0 or group.cache < 0 or ready - t >= time_saved(w, group, request, own * rules.page, tokens):
        return False
    rules.store_free = all_end
    group.store_free = own_end
    group.fetched_tokens += tokens
    request.staged_from = own
    request.staged = found
    for k in range(found - 1, own - 1, -1):
        use_page(w, w.counts[request.page_at + k])
    schedule_request(w, events, FETCHED, r, ready)
    return True


@compile_loop
def time_saved(w: World, group: Group, request: Request, past: int, tokens: int) -> float:
    """What a prompt, computed alone after `past` cached tokens, takes less with `tokens` more of them [s]."""
    model, rest = w.models[w.lanes[group.first_lane].model], request.prompt - past
    without = mixed_time(model, w.numbers, add_chunk(model, w.numbers, EMPTY, rest, past), 0, 0)
    left = add_chunk(model, w.numbers, EMPTY, rest - tokens, past + tokens)
    return without - mixed_time(model, w.numbers, left, 0, 0)
