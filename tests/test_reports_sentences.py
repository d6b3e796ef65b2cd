"""Sentences say what the plan holds: cheapest is compared, binding is the least slack, a missed goal is not hidden."""

from pathlib import Path

import pytest

from optimizer.plan import Plan, Pool, Status
from reports import sentences, words

PLANS = Path(__file__).parent / "plans"


def load(name: str) -> Plan:
    return Plan.model_validate_json((PLANS / f"{name}.json").read_bytes())


@pytest.fixture
def plan() -> Plan:
    return load("disaggregated")


def with_class(plan: Plan, **changes: object) -> Plan:
    first = plan.classes[0].model_copy(update=changes)
    return plan.model_copy(update={"classes": [first, *plan.classes[1:]]})


def test_the_recommended_fleet_is_the_cheapest_feasible_row(plan: Plan) -> None:
    feasible = [row for row in plan.alternatives if words.is_feasible(row)]
    cheapest = min(feasible, key=lambda row: (row.cost_usd_per_hour, row.kind != "recommended"))
    assert cheapest.kind == "recommended"
    assert cheapest.cost_usd_per_hour == plan.cost_usd_per_hour


def test_the_next_choice_is_another_fleet_not_the_same_under_another_name(plan: Plan) -> None:
    assert words.feasible_rivals(plan)[0].kind == "disaggregated_only"
    assert words.rivals_of_other_fleets(plan)[0].label == "H200-SXM only"
    assert sentences.alternatives_sentence(plan) == (
        "The next choice, H200-SXM only, costs $51.20/h, +4.3 % against the recommended fleet"
    )


def test_a_cheaper_rival_shows_with_its_sign(plan: Plan) -> None:
    dear = plan.model_copy(update={"cost_usd_per_hour": 64.0})
    assert sentences.price_comparison(dear) == "+25 % against H200-SXM only at $51.20/h"
    same = plan.model_copy(update={"cost_usd_per_hour": 51.2})
    assert sentences.price_comparison(same) == "the same price as H200-SXM only at $51.20/h"
    alone = plan.model_copy(update={"alternatives": []})
    assert sentences.price_comparison(alone) == "the only kind of fleet in the search space"
    for status, words_ in ((Status.INFEASIBLE, "meets the SLOs"), (Status.TIME_LIMIT, "was found that meets the SLOs")):
        lost = plan.alternatives[-1].model_copy(update={"status": status, "pools": [], "cost_usd_per_hour": None})
        lonely = plan.model_copy(update={"alternatives": [lost]})
        assert sentences.price_comparison(lonely) == f"no other kind of fleet {words_}"


def test_binding_is_the_least_slack(plan: Plan) -> None:
    least = words.tightest(plan)
    assert least is not None
    assert least.slack == min(item.slack for item in plan.binding)
    assert [item.slack for item in words.by_slack(plan)] == sorted(item.slack for item in plan.binding)
    assert "KV memory is the tightest limit with 3.5 % to spare" in sentences.verdict(plan)


def test_a_missed_goal_is_said(plan: Plan) -> None:
    missed = with_class(plan, attainment=0.94)
    assert "every SLO holds" in sentences.verdict(plan)
    assert "chat misses its SLO" in sentences.verdict(missed)
    assert sentences.slo_sentence(missed).startswith("1 of 2 classes miss their goal: chat is tightest, 94 %")
    unknown = with_class(plan, attainment=float("nan"))
    assert [item.name for item in words.missed_classes(unknown)] == ["chat"]


def test_proof(plan: Plan) -> None:
    assert sentences.proof_sentence(plan) == "A cheaper fleet may exist, by at most 1.5 % (bound $48.34/h)."
    assert sentences.proof_sentence(load("colocated")).startswith("Proved: no fleet of the search space is cheaper")
    unknown = plan.model_copy(update={"gap": None})
    assert sentences.proof_sentence(unknown) == "No lower bound on the price is known."


def test_the_fleet_in_words(plan: Plan) -> None:
    assert words.fleet_words(plan) == (
        "2 prefill engines of 4 × H100-SXM, 3 decode engines of 2 × H200-SXM and 1 decode engine of 4 × H100-SXM"
    )
    assert words.fleet_words(load("hundred-pools")).startswith("488 engines in 100 pools on 652 × H100-SXM")
    assert words.split_words(load("colocated").pools[0]) == "TP1 EP8 DP8"


def test_shares_in_sentences_are_those_of_the_plan(plan: Plan) -> None:
    decode = sum(pool.usd_per_hour for pool in plan.pools if pool.role == "decode")
    assert decode / plan.cost_usd_per_hour == pytest.approx(0.594, abs=5e-4)
    assert sentences.dollars_sentence(plan.pools) == "Decode engines take 59.4 % of the price"
    assert sentences.roofline_sentence(plan.pools) == (
        "Prefill steps are bound by compute and decode steps by memory bandwidth"
    )
    assert sentences.split_sentence(plan.pools) == (
        "Largest part of a step: matrix products in prefill (79 %) and matrix products in decode (51 %)"
    )
    assert sentences.growth_sentence(plan).endswith("up to 7.81 req/s, +4.1 % against the demand.")


def bound(pool: Pool, by: str) -> Pool:
    return pool.model_copy(update={"operating_point": pool.operating_point.model_copy(update={"bound_by": by})})


def test_the_roofline_says_which_pools_it_speaks_of(plan: Plan) -> None:
    prefill, first, second = plan.pools
    alike = [bound(pool, "host") for pool in plan.pools]
    assert sentences.roofline_sentence(alike) == "Prefill steps and decode steps are bound by host time"
    assert sentences.roofline_sentence([prefill, first, bound(second, "network")]) == (
        "Prefill steps are bound by compute and decode steps of d0 by memory bandwidth"
    )
    assert sentences.roofline_sentence([]) == "No pool runs"


def test_no_fleet_says_what_is_in_the_way_and_what_to_relax() -> None:
    plan = load("infeasible")
    assert sentences.verdict(plan) == "No fleet of the search space meets the SLOs: the budget is in the way."
    assert [sentences.relax_sentence(item) for item in words.violated(plan)] == [
        "Relax the budget from $30.00/h to $49.08/h (+63.6 %).",
        "Relax the GPU inventory of H200-SXM from 4 GPUs to 6 GPUs (+50 %).",
    ]
    miss = words.nearest_miss(plan)
    assert miss is not None
    assert miss.kind == "nearest_miss"
    assert "$49.08/h" in sentences.miss_sentence(miss)
    late = plan.model_copy(update={"status": Status.TIME_LIMIT})
    assert sentences.headline(late).startswith(
        "No fleet was found that meets the SLOs; that there is none is not proven"
    )
    bare = plan.model_copy(update={"binding": [], "alternatives": []})
    assert sentences.headline(bare) == "No fleet of the search space meets the SLOs."
