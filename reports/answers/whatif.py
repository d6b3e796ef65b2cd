"""What `pdplan whatif` and `map` answer: sweeps and maps, shadow prices, the tornado and near-optimal fleets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from costmodel.words import join_words
from optimizer.plans.records import pool_records, read_pools
from optimizer.whatif.answer import Answer, nothing
from optimizer.whatif.sensitivity import NearOptimal, ShadowPrice, TornadoRow
from reports.charts import HeatCell, draw_heat_map, tone_of
from reports.document import Chart, Column, Detail, Document, Section, Table, said, table_of
from reports.numbers import MISSING, hourly, percent, quantity, rate, signed_percent, significant
from reports.scenarios import (
    FLEET,
    cost_words,
    fleet_table,
    no_fleet_document,
    no_fleet_sentence,
    reason,
    refuted_sentence,
    simulated_note,
    simulation_note,
    varied_words,
)
from reports.sensitivity import TORNADO_KEY, depends_words, draw_tornado, levers_table
from reports.text import capital, clean, plural
from reports.words import constraint_words, cost_or_status, fleet_line

ANSWER_KEYS: Final = frozenset({"number", *nothing("").row})
"""Keys of a row that are the answer; the others say which scenario it is."""
BINDS: Final = Column("binds first", shrink=True, lines=4, optional=True)
EFFORTS: Final = {
    "simple": "Each fleet is the cheapest of one pool, or of a prefill and a decode pool, by formula. --full searches "
    "all fleets, and says what any other could save.",
    "full": "Each fleet is what pdplan optimize --effort quick finds, by formula.",
    "simulated": "Each fleet is what pdplan optimize finds, and meets every SLO in simulation.",
}
GAP: Final = "No fleet of any shape saves more than the gap."
MOST_MAPS: Final = 6
"""Heat maps of a page."""

Row = Mapping[str, Any]


# --- a sweep --------------------------------------------------------------------------------------------------------


def sweep_document(rows: Sequence[Row], effort: str) -> Document:
    """A row for every scenario, and how each was solved."""
    maps = cost_maps(rows)
    cut = f"The first {MOST_MAPS} of {len(maps)} maps; the table has all scenarios." if len(maps) > MOST_MAPS else ""
    return Document(
        headline=(sweep_headline(rows),),
        sections=(
            Section(charts=maps[:MOST_MAPS], sections=(Section(sentences=said(cut), detail=Detail.PAGE),)),
            Section(table=sweep_table(rows)),
            Section(sentences=said(*_reasons(rows), *_refuted_sentences(rows), *_effort_notes(rows, effort))),
        ),
        positive=bool(_costs(rows)),
    )


def sweep_headline(rows: Sequence[Row]) -> str:
    """From what to what the cheapest fleet costs, and how many scenarios have none."""
    costs, scenarios = _costs(rows), plural(len(rows), "scenario")
    if not costs:
        return f"No fleet meets the SLO in {'the scenario' if len(rows) == 1 else f'any of the {scenarios}'}."
    none = len(rows) - len(costs)
    gap = f" {none} {'has' if none == 1 else 'have'} no fleet that meets the SLO." if none else ""
    return f"{scenarios}: the cheapest fleet costs {cost_words(min(costs), max(costs))}.{gap}"


def _costs(rows: Sequence[Row]) -> list[float]:
    return [row["cost_usd_per_hour"] for row in rows if row["cost_usd_per_hour"] is not None]


def sweep_table(rows: Sequence[Row]) -> Table:
    """What varies in each scenario, and its fleet."""
    keys = scenario_keys(rows)
    columns = [
        *(Column(clean(key), "left" if key == "scenario" else "right") for key in keys),
        Column("cost", "right"),
        Column("goodput", "right", optional=True),
        FLEET,
        BINDS,
        Column("gap", "right", optional=True),
    ]
    cells = [
        [
            *(varied_words(key, row.get(key)) for key in keys),
            _cost_cell(row),
            MISSING if row["cost_usd_per_hour"] is None else rate(row["goodput_rps"]),
            fleet_line(read_pools(row["pools"])),
            "" if row["cost_usd_per_hour"] is None else _binding_words(row["binding"]),
            percent(row["gap"]),
        ]
        for row in rows
    ]
    return fleet_table(columns, cells, [row["simulated_attainment"] for row in rows])


def scenario_keys(rows: Sequence[Row]) -> list[str]:
    """Keys that say which scenario a row is, in their order."""
    return list(dict.fromkeys(key for row in rows for key in row if key not in ANSWER_KEYS))


def _binding_words(binding: str) -> str:
    """What binds first, and where, with its short name in words.

    >>> _binding_words("kv_memory of decode-1, 12 % room")
    'KV memory of decode-1, 12 % room'
    """
    name, blank, rest = binding.partition(" ")
    return f"{constraint_words(name)}{blank}{rest}"


def _effort_notes(rows: Sequence[Row], effort: str) -> list[str]:
    """How each scenario was solved, what its gap means, and how many fleets were simulated."""
    having = [row for row in rows if row["cost_usd_per_hour"] is not None]
    gap = GAP if any(row["gap"] is not None for row in rows) else ""
    return [f"{EFFORTS[effort]} {gap}".rstrip(), simulated_note(sum(row["simulated"] for row in having), len(having))]


def _refuted_sentences(rows: Sequence[Row]) -> list[str]:
    """A sentence for every fleet that misses in simulation, with the first of its rows."""
    groups: dict[tuple[str, str], list[tuple[Row, Any]]] = {}
    for row in rows:
        for miss in row["refuted"] if row["cost_usd_per_hour"] is not None else ():
            group = groups.setdefault((fleet_line(read_pools(miss["pools"])), miss["fault"]), [])
            if not any(member is row for member, _ in group):  # other settings of the same engines read alike
                group.append((row, miss))
    return [
        f"Simulated and ruled out {_place([row for row, _ in group], scenario_keys(rows), 'and')}: {fleet} for "
        f"{hourly(group[0][1]['cost_usd_per_hour'])} {fault}."
        for (fleet, fault), group in groups.items()
    ]


def _reasons(rows: Sequence[Row]) -> list[str]:
    """A sentence for every limit that leaves scenarios without a fleet, with the first of them."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["cost_usd_per_hour"] is None:
            groups.setdefault(row["binding"].partition(":")[0], []).append(row)
    return [
        no_fleet_sentence(_place(group, scenario_keys(rows), "nor"), group[0]["binding"]) for group in groups.values()
    ]


