"""Loads and promises of columns: signs, scaling, what a looser SLO may change, and Little's law at the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from costmodel.queueing import wait_probability
from optimizer.loads.columns import (
    ROLES,
    Columns,
    Grid,
    blocks_of,
    column_gpus,
    column_price,
    join,
    make_columns,
    step_levels,
)
from optimizer.loads.instance import Instance
from optimizer.loads.loads import (
    RESOURCES,
    Resource,
    column_loads,
    mean_below,
    prompt_service,
    slot_utilization,
)
from search_spaces.problem import Constraints, Problem
from tests.optimizer_cases import (
    EVERY_ROLE,
    FEW,
    columns_of,
    instance_of,
    limit,
    model,
    offer,
    problem,
    slo,
    space,
    workload,
)

AT = {resource: index for index, resource in enumerate(RESOURCES)}
MIXES = (
    ((1000.0, 200.0, 1.0),),
    ((100.0, 20.0, 0.5), (8000.0, 300.0, 0.5)),
    ((50.0, 1.0, 0.2), (1000.0, 300.0, 0.5), (6000.0, 50.0, 0.3)),
)


def varied(**changes: Any) -> Problem:
    """A mixture of experts over two offers with pipelines, so that every term of the loads is at work."""
    fields: dict[str, Any] = {
        "offers": (offer("H100"), offer("L40S"), offer("MI300X")),
        "workload": workload(8.0, MIXES[2], burstiness=1.5, prefix_hit_share=0.2),
        "space": space(tensor_parallel=(1, 2), pipeline_parallel=(1, 2), max_num_batched_tokens=(64, 512, 4096)),
    }
    return problem(**(fields | changes))


GIVEN = varied()
INSTANCE = instance_of(GIVEN)
COLUMNS = columns_of(INSTANCE)


def of(columns: Columns, role: Role) -> Columns:
    return columns.take(columns.role == ROLES.index(role))


class TestRanges:
    @pytest.mark.parametrize("name", ["Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "DeepSeek-V3"])
    def test_loads_are_not_negative_and_misses_are_shares(self, name: str) -> None:
        given = varied(
            model=model(name),
            weight_dtype="fp8" if name == "DeepSeek-V3" else "bf16",
            offers=(offer("H200"), offer("L40S")),
            space=space(tensor_parallel=(1, 4, 8), expert_parallel=(1, 8), data_parallel=(1, 2, 8)),
        )
        instance = instance_of(given)
        loads = column_loads(instance, columns_of(instance))
        assert loads.load.size
        assert not np.isnan(loads.load).any()
        assert (loads.load >= 0.0).all()
        assert ((loads.miss >= 0.0) & (loads.miss <= 1.0)).all()

    def test_each_role_uses_its_resources_only(self) -> None:
        used = {
            Role.PREFILL: {Resource.TIME, Resource.QUEUE, Resource.LINK},
            Role.DECODE: {Resource.SLOTS, Resource.KV_MEMORY, Resource.ATTENTION_TIME, Resource.LINK},
            Role.COLOCATED: set(RESOURCES) - {Resource.LINK},
        }
        for role, resources in used.items():
            load = column_loads(INSTANCE, of(COLUMNS, role)).load
            finite = load[np.isfinite(load).all(axis=(1, 2))]
            assert {r for r in RESOURCES if finite[:, AT[r]].max() > 0.0} == resources

    def test_a_token_budget_that_decodes_use_up_serves_no_prompt(self) -> None:
        """128 running requests leave nothing of a budget of 64 tokens."""
        together = of(COLUMNS, Role.COLOCATED)
        starved = together.take((together.seqs == limit(INSTANCE, 1)) & (together.chunk == 0) & (together.shape == 0))
        assert starved.size
        assert np.isinf(column_loads(INSTANCE, starved).load).all()

    def test_a_step_longer_than_the_limit_serves_nothing(self) -> None:
        instance = instance_of(varied(slos=(slo(tpot=1e-4),)))
        assert np.isinf(column_loads(instance, of(columns_of(instance), Role.DECODE)).load).all()


class TestScaling:
    def test_loads_and_misses_do_not_depend_on_the_rate(self) -> None:
        """They are per request, so a fleet's load is linear in what is routed to it."""
        more = instance_of(replace(GIVEN, workload=replace(GIVEN.workload, request_rate=24.0)))
        one, other = column_loads(INSTANCE, COLUMNS), column_loads(more, COLUMNS)
        np.testing.assert_allclose(other.load, one.load, rtol=1e-12)
        np.testing.assert_allclose(other.miss, one.miss, rtol=1e-12)

    @pytest.mark.parametrize("replicas", [2, 3, 16])
    def test_a_block_of_several_carries_at_least_as_many_times_as_much(self, replicas: int) -> None:
        single = COLUMNS.take(COLUMNS.replicas == 1)
        block = replace(single, replicas=np.full(single.size, replicas))
        one, many = column_loads(INSTANCE, single), column_loads(INSTANCE, block)
        assert (many.load <= one.load / replicas * (1 + 1e-12)).all()
        assert (many.miss <= one.miss * (1 + 1e-12) + 1e-15).all()

    @pytest.mark.parametrize("resource", [Resource.TIME, Resource.QUEUE, Resource.LINK])
    def test_time_and_link_are_shared_out_evenly(self, resource: Resource) -> None:
        single = COLUMNS.take(COLUMNS.replicas == 1)
        block = replace(single, replicas=np.full(single.size, 4))
        one, many = column_loads(INSTANCE, single).load, column_loads(INSTANCE, block).load
        np.testing.assert_allclose(many[:, AT[resource]], one[:, AT[resource]] / 4, rtol=1e-12)

    def test_a_busier_operating_point_carries_more_and_misses_more(self) -> None:
        low = COLUMNS.take((COLUMNS.utilization < 0.6) & (COLUMNS.role != ROLES.index(Role.DECODE)))
        high = replace(low, utilization=low.utilization + 0.3)
        one, other = column_loads(INSTANCE, low), column_loads(INSTANCE, high)
        assert (other.load <= one.load * (1 + 1e-12)).all()
        assert (other.miss >= one.miss - 1e-12).all()


