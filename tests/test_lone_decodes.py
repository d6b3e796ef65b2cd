"""A request that decodes by itself takes the cost model's step of one request at its context, however long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Parallelism, Role
from costmodel.queues.decode import Steps
from costmodel.step import StepLoad, step_time_one
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.fleets.pool import PoolState, pool_state
from optimizer.loads.instance import Instance
from optimizer.search.bound import HALF
from search_spaces.engines import load_engine_overhead
from search_spaces.enumeration import engine_config
from tests.optimizer_cases import EVERY_ROLE, instance_of, limit, problem, space, workload

OUTPUT = 200.0
SPLITS = (Parallelism(), Parallelism(tensor=2), Parallelism(pipeline=2))


def contexts(
    *isl: float, rate: float = 1e-4, burstiness: float = 1.0, seqs: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
) -> Instance:
    """Prompts of these lengths, equally often, on H100 by one, two, and two in a pipeline."""
    lengths = tuple((length, OUTPUT, 1.0 / len(isl)) for length in isl)
    return instance_of(
        problem(
            workload=workload(rate, lengths, burstiness=burstiness, max_tokens=130_000),
            space=space(roles=EVERY_ROLE, tensor_parallel=(1, 2), pipeline_parallel=(1, 2), max_num_seqs=seqs),
        )
    )


def fleet(instance: Instance, split: Parallelism, replicas: int = 1) -> Fleet:
    """Colocated engines of one split."""
    shape = next(index for index, one in enumerate(instance.tables.shapes) if one.parallelism == split)
    everything = np.ones(instance.flows.isl.size)
    return Fleet((FleetPool("one", Role.COLOCATED, shape, limit(instance, 5), 0, replicas, 0, everything),))


def apart(instance: Instance) -> Fleet:
    """A prefill and a decode engine of one GPU."""
    colocated = fleet(instance, Parallelism()).pools[0]
    roles = ((Role.PREFILL, "prefill"), (Role.DECODE, "decode"))
    return Fleet(tuple(replace(colocated, name=name, role=role) for role, name in roles))


def steps_of(state: PoolState) -> Steps:
    assert state.steps is not None
    return state.steps


def alone(instance: Instance, split: Parallelism) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The cost model's step of one request of each flow at its mean context [s]."""
    given_ = instance.problem
    shape = next(one for one in instance.tables.shapes if one.parallelism == split)
    config = engine_config(given_, shape, Role.COLOCATED, 32, 8192)
    load = StepLoad.decode(np.ones(instance.flows.isl.size), instance.flows.mean_context)
    return np.asarray(step_time_one(given_.model, config, load_engine_overhead(given_.engine), load).total[0])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("isl", [1000.0, 8000.0, 38_000.0, 120_000.0])
def test_a_lone_request_reads_its_own_cache(isl: float, split: Parallelism) -> None:
    instance = contexts(isl)
    expected = float(alone(instance, split)[0])
    found = evaluate(instance, fleet(instance, split)).tpot[-1]
    assert found[:2] == pytest.approx([expected, expected], rel=0.002)
    several = evaluate(instance, fleet(instance, split, 4)).tpot[-1]
    assert several[:2] == pytest.approx([expected, expected], rel=0.002)


@pytest.mark.parametrize("split", SPLITS)
def test_each_request_reads_its_own_cache_and_not_the_mean_one(split: Parallelism) -> None:
    """Half of the requests have short prompts, half long ones: the median is one, the slowest tenth the other."""
    instance = contexts(1000.0, 100_000.0)
    short, long = alone(instance, split)
    assert long > 1.15 * short
    steps = steps_of(pool_state(instance, fleet(instance, split).pools[0], 1.0))
    np.testing.assert_allclose(steps.quiet + steps.time.own, [short, long], rtol=0.002)
    assert float(evaluate(instance, fleet(instance, split)).tpot[-1, 1]) == pytest.approx(float(long), rel=0.002)
    if split == Parallelism():
        decode = steps_of(pool_state(instance, apart(instance).pools[1], 1.0))
        np.testing.assert_allclose(decode.quiet + decode.time.own, [short, long], rtol=0.002)


@settings(max_examples=40, deadline=None)
@given(
    log_rate=st.floats(-4.0, 0.5),
    isl=st.lists(st.sampled_from([200.0, 2000.0, 20_000.0]), min_size=1, max_size=3, unique=True),
    burstiness=st.sampled_from([1.0, 3.0]),
    replicas=st.sampled_from([1, 3, 20]),
    split=st.sampled_from(SPLITS),
    least=st.sampled_from([1, 16]),
)
def test_half_are_late_where_the_mean_quiet_step_is(
    log_rate: float, isl: list[float], burstiness: float, replicas: int, split: Parallelism, least: int
) -> None:
    """What the certified floor takes for granted (`search.bound`)."""
    instance = contexts(*isl, burstiness=burstiness, seqs=tuple(least * 2**k for k in range(6)))
    pools = [fleet(instance, split, replicas).pools[0], replace(apart(instance).pools[1], replicas=replicas)]
    for pool in pools:
        steps = steps_of(pool_state(instance, pool, 10.0 ** (log_rate + 4.0)))
        assert (np.broadcast_to(steps.time.own, len(isl)) >= 0.0).all()
        assert (steps.calm_exceeds(np.full(len(isl), steps.quiet * (1.0 - 1e-9))) >= HALF).all()
