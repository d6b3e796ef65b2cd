"""What `pdplan frontier` and `pdplan map` answer: the least cost over one lever, and over two of both shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Final

from costmodel.words import join_words
from optimizer.plans.records import pool_records, read_pools
from optimizer.whatif.answer import answer_row, refuted_rows
from optimizer.whatif.frontier import RESOLUTION, Frontier, Step, by_budget
from reports.answers.whatif import (
    EFFORTS,
    FLEET,
    cost_words,
    fleet_cell,
    fleet_table,
    no_fleet_sentence,
    refuted_sentence,
    simulated_note,
    varied_words,
)
from reports.charts import HEIGHT, PLOT, HeatCell, draw_heat_map, tone_of
from reports.document import Chart, Document, Section, Table, said, table_of
from reports.drawing import WIDTH, Drawing, Path, Text, axes, plot, round_steps, round_ticks
from reports.numbers import MISSING, hourly, percent, rate, signed_percent, significant
from reports.sensitivity import exact_words, fleet_line
from reports.table import Column
from reports.text import clean, plural
from reports.words import cost_or_status

QUESTIONS: Final[Mapping[str, str]] = {
    "rate": "What does more demand cost?",
    "ttft": "What does a tighter TTFT limit cost?",
    "tpot": "What does a tighter TPOT limit cost?",
    "attainment": "What does a higher attainment cost?",
    "budget": "What does each budget serve?",
}
STEP_DIGITS: Final = 5
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
    """A row for each step, its ends named after the lever; `reports.rows` makes a table of them."""
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
            Section(sentences=(*_reasons(curve), *_refuted_sentences(curve))),
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
    if curve.by_budget:
        serves = list(dict.fromkeys(f"{hourly(step.answer.cost)} serves {rate(step.hard)}" for step in (first, last)))
        return f"{', '.join(serves)}."
    ends = f"From {_at(curve, first.easy, 3)} to {_at(curve, last.hard, 3)}"
    return f"{ends} the cheapest fleet costs {cost_words(first.answer.cost, last.answer.cost)}."


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


def _at(curve: Frontier, value: float | None, digits: int = STEP_DIGITS) -> str:
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
    unit = " of the permitted misses" if curve.over == "attainment" else ""
    whole = curve.own is not None and any(step.answer is curve.own for step in curve.steps)
    but = ", except for the one at the file's own value" if whole else ""
    sooner = f" A step whose fleet misses there in simulation ends earlier, to {coarse}{unit}." if simulated else ""
    return (
        f"The search of pdplan optimize --effort quick, by formula{but}. Each step ends where its fleet "
        f"misses the SLO by formula, to {fine}{unit}, or with the range.{sooner}",
        f"A fleet that is the cheapest over less than {coarse}{unit} may be missing.",
    )


def _own(curve: Frontier) -> str:
    """What the whole search finds for the problem as it stands, and what the curve shows there."""
    if curve.here is None or curve.own is None:
        return ""
    value, cost = _at(curve, curve.here), hourly(curve.own.cost)
    sentence = f"At {value}, the file's own value, pdplan optimize finds {cost}"
    step = next(
        (step for step in curve.steps if min(step.easy, step.hard) <= curve.here <= max(step.easy, step.hard)), None
    )
    if step is None:
        return f"{sentence}."
    if step.answer is curve.own:
        return f"{sentence}. Its fleet has the step that ends there; how much further it meets the SLO is unknown."
    price = hourly(step.answer.cost)
    return f"{sentence}, as this curve does." if price == cost else f"{sentence}, and this curve {price}."


def _reasons(curve: Frontier) -> list[str]:
    """Why there is no fleet at the hard end, or at any value."""
    return [
        no_fleet_sentence(f"from {_at(curve, step.easy)} to {_at(curve, step.hard)}", step.answer.binding)
        for step in curve.steps
        if step.answer.cost is None
    ]


def _refuted_sentences(curve: Frontier) -> list[str]:
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


Row = Mapping[str, Any]

# --- the map ---------------------------------------------------------------------------------------------------------

ROLES: Final = "search.roles"
"""Path of the roles that a search may use, which tells the two rows of a cell apart."""
SHAPES: Final[Mapping[str, tuple[str, ...]]] = {"colocated": ("colocated",), "disaggregated": ("prefill", "decode")}
"""Roles of each shape of fleet."""
EQUAL: Final = 1e-9
"""Share of the cost within which two fleets cost the same."""
LEVER_DIGITS: Final = 3
"""Of the values of a lever, as far as these tell them apart."""
MOST_MIXES: Final = 3
"""Mixes of GPU types that the headline counts."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of two values in words, and the cheapest fleet of each shape there, as rows of a sweep."""

    down: str
    across: str
    colocated: Row
    disaggregated: Row

    @property
    def shape(self) -> str | None:
        """The cheaper shape; colocated, which has fewer pools, where both cost the same; None where neither is."""
        alone, split = self.colocated["cost_usd_per_hour"], self.disaggregated["cost_usd_per_hour"]
        if split is None or (alone is not None and alone <= split * (1.0 + EQUAL)):
            return None if alone is None else "colocated"
        return "disaggregated"

    @property
    def difference(self) -> float | None:
        """How much more the cheapest disaggregated fleet costs than the cheapest colocated one, as a share [1]."""
        alone, split = self.colocated["cost_usd_per_hour"], self.disaggregated["cost_usd_per_hour"]
        return split / alone - 1.0 if alone and split else None

    @property
    def saving(self) -> float | None:
        """What the cheaper shape saves against the other one, as a share of that [1]."""
        alone, split = self.colocated["cost_usd_per_hour"], self.disaggregated["cost_usd_per_hour"]
        return 1.0 - min(alone, split) / max(alone, split) if alone and split else None

    @property
    def best(self) -> Row:
        """The row of the cheaper shape; the colocated one where there is no fleet."""
        return self.disaggregated if self.shape == "disaggregated" else self.colocated

    @property
    def mix(self) -> str:
        """The GPU types of the cheaper fleet."""
        return " + ".join(sorted(self.best["gpus"]))


