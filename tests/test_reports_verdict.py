"""The first screen of a view: what to run, with what room, how sure that is, and one row for one fleet."""

from __future__ import annotations

import pytest

from optimizer.plans.plan import Alternative, ErrorBars, Plan, Pool, Range, Status
from optimizer.plans.records import EnginePool, SimulatedRate
from reports import verdict, words
from reports.asked import offered
from reports.drawing import Path, Symbol
from reports.fleet_figure import fleet_diagram
from reports.html import render_plan
from reports.page import make_page
from reports.page_charts import cost_chart
from reports.reasons import worth_hint
from reports.sentences import (
    alternatives_sentence,
    dollars_sentence,
    growth_sentence,
    heat_sentence,
    origin_sentence,
    proof_sentence,
)
from reports.simulation_charts import draw_fleets
from reports.simulation_figures import fleet_points
from reports.sources import searched
from reports.words import nearest_miss
from tests.engine_cases import engines
from tests.report_cases import load, simulated
from tests.report_cases import markdown_of as as_markdown
from tests.report_cases import text_of as render_text

PLAN = load("disaggregated")
TWO = engines(2, "H100", 1, "colocated")
ONE, NINE = (engines(count, "H200", 1, "colocated") for count in (1, 9))


def having(plan: Plan = PLAN, **changes: object) -> Plan:
    return plan.model_copy(update=changes)


def with_bars(low: float, high: float | None) -> Plan:
    """The plan whose first class has this attainment at the slow end, where it has a TTFT or is overloaded."""
    span = Range(low=0.1, high=high)
    bars = ErrorBars(ttft_p90_s=span, tpot_p90_s=span, attainment=Range(low=low, high=1.0))
    return having(classes=[PLAN.classes[0].model_copy(update={"error_bars": bars}), *PLAN.classes[1:]])


def overloaded(pool: Pool) -> Pool:
    at = pool.operating_point
    used = dict.fromkeys(at.utilization, float("nan"))
    return pool.model_copy(update={"operating_point": at.model_copy(update={"utilization": used})})


def alternative(kind: str, label: str, pools: list[EnginePool], cost: float | None) -> Alternative:
    status = Status.FEASIBLE if cost is not None else Status.INFEASIBLE
    return PLAN.alternatives[0].model_copy(
        update={"kind": kind, "label": label, "pools": pools, "cost_usd_per_hour": cost, "status": status}
    )


@pytest.mark.parametrize(
    ("goodput", "room"),
    [
        (7.81, "with capacity for 4.1 % more load"),
        (7.5, "with no capacity for more load"),
        (75.0, "with capacity for 10 times the load"),
        (float("nan"), ""),
    ],
)
def test_the_room_is_that_of_the_goodput(goodput: float, room: str) -> None:
    plan = having(goodput_rps=goodput)
    assert verdict.room_words(plan) == room
    assert f"it meets every SLO{f', {room}' if room else ''}; the KV memory of d0 binds first." in verdict.verdict(plan)


def test_a_plan_for_goodput_says_what_of_the_demand_it_serves() -> None:
    plan = having(objective="max_goodput", demand_rps=15.0, goodput_rps=7.8, alternatives=PLAN.alternatives[:1])
    served = "7.8 req/s within the SLOs, 52 % of the demand of 15 req/s"
    assert f"for $49.08/h: it serves {served}; the KV memory" in verdict.verdict(plan)
    assert alternatives_sentence(plan) == (
        "Other kinds of fleet are compared by price; this plan seeks the most goodput"
    )
    assert make_page(plan).answer.entry[1].startswith("served of 15 req/s")
    assert cost_chart(plan) is None


def test_a_goodput_that_could_be_more_is_one_figure_everywhere() -> None:
    plan = having(objective="max_goodput", gap=0.2, status=Status.FEASIBLE)
    assert "more than 25 % more goodput" in proof_sentence(plan)
    assert [kpi.value for kpi in make_page(plan).answer.kpis if "more goodput" in kpi.note] == ["25 %"]


