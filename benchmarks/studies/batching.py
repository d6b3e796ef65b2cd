"""Continuous against static batching, by the variation of output lengths.

    python -m benchmarks.studies.batching

Llama-2-7B on one A100, at most 32 requests at once, prompts of 256 tokens, outputs of 256 tokens on average with a
coefficient of variation from 0 to 2 (gamma distributed, cut at 2048). Both engines are the simulator's own policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.reference.policies import STATIC, VLLM_V0
from costmodel.engine import Policy, Role
from costmodel.metric import limits_of
from costmodel.simulator.fleet import SimulatedFleet
from costmodel.simulator.metrics import throughput
from costmodel.simulator.run import simulate
from costmodel.workload import make_trace
from search_spaces.models import load_model

from .common import IntArray, Lengths, engine_pool, gamma_lengths, goodput, table

MODEL, BATCH, ISL, OSL, LONGEST = "Llama-2-7B", 32, 256, 256.0, 2048
REQUESTS = 6_400
BATCHES = (8, 16, 64)
VARIATIONS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
LIMITS = limits_of(ttft=10.0, tpot=0.05)
"""For goodput: patient enough that a static batch, which makes newcomers wait for its longest request, serves some."""
THEIRS = "2 to 5, by output length variance"


@dataclass(frozen=True, slots=True)
class Gain:
    """Continuous over static batching at one coefficient of variation.

    expected: E[longest of a batch] / mean of the lengths drawn, what idle slots alone would give [1]; throughput:
    output tokens per second at saturation, static and continuous; goodput: req/s within LIMITS, the same.
    """

    variation: float
    expected: float
    throughput: tuple[float, float]
    goodput: tuple[float, float]


def fleet_of(policy: Policy, batch: int) -> SimulatedFleet:
    """One engine."""
    model = load_model(MODEL)
    return (engine_pool(model, Role.COLOCATED, policy, seqs=batch, longest=ISL + LONGEST),)


def lengths_of(variation: float, requests: int) -> Lengths:
    """Prompts of one length, outputs of many."""
    return np.full(requests, ISL, dtype=np.int64), gamma_lengths(requests, OSL, variation, LONGEST, seed=1)


def saturated(fleet: SimulatedFleet, lengths: Lengths) -> float:
    """Output tokens per second where there is always a request waiting."""
    isl, osl = lengths
    return throughput(simulate(make_trace(np.zeros(isl.size), isl, osl), fleet))[1]


def idle_bound(osl: IntArray, batch: int) -> float:
    """Mean of the longest of each batch over the mean length: (sum of T_max) / (sum of T_i / batch)."""
    whole = osl[: osl.size // batch * batch].reshape(-1, batch)
    return float(whole.max(axis=1).mean() / whole.mean())


def gain(variation: float, requests: int, batch: int = BATCH, *, limited: bool = True) -> Gain:
    """Both engines on the same requests; limited: also find the goodputs."""
    lengths = lengths_of(variation, requests)
    fleets = fleet_of(STATIC, batch), fleet_of(VLLM_V0, batch)
    static, continuous = (saturated(fleet, lengths) for fleet in fleets)
    within = tuple(goodput(fleet, lengths, LIMITS) if limited else math.nan for fleet in fleets)
    return Gain(variation, idle_bound(lengths[1], batch), (static, continuous), (within[0], within[1]))


def _row(name: str, one: Gain) -> tuple[str, ...]:
    (static, continuous), (slow, fast) = one.throughput, one.goodput
    throughputs = (f"{one.expected:.2f}", f"{static:,.0f}", f"{continuous:,.0f}", f"{continuous / static:.2f}")
    if math.isnan(slow):
        return (name, *throughputs, "", "", "")
    return (name, *throughputs, f"{slow:.2f}", f"{fast:.2f}", f"{fast / slow:.2f}" if slow else "-")


def main() -> None:
    """Print the gain by variation, then by batch."""
    rows = [_row(f"CV {variation:g}", gain(variation, REQUESTS)) for variation in VARIATIONS]
    rows += [_row(f"CV 1, batch {batch}", gain(1.0, REQUESTS, batch, limited=False)) for batch in BATCHES]
    saturation = ("longest / mean", "static token/s", "continuous", "gain")
    print(table(("OSL", *saturation, "static req/s in SLO", "continuous", "gain"), rows))
    print(f"theirs: {THEIRS} (seed figure continuous_vs_static)")


if __name__ == "__main__":
    main()
