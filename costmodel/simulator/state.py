"""What the loop keeps: records of requests, lanes, groups, pools and step models, and two flat sequences.

A *group* is one engine: it owns the queue, the KV blocks and the pipeline stages. A *lane* is one of its micro-batches
in flight: whichever begins a step next takes from the queue, and keeps what it took as its running batch. Without
pipeline stages a group has one lane. Links between records are indices; -1 is none. Times are in seconds; a time of -1
has not come. Lengths are in tokens.

Decoding requests are counted lazily: `lane.steps` counts decode steps, and a request that joined when it had q tokens
has processed base + lane.steps, base = q - lane.steps at joining; so a decode step touches no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .compiled import Floats, Ints
from .step_numbers import StepRecord

IDLE, STEP, RUN, ROTATE, SLEEP = 0, 1, 2, 3, 4
"""What a lane does: nothing; one step with prompts; a run of decode steps; one step of part of its decodes
(round robin); waiting for the first pipeline stage."""
COMING, RESERVED = 1, 2
"""A hand-over on its way through a gate: without, or with blocks reserved for it (`gate`)."""
GAPS = 512
"""Depth of a lane's stack of gaps."""
STAGES = 16
"""Most pipeline stages of an engine."""
LOG = 7
"""Numbers in a row of the log: lane, start, end, prompt tokens, decodes, context, steps."""


@dataclass(slots=True)
class Request:
    """One request.

    prompt: tokens to compute before the (next) token: the prompt, after a recompute the output so far as well; done:
    of these, computed or cached; total: prompt and output; chunk: prompt tokens in the running step (-1: not admitted);
    joined: the lane's decode steps at joining (-1: not decoding); fresh: 1 while in the lane's list of requests without
    a decode step yet; last: time of the last token, if not counted lazily; itl: longest gap so far; lane: that has the
    request now; first_lane: that computes its prompt; promise: KV blocks promised to it; pool, decode_pool: asked for;
    prefix: shared by requests with the same number; pages, page_at: full hash blocks of its prompt and where their
    numbers begin in `World.counts`; held: leading pages that it references in its engine's cache; staged_from, staged:
    pages fetched from the store for it; hit: prompt tokens found at its first admission; gated: COMING or RESERVED
    while it is let in to a decode engine but not admitted; reserved: KV blocks that wait for it there; gate_time: since
    when it has waited before the gate.
    """

    arrival: float
    prompt_start: float
    prompt_end: float
    moved: float
    first: float
    finish: float
    last: float
    itl: float
    prompt: int
    done: int
    total: int
    chunk: int
    base: int
    joined: int
    fresh: int
    restarts: int
    promise: int
    next: int
    previous: int
    next_prompt: int
    next_fresh: int
    child: int
    sibling: int
    lane: int
    first_lane: int
    pool: int
    decode_pool: int
    prefix: int
    pages: int
    page_at: int
    held: int
    staged_from: int
    staged: int
    hit: int
    gated: int
    reserved: int
    gate_time: float


@dataclass(slots=True)
class Lane:
    """One micro-batch in flight of an engine, with the engine's settings (see `Policy`, `Limits`, `Pool`).

    mode: see IDLE ...; pending: sequence number of its valid event; start: of its step; last: end of the last step that
    advanced the decodes; first_duration, growth: of a run, time of its first step and by how much each later one takes
    longer; extra: swapping time that the next step pays; run: decode steps in flight; steps: decode steps so far;
    decodes, context: requests in a decode step and their tokens; live: of these, not ended (fewer only in static
    batches); prompts: admitted with unfinished prompt; step_tokens, step_prompts, step_pairs, step_reach: prompt tokens
    in flight, their chunks, query-key pairs and reach (`StepContent`); step_context: of the decodes in flight; heap:
    root of the heap of decodes by last step; rotating, rotated...: of a round robin, requests in the running step;
    depth: of the stack of gaps; gap_joined: pushes during which the stack must not merge entries; gap_at, gap_step_at,
    phase_at: where the lane's part of `World.numbers` and `World.counts` begins.
    """

    index: int
    group: int
    mode: int
    pending: int
    start: float
    last: float
    first_duration: float
    growth: float
    extra: float
    run: int
    steps: int
    decodes: int
    live: int
    context: int
    prompts: int
    step_tokens: int
    step_prompts: int
    step_pairs: int
    step_reach: int
    step_context: int
    head: int
    tail: int
    prompt_head: int
    prompt_tail: int
    fresh_head: int
    heap: int
    rotating: int
    rotated: int
    rotated_tail: int
    rotated_count: int
    depth: int
    gap_joined: int
    gap_at: int
    gap_step_at: int
    phase_at: int
    model: int
    exclusive: int
    chunked: int
    static: int
    padded: int
    whole: int
    after_preemption: int
    spare: int
    partial_ends: int
    reserve: float
    seqs: int
    budget: int
    threshold: int
    cap: int
    hands_over: int
    yields: int
    early: int
    swap: float
    stages: int
    block: int


