"""What must never make a plan dearer, checked through `optimize` on spaces small enough to be searched to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.workload import scale_rate
from optimizer.plans.plan import Plan, Pool, Status
from optimizer.recommend.changed_problem import with_looser_slos
from search_spaces.problem import Constraints, Problem, Slo
from tests import small_problems
from tests.optimizer_cases import EVERY_ROLE, model, offer, problem, slo, space, workload
from tests.small_problems import SOLVED

MIXES = (((1000.0, 200.0, 1.0),), ((500.0, 16.0, 0.6), (4000.0, 200.0, 0.4)))

EXAMPLES = 2
"""Few, as each solves two problems whole; other runs of the suite draw others."""


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Llama-3.1-8B with one batch limit and one token budget, on one or two accelerators."""
    names = draw(st.sampled_from([("H100",), ("L40S", "H100"), ("A100-80",), ("MI300X", "L40S")]))
    slos: list[tuple[Slo, ...]] = [
        (slo(0.4, 0.03, 0.9),),
        (slo(1.0, 0.05, 0.99),),
        (slo(1.5, 0.05, 0.9, e2e=8.0),),
        (slo(1.0, 0.05, 0.9, itl_p99=0.06),),
    ]
    slos.append((slo(0.5, 0.03, 0.95, name="chat", share=0.6), slo(3.0, 0.1, 0.9, name="batch", share=0.4)))
    return problem(
        workload=workload(draw(st.floats(1.0, 12.0)), draw(st.sampled_from(MIXES))),
        slos=draw(st.sampled_from(slos)),
        offers=tuple(offer(name) for name in names),
        space=space(
            tensor_parallel=(1,), max_num_seqs=(64,), roles=draw(st.sampled_from([EVERY_ROLE, EVERY_ROLE[:2]]))
        ),
    )


def plan_of(given_: Problem) -> Plan | None:
    """The plan, or None where physics rules it out."""
    try:
        return small_problems.plan_of(given_)
    except InputError:
        return None


def assert_no_dearer(looser: Problem, tighter: Problem) -> None:
    """What serves the tighter problem serves the looser one."""
    tight = plan_of(tighter)
    if tight is None or tight.cost_usd_per_hour is None:
        return
    loose = plan_of(looser)
    assert (loose.bound_usd_per_hour or 0.0) <= tight.cost_usd_per_hour * (1 + 1e-9)
    assert loose.cost_usd_per_hour <= tight.cost_usd_per_hour * (1 + 1e-6)


def with_slos(given_: Problem, change: Callable[[Slo], Slo]) -> Problem:
    return replace(given_, slos=tuple(change(one) for one in given_.slos))


@settings(max_examples=4)
@given(problems(), st.floats(1.0, 5.0), st.sampled_from([tuple(Metric), *((metric,) for metric in Metric)]))
def test_looser_latencies(given_: Problem, factor: float, metrics: tuple[Metric, ...]) -> None:
    """Of all limits at once, or of one alone."""
    limits = [(number, metric) for number in range(len(given_.slos)) for metric in metrics]
    assert_no_dearer(with_looser_slos(given_, factor, limits), given_)


@pytest.mark.parametrize("ttft", [0.25, 2.0])
def test_tpot_that_exceeds_ttft(ttft: float) -> None:
    """The first decode step of a disaggregated request must not be given all that TPOT would allow."""
    apart = problem(slos=(slo(ttft, 0.05, 0.9),), space=space(tensor_parallel=(1,), roles=(Role.PREFILL, Role.DECODE)))
    costs = []
    for tpot in (0.05, 0.2, 1.0, 60.0):
        plan = plan_of(with_slos(apart, lambda one, tpot=tpot: replace(one, limits={**one.limits, Metric.TPOT: tpot})))
        costs.append(plan.cost_usd_per_hour)
    assert costs == sorted(costs, reverse=True)


