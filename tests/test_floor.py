"""The floor under the cost of every fleet: none that the evaluation accepts does less than it says, or costs less."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.evaluate import evaluate, still_holds
from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost, shared_out, with_names
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import ENDS, PREFILL, ROLES, Instance, at_quantile, at_volume, factor_at, step_intervals
from optimizer.plans.plan import ContradictionError, Proof, Status, bound_for, proof_of_cost, proof_of_judged
from optimizer.plans.records import ROUNDING
from optimizer.recommend.search import proof_of
from optimizer.search.bound import least_cost
from optimizer.search.search import FleetSearch
from optimizer.search.settings import (
    EngineSettings,
    generating_work,
    late_first_tokens,
    late_tokens,
    lines_below,
    prefill_work,
    sending_work,
)
from search_spaces.problem import Goal, Objective
from tests.optimizer_cases import accelerator, instance_of, offer, problem, slo, space, workload
from tests.small_fleets import each_of, small
from tests.toy import toy_config

SHORT_AND_LONG = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.3), (20000.0, 400.0, 0.1))
LIMITS = ((1.0, 0.05, 0.9), (0.25, 0.03, 0.8), (4.0, 0.025, 0.7), (0.6, 0.2, 0.99))
BATCHES = (8, 32, 128, 512)


@cache
def unit(which: int, *cards: str, engine: str = "vllm") -> tuple[Instance, EngineSettings]:
    """Llama-3.1-8B at a request per second within one of the limits, and the settings of its engines."""
    ttft, tpot, goal = LIMITS[which]
    engines = space(
        tensor_parallel=(1, 2), pipeline_parallel=(1, 2), max_num_seqs=BATCHES, max_num_batched_tokens=(1024, 8192)
    )
    instance = instance_of(
        problem(
            workload=workload(1.0, SHORT_AND_LONG),
            slos=(slo(ttft, tpot, goal, share=0.5), slo(2.0 * ttft, 3.0 * tpot, goal, name="batch", share=0.5)),
            space=engines,
            offers=tuple(offer(card) for card in cards),
            engine=engine,
        )
    )
    return instance, every_setting(instance)


def every_setting(instance: Instance) -> EngineSettings:
    """Each role, shape and token budget once, with the largest batch limit."""
    tables = instance.tables
    shapes, last = np.arange(tables.pipeline.size), tables.seqs.size - 1
    axes = [(0, shapes, (0,)), (1, shapes, (0,)), (2, shapes, range(tables.chunks.size))]
    rows = np.array([(role, shape, chunk) for role, some, chunks in axes for shape, chunk in product(some, chunks)])
    return EngineSettings(rows[:, 0], rows[:, 1], np.full(len(rows), last), rows[:, 2])


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Instance, FleetSearch, Fleet]:
    """A fleet of up to four pools of any engines with any routing, some of them hardly loaded and others near full."""
    engine = draw(st.sampled_from(("vllm", "sglang")))
    instance, every = unit(draw(st.integers(0, len(LIMITS) - 1)), "H100", "L40S", engine=engine)
    instance = at_volume(instance, 10.0 ** draw(st.floats(-1.0, 2.5)))
    known = FleetSearch.of(instance, every)
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    roles = [Role.COLOCATED] * draw(st.integers(0, 2))
    roles += [Role.PREFILL, Role.DECODE] * draw(st.integers(0 if roles else 1, 1))
    roles += [Role.DECODE] * (draw(st.integers(0, 1)) if Role.DECODE in roles else 0)
    pools: list[FleetPool] = []
    for role in roles:
        able = np.flatnonzero(every.role == ROLES.index(role))
        pools.append(known.pool(int(seed.choice(able)), 1))
    weights = [seed.dirichlet(np.ones(instance.flows.isl.size)) + 1e-9 for _ in pools]
    routed = shared_out(pools, weights)
    sized = []
    for pool in routed.pools:
        setting = _setting(every, pool)
        load = _work(instance, every.take(np.array([setting])), np.inf)[0] @ (instance.flows.rate * pool.route)
        sized.append(replace(pool, replicas=max(1, int(np.ceil(load.max() * seed.uniform(0.9, 1.8))))))
    return instance, known, Fleet(with_names(instance, sized))


def _setting(every: EngineSettings, pool: FleetPool) -> int:
    same = (every.role == ROLES.index(pool.role)) & (every.shape == pool.shape) & (every.chunk == pool.chunk)
    return int(np.flatnonzero(same)[0])


def _work(instance: Instance, one: EngineSettings, tau: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """What a setting needs at least, (1, resources, flows)."""
    work = prefill_work(instance, one)[:, None] if one.role[0] == PREFILL else generating_work(instance, one, tau)
    return np.concatenate([work, sending_work(instance, one)[:, None]], axis=1)


@settings(max_examples=20)
@given(fleets())
def test_no_pool_that_is_accepted_does_less_or_makes_fewer_late(case: tuple[Instance, FleetSearch, Fleet]) -> None:
    instance, known, fleet = case
    misses = evaluate(instance, fleet)
    first = np.zeros(instance.flows.isl.size)
    later = np.zeros(instance.flows.isl.size)
    if not misses.stable:
        return
    for pool, state in zip(fleet.pools, misses.states, strict=True):
        one = known.settings.take(np.array([_setting(known.settings, pool)]))
        tau = np.inf if state.steps is None else state.steps.quiet * (1.0 + ROUNDING)
        work = _work(instance, one, tau)[0, : -1 if pool.role is not Role.COLOCATED else None]
        assert (work @ (instance.flows.rate * pool.route)).max() <= pool.replicas * (1.0 + 1e-9)
        first += pool.route * late_first_tokens(instance, one)[0]
        if state.steps is not None and pool.role is not Role.PREFILL:
            later += pool.route * late_tokens(instance, one, state.steps.quiet / (1.0 + 4e-9))[0]
    assert (first <= misses.late_first + 1e-9).all()
    assert (later <= misses.late_later + 1e-9).all()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_pool_at_the_edge_of_falling_behind_does_little_more_than_the_floor(engine: str) -> None:
    """The lines, prompts and KV of the floor leave out a fifth of the work at most; of prefill, nothing."""
    instance, every = unit(0, "H100", engine=engine)
    known, route = FleetSearch.of(instance, every), np.ones(instance.flows.isl.size)
    for setting in np.flatnonzero(every.role != ROLES.index(Role.DECODE)):
        pool = replace(known.pool(int(setting), 1), replicas=4, route=route)
        stable, full = 0.1, 1e4
        for _ in range(16):
            rate = float(np.sqrt(stable * full))
            keeps_up = pool_state(instance, pool, rate).stable
            stable, full = (rate, full) if keeps_up else (stable, rate)
        work = _work(instance, every.take(np.array([setting])), np.inf)[0] @ (instance.flows.rate * stable)
        least = 0.8 if pool.role is Role.COLOCATED else 0.999
        assert least * 4.0 <= work.max() <= 4.0 * (1.0 + 1e-9), (pool, work)


def test_a_limit_of_twice_the_step_without_its_cache_takes_almost_twice_the_engines() -> None:
    """1 / (1 - h / tau) = 2 at tau = 2 h, of the longest requests, whose steps are cache above all."""
    instance, every = unit(0, "H100")
    decode = every.take(np.flatnonzero(every.role == ROLES.index(Role.DECODE))[:1])
    tau = 2.0 * float(lines_below(instance, decode).height.max())
    free, limited = (generating_work(instance, decode, limit)[0, 2] for limit in (np.inf, tau))
    assert 1.9 < (limited / free)[-1] <= 2.0


@settings(max_examples=8)
@given(fleets())
def test_no_fleet_that_holds_costs_less_than_the_floor(case: tuple[Instance, FleetSearch, Fleet]) -> None:
    instance, known, fleet = case
    if still_holds(instance, fleet):
        floor = least_cost(known.instance, known.settings)
        assert fleet_cost(instance, fleet) >= floor * (1.0 - 1e-6)


def test_the_bound_is_the_cheapest_of_one_pool_or_two_and_below_these_the_floor() -> None:
    assert proof_of_cost(10.0, 6.0, 10.0) == Proof(Status.OPTIMAL, 10.0, 0.0, 6.0, 10.0)
    assert proof_of_cost(10.0, 6.0, 12.5) == Proof(Status.FEASIBLE, 10.0, 1.0 - 10.0 / 12.5, 6.0, 10.0)
    assert proof_of_cost(10.0, None, 10.0) == Proof(Status.OPTIMAL, 10.0, 0.0, None, 10.0)
    assert proof_of_cost(10.0, 6.0, 8.0) == Proof(Status.FEASIBLE, 6.0, 0.25, 6.0, 10.0)
    assert proof_of_cost(None, 6.0, 8.0) == Proof(Status.FEASIBLE, 6.0, 0.25, 6.0, None)
    assert proof_of_cost(10.0, 8.0, 8.0) == Proof(Status.OPTIMAL, 8.0, 0.0, 8.0, 10.0)
    assert proof_of_cost(10.0, None, 8.0) == Proof(Status.FEASIBLE, None, None, None, 10.0)
    assert proof_of_cost(None, None, 8.0) == Proof(Status.FEASIBLE, None, None, None, None)


def test_one_below_the_floor_is_a_contradiction_that_is_never_called_optimal() -> None:
    for few_pools in (None, 9.0, 12.0):
        with pytest.raises(ContradictionError, match="holds, though none below"):
            proof_of_cost(few_pools, 10.0, 9.0)
        assert proof_of_judged(few_pools, 10.0, 9.0) == Proof(Status.FEASIBLE, None, None, 10.0, few_pools)
    assert proof_of_judged(10.0, 6.0, 8.0) == proof_of_cost(10.0, 6.0, 8.0)


@given(st.floats(1.0, 100.0), st.floats(-1e-7, 1e-7))
def test_rounding_is_no_contradiction_and_leaves_no_negative_gap(floor: float, off: float) -> None:
    found = proof_of_cost(floor, floor, floor * (1.0 + off))
    assert found.status is Status.OPTIMAL
    assert found.gap >= 0.0
    assert bound_for(floor, floor * (1.0 + off)) is not None


@pytest.mark.parametrize(
    ("goal", "served", "gap", "expected"),
    [
        (Objective(Goal.MAX_GOODPUT), 10.0, 0.0, (Status.OPTIMAL, 0.0)),
        (Objective(Goal.MAX_GOODPUT), 9.0, 0.0, (Status.FEASIBLE, 0.1)),
        (Objective(Goal.MAX_GOODPUT), 10.0, 0.2, (Status.FEASIBLE, 0.2)),
        (Objective(Goal.MAX_GOODPUT), 10.1, 0.0, (Status.FEASIBLE, None)),  # more than any serves by formula
        (Objective(Goal.MAX_GOODPUT_PER_DOLLAR, 1.0, 20.0), 15.0, 0.0, (Status.FEASIBLE, 0.25)),
    ],
)
def test_a_simulated_goodput_is_compared_with_the_most_by_formula(
    goal: Objective, served: float, gap: float, expected: tuple[Status, float | None]
) -> None:
    """By formula one engine serves 10 req/s, and any other up to `gap` more; per dollar, two engines are simulated."""
    instance = small(objective=goal)
    proof = Proof(Status.FEASIBLE if gap else Status.OPTIMAL, None, gap)
    formula = Mock(proof=proof, volume=10.0, instance=instance, fleet=each_of(instance, [Role.COLOCATED]))
    engines = 2 if goal.goal is Goal.MAX_GOODPUT_PER_DOLLAR else 1
    found = proof_of(formula, Mock(cost=engines * 3.99), served)
    assert (found.status, found.gap) == (expected[0], pytest.approx(expected[1]))


# --- error bars: step times at the ends of their intervals


GIVEN = problem(
    workload=workload(20.0, ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))),
    slos=(slo(1.0, 0.03, 0.95),),
    space=space(tensor_parallel=(1, 2), max_num_seqs=(32, 128)),
)


@given(st.floats(0.2, 0.99), st.floats(1.01, 5.0), st.floats(0.02, 0.98), st.floats(0.02, 0.98))
def test_a_more_certain_factor_is_larger(low: float, high: float, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert factor_at((low, high), less) <= factor_at((low, high), more) * (1 + 1e-12)
    assert factor_at((low, high), ENDS[0]) == pytest.approx(low)
    assert factor_at((low, high), ENDS[1]) == pytest.approx(high)
    assert factor_at((low, high), 0.5) == pytest.approx(1.0)


def test_every_time_is_scaled_and_nothing_else() -> None:
    instance = instance_of(GIVEN)
    assert at_quantile(instance, 0.5) is instance
    slow = at_quantile(instance, 0.95).tables
    prompts, tokens = step_intervals(GIVEN, toy_config(accelerator("H100"), weight_dtype=GIVEN.weight_dtype))
    np.testing.assert_allclose(slow.prefill_time, instance.tables.prefill_time * prompts[1])
    for name in ("decode_base", "attention_slope", "mixed_base", "full_base"):
        np.testing.assert_allclose(getattr(slow, name), getattr(instance.tables, name) * tokens[1])
    np.testing.assert_array_equal(slow.kv_capacity, instance.tables.kv_capacity)
