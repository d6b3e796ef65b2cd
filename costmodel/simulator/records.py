"""What the event loop keeps: records of requests, engines and events, held in structured arrays.

An *engine* owns its queue, its KV blocks and its pipeline stages. A *lane* is one of its micro-batches in flight:
whichever begins a step next takes from the queue, and keeps what it took as its running batch. Without pipeline stages
an engine has one lane. A request takes a *slot* while it is in the system. Links between records are indices; -1 is
none. Times are in seconds; a time of -1 has not come. Lengths are in tokens. A field without a default begins as 0.

Decoding requests are counted lazily: `lane.steps` counts decode steps, and a request that joined when it had q tokens
has processed offset + lane.steps, offset = q - lane.steps at joining; so a decode step touches no request.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Policy

from .fleet import EngineUse, Limits, SimulatedTier, StepContent

Floats = MutableSequence[float]
Ints = MutableSequence[int]
Columns = dict[str, Any]
Array = NDArray[Any]


def _numbers(values: Sequence[int]) -> tuple[int, ...]:
    """Constants that numba takes for whole numbers; for a plain one it would compile each function anew."""
    return tuple(np.array(values, dtype=np.int64))


NONE, ZERO, ONE = _numbers((-1, 0, 1))
IDLE, STEP, RUN, SLEEP = _numbers(range(4))
"""What a lane does: nothing; one step with prompts; a run of decode steps; waiting for the first pipeline stage."""
ARRIVAL, HAND_OVER, STEP_END, WAKE, READ_END = _numbers(range(5))
"""Events, at equal times in this order: a request comes, its KV does, a step ends, an idle lane looks for work, a read
of the KV tier ends."""
GAPS = 512
"""Depth of a lane's stack of gaps."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request of the trace, and what came of it.

    isl, osl, cached, pool, decode_pool: as in `Trace`; pages, page_at: full hash blocks of its prompt and where
    their numbers begin in `World.pages`; awaits: 1 for a turn that comes when the one before has ended; next_turn: the
    request that waits for the end of this one (-1: none), pause: how long it comes after it [s]; tier: tokens of its
    prompt that are read from the KV tier; prompt_start ... late, itl, restarts ... hit: as in `Result`.
    """

    arrival: float
    prompt_start: float = -1.0
    prompt_end: float = -1.0
    moved: float = -1.0
    first: float = -1.0
    finish: float = -1.0
    late: float
    itl: float
    pause: float
    page_at: int
    next_turn: int = -1
    awaits: int
    isl: int
    osl: int
    cached: int
    tier: int
    pool: int
    decode_pool: int
    pages: int
    restarts: int
    engine: int = -1
    decode_engine: int = -1
    hit: int


SHORT = ("isl", "osl", "cached", "tier", "pool", "decode_pool", "pages", "restarts", "engine", "decode_engine", "hit")
"""Fields of a request that are kept in 32 bits, as there may be millions of them."""


@dataclass(slots=True, kw_only=True)
class Slot:
    """A request in the system.

    request: its index; prompt: tokens to compute before the (next) token: the prompt, after a recompute the output so
    far as well; done: of these, computed or cached; total: prompt and output; chunk: prompt tokens in the running step
    (-1: not admitted); came: when it came to its engine's queue, -1 once preempted [s]; joined: the lane's decode steps
    at joining (-1: not decoding); ended: 1 for the padding of a static batch; fresh: 1 while in the lane's list of
    requests without a decode step yet; last: time of the last token, if not counted lazily; lane: that has the request
    now; first_lane: that computes its prompt; promise: KV blocks promised to it; held_pages: leading ones that it
    references in the cache; staged_from, staged: those read from the KV tier; gated: 1 while it is let in to a decode
    engine but not admitted; reserved: KV blocks that wait for it there.
    """

    last: float
    came: float
    request: int
    prompt: int
    done: int
    total: int
    chunk: int
    offset: int
    joined: int
    ended: int
    fresh: int
    promise: int
    next: int
    previous: int
    next_fresh: int
    child: int
    sibling: int
    lane: int
    first_lane: int
    held_pages: int
    staged_from: int
    staged: int
    gated: int
    reserved: int


@dataclass(slots=True, kw_only=True)
class Lane:
    """One micro-batch in flight of an engine, with the engine's policy and limits.

    mode: see IDLE ...; event: its place among the events (0: none); start: of its step; formed: when that was formed
    (`Policy.formed_ahead`); last: end of the last step that advanced the decodes; first_duration, growth: of a run,
    time of its first step and by how much each later one takes longer; run: decode steps in flight; steps: decode steps
    so far; decodes, context: requests in a decode step and their tokens; live: of these, not ended (fewer only in
    static batches); prompts: admitted with unfinished prompt; content: of the step in flight, or of the first one of a
    run; heap: root of the heap of decodes by last step; running: list (`Chain`) of what runs; depth: of the stack of
    gaps; gap_joined: pushes during which the stack must not merge entries; gap_at, phase_at: where its part of
    `World.gaps` and `World.phases` begins; seqs: its share of `max_num_seqs`; hands_over: whether others decode; ahead:
    whether its steps are formed ahead; yields: tokens that the end of a prompt makes, 1 where it decodes too; stages:
    of its engine.
    """

    index: int
    engine: int
    mode: int
    event: int
    start: float
    formed: float
    last: float
    first_duration: float
    growth: float
    run: int
    steps: int
    decodes: int
    live: int
    context: int
    prompts: int
    content: StepContent
    running: int
    fresh_head: int = -1
    heap: int = -1
    depth: int
    gap_joined: int
    gap_at: int
    phase_at: int
    model: int
    policy: Policy
    limits: Limits
    seqs: int
    hands_over: bool
    ahead: bool
    yields: int
    stages: int


@dataclass(slots=True, kw_only=True)
class Engine:
    """One engine: its blocks, links, stages and counters.

    waiting: its queue (a `Chain`); free, blocks, watermark, promised: KV blocks; stage_at, link_at: where the times
    begin in `World.free_at` at which its stages, and its links, outbound ones first, are free; nics: links each way;
    send: seconds per token on one of them; cache: where its prefix cache begins in `World.cached` (-1: none);
    page_blocks: KV blocks of a page; tier: that it reads from, tier_at: where that begins in `World.cached` (-1: none),
    tier_free: when its reads end [s]; pull: 1 if it lets hand-overs in, gate: those that wait on the prefill side (a
    `Chain`), coming: those let in that do not decode yet; requests: not done, uncomputed: their prompt tokens, for the
    routers; first_lane, end_lane: its lanes; first_token, fixed_ttft: as of `SimulatedPool`; clock: time up to which
    kv_block_seconds is summed; use: counters over the run.
    """

    waiting: int
    free: int
    blocks: int
    watermark: int
    promised: int
    stage_at: int
    link_at: int
    nics: int
    send: float
    cache: int
    page_blocks: int
    tier: SimulatedTier
    tier_at: int
    tier_free: float
    pull: int
    gate: int
    coming: int
    requests: int
    uncomputed: int
    first_lane: int
    end_lane: int
    first_token: float
    fixed_ttft: float
    clock: float
    use: EngineUse


@dataclass(slots=True, kw_only=True)
class PoolRecord:
    """Engines of one pool: first_engine <= e < end_engine; turn: of a round robin."""

    first_engine: int
    end_engine: int
    router: int
    turn: int


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One step model: its kind, scalars, and where its tables begin in `World.tables` (`StepNumbers`)."""

    kind: int
    a0: float
    a1: float
    a2: float
    b0: float
    b1: float
    b2: float
    c0: float
    c1: float
    c2: float
    constant: float
    step: float
    token: float
    large: float
    at0: int
    at1: int
    at2: int
    at3: int
    at4: int
    at5: int
    at6: int
    at7: int
    at8: int
    at9: int
    at10: int
    at11: int
    at12: int


