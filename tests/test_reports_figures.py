"""Figure data equals the plan's numbers, and what is drawn stays inside and apart."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.plans.plan import Plan, WorkloadSummary
from reports import figures
from reports.charts import draw_costs, draw_heat, draw_roofline, draw_split
from reports.drawing import Box, Drawing, Linear, Log, Rect, Symbol, Text
from reports.drawing import Path as Line
from reports.figures import fleet_diagram, routed

PLANS = Path(__file__).parent / "plans"
FOUND = ("disaggregated", "colocated", "hostile", "hundred-pools")


def load(name: str) -> Plan:
    return Plan.model_validate_json((PLANS / f"{name}.json").read_bytes())


@pytest.fixture
def plan() -> Plan:
    return load("disaggregated")


def drawings(plan: Plan) -> list[Drawing]:
    drawn = [draw_costs(figures.alternative_costs(plan), plan.cost_usd_per_hour)]
    drawn += [draw_roofline(figures.roofline(plan))]
    return [*drawn, draw_split(plan.pools), draw_heat(figures.heat_map(plan.workload))]


def test_alternatives_cost_what_the_plan_says_and_infeasible_ones_have_no_bar(plan: Plan) -> None:
    bars = figures.alternative_costs(plan)
    assert bars[0].value == plan.cost_usd_per_hour
    assert [bar.value for bar in bars] == [49.08, 51.2, 54.78, 57.6, None]  # one fleet under two names is one


def test_roofline_points_lie_on_or_below_their_roof(plan: Plan) -> None:
    points = figures.roofline(plan)
    for pool, point in zip(sorted(plan.pools, key=lambda p: -p.usd_per_hour), points, strict=True):
        assert (point.intensity, point.mfu) == (pool.operating_point.arithmetic_intensity, pool.operating_point.mfu)
        assert point.attainable == min(1.0, point.intensity / point.ridge)
        assert point.mfu <= point.attainable
    assert {point.ridge for point in points} == {pool.operating_point.ridge_point for pool in plan.pools}


def test_a_point_without_a_place_on_log_axes_is_left_out(plan: Plan) -> None:
    idle = plan.pools[0].operating_point.model_copy(update={"mfu": 0.0})
    pools = [plan.pools[0].model_copy(update={"operating_point": idle}), *plan.pools[1:]]
    points = figures.roofline(plan.model_copy(update={"pools": pools}))
    assert [point.pool for point in points] == ["d0", "d1"]
    nothing = figures.roofline(plan.model_copy(update={"pools": pools[:1]}))
    assert draw_roofline(nothing).marks


@pytest.mark.parametrize("name", FOUND)
def test_the_heat_map_keeps_every_request(name: str) -> None:
    figure = figures.heat_map(load(name).workload)
    assert math.fsum(figure.shares) == pytest.approx(1.0, abs=1e-9)
    assert max(map(len, figure.labels)) <= 8
    share, row, column = figure.peak
    assert figure.cells[-row][-column] == share


@given(st.lists(st.tuples(st.floats(1, 2e6), st.floats(1, 2e5), st.floats(0.001, 1)), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_any_histogram_is_binned_without_loss(buckets: list[tuple[float, float, float]]) -> None:
    isl, osl, share = ([row[i] for row in buckets] for i in range(3))
    load_ = WorkloadSummary(
        request_rate_rps=1, burstiness=1, prefix_hit_share=0, mean_isl=1, mean_osl=1, max_tokens=1,
        isl=isl, osl=osl, share=share,
    )  # fmt: skip
    figure = figures.heat_map(load_)
    assert math.fsum(figure.shares) == pytest.approx(math.fsum(share))
    assert figure.isl_edges[0] <= min(isl)
    assert max(isl) < figure.isl_edges[-1]


def test_routing_sums_by_stage(plan: Plan) -> None:
    shares = routed(plan)
    for stage in ("prefill", "decode"):
        assert math.fsum(row.share for row in shares if row.stage == stage) == pytest.approx(1.0)
    prefill = [row for row in shares if row.stage == "prefill"]
    assert {row.slo_class for row in prefill} == {route.slo_class for route in plan.routing}
    assert math.fsum(row.share * row.isl for row in prefill) == pytest.approx(plan.workload.mean_isl)
    assert [row.stage for row in routed(load("colocated"))] == ["prefill and decode"]


@pytest.mark.parametrize("name", FOUND)
def test_the_diagram_accounts_for_every_pool_and_link(name: str) -> None:
    plan = load(name)
    diagram = fleet_diagram(plan)
    for role, boxes in (("prefill", diagram.prefill), ("decode", diagram.decode), ("colocated", diagram.colocated)):
        pools = sum(pool.role == role for pool in plan.pools)
        rest = [box for box in boxes if not box.engines]
        assert pools == len(boxes) - len(rest) + sum(int(box.title.split()[0]) for box in rest)
    assert len(diagram.links) + diagram.more_links == len(plan.transfers)


@pytest.mark.parametrize("name", FOUND)
def test_links_stand_in_the_order_of_the_pools_that_they_join(name: str) -> None:
    """Whatever is sent over them: an arrow points to the box beside it."""
    plan = load(name)
    sent = {transfer.target: rate for rate, transfer in enumerate(plan.transfers, 1)}  # other pools get most in turn
    for turn in (1.0, -1.0):
        transfers = [
            transfer.model_copy(update={"requests_per_second": 100.0 + turn * sent[transfer.target]})
            for transfer in plan.transfers
        ]
        diagram = fleet_diagram(plan.model_copy(update={"transfers": transfers}))
        prefill, decode = (
            [box.title.partition(" · ")[0] for box in boxes] for boxes in (diagram.prefill, diagram.decode)
        )
        drawn = [link for link in diagram.links if link.source in prefill and link.target in decode]
        places = [(prefill.index(link.source), decode.index(link.target)) for link in drawn]
        assert places == sorted(places)


def test_spare_engines_are_drawn_apart(plan: Plan) -> None:
    d0 = fleet_diagram(plan).decode[0]
    assert d0.engines == ((2, False), (2, False), (2, True))


@pytest.mark.parametrize("name", FOUND)
def test_marks_stay_inside_their_drawing(name: str) -> None:
    for drawing in drawings(load(name)):
        for mark in drawing.marks:
            if isinstance(mark, Rect):
                assert mark.width >= 0
                points = [(mark.x, mark.y), (mark.x + mark.width, mark.y + mark.height)]
            elif isinstance(mark, Line):
                points = list(mark.points)
            elif isinstance(mark, Symbol):
                points = [(mark.x, mark.y)]
            else:
                points = [(mark.x, mark.y)]
            for x, y in points:
                assert -0.01 <= x <= drawing.width + 0.01
                assert -0.01 <= y <= drawing.height + 0.01


@pytest.mark.parametrize("name", ["disaggregated", "colocated", "hundred-pools"])
def test_labels_of_a_roofline_never_collide(name: str) -> None:
    drawing = draw_roofline(figures.roofline(load(name)))
    boxes = [mark.box for mark in drawing.marks if isinstance(mark, Text)]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


def test_scales() -> None:
    assert Linear(0, 10, 0, 100)(-5) == 0
    assert Linear(3, 3, 10, 20)(3) == 10
    assert Log(1, 1000, 0, 30)(10) == pytest.approx(10)
    assert Log(1, 1000, 0, 30)(0.1) == 0
    assert Box(0, 0, 1, 1).overlaps(Box(0.5, 0.5, 2, 2))
    assert not Box(0, 0, 1, 1).overlaps(Box(1, 0, 2, 1))
