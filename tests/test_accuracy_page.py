"""The appendix on accuracy says what the catalog's record of errors says, which a report shows under Trust."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.serving_error import load_serving_error


@pytest.fixture
def section(root: Path) -> list[list[str]]:
    """Cells of the table by accelerator and mode, as the appendix has it."""
    page = (root / "docs" / "appendix" / "accuracy.md").read_text("utf-8")
    text = page.split("## By accelerator and mode")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_table_by_accelerator_is_the_catalogs_record(section: list[list[str]]) -> None:
    record = load_serving_error().held_out_on
    assert len(section) == len(record) > 20
    for cells, one in zip(section, record, strict=True):
        assert cells[:5] == [one.accelerator, one.mode, one.engine or "any", one.model or "any", str(one.rows)]
        assert [float(cell.removesuffix(" %")) for cell in cells[5:]] == pytest.approx(
            [one.ttft_median_abs_pct, one.ttft_bias_pct, one.tpot_median_abs_pct, one.tpot_bias_pct], abs=0.05
        )


def test_rows_of_all_engines_count_those_of_each(section: list[list[str]]) -> None:
    for accelerator, mode in {(cells[0], cells[1]) for cells in section}:
        rows = [cells for cells in section if cells[:2] == [accelerator, mode] and cells[3] == "any"]
        total = next(int(cells[4]) for cells in rows if cells[2] == "any")
        assert total == sum(int(cells[4]) for cells in rows if cells[2] != "any")