def loosened(ttft: float, tpot: float) -> Instance:
    """The varied problem with looser latency limits."""
    slos = tuple(replace(one, ttft=one.ttft * ttft, tpot=one.tpot * tpot) for one in GIVEN.slos)
    return instance_of(replace(GIVEN, slos=slos))


class TestLooserLimits:
    """What makes the cost monotone: a column of a tight SLO is at least as good under a looser one."""

    @settings(deadline=None, max_examples=25)
    @given(st.floats(1.0, 20.0))
    def test_ttft(self, factor: float) -> None:
        looser = column_loads(loosened(factor, 1.0), COLUMNS)
        tight = column_loads(INSTANCE, COLUMNS)
        np.testing.assert_array_equal(looser.load, tight.load)
        assert (looser.miss <= tight.miss).all()

    @settings(deadline=None, max_examples=25)
    @given(st.floats(1.0, 20.0))
    def test_tpot(self, factor: float) -> None:
        looser, tight = column_loads(loosened(1.0, factor), COLUMNS), column_loads(INSTANCE, COLUMNS)
        np.testing.assert_array_equal(looser.load, tight.load)
        assert (looser.miss <= tight.miss + 1e-15).all()

    @settings(deadline=None, max_examples=15)
    @given(st.floats(0.5, 0.99), st.floats(0.5, 0.99))
    def test_attainment(self, one: float, other: float) -> None:
        """Misses are compared with those permitted."""
        low, high = sorted((one, other))

        def at(goal: float) -> tuple[Any, Any]:
            loads = column_loads(instance_of(replace(GIVEN, slos=(slo(attainment=goal),))), COLUMNS)
            return loads.load, loads.miss / (1.0 - goal)

        (looser_load, looser_miss), (tight_load, tight_miss) = at(low), at(high)
        assert (looser_load <= tight_load * (1 + 1e-12)).all()
        assert (looser_miss <= tight_miss * (1 + 1e-12) + 1e-15).all()


@settings(deadline=None, max_examples=25)
@given(st.floats(0.0, 4.0), st.floats(0.0, 4.0))
def test_burstier_arrivals_are_never_easier(one: float, other: float) -> None:
    low, high = (
        column_loads(instance_of(replace(GIVEN, workload=replace(GIVEN.workload, burstiness=cv))), COLUMNS)
        for cv in sorted((one, other))
    )
    assert (low.load <= high.load * (1 + 1e-12)).all()
    # where more than half miss, the limit lies below the mean, and more spread lets more of them slip under it
    assert (np.minimum(low.miss, 0.5) <= high.miss + 1e-12).all()


