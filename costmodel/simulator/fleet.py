"""What is simulated: pools of engines with their policy, limits, step times (`steps`) and links; what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from costmodel.arrays import FloatArray
from costmodel.engine import Policy, Role

UNLIMITED: Final = 1 << 60
"""A limit that nothing reaches [token or block]."""
COEFFICIENTS, TABLES, GRIDS = 0, 1, 2
"""Kinds of step numbers."""
MOST_TABLES = 13
"""Tables of one step model; a `StepRecord` says where each begins."""
AFFINE: Final = 0.5
"""Share of a prompt that an engine must have to get it for that [1]: `affinityThreshold` of llm-d's router, which the
deployment files state; assumed."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Least work of one engine's steps, all its GPUs together; the default, without a roofline, is no work.

    flop = token_flop x tokens + row_flop x rows + pair_flop x pairs + decode_flop x decodes + context_flop x context;
    bytes = step_bytes + capped_bytes x min(tokens, knee) + token_bytes x tokens + row_bytes x rows
    + reach_bytes x reach + decode_bytes x decodes + context_bytes x context (see `StepContent`).
    peak [FLOP/s], bandwidth [byte/s]: the vendor's, of the GPUs of one pipeline stage; 0: no floors.

    The bounds are linear, so the work of a whole run follows from sums of whole numbers, which are the same whether
    decode steps are taken one by one or in closed form; and a step's own numbers give the floors of its time.
    """

    peak: float = 0.0
    bandwidth: float = 0.0
    knee: int = 1
    token_flop: float = 0.0
    row_flop: float = 0.0
    pair_flop: float = 0.0
    decode_flop: float = 0.0
    context_flop: float = 0.0
    step_bytes: float = 0.0
    capped_bytes: float = 0.0
    token_bytes: float = 0.0
    row_bytes: float = 0.0
    reach_bytes: float = 0.0
    decode_bytes: float = 0.0
    context_bytes: float = 0.0


@dataclass(slots=True)
class StepContent:
    """What one step holds, or many steps together.

    steps; tokens: new ones, of prompts and decodes; capped: sum over steps of min(tokens, knee); rows: prompts and
    decodes; pairs: query-key pairs of the prompt chunks, q p + q (q + 1) / 2; reach: sum of q + p over chunks; decodes;
    context: of all decodes together. q: tokens of a chunk, p: those before it.
    """

    steps: int
    tokens: int
    capped: int
    rows: int
    pairs: int
    reach: int
    decodes: int
    context: int


def least_flop(work: StepWork, content: StepContent) -> float:
    """FLOP that the steps need [FLOP]."""
    return (
        work.token_flop * content.tokens
        + work.row_flop * content.rows
        + work.pair_flop * content.pairs
        + work.decode_flop * content.decodes
        + work.context_flop * content.context
    )


def least_bytes(work: StepWork, content: StepContent) -> float:
    """HBM traffic that the steps need [byte]."""
    return (
        work.step_bytes * content.steps
        + work.capped_bytes * content.capped
        + work.token_bytes * content.tokens
        + work.row_bytes * content.rows
        + work.reach_bytes * content.reach
        + work.decode_bytes * content.decodes
        + work.context_bytes * content.context
    )


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step model as numbers: its kind, scalars and tables.

    work: the least that a step does; without it no work is counted and no floor checked.
    """

    kind: int
    scalars: Mapping[str, float]
    tables: tuple[FloatArray, ...] = ()
    work: StepWork = field(default_factory=StepWork)


class StepModel(Protocol):
    """How long an engine step takes."""

    def numbers(self) -> StepNumbers:
        """The model for the event loop."""


class Router(StrEnum):
    """How a pool's router chooses an engine; see `loop`."""

    LEAST_LOADED = "least_loaded"
    LENGTH_AWARE = "length_aware"
    PREFIX_AFFINE = "prefix_affine"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine.

    max_num_seqs: requests running at once; max_num_batched_tokens: tokens in a step; long_prefill_threshold: most
    tokens of one prompt in a step; kv_blocks of block_size tokens; decode_tokens: tokens that a decoding request takes
    of a step (`costmodel.engine.Speculation`).
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_threshold: int = UNLIMITED
    kv_blocks: int = UNLIMITED
    block_size: int = 16
    decode_tokens: int = 1


@dataclass(frozen=True, slots=True)
class SimulatedTier:
    """KV below the memory of GPUs (`costmodel.prefix_cache.CacheTier`).

    tokens: that each engine's own keeps, or the one that all engines of the pool share [token]; seconds_per_token: of
    a read by one of an engine's `nics`; latency: of one read [s].
    """

    tokens: float = 0.0
    seconds_per_token: float = 0.0
    latency: float = 0.0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """Equal engines with one role.

    pipeline: stages, each with an equal share of the step's time; as many micro-batches are in flight.
    kv_seconds_per_token: time that the KV of one token needs on the engine's links (all its NICs) [s/token].
    nics: links each way; one hand-over uses one of them, and several go side by side.
    first_token: time until the first token of a prompt over that of its steps (`Accelerator.in_engine`) [1].
    fixed_ttft: of prompts computed here, by how much clients have all tokens later than the engines
    (`ServingPolicy.fixed_ttft`) [s].
    tier: where engines that compute prompts read what their memory no longer has.
    """

    role: Role
    steps: StepModel
    policy: Policy
    limits: Limits = field(default_factory=Limits)
    replicas: int = 1
    pipeline: int = 1
    router: Router = Router.LEAST_LOADED
    kv_seconds_per_token: float = 0.0
    nics: int = 1
    first_token: float = 1.0
    fixed_ttft: float = 0.0
    tier: SimulatedTier = field(default_factory=SimulatedTier)


SimulatedFleet = tuple[SimulatedPool, ...]
"""Pools; the trace says which of them serve a request."""


@dataclass(slots=True)
class EngineUse:
    """Counters of one engine over the run, which the loop counts up.

    pool: index of its pool; work: the least that its steps need (none where step times come without a roofline);
    content: what all of its steps held, padding too; rejected: requests that could never be held; peak_blocks,
    peak_running: highest seen; busy: lanes' time in steps [s]; kv_block_seconds: KV blocks in use x time [block s].
    """

    pool: int
    work: StepWork
    content: StepContent = field(default_factory=lambda: StepContent(*(0,) * 8))
    preemptions: int = 0
    rejected: int = 0
    peak_blocks: int = 0
    peak_running: int = 0
    busy: float = 0.0
    kv_block_seconds: float = 0.0

    def shares(self, pool: SimulatedPool, span: float) -> tuple[float, float, float, float]:
        """Utilization, MFU, MBU and KV occupancy over a time `span` [s], of an engine of this pool [1].

        Utilization: busy share of its lanes' time; MFU, MBU: the least FLOP and bytes of its steps, padding too, over
        what its GPUs could do in all of the time (0 without a roofline); KV occupancy: share of KV blocks in use (0 if
        unlimited).
        """
        stages = pool.pipeline
        pairs = (
            (self.busy, stages),
            (least_flop(self.work, self.content), stages * self.work.peak),
            (least_bytes(self.work, self.content), stages * self.work.bandwidth),
            (self.kv_block_seconds, pool.limits.kv_blocks),
        )
        busy, mfu, mbu, occupancy = (used / (room * span) if room * span > 0.0 else 0.0 for used, room in pairs)
        return busy, mfu, mbu, occupancy
