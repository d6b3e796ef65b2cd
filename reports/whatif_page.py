"""A sweep as one offline HTML file without code: heat maps of the cost, and every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from optimizer.plans.records import read_pools

from .document import Chart, Table, table_of
from .drawing import WIDTH, Drawing, Mark, Rect, Text, text_width
from .json_text import as_script, finite
from .numbers import MISSING, hourly, percent, rate
from .text import fit, plural
from .views.html import environment
from .whatif_text import FLEET, Row, depth_note, fleet_cell, gives_out, looked, refuted_notes, scenario_keys, told
from .words import cost_or_status

MOST_MAPS: Final = 6
ALONE: Final = "sweep"
"""Stands for the second lever of a map where there is only one."""
LEVELS: Final = 8
"""Tones of a heat map."""
CELL_GAP: Final = 3.0
"""Between the text of a cell and the next cell, in drawing units."""
_LEFT, _TOP, _HEIGHT = 66.0, 26.0, 26.0


@dataclass(frozen=True, slots=True)
class SweepPage:
    """Everything on the page, top to bottom."""

    name: str
    headline: str
    charts: tuple[Chart, ...]
    cut: str
    note: str
    rows: Table


def render_sweep(rows: Sequence[Row], record: Mapping[str, Any], name: str, depth: str) -> str:
    """Return the sweep as one HTML document; record: what --json prints, embedded."""
    twin = Markup(as_script(finite(record)))  # noqa: S704 - without what HTML gives a meaning
    page = make_sweep_page(rows, name, depth)
    return environment().get_template("whatif.html.j2").render(page=page, twin=twin) + "\n"


def make_sweep_page(rows: Sequence[Row], name: str, depth: str) -> SweepPage:
    """Compute the page of a sweep."""
    keys = scenario_keys(rows)
    costs = [row["cost_usd_per_hour"] for row in rows if row["cost_usd_per_hour"] is not None]
    said = f"{plural(len(rows), 'scenario')}, {len(costs):,} with a fleet"
    headline = f"{said}: {hourly(min(costs))} to {hourly(max(costs))}" if costs else said
    cells = tuple(
        (
            *(told(key, row.get(key)) for key in keys),
            _cost(row),
            MISSING if row["cost_usd_per_hour"] is None else rate(row["goodput_rps"]),
            fleet_cell(read_pools(row["pools"])),
            (gives_out(row["binding"]) if row["cost_usd_per_hour"] is not None else row["binding"]) or MISSING,
            percent(row["gap"]),
            percent(row["simulated_attainment"]),
        )
        for row in rows
    )
    headers = (*keys, "#cost", "#goodput", FLEET, "binds first", "#gap", "#SLO met")
    maps = heat_maps(rows)
    few = f"The first {MOST_MAPS} of {len(maps)} maps; all scenarios stand in the table."
    cut = few if len(maps) > MOST_MAPS else ""
    note = " ".join([depth_note(rows, depth), *refuted_notes(rows), *looked(rows, depth)])
    return SweepPage(name, headline, maps[:MOST_MAPS], cut, note, table_of(headers, cells))


def heat_maps(rows: Sequence[Row]) -> tuple[Chart, ...]:
    """Maps of the cost over the two levers that vary fastest, one for each combination of the others.

    All share their tones; the title of each says what stands in its own cells.
    """
    keys = scenario_keys(rows)
    if len(keys) == 1:
        keys, rows = [ALONE, *keys], [{ALONE: "cost", **row} for row in rows]
    down, across = keys[-2:]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(f"{key} {told(key, row.get(key))}" for key in keys[:-2]), []).append(row)
    every = [row["cost_usd_per_hour"] for row in rows if row["cost_usd_per_hour"] is not None]
    span = (min(every), max(every)) if every else (0.0, 0.0)
    return tuple(
        Chart(
            title=f"Cost{' at ' if group else ''}{', '.join(group)}: {_finding(mine)}",
            caption=f"Dollars per hour by {_axes(down, across)}; the stronger the colour, the dearer; – is no fleet.",
            drawing=_map(mine, (down, across), span),
            table=table_of(
                (down, across, "#cost"), tuple((told(down, r[down]), told(across, r[across]), _cost(r)) for r in mine)
            ),
        )
        for group, mine in groups.items()
    )


def _finding(rows: Sequence[Row]) -> str:
    """The least and the highest cost of some rows as their cells have them, and how many have none."""
    costs = [row["cost_usd_per_hour"] for row in rows if row["cost_usd_per_hour"] is not None]
    if not costs:
        return "no fleet"
    ends = [hourly(cost) for cost in (min(costs), max(costs))]
    said = " to ".join(dict.fromkeys(ends))
    none = len(rows) - len(costs)
    return f"{said}; no fleet in {none} of {plural(len(rows), 'cell')}" if none else said


def _axes(down: str, across: str) -> str:
    return across if down == ALONE else f"{down} (down) and {across} (across)"


def _cost(row: Row) -> str:
    return cost_or_status(row["cost_usd_per_hour"], row["status"])


def _in_cell(row: Row) -> str:
    """The cost as everywhere on the page, its unit apart."""
    return MISSING if row["cost_usd_per_hour"] is None else _cost(row).removeprefix("$").removesuffix("/h")


def _map(rows: Sequence[Row], keys: tuple[str, str], span: tuple[float, float]) -> Drawing:
    """One map; the numbers stand in the cells where there is room."""
    down, across = ([*dict.fromkeys(told(key, row[key]) for row in rows)] for key in keys)
    width = (WIDTH - _LEFT) / len(across)
    header = f"{keys[1]} →" if keys[0] == ALONE else f"{keys[0]} ↓  {keys[1]} →"
    marks: list[Mark] = [Text(0, 12, header, "muted")]
    for row in rows:
        column, line = across.index(told(keys[1], row[keys[1]])), down.index(told(keys[0], row[keys[0]]))
        x, y = _LEFT + column * width, _TOP + line * _HEIGHT
        tone, cost = _tone(row["cost_usd_per_hour"], span), _in_cell(row)
        place = "" if keys[0] == ALONE else f"{keys[0]} {down[line]}, "
        tip = f"{place}{keys[1]} {across[column]}: {_cost(row)}, {fleet_cell(read_pools(row['pools']))}"
        marks.append(Rect(x, y, width - 1.5, _HEIGHT - 1.5, tone, tip))
        if text_width(cost) <= width - CELL_GAP:
            marks.append(Text(x + width / 2, y + 17, cost, f"on-{tone}", "middle"))
    marks += [Text(_LEFT - 6, _TOP + n * _HEIGHT + 17, fit(value, 9), "tick", "end") for n, value in enumerate(down)]
    bottom = _TOP + _HEIGHT * len(down)
    every = max(round(40.0 / width), 1)
    room = int((every * width - CELL_GAP) / text_width("0"))
    marks += [
        Text(_LEFT + (n + 0.5) * width, bottom + 16, fit(value, room), "tick", "middle")
        for n, value in enumerate(across)
        if n % every == 0
    ]
    return Drawing(WIDTH, bottom + 24, f"cost by {keys[0]} and {keys[1]}", tuple(marks))


def _tone(cost: float | None, span: tuple[float, float]) -> str:
    """Cheap is light, dear is dark; nothing where there is no fleet."""
    if cost is None:
        return "heat-0"
    share = (cost - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 0.0
    return f"heat-{1 + min(int(share * LEVELS), LEVELS - 1)}"