@settings(deadline=None, max_examples=15)
@given(st.floats(0.0, 0.9), st.floats(0.0, 0.9))
def test_a_prefix_cache_never_makes_a_prefill_engine_busier(one: float, other: float) -> None:
    """Without pipeline stages: there, fewer chunks can be longer ones, behind which others wait."""
    prefill = of(COLUMNS, Role.PREFILL)
    prefill = prefill.take(INSTANCE.tables.pipeline[prefill.shape] == 1.0)
    low, high = (
        column_loads(instance_of(replace(GIVEN, workload=replace(GIVEN.workload, prefix_hit_share=share))), prefill)
        for share in sorted((one, other))
    )
    assert (high.load[:, AT[Resource.TIME]] <= low.load[:, AT[Resource.TIME]] * (1 + 1e-9)).all()


class TestAtTheLimit:
    """A column that is exactly full: what Little's law says about it."""

    @settings(deadline=None, max_examples=60)
    @given(st.integers(0, 10**6), st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3))
    def test_a_full_decode_block_keeps_its_limits(self, pick: int, mix: list[float]) -> None:
        decodes = of(COLUMNS, Role.DECODE)
        load = column_loads(INSTANCE, decodes).load
        able = np.flatnonzero(np.isfinite(load).all(axis=(1, 2)))
        k = able[pick % able.size]
        rate = np.array(mix) / (load[k] @ np.array(mix)).max()
        tables, flows, shape = INSTANCE.tables, INSTANCE.flows, decodes.shape[k]
        work = rate / decodes.replicas[k] * flows.osl
        step = tables.decode_base[shape, decodes.seqs[k]] / (1.0 - work @ tables.attention_slope[shape])
        limit, batch = decodes.tpot[k], tables.seqs[decodes.seqs[k]]
        capacity = tables.kv_capacity[shape, decodes.chunk[k]]
        assert step <= limit * (1 + 1e-9)
        assert step * work.sum() <= batch * (1 + 1e-9)
        assert step * (work @ tables.kv_held[shape]) <= capacity * (1 + 1e-9)

    def test_slots_fill_to_their_utilisation_exactly(self) -> None:
        instance = instance_of(problem(workload=workload(1.0, MIXES[0])))
        decodes = of(columns_of(instance), Role.DECODE)
        load = column_loads(instance, decodes).load[:, AT[Resource.SLOTS], 0]
        tables, osl = instance.tables, instance.flows.osl[0]
        chance = decodes.chance * (1.0 - 0.9) / 2.0
        batch = tables.seqs[decodes.seqs]
        usable = slot_utilization(decodes.replicas * batch.astype(np.int64), chance, 1.0) * batch
        work = osl / load / decodes.replicas
        slope = tables.attention_slope[decodes.shape, 0]
        step = tables.decode_base[decodes.shape, decodes.seqs] / (1.0 - work * slope)
        np.testing.assert_allclose(step * work, usable, rtol=1e-9)

    def test_a_full_prefill_block_is_as_busy_as_it_may_be(self) -> None:
        prefill = of(COLUMNS, Role.PREFILL)
        rate = 1.0 / column_loads(INSTANCE, prefill).load[:, AT[Resource.TIME]]
        tables = INSTANCE.tables
        at = prefill.shape, prefill.chunk
        chunks = INSTANCE.flows.chunks_of(tables.rank_chunks[at])
        service = prompt_service(INSTANCE.flows, tables.prefill_time[at], chunks, tables.pipeline[prefill.shape])
        servers = prefill.replicas * tables.ranks[prefill.shape]
        np.testing.assert_allclose(rate * service / servers[:, None], prefill.utilization[:, None] * np.ones((1, 3)))

    @settings(deadline=None, max_examples=60)
    @given(
        st.integers(0, 10**6), st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]), min_size=3, max_size=3).filter(any)
    )
    def test_the_mean_wait_of_any_mix_is_within_the_promise(self, pick: int, mix: list[float]) -> None:
        """Poisson arrivals: Wq = Pw lambda E[s2] / (2 c (1 - rho) rho ...), whatever is routed there."""
        instance = POISSON
        prefill = of(columns_of(instance), Role.PREFILL)
        k = pick % prefill.size
        load, share = column_loads(instance, prefill).load[k], np.array(mix)
        rate = share / (load @ share).max()
        shape, rho, v = prefill.shape[k], prefill.utilization[k], prefill.moment[k]
        service = instance.tables.prefill_time[shape, prefill.chunk[k]] / instance.tables.pipeline[shape]
        servers = float(prefill.replicas[k] * instance.tables.ranks[shape])
        busy = float(rate @ service) / servers

        def mean_wait(utilization: float, residual: float) -> float:
            waits = float(wait_probability(servers, utilization))
            return waits * residual / (2.0 * servers * (1.0 - utilization))

        demand = instance.flows.share
        promised = mean_wait(rho, v * float(demand @ service**2) / float(demand @ service))
        assert mean_wait(busy, float(rate @ service**2) / float(rate @ service)) <= promised * (1 + 1e-9)