def cells_of(keys: Sequence[str], rows: Sequence[Row]) -> list[Cell]:
    """The cells of a sweep over two levers, whose last axis is ROLES: colocated, then disaggregated."""
    down, across = (_words(key, [row[key] for row in rows]) for key in keys)
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [Cell(down[str(alone[keys[0]])], across[str(alone[keys[1]])], alone, split) for alone, split in pairs]


def _words(key: str, values: Sequence[Any]) -> dict[str, str]:
    """The values of a lever in words, to LEVER_DIGITS where these tell them apart."""
    short = {str(value): varied_words(key, value, LEVER_DIGITS) for value in values}
    distinct = len({*short.values()}) == len(short)
    return short if distinct else {str(value): varied_words(key, value) for value in values}


def map_record(keys: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    """Every cell as a record: both rows, the cheaper shape, and the difference in cost."""
    return {
        "over": list(keys),
        "cells": [
            {key: cell.colocated[key] for key in keys}
            | {"cheapest": cell.shape, "disaggregated_over_colocated": cell.difference}
            | {shape: _answer(keys, getattr(cell, shape)) for shape in SHAPES}
            for cell in cells_of(keys, rows)
        ],
    }


def _answer(keys: Sequence[str], row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in {"number", ROLES, *keys}}


def map_rows(keys: Sequence[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each shape of each cell, for `reports.rows`."""
    return [
        {key: cell.colocated[key] for key in keys}
        | {"shape": shape, "cheapest": cell.shape == shape}
        | _answer(keys, getattr(cell, shape))
        for cell in cells_of(keys, rows)
        for shape in SHAPES
    ]


def map_document(keys: Sequence[str], rows: Sequence[Row], effort: str) -> Document:
    """Three grids: the cheapest fleet, what disaggregation costs against colocated, and the GPUs."""
    cells = cells_of(keys, rows)
    having = [row for row in rows if row["cost_usd_per_hour"] is not None]
    reasons = {cell.best["binding"].partition(":")[0]: cell for cell in cells if cell.shape is None}
    grids = (
        Section(charts=(map_chart(keys, rows),)),
        Section("The cheapest fleet, C colocated or D disaggregated", table=_grid(keys, cells, _price)),
        Section(
            "Disaggregated against colocated", table=_grid(keys, cells, lambda cell: signed_percent(cell.difference))
        ),
        Section("GPUs of the cheapest fleet", table=_grid(keys, cells, _gpus)),
    )
    notes = said(
        *(no_fleet_sentence(_place(keys, cell), cell.best["binding"]) for cell in reasons.values()),
        f"{EFFORTS[effort]} --csv and --json have both fleets of each cell with all settings.",
        simulated_note(sum(row["simulated"] for row in having), len(having)),
    )
    return Document(
        headline=said(map_headline(keys, cells), _mix_sentence(cells)),
        sections=(*(grids if having else ()), Section(sentences=notes)),
        positive=bool(having),
    )


def map_headline(keys: Sequence[str], cells: Sequence[Cell]) -> str:
    """In how many cells disaggregation is cheaper, and where it saves most."""
    having = [cell for cell in cells if cell.shape is not None]
    split = [cell for cell in having if cell.shape == "disaggregated"]
    if not having:
        return "No fleet meets the SLO in any cell."
    total = plural(len(having), "cell") + ("" if len(having) == len(cells) else " with a fleet")
    if not split:
        return f"Colocated fleets are the cheapest in all {total}."
    where = f"in {len(split)} of {total}" if len(split) < len(having) else f"in all {total}"
    savings = [cell for cell in split if cell.difference is not None]
    if not savings:
        return f"Only disaggregated fleets meet the SLO {where}."
    most = min(savings, key=lambda cell: cell.difference or 0.0)
    by = percent(-(most.difference or 0.0))
    return f"Disaggregation is cheaper {where}, by up to {by} ({_place(keys, most)})."


def _place(keys: Sequence[str], cell: Cell) -> str:
    return f"at {clean(keys[0])} {cell.down}, {clean(keys[1])} {cell.across}"


def _mix_sentence(cells: Sequence[Cell]) -> str:
    """Which GPU types the cheapest fleets are of, and in how many cells; empty where there is one type throughout."""
    mixes = Counter(cell.mix for cell in cells if cell.shape is not None)
    if len(mixes) == 1:
        return f"All of them use {next(iter(mixes))}."
    most = [f"{mix} in {plural(number, 'cell')}" for mix, number in mixes.most_common(MOST_MIXES)]
    return f"Cheapest GPUs: {join_words(most)}." if most else ""


def _grid(keys: Sequence[str], cells: Sequence[Cell], words: Callable[[Cell], str]) -> Table:
    """A row for each value of the first lever, a column for each of the second."""
    across = list(dict.fromkeys(cell.across for cell in cells))
    rows = [[down, *map(words, group)] for down, group in groupby(cells, key=lambda cell: cell.down)]
    head = Column(f"{clean(keys[0])} \\ {clean(keys[1])}", "right")
    return table_of([head, *(Column(value, "right", shrink=True, lines=3) for value in across)], rows)


def _price(cell: Cell) -> str:
    return MISSING if cell.shape is None else f"{cell.shape[0].upper()} {hourly(cell.best['cost_usd_per_hour'])}"


def _gpus(cell: Cell) -> str:
    return " + ".join(f"{count} {name}" for name, count in cell.best["gpus"].items()) or MISSING


def map_chart(keys: Sequence[str], rows: Sequence[Row]) -> Chart:
    """The heat map: its hue is the cheaper shape, its strength the saving against the other one."""
    cells = cells_of(keys, rows)
    most = max((cell.saving for cell in cells if cell.saving is not None), default=0.0)
    drawn = [
        HeatCell(
            cell.down,
            cell.across,
            (_price(cell).replace("$", "").removesuffix("/h"), signed_percent(cell.difference)),
            _tone(cell, most),
            f"{_place(keys, cell)}: {_fleets_tip(cell)}",
        )
        for cell in cells
    ]
    title = map_headline(keys, cells)
    table = [
        (
            cell.down,
            cell.across,
            cell.shape or MISSING,
            signed_percent(cell.difference),
            hourly(cell.colocated["cost_usd_per_hour"]),
            fleet_cell(read_pools(cell.colocated["pools"])),
            hourly(cell.disaggregated["cost_usd_per_hour"]),
            fleet_cell(read_pools(cell.disaggregated["pools"])),
        )
        for cell in cells
    ]
    columns = ("cheapest", "#difference", "#colocated", "colocated fleet", "#disaggregated", "disaggregated fleet")
    return Chart(
        title=title,
        caption="$/h of the cheapest fleet (C colocated, D disaggregated), and what disaggregated costs against "
        "colocated. The stronger the color, the more the cheaper one saves.",
        drawing=draw_heat_map(drawn, keys[0], keys[1], title),
        table=table_of((*(clean(key) for key in keys), *columns), table),
        legend=(("split-6", "disaggregated is cheaper"), ("alone-6", "colocated is cheaper")),
    )


def _tone(cell: Cell, most: float) -> str:
    """The tone of a cell; the strongest where the other shape has no fleet."""
    if cell.shape is None:
        return "heat-0"
    family = "split" if cell.shape == "disaggregated" else "alone"
    return tone_of(most if cell.saving is None else cell.saving, (0.0, most), family)


def _fleets_tip(cell: Cell) -> str:
    rows = ((shape, getattr(cell, shape)) for shape in SHAPES)
    return "; ".join(
        f"{shape} {hourly(row['cost_usd_per_hour'])}, {fleet_line(read_pools(row['pools']))}" for shape, row in rows
    )
