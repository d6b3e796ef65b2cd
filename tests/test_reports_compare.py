"""A comparison's parts sum to its price; the same plan differs in nothing; text, Markdown, HTML and JSON agree."""

import json
import math
from pathlib import Path

import pytest

from reports.answers.comparison import Comparison, compare, comparison_document, comparison_record, headline
from reports.text import json_text
from reports.views import html_view, markdown_view, terminal_view
from tests.golden_files import assert_golden
from tests.report_cases import NAMES, PLANS, load
from tests.running import within


def render_text(found: Comparison, width: int = 100) -> str:
    return terminal_view(comparison_document(found), width)


def render_markdown(found: Comparison) -> str:
    return markdown_view(comparison_document(found))


def test_a_changed_pool_says_what_changed_and_what_it_costs() -> None:
    """Three prefill engines of 999 requests each instead of two of 64."""
    plan = load("disaggregated")
    first, *others = plan.pools
    more = {"replicas": 3, "gpus": 12, "usd_per_hour": first.usd_per_hour * 1.5, "max_num_seqs": 999}
    pools = [first.model_copy(update=more), *others]
    cost = math.fsum(pool.usd_per_hour for pool in pools)
    found = compare(plan, plan.model_copy(update={"pools": pools, "cost_usd_per_hour": cost}))
    (change,) = found.pools
    assert (change.kind, change.engines, found.unchanged_pools) == ("changed", (2, 3), 2)
    assert [(item.name, item.after) for item in change.settings] == [("replicas", "3"), ("max_num_seqs", "999")]
    assert change.difference == pytest.approx(9.96)
    assert headline(found) == "+$9.96/h (+20.3 %): $59.04/h instead of $49.08/h."
    text = render_text(found)
    assert "~ changed  p0: prefill H100-SXM TP4, 2 → 3 replicas; max_num_seqs" in text
    assert "2 pools unchanged" in text


def test_a_difference_is_that_of_the_shares_shown() -> None:
    plan = load("disaggregated")
    classes = [[item.model_copy(update={"attainment": share}) for item in plan.classes] for share in (0.97961, 0.97944)]
    text = render_text(compare(*(plan.model_copy(update={"classes": items}) for items in classes)))
    assert "98 %  ✓ 97.9 %  -0.1 points" in text


def test_what_could_be_saved_is_of_plans_of_least_cost() -> None:
    """The gap of a plan of most goodput is in its goodput."""
    plan = load("disaggregated")
    plan = plan.model_copy(update={"floor_usd_per_hour": 0.75 * (plan.cost_usd_per_hour or 0.0)})
    found = compare(plan, plan.model_copy(update={"objective": "max_goodput", "gap": 0.6}))
    (saving,) = (figure for figure in found.figures if figure.name == "most that another fleet could save")
    assert saving.before == pytest.approx(0.25)
    assert saving.after is None


@pytest.mark.parametrize("before", NAMES)
@pytest.mark.parametrize("after", NAMES)
def test_pools_sum_to_the_difference_of_the_price(before: str, after: str) -> None:
    found = compare(load(before), load(after))
    total = math.fsum(change.difference for change in found.pools)
    assert total == pytest.approx((found.price.after or 0.0) - (found.price.before or 0.0), abs=1e-6)


def test_the_command_writes_each_format(tmp_path: Path) -> None:
    asked = ("compare", PLANS / "disaggregated.json", PLANS / "colocated.json")
    found = compare(load("disaggregated"), load("colocated"))
    assert headline(found) in within(*asked).stdout
    assert json.loads(within(*asked, "--format", "json").stdout) == json.loads(json_text(comparison_record(found)))
    page = html_view(comparison_document(found), comparison_record(found), "comparison")
    for name, text in (("d.html", page), ("d.md", render_markdown(found))):
        assert within(*asked, "-o", tmp_path / name).returncode == 0
        assert (tmp_path / name).read_text("utf-8") == text


@pytest.mark.parametrize("after", ["colocated", "infeasible"])
def test_golden(after: str) -> None:
    found = compare(load("disaggregated"), load(after))
    assert_golden(f"compare-disaggregated-{after}.txt", render_text(found, 100))
    assert_golden(f"compare-disaggregated-{after}.md", render_markdown(found))
