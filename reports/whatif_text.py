"""The rows of a sweep as a terminal table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .numbers import hourly, percent, rate, significant
from .table import Column, render_table
from .text import clean, wrap

ANSWER_KEYS: Final = (
    "number",
    "status",
    "cost_usd_per_hour",
    "bound_usd_per_hour",
    "gap",
    "goodput_rps",
    "goodput_per_dollar",
    "gpus",
    "binding",
    "pools",
    "simulated_attainment",
)
"""Keys of a row that are the answer; the others say which scenario it is."""
DEPTHS: Final = {
    "simple": "Fleets of one or two pools, by formula, without a bound; --full searches all fleets and proves how far "
    "from the cheapest each can be.",
    "full": "The whole search, by formula; a fleet is cheaper than the one shown by the gap at most.",
    "simulated": "The whole search; each fleet keeps every goal when its requests are simulated.",
}

Row = Mapping[str, Any]


def scenario_keys(rows: Sequence[Row]) -> list[str]:
    """Keys that say which scenario a row is, in their order."""
    return list(dict.fromkeys(key for row in rows for key in row if key not in ANSWER_KEYS))


def sweep_text(rows: Sequence[Row], depth: str, width: int) -> str:
    """A table with a line per scenario, and what was solved."""
    keys = scenario_keys(rows)
    columns = [
        *(Column(clean(key), "left" if key == "scenario" else "right") for key in keys),
        Column("cost", "right"),
        Column("goodput", "right", optional=True),
        Column("fleet", shrink=True, lines=2),
        Column("gives out first", shrink=True, lines=2, optional=True),
        Column("gap", "right", optional=True),
    ]
    cells = [
        [
            *(clean(told(row.get(key))) for key in keys),
            hourly(row["cost_usd_per_hour"]) if row["cost_usd_per_hour"] is not None else row["status"],
            rate(row["goodput_rps"]),
            fleet_words(row),
            row["binding"],
            percent(row["gap"]),
        ]
        for row in rows
    ]
    return "\n".join([render_table(cells, columns, width), "", *wrap(DEPTHS[depth], width)])


def told(value: object) -> str:
    """A varied value in words."""
    return significant(value, 6) if isinstance(value, float) else "" if value is None else str(value)


def fleet_words(row: Row) -> str:
    """The pools of a row, or why there are none."""
    return " + ".join(row["pools"]) or row["binding"]
