"""What charts show are the plan's numbers, with the finding as the title; what is drawn stays inside and apart."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from optimizer.plans.plan import Plan
from reports.answers.plan import plan_document, plan_page
from reports.answers.plan_charts import (
    arrivals_chart,
    attainable,
    draw_roofline,
    fleet_points,
    fleets_charts,
    fleets_sentence,
    load_chart,
    loads,
    slo_charts,
)
from reports.asked import arrivals
from reports.charts import Box, Rect, Symbol, Text, axes, headings, line, plot
from reports.charts import Path as Line
from reports.document import Chart
from reports.figures import fleet_diagram, length_map
from reports.numbers import duration, money, percent
from reports.verdict import day_price_sentence, day_price_words, growth_sentence
from tests.report_cases import RATES, SHARES, load, markdown_of, simulated, text_of, with_routes

WITH_FLEET = ("disaggregated", "colocated", "hostile", "hundred-pools")


@pytest.fixture
def plan() -> Plan:
    return simulated(load("disaggregated"))


def chart_titled(plan: Plan, start: str) -> Chart:
    """The chart of the SLOs whose title begins so."""
    return next(chart for chart in slo_charts(plan) if chart.title.startswith(start))


def with_simulation(plan: Plan, **changes: object) -> Plan:
    assert plan.simulation is not None
    return plan.model_copy(update={"simulation": plan.simulation.model_copy(update=changes)})


# --- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_FLEET)
@pytest.mark.parametrize("is_simulated", [True, False])
def test_marks_stay_inside_and_labels_apart(name: str, is_simulated: bool) -> None:
    document = plan_document(simulated(load(name)) if is_simulated else load(name))
    charts = [chart for section in document.sections for chart in section.charts]
    assert len(charts) >= 3
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


def test_a_line_ends_at_the_edge_of_its_plot() -> None:
    frame = plot(Box(0, 0, 100, 100), (0, 10), (0, 1))
    (drawn,) = line(frame, [(0, 0.5), (4, 0.5), (8, 1.5), (9, 0.2)], "x")
    assert drawn.points == ((0, 50), (40, 50), (60, 0))
    assert line(frame, [(0, 0.5), (1, math.nan), (2, 0.5)], "x") == []
    assert line(frame, [(0, 2.0), (1, 3.0)], "x") == []


@given(st.lists(st.tuples(st.floats(0, 400), st.text("mn", min_size=1, max_size=30)), max_size=4))
@tried(deadline=None, max_examples=60)
def test_names_above_a_plot_and_below_it_never_meet(names: list[tuple[float, str]]) -> None:
    box = Box(46, 62, 390, 250)
    placed = headings([(at, text, "x") for at, text in names], box, 14)
    ticks = axes(plot(box, (0, 400), (0, 1)), sorted(names), [], "", "")
    for marks in (placed, ticks):
        boxes = [mark.box for mark in marks if isinstance(mark, Text)]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


# --- the fleet and its pools -----------------------------------------------------------------------------------------


def test_a_roofline_has_the_pools_that_have_a_place_on_log_axes(plan: Plan) -> None:
    for pool in plan.pools:
        assert pool.operating_point.mfu <= attainable(pool.operating_point) <= 1.0
    idle = plan.pools[0].operating_point.model_copy(update={"mfu": 0.0})
    pools = [plan.pools[0].model_copy(update={"operating_point": idle}), *plan.pools[1:]]
    drawn = [mark.text for mark in draw_roofline(pools).marks if isinstance(mark, Text) and mark.tone == "halo"]
    assert drawn == ["d0", "d1"]
    assert draw_roofline(pools[:1]).marks


@pytest.mark.parametrize("name", WITH_FLEET)
def test_the_diagram_accounts_for_every_pool_and_link(name: str) -> None:
    plan = load(name)
    diagram = fleet_diagram(plan)
    for role, boxes in (("prefill", diagram.prefill), ("decode", diagram.decode), ("colocated", diagram.colocated)):
        pools = sum(pool.role == role for pool in plan.pools)
        rest = [box for box in boxes if not box.engines]
        assert pools == len(boxes) - len(rest) + sum(int(box.title.split()[0]) for box in rest)
    assert len(diagram.links) + diagram.more_links == len(plan.transfers)


# --- lengths ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(1, 2e6), st.floats(1, 2e5), st.floats(0.001, 1)), min_size=1, max_size=40))
@tried(deadline=None, max_examples=60)
def test_any_histogram_is_binned_without_loss(buckets: list[tuple[float, float, float]]) -> None:
    isl, osl, share = ([row[i] for row in buckets] for i in range(3))
    figure = length_map(isl, osl, share)
    assert math.fsum(figure.shares.values()) == pytest.approx(math.fsum(share))
    assert figure.isl_edges[0] <= min(isl)
    assert max(isl) < figure.isl_edges[-1]
    assert max(len(figure.isl_edges), len(figure.osl_edges)) <= 9


def test_cells_of_lengths_have_the_share_of_their_requests_that_meets_the_slo(plan: Plan) -> None:
    routed_plan = with_routes(
        plan, ("chat", 300, 40, 0.3, 0.99), ("chat", 400, 50, 0.1, 0.91), ("chat", 3000, 40, 0.3, 0.5),
        ("batch", 300, 40, 0.3, 1.0),
    )  # fmt: skip
    chart = chart_titled(routed_plan, "chat: 2 of 3 lengths miss the goal alone, the least with 50 %")
    cells = {mark.tip: mark.tone for mark in chart.drawing.marks if isinstance(mark, Rect)}
    assert cells["256–512 input and 32–64 output tokens: 97 %"] == "cell-held"
    assert cells["2k–4k input and 32–64 output tokens: 50 %"] == "cell-missed"


# --- latencies -------------------------------------------------------------------------------------------------------


def test_distributions_are_the_simulated_ones_and_end_where_requests_never_got_a_token(plan: Plan) -> None:
    assert plan.simulation is not None
    chat = next(item for item in plan.simulation.classes if item.name == "chat")
    rows = chart_titled(plan, "chat: TTFT").table.rows
    for metric, times in (("TTFT", chat.ttft_cdf_s), ("TPOT", chat.tpot_cdf_s)):
        shown = [(row[1], row[2]) for row in rows if row[0] == metric]
        assert shown == [(percent(share), duration(at)) for at, share in zip(times, SHARES, strict=True)]
    classes = [
        item.model_copy(update={"ttft_cdf_s": [*item.ttft_cdf_s[:5], math.nan, math.nan, math.nan]})
        for item in plan.simulation.classes
    ]
    cut = chart_titled(with_simulation(plan, classes=classes), "chat: TTFT")
    assert sum(row[0] == "TTFT" for row in cut.table.rows) == 5
    assert not any("nan" in mark.text for mark in cut.drawing.marks if isinstance(mark, Text))


def test_latency_against_load_is_that_of_the_worst_class_over_its_limit(plan: Plan) -> None:
    points = loads(plan)
    assert [(point.rate, point.holds) for point in points] == [(3.0, "yes"), (6.0, "yes"), (7.8, "yes"), (8.1, "no")]
    chat, batch = plan.classes
    for point, (_, factor) in zip(points, RATES, strict=True):
        ratios = [chat.ttft_s.p95 * factor / chat.ttft_limit_s, batch.ttft_s.p90 * factor / batch.ttft_limit_s]
        assert point.ttft == pytest.approx(max(ratios))
    chart = load_chart(plan)
    assert chart is not None
    assert f"{chart.title}." == growth_sentence(plan)
    assert load_chart(with_simulation(plan, curve=plan.simulation.curve[:1])) is None
    assert load_chart(with_simulation(plan, goodput_rps=None, goodput_fails_rps=None)) is not None


@pytest.mark.parametrize(
    ("outcome", "holds", "ending"),
    [("undecided", "not proven", "the SLO is not proven."), ("misses", "no", "an SLO is missed."),
     (None, "no", "an SLO is missed.")],
)  # fmt: skip
def test_a_rate_whose_run_does_not_tell_is_not_said_to_miss(
    plan: Plan, outcome: str | None, holds: str, ending: str
) -> None:
    """The curve's points are judged by their intervals, those of older plans, which have no outcome, as they were."""
    *curve, last = plan.simulation.curve
    seen = with_simulation(plan, curve=[*curve, last.model_copy(update={"held": False, "outcome": outcome})])
    assert loads(seen)[-1].holds == holds
    assert growth_sentence(seen).endswith(f"; at 8.1 req/s {ending}")


