"""The simulator against queueing theory: mean waits within the run's own confidence interval, and Little's law.

A prompt that yields the only output token is a job; its step time is proportional to its length, so lengths make the
service distribution. c slots of a decode engine whose step time does not depend on the batch are c servers.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from tests.simulator_cases import ONLY_PROMPTS, colocated

# isort: split
from costmodel.policy import SARATHI
from costmodel.queues.erlang import erlang_c
from costmodel.simulator import CoefficientSteps, Limits, Result, make_trace, simulate
from costmodel.simulator.metrics import TAIL, batch_ends
from costmodel.simulator.trace import gamma_arrivals

COUNT = 30_000
UNIT = 1e-6
"""Service time of one prompt token [s]; jobs of some 100,000 tokens make rounding vanish."""
MEAN = 0.1
"""Mean service time [s]."""


def serve(lengths: np.ndarray, load: float, seed: int) -> Result:
    """One server: one sequence at a time, no decode steps."""
    isl = np.maximum(1, np.rint(lengths / UNIT)).astype(np.int64)
    trace = make_trace(gamma_arrivals(isl.size, load / MEAN, seed=seed), isl, np.ones(isl.size, dtype=np.int64))
    steps = CoefficientSteps((0.0, UNIT, 0.0), (1.0, 0.0, 0.0))
    return simulate(trace, colocated(ONLY_PROMPTS, steps, Limits(max_num_seqs=1, max_num_batched_tokens=1 << 40)))


def mean_of(values: np.ndarray) -> tuple[float, float]:
    """Mean of values in order of time and half its 95 % confidence interval."""
    mean = float(values.mean())
    low, high = batch_ends([values], mean, TAIL)
    return mean, (high - low) / 2.0


@pytest.mark.parametrize("servers", [2, 5])
def test_slots_are_m_m_c(servers: int) -> None:
    """Geometric outputs in steps of fixed time: memoryless but for the grid, on which a request waits half a step.

    The same arrivals through an exact queue of c servers (each request takes the server that is free first) wait as
    long to within that step, request by request; so what is left between the mean and Erlang's is chance.
    """
    load, step = 0.8, 1e-3
    osl = np.random.default_rng([servers, 4, 3]).geometric(step / MEAN, COUNT)
    arrival = gamma_arrivals(COUNT, load * servers / MEAN, seed=54)
    trace = make_trace(arrival, np.ones(COUNT, dtype=np.int64), osl)
    fleet = colocated(
        SARATHI, CoefficientSteps((step, 0.0, 0.0), (step, 0.0, 0.0)), Limits(servers, max_num_batched_tokens=64)
    )
    result = simulate(trace, fleet)
    waits = float(erlang_c(servers, load)) * MEAN / (servers * (1 - load))
    mean, half = mean_of(result.queue[COUNT // 20 :])
    assert abs(mean - waits) <= half + step
    free, exact = [0.0] * servers, []
    for time, tokens in zip(arrival.tolist(), osl.tolist(), strict=True):
        begin = max(time, heapq.heappop(free))
        exact.append(begin - time)
        heapq.heappush(free, begin + tokens * step)
    assert 0.0 <= float((result.queue - np.array(exact)).mean()) <= step


def test_littles_law_holds_on_a_run() -> None:
    """Mean number in the system, integrated over time by sweeping events, equals throughput x mean time."""
    result = serve(np.random.default_rng(9).exponential(MEAN, 5000), 0.9, seed=9)
    times = np.concatenate([result.arrival, result.finish])
    change = np.concatenate([np.ones(5000), -np.ones(5000)])
    order = np.argsort(times, kind="stable")
    inside = np.cumsum(change[order])[:-1]
    span = float(np.ptp(times))
    mean_inside = float(inside @ np.diff(times[order])) / span
    assert mean_inside == pytest.approx(5000 / span * float(result.e2e.mean()), rel=1e-9)
    busy = result.engines[0].busy / span
    assert busy == pytest.approx(float(result.prefill.sum()) / span, rel=1e-9)
    assert math.isclose(busy, 0.9, rel_tol=0.05)
