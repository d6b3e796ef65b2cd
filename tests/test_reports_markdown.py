"""The plan for a pull request: its numbers are the plan's, its tables are tables, whatever the names in it."""

import pytest

from tests.report_cases import NAMES, assert_golden, load
from tests.report_cases import markdown_of as render_plan


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_rows_of_one_width(name: str) -> None:
    widths: set[int] = set()
    for line in render_plan(load(name)).splitlines():
        if not line.startswith("|"):
            widths = set()
            continue
        widths.add(line.count("|"))
        assert len(widths) == 1


@pytest.mark.parametrize("name", ["disaggregated", "infeasible", "hostile"])
def test_golden(name: str) -> None:
    assert_golden(f"plan-{name}.md", render_plan(load(name)))
