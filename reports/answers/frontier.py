"""What `pdplan frontier` answers: the least cost against the demand, an SLO or a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from optimizer.plans.records import pool_records
from optimizer.whatif.frontier import RESOLUTION, Frontier, Step, by_budget
from optimizer.whatif.scenario import answer_row, refuted_rows
from reports.answer_charts import HEIGHT, PLOT
from reports.document import Chart, Document, Section, Table, said
from reports.drawing import WIDTH, Drawing, Path, Text, axes, plot, round_steps, round_ticks
from reports.numbers import hourly, monthly, percent, rate, significant
from reports.sensitivity import exact_words, fleet_line
from reports.table import Column
from reports.words import cost_or_status

from .whatif import FLEET, fleet_cell, fleet_table, no_fleet_sentence, refuted_sentence, simulated_note

QUESTIONS: Final[Mapping[str, str]] = {
    "rate": "What does more demand cost?",
    "ttft": "What does a tighter TTFT limit cost?",
    "tpot": "What does a tighter TPOT limit cost?",
    "attainment": "What does a higher attainment cost?",
    "budget": "What does each budget serve?",
}
DIGITS: Final = 5
"""Of the values at which steps end."""
SEARCHED_ON: Final = (
    "Where a fleet misses the SLO in simulation, the cheapest one that meets it is searched, a few times at most."
)


def frontier_record(curve: Frontier) -> dict[str, Any]:
    """The curve as a record; by budget: each step's cost, and the rate that it serves."""
    own = {"value": curve.here, "found_usd_per_hour": None if curve.own is None else curve.own.cost}
    exact = {"tolerance": curve.tolerance, "resolution": RESOLUTION, "own": own}
    refuted = refuted_rows(curve.refuted)
    if curve.by_budget:
        steps: list[dict[str, Any]] = [
            dict(row)
            | {"gpus": dict(step.answer.gpus), "pools": pool_records(step.answer.pools)}
            | {"simulated": step.answer.attainment is not None, "simulated_attainment": step.answer.attainment}
            for row, step in zip(by_budget(curve), _having(curve), strict=True)
        ]
        return {"over": "budget", "unit": "$/h"} | exact | {"steps": steps, "refuted": refuted}
    steps = [
        {"easiest": step.easy, "hardest": step.hard}
        | {"hardest_by_formula": step.promised or step.hard, "missed_at": step.missed}
        | answer_row(step.answer)
        for step in curve.steps
    ]
    return {"over": curve.over, "unit": curve.unit} | exact | {"steps": steps, "refuted": refuted}


def frontier_rows(curve: Frontier) -> list[dict[str, Any]]:
    """A row for each step, its ends named after the lever; `reports.tidy` makes a table of them."""
    ends = {"easiest": "from", "hardest": "to", "hardest_by_formula": "to_by_formula", "missed_at": "missed_at"}
    names = {key: f"{curve.over}.{name}" for key, name in ends.items()}
    return [{names.get(key, key): value for key, value in row.items()} for row in frontier_record(curve)["steps"]]


def frontier_document(curve: Frontier) -> Document:
    """A line per step of the staircase, the easiest first."""
    return Document(
        headline=said(headline(curve), _jump_sentence(curve)),
        sections=(
            Section(charts=_charts(curve)),
            Section(table=steps_table(curve)),
            Section(sentences=(*_reasons(curve), *_refuted(curve))),
            Section(sentences=notes(curve)),
        ),
        positive=bool(_having(curve)),
    )


def _having(curve: Frontier) -> list[Step]:
    return [step for step in curve.steps if step.answer.cost]


def headline(curve: Frontier) -> str:
    """From what to what the cost goes over the range that has fleets."""
    if not curve.steps:
        return "No fleet at any of these budgets."
    steps = _having(curve)
    if not steps:
        return f"No fleet meets the SLO from {_at(curve, curve.steps[0].easy)} to {_at(curve, curve.steps[-1].hard)}."
    first, last = steps[0], steps[-1]
    costs = list(dict.fromkeys([hourly(first.answer.cost), hourly(last.answer.cost)]))
    months = list(dict.fromkeys([monthly(first.answer.cost), monthly(last.answer.cost)]))
    if curve.by_budget:
        serves = list(dict.fromkeys(f"{hourly(step.answer.cost)} serves {rate(step.hard)}" for step in (first, last)))
        return f"{', '.join(serves)}."
    ends = f"From {_at(curve, first.easy, 3)} to {_at(curve, last.hard, 3)}"
    return f"{ends} the cheapest fleet costs {' to '.join(costs)} ({' to '.join(months)}/month)."


def _jump_sentence(curve: Frontier) -> str:
    """Where the cost jumps most; empty where nothing is found."""
    steps = _having(curve)
    jumps = [((after.answer.cost or 0.0) - (before.answer.cost or 0.0), before) for before, after in pairwise(steps)]
    if not jumps:
        return "One fleet is the cheapest over the whole range." if steps else ""
    most, before = max(jumps, key=lambda jump: jump[0])
    jump = f"the cost jumps most, by {hourly(most)}, at {_at(curve, before.hard, 3)}"
    return f"{len(steps)} fleets are the cheapest in turn; {jump}."


