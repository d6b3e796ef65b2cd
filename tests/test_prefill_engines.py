"""Seats of prefill engines: as many as fill a step, in every stage of a pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import prefill_seqs
from optimizer.loads.engine_table import prompt_latency
from optimizer.loads.instance import Instance
from search_spaces.problem import SearchSpace
from tests.optimizer_cases import instance_of, problem, workload

SEQS = (1, 2, 4, 8, 16, 32, 64, 128)
SPACE = SearchSpace(
    roles=(Role.PREFILL, Role.DECODE),
    tensor_parallel=(1,),
    pipeline_parallel=(1, 4),
    expert_parallel=(1,),
    data_parallel=(1,),
    max_num_seqs=SEQS,
    max_num_batched_tokens=(2048,),
    max_gpus_per_engine=8,
)


def unit(*buckets: tuple[float, float, float], rate: float = 10.0) -> Instance:
    return instance_of(problem(workload=workload(rate, buckets), space=SPACE))


def stages(instance: Instance, number: int) -> int:
    return next(k for k, one in enumerate(instance.tables.shapes) if one.parallelism.pipeline == number)


@pytest.mark.parametrize(
    ("buckets", "single", "piped"),
    [
        (((512.0, 100.0, 1.0),), 4, 16),  # 4 prompts fill 2,048 tokens
        (((300.0, 100.0, 1.0),), 8, 32),  # 7 do
        (((128.0, 100.0, 0.5), (6000.0, 100.0, 0.5)), 16, 64),  # as many as if all were short
        (((16.0, 100.0, 0.05), (512.0, 100.0, 0.95)), 4, 16),  # but for one in ten
        (((8.0, 100.0, 1.0),), 128, 128),  # 256 do, for whom there are no seats
        (((6000.0, 100.0, 1.0),), 1, 4),
    ],
)
def test_prompts_that_fill_a_step_have_seats(
    buckets: tuple[tuple[float, float, float], ...], single: int, piped: int
) -> None:
    instance = unit(*buckets)
    found = [SEQS[prefill_seqs(instance, stages(instance, number))] for number in (1, 4)]
    assert found == [single, piped]


# --- token budgets of prefill engines: what a smaller one costs, and what it brings a pipeline

CHUNKS = (512, 1024, 2048, 8192)
BUDGETS = replace(SPACE, max_num_seqs=(8, 64, 256), max_num_batched_tokens=CHUNKS)
LENGTHS = ((1500.0, 50.0, 0.7), (6000.0, 50.0, 0.3))


@pytest.fixture(scope="module")
def instance() -> Instance:
    return posed(CHUNKS)


def posed(chunks: tuple[int, ...], rate: float = 20.0) -> Instance:
    space = replace(BUDGETS, max_num_batched_tokens=chunks)
    return instance_of(problem(workload=workload(rate, LENGTHS), space=space))


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
