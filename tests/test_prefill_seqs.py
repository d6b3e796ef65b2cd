"""Seats of prefill engines: as many as fill a step, in every stage of a pipeline."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet, FleetPool, prefill_seqs
from optimizer.loads.instance import Instance
from optimizer.verification.judge import judge
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


def test_an_engine_without_them_falls_behind_at_a_rate_that_it_serves_with_them() -> None:
    instance = unit((128.0, 2.0, 1.0), rate=850.0)
    every = np.ones(instance.flows.isl.size)
    shape, decode = stages(instance, 4), stages(instance, 1)

    def behind(seqs: int) -> bool:
        prefill = FleetPool("prefill-1", Role.PREFILL, shape, seqs, 0, 1, 0, every)
        fleet = Fleet((prefill, FleetPool("decode-1", Role.DECODE, decode, len(SEQS) - 1, 0, 8, 0, every)))
        return judge(instance, fleet, requests=2000, seed=0, volume=1.0).overload.overloaded

    assert behind(SEQS.index(8))
    assert not behind(prefill_seqs(instance, shape))
