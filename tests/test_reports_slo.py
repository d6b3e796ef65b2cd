"""The SLO check shows the simulation's numbers, says where there is none, and draws nothing across."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from optimizer.fleets.binding import attainment_binding
from optimizer.plans.plan import Plan, Worth
from reports.answers.plan import plan_document, plan_page
from reports.answers.plan_charts import (
    arrivals_chart,
    fleets_chart,
    fleets_sentence,
    held_cell,
    knee_sentence,
    slo_charts,
    why_charts,
)
from reports.answers.plan_details import (
    hand_over_sentence,
    origins_table,
    pools_section,
    settings_table,
    simulation_sections,
)
from reports.asked import arrivals
from reports.deploy.readme import settings
from reports.drawing import Box, Drawing, Rect, Text, axes, headings, line, plot, round_steps
from reports.drawing import Path as Line
from reports.figures import (
    bucket_maps,
    distributions,
    fleet_points,
    load_figure,
    undominated,
    worst_bucket,
    worth_costs,
)
from reports.numbers import duration, money, percent, rate
from reports.verdict import cost_sentence, day_price_words, growth_sentence, slo_result_sentence
from reports.words import tightest_first
from tests.deploy_cases import plan_of
from tests.report_cases import RATES, SHARES, load, simulated, with_routes
from tests.report_cases import markdown_of as as_markdown
from tests.report_cases import text_of as as_text


@pytest.fixture
def plan() -> Plan:
    return simulated(load("disaggregated"))


def rows_of(plan: Plan, title: str) -> tuple[tuple[str, ...], ...]:
    """Rows of the table of a section on the simulation."""
    (table,) = (section.table for section in simulation_sections(plan) if section.title.startswith(title))
    assert table is not None
    return table.rows


def texts(drawing: Drawing) -> list[str]:
    return [mark.text for mark in drawing.marks if isinstance(mark, Text)]


def test_distributions_are_the_simulated_ones(plan: Plan) -> None:
    chat = next(item for item in distributions(plan) if item.name == "chat")
    one = next(item for item in plan.simulation.classes if item.name == "chat")
    ttft, tpot = chat.panels
    assert list(ttft.points) == list(zip(one.ttft_cdf_s, SHARES, strict=True))
    assert list(tpot.points) == list(zip(one.tpot_cdf_s, SHARES, strict=True))
    assert ttft.formula[1] == (one.by_formula.ttft_s.p90, 0.9)
    assert (ttft.limit, tpot.limit) == (plan.classes[0].ttft_limit_s, plan.classes[0].tpot_limit_s)


def test_a_distribution_ends_where_requests_never_got_a_token(plan: Plan) -> None:
    classes = [
        one.model_copy(update={"ttft_cdf_s": [*one.ttft_cdf_s[:5], math.nan, math.nan, math.nan]})
        for one in plan.simulation.classes
    ]
    cut = plan.model_copy(update={"simulation": plan.simulation.model_copy(update={"classes": classes})})
    assert [len(item.panels[0].points) for item in distributions(cut)] == [5, 5]
    assert "nan" not in "".join(itertools.chain.from_iterable(texts(c.drawing) for c in slo_charts(cut)))


def test_latency_against_load_is_that_of_the_worst_class_over_its_limit(plan: Plan) -> None:
    figure = load_figure(plan)
    assert figure is not None
    assert [(point.rate, not point.missed) for point in figure.points] == [
        (3.0, True),
        (6.0, True),
        (7.8, True),
        (8.1, False),
    ]
    chat, batch = plan.classes
    for point, (_, factor) in zip(figure.points, RATES, strict=True):
        ratios = [chat.ttft_s.p95 * factor / chat.ttft_limit_s, batch.ttft_s.p90 * factor / batch.ttft_limit_s]
        assert point.ttft == pytest.approx(max(ratios))
    assert (figure.demand, figure.goodput, figure.fails) == (7.5, 7.8, 8.1)
    chart = next(chart for chart in slo_charts(plan) if chart.drawing.label.startswith("latency over limit"))
    assert f"{chart.title}." == growth_sentence(plan)


def test_a_rate_that_a_run_held_is_not_one_that_misses_however_it_is_rounded(plan: Plan) -> None:
    """The curve and the rate above the goodput come from products in another order: their last digits differ."""
    found = plan.simulation
    assert found is not None
    curve = [*found.curve[:-1], found.curve[-1].model_copy(update={"rate_rps": 8.1 * (1 + 2e-16), "held": True})]
    assert curve[-1].rate_rps != found.goodput_fails_rps
    held = plan.model_copy(update={"simulation": found.model_copy(update={"curve": curve})})
    figure = load_figure(held)
    assert figure is not None
    assert growth_sentence(held).endswith("; at 8.1 req/s the SLO is not proven.")
    assert growth_sentence(plan).endswith("; at 8.1 req/s an SLO is missed.")


def test_the_tightest_class_is_the_one_that_uses_most_of_its_permitted_misses(plan: Plan) -> None:
    """2.3 % missed of 10 % permitted is nearer to the goal than 0.1 % of 5 %, and yet further above it."""
    first, second = plan.classes
    classes = [
        first.model_copy(update={"name": "interactive", "attainment": 0.977, "attainment_goal": 0.9}),
        second.model_copy(update={"name": "batch", "attainment": 0.999, "attainment_goal": 0.95}),
    ]
    other = simulated(plan.model_copy(update={"classes": classes}))
    assert slo_result_sentence(other).startswith(
        "Meets every SLO: interactive is tightest with 97.7 % of requests (90 % asked)"
    )
    assert [item.name for item in tightest_first(other)] == ["interactive", "batch"]
    assert [figure.name for figure in distributions(other)] == ["interactive", "batch"]


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.5, 0.99)), min_size=2, max_size=5))
def test_the_tightest_class_has_the_least_slack_of_permitted_misses(rows: list[tuple[float, float]]) -> None:
    plan = load("disaggregated")
    changes = [{"name": f"c{n}", "attainment": held, "attainment_goal": goal} for n, (held, goal) in enumerate(rows)]
    classes = [plan.classes[0].model_copy(update=change) for change in changes]
    first = tightest_first(plan.model_copy(update={"classes": classes}))[0]
    slacks = {
        item.name: attainment_binding("", 1 - item.attainment, 1 - item.attainment_goal).slack for item in classes
    }
    assert slacks[first.name] == pytest.approx(min(slacks.values()), abs=1e-12)


def test_a_rate_whose_run_does_not_tell_is_not_said_to_miss(plan: Plan) -> None:
    """The curve's points are judged by their intervals, those of older plans, which have no outcome, as they were."""
    found = plan.simulation
    assert found is not None
    *curve, last = found.curve
    cells = {}
    for outcome in ("undecided", "misses", None):
        points = [*curve, last.model_copy(update={"held": False, "outcome": outcome})]
        seen = plan.model_copy(update={"simulation": found.model_copy(update={"curve": points})})
        figure = load_figure(seen)
        assert figure is not None
        cells[outcome] = held_cell(figure, figure.points[-1]), growth_sentence(seen).partition("8.1 req/s ")[2]
    assert cells == {
        "undecided": ("not proven", "the SLO is not proven."),
        "misses": ("no", "an SLO is missed."),
        None: ("no", "an SLO is missed."),
    }