def steps_table(curve: Frontier) -> Table:
    """A row for each step; over a budget: what it serves."""
    if curve.by_budget:
        steps = _having(curve)
        columns: list[Column | str] = ["#budget", "#serves up to", Column("per dollar", "right", optional=True), FLEET]
        rows = [
            [
                hourly(row["budget_usd_per_hour"]),
                rate(row["rate_rps"]),
                f"{significant(row['requests_per_dollar'])} req/$",
                fleet_cell(step.answer.pools),
            ]
            for row, step in zip(by_budget(curve), steps, strict=True)
        ]
    else:
        steps = list(curve.steps)
        columns = [f"#{curve.over} from", "#to", "#cost", FLEET]
        rows = [
            [
                _at(curve, step.easy),
                _at(curve, step.hard),
                cost_or_status(step.answer.cost, step.answer.status.value),
                fleet_cell(step.answer.pools),
            ]
            for step in steps
        ]
    return fleet_table(columns, rows, [step.answer.attainment for step in steps])


def _at(curve: Frontier, value: float | None, digits: int = DIGITS) -> str:
    """A value of the lever with its unit."""
    return exact_words(curve.over, value or 0.0, digits)


def notes(curve: Frontier) -> tuple[str, ...]:
    """What was searched, where steps end, and what of it was simulated."""
    having = [step for step in curve.steps if step.answer.cost is not None]
    simulated = sum(step.answer.attainment is not None for step in having)
    moved = bool(curve.refuted) or any(step.promised is not None for step in having)
    looked = simulated_note(simulated, len(having), "steps")
    return said(*_ends(curve, simulated=bool(simulated)), SEARCHED_ON if moved else "", _own(curve), looked)


def _ends(curve: Frontier, *, simulated: bool) -> tuple[str, str]:
    """Where steps end, and how exactly."""
    fine, coarse = (f"{significant(100.0 * share)} %" for share in (curve.tolerance, RESOLUTION))
    what = " of the permitted misses" if curve.over == "attainment" else ""
    whole = curve.own is not None and any(step.answer is curve.own for step in curve.steps)
    but = ", except for the one at the file's own value" if whole else ""
    sooner = f" A step whose fleet misses there in simulation ends earlier, to {coarse}{what}." if simulated else ""
    return (
        f"Fleets of one pool, or of a prefill and a decode pool, by formula{but}. Each step ends where its fleet "
        f"misses the SLO by formula, to {fine}{what}, or with the range.{sooner}",
        f"A fleet that is the cheapest over less than {coarse}{what} may be missing.",
    )


def _own(curve: Frontier) -> str:
    """What the whole search finds for the problem as it stands, and what the curve shows there."""
    if curve.here is None or curve.own is None:
        return ""
    value, cost = _at(curve, curve.here), hourly(curve.own.cost)
    found = f"At {value}, the file's own value, pdplan optimize finds {cost}"
    step = next((one for one in curve.steps if min(one.easy, one.hard) <= curve.here <= max(one.easy, one.hard)), None)
    if step is None:
        return f"{found}."
    if step.answer is curve.own:
        return f"{found}. Its fleet has the step that ends there; how much further it meets the SLO is unknown."
    shown = hourly(step.answer.cost)
    return f"{found}, as this curve does." if shown == cost else f"{found}, and this curve {shown}."


def _reasons(curve: Frontier) -> list[str]:
    """Why there is no fleet at the hard end, or at any value."""
    return [
        no_fleet_sentence(f"from {_at(curve, step.easy)} to {_at(curve, step.hard)}", step.answer.binding)
        for step in curve.steps
        if step.answer.cost is None
    ]


def _refuted(curve: Frontier) -> list[str]:
    """A sentence for every fleet that misses the SLO though it meets it by formula."""
    return [
        f"Moved: by formula {fleet_line(missed.pools)} meets the SLO {'down' if step.hard < step.easy else 'up'} to "
        f"{_at(curve, step.promised)}, but there it {missed.fault}. In simulation it meets the SLO at "
        f"{_at(curve, step.hard)} and misses it at {_at(curve, step.missed)}."
        for step in curve.steps
        if step.promised is not None and step.missed is not None
        for missed in step.answer.refuted
    ] + [refuted_sentence(missed) for missed in curve.refuted]


def _charts(curve: Frontier) -> tuple[Chart, ...]:
    """The staircase; none where there is no fleet."""
    steps = _having(curve)
    if not steps:
        return ()
    ends = [end for step in curve.steps for end in (step.easy, step.hard)]
    low, high, top = min(ends), max(ends), max(step.answer.cost or 0.0 for step in steps)
    drawn = plot(PLOT, (low, high), (0.0, 1.1 * top))
    share = curve.over == "attainment"
    unit = "" if curve.unit == "1" else f" [{curve.unit}]"
    ticks = [(value, percent(value) if share else significant(value)) for value in round_ticks(low, high)]
    heights = [(value, significant(value)) for value in round_steps(top)]
    marks = axes(drawn, ticks, heights, f"{curve.over}{unit}", "least cost [$/h]")
    for step in curve.steps:
        cost, span = step.answer.cost, f"{_at(curve, step.easy)} to {_at(curve, step.hard)}"
        if cost is None:
            marks.append(Text(drawn.x((step.easy + step.hard) / 2.0), PLOT.bottom - 8, "no fleet", "muted", "middle"))
        else:
            tip = f"{curve.over} {span}: {hourly(cost)}, {fleet_line(step.answer.pools)}"
            marks.append(Path((drawn.at((step.easy, cost)), drawn.at((step.hard, cost))), "curve decode", tip))
    return (
        Chart(
            title=_jump_sentence(curve),
            caption="Each line is one fleet; replicas are whole, so the cost jumps.",
            drawing=Drawing(WIDTH, HEIGHT + 8.0, f"least cost by {curve.over}. {headline(curve)}", tuple(marks)),
            table=steps_table(replace(curve, by_budget=False)),
        ),
    )
