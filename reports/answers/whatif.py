"""What `pdplan whatif` answers: a sweep, break-even values, shadow prices, the tornado and near-optimal fleets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from costmodel.words import join_words
from optimizer.plans.records import EnginePool, pool_records, read_pools, unpriced
from optimizer.whatif.answer import Answer, Missed, answer_row, refuted_rows
from optimizer.whatif.break_even import Pieces
from optimizer.whatif.frontier import OVER
from optimizer.whatif.sensitivity import NearOptimal, ShadowPrice, TornadoRow
from reports.charts import HeatCell, draw_heat_map, tone_of
from reports.document import Chart, Detail, Document, Section, Table, said, table_of
from reports.numbers import MISSING, hourly, is_number, monthly, percent, quantity, rate, significant
from reports.sensitivity import (
    FACTOR,
    TORNADO_KEY,
    LeverBar,
    depends_words,
    draw_tornado,
    exact_words,
    fleet_line,
    lever_bar,
    value_words,
)
from reports.table import Column
from reports.text import capital, clean, plural, sentence
from reports.words import constraint_words, cost_or_status
from search_spaces.levers import LEVERS, number_of
from search_spaces.quantities import QuantityError

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
FLEET: Final = Column("replicas × GPU", shrink=True, lines=4)
"""The pools of a fleet, whole on a terminal of 80 columns where they are two."""
BINDS: Final = Column("binds first", shrink=True, lines=4, optional=True)
EFFORTS: Final = {
    "simple": "The cheapest fleets of one pool, or of a prefill and a decode pool, by formula; --full searches all "
    "fleets, and says what any other could save.",
    "full": "The search of pdplan optimize --effort quick, by formula.",
    "simulated": "The search of pdplan optimize; each fleet meets every SLO in simulation.",
}
GAP: Final = "No fleet of any shape saves more than the gap."
MOST_MAPS: Final = 6
"""Heat maps of a page."""
MOST_VALUES: Final = 3
"""Values at which the fleet changes that the headline lists."""

Row = Mapping[str, Any]


def whatif_document(answers: Sequence[Document], remarks: Sequence[str], about: Sequence[str]) -> Document:
    """The answers to all that was asked as one document.

    remarks: what a buyer has to know of the prices; about: the question, and the name of the problem.
    """
    first, *rest = answers
    below = (section for document in rest for section in _below(document))
    sections = (*first.sections, *below, Section(sentences=tuple(remarks)))
    return replace(first, sections=sections, positive=any(item.positive for item in answers), about=tuple(about))


def _below(document: Document) -> tuple[Section, ...]:
    """An answer below another: its headline is the title of its first section."""
    first, *rest = document.sections
    return replace(first, title=" ".join(document.headline)), *rest


def fleet_table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[str]], attainments: Sequence[float | None]
) -> Table:
    """A table of fleets; its last column is the share that met the SLO in simulation, where any was simulated."""
    if all(share is None for share in attainments):
        return table_of(columns, rows)
    cells = [[*row, percent(share)] for row, share in zip(rows, attainments, strict=True)]
    return table_of([*columns, "#SLO met"], cells)


def fleet_cell(pools: Sequence[EnginePool]) -> str:
    """The pools of a fleet in a table, replicas × GPU; a dash where there is none."""
    return fleet_line(pools) if pools else MISSING


def simulated_note(simulated: int, total: int, what: str = "rows") -> str:
    """How many of so many rows are of simulated fleets; empty where there is no row.

    >>> simulated_note(0, 0), simulated_note(2, 2).partition(". ")[2]
    ('', 'Every fleet meets its SLO.')
    """
    if not simulated:
        return (
            "Not simulated: a fleet may miss the SLO in simulation (pdplan optimize, or --verify N)." if total else ""
        )
    meaning = "SLO met: share of fresh simulated requests within their limits."
    if simulated == total:
        return f"{meaning} Every fleet meets its SLO."
    which = f"{simulated:,} of {total:,} {what}"
    return f"{meaning} The fleets of {which} were simulated and meet the SLO; the others are by formula (--verify N)."


def refuted_sentence(missed: Missed) -> str:
    """Say which fleet misses the SLO in simulation, what it costs, and by how much it misses."""
    return f"Not taken: {fleet_line(missed.pools)} for {hourly(missed.cost)} {missed.fault}."


def no_fleet_sentence(where: str, binding: str) -> str:
    """Say where there is no fleet, and what is in the way."""
    return f"No fleet {where}: {reason(binding)}"


def reason(binding: str) -> str:
    """What is in the way of a fleet, as the end of a sentence.

    >>> reason("budget of fleet: $5.00/h needed, but the budget is $0.10/h.")
    '$5.00/h needed, but the budget is $0.10/h.'
    """
    return f"{sentence(binding.partition(' of fleet: ')[2] or binding).removesuffix('.')}."


def no_fleet_document(headline: str, answer: Answer) -> Document:
    """Where no fleet meets the SLO, what is in the way."""
    return Document((headline,), (Section(sentences=(capital(reason(answer.binding)),)),), False)


def _cost(cost: float | None) -> str:
    return "no fleet" if cost is None else hourly(cost)


def _simulation_note(answers: Sequence[Answer]) -> str:
    having = [answer for answer in answers if answer.cost is not None]
    return simulated_note(sum(answer.attainment is not None for answer in having), len(having))


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


def cost_words(first: float | None, last: float | None) -> str:
    """From what to what a cost goes, by the hour and by the month.

    >>> cost_words(4.0, 4.0), cost_words(4.0, 9.0)
    ('$4.00/h ($2,920/month)', '$4.00/h to $9.00/h ($2,920 to $6,570/month)')
    """
    hours, months = (" to ".join(dict.fromkeys(map(words, (first, last)))) for words in (hourly, monthly))
    return f"{hours} ({months}/month)"


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
            fleet_cell(read_pools(row["pools"])),
            "" if row["cost_usd_per_hour"] is None else _binding_words(row["binding"]),
            percent(row["gap"]),
        ]
        for row in rows
    ]
    return fleet_table(columns, cells, [row["simulated_attainment"] for row in rows])


def scenario_keys(rows: Sequence[Row]) -> list[str]:
    """Keys that say which scenario a row is, in their order."""
    return list(dict.fromkeys(key for row in rows for key in row if key not in ANSWER_KEYS))


def varied_words(key: str, value: object, digits: int = 6) -> str:
    """A varied value in words: a number in the unit of its lever, anything else as it was stated.

    >>> varied_words("price.H100", 2.5), varied_words("rate", "600/min"), varied_words("attainment", "95%")
    ('$2.50/h', '10 req/s', '95 %')
    >>> varied_words("scenario", "007"), varied_words("weight_dtype", "fp8")
    ('007', 'fp8')
    """
    if value is None:
        return ""
    if isinstance(value, bool) or (isinstance(value, str) and key.partition(".")[0] not in LEVERS):
        return clean(str(value))
    try:
        return exact_words(key, number_of(key, str(value)), digits)
    except QuantityError:
        return clean(str(value))


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
        for missed in row["refuted"] if row["cost_usd_per_hour"] is not None else ():
            groups.setdefault((fleet_line(read_pools(missed["pools"])), missed["fault"]), []).append((row, missed))
    return [
        f"Not taken {_place([row for row, _ in group], scenario_keys(rows), 'and')}: {fleet} for "
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
        groups.setdefault(", ".join(f"{clean(key)} {varied_words(key, row.get(key))}" for key in keys[:-2]), []).append(
            row
        )
    costs = _costs(rows)
    span = (min(costs), max(costs)) if costs else (0.0, 0.0)
    levers = f"{clean(down)} (down) and {clean(across)} (across)" if down else clean(across)
    return tuple(
        Chart(
            title=f"Cost{' at ' if place else ''}{place}: {_span_words(group)}",
            caption=f"$/h by {levers}; the stronger the color, the more it costs; – is no fleet.",
            drawing=draw_heat_map(
                [_heat_cell(row, down, across, span) for row in group], down, across, f"cost by {levers}"
            ),
            table=table_of(
                [*([clean(down)] if down else []), clean(across), "#cost"],
                [
                    (
                        *(varied_words(key, row[key]) for key in (down, across) if key),
                        _cost_cell(row),
                    )
                    for row in group
                ],
            ),
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


def _heat_cell(row: Row, down: str, across: str, span: tuple[float, float]) -> HeatCell:
    """A cell of a cost map; the unit of its number stands in the caption."""
    cost = row["cost_usd_per_hour"]
    values = varied_words(down, row[down]) if down else "", varied_words(across, row[across])
    place = ", ".join(f"{key} {value}" for key, value in zip((down, across), values, strict=True) if key)
    number = MISSING if cost is None else hourly(cost).removeprefix("$").removesuffix("/h")
    tip = f"{place}: {cost_or_status(row['cost_usd_per_hour'], row['status'])}, {fleet_cell(read_pools(row['pools']))}"
    return HeatCell(*values, (number,), tone_of(cost, span), tip)


# --- break-even -----------------------------------------------------------------------------------------------------


def break_even_record(pieces: Pieces) -> dict[str, Any]:
    """The pieces and the values at which the best fleet changes."""
    changes = [
        {
            "value": below.high,
            "cost_below_usd_per_hour": below.cost_high,
            "cost_above_usd_per_hour": above.cost_low,
            "below": pool_records(unpriced(below.answer.pools)),
            "above": pool_records(unpriced(above.answer.pools)),
        }
        for below, above in pieces.changes
    ]
    stretches = [
        {
            "from": piece.low,
            "to": piece.high,
            "cost_from_usd_per_hour": piece.cost_low,
            "cost_to_usd_per_hour": piece.cost_high,
            "gpus": dict(piece.answer.gpus),
            "pools": pool_records(unpriced(piece.answer.pools)),
            "status": piece.answer.status.value,
            "simulated_attainment": piece.answer.attainment,
        }
        for piece in pieces.pieces
    ]
    record = {"lever": pieces.key, "tolerance": pieces.tolerance, "changes": changes, "pieces": stretches}
    return record | {"refuted": refuted_rows(pieces.refuted)}


def break_even_document(pieces: Pieces, *, simulable: bool) -> Document:
    """The best fleet over the range of a lever; simulable: whether fleets along the lever can be simulated."""
    answers = [piece.answer for piece in pieces.pieces]
    reasons = [
        no_fleet_sentence(f"from {_at(pieces, piece.low)} to {_at(pieces, piece.high)}", piece.answer.binding)
        for piece in pieces.pieces
        if piece.answer.cost is None
    ]
    note = _simulation_note(answers)
    if note and not simulable and all(answer.attainment is None for answer in answers):
        note = _not_simulable(pieces.key)
    notes = (*map(refuted_sentence, pieces.refuted), note)
    return Document(
        headline=(_changes_sentence(pieces),),
        sections=(Section(table=_pieces_table(pieces)), Section(sentences=said(*reasons, *notes))),
        positive=any(answer.cost is not None for answer in answers),
    )


def _at(pieces: Pieces, value: float) -> str:
    return exact_words(pieces.key, value)


def _changes_sentence(pieces: Pieces) -> str:
    """At which values the cheapest fleet changes, and how exactly they are known."""
    low, high = _at(pieces, pieces.pieces[0].low), _at(pieces, pieces.pieces[-1].high)
    values = [_at(pieces, piece.low) for piece in pieces.pieces[1:]]
    if not values:
        return f"From {low} to {high}, {pieces.key} does not change the cheapest fleet."
    times = "once" if len(values) == 1 else f"{len(values)} times"
    where = f", at {join_words(values)}" if len(values) <= MOST_VALUES else ""
    tolerance = exact_words(pieces.key, pieces.tolerance, 2).removeprefix(FACTOR)
    return f"From {low} to {high}, {pieces.key} changes the cheapest fleet {times}{where} (exact to {tolerance})."


def _pieces_table(pieces: Pieces) -> Table:
    """Each stretch of the lever with its fleet, how many GPUs that buys, and the cost at both ends."""
    name = pieces.key.partition(".")[2]
    by_price = pieces.key.startswith("price.")
    columns = (f"#{pieces.key} from", "#to", f"#{name} bought" if by_price else "#GPUs", "#cost from", "#to", FLEET)
    rows = [
        (
            _at(pieces, piece.low),
            _at(pieces, piece.high),
            str(_bought(piece.answer, name) if by_price else sum(piece.answer.gpus.values())),
            _cost(piece.cost_low),
            _cost(piece.cost_high),
            fleet_cell(piece.answer.pools),
        )
        for piece in pieces.pieces
    ]
    return fleet_table(columns, rows, [piece.answer.attainment for piece in pieces.pieces])


def _bought(answer: Answer, name: str) -> int:
    return next((count for card, count in answer.gpus.items() if card.casefold() == name.casefold()), 0)


def _not_simulable(key: str) -> str:
    """Say that no fleet along a lever is simulated, and what simulates it."""
    also = f", and pdplan frontier --over {key} shows how far each meets the SLO" if key in OVER else ""
    return (
        f"Not simulated: --verify is for fleets along a price, not along {key}. --simulate simulates each of them, "
        f"pdplan optimize the fleet at hand{also}."
    )


# --- shadow prices --------------------------------------------------------------------------------------------------


def shadow_record(rows: Sequence[ShadowPrice]) -> list[dict[str, Any]]:
    """Shadow prices as records."""
    return [asdict(row) for row in rows]


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
    columns = ("lever", "#low", "#cost at low", "#high", "#cost at high", "#swing")
    cells = [
        (
            row.lever.key,
            value_words(row.lever.key, row.lever.low),
            _cost(row.low.cost),
            value_words(row.lever.key, row.lever.high),
            _cost(row.high.cost),
            hourly(row.swing) if is_number(row.swing) else "no fleet",
        )
        for row in rows
    ]
    here = rows[0].here
    seen = [[best.attainment for best in (row.here, row.low, row.high) if best.attainment is not None] for row in rows]
    note = simulated_note(sum(bool(shares) for shares in seen), len(rows), "levers") if here.cost is not None else ""
    prices = "Prices are of one GPU." if any(row.lever.key.startswith("price.") for row in rows) else ""
    table = fleet_table(columns, cells, [min(shares, default=None) for shares in seen])
    bars = [lever_bar(row.lever.key, row.lever.low, row.low.cost, row.lever.high, row.high.cost) for row in rows]
    headline = _swing_sentence(rows[0], bars[0])
    charts: tuple[Chart, ...] = ()
    if here.cost is not None and rows[0].swing > 0.0:
        moving = [bar for bar, row in zip(bars, rows, strict=True) if row.swing > 0.0]
        charts = (Chart(headline, TORNADO_KEY, draw_tornado(moving, here.cost), table),)
    sections = Section(charts=charts), Section(table=table), Section(sentences=said(prices, note))
    return Document((headline,), sections, here.cost is not None)


def _swing_sentence(row: TornadoRow, bar: LeverBar) -> str:
    """What the lever of the largest swing does to the cost."""
    if row.here.cost is None:
        return "No fleet meets the SLO."
    if row.swing <= 0.0:
        return f"No lever changes the cost of {hourly(row.here.cost)}: the fleet has room."
    return f"{depends_words(bar, row.here.cost)}."


# --- near-optimal fleets --------------------------------------------------------------------------------------------


def alternatives_record(rows: Sequence[NearOptimal]) -> list[dict[str, Any]]:
    """Near-optimal fleets as records."""
    return [
        {"condition": row.condition, "excess": row.excess, "within_slack": row.within} | answer_row(row.answer)
        for row in rows
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
            _cost(row.answer.cost),
            percent(row.excess),
            "within" if row.within else "",
            fleet_cell(row.answer.pools),
        )
        for row in rows
    ]
    none = [row for row in rows if row.answer.cost is None]
    reasons = [f"{capital(row.condition)}: no fleet. {capital(reason(row.answer.binding))}" for row in none]
    refuted_fleets = [
        refuted_sentence(missed) for answer in answers if answer.cost is not None for missed in answer.refuted
    ]
    notes = said(*reasons, *dict.fromkeys(refuted_fleets), _simulation_note(answers))
    table = fleet_table(columns, cells, [answer.attainment for answer in answers])
    if best.cost is None:
        headline = "No fleet meets the SLO."
    return Document((headline,), (Section(table=table), Section(sentences=notes)), best.cost is not None)
