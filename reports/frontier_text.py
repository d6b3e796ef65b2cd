"""The cost curve as a terminal table, as records for JSON, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, Final

from optimizer.plans.records import pool_records
from optimizer.whatif.frontier import RESOLUTION, Frontier, Step
from optimizer.whatif.frontier import by_budget as budgets
from optimizer.whatif.scenario import answer_row, refuted_rows

from .numbers import hourly, percent, rate, significant
from .sensitivity import exact_words, fleet_line
from .table import Column, render_table
from .text import sentence, wrap
from .whatif_files import pool_texts
from .whatif_text import FLEET, LINES, fleet_cell, refuted_sentence, simulated_note
from .words import cost_or_status

PER_DOLLAR: Final = "per dollar"
IN_SLO: Final = "SLO met"
DIGITS: Final = 5
"""Of the values at which steps end."""
SEARCHED_ON: Final = (
    "Where a fleet misses the SLO in simulation, the cheapest one that meets it is searched, a few times at most."
)
PERMITTED: Final = " of the misses that it permits"
"""What an attainment is exact to so many per cent of."""


def frontier_record(curve: Frontier) -> dict[str, Any]:
    """The curve as a record; by budget: each step's cost, and the rate that it serves."""
    gone = refuted_rows(curve.refuted)
    found = None if curve.own is None else curve.own.cost
    exact = {"tolerance": curve.tolerance, "resolution": RESOLUTION} | {
        "own": {"value": curve.here, "found_usd_per_hour": found}
    }
    if curve.by_budget:
        steps: list[dict[str, Any]] = [
            dict(row)
            | {"gpus": dict(step.answer.gpus), "pools": pool_records(step.answer.pools)}
            | {"simulated": step.answer.attainment is not None, "simulated_attainment": step.answer.attainment}
            for row, step in zip(budgets(curve), (one for one in curve.steps if one.answer.cost), strict=True)
        ]
        return {"over": "budget", "unit": "$/h"} | exact | {"steps": steps, "refuted": gone}
    steps = [
        {"easiest": step.easy, "hardest": step.hard}
        | {"hardest_by_formula": step.promised or step.hard, "missed_at": step.missed}
        | answer_row(step.answer)
        for step in curve.steps
    ]
    return {"over": curve.over, "unit": curve.unit} | exact | {"steps": steps, "refuted": gone}


