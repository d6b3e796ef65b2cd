"""Chunk size against prefill efficiency and decode jitter: Llama-2-7B on one A100, Sarathi's scheduler.

    python -m benchmarks.studies.chunk_size

The chunk is the token budget of a step, decodes included. Prompts have 1,024 tokens and outputs 256 on average (gamma
distributed, CV 1/2 and 1). Gaps are those between any two tokens of any request, so a slow step weighs as often as it
has decodes. Goodput: the highest rate at which 90 % of TTFTs and 99 % of all gaps are within their limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.reference.lone_steps import step_seconds
from benchmarks.reference.policies import SARATHI
from costmodel.engine import Role
from costmodel.metric import limits_of
from costmodel.simulator.fleet import SimulatedFleet
from costmodel.simulator.metrics import Result, overload, percentiles
from costmodel.simulator.run import simulate
from search_spaces.models import load_model

from .common import FloatArray, Lengths, engine_pool, gamma_lengths, highest_rate, holds, poisson_trace, table

MODEL, ISL, OSL, LONGEST, SEQS = "Llama-2-7B", 1024.0, 256.0, 4096, 64
CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096)
PROMPT = 4096
"""Prompt whose prefill is timed alone [token]."""
RATE = 2.0
"""Arrivals at which the gaps of all chunk sizes are compared [1/s]."""
TTFT = 2.0
GAPS = (0.03, 0.05, 0.1)
"""Limits of the 99th percentile of the gaps [s]; the middle one is the seed's example of a TPOT."""
LOG_ROWS = 100
"""Rows of the step log per request, more than any of these runs needs."""
THEIRS = "256 to 512 tokens"


@dataclass(frozen=True, slots=True)
class ChunkPoint:
    """One chunk size.

    efficiency: prompt tokens per second of a 4,096-token prompt computed alone, over those in one piece [1];
    full: time of a step that is all prompt [s]; gaps: p50, p99 and longest gap at RATE [s]; ttft: p90 at RATE [s];
    overloaded: whether the engine falls behind at RATE.
    """

    chunk: int
    efficiency: float
    full: float
    gaps: tuple[float, float, float]
    ttft: float
    overloaded: bool


def fleet_of(chunk: int) -> SimulatedFleet:
    """One engine with this token budget."""
    model = load_model(MODEL)
    return (engine_pool(model, Role.COLOCATED, SARATHI, seqs=SEQS, budget=chunk, longest=2 * LONGEST),)


def lengths_of(requests: int) -> Lengths:
    """Prompts and outputs of chat-like lengths."""
    return gamma_lengths(requests, ISL, 0.5, LONGEST, seed=2), gamma_lengths(requests, OSL, 1.0, 2048, seed=1)


def prefill_time(fleet: SimulatedFleet, chunk: int, prompt: int = PROMPT) -> float:
    """Time of a prompt computed alone, chunk after chunk [s]."""
    steps = fleet[0].steps
    return sum(step_seconds(steps, [min(chunk, prompt - past)], [past]) for past in range(0, prompt, chunk))


def gaps_of(result: Result, warm_up: float = 0.1) -> tuple[FloatArray, FloatArray]:
    """Length [s] and number of the gaps between tokens, a pair for each logged run of steps.

    Where prompts and decodes share steps, every decode of a step waits just as long as the step lasts.
    """
    rows = result.steps_log[result.steps_log[:, 4] > 0]
    rows = rows[rows[:, 1] >= warm_up * result.arrival[-1]]
    rows = rows[rows[:, 1] <= result.arrival[-1]]
    return (rows[:, 2] - rows[:, 1]) / rows[:, 6], rows[:, 4] * rows[:, 6]


def gap_percentile(result: Result, share: float) -> float:
    """Gap that this share of all gaps does not exceed [s]; infinity without any."""
    gaps, count = gaps_of(result)
    order = np.argsort(gaps)
    total = np.cumsum(count[order])
    return float(gaps[order][np.searchsorted(total, share * total[-1])]) if total.size else math.inf


def point(chunk: int, requests: int, rate: float = RATE) -> ChunkPoint:
    """What one chunk size means alone and under load."""
    fleet, whole = fleet_of(chunk), fleet_of(PROMPT)
    result = simulate(poisson_trace(lengths_of(requests), rate), fleet, log_rows=LOG_ROWS * requests)
    gaps = (gap_percentile(result, 0.5), gap_percentile(result, 0.99), float(gaps_of(result)[0].max()))
    return ChunkPoint(
        chunk=chunk,
        efficiency=prefill_time(whole, PROMPT) / prefill_time(fleet, chunk),
        full=step_seconds(fleet[0].steps, [chunk]),
        gaps=gaps,
        ttft=percentiles(result.ttft, (0.9,))[0],
        overloaded=overload([result]).overloaded,
    )


def serves(chunk: int, requests: int, rate: float, gap: float) -> bool:
    """Whether TTFT p90 and the p99 of the gaps hold at this rate, and the engine keeps up."""
    result = simulate(poisson_trace(lengths_of(requests), rate), fleet_of(chunk), log_rows=LOG_ROWS * requests)
    return holds(result, limits_of(ttft=TTFT)) and gap_percentile(result, 0.99) <= gap


def chunk_goodput(chunk: int, requests: int, gap: float) -> float:
    """Highest rate that a chunk serves within this limit of the gaps [1/s]."""
    return highest_rate(lambda rate: serves(chunk, requests, rate, gap))


def main() -> None:
    """Print both tables in one."""
    rows = []
    for chunk in CHUNKS:
        one = point(chunk, 2_000)
        served = [chunk_goodput(chunk, 2_000, gap) for gap in GAPS]
        rows.append(
            (
                chunk,
                f"{one.full * 1e3:.1f}",
                f"{one.efficiency:.0%}",
                *(f"{gap * 1e3:.0f}" for gap in one.gaps),
                "overload" if one.overloaded else f"{one.ttft * 1e3:.0f}",
                *(f"{rate:.2f}" for rate in served),
            )
        )
    limits = [f"req/s, gap p99 {gap * 1e3:.0f} ms" for gap in GAPS]
    print(table(("chunk", "ms", "efficiency", "gap p50 ms", "p99", "longest", "TTFT p90 ms", *limits), rows))
    print(f"theirs: {THEIRS} balance prefill efficiency and decode jitter (seed figure chunk_sweet_spot)")


if __name__ == "__main__":
    main()