@dataclass(slots=True, kw_only=True)
class Rules:
    """Of the whole fleet.

    fast_forward: jump over equal decode steps; edges: lengths at which gaps are counted; opened: requests that come by
    themselves; count: all; released: requests of a closed loop sent so far (-1: open); slots: taken so far, free_slot:
    list of those given back; computed: prompts to hand over (a `Chain`); events: waiting,
    sequence: of events so far; logged, log_rows: rows of the log used and kept; page: tokens of a page (0: none);
    too_fast: steps below their floor; fast_lane, fast_start, fast_time, fast_floor: of the first of these.
    """

    fast_forward: int
    edges: int
    opened: int
    count: int
    released: int
    slots: int
    free_slot: int = -1
    computed: int
    events: int
    sequence: int
    logged: int
    log_rows: int
    page: int
    too_fast: int
    fast_lane: int
    fast_start: float
    fast_time: float
    fast_floor: float


@dataclass(slots=True, kw_only=True)
class Chain:
    """Ends of a list of slots (`slots`)."""

    head: int = -1
    tail: int = -1


@dataclass(slots=True, kw_only=True)
class Event:
    """Something to come; which: the request, slot or lane."""

    time: float
    kind: int
    sequence: int
    which: int


@dataclass(slots=True, kw_only=True)
class Gap:
    """Longest time between two tokens since an older entry of the stack, and the decode step that ended it."""

    seconds: float
    step: int


