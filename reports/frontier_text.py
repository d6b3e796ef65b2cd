"""The cost curve as a terminal table, as records for JSON, and as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any, Final

from optimizer.whatif.frontier import Frontier
from optimizer.whatif.frontier import by_budget as budgets
from optimizer.whatif.whatif import answer_row

from .numbers import MISSING, hourly, percent, rate, significant
from .table import Column, render_table
from .text import sentence, wrap

PER_DOLLAR: Final = "per dollar"
DIGITS: Final = 5
"""Of the values at which steps end."""


def frontier_record(curve: Frontier, *, by_budget: bool) -> dict[str, Any]:
    """The curve as a record; by budget: each step's cost, and the rate that it serves."""
    if by_budget:
        steps: list[dict[str, Any]] = [
            dict(row) | {"gpus": dict(step.answer.gpus), "pools": list(step.answer.pools)}
            for row, step in zip(budgets(curve), (one for one in curve.steps if one.answer.cost), strict=True)
        ]
        return {"over": "budget", "unit": "$/h", "tolerance": curve.tolerance, "steps": steps}
    steps = [{"easiest": step.easy, "hardest": step.hard} | answer_row(step.answer) for step in curve.steps]
    return {"over": curve.over, "unit": curve.unit, "tolerance": curve.tolerance, "steps": steps}


def frontier_csv(curve: Frontier, *, by_budget: bool) -> str:
    """A row per step; GPUs and pools as texts."""
    rows = frontier_record(curve, by_budget=by_budget)["steps"]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else ["steps"], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        gpus = " + ".join(f"{count} {name}" for name, count in row["gpus"].items())
        writer.writerow(row | {"gpus": gpus, "pools": " + ".join(row["pools"])})
    return stream.getvalue()


def frontier_text(curve: Frontier, width: int, *, by_budget: bool) -> str:
    """A line per step of the staircase, the easiest first."""
    *numbers, last = curve_headers(curve, by_budget=by_budget)
    columns = [Column(name, "right", optional=name == PER_DOLLAR) for name in numbers]
    table = render_table(curve_rows(curve, by_budget=by_budget), [*columns, Column(last, shrink=True, lines=2)], width)
    return "\n".join([table, "", *(line for note in curve_notes(curve) for line in wrap(note, width))])


def curve_headers(curve: Frontier, *, by_budget: bool) -> list[str]:
    """Names of the columns; all but the last have numbers."""
    unit = "" if curve.unit == "1" else f" [{curve.unit}]"
    numbers = ["budget", "serves up to", PER_DOLLAR] if by_budget else [f"{curve.over}{unit} from", "to", "cost"]
    return [*numbers, "fleet"]


def curve_rows(curve: Frontier, *, by_budget: bool) -> list[list[str]]:
    """What a step's row says."""
    rows = []
    if by_budget:
        for row, step in zip(budgets(curve), (one for one in curve.steps if one.answer.cost), strict=True):
            worth = f"{significant(row['requests_per_dollar'])} req/$"
            fleet = " + ".join(step.answer.pools)
            rows.append([hourly(row["budget_usd_per_hour"]), rate(row["rate_rps"]), worth, fleet])
        return rows
    for step in curve.steps:
        cost = hourly(step.answer.cost) if step.answer.cost is not None else step.answer.status.value
        fleet = " + ".join(step.answer.pools) or MISSING
        rows.append([significant(step.easy, DIGITS), significant(step.hard, DIGITS), cost, fleet])
    return rows


def curve_notes(curve: Frontier) -> list[str]:
    """Why there is no fleet where there is none; and last, what was searched."""
    said = (
        f"Fleets of one or two pools, by formula; each step ends where its fleet no longer holds, to "
        f"{percent(curve.tolerance)}."
    )
    return [*_reasons(curve), said]


def _reasons(curve: Frontier) -> list[str]:
    """Why there is no fleet at the hard end, or at any value."""
    return [
        f"No fleet from {significant(step.easy, DIGITS)} to {significant(step.hard, DIGITS)}: "
        f"{sentence(step.answer.binding).removesuffix('.')}."
        for step in curve.steps
        if step.answer.cost is None
    ]