def _place(rows: Sequence[Row], keys: Sequence[str], conjunction: str) -> str:
    """The first of some scenarios, and how many others there are."""
    row, number = rows[0], len(rows) - 1
    at = ", ".join(f"{clean(key)} {varied_words(key, row[key])}" for key in keys if row.get(key) is not None)
    return f"at {at}" + (f" ({conjunction} at {plural(number, 'other')})" if number else "")


def cost_maps(rows: Sequence[Row]) -> tuple[Chart, ...]:
    """Heat maps of the cost over the two levers that vary fastest, one for each combination of the others."""
    keys = scenario_keys(rows)
    down, across = keys[-2:] if len(keys) > 1 else ("", keys[0])
    groups: dict[str, list[Row]] = {}
    for row in rows:
        place = ", ".join(f"{clean(key)} {varied_words(key, row.get(key))}" for key in keys[:-2])
        groups.setdefault(place, []).append(row)
    costs = _costs(rows) or [0.0]
    levers = f"{clean(down)} (down) and {clean(across)} (across)" if down else clean(across)

    def values(row: Row) -> list[str]:
        return [varied_words(key, row[key]) for key in (down, across) if key]

    def cell(row: Row) -> HeatCell:
        """The unit of the number in it stands in the caption."""
        cost, shown = row["cost_usd_per_hour"], values(row)
        place = ", ".join(f"{key} {value}" for key, value in zip(keys[-2:], shown, strict=True))
        number = MISSING if cost is None else hourly(cost).removeprefix("$").removesuffix("/h")
        tip = f"{place}: {_cost_cell(row)}, {fleet_line(read_pools(row['pools']))}"
        return HeatCell(shown[0] if down else "", shown[-1], (number,), tone_of(cost, (min(costs), max(costs))), tip)

    return tuple(
        Chart(
            title=f"Cost{' at ' if place else ''}{place}: {_span_words(group)}",
            caption=f"$/h by {levers}; the stronger the color, the more it costs; – is no fleet.",
            drawing=draw_heat_map([cell(row) for row in group], down, across, f"cost by {levers}"),
            table=table_of([*map(clean, keys[-2:]), "#cost"], [(*values(row), _cost_cell(row)) for row in group]),
        )
        for place, group in groups.items()
    )


def _span_words(rows: Sequence[Row]) -> str:
    """The least and the highest cost of some rows as their cells have them, and how many have none."""
    costs = _costs(rows)
    if not costs:
        return "no fleet"
    span = " to ".join(dict.fromkeys(hourly(cost) for cost in (min(costs), max(costs))))
    none = len(rows) - len(costs)
    return f"{span}; no fleet in {none} of {plural(len(rows), 'cell')}" if none else span