def frontier_csv(curve: Frontier) -> str:
    """A row per step; GPUs and pools as texts."""
    rows = frontier_record(curve)["steps"]
    stream = io.StringIO()
    texts = [row | _texts(row) for row in rows]
    writer = csv.DictWriter(stream, list(texts[0]) if texts else ["steps"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(texts)
    return stream.getvalue()


def _texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is no number in a step."""
    gpus = " + ".join(f"{count} {name}" for name, count in row["gpus"].items())
    return {"gpus": gpus} | pool_texts(row["pools"]) | {key: len(row[key]) for key in row if key == "refuted"}


def frontier_text(curve: Frontier, width: int) -> str:
    """A line per step of the staircase, the easiest first."""
    columns = [
        Column(name, shrink=True, lines=LINES) if name == FLEET else Column(name, "right", optional=name == PER_DOLLAR)
        for name in curve_headers(curve)
    ]
    table = render_table(curve_rows(curve), columns, width)
    notes = [*curve_findings(curve), *curve_notes(curve)]
    return "\n".join([table, "", *(line for note in notes for line in wrap(note, width))])


def curve_headers(curve: Frontier) -> list[str]:
    """Names of the columns; all but that of the fleet have numbers."""
    numbers = ["budget", "serves up to", PER_DOLLAR] if curve.by_budget else [f"{curve.over} from", "to", "cost"]
    return [*numbers, FLEET, *([IN_SLO] if _any_simulated(curve) else [])]


def _any_simulated(curve: Frontier) -> bool:
    return any(step.answer.attainment is not None for step in curve.steps)


def curve_rows(curve: Frontier) -> list[list[str]]:
    """What a step's row says."""
    rows = []
    having = [step for step in curve.steps if step.answer.cost or not curve.by_budget]
    seen = [[percent(step.answer.attainment)] if _any_simulated(curve) else [] for step in having]
    if curve.by_budget:
        for row, step in zip(budgets(curve), having, strict=True):
            worth = f"{significant(row['requests_per_dollar'])} req/$"
            fleet = fleet_cell(step.answer.pools)
            rows.append([hourly(row["budget_usd_per_hour"]), rate(row["rate_rps"]), worth, fleet])
        return [[*row, *share] for row, share in zip(rows, seen, strict=True)]
    for step in having:
        cost = cost_or_status(step.answer.cost, step.answer.status.value)
        ends = end_words(curve, step.easy), end_words(curve, step.hard)
        rows.append([*ends, cost, fleet_cell(step.answer.pools)])
    return [[*row, *share] for row, share in zip(rows, seen, strict=True)]


def end_words(curve: Frontier, value: float) -> str:
    """A value at which a step ends, with its unit."""
    return exact_words(curve.over, value, DIGITS)


def curve_notes(curve: Frontier) -> list[str]:
    """What was searched, and what of it was simulated."""
    having = [step for step in curve.steps if step.answer.cost is not None]
    simulated = sum(step.answer.attainment is not None for step in having)
    short = bool(curve.refuted) or any(step.promised is not None for step in having)
    ends = [*_ends(curve, simulated, len(having)), *([SEARCHED_ON] if short else [])]
    return [*ends, *_own(curve), *simulated_note(simulated, len(having), "steps")]


def _ends(curve: Frontier, simulated: int, every: int) -> list[str]:
    """Where steps end, and how exactly."""
    fine, coarse = (f"{significant(100.0 * one)} %" for one in (curve.tolerance, RESOLUTION))
    what = PERMITTED if curve.over == "attainment" else ""
    said = f"each step ends where its fleet misses the SLO by formula, to {fine}{what}, or where the range ends"
    if simulated:
        which = "all" if simulated == every else "those with a share under SLO met"
        said += f"; {which} were simulated, and end before that where they miss then, to {coarse}{what}"
    narrow = f"A fleet that is cheapest over less than {coarse}{what} may be missing: the next one stands there."
    whole = curve.own is not None and any(step.answer is curve.own for step in curve.steps)
    found = "found by formula" + (" but for the one at the file's own value" if whole else "")
    return [f"Fleets of one or two pools, {found}; {said}.", narrow]


def _own(curve: Frontier) -> list[str]:
    """What the whole search finds for the problem as it stands, and what the curve shows there."""
    if curve.here is None or curve.own is None:
        return []
    value, cost = end_words(curve, curve.here), hourly(curve.own.cost)
    said = f"At {value}, the file's own value, the whole search of pdplan optimize finds {cost}"
    step = _at(curve, curve.here)
    if step is None:
        return [f"{said}."]
    if step.answer is curve.own:
        return [f"{said}: its fleet has the step that ends there; how much further it meets the SLO is unknown."]
    shown = hourly(step.answer.cost)
    return [f"{said}, as this curve has it." if shown == cost else f"{said}, and this curve {shown}."]


def _at(curve: Frontier, value: float) -> Step | None:
    """The step of a value."""
    return next((step for step in curve.steps if min(step.easy, step.hard) <= value <= max(step.easy, step.hard)), None)


def curve_findings(curve: Frontier) -> list[str]:
    """Why there is no fleet where there is none, and which fleets miss though they meet the SLO by formula."""
    return [*_reasons(curve), *_refuted(curve)]


def _refuted(curve: Frontier) -> list[str]:
    """A sentence for every fleet that misses the SLO though it meets it by formula."""
    return [
        f"Moved: by formula {fleet_line(one.pools)} meets the SLO {'down' if step.hard < step.easy else 'up'} to "
        f"{end_words(curve, step.promised)}, but there it {one.fault}; simulated, it meets it to "
        f"{end_words(curve, step.hard)}, and misses at {end_words(curve, step.missed)}."
        for step in curve.steps
        if step.promised is not None and step.missed is not None
        for one in step.answer.refuted
    ] + [refuted_sentence(one) for one in curve.refuted]


def _reasons(curve: Frontier) -> list[str]:
    """Why there is no fleet at the hard end, or at any value."""
    return [
        f"No fleet from {end_words(curve, step.easy)} to {end_words(curve, step.hard)}: "
        f"{sentence(step.answer.binding).removesuffix('.')}."
        for step in curve.steps
        if step.answer.cost is None
    ]