def test_fleets_that_are_only_unproven_are_not_said_to_miss(plan: Plan) -> None:
    found = plan.simulation
    assert found is not None
    less = found.one_replica_less[0].model_copy(update={"outcome": "undecided"})
    open_ = plan.model_copy(update={"simulation": found.model_copy(update={"one_replica_less": [less]})})
    assert fleets_sentence(fleet_points(open_)) == "1 cheaper fleet simulated, of which none is proven to meet the SLO"
    chart = fleets_chart(open_)
    assert chart is not None
    named = {row[0]: row[-1] for row in chart.table.rows}
    assert named["p0: one replica fewer"] == "not proven"
    assert {row[0]: row[-1] for row in rows_of(open_, "Other fleets")}["p0: one replica fewer"] == "not proven"


def test_fleets_stand_where_they_cost_and_the_front_only_falls(plan: Plan) -> None:
    points = fleet_points(plan)
    assert [point.cost for point in points] == [39.12, 49.08, 51.2, 53.08, 54.78, 57.6]
    assert [point.held for point in points] == [False, True, True, True, True, True]
    assert [point.recommended for point in points].index(True) == 1
    assert fleets_sentence(points) == "1 cheaper fleet simulated, of which none meets the SLO"
    for metric in ("ttft", "tpot"):
        front = undominated(points, metric)
        assert [p.cost for p in front] == sorted(p.cost for p in front)
        heights = [getattr(p, metric) for p in front]
        assert heights == sorted(heights, reverse=True)
        assert undominated(front, metric) == front