def test_fleets_stand_where_they_cost(plan: Plan) -> None:
    points = fleet_points(plan)
    assert [point.cost for point in points] == [39.12, 49.08, 51.2, 53.08, 54.78, 57.6]
    assert [point.tone for point in points] == ["over", "good", "other", "other", "other", "other"]
    assert fleets_sentence(points) == "1 cheaper fleet simulated, none proven to meet the SLO"
    (chart,) = fleets_charts(plan)
    symbols = [mark for mark in chart.drawing.marks if isinstance(mark, Symbol)]
    assert [mark.x for mark in symbols if mark.tone == "over"] == [min(mark.x for mark in symbols)]


# --- a day -----------------------------------------------------------------------------------------------------------


def with_workload(plan: Plan, **workload: object) -> Plan:
    """The plan with these inputs of its workload."""
    source = plan.provenance.model_copy(update={"inputs": {"workload": workload}})
    return plan.model_copy(update={"provenance": source})


def test_a_daily_profile_is_drawn_and_the_mean_use_of_it_said() -> None:
    rates = [1.0] * 12 + [7.5] * 11 + [10.0]
    plan = with_workload(load("disaggregated"), diurnal={"requests_per_second_by_hour": rates, "percentile": 95})
    figure, chart = arrivals(plan), arrivals_chart(plan)
    assert figure is not None
    assert figure.use == pytest.approx((12 + 7.5 * 12) / (24 * 7.5))
    assert chart is not None
    assert chart.title == "Planned for 7.5 req/s, of which the day's mean uses 56.7 %; 1 hour of the day is above it"
    assert [float(row[1].removesuffix(" req/s")) for row in chart.table.rows] == rates
    columns = [mark for mark in chart.drawing.marks if isinstance(mark, Rect) and mark.tip]
    assert sorted(mark.tone for mark in columns) == ["over"] + ["prefill"] * 24


def test_a_token_costs_more_over_the_day_than_at_the_rate_planned_for() -> None:
    """Six hours at the peak and none else: the same dollars buy a quarter of the tokens."""
    peak = load("disaggregated")
    rates = [0.0] * 18 + [peak.demand_rps] * 6
    plan = with_workload(peak, diurnal={"requests_per_second_by_hour": rates, "percentile": 100})
    assert peak.usd_per_million_output_tokens is not None
    words = f"{money(4.0 * peak.usd_per_million_output_tokens)} over the day's mean of 1.88 req/s"
    assert day_price_sentence(plan) == f"Price per million output tokens: {words}."
    for view in (plan_page(plan).replace("&#39;", "'"), text_of(plan), markdown_of(plan)):
        assert words in " ".join(view.replace("\N{NO-BREAK SPACE}", " ").split())
    assert day_price_sentence(peak) == ""
    assert day_price_words(plan.model_copy(update={"objective": "max_goodput"})) == ""
