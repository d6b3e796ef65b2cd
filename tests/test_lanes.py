"""Data-parallel lanes: one physics in the tables of the search, in the simulator and in what is validated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.reference.lone_steps import step_seconds
from costmodel.accelerator import Origin
from costmodel.engine import EngineConfig, EngineOverhead, Role
from costmodel.engine_arrays import engine_arrays
from costmodel.queues.prefill import lockstep, lockstep_excess
from costmodel.queues.steady_state import ClosedLoad, engine_times
from costmodel.simulator.steps import GridSteps, cost_steps
from costmodel.step import StepLoad, step_time
from optimizer.fleets.fleet import FleetPool, pool_config
from optimizer.loads.instance import Instance
from search_spaces.engines import load_serving_policy
from tests.optimizer_cases import EVERY_ROLE, instance_of, model, offer, problem, slo, space, workload

LANES, BUDGET, PROMPT = 8, 65_536, 8192


@cache
def long_prompts() -> Instance:
    """DeepSeek-V3 in FP8 on eight H200, with prompts that fill the token budget of a lane each."""
    return instance_of(
        problem(
            model=model("DeepSeek-V3"),
            weight_dtype="fp8",
            kv_dtype="fp8",
            offers=(offer("H200"),),
            workload=workload(1.0, ((float(PROMPT), 100.0, 1.0),), max_tokens=13_000),
            slos=(slo(1000.0, 10.0, 0.9),),
            space=space(
                roles=EVERY_ROLE,
                tensor_parallel=(8 // LANES, 8),
                expert_parallel=(1, 8),
                data_parallel=(1, LANES),
                max_num_seqs=(32, 64, 256),
                max_num_batched_tokens=(BUDGET,),
            ),
        )
    )


@cache
def lanes_shape() -> int:
    """Index of the first engine shape with lanes."""
    return next(k for k, shape in enumerate(long_prompts().tables.shapes) if shape.parallelism.data == LANES)


@cache
def lanes_config() -> EngineConfig:
    """A prefill engine with lanes, at the least batch limit."""
    instance = long_prompts()
    everything, least = np.ones(instance.flows.isl.size), int(instance.tables.limits[0])
    return pool_config(instance, FleetPool("p", Role.PREFILL, lanes_shape(), least, 0, 1, 0, everything))


def toy_lanes(lanes: float) -> GridSteps:
    """1 s per token of all lanes, of which half is each lane's own work; attention is 1 s per pair."""
    nodes, ones = np.array([1.0, 1000.0]), np.ones((2, 2))
    pairs = (nodes, np.array([0.0, 1000.0]), ones)
    grids = (nodes, nodes / lanes, np.array([1.0, 9.0]), np.zeros(2), nodes, np.zeros((1, 2)), *pairs)
    return GridSteps(*grids, lanes=lanes, lane_nodes=nodes, lane_times=0.5 * nodes / lanes)


def test_a_step_lasts_as_long_as_its_busiest_lane() -> None:
    """By hand, on two lanes: lane work is token / 4, all work token / 2, attention of n tokens n (n + 1) / 2."""
    even = toy_lanes(2.0)
    attention = 10 * 11 / 2
    assert step_seconds(even, [10]) == pytest.approx(10 / 2 + (20 - 10) / 4 + attention)
    assert step_seconds(even, [10, 10]) == pytest.approx(20 / 2 + attention)
    assert step_seconds(even, [10] * 4) == pytest.approx(40 / 2 + 2 * attention)
    assert step_seconds(even, [10, 2]) == pytest.approx(12 / 2 + (20 - 12) / 4 + (attention + 3) * 10 / 12)
    assert step_seconds(toy_lanes(1.0), [10, 2]) == pytest.approx(12 + attention + 3)


def test_tables_simulator_and_validation_tell_the_same_of_prompts() -> None:
    """A prompt alone, and its share of an engine with all lanes busy."""
    instance = long_prompts()
    tables, shape, config = instance.tables, lanes_shape(), lanes_config()
    packed = cost_steps(instance.problem.model, config, instance.policy.overhead)  # as plans are simulated with
    engine = engine_arrays(instance.problem.model, [config], instance.policy.overhead)
    one = [np.full((1, 1), value) for value in (64.0, float(PROMPT), 100.0, 0.0, 10.0)]
    times = engine_times(instance.problem.model, engine, engine, load_serving_policy("vllm"), ClosedLoad(*one))
    share = times.prompt.shared[0, 0]
    assert tables.prefill_shared[shape, 0] / LANES == pytest.approx(share, rel=0.02)
    assert step_seconds(packed, [PROMPT] * LANES) / LANES == pytest.approx(share, rel=0.02)
    assert step_seconds(packed, [PROMPT] * 4 * LANES, None) / (4 * LANES) == pytest.approx(share, rel=0.05)
    alone = step_time(instance.problem.model, engine, StepLoad.prefill(PROMPT)).total[0, 0]
    assert tables.prefill_alone[shape, 0] == pytest.approx(alone)
    assert step_seconds(packed, [PROMPT]) == pytest.approx(alone, rel=0.01)
    full = step_time(instance.problem.model, engine, StepLoad.prefill(PROMPT, LANES)).total[0, 0]
    assert tables.prefill_time[shape, 0] == pytest.approx(full)


@pytest.mark.parametrize("requests", [1, 7, 8, 9, 100, 256])
def test_the_simulator_counts_the_host_time_of_the_busiest_lane(requests: int) -> None:
    """Of its requests, from one on: a lone request is one of its lane, and not an eighth of one."""
    host = EngineOverhead(0.0, 1.0, Origin.ASSUMED, "toy")
    steps = cost_steps(long_prompts().problem.model, replace(lanes_config(), max_num_seqs=256), host)
    assert step_seconds(steps, (), None, requests, requests) == pytest.approx(max(requests / LANES, 1.0), abs=0.1)


def test_lockstep_by_hand() -> None:
    """Steps of 1 and 3 s, equally often: the other of two lanes is busy half of the time, with the longer in a half."""
    step, even = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    found = lockstep(step, np.array([2.0, 4.0]), np.array([2.0, 1.0]), lanes=2.0, busy=0.5)
    assert found.excess.tolist() == [2.0 * 0.5 * 0.5 * 2.0, 0.0]
    assert found.step == pytest.approx((1.5**2 + 3.0**2) / (1.5 + 3.0))
    many = lockstep_excess(step, even, 1.0, 8.0)
    assert many[0] == pytest.approx(2.0 * (1.0 - 0.5**7))
