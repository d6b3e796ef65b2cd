"""What charts show are the plan's numbers, with the finding as the title; what is drawn stays inside and apart."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.metric import Metric
from optimizer.plans.plan import Plan
from reports.answers.plan import plan_document
from reports.answers.plan_charts import load_chart, loads, met_by_length, slo_charts
from reports.answers.plan_details import simulated_fleets_section, workload_section
from reports.charts import Path as Line
from reports.charts import Rect, Text
from reports.fleets import fleet_diagram
from reports.question import day_rate
from reports.slos import tails_of_limits
from reports.verdict import goodput_sentence
from tests.deploy_cases import with_inputs
from tests.report_cases import RATES, load, simulated

WITH_FLEET = ("disaggregated", "colocated", "hostile", "hundred-pools")


@pytest.fixture
def plan() -> Plan:
    return simulated(load("disaggregated"))


def with_simulation(plan: Plan, **changes: object) -> Plan:
    return plan.model_copy(update={"simulation": plan.simulation.model_copy(update=changes)})


# --- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_FLEET)
@pytest.mark.parametrize("is_simulated", [True, False])
def test_marks_stay_inside_and_labels_apart(name: str, is_simulated: bool) -> None:
    document = plan_document(simulated(load(name)) if is_simulated else load(name))
    charts = [chart for section in document.sections for chart in section.charts]
    assert charts
    for chart in charts:
        drawing = chart.drawing
        boxes = [mark.box for mark in drawing.marks if isinstance(mark, Text)]
        for a, b in itertools.combinations(boxes, 2):
            assert not a.overlaps(b), (chart.title, a, b)
        for mark in drawing.marks:
            if isinstance(mark, Rect):
                assert mark.width >= 0
                points = [(mark.x, mark.y), (mark.x + mark.width, mark.y + mark.height)]
            else:
                points = list(mark.points) if isinstance(mark, Line) else [(mark.x, mark.y)]
            for x, y in points:
                assert -0.01 <= x <= drawing.width + 0.01
                assert -0.01 <= y <= drawing.height + 0.01


# --- lengths ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(1, 2e6), st.floats(1, 2e5), st.floats(0, 1)), min_size=1, max_size=40))
def test_every_length_is_in_a_cell(buckets: list[tuple[float, float, float]]) -> None:
    template = load("disaggregated").routing[0]
    routes = [
        template.model_copy(update={"isl": isl, "osl": osl, "share": 0.1, "attainment": met})
        for isl, osl, met in buckets
    ]
    outputs, inputs, shares = met_by_length(routes)
    for isl, osl, _ in buckets:
        row, column = (np.searchsorted(edges, length, "right") - 1 for edges, length in ((outputs, osl), (inputs, isl)))
        assert 0.0 <= shares[row, column] <= 1.0 + 1e-9
    assert max(len(inputs), len(outputs)) <= 9


# --- latencies -------------------------------------------------------------------------------------------------------


def test_latency_against_load_is_that_of_the_worst_class_over_its_limit(plan: Plan) -> None:
    points = loads(plan)
    assert [(rate, outcome) for rate, _, outcome in points] == [(3.0, "yes"), (6.0, "yes"), (7.8, "yes"), (8.1, "no")]
    chat, batch = plan.classes
    for (_, classes, _), (_, factor) in zip(points, RATES, strict=True):
        ratios = [chat.ttft_s.p95 * factor / chat.ttft_limit_s, batch.ttft_s.p90 * factor / batch.ttft_limit_s]
        assert tails_of_limits(classes, plan.classes)[Metric.TTFT] == pytest.approx(max(ratios))
    chart = load_chart(plan)
    assert f"{chart.title}." == goodput_sentence(plan)
    assert load_chart(with_simulation(plan, curve=plan.simulation.curve[:1])) is None
    assert load_chart(with_simulation(plan, goodput_rps=None, goodput_fails_rps=None)) is not None


def test_every_simulated_fleet_stands_with_its_outcome(plan: Plan) -> None:
    section = simulated_fleets_section(plan)
    costs = [float(row[2].strip("$/h")) for row in section.table.rows]
    assert costs == sorted(costs)
    assert {"meets the SLO", "misses the SLO"} <= {row[-1] for row in section.table.rows}
    assert section.title == "Other fleets that were simulated"
    assert simulated_fleets_section(load("disaggregated")).is_empty


# --- a day -----------------------------------------------------------------------------------------------------------


def test_the_axis_of_a_latency_beyond_its_limit_shows_the_percentile_of_the_goal() -> None:
    plan = simulated(load("colocated"))
    (item,), (case,) = plan.classes, plan.simulation.classes
    late = plan.simulation.model_copy(
        update={"classes": [replace(case, tpot_cdf_s=[2.0 * item.tpot_limit_s] * len(case.tpot_cdf_s))]}
    )
    chart = slo_charts(plan.model_copy(update={"simulation": late}))[0]
    curves = [mark for mark in chart.drawing.marks if isinstance(mark, Line) and mark.tone == "curve decode"]
    assert len(curves) == 1


def test_a_class_that_is_undecided_has_no_check_mark_among_the_tiles() -> None:
    (tiles,) = (section.tiles for section in plan_document(simulated(load("hostile"))).sections if section.tiles)
    assert tiles[2][0] == "undecided: 99.1 %"


@pytest.mark.parametrize("name", ["disaggregated", "hundred-pools"])
def test_hand_overs_stand_in_the_order_of_the_pools_beside_them(name: str) -> None:
    diagram = fleet_diagram(load(name))
    places = [[box.title.partition(" ")[0] for box in boxes] for boxes in (diagram.prefill, diagram.decode)]
    order = [(places[0].index(link.source), places[1].index(link.target)) for link in diagram.links]
    assert order
    assert order == sorted(order)


def test_a_daily_profile_is_told_with_the_mean_use_of_it() -> None:
    rates = [1.0] * 12 + [7.5] * 11 + [10.0]
    day = {"requests_per_second_by_hour": rates, "percentile": 95}
    plan = with_inputs(load("disaggregated"), workload={"diurnal": day})
    assert day_rate(plan) == pytest.approx((12 + 7.5 * 12) / 24)
    (demand, *_) = workload_section(plan).sections
    assert dict(demand.facts)["arrivals over time"] == (
        "1 req/s to 10 req/s over the hours of a day, planned for 7.5 req/s; the day's mean is 56.7 % of that. In 1 "
        "hour of the day the rate is above the planned one."
    )
