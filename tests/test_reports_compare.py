"""A comparison's parts sum to its price; the same plan differs in nothing; text, Markdown, HTML and JSON agree."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from optimizer.plans.plan import Plan, Pool
from pdplan.cli import cli
from pdplan.console import Console
from reports.answers.comparison import Comparison, compare, comparison_document, comparison_record, headline
from reports.text import json_text
from reports.views import html_view, markdown_view, terminal_view
from tests.golden_files import assert_golden
from tests.report_cases import NAMES, PLANS, load


def render_text(found: Comparison, width: int = 100) -> str:
    return terminal_view(comparison_document(found), width)


def render_markdown(found: Comparison) -> str:
    return markdown_view(comparison_document(found))


def priced(plan: Plan, pools: list[Pool]) -> Plan:
    cost = math.fsum(pool.usd_per_hour for pool in pools)
    return plan.model_copy(update={"pools": pools, "cost_usd_per_hour": cost})


def one_more_engine() -> tuple[Plan, Plan]:
    """A plan, and the same with three prefill engines of 128 requests each instead of two of 64."""
    plan = load("disaggregated")
    first = plan.pools[0]
    more = first.model_copy(
        update={"replicas": 3, "gpus": 12, "usd_per_hour": first.usd_per_hour * 1.5, "max_num_seqs": 999}
    )
    return plan, priced(plan, [more, *plan.pools[1:]])


def test_a_changed_pool_says_what_changed_and_what_it_costs() -> None:
    found = compare(*one_more_engine())
    (change,) = found.pools
    assert (change.kind, change.engines, found.unchanged_pools) == ("changed", (2, 3), 2)
    assert [(item.name, item.after) for item in change.settings] == [("replicas", "3"), ("max_num_seqs", "999")]
    assert change.difference == pytest.approx(9.96)
    assert headline(found) == "+$9.96/h (+20.3 %): $59.04/h instead of $49.08/h."
    text = render_text(found)
    assert "~ changed  p0: prefill H100-SXM TP4, 2 → 3 replicas; max_num_seqs" in text
    assert "2 pools unchanged" in text


@pytest.mark.parametrize("before", NAMES)
@pytest.mark.parametrize("after", NAMES)
def test_pools_sum_to_the_difference_of_the_price(before: str, after: str) -> None:
    found = compare(load(before), load(after))
    total = math.fsum(change.difference for change in found.pools)
    assert total == pytest.approx((found.price.after or 0.0) - (found.price.before or 0.0), abs=1e-6)


def test_the_command_writes_each_format(tmp_path: Path) -> None:
    before, after = str(PLANS / "disaggregated.json"), str(PLANS / "colocated.json")
    runner = CliRunner()

    def run(*words: str) -> str:
        done = runner.invoke(cli, ["compare", before, after, *words], obj=Console(), standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.output

    found = compare(load("disaggregated"), load("colocated"))
    assert headline(found) in run()
    assert json.loads(run("--format", "json")) == json.loads(json_text(comparison_record(found)))
    page = html_view(comparison_document(found), comparison_record(found), "comparison")
    for name, text in (("d.html", page), ("d.md", render_markdown(found))):
        run("-o", str(tmp_path / name))
        assert (tmp_path / name).read_text("utf-8") == text


@pytest.mark.parametrize("after", ["colocated", "infeasible"])
def test_golden(after: str) -> None:
    found = compare(load("disaggregated"), load(after))
    assert_golden(f"compare-disaggregated-{after}.txt", render_text(found, 100))
    assert_golden(f"compare-disaggregated-{after}.md", render_markdown(found))