def test_how_sure_it_is_stands_on_the_first_screen() -> None:
    slow = "If these GPUs are as slow as the worst 5 % of our predictions"
    lost = with_bars(0.0, None)
    missed = f"{slow}, chat (0 % of requests meet it) misses its SLO"
    assert verdict.risk_sentence(lost) == f"{missed}; --confidence 0.9 plans for that."
    assert verdict.risk_sentence(having(lost, confidence=0.9)) == f"{missed}."
    assert verdict.risk_sentence(with_bars(0.99, 0.2)) == f"{slow}, this fleet still meets the SLO."
    assert verdict.risk_sentence(PLAN) == ""
    (line,) = (one for one in make_page(lost).answer.lead if one.topic == "Risk")
    assert (line.text, line.tone) == (verdict.risk_sentence(lost), "bad")
    assert [one.tone for one in make_page(with_bars(0.99, 0.2)).answer.lead if one.topic == "Risk"] == [""]
    assert all(one.text for plan in (lost, PLAN) for one in make_page(plan).answer.lead)


def test_a_pool_that_cannot_keep_up_is_said_first() -> None:
    assert verdict.overload_sentence(PLAN) == ""
    plan = having(pools=[*PLAN.pools[:2], overloaded(PLAN.pools[2])])
    said = "By formula d1 gets more requests than can be served: its queue grows while the load lasts."
    assert make_page(plan).answer.lead[0].text == said
    assert said in " ".join(render_text(plan, 200).split())
    assert "overloaded by formula" in render_plan(plan)


def test_several_limits_in_the_way_are_all_named() -> None:
    lost = load("infeasible")
    more = [lost.binding[0].model_copy(update={"where": name, "slack": -0.1}) for name in "abcd"]
    assert verdict.no_fleet_headline(having(lost, binding=more)) == (
        "No fleet in the search space meets the SLO: the budget of a, the budget of b, the budget of c and 1 more "
        "are in the way."
    )


def test_the_answer_says_what_disaggregation_saves() -> None:
    colocated = [PLAN.alternatives[0], alternative("colocated_only", "colocated only", [NINE], 12_021.875)]
    near = having(cost_usd_per_hour=11_421.875, alternatives=colocated)
    saved = "Disaggregation saves $600.00/h (5 %) against the cheapest colocated fleet found."
    assert verdict.disaggregation_sentence(near) == saved
    same = having(near, cost_usd_per_hour=12_021.9)
    assert verdict.disaggregation_sentence(same) == "The cheapest colocated fleet found costs the same."
    lost = having(alternatives=[alternative("colocated_only", "colocated only", [], None)])
    assert verdict.disaggregation_sentence(lost) == "No colocated fleet meets the SLO."
    apart = alternative("disaggregated_only", "disaggregated only", [ONE, NINE], 60.0)
    together = having(load("colocated"), cost_usd_per_hour=50.0, alternatives=[apart])
    dearer = "Disaggregation does not pay: the cheapest disaggregated fleet found costs $10.00/h more (+20 %)."
    assert verdict.disaggregation_sentence(together) == dearer
    assert verdict.disaggregation_sentence(having(alternatives=[])) == ""


def test_one_fleet_is_one_row_under_the_names_of_its_kinds() -> None:
    rows = [
        PLAN.alternatives[0],
        alternative(
            "other_engines",
            "without 1 × H100 prefill",
            [TWO, ONE],
            60.0,
        ),
        alternative("single_type", "H100 only", [ONE, TWO], 60.0),
        alternative(
            "colocated_only",
            "colocated only",
            [TWO, ONE],
            60.0,
        ),
        alternative("single_type", "L40S only", [engines(9, "L40S", 1, "colocated")], 60.0),
        alternative("single_type", "L4 only", [], None),
        alternative("disaggregated_only", "disaggregated only", [], None),
    ]
    plan = having(alternatives=rows)
    names = [words.alternative_name(row) for row in words.distinct_alternatives(plan)]
    assert names[1:] == ["H100 only, colocated only", "L40S only", "L4 only", "disaggregated only"]
    page = make_page(plan)
    assert len(page.alternatives.rows) == len(names)
    assert page.alternatives.rows[0].attainment == "96.5 %"
    assert page.alternatives.with_slack is False