def test_buckets_hold_the_share_of_their_requests(plan: Plan) -> None:
    routed = with_routes(
        plan, ("chat", 300, 40, 0.3, 0.99), ("chat", 400, 50, 0.1, 0.91), ("chat", 3000, 40, 0.3, 0.5),
        ("batch", 300, 40, 0.3, 1.0),
    )  # fmt: skip
    chat = next(item for item in bucket_maps(routed) if item.name == "chat")
    assert chat.lengths.shares == [pytest.approx((0.3 * 0.99 + 0.1 * 0.91) / 0.4), 0.5]
    worst = worst_bucket(routed)
    assert worst is not None
    assert (worst.isl, worst.attainment) == (3000, 0.5)
    facts = simulation_sections(routed)[0].facts
    assert ("bucket with the least slack", "50 % meet the SLO (chat, 3,000 in, 40 out)") in facts
    titles = [chart.title for chart in slo_charts(routed)]
    assert "chat: 2 of 3 lengths miss the goal alone, the least with 50 %" in titles


def test_simulation_and_formulas_stand_side_by_side(plan: Plan) -> None:
    row = rows_of(plan, "Simulation against")[0]
    one = plan.simulation.classes[0]
    assert row[:3] == (
        "chat",
        percent(one.attainment),
        f"{percent(one.attainment_low)} to {percent(one.attainment_high)}",
    )
    assert row[4:6] == (f"p95 {duration(one.ttft_s.p95)}", duration(one.by_formula.ttft_s.p95))


def test_every_figure_of_the_simulation_is_on_the_page(plan: Plan) -> None:
    page = plan_page(plan).replace("\N{NO-BREAK SPACE}", " ")
    found = plan.simulation
    for text in (
        "20,000 in 2 runs, seed 7", "41.2 ms", "0.0123", rate(found.goodput_rps), rate(found.goodput_fails_rps),
        "4,321 requests", "p0: one replica fewer", "$39.12/h",
        "fleets simulated", "repairs of fleets that missed the SLO, before one met it",
    ):  # fmt: skip
        assert text in page


def test_a_plan_that_was_not_simulated_has_only_the_shares_by_length() -> None:
    bare = load("disaggregated")
    assert simulation_sections(bare) == ()
    assert [chart.title.partition(":")[0] for chart in slo_charts(bare)] == ["chat", "batch"]
    assert fleets_chart(bare) is None
    assert load_figure(bare) is None
    assert distributions(bare) == ()


def test_the_knee_is_where_the_most_is_served_for_the_time() -> None:
    plan = simulated(load("disaggregated"))
    figure = load_figure(plan)
    assert figure is not None
    powers = {point.rate: point.rate / point.time for point in figure.points}
    assert max(powers, key=lambda rate: powers[rate]) == figure.points[2].rate == figure.knee
    assert knee_sentence(figure).startswith("Knee 7.8 req/s: ")
    assert plan.simulation is not None
    rising = plan.simulation.model_copy(update={"curve": plan.simulation.curve[:2]})
    unbent = load_figure(plan.model_copy(update={"simulation": rising}))
    assert unbent is not None
    assert unbent.knee is None
    assert "no knee" in knee_sentence(unbent)