POISSON = instance_of(varied(workload=workload(8.0, MIXES[2])))


class TestMargins:
    @settings(deadline=None, max_examples=60)
    @given(st.floats(1.0, 1e4), st.floats(0.0, 40.0))
    def test_the_mean_below_a_limit_solves_its_equation(self, limit: float, spread: float) -> None:
        mean = mean_below(np.array([limit]), np.array([spread]))[0]
        assert mean + spread * np.sqrt(mean) == pytest.approx(limit, rel=1e-9)
        assert mean <= limit * (1 + 1e-12)

    def test_a_limit_below_nothing_holds_nothing(self) -> None:
        assert mean_below(np.array([-1.0]), np.array([1.0]))[0] == 0.0

    def test_more_slots_are_used_better(self) -> None:
        use = slot_utilization(np.array([8, 64, 512]), np.full(3, 0.05), 1.0)
        assert (np.diff(use) > 0).all()
        assert (use < 1.0).all()


class TestSets:
    def test_taking_and_joining(self) -> None:
        index = np.array([3, 1, 2])
        np.testing.assert_array_equal(COLUMNS.take(index).shape, COLUMNS.shape[index])
        back = join([COLUMNS.take(np.arange(5)), COLUMNS.take(np.arange(5, COLUMNS.size))])
        assert all(np.array_equal(getattr(back, name), getattr(COLUMNS, name)) for name in ("role", "tpot", "chunk"))

    def test_slices_cover_all_columns_and_mix_no_roles(self) -> None:
        parts = list(blocks_of(COLUMNS, size=7))
        assert np.concatenate([np.arange(p.start, p.stop) for p in parts]).tolist() == list(range(COLUMNS.size))
        assert all(np.unique(COLUMNS.role[part]).size == 1 for part in parts)
        assert all(0 < part.stop - part.start <= 7 for part in parts)

    @pytest.mark.parametrize("role", EVERY_ROLE)
    def test_only_the_roles_allowed(self, role: Role) -> None:
        columns = columns_of(instance_of(problem(space=space(roles=(role,)))))
        assert {ROLES[index] for index in columns.role} == {role}

    def test_prices_and_gpus_of_blocks(self) -> None:
        tables = INSTANCE.tables
        np.testing.assert_array_equal(
            column_gpus(tables, COLUMNS), COLUMNS.replicas * [tables.shapes[s].parallelism.gpus for s in COLUMNS.shape]
        )
        price = column_price(tables, COLUMNS)
        assert price.min() == pytest.approx(min(o.usd_per_hour for o in GIVEN.offers))
        dearest = COLUMNS.take(np.array([price.argmax()]))
        assert price.max() == pytest.approx(dearest.replicas[0] * 4 * offer("MI300X").usd_per_hour)

    def test_blocks_that_no_limit_can_hold_are_left_out(self) -> None:
        wide = Grid(blocks=(1, 2, 8), colocated_blocks=(1, 2, 8), decode_blocks=(1, 8))
        limits = Constraints(max_gpus=6, budget=14.0)
        instance = instance_of(problem(offers=(offer(inventory=4),), constraints=limits))
        columns = make_columns(instance, wide)
        assert column_gpus(instance.tables, columns).max() <= 3  # 14 $/h buys three H100 at 3.99
        assert columns.size

    def test_tight_and_loose_limits_are_all_levels_up_to_four(self) -> None:
        two = instance_of(problem(slos=(slo(9.0, 0.05, share=0.5), slo(9.0, 0.1, share=0.5, name="b"))))
        assert step_levels(two.flows).tolist() == [0.05, 0.1]
        many = tuple(slo(9.0, 0.01 * k, share=0.1, name=f"c{k}") for k in range(1, 11))
        levels = step_levels(instance_of(problem(slos=many)).flows)
        assert levels.size == 4
        assert (levels.min(), levels.max()) == pytest.approx((0.01, 0.1))

    def test_the_small_grid_is_small(self) -> None:
        assert columns_of(instance_of(problem()), FEW).size <= 64
