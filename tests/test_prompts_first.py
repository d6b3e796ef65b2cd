"""Engines whose prompts go first and alone (SGLang) beside those that mix them with decodes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import COLOCATED, Instance, make_instance, make_settings
from optimizer.search.bound import keeping_up
from optimizer.verification.judge import judge
from tests.optimizer_cases import instance_of, limit, problem, space, workload

CHUNK = 1024


@cache
def served_by(engine: str, rate: float = 8.0) -> Instance:
    """Prompts of 800 or 3000 tokens on single H100, in chunks of 1024."""
    return instance_of(
        problem(
            workload=workload(rate, ((800.0, 150.0, 0.7), (3000.0, 250.0, 0.3))),
            space=space(tensor_parallel=(1,), max_num_seqs=(2, 8, 32, 256), max_num_batched_tokens=(CHUNK,)),
            engine=engine,
        )
    )


def engines(replicas: int) -> Fleet:
    """Colocated ones."""
    seqs = limit(served_by("vllm"), 3)
    return Fleet((FleetPool("colocated-1", Role.COLOCATED, 0, seqs, 0, replicas, 0, np.ones(2)),))


def test_a_step_of_prompts_carries_no_decodes() -> None:
    """Whatever runs, 800 tokens take one step and 3000 take three, as on a prefill engine."""
    tables = served_by("sglang").tables
    assert tables.chunk_count[0, :, 0].tolist() == [[1.0, 3.0]] * tables.seqs.size
    assert tables.mixed_base[0, 0] == pytest.approx(tables.mixed_base[0, -1])
    assert (tables.mixed_base * tables.chunk_count)[0, 0, 0] == pytest.approx(tables.prefill_alone[0, 0], rel=1e-2)


def test_a_prompt_that_goes_alone_adds_more_to_the_steps_of_others() -> None:
    """By kernels: it reads the weights once more, so engines keep up with less."""
    needs = []
    for engine in ("vllm", "sglang"):
        instance = make_instance(served_by(engine).problem)
        every = make_settings(instance)
        needs.append(keeping_up(instance, every.take((every.role == COLOCATED) & (every.seqs >= limit(instance, 2)))))
    mixed, first = needs
    assert mixed.size
    assert (first > mixed).all()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("rate", [6.0, 11.0])
def test_the_evaluation_agrees_with_the_simulation(engine: str, rate: float) -> None:
    instance = served_by(engine, rate)
    found, seen = evaluate(instance, engines(2)), judge(instance, engines(2), requests=6000, seed=3)
    one = seen.classes[0]
    assert not seen.overload.overloaded
    assert found.ttft[0][:2] == pytest.approx(one.ttft[:2], rel=0.12)
    assert found.tpot[0][:2] == pytest.approx(one.tpot[:2], rel=0.08)