def test_an_interrupted_search_has_a_curve_but_no_goodput(plan: Plan) -> None:
    unknown = plan.simulation.model_copy(update={"goodput_rps": None, "goodput_fails_rps": None})
    figure = load_figure(plan.model_copy(update={"simulation": unknown}))
    assert figure is not None
    assert figure.goodput is None
    few = plan.simulation.model_copy(update={"curve": plan.simulation.curve[:1]})
    assert load_figure(plan.model_copy(update={"simulation": few})) is None


@pytest.mark.parametrize("name", ["disaggregated", "colocated", "hostile", "hundred-pools"])
def test_marks_stay_inside_and_labels_apart(name: str) -> None:
    document = plan_document(simulated(load(name)))
    for chart in (chart for section in document.sections for chart in section.charts):
        drawing = chart.drawing
        boxes = [mark.box for mark in drawing.marks if isinstance(mark, Text)]
        for a, b in itertools.combinations(boxes, 2):
            assert not a.overlaps(b), (chart.title, a, b)
        for mark in drawing.marks:
            if isinstance(mark, Rect):
                points = [(mark.x, mark.y), (mark.x + mark.width, mark.y + mark.height)]
            elif isinstance(mark, Line):
                points = list(mark.points)
            else:
                points = [(mark.x, mark.y)]
            for x, y in points:
                assert -0.01 <= x <= drawing.width + 0.01
                assert -0.01 <= y <= drawing.height + 0.01


def test_a_line_ends_at_the_edge_of_its_plot() -> None:
    frame = plot(Box(0, 0, 100, 100), (0, 10), (0, 1))
    (drawn,) = line(frame, [(0, 0.5), (4, 0.5), (8, 1.5), (9, 0.2)], "x")
    assert drawn.points == ((0, 50), (40, 50), (60, 0))
    assert line(frame, [(0, 0.5), (1, math.nan), (2, 0.5)], "x") == []
    assert line(frame, [(0, 2.0), (1, 3.0)], "x") == []


@given(high=st.floats(1e-6, 1e9), most=st.integers(1, 9))
@tried(deadline=None, max_examples=100)
def test_round_steps_are_few_even_and_within(high: float, most: int) -> None:
    steps = round_steps(high, most)
    assert len(steps) <= most + 1
    assert steps[0] == 0
    assert steps[-1] <= high * (1 + 1e-5)
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-4) for gap in gaps)


@given(st.lists(st.tuples(st.floats(0, 400), st.text("mn", min_size=1, max_size=30)), max_size=4))
@tried(deadline=None, max_examples=60)
def test_names_above_a_plot_and_below_it_never_meet(names: list[tuple[float, str]]) -> None:
    box = Box(46, 62, 390, 250)
    placed = headings([(at, text, "x") for at, text in names], box, 14)
    ticks = axes(plot(box, (0, 400), (0, 1)), sorted(names), [], "", "")
    for marks in (placed, ticks):
        boxes = [mark.box for mark in marks if isinstance(mark, Text)]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def stated(plan: Plan, **workload: object) -> Plan:
    """The plan with these inputs of its workload."""
    source = plan.provenance.model_copy(update={"inputs": {"workload": workload}})
    return plan.model_copy(update={"provenance": source})


def test_a_daily_profile_is_drawn_and_the_mean_use_of_it_said() -> None:
    rates = [1.0] * 12 + [7.5] * 11 + [10.0]
    plan = stated(load("disaggregated"), diurnal={"requests_per_second_by_hour": rates, "percentile": 95})
    figure = arrivals(plan)
    assert figure is not None
    assert figure.use == pytest.approx((12 + 7.5 * 12) / (24 * 7.5))
    chart = arrivals_chart(plan)
    assert chart is not None
    assert chart.title == ("Planned for 7.5 req/s, of which the day's mean uses 56.7 %; 1 hour of the day is above it")
    assert [float(row[1].removesuffix(" req/s")) for row in chart.table.rows] == rates
    columns = [mark for mark in chart.drawing.marks if isinstance(mark, Rect) and mark.tip]
    assert sorted(mark.tone for mark in columns) == ["over"] + ["prefill"] * 24