def _cost_cell(row: Row) -> str:
    return cost_or_status(row["cost_usd_per_hour"], row["status"])


# --- shadow prices --------------------------------------------------------------------------------------------------


def shadow_document(rows: Sequence[ShadowPrice], here: Answer) -> Document:
    """What more of each limit is worth; here: the answer for the file as it stands."""
    if here.cost is None:
        return no_fleet_document("No fleet meets the SLO, so no limit has a price.", here)
    if not rows:
        none = "The file states no limit that has a shadow price: inventory, budget, power, max_gpus."
        return Document((none,), (Section(),))
    saving = [row for row in rows if row.whole is not None]
    best = max(saving, key=lambda row: row.whole or 0.0, default=None)
    headline = "No larger limit that was tried makes the fleet cheaper."
    if best is not None:
        headline = f"A larger {best.limit.replace(' ', ' of ')} makes the fleet cheaper: {_whole(best)}."
    cells = [
        (
            row.limit,
            quantity(row.upper, row.unit),
            f"{significant(row.dual)} {row.worth}",
            f"{significant(row.difference)} {row.worth}",
            _whole(row),
        )
        for row in rows
    ]
    again = Column("solved again", "right", optional=True)
    whole = Column("in whole fleets", shrink=True, lines=3)
    return Document(
        (headline,), (Section(table=table_of(["limit", "#value", "#worth per unit", again, whole], cells)),)
    )


def _whole(row: ShadowPrice) -> str:
    """What the least increase that makes a cheaper fleet possible is, and saves."""
    if row.worth == "req/s":
        return "serves more demand, saves nothing"
    if row.whole is None or row.wider is None:
        return "no increase that was tried saves anything"
    more = f"{significant(row.wider)} more GPU{'' if row.wider == 1 else 's'}" if row.unit == "GPU" else ""
    return f"{more or f'{quantity(row.wider, row.unit)} more'} save{'s' if row.wider == 1 else ''} {hourly(row.whole)}"


# --- the tornado ----------------------------------------------------------------------------------------------------


def tornado_record(rows: Sequence[TornadoRow]) -> list[dict[str, Any]]:
    """The tornado as records, with the swing of each lever."""
    return [
        {
            "lever": row.lever.key,
            "value": row.lever.value,
            "low": row.lever.low,
            "high": row.lever.high,
            "cost": row.here.cost,
            "cost_low": row.low.cost,
            "cost_high": row.high.cost,
            "pools_low": pool_records(row.low.pools),
            "pools_high": pool_records(row.high.pools),
            "attainment": row.here.attainment,
            "attainment_low": row.low.attainment,
            "attainment_high": row.high.attainment,
            "swing": row.swing,
        }
        for row in rows
    ]


def tornado_document(rows: Sequence[TornadoRow]) -> Document:
    """The least cost with each lever lower and higher, the largest swing first."""
    here, records = rows[0].here, [row.record() for row in rows]
    attainments = [
        [best.attainment for best in (row.here, row.low, row.high) if best.attainment is not None] for row in rows
    ]
    levers = levers_table(records, here.cost)
    table = fleet_table(levers.columns, levers.rows, [min(shares, default=None) for shares in attainments])
    prices = "Prices are of one GPU." if any(row.lever.key.startswith("price.") for row in rows) else ""
    note = simulated_note(sum(map(bool, attainments)), len(rows), "levers") if here.cost is not None else ""
    depends = "" if here.cost is None else depends_words(records, here.cost)
    charts = (
        (Chart(f"{depends}.", TORNADO_KEY, draw_tornado(records, here.cost), table),) if here.cost and depends else ()
    )
    still = f"No lever changes the cost of {hourly(here.cost)}: the fleet has room."
    headline = "No fleet meets the SLO." if here.cost is None else f"{depends}." if depends else still
    sections = Section(charts=charts), Section(table=table), Section(sentences=said(prices, note))
    return Document((headline,), sections, here.cost is not None)


# --- near-optimal fleets --------------------------------------------------------------------------------------------


def alternatives_record(rows: Sequence[NearOptimal]) -> list[dict[str, Any]]:
    """Near-optimal fleets as records."""
    return [
        {"condition": row.condition, "excess": row.excess, "within_slack": row.within} | row.answer.row for row in rows
    ]