def test_other_engines_are_named_by_their_fleet_not_by_what_was_forbidden() -> None:
    row = alternative("other_engines", "without 1 × H100 colocated", [engines(1, "H100", 2, "decode")], 50.0)
    assert words.alternative_name(row) == "runner-up"
    assert words.alternative_note(row) == "without 1 × H100 colocated"
    assert words.named_fleet(row) == "1 × H100 TP2 decode"
    assert words.named_fleet(PLAN.alternatives[0]) == words.alternative_name(PLAN.alternatives[0])


def test_what_a_fleet_is_without_is_told_whole_in_every_view() -> None:
    """It was cut after 100 characters, and absent in Markdown and in the terminal."""
    every = [f"{role} engines of {n} × H100" for role in ("prefill", "decode", "colocated") for n in (1, 2, 4)]
    label = f"without {', '.join(every)}"
    row = alternative("other_engines", label, [engines(1, "H100", 2, "decode")], 50.0)
    plan = having(alternatives=[PLAN.alternatives[0], row])
    for text in (render_text(plan, 100), as_markdown(plan), render_plan(plan)):
        assert label[1:] in " ".join(text.split())


def test_slack_of_latencies_has_a_column_where_it_was_simulated() -> None:
    assert "latency slack" not in render_plan(PLAN)
    assert "latency slack" in render_plan(simulated(PLAN))


def test_a_step_line_joins_only_fleets_that_hold() -> None:
    points = fleet_points(simulated(PLAN))
    cheapest = min(points, key=lambda point: point.cost)
    assert not cheapest.held
    fronts = [mark for mark in draw_fleets(points).marks if isinstance(mark, Path) and mark.tone == "front"]
    marks = {mark.tip: mark.x for mark in draw_fleets(points).marks if isinstance(mark, Symbol)}
    lost = next(x for tip, x in marks.items() if tip.startswith(cheapest.name))
    assert fronts
    assert all(x > lost for front in fronts for x, _ in front.points)


def test_the_diagram_says_which_requests_a_pool_serves() -> None:
    boxes = {box.title: box.lines for box in (*fleet_diagram(PLAN).prefill, *fleet_diagram(PLAN).decode)}
    assert boxes["p0 · prefill"][-1].startswith("100 % of requests (chat, batch): ")
    assert "% of requests (" in boxes["d0 · decode"][-1]
    assert len(fleet_diagram(load("colocated")).colocated[0].lines) == 2


def test_ties_are_said() -> None:
    pools = [pool.model_copy(update={"usd_per_hour": 10.0}) for pool in PLAN.pools[:2]]
    assert dollars_sentence(pools) == "Prefill and decode replicas take 50 % of the price each"
    alike = [
        pool.model_copy(update={"usd_per_hour": usd}) for pool, usd in zip(PLAN.pools[1:], (30.0, 10.0), strict=True)
    ]
    assert dollars_sentence(alike) == "All replicas are decode; d0 on H200-SXM takes 75 % of the price"
    assert heat_sentence(0.4, "1k", "2k", 2).endswith("40 % of requests, as often as in 1 other cell")


def test_the_command_for_more_names_one_effort() -> None:
    run = PLAN.provenance.run.model_copy(update={"command": "pdplan optimize a.yaml --effort quick -o b"})
    plan = having(provenance=PLAN.provenance.model_copy(update={"run": run}), worth=[])
    assert worth_hint(plan) == "pdplan optimize a.yaml -o b --effort thorough"


def test_tallies_of_the_search_are_sums_with_their_reasons_behind() -> None:
    facts, table = searched(
        {"shapes_dropped": {"too_big": 2, "too_small": 5}, "flows": 3, "empty": {}, "mixed": {"a": "b"}}
    )
    assert facts == (
        ("shapes dropped", "7"),
        ("kinds of request (class and length)", "3"),
        ("mixed a", "b"),
    )
    assert table.rows == (("too small", "5", "shapes dropped"), ("too big", "2", "shapes dropped"))


