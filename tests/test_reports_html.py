"""The report is one well-formed, offline, inert page, the same bytes for the same plan, whatever the names in it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from costmodel.words import listed, percentage
from optimizer.plans.plan import Plan
from reports.answers.plan import plan_page
from reports.answers.plan_charts import attainable, loads, met_by_length
from reports.fleets import distinct_alternatives
from reports.question import tightest_limits
from reports.slos import tails_of_limits
from reports.text import duration, hourly, money, percent, rate, si, signed_percent
from tests.golden_files import assert_golden
from tests.report_cases import NAMES, load, markdown_of, simulated, with_accuracy, with_sensitivity

VOID = {"meta", "link", "br", "img", "wbr"}
ALLOWED = {
    "html", "head", "meta", "link", "title", "style", "body", "header", "main", "footer", "section", "nav", "a",
    "h1", "h2", "h3", "p", "span", "b", "i", "div", "dl", "dt", "dd", "ul", "li", "figure", "figcaption", "details",
    "summary", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "svg", "rect", "path", "text", "script",
    "wbr",
}  # fmt: skip


class Walker(HTMLParser):
    """Check that tags nest, and collect what the page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.twin = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.extend((tag, name, value) for name, value in attrs)
        self.ids.extend(value or "" for name, value in attrs if name == "id")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.twin += data
        elif "style" not in self.stack:
            self.text.append(data)


def walk(page: str) -> Walker:
    walker = Walker()
    walker.feed(page)
    walker.close()
    assert walker.stack == []
    return walker


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed_and_inert(name: str) -> None:
    page = plan_page(load(name))
    walker = walk(page)
    assert page.startswith("<!DOCTYPE html>")
    assert walker.tags <= ALLOWED
    assert len(walker.ids) == len(set(walker.ids))
    for tag, attribute, value in walker.attributes:
        assert not attribute.startswith("on"), (tag, attribute)
        assert attribute not in {"src", "srcset", "action", "style", "xlink:href"}, (tag, attribute)
        if attribute == "href":
            assert value.startswith("#") or value == "data:,"
    assert "http" not in re.sub(r"http-equiv", "", page.split("<body>")[0])
    assert page.count("<script") == 1
    assert '<script type="application/json"' in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_is_the_plan(name: str) -> None:
    plan = load(name)
    assert Plan.model_validate(json.loads(walk(plan_page(plan)).twin)) == plan


def test_hostile_names_are_shown_as_text() -> None:
    page = plan_page(load("hostile"))
    walker = walk(page)
    text = "".join(walker.text)
    assert "<script>alert(" in text
    assert "{{7*7}}" in text
    assert "49" not in walker.text[0]
    assert "{% raw %}" in text
    assert not {"img", "iframe", "u", "kind", "pool"} & walker.tags
    body = page.split("<body>")[1]
    assert not set(body) & set("\u202e\u2066\u2028\u2029\x1b")
    assert "A" * 100 not in body.split('<script type="application/json"')[0]


def test_a_simulated_page_has_every_section_and_its_charts_with_their_data() -> None:
    page = plan_page(simulated(load("disaggregated")))
    assert page == plan_page(simulated(load("disaggregated")))
    walker = walk(page)
    names = {"fleet", "cost-and-goodput", "slos", "what-binds", "alternatives", "sensitivity"}
    assert names | {"how-it-is-routed", "workload", "settings", "trust", "plan"} == set(walker.ids)
    links = {value[1:] for tag, attribute, value in walker.attributes if tag == "a" and attribute == "href" and value}
    assert links
    assert links <= set(walker.ids)
    labels = [value or "" for tag, name, value in walker.attributes if tag == "svg" and name == "aria-label"]
    assert page.count("<figure") == page.count("<details><summary>Data") == len(set(labels)) == 6


# --- every number with a unit that a reader sees is one of the plan's, or follows from them by a rule named here

WITH_UNIT = re.compile(
    r"[-+±<>]?\$?\d[\d,]*(?:\.\d+)?(?:/h| (?:%|req/s|µs|ms|s|min|h|[kMGTP]?B/s|[kMGT]B)(?![A-Za-z]))|[-+]?\$\d[\d,.]*\d"
)
TICKS = re.compile(r'<text [^>]*class="tick"[^>]*>[^<]*</text>')
CONSTANTS = {"730 h"}
"""Hours of the month that monthly prices are for."""