def alternatives_document(rows: Sequence[NearOptimal], slack: float) -> Document:
    """The cheapest fleet under each condition, and how many cost at most so much more."""
    best, answers = rows[0].answer, [row.answer for row in rows]
    number = sum(row.within for row in rows[1:])
    subject = {0: "No other fleet costs", 1: "One other fleet costs"}.get(number, f"{number} other fleets cost")
    headline = f"{subject} at most {percent(slack)} more than the cheapest ({hourly(best.cost)})."
    columns = ("condition", "#cost", "#more", Column("", beside=True), FLEET)
    cells = [
        (
            row.condition,
            "no fleet" if row.answer.cost is None else hourly(row.answer.cost),
            percent(row.excess),
            "within" if row.within else "",
            fleet_line(row.answer.pools),
        )
        for row in rows
    ]
    none = [row for row in rows if row.answer.cost is None]
    reasons = [f"{capital(row.condition)}: no fleet. {capital(reason(row.answer.binding))}" for row in none]
    refuted_fleets = [
        refuted_sentence(miss) for answer in answers if answer.cost is not None for miss in answer.refuted
    ]
    notes = said(*reasons, *dict.fromkeys(refuted_fleets), simulation_note(answers))
    table = fleet_table(columns, cells, [answer.attainment for answer in answers])
    if best.cost is None:
        headline = "No fleet meets the SLO."
    return Document((headline,), (Section(table=table), Section(sentences=notes)), best.cost is not None)


# --- the map ----------------------------------------------------------------------------------------------------------

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
    def costs(self) -> tuple[float | None, float | None]:
        """What both cost [$/h]; None where there is no fleet."""
        return self.colocated["cost_usd_per_hour"], self.disaggregated["cost_usd_per_hour"]

    @property
    def shape(self) -> str | None:
        """The cheaper shape; colocated, which has fewer pools, where both cost the same; None where neither is."""
        alone, split = self.costs
        if split is None or (alone is not None and alone <= split * (1.0 + EQUAL)):
            return None if alone is None else "colocated"
        return "disaggregated"

    @property
    def difference(self) -> float | None:
        """How much more the cheapest disaggregated fleet costs than the cheapest colocated one, as a share [1]."""
        alone, split = self.costs
        return split / alone - 1.0 if alone and split else None

    @property
    def saving(self) -> float | None:
        """What the cheaper shape saves against the other one, as a share of that [1]."""
        alone, split = self.costs
        return 1.0 - min(alone, split) / max(alone, split) if alone and split else None

    @property
    def best(self) -> Row:
        """The row of the cheaper shape; the colocated one where there is no fleet."""
        return self.disaggregated if self.shape == "disaggregated" else self.colocated

    @property
    def price(self) -> str:
        """The cost of the cheaper shape, with its first letter."""
        return MISSING if self.shape is None else f"{self.shape[0].upper()} {hourly(self.best['cost_usd_per_hour'])}"

    def place(self, keys: Sequence[str]) -> str:
        """Both values, after their levers."""
        return f"at {clean(keys[0])} {self.down}, {clean(keys[1])} {self.across}"


def cells_of(keys: Sequence[str], rows: Sequence[Row]) -> list[Cell]:
    """The cells of a sweep over two levers, whose last axis is ROLES: colocated, then disaggregated.

    Values stand to LEVER_DIGITS where these tell them apart.
    """

    def words(key: str) -> dict[str, str]:
        short, long = (
            {str(row[key]): varied_words(key, row[key], digits) for row in rows} for digits in (LEVER_DIGITS, 6)
        )
        return short if len({*short.values()}) == len(short) else long

    down, across = map(words, keys)
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [Cell(down[str(alone[keys[0]])], across[str(alone[keys[1]])], alone, split) for alone, split in pairs]


def _fleet_of(keys: Sequence[str], row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in {"number", ROLES, *keys}}


