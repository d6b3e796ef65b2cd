"""The first screen of a view: how sure the answer is, and what disaggregation saves."""

from __future__ import annotations

from optimizer.plans.plan import Alternative, ErrorBars, Plan, Range, Status
from optimizer.plans.records import EnginePool
from reports import verdict
from reports.answers.plan import plan_page
from tests.engine_cases import engines
from tests.report_cases import load

PLAN = load("disaggregated")
ONE, NINE = (engines(count, "H200", 1, "colocated") for count in (1, 9))


def having(plan: Plan = PLAN, **changes: object) -> Plan:
    return plan.model_copy(update=changes)


def with_bars(low: float, high: float | None) -> Plan:
    """The plan whose first class has this attainment at the slow end, where it has a TTFT or is overloaded."""
    span = Range(low=0.1, high=high)
    bars = ErrorBars(ttft_s=span, tpot_s=span, attainment=Range(low=low, high=1.0))
    return having(classes=[PLAN.classes[0].model_copy(update={"error_bars": bars}), *PLAN.classes[1:]])


def alternative(kind: str, label: str, pools: list[EnginePool], cost: float | None) -> Alternative:
    status = Status.FEASIBLE if cost is not None else Status.INFEASIBLE
    return PLAN.alternatives[0].model_copy(
        update={
            "kind": kind,
            "label": label,
            "pools": pools,
            "cost_usd_per_hour": cost,
            "status": status,
            "why_not": "it takes two pools",
            "simulated": True,
        }
    )


def test_how_sure_it_is_stands_on_the_first_screen() -> None:
    slow = "If these GPUs are as slow as the worst 5 % of our predictions"
    lost = with_bars(0.0, None)
    missed = f"{slow}, 0 % of requests (95 % asked) meet the SLO"
    assert verdict.risk_sentence(lost) == f"Risk: {missed}; --confidence 0.9 plans for that."
    assert verdict.risk_sentence(having(lost, confidence=0.9)) == (
        "Figures are for GPUs as slow as the worst 5 % of our predictions (confidence: 0.9)."
    )
    assert verdict.risk_sentence(with_bars(0.99, 0.2)) == ""
    assert verdict.risk_sentence(PLAN) == ""
    assert "<b>Risk:</b> If these GPUs" in plan_page(lost)


def test_the_answer_says_what_disaggregation_saves() -> None:
    colocated = [PLAN.alternatives[0], alternative("colocated_only", "colocated only", [NINE], 12_021.875)]
    near = having(cost_usd_per_hour=11_421.875, alternatives=colocated)
    saved = "Disaggregation saves $600.00/h (5 %) against the cheapest colocated fleet found."
    assert verdict.disaggregation_sentence(near) == saved
    unproven = having(near, alternatives=[colocated[0], colocated[1].model_copy(update={"simulated": False})])
    assert verdict.disaggregation_sentence(unproven) == saved.replace("found.", "found by formula.")
    same = having(near, cost_usd_per_hour=12_021.9)
    assert verdict.disaggregation_sentence(same) == "The cheapest colocated fleet found costs the same."
    lost = having(alternatives=[alternative("colocated_only", "colocated only", [], None)])
    assert verdict.disaggregation_sentence(lost) == "No colocated fleet is possible: it takes two pools."
    apart = alternative("disaggregated_only", "disaggregated only", [ONE, NINE], 60.0)
    together = having(load("colocated"), cost_usd_per_hour=50.0, alternatives=[apart])
    dearer = "Disaggregation does not pay: the cheapest disaggregated fleet found costs $10.00/h more (+20 %)."
    assert verdict.disaggregation_sentence(together) == dearer
    assert verdict.disaggregation_sentence(having(alternatives=[])) == ""