def test_a_token_costs_more_over_the_day_than_at_the_rate_planned_for() -> None:
    """Six hours at the peak and none else: the same dollars buy a quarter of the tokens."""
    once = load("disaggregated")
    rates = [0.0] * 18 + [once.demand_rps] * 6
    plan = stated(once, diurnal={"requests_per_second_by_hour": rates, "percentile": 100})
    price = once.usd_per_million_output_tokens
    assert price is not None
    said = f"{money(4.0 * price)} over the day's mean of 1.88 req/s"
    assert day_price_words(plan) == said
    assert cost_sentence(plan).endswith(f"at the demand of 7.5 req/s, {said}.")
    for view in (plan_page(plan).replace("&#39;", "'"), as_text(plan), as_markdown(plan)):
        assert said in " ".join(view.replace("\N{NO-BREAK SPACE}", " ").replace("\\", "").split())
    assert day_price_words(once) == ""
    assert day_price_words(plan.model_copy(update={"objective": "max_goodput"})) == ""


@pytest.mark.parametrize(
    "profile",
    [None, "often", {}, {"requests_per_second_by_hour": [1.0] * 23}, {"requests_per_second_by_hour": ["x"] * 24}],
)
def test_without_a_whole_profile_there_is_no_chart_of_a_day(profile: object) -> None:
    assert arrivals_chart(stated(load("disaggregated"), diurnal=profile)) is None


def test_pools_hand_overs_and_origins_are_the_plans(plan: Plan) -> None:
    table = pools_section(plan).table
    assert table is not None
    rows = table.rows
    assert [row[1] for row in rows] == ["$19.92/h", "$19.20/h", "$9.96/h"]
    assert rows[0][2] == percent(plan.pools[0].usd_per_hour / plan.cost_usd_per_hour)
    longest = max(move.seconds_per_request for move in plan.transfers)
    assert duration(longest) in hand_over_sentence(plan)
    assert percent(longest / plan.ttft_s.p50) in hand_over_sentence(plan)
    assert hand_over_sentence(load("colocated")) == ""
    for name, bought, *numbers in origins_table(plan).rows:
        assert sum(map(int, numbers)) > 1
        assert bought == ("yes" if name in plan.gpus else "no")


def test_settings_without_a_known_model_have_no_reasons(plan: Plan) -> None:
    assert settings_table(plan).rows == ()
    assert settings_table(load("infeasible")).rows == ()


def test_what_features_are_worth_is_drawn_where_it_was_asked_for(plan: Plan) -> None:
    rows = [
        Worth(
            feature="batching", with_usd_per_hour=40.0, without_usd_per_hour=400.0, sentence="Without batching: +900%."
        ),
        Worth(feature="chunking", with_usd_per_hour=40.0, without_usd_per_hour=None, sentence="No fleet without it."),
    ]
    chart = why_charts(plan.model_copy(update={"worth": rows}))[-1]
    assert chart.title == "No fleet without it."
    assert [row[1] for row in chart.table.rows] == ["$400.00/h", "–"]
    assert [bar.value for bar in worth_costs(plan.model_copy(update={"worth": rows}))] == [40.0, 400.0, None]
    assert len(why_charts(plan)) == 2


def test_settings_are_those_of_the_deployment_with_their_reasons() -> None:
    plan = plan_of()
    assert [row[:2] for row in settings_table(plan).rows] == [(row.setting, row.value) for row in settings(plan)]
    page = plan_page(plan)
    assert "Why each setting is stated" in page
    assert "NixlConnector" in page
    own = plan.provenance.model_copy(update={"inputs": plan.provenance.inputs | {"catalog": "my.yaml"}})
    assert settings_table(plan.model_copy(update={"provenance": own})).rows == ()
