"""What a run yields: times per request, counters per engine, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import PdplanError
from costmodel.metric import GAP_SHARE

from .trace import Trace

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Work of the engines, arrays of shape (engines,) in the order of `Result.engines`.

    flop [FLOP], hbm_bytes [byte]: of all GPUs of the engine, the least that its steps need (`StepWork`; padding of
    static batches counts, as it is computed); peak_flops [FLOP/s], hbm_bandwidth [byte/s]: the vendor's, of all its
    GPUs. These four are 0 where step times come without a roofline (coefficients, tables).
    busy_seconds: time in which steps ran, summed over micro-batches in flight [s]; prompt_tokens: computed;
    output_tokens: made, by prompts that ended and by decodes [token]; kv_block_seconds: KV blocks in use x time
    [block s].
    """

    flop: FloatArray
    hbm_bytes: FloatArray
    peak_flops: FloatArray
    hbm_bandwidth: FloatArray
    busy_seconds: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    kv_block_seconds: FloatArray


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """Prefix caches of the engines, arrays of shape (engines,); 0 where the trace has no hash blocks.

    asked: prompt tokens of admitted requests; hit: of these, found in the engine's cache or fetched; fetched: read from
    the shared store, also where a request came that no longer needed them [token]; evicted: hash blocks dropped.
    """

    asked: FloatArray
    hit: FloatArray
    fetched: FloatArray
    evicted: FloatArray

    @property
    def hit_share(self) -> FloatArray:
        """Share of the prompt tokens that were found [1]; 0 for an engine that was asked for none."""
        return self.hit / np.maximum(self.asked, 1.0)


@dataclass(frozen=True)
class EngineUse:
    """Counters of one engine over the run.

    steps: all; prompt_steps: with prompts; prompt_tokens, decode_tokens: computed [token]; busy: lanes' time in steps
    [s]; kv_block_seconds: blocks in use x time; peak_blocks, peak_running: highest seen; rejected: requests that could
    never be held.
    """

    pool: int
    steps: int
    prompt_steps: int
    prompt_tokens: int
    decode_tokens: int
    preemptions: int
    rejected: int
    peak_blocks: int
    peak_running: int
    busy: float
    kv_block_seconds: float


@dataclass(frozen=True)
class Result:
    """Times per request [s], in order of arrival; NaN where the request did not get that far.

    arrival (of a closed loop: as it came about), prompt_start: its first step begins; prompt_end: its prompt is
    computed; moved: its KV has arrived at the decode engine (NaN if it never moves); first, finish: first and last
    token; itl_max: longest gap between two tokens; gap_edges [s]: lengths at which gaps were counted, and gap_counts
    (requests, edges): gaps that exceed so many of them, one to all; restarts: preemptions of the request; engine,
    decode_engine: index into `engines` (-1: none); work: what each engine did, as arrays (`EngineWork`); prefix: what
    its prefix cache
    found; hit: prompt tokens of each request found there [token]. steps_log: rows of (lane, start, end, prompt tokens,
    decodes, context, steps).
    """

    trace: Trace
    arrival: FloatArray
    prompt_start: FloatArray
    prompt_end: FloatArray
    moved: FloatArray
    first: FloatArray
    finish: FloatArray
    itl_max: FloatArray
    gap_edges: FloatArray
    gap_counts: IntArray
    restarts: IntArray
    engine: IntArray
    decode_engine: IntArray
    engines: tuple[EngineUse, ...]
    work: EngineWork
    prefix: PrefixUse
    hit: IntArray
    events: int
    steps_log: FloatArray

    @cached_property
    def finished(self) -> NDArray[np.bool_]:
        """Which requests have their last token."""
        return np.isfinite(self.finish)

    @cached_property
    def ttft(self) -> FloatArray:
        """Arrival to first token [s]."""
        return self.first - self.arrival

    @cached_property
    def e2e(self) -> FloatArray:
        """Arrival to last token [s]."""
        return self.finish - self.arrival

    @cached_property
    def tpot(self) -> FloatArray:
        """(last - first token) / (OSL - 1) [s]; NaN for a single token."""
        gaps = np.where(self.trace.osl > 1, self.trace.osl - 1.0, np.nan)
        return (self.finish - self.first) / gaps

    @cached_property
    def itl_p99(self) -> FloatArray:
        """The least length that 99 % of a request's own gaps between tokens keep [s]; NaN for a single token.

        Of fewer than 100 gaps it is the longest. Else it is rounded up to the next of `gap_edges`, or to the longest.
        Raises PdplanError where a request has more and no gaps were counted.
        """
        gaps = self.trace.osl - 1
        allowed = ((1.0 - GAP_SHARE) * gaps + 1e-9).astype(np.int64)
        if not self.gap_edges.size and allowed.any():
            raise PdplanError("simulator: ITL p99 needs gap_edges, the lengths at which gaps are counted")
        over = np.cumsum(self.gap_counts[:, ::-1], axis=1)[:, ::-1]
        edges = np.append(self.gap_edges, np.inf)
        least = edges[(over > allowed[:, None]).sum(axis=1)]
        found = np.where(allowed > 0, np.minimum(self.itl_max, least), self.itl_max)
        return np.where((gaps > 0) & self.finished, found, np.nan)

    @cached_property
    def queue(self) -> FloatArray:
        """Arrival to the first step of the prompt [s]."""
        return self.prompt_start - self.arrival

    @cached_property
    def prefill(self) -> FloatArray:
        """First step of the prompt to its end [s]."""
        return self.prompt_end - self.prompt_start

    @cached_property
    def transfer(self) -> FloatArray:
        """End of the prompt to arrival of its KV at the decode engine [s]; 0 where nothing moves."""
        return np.where(np.isnan(self.moved), 0.0, self.moved - self.prompt_end)

    @property
    def steps(self) -> int:
        """Steps of all engines."""
        return sum(engine.steps for engine in self.engines)

    @property
    def makespan(self) -> float:
        """Time of the last token [s]."""
        return float(np.nanmax(self.finish)) if self.finished.any() else 0.0