def test_what_was_on_offer_is_what_the_inputs_say() -> None:
    inputs = {
        "accelerators": [{"name": "H100", "price": 3.99, "inventory": 4}, {"name": "L40S"}, 7],
        "constraints": {"budget": 30.0, "max_gpus": 8, "power": None, "headroom": {"replicas": 2}},
    }
    plan = having(provenance=PLAN.provenance.model_copy(update={"inputs": inputs}))
    assert offered(plan) == (
        ("GPU types", "H100 ($3.99/h, at most 4), L40S"),
        ("budget", "at most $30.00/h"),
        ("GPUs", "at most 8 GPUs"),
        ("spare replicas of every pool", "2"),
    )
    odd = having(provenance=PLAN.provenance.model_copy(update={"inputs": {"accelerators": "x", "constraints": []}}))
    assert offered(odd) == ()


def test_room_that_a_run_shows_and_does_not_prove_is_not_said_to_be_missing() -> None:
    """The body said that the next rate is not proven, the headline that there is no room."""
    plan = simulated(load("colocated"))
    assert plan.simulation is not None
    tried = SimulatedRate(rate_rps=8.1, held=True, overloaded=False, classes=[])
    for held, told in ((True, "with no proven capacity for more load"), (False, "with no capacity for more load")):
        curve = [*plan.simulation.curve, tried.model_copy(update={"held": held})]
        found = plan.simulation.model_copy(update={"goodput_fails_rps": 8.1, "curve": curve})
        full = plan.model_copy(update={"simulation": found, "demand_rps": 7.5, "goodput_rps": 7.5})
        assert verdict.room_words(full) == told
        assert ("the SLO is not proven" in growth_sentence(full)) is held


def test_a_simulated_nearest_miss_is_not_said_to_be_modelled() -> None:
    plan = load("infeasible")
    miss = nearest_miss(plan)
    assert miss is not None
    seen = plan.model_copy(update={"alternatives": [miss.model_copy(update={"simulated": True})]})
    modelled = plan.model_copy(update={"alternatives": [miss.model_copy(update={"simulated": False})]})
    assert make_page(seen).chips[0] == "nearest miss simulated"
    assert origin_sentence(seen).startswith(
        "Latencies of the nearest miss are simulated, other figures are by formula."
    )
    assert make_page(modelled).chips[0] == "modelled, not simulated"
    assert origin_sentence(modelled).startswith("Latencies and request rates are modelled, not simulated.")


# --- what the headline rests on

REMARK = "The price of MI325X ($1.80/h) is a 3-year reserved quote."


def test_a_price_that_is_no_list_price_is_said_with_the_verdict() -> None:
    plan = having(price_remarks=[REMARK])
    assert f"{' '.join(verdict.headlines(plan))} {REMARK}" in " ".join(render_text(plan).split())
    assert as_markdown(plan).splitlines()[4] == REMARK
    assert [line.text for line in make_page(plan).answer.lead][:1] == [REMARK]
    assert REMARK in render_plan(plan)
    assert REMARK not in render_text(PLAN)


def test_what_is_proved_of_such_prices_is_so_at_these_prices() -> None:
    proved = having(floor_usd_per_hour=PLAN.cost_usd_per_hour, bound_usd_per_hour=PLAN.cost_usd_per_hour, gap=0.0)
    assert proof_sentence(proved).startswith("Cheapest fleet possible: no fleet")
    shown = proved.model_copy(update={"price_remarks": [REMARK]})
    assert proof_sentence(shown).endswith("cost less than $49.08/h at these prices under this model.")
    less = shown.model_copy(update={"floor_usd_per_hour": 1.0})
    found = "Cheapest fleet found: no fleet of one or two pools is cheaper at these prices."
    assert proof_sentence(less).startswith(found)


def test_a_fleet_that_there_was_no_time_to_simulate_may_still_be_the_cheapest_by_formula() -> None:
    plan = having(status=Status.FEASIBLE, gap=0.0, bound_usd_per_hour=PLAN.cost_usd_per_hour, warnings=["Not yet."])
    assert "no fleet of one or two pools is cheaper" in proof_sentence(plan)
    assert "Not yet." in render_text(plan)
    assert "Not yet." in as_markdown(plan)
