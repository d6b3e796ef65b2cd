"""The simulator against a literal scheduler: same times, longest gaps, preemptions and steps, to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator_cases import colocated

# isort: split
from costmodel.simulator import SARATHI, VLLM_V0, CoefficientSteps, Limits, Result, make_trace, simulate
from costmodel.simulator.metrics import gap_edges
from tests.simulator_oracle import Oracle

STEPS = CoefficientSteps((5e-3, 2e-5, 1e-9), (8e-3, 1e-7, 1e-4))


def seconds(chunks: list[tuple[int, int]], batch: int, context: int) -> float:
    a, b, c = STEPS.small
    decodes = b * (context + batch) + c * batch
    if not chunks:
        return a + decodes
    first, per_token, per_square = STEPS.prefill_abc
    prompts = per_token * sum(new for new, _ in chunks) + per_square * sum(
        new * (new + 2 * past) for new, past in chunks
    )
    return first + prompts + (decodes if batch else 0.0)


def assert_tail_of_gaps(result: Result, truth: Oracle, edges: tuple[float, ...]) -> None:
    """Exact for fewer than 100 gaps; else rounded up to the next edge, so that every edge decides as the truth does."""
    several, few = result.trace.osl > 1, result.trace.osl <= 100
    np.testing.assert_allclose(result.itl_p99[few], truth.itl_p99[few], rtol=1e-9, atol=1e-9)
    for edge in edges:
        sure = several & (np.abs(truth.itl_p99 / edge - 1.0) > 1e-8)
        np.testing.assert_array_equal((result.itl_p99 <= edge)[sure], (truth.itl_p99 <= edge)[sure])
    inside = several & (truth.itl_p99 > edges[0]) & (truth.itl_p99 < edges[-1])
    ratio = result.itl_p99[inside] / truth.itl_p99[inside]
    assert ratio.min() > 1.0 - 1e-8
    assert ratio.max() < 1.05 + 1e-8
    assert np.isnan(result.itl_p99[~several]).all()


@pytest.mark.parametrize("chunked", [False, True], ids=["vllm", "sarathi"])
def test_equals_a_literal_scheduler(chunked: bool) -> None:
    restarts = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(5, 60))
        gaps = rng.exponential(rng.choice([0.01, 0.1, 0.3]), count)
        trace = make_trace(np.cumsum(gaps), rng.integers(1, 400, count), rng.integers(1, 200, count))
        blocks, seqs = int(rng.integers(45, 160)), int(rng.choice([3, 8, 128]))
        budget = int(rng.choice([128, 256])) if chunked else 4096
        policy = replace(
            SARATHI if chunked else VLLM_V0, spare_block=True, partial_prompt_ends=True, padded_budget=not chunked
        )
        truth = Oracle(trace, seconds, chunked=chunked, budget=budget, seqs=seqs, blocks=blocks).run()
        median = float(np.nanmedian(truth.itl_p99))
        edges = gap_edges([0.5 * median, median * 1.000001])
        engines = colocated(policy, STEPS, Limits(seqs, budget, kv_blocks=blocks))
        result = simulate(trace, engines, gap_edges=edges)
        for ours, theirs in (
            (result.first, truth.first),
            (result.finish, truth.finish),
            (result.itl_max, truth.itl_max),
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
        assert_tail_of_gaps(result, truth, edges)
        np.testing.assert_array_equal(result.restarts, truth.restarts)
        assert result.steps == truth.steps
        restarts += int(truth.restarts.sum())
    assert restarts > 100