def leaves(value: object) -> Iterator[float | str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def derived(plan: Plan) -> Iterator[float]:
    """Numbers that follow from the plan's, one rule a line."""
    cost = plan.cost_usd_per_hour or math.nan
    yield cost * 730
    yield plan.goodput_rps / plan.demand_rps - 1
    yield 1 - plan.goodput_rps / plan.demand_rps
    yield from (item.slack for item in tightest_limits(plan))
    yield from (1 - item.slack for item in tightest_limits(plan))
    yield from ((row.cost_usd_per_hour or math.nan) / cost - 1 for row in distinct_alternatives(plan))
    for row in plan.alternatives:  # what disaggregation saves
        difference = (row.cost_usd_per_hour or math.nan) - cost
        yield from (difference, difference / (row.cost_usd_per_hour or math.nan))
    yield from (pool.usd_per_hour / cost for pool in plan.pools)
    for role in {pool.role for pool in plan.pools}:
        alike = [pool.usd_per_hour for pool in plan.pools if pool.role == role]
        yield math.fsum(alike) / cost
        yield from (math.fsum(sorted(alike, reverse=True)[number:]) for number in range(len(alike)))
    if plan.ttft_s is not None:
        yield from (move.seconds_per_request / plan.ttft_s.p50 for move in plan.transfers)
    yield from (attainable(pool.operating_point) for pool in plan.pools)
    sums: dict[tuple[str, ...], list[float]] = {}
    for route in plan.routing:
        for stage, fractions in {"prefill": route.prefill, "decode": route.decode}.items():
            for pool, fraction in fractions.items():
                for key in ((stage, pool), (stage, pool, route.slo_class)):
                    share, met = sums.setdefault(key, [0.0, 0.0])
                    weight = fraction * route.share
                    sums[key] = [share + weight, met + weight * route.attainment]
    yield from (number for share, met in sums.values() if share for number in (share, met / share))
    for item in plan.classes:
        routes = [route for route in plan.routing if route.slo_class == item.name and route.share > 0]
        yield from met_by_length(routes)[2].ravel().tolist() if routes else ()
    for pool in plan.pools:
        yield max(pool.operating_point.utilization.values())
    yield from (share for _, classes, _ in loads(plan) for share in tails_of_limits(classes, plan.classes).values())
    yield from moved(plan)
    yield from of_tried_fleets(plan)


def of_tried_fleets(plan: Plan) -> Iterator[float]:
    cost = plan.cost_usd_per_hour or math.nan
    tried = [*plan.simulation.one_replica_less, *plan.simulation.others] if plan.simulation else []
    yield from (row.cost_usd_per_hour / cost - 1 for row in tried)
    rows = [row.latencies for row in (*tried, *plan.alternatives)]
    for latencies in ([row.latencies for row in plan.classes], *rows):
        yield from tails_of_limits(latencies, plan.classes).values()


def moved(plan: Plan) -> Iterator[float]:
    """Prices of the sensitivity over the price at hand, and costs at them over the cost at hand."""
    found = plan.sensitivity
    for row in found.levers if found else ():
        for cost in filter(None, (row.usd_per_hour_low, row.usd_per_hour_high)):
            yield from (cost, cost / found.usd_per_hour - 1)
    for item in found.break_even if found else ():
        yield from (end / item.usd_per_gpu_hour - 1 for piece in item.pieces for end in (piece.low, piece.high))


def written(plan: Plan) -> set[str]:
    """Every form in which the plan's numbers may be written, and what the planner's own sentences say."""
    data = list(leaves(plan.model_dump(mode="json", by_alias=True)))
    forms = set(CONSTANTS)
    for value in itertools.chain((item for item in data if isinstance(item, float)), derived(plan)):
        forms |= {write(value) for write in (hourly, money, percent, rate, duration)}
        forms |= {signed_percent(value), listed(value) if math.isfinite(value) else ""}
        forms |= {si(value, unit) for unit in ("B", "B/s")}
        forms |= {signed_percent(value, 0), percentage(value)}
    for text in (item for item in data if isinstance(item, str)):
        forms.update(WITH_UNIT.findall(text))
    return forms


@pytest.mark.parametrize("is_simulated", [False, True])
@pytest.mark.parametrize("name", ["disaggregated", "colocated", "hundred-pools"])
def test_every_number_with_a_unit_is_the_plans(name: str, is_simulated: bool) -> None:
    plan = with_accuracy(with_sensitivity(simulated(load(name)))) if is_simulated else load(name)
    known = written(plan)
    page = " ".join(walk(TICKS.sub("", plan_page(plan))).text).replace("\N{NO-BREAK SPACE}", " ")
    for text in (page, markdown_of(plan).replace("&#62;", ">").replace("&#60;", "<")):
        seen = WITH_UNIT.findall(text)
        assert len(seen) > 20
        assert {number for number in seen if number not in known} == set()


# --- the plan for a pull request: whatever the names in it


@pytest.mark.parametrize("name", ["disaggregated", "infeasible", "hostile"])
def test_golden_markdown(name: str) -> None:
    assert_golden(f"plan-{name}.md", markdown_of(load(name)))
