"""Token budgets of prefill engines: what a smaller one costs, and what it brings a pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool, prefill_seqs
from optimizer.loads.engine_table import prompt_latency
from optimizer.loads.instance import PREFILL, Instance, make_settings
from optimizer.verification.judge import judge
from tests.optimizer_cases import instance_of, limit, problem, workload
from tests.test_prefill_seqs import SPACE as ONE_CHUNK
from tests.test_prefill_seqs import stages

CHUNKS = (512, 1024, 2048, 8192)
SPACE = replace(ONE_CHUNK, max_num_seqs=(8, 64, 256), max_num_batched_tokens=CHUNKS)
LENGTHS = ((1500.0, 50.0, 0.7), (6000.0, 50.0, 0.3))


@pytest.fixture(scope="module")
def instance() -> Instance:
    return posed(CHUNKS)


def posed(chunks: tuple[int, ...], rate: float = 20.0) -> Instance:
    space = replace(SPACE, max_num_batched_tokens=chunks)
    return instance_of(problem(workload=workload(rate, LENGTHS), space=space))


def fleet(instance: Instance, chunk: int, number: int = 4, replicas: int = 1) -> Fleet:
    shape, every = stages(instance, number), np.ones(instance.flows.isl.size)
    seats = prefill_seqs(instance, shape), CHUNKS.index(chunk)
    prefill = FleetPool("prefill-1", Role.PREFILL, shape, *seats, replicas, 0, every)
    return Fleet((prefill, FleetPool("decode-1", Role.DECODE, stages(instance, 1), limit(instance, 2), 0, 8, 0, every)))


def test_stages_work_side_by_side_on_the_chunks_of_a_long_prompt(instance: Instance) -> None:
    """6000 tokens in three chunks of 2048: t / k (1 + (k - 1) / 3), which is less than all at once takes."""
    shape = np.array([stages(instance, 4)])
    small, whole = np.array([CHUNKS.index(2048)]), np.array([CHUNKS.index(8192)])
    chunks = [instance.flows.chunks_of(instance.tables.rank_chunks[shape, chunk]) for chunk in (small, whole)]
    assert [count.tolist() for count in chunks] == [[[1.0, 3.0]], [[1.0, 1.0]]]
    times = [instance.tables.prefill_alone[shape, chunk] for chunk in (small, whole)]
    deep = np.array([4.0])
    piped = prompt_latency(times[0], chunks[0], deep)
    assert piped[0, 1] == pytest.approx(times[0][0, 1] / 4.0 * (1.0 + 3.0 / 3.0))
    at_once = prompt_latency(times[1], chunks[1], deep)
    assert at_once[0] == pytest.approx(times[1][0])
    assert piped[0, 1] < 0.7 * at_once[0, 1]


def test_settings_have_every_budget_in_pipelines_and_else_the_largest(instance: Instance) -> None:
    engines = make_settings(instance)

    def budgets(number: int) -> list[int]:
        mine = (engines.role == PREFILL) & (engines.shape == stages(instance, number))
        return np.unique(engines.chunk[mine]).tolist()

    assert budgets(1) == [len(CHUNKS) - 1]
    assert budgets(4) == list(range(len(CHUNKS)))


def test_the_evaluation_knows_which_budget_suits_a_pipeline(instance: Instance) -> None:
    """In the order of the simulated TTFT, and a third off at most."""
    found, seen = [], []
    for chunk in (512, 2048, 8192):
        one = fleet(instance, chunk)
        found.append(float(evaluate(instance, one).ttft[-1, 1]))
        seen.append(judge(instance, one, requests=6000, seed=2).classes[0].ttft[1])
    assert np.argsort(found).tolist() == np.argsort(seen).tolist()
    assert found == pytest.approx(seen, rel=0.33)