@settings(max_examples=EXAMPLES)
@given(problems(), st.floats(0.0, 1.0))
def test_fewer_requests_within_their_slo(given_: Problem, easing: float) -> None:
    given_ = replace(given_, slos=given_.slos[:1] if len(given_.slos) == 1 else (replace(given_.slos[0], share=1.0),))
    assert_no_dearer(with_slos(given_, lambda one: replace(one, attainment=one.attainment * (1 - easing / 2))), given_)


@settings(max_examples=EXAMPLES)
@given(problems(), st.floats(0.1, 1.0))
def test_a_lower_rate(given_: Problem, factor: float) -> None:
    assert_no_dearer(replace(given_, workload=scale_rate(given_.workload, factor)), given_)


@settings(max_examples=EXAMPLES)
@given(problems(), st.integers(1, 4), st.one_of(st.none(), st.integers(0, 4)))
def test_more_inventory(given_: Problem, stock: int, more: int | None) -> None:
    def stocked(count: int | None) -> Problem:
        return replace(given_, offers=(replace(given_.offers[0], inventory=count), *given_.offers[1:]))

    assert_no_dearer(stocked(None if more is None else stock + more), stocked(stock))


@settings(max_examples=EXAMPLES)
@given(problems(), st.floats(0.2, 1.0))
def test_a_cheaper_gpu(given_: Problem, factor: float) -> None:
    first = given_.offers[0]
    cheaper = replace(first, usd_per_hour=first.usd_per_hour * factor)
    assert_no_dearer(replace(given_, offers=(cheaper, *given_.offers[1:])), given_)


@settings(max_examples=EXAMPLES)
@given(problems(), st.integers(2, 8))
def test_no_limit_on_gpus(given_: Problem, most: int) -> None:
    assert_no_dearer(given_, replace(given_, constraints=Constraints(max_gpus=most)))


@settings(max_examples=EXAMPLES)
@given(problems(), st.integers(1, 2))
def test_fewer_spares(given_: Problem, spares: int) -> None:
    assert_no_dearer(given_, replace(given_, constraints=Constraints(spare_replicas=spares)))


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_a_larger_batch_limit(rate: float) -> None:
    """Its logits take memory of the KV cache; the smaller limit must still be found."""
    load, slos = workload(rate, ((2500.0, 500.0, 1.0),)), (slo(10.0, 0.2, 0.95),)
    slack = problem(model=model("Qwen3-8B"), workload=load, slos=slos, offers=(offer("RTX-4090"),))
    narrow, wide = (
        replace(slack, space=space(tensor_parallel=(1,), roles=(Role.COLOCATED,), max_num_seqs=limits))
        for limits in ((32,), (32, 2048))
    )
    assert_no_dearer(wide, narrow)


def unpriced(pools: list[Pool], **changes: Any) -> list[Pool]:
    return [pool.model_copy(update={"usd_per_hour": 0.0} | changes) for pool in pools]


@settings(max_examples=EXAMPLES)
@given(problems())
def test_names_mean_nothing(given_: Problem) -> None:
    renamed = tuple(
        replace(one, accelerator=replace(one.accelerator, name=f"GPU {index}"))
        for index, one in enumerate(given_.offers)
    )
    one, other = plan_of(given_), plan_of(replace(given_, offers=renamed))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert unpriced(other.pools, accelerator="") == unpriced(one.pools, accelerator="")
        assert other.cost_usd_per_hour == one.cost_usd_per_hour
        assert other.routing == one.routing


@settings(max_examples=EXAMPLES)
@given(problems().filter(lambda one: len(one.offers) > 1))
def test_the_order_of_offers_means_nothing(given_: Problem) -> None:
    one, other = plan_of(given_), plan_of(replace(given_, offers=given_.offers[::-1]))
    assert (one is None) == (other is None)
    if one is None or other is None or one.status not in SOLVED or other.status not in SOLVED:
        return
    assert (other.bound_usd_per_hour or 0.0) <= one.cost_usd_per_hour * (1 + 1e-9)
    if {one.status, other.status} == {Status.OPTIMAL}:
        assert other.cost_usd_per_hour == pytest.approx(one.cost_usd_per_hour, rel=1e-4)
