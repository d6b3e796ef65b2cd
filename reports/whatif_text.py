"""The rows of a sweep as a terminal table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from optimizer.plans.records import EnginePool, engine_counts, read_pools
from optimizer.whatif.scenario import Missed
from search_spaces.levers import LEVERS, number_of
from search_spaces.quantities import QuantityError

from .numbers import MISSING, hourly, percent, rate
from .sensitivity import exact_words, fleet_line
from .table import Column, render_table
from .text import clean, plural, sentence, wrap
from .words import constraint_words, cost_or_status

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
    "simulated",
    "simulated_attainment",
    "refuted",
)
"""Keys of a row that are the answer; the others say which scenario it is."""
FLEET: Final = "replicas × GPU"
"""Header of the column of `fleet_cell`."""
LINES: Final = 4
"""Of a cell of words: a fleet of two pools is whole on a terminal of 80 columns."""
DEPTHS: Final = {
    "simple": "Fleets of one or two pools, found by formula; --gap proves how much cheaper any other could be, "
    "--full searches them all.",
    "proven": "Fleets of one or two pools, found by formula; no fleet of any shape can be cheaper by more than the "
    "gap.",
    "full": "The whole search, by formula; a fleet is cheaper than the one shown by the gap at most.",
    "simulated": "The whole search; each fleet meets every SLO in simulation.",
}

SETTINGS: Final = (
    "Fleets of the same words may differ in max_num_seqs and max_num_batched_tokens, hence in goodput; --json, --csv "
    "and --parquet show these."
)

Row = Mapping[str, Any]


def scenario_keys(rows: Sequence[Row]) -> list[str]:
    """Keys that say which scenario a row is, in their order."""
    return list(dict.fromkeys(key for row in rows for key in row if key not in ANSWER_KEYS))


def sweep_text(rows: Sequence[Row], depth: str, width: int) -> str:
    """A table with a line per scenario, and what was solved."""
    keys, shown = scenario_keys(rows), any(row["simulated"] for row in rows)
    columns = [
        *(Column(clean(key), "left" if key == "scenario" else "right") for key in keys),
        Column("cost", "right"),
        Column("goodput", "right", optional=True),
        Column(FLEET, shrink=True, lines=LINES),
        Column("binds first", shrink=True, lines=LINES, optional=True),
        Column("gap", "right", optional=True),
        *([Column("SLO met", "right")] if shown else []),
    ]
    cells = [
        [
            *(clean(told(key, row.get(key))) for key in keys),
            cost_or_status(row["cost_usd_per_hour"], row["status"]),
            MISSING if row["cost_usd_per_hour"] is None else rate(row["goodput_rps"]),
            fleet_cell(read_pools(row["pools"])),
            "" if row["cost_usd_per_hour"] is None else gives_out(row["binding"]),
            percent(row["gap"]),
            *([percent(row["simulated_attainment"])] if shown else []),
        ]
        for row in rows
    ]
    notes = [
        *reasons(rows),
        *refuted_notes(rows),
        *hidden_settings(rows),
        depth_note(rows, depth),
        *looked(rows, depth),
    ]
    return "\n".join([render_table(cells, columns, width), "", *(line for note in notes for line in wrap(note, width))])


def gives_out(binding: str) -> str:
    """What gives out first, and where, with its short name in words.

    >>> gives_out("kv_memory of decode-1, 12 % room")
    'KV memory of decode-1, 12 % room'
    """
    name, blank, rest = binding.partition(" ")
    return f"{constraint_words(name)}{blank}{rest}"


def depth_note(rows: Sequence[Row], depth: str) -> str:
    """What was solved, and what the gap means where there is one."""
    return DEPTHS["proven" if depth == "simple" and any(row["gap"] is not None for row in rows) else depth]


def looked(rows: Sequence[Row], depth: str) -> list[str]:
    """How many of the rows with a fleet were simulated; where none is by --full, how to have it."""
    having = [row for row in rows if row["cost_usd_per_hour"] is not None]
    if having and depth == "full":
        return ["Not simulated: --simulate, in place of --full, may find that a fleet misses the SLO."]
    return simulated_note(sum(row["simulated"] for row in having), len(having))


def simulated_note(simulated: int, every: int, what: str = "rows") -> list[str]:
    """How many of so many rows are of simulated fleets; nothing where there is none.

    >>> simulated_note(0, 0), simulated_note(2, 2)[0].partition("; ")[2]
    ([], 'every fleet meets its SLO.')
    """
    if not simulated:
        return ["Not simulated: pdplan optimize, or --verify N, may find that a fleet misses the SLO."] if every else []
    meaning = "SLO met: share of fresh simulated requests within their limits"
    if simulated == every:
        return [f"{meaning}; every fleet meets its SLO."]
    part = f"{simulated:,} of {every:,} {what}"
    return [f"{meaning}; the fleets of {part} meet the SLO so, the others are by formula (--verify N)."]


def refuted_sentence(one: Missed) -> str:
    """Say which fleet did not hold when it was simulated, what it would have cost, and how it missed."""
    return f"Missed in simulation: {fleet_line(one.pools)}, {hourly(one.cost)}, {one.fault}."


def refuted_notes(rows: Sequence[Row]) -> list[str]:
    """A sentence for every fleet that the formulas promised and a simulation refuted, with the first of its rows."""
    keys = scenario_keys(rows)
    groups: dict[tuple[str, str], list[tuple[Row, Any]]] = {}
    for row in rows:
        for one in row["refuted"] if row["cost_usd_per_hour"] is not None else ():
            groups.setdefault((fleet_line(read_pools(one["pools"])), one["fault"]), []).append((row, one))
    return [_refuted(fleet, fault, mine, keys) for (fleet, fault), mine in groups.items()]


def _refuted(fleet: str, fault: str, mine: Sequence[tuple[Row, Any]], keys: Sequence[str]) -> str:
    row, one = mine[0]
    more = f" (and at {plural(len(mine) - 1, 'other')})" if len(mine) > 1 else ""
    return (
        f"Missed in simulation at {_scenario(row, keys)}{more}: {fleet}, {hourly(one['cost_usd_per_hour'])} by "
        f"formula, {fault}; the row shows the cheapest other fleet."
    )


def reasons(rows: Sequence[Row]) -> list[str]:
    """A sentence for every limit that leaves scenarios without a fleet, with what it says of the first of them."""
    keys = scenario_keys(rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["cost_usd_per_hour"] is None:
            groups.setdefault(row["binding"].partition(":")[0], []).append(row)
    return [f"{_place(mine, keys)}: {sentence(mine[0]['binding']).removesuffix('.')}." for mine in groups.values()]


def _place(rows: Sequence[Row], keys: Sequence[str]) -> str:
    others = f" (nor at {plural(len(rows) - 1, 'other')})" if len(rows) > 1 else ""
    return f"No fleet at {_scenario(rows[0], keys)}{others}"


def _scenario(row: Row, keys: Sequence[str]) -> str:
    return clean(", ".join(f"{key} {told(key, row[key])}" for key in keys if row.get(key) is not None))


def hidden_settings(rows: Sequence[Row]) -> list[str]:
    """A hint where fleets of the same words differ in the batch limits of their engines."""
    settings: dict[Hashable, set[tuple[Hashable, ...]]] = {}
    for pools in (read_pools(row["pools"]) for row in rows):
        limits = tuple((pool.max_num_seqs, pool.max_num_batched_tokens) for pool in pools)
        settings.setdefault(engine_counts(pools), set()).add(limits)
    return [SETTINGS] if any(len(several) > 1 for several in settings.values()) else []


def told(key: str, value: object) -> str:
    """A varied value in words: a number in the unit of its lever, anything else as it was stated.

    >>> told("price.H100", 2.5), told("rate", "600/min"), told("attainment", "95%"), told("weight_dtype", "fp8")
    ('$2.50/h', '10 req/s', '95 %', 'fp8')
    >>> told("scenario", "007")
    '007'
    """
    if value is None:
        return ""
    if isinstance(value, bool) or (isinstance(value, str) and key.partition(".")[0] not in LEVERS):
        return str(value)
    try:
        return exact_words(key, number_of(key, str(value)))
    except QuantityError:
        return str(value)


def fleet_cell(pools: Sequence[EnginePool]) -> str:
    """The pools of a fleet in a table, replicas × GPU; a dash where there is none."""
    return fleet_line(pools) if pools else MISSING