@dataclass(slots=True, kw_only=True)
class CachedPage:
    """A page in a prefix cache: its references (-1: absent), neighbors in the list of unreferenced pages, oldest first.

    The first record of a cache is the list's own: references: unreferenced pages; next, previous: oldest and youngest.
    """

    references: int = -1
    next: int = -1
    previous: int = -1


@dataclass(slots=True, kw_only=True)
class LogRow:
    """A step, or a run of steps, of the log."""

    lane: float
    start: float
    end: float
    prompt_tokens: float
    decodes: float
    context: float
    steps: float


class World(NamedTuple):
    """Everything, as the loop sees it; between runs it is a `State`, the arrays by name.

    gaps: a stack for each lane; gap_edges: lengths at which gaps are counted [s]; lane_gaps, slot_gaps, request_gaps:
    for each, the gaps that exceed so many edges (1 to all): of the lane so far, of the lane at the slot's first decode
    step, and of the request; free_at: when pipeline stages and links are free [s]; phases: decodes of a lane by
    offset mod block size; pages: of all prompts; cached: prefix caches; tables: of the step models.
    """

    requests: MutableSequence[Request]
    slots: MutableSequence[Slot]
    chains: MutableSequence[Chain]
    lanes: MutableSequence[Lane]
    engines: MutableSequence[Engine]
    pools: MutableSequence[PoolRecord]
    models: MutableSequence[StepRecord]
    rules: Rules
    events: MutableSequence[Event]
    gaps: MutableSequence[Gap]
    gap_edges: Floats
    lane_gaps: Ints
    slot_gaps: Ints
    request_gaps: Ints
    cached: MutableSequence[CachedPage]
    log: MutableSequence[LogRow]
    tables: Floats
    free_at: Floats
    phases: Ints
    pages: Ints


State = dict[str, Array]


@cache
def dtype_of(kind: type) -> np.dtype[Any]:
    """Layout of a record; those in it lie in it."""
    codes = {float: "f8", int: "i8", bool: "?"}
    short = SHORT if kind is Request else ()
    hints = _hints(kind)
    types = {name: "i4" if name in short else codes.get(hint) or dtype_of(hint) for name, hint in hints.items()}
    return np.dtype(list(types.items()), align=True)


def records(kind: type, size: int, columns: Columns) -> Array:
    """`size` records; a field is filled from its column or constant, or else from its default or 0."""
    rows = np.zeros(size, dtype=dtype_of(kind))
    for entry in fields(kind):
        default = np.zeros((), rows.dtype[entry.name]) if entry.default is MISSING else entry.default
        column = columns.get(entry.name, default)
        if rows.dtype[entry.name].names and entry.name in columns:
            column = [packed(value) for value in column]
        rows[entry.name] = column
    return rows


def packed(value: Any) -> Any:
    """The values of a record in the order of its fields, those of records in it too; `astuple` copies each deeply."""
    names = getattr(value, "__dataclass_fields__", ())
    return tuple(packed(getattr(value, name)) for name in names) if names else value


def unpacked(kind: type, values: tuple[Any, ...]) -> Any:
    """The record of these values, in the order of its fields; those of a record in it are a tuple too."""
    hints = _hints(kind).items()
    pairs = zip(hints, values, strict=True)
    return kind(**{name: unpacked(hint, value) if isinstance(value, tuple) else value for (name, hint), value in pairs})


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields of a record by their names, in order."""
    return get_type_hints(kind)
