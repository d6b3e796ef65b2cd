"""What `pdplan map` answers: over two levers, where disaggregation pays and which GPUs are the cheapest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from costmodel.words import join_words
from optimizer.plans.records import read_pools
from reports.answer_charts import HeatCell, draw_heat_map, tone_of
from reports.document import Chart, Document, Section, Table, said, table_of
from reports.numbers import MISSING, hourly, percent, signed_percent
from reports.sensitivity import fleet_line
from reports.table import Column
from reports.text import clean, plural

from .whatif import DEPTHS, fleet_cell, no_fleet_sentence, simulated_note, varied_words

Row = Mapping[str, Any]

ROLES: Final = "search.roles"
"""Path of the roles that a search may use, which tells the two rows of a cell apart."""
SHAPES: Final[Mapping[str, tuple[str, ...]]] = {"colocated": ("colocated",), "disaggregated": ("prefill", "decode")}
"""Roles of each shape of fleet."""
EQUAL: Final = 1e-9
"""Share of the cost within which two fleets cost the same."""
DIGITS: Final = 3
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
    """The values of a lever in words, to DIGITS where these tell them apart."""
    short = {str(value): varied_words(key, value, DIGITS) for value in values}
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
    """A row for each shape of each cell, for `reports.tidy`."""
    return [
        {key: cell.colocated[key] for key in keys}
        | {"shape": shape, "cheapest": cell.shape == shape}
        | _answer(keys, getattr(cell, shape))
        for cell in cells_of(keys, rows)
        for shape in SHAPES
    ]


def map_document(keys: Sequence[str], rows: Sequence[Row], depth: str) -> Document:
    """Three grids: the cheapest fleet, what disaggregation costs against colocated, and the GPUs."""
    cells = cells_of(keys, rows)
    having = [row for row in rows if row["cost_usd_per_hour"] is not None]
    reasons = {cell.best["binding"].partition(":")[0]: cell for cell in cells if cell.shape is None}
    solved = DEPTHS[depth].partition(" --gap")[0]
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
        f"{solved} --csv and --json have both fleets of each cell with all settings.",
        _looked(sum(row["simulated"] for row in having), len(having)),
    )
    return Document(
        headline=said(headline(keys, cells), _mix_sentence(cells)),
        sections=(*(grids if having else ()), Section(sentences=notes)),
        positive=bool(having),
    )


def _looked(simulated: int, every: int) -> str:
    """How many of the fleets were simulated."""
    if not simulated:
        return simulated_note(0, every)
    return f"{simulated:,} of {every:,} fleets were simulated and meet the SLO; --verify N simulates others."


def headline(keys: Sequence[str], cells: Sequence[Cell]) -> str:
    """In how many cells disaggregation is cheaper, and where it saves most."""
    having = [cell for cell in cells if cell.shape is not None]
    split = [cell for cell in having if cell.shape == "disaggregated"]
    if not having:
        return "No fleet meets the SLO in any cell."
    every = plural(len(having), "cell") + ("" if len(having) == len(cells) else " with a fleet")
    if not split:
        return f"Colocated fleets are the cheapest in all {every}."
    where = f"in {len(split)} of {every}" if len(split) < len(having) else f"in all {every}"
    saved = [cell for cell in split if cell.difference is not None]
    if not saved:
        return f"Only disaggregated fleets meet the SLO {where}."
    most = min(saved, key=lambda cell: cell.difference or 0.0)
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
            f"{_place(keys, cell)}: {_both(cell)}",
        )
        for cell in cells
    ]
    title = headline(keys, cells)
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


def _both(cell: Cell) -> str:
    rows = ((shape, getattr(cell, shape)) for shape in SHAPES)
    return "; ".join(
        f"{shape} {hourly(row['cost_usd_per_hour'])}, {fleet_line(read_pools(row['pools']))}" for shape, row in rows
    )