@dataclass(slots=True)
class Group:
    """One engine: its blocks, links, stages and counters.

    wait_head, wait_tail: its queue; free, blocks, watermark, promised: KV blocks; stage_at: where its stages' times
    begin in `World.numbers`; link_at: where the times begin at which its links are free, outbound ones first; nics:
    links each way; send: seconds per token on one of them; cache: where its prefix cache begins in `World.counts` (-1:
    none, `prefix`); page_blocks: KV blocks of a page; store_free: time at which its reads from the store end;
    store_read: seconds per token of these (`store`); gated, pull, bound: how hand-overs come in, gate_head, gate_tail:
    those that wait on the prefill side, coming: those let in that do not decode yet (`gate`);
    requests, tokens, prompt_tokens: not done, for the routers; first_lane, end_lane: its lanes; the rest: counters over
    the run (`EngineUse`); clock: time up to which kv_time is summed; chunks, pairs, reach, capped, decode_rows,
    decode_context: sums over the steps (`StepContent`); yielded: tokens made by the ends of prompts;
    asked_tokens, hit_tokens, fetched_tokens, evicted_pages: of the prefix cache (`PrefixUse`).
    """

    wait_head: int
    wait_tail: int
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
    store_free: float
    store_read: float
    gated: int
    pull: int
    bound: int
    gate_head: int
    gate_tail: int
    coming: int
    requests: int
    tokens: int
    prompt_tokens: int
    first_lane: int
    end_lane: int
    all_steps: int
    prompt_steps: int
    computed_prompts: int
    computed_decodes: int
    preemptions: int
    rejected: int
    peak_blocks: int
    peak_running: int
    busy: float
    kv_time: float
    clock: float
    chunks: int
    pairs: int
    reach: int
    capped: int
    decode_rows: int
    decode_context: int
    yielded: int
    asked_tokens: int
    hit_tokens: int
    fetched_tokens: int
    evicted_pages: int


@dataclass(slots=True)
class PoolRecord:
    """Groups of one pool: first_group <= g < end_group; decode: 1 if it decodes only; turn: of a round robin."""

    first_group: int
    end_group: int
    router: int
    turn: int
    decode: int


@dataclass(slots=True)
class Rules:
    """Of the whole fleet.

    fast_forward: jump over equal decode steps; released: requests of a closed loop sent so far (-1: open); sequence:
    of events; logged, log_rows: rows of the log used and kept, from log_at in `World.numbers`; latency: of a hand-over
    [s]; think: time between requests of a closed loop [s]; hidden: share of a hand-over behind its prefill [1];
    page: tokens of a page (0: none); store: where the shared store's cache begins in `World.counts` (-1: none),
    store_pages: its capacity, store_free: time at which its reads end, store_read: seconds per token of all reads,
    store_latency: of one [s]; too_fast: steps below their floor; fast_lane, fast_start, fast_time, fast_floor: of the
    first of these.
    """

    fast_forward: int
    released: int
    sequence: int
    logged: int
    log_rows: int
    log_at: int
    latency: float
    think: float
    hidden: float
    page: int
    store: int
    store_pages: int
    store_free: float
    store_read: float
    store_latency: float
    too_fast: int
    fast_lane: int
    fast_start: float
    fast_time: float
    fast_floor: float


class World(NamedTuple):
    """Everything.

    numbers: step tables, gaps, stage times, link times, log; counts: decodes by phase, steps of gaps, pages of prompts,
    prefix caches.
    """

    requests: Sequence[Request]
    lanes: Sequence[Lane]
    groups: Sequence[Group]
    pools: Sequence[PoolRecord]
    models: Sequence[StepRecord]
    rules: Sequence[Rules]
    numbers: Floats
    counts: Ints