def map_record(keys: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    """Every cell as a record: both rows, the cheaper shape, and the difference in cost."""
    return {
        "over": list(keys),
        "cells": [
            {key: cell.colocated[key] for key in keys}
            | {"cheapest": cell.shape, "disaggregated_over_colocated": cell.difference}
            | {shape: _fleet_of(keys, getattr(cell, shape)) for shape in SHAPES}
            for cell in cells_of(keys, rows)
        ],
    }


def map_rows(keys: Sequence[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each shape of each cell, for `reports.rows`."""
    return [
        {key: cell.colocated[key] for key in keys}
        | {"shape": shape, "cheapest": cell.shape == shape}
        | _fleet_of(keys, getattr(cell, shape))
        for cell in cells_of(keys, rows)
        for shape in SHAPES
    ]


def map_document(keys: Sequence[str], rows: Sequence[Row], effort: str) -> Document:
    """Three grids: the cheapest fleet, what disaggregation costs against colocated, and the GPUs."""
    cells = cells_of(keys, rows)
    having = [row for row in rows if row["cost_usd_per_hour"] is not None]
    reasons = {cell.best["binding"].partition(":")[0]: cell for cell in cells if cell.shape is None}
    across = list(dict.fromkeys(cell.across for cell in cells))
    head = Column(f"{clean(keys[0])} \\ {clean(keys[1])}", "right")
    columns = [head, *(Column(value, "right", shrink=True, lines=3) for value in across)]

    def grid(title: str, words: Callable[[Cell], str]) -> Section:
        """A row for each value of the first lever, a column for each of the second."""
        lines = [[down, *map(words, group)] for down, group in groupby(cells, key=lambda cell: cell.down)]
        return Section(title, table=table_of(columns, lines))

    grids = (
        Section(charts=(map_chart(keys, cells),)),
        grid("The cheapest fleet, C colocated or D disaggregated", lambda cell: cell.price),
        grid("Disaggregated against colocated", lambda cell: signed_percent(cell.difference)),
        grid("GPUs of the cheapest fleet", _gpus),
    )
    notes = said(
        *(no_fleet_sentence(cell.place(keys), cell.best["binding"]) for cell in reasons.values()),
        f"{EFFORTS[effort]} --csv and --json have both fleets of each cell with all settings.",
        simulated_note(sum(row["simulated"] for row in having), len(having)),
    )
    return Document(
        headline=said(map_headline(keys, cells), _mix_sentence(cells)),
        sections=(*(grids if having else ()), Section(sentences=notes)),
        positive=bool(having),
    )


def _gpus(cell: Cell) -> str:
    return " + ".join(f"{count} {name}" for name, count in cell.best["gpus"].items()) or MISSING


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
    most = max(split, key=lambda cell: cell.saving or 0.0)
    if most.saving is None:
        return f"Only disaggregated fleets meet the SLO {where}."
    return f"Disaggregation is cheaper {where}, by up to {percent(most.saving)} ({most.place(keys)})."


def _mix_sentence(cells: Sequence[Cell]) -> str:
    """Which GPU types the cheapest fleets are of, and in how many cells; empty where there is one type throughout."""
    mixes = Counter(" + ".join(sorted(cell.best["gpus"])) for cell in cells if cell.shape is not None)
    if len(mixes) == 1:
        return f"All of them use {next(iter(mixes))}."
    most = [f"{mix} in {plural(number, 'cell')}" for mix, number in mixes.most_common(MOST_MIXES)]
    return f"Cheapest GPUs: {join_words(most)}." if most else ""


def map_chart(keys: Sequence[str], cells: Sequence[Cell]) -> Chart:
    """The heat map: its hue is the cheaper shape, its strength the saving against the other one."""
    most = max((cell.saving for cell in cells if cell.saving is not None), default=0.0)
    title = map_headline(keys, cells)

    def fleets(cell: Cell) -> list[tuple[str, str]]:
        shapes = (cell.colocated, cell.disaggregated)
        return [(hourly(row["cost_usd_per_hour"]), fleet_line(read_pools(row["pools"]))) for row in shapes]

    def heat(cell: Cell) -> HeatCell:
        """The strongest tone where the other shape has no fleet."""
        family = "split" if cell.shape == "disaggregated" else "alone"
        saving = most if cell.saving is None else cell.saving
        tone = tone_of(None if cell.shape is None else saving, (0.0, most), family)
        lines = cell.price.replace("$", "").removesuffix("/h"), signed_percent(cell.difference)
        tip = "; ".join(f"{shape} {cost}, {fleet}" for shape, (cost, fleet) in zip(SHAPES, fleets(cell), strict=True))
        return HeatCell(cell.down, cell.across, lines, tone, f"{cell.place(keys)}: {tip}")

    columns = ("cheapest", "#difference", "#colocated", "colocated fleet", "#disaggregated", "disaggregated fleet")
    table = [
        (cell.down, cell.across, cell.shape or MISSING, signed_percent(cell.difference), *sum(fleets(cell), ()))
        for cell in cells
    ]
    return Chart(
        title=title,
        caption="$/h of the cheapest fleet (C colocated, D disaggregated), and what disaggregated costs against "
        "colocated. The stronger the color, the more the cheaper one saves.",
        drawing=draw_heat_map(list(map(heat, cells)), keys[0], keys[1], title),
        table=table_of((*map(clean, keys), *columns), table),
        legend=(("split-6", "disaggregated is cheaper"), ("alone-6", "colocated is cheaper")),
    )
