"""The answers of whatif and map: sweeps and maps, shadow prices and near-optimal fleets; levers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from costmodel.words import plural
from optimizer.plans.records import ROUNDING
from optimizer.whatif.answer import Answer, ScenarioAnswer, ShadowPrice
from reports.charts import EMPTY_CELL, HeatCell, draw_heat_map, tone_of
from reports.document import Chart, Column, Document, Section, Table, said, table_of, without_empty
from reports.fleets import fleet_line
from reports.question import constraint_words
from reports.text import (
    MISSING,
    capital,
    clean,
    exact,
    hourly,
    monthly,
    percent,
    quantity,
    rate,
    sentence,
    signed_percent,
    significant,
)
from search_spaces.quantities import BASE_UNIT, Kind, QuantityError
from search_spaces.scenarios import LEVERS, lever_of, number_of

QUANTILE: Final = "step_time_quantile"
FACTOR: Final = "×"
"""Unit of levers that multiply."""


def lever_words(key: str) -> str:
    """Say a lever in words.

    >>> lever_words("price.H100"), lever_words("rate_scale"), lever_words("burstiness"), lever_words("ttft.chat")
    ('price of H100', 'request rate', 'burstiness', 'TTFT limit of chat')
    """
    head, _, owner = key.partition(".")
    name = "price" if head == "price" else lever_of(key).name
    return f"{name}{' of ' * bool(owner)}{clean(owner, 24)}" if name else clean(key).replace("_", " ")


def value_words(key: str, value: float, digits: int = 3) -> str:
    """Write a lever's value with its unit; factors stand at ×1, step times at a quantile of their errors.

    >>> value_words("price.H100", 3.192), value_words("rate_scale", 0.8), value_words("budget", 40.0)
    ('$3.19/h', '×0.8', '$40.00/h')
    """
    unit = lever_unit(key)
    if key == QUANTILE:
        return f"{percent(value)} quantile"
    return f"{FACTOR}{significant(value, digits)}" if unit == FACTOR else exact(value, unit, digits)


def lever_unit(key: str) -> str:
    """The unit of a lever's values; none for counts and other plain numbers.

    >>> lever_unit("price.H100"), lever_unit("rate"), lever_unit("rate_scale"), lever_unit("max_gpus")
    ('$/h', 'req/s', '×', '')
    """
    lever = lever_of(key)
    return lever.unit if lever.kind is None else "req/s" if lever.kind is Kind.RATE else BASE_UNIT[lever.kind]


def varied_words(key: str, values: Sequence[object]) -> list[str]:
    """Varied values in words: numbers in the unit of their lever, in three digits where these tell them apart.

    >>> varied_words("price.H100", [2.5]), varied_words("rate", ["600/min", 16.6667])
    (['$2.50/h'], ['10 req/s', '16.7 req/s'])
    >>> varied_words("scenario", ["007"]), varied_words("weight_dtype", ["fp8", None])
    (['007'], ['fp8', ''])
    """
    short, long = ([_varied_value(key, value, digits) for value in values] for digits in (3, 6))
    return short if len({*short}) == len({*long}) else long


def _varied_value(key: str, value: object, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or (isinstance(value, str) and key.partition(".")[0] not in LEVERS):
        return clean(str(value))
    try:
        return value_words(key, number_of(key, str(value)), digits)
    except QuantityError:
        return clean(str(value))


# --- the fleets that answer ------------------------------------------------------------------------------------------

FLEET: Final = Column("replicas × GPU", shrink=True, lines=4)
"""The pools of a fleet, whole on a terminal of 80 columns where they are two."""
AnswerAt = tuple[str, Answer]
"""An answer, and where it is one as the end of a sentence, such as "at rate 5 req/s"."""


def whatif_document(answers: Sequence[Document], remarks: Sequence[str], about: Sequence[str]) -> Document:
    """The answers to all that was asked as one document; what two of them say stands once.

    remarks: what a buyer has to know of the prices; about: the question, and the name of the problem.
    """
    first, *rest = answers
    sections = list(first.sections)
    for document in rest:
        sections += [Section(sentences=document.headline), *document.sections]
    sections.append(Section(sentences=tuple(remarks)))
    known = set[str]()
    for at, section in enumerate(sections):
        sections[at] = replace(section, sentences=tuple(text for text in section.sentences if text not in known))
        known.update(section.sentences)
    positive = any(item.positive for item in answers)
    return replace(first, sections=tuple(sections), positive=positive, about=tuple(about))


def fleet_table(columns: Sequence[Column | str], rows: Sequence[Sequence[str]], answers: Sequence[Answer]) -> Table:
    """A table of answers: some columns, the fleet and, where any was simulated, the share that met the SLO."""
    cells = [
        [*row, fleet_line(answer.pools) if answer.pools else MISSING, percent(answer.attainment)]
        for row, answer in zip(rows, answers, strict=True)
    ]
    if all(answer.attainment is None for answer in answers):
        return table_of([*columns, FLEET], [row[:-1] for row in cells])
    return table_of([*columns, FLEET, "#SLO met"], cells)


def cost_cell(answer: Answer) -> str:
    """What the fleet of an answer costs."""
    return "no fleet" if answer.cost is None else hourly(answer.cost)


def fleet_notes(answers: Sequence[AnswerAt], *notes: str) -> tuple[str, ...]:
    """Where there is no fleet and why, what simulation ruled out, notes of one's own, and what was simulated."""
    having = [answer for _, answer in answers if answer.pools]
    ruled_out = ruled_out_sentences(miss for answer in having for miss in answer.refuted)
    return said(*no_fleet_sentences(answers), *ruled_out, *notes, *simulated_notes([answer for _, answer in answers]))


def simulated_notes(answers: Sequence[Answer]) -> tuple[str, ...]:
    """What the share that met the SLO is, and how many fleets were simulated; none where there is no fleet."""
    having = [answer for answer in answers if answer.cost is not None]
    count = sum(answer.attainment is not None for answer in having)
    if not count:
        none = "Not simulated: a fleet may miss the SLO in simulation (pdplan optimize, or --verify N)."
        return (none,) if having else ()
    every = "Every fleet meets its SLO."
    number = f"The fleets of {count:,} of {len(having):,} answers"
    subset = f"{number} were simulated and meet the SLO; the others are by formula (--verify N)."
    meaning = "SLO met: share of fresh simulated requests within their limits."
    return meaning, every if count == len(having) else subset


def no_fleet_sentences(answers: Iterable[AnswerAt]) -> list[str]:
    """A sentence for every limit that leaves scenarios without a fleet, with the first of them."""
    groups: dict[str, list[AnswerAt]] = {}
    for place, answer in answers:
        if answer.cost is None:
            groups.setdefault(answer.binding.partition(":")[0], []).append((place, answer))
    return [
        f"No fleet {rows[0][0]}{also}: {reason(rows[0][1].binding)}"
        for rows in groups.values()
        for also in [f" (nor in {plural(len(rows) - 1, 'other row')})" if len(rows) > 1 else ""]
    ]


def ruled_out_sentences(misses: Iterable[Answer]) -> tuple[str, ...]:
    """How many fleets that are cheaper by formula are not shown to meet the SLO in simulation; none where none is."""
    number = len({fleet_line(miss.pools, limits=True) for miss in misses})
    return (f"Simulated and ruled out: {plural(number, 'cheaper fleet')} (--json lists them).",) if number else ()


def reason(binding: str) -> str:
    """What is in the way of a fleet, as the end of a sentence.

    >>> reason("budget of fleet: $5.00/h is needed, but the budget is $0.10/h.")
    '$5.00/h is needed, but the budget is $0.10/h.'
    """
    return f"{sentence(binding.partition(' of fleet: ')[2] or binding).removesuffix('.')}."


def no_fleet_document(headline: str, answer: Answer) -> Document:
    """Where no fleet meets the SLO, what is in the way."""
    return Document((headline,), (Section(sentences=(capital(reason(answer.binding)),)),), False)


def cost_words(first: float | None, last: float | None) -> str:
    """From what to what a cost goes, by the hour and by the month.

    >>> cost_words(4.0, 4.0), cost_words(4.0, 9.0)
    ('$4.00/h ($2,920/month)', '$4.00/h to $9.00/h ($2,920 to $6,570/month)')
    """
    hours, months = (" to ".join(dict.fromkeys(map(words, (first, last)))) for words in (hourly, monthly))
    return f"{hours} ({months}/month)"


EFFORTS: Final = {
    "simple": "Each fleet is the cheapest of one pool, or of a prefill and a decode pool, by formula. --full searches "
    "all fleets, and says what any other could save.",
    "full": "Each fleet is what pdplan optimize --effort quick finds by formula, or that of the unchanged file where "
    "it costs less and still meets the SLO.",
    "simulated": "Each fleet is what pdplan optimize finds, and meets every SLO in simulation.",
}


# --- a sweep --------------------------------------------------------------------------------------------------------


WordsAndAnswer = tuple[tuple[str, ...], Answer]
"""What a scenario sets, in words, and its answer."""


def _assigned(keys: Sequence[str], values: Sequence[str]) -> str:
    """Levers with their values, of those that a scenario sets."""
    return ", ".join(f"{clean(key)} {value}" for key, value in zip(keys, values, strict=True) if value)


def sweep_document(results: Sequence[ScenarioAnswer], effort: str) -> Document:
    """A row for every scenario, and how each was solved."""
    keys = list(dict.fromkeys(key for item in results for key in item.setting))
    columns = [varied_words(key, [item.setting.get(key) for item in results]) for key in keys]
    answers = [item.answer for item in results]
    rows = list(zip(zip(*columns, strict=True), answers, strict=True))
    places = [(f"at {_assigned(keys, values)}", answer) for values, answer in rows]
    gaps = [answer.gap for answer in answers if answer.gap is not None]
    gap = f"Gap: an upper bound on what any other fleet could save; here at most {percent(max(gaps))}." if gaps else ""
    notes = fleet_notes(places, EFFORTS[effort], gap)
    return Document(
        headline=(sweep_headline(answers),),
        sections=(Section(table=sweep_table(keys, rows)), Section(sentences=notes)),
        positive=any(answer.cost is not None for answer in answers),
    )


def sweep_headline(answers: Sequence[Answer]) -> str:
    """From what to what the cheapest fleet costs, and how many scenarios have none."""
    costs, scenarios = [item.cost for item in answers if item.cost is not None], plural(len(answers), "scenario")
    if not costs:
        return f"No fleet meets the SLO in {'the scenario' if len(answers) == 1 else f'any of the {scenarios}'}."
    none = len(answers) - len(costs)
    gap = f" {none} {'has' if none == 1 else 'have'} no fleet that meets the SLO." if none else ""
    return f"{scenarios}: the cheapest fleet costs {cost_words(min(costs), max(costs))}.{gap}"


def sweep_table(keys: Sequence[str], rows: Sequence[WordsAndAnswer]) -> Table:
    """What varies in each scenario, and its fleet; what it carries and what binds it, where there is room."""
    columns = [
        *(Column(clean(key), "left" if key == "scenario" else "right") for key in keys),
        *(Column(head, "right") for head in ("cost", "gap")),
        Column("goodput", "right", optional=True),
        Column("binds first", spacious=True),
    ]
    cells = []
    for values, answer in rows:
        name, blank, rest = answer.binding.partition(" ")
        facts = (rate(answer.goodput), f"{constraint_words(name)}{blank}{rest}")
        none = (MISSING, MISSING)
        cells.append([*values, cost_cell(answer), percent(answer.gap), *(none if answer.cost is None else facts)])
    return without_empty(fleet_table(columns, cells, [answer for _, answer in rows]))


# --- shadow prices --------------------------------------------------------------------------------------------------


def shadow_document(rows: Sequence[ShadowPrice], here: Answer) -> Document:
    """What more of each limit is worth; here: the answer for the file as it stands."""
    if here.cost is None:
        return no_fleet_document("No fleet meets the SLO, so no limit has a price.", here)
    if not rows:
        none = "Shadow prices: none, as the file limits neither inventory, budget, power nor max_gpus."
        return Document((none,), (Section(),))
    saving = [row for row in rows if row.whole is not None]
    best = max(saving, key=lambda row: row.whole or 0.0, default=None)
    headline = "No larger limit that was tried makes the fleet cheaper."
    if best is not None:
        headline = f"A larger {best.limit.replace(' ', ' of ')} makes the fleet cheaper: {_whole(best)}."
    cells = [
        (
            row.limit.replace(" ", " of "),
            quantity(row.upper, row.unit),
            f"{significant(row.dual)} {row.worth}",
            _whole(row),
        )
        for row in rows
    ]
    whole = Column("in whole fleets", shrink=True, lines=3)
    notes = ("Worth per unit: what one more unit saves or serves, if replicas could be bought in fractions.",)
    table = table_of(["limit", "#value", "#worth per unit", whole], cells)
    return Document((headline,), (Section(table=table, notes=notes),))


def _whole(row: ShadowPrice) -> str:
    """What the least increase that makes a cheaper fleet possible is, and saves."""
    if row.worth == "req/s":
        return f"serves {'more' if row.dual > 0.0 else 'no more'} demand, saves nothing"
    if row.whole is None or row.wider is None:
        return "no increase tried saves anything"
    more = f"{significant(row.wider)} more GPU{'' if row.wider == 1 else 's'}" if row.unit == "GPU" else ""
    return f"{more or f'{quantity(row.wider, row.unit)} more'} save{'s' if row.wider == 1 else ''} {hourly(row.whole)}"


# --- near-optimal fleets --------------------------------------------------------------------------------------------


def alternatives_answer(rows: Sequence[tuple[str, Answer]], slack: float) -> tuple[list[dict[str, Any]], Document]:
    """The cheapest fleet under each condition, as records; and which cost at most so much more [1], as a document."""
    answers, least = [answer for _, answer in rows], rows[0][1].cost
    excesses = [None if answer.cost is None or not least else answer.cost / least - 1.0 for answer in answers]
    is_within = [excess is not None and excess <= slack * (1.0 + ROUNDING) for excess in excesses]
    records = [
        {"condition": condition, "excess": excess, "within_slack": within} | answer.row
        for (condition, answer), excess, within in zip(rows, excesses, is_within, strict=True)
    ]
    if least is None:
        return records, no_fleet_document("No fleet meets the SLO.", answers[0])
    near = zip(answers[1:], is_within[1:], strict=True)
    number = len({fleet_line(answer.pools) for answer, within in near if within})
    subject = {0: "No other fleet costs", 1: "One other fleet costs"}.get(number, f"{number} other fleets cost")
    headline = f"{subject} at most {percent(slack)} more than the cheapest ({hourly(least)})."
    cells = [
        (condition, cost_cell(answer), percent(excess), f"within {percent(slack)}" * within)
        for (condition, answer), excess, within in zip(rows, excesses, is_within, strict=True)
    ]
    notes = fleet_notes([(condition.replace("only", "of only"), answer) for condition, answer in rows])
    table = fleet_table(("condition", "#cost", "#more", Column("", beside=True)), cells, answers)
    return records, Document((headline,), (Section(table=table), Section(sentences=notes)))


# --- the map ----------------------------------------------------------------------------------------------------------

ROLES: Final = "search.roles"
"""Path of the roles that a search may use, which tells the two rows of a cell apart."""
SHAPES: Final[Mapping[str, tuple[str, ...]]] = {"colocated": ("colocated",), "disaggregated": ("prefill", "decode")}
"""Roles of each shape of fleet."""


Pair = tuple[Answer, Answer]
"""The colocated answer and the disaggregated one."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of two values in words, and the cheapest fleet of each shape there.

    shape: the cheaper one; where both cost the same the one that `optimize` chooses; None where neither has a fleet.
    """

    down: str
    across: str
    colocated: Answer
    disaggregated: Answer
    shape: str | None

    @property
    def difference(self) -> float | None:
        """How much more the cheapest disaggregated fleet costs than the cheapest colocated one, as a share [1]."""
        alone, split = self.colocated.cost, self.disaggregated.cost
        return split / alone - 1.0 if alone and split else None

    @property
    def saving(self) -> float | None:
        """What the cheaper shape saves against the other one, as a share of that [1]."""
        alone, split = self.colocated.cost, self.disaggregated.cost
        return 1.0 - min(alone, split) / max(alone, split) if alone and split else None

    @property
    def best(self) -> Answer:
        """The answer of the cheaper shape; the colocated one where there is no fleet."""
        return self.disaggregated if self.shape == "disaggregated" else self.colocated

    @property
    def price(self) -> str:
        """The cost of the cheaper shape, with its first letter."""
        return MISSING if self.shape is None else f"{self.shape[0].upper()} {hourly(self.best.cost)}"

    def place(self, keys: Sequence[str]) -> str:
        """Both values, after their levers."""
        return f"at {_assigned(keys, (self.down, self.across))}"


def cells_of(
    keys: Sequence[str], results: Sequence[ScenarioAnswer], cheapest: Callable[[Mapping[str, Any], Pair], Answer | None]
) -> list[Cell]:
    """The cells of a sweep over two levers, whose last axis is ROLES: colocated, then disaggregated.

    cheapest: which of two answers is the cheaper one, given the values of the levers (`solver.cheapest_of`).
    """
    down, across = (varied_words(key, [item.setting[key] for item in results[::2]]) for key in keys)
    cells = []
    for row, column, first, second in zip(down, across, results[::2], results[1::2], strict=True):
        pair = first.answer, second.answer
        best = cheapest({key: first.setting[key] for key in keys}, pair)
        names = [name for name, answer in zip(SHAPES, pair, strict=True) if answer is best]
        cells.append(Cell(row, column, *pair, names[0] if names else None))
    return cells


def map_rows(cells: Sequence[Cell], keys: Sequence[str], results: Sequence[ScenarioAnswer]) -> list[dict[str, Any]]:
    """A row for each shape of each cell, as a record and for `reports.rows`; cheapest: whether it is of the cheaper."""
    rows = [(cell, shape) for cell in cells for shape in SHAPES]
    return [
        {key: item.setting[key] for key in keys} | {"shape": shape, "cheapest": cell.shape == shape} | item.answer.row
        for (cell, shape), item in zip(rows, results, strict=True)
    ]


def map_document(keys: Sequence[str], cells: Sequence[Cell], effort: str) -> Document:
    """Three grids: the cheapest fleet, what disaggregation costs against colocated, and the GPUs."""
    having = any(cell.shape is not None for cell in cells)
    across = list(dict.fromkeys(cell.across for cell in cells))
    head = Column(f"{clean(keys[0])} \\ {clean(keys[1])}", "right")
    columns = [head, *(Column(value, "right", shrink=True, lines=3) for value in across)]

    def grid(title: str, words: Callable[[Cell], str]) -> Section:
        """A row for each value of the first lever, a column for each of the second."""
        lines = [[down, *map(words, group)] for down, group in groupby(cells, key=lambda cell: cell.down)]
        return Section(title, table=table_of(columns, lines))

    grids = (
        Section(charts=(map_chart(keys, cells),)),
        grid("Cost: of the cheapest fleet, C colocated or D disaggregated", lambda cell: cell.price),
        grid("Difference: disaggregated against colocated", lambda cell: signed_percent(cell.difference)),
        grid(
            "GPUs: of the cheapest fleet",
            lambda cell: " + ".join(f"{count} {name}" for name, count in cell.best.gpus.items()) or MISSING,
        ),
    )
    answers = [answer for cell in cells for answer in (cell.colocated, cell.disaggregated)]
    notes = (
        *no_fleet_sentences((cell.place(keys), cell.best) for cell in cells),
        *ruled_out_sentences(miss for answer in answers if answer.pools for miss in answer.refuted),
        f"{EFFORTS[effort]} --csv and --json have both fleets of each cell with all settings.",
        *simulated_notes(answers)[-1:],  # no grid has the shares that met the SLO
    )
    return Document(
        headline=(map_headline(keys, cells),),
        sections=(*(grids if having else ()), Section(sentences=notes)),
        positive=having,
    )


def map_headline(keys: Sequence[str], cells: Sequence[Cell]) -> str:
    """In how many cells disaggregation is cheaper, where it saves most, and in how many both cost the same."""
    having = [cell for cell in cells if cell.shape is not None]
    equal = [cell for cell in having if cell.saving is not None and cell.saving <= ROUNDING]
    split = [cell for cell in having if cell.shape == "disaggregated" and cell not in equal]
    if not having:
        return "No fleet meets the SLO in any cell."
    total = plural(len(having), "cell") + ("" if len(having) == len(cells) else " with a fleet")
    if len(equal) == len(having):
        return f"Colocated and disaggregated fleets cost the same in {total}."
    same = f" Both shapes cost the same in {len(equal)}." if equal else ""
    if not split:
        where = f"{len(having) - len(equal)} of" if equal else "all"
        return f"Colocated fleets are the cheapest in {where} {total}.{same}"
    where = f"in {len(split)} of {total}" if len(split) < len(having) else f"in all {total}"
    most = max(split, key=lambda cell: cell.saving or 0.0)
    if most.saving is None:
        return f"Only disaggregated fleets meet the SLO {where}.{same}"
    return f"Disaggregation is cheaper {where}, by up to {percent(most.saving)} ({most.place(keys)}).{same}"


def map_chart(keys: Sequence[str], cells: Sequence[Cell]) -> Chart:
    """The heat map: its hue is the cheaper shape, its strength the saving against the other one."""
    most = max((cell.saving for cell in cells if cell.saving is not None), default=0.0)
    down, across = map(lever_words, keys)

    def fleets(cell: Cell) -> list[tuple[str, str]]:
        return [(hourly(best.cost), fleet_line(best.pools)) for best in (cell.colocated, cell.disaggregated)]

    def heat(cell: Cell) -> HeatCell:
        """The strongest tone where the other shape has no fleet."""
        family = "split" if cell.shape == "disaggregated" else "alone"
        is_even = cell.saving is not None and cell.saving <= ROUNDING
        tone = "even" if is_even else tone_of(most if cell.saving is None else cell.saving, most, family)
        tone = EMPTY_CELL if cell.shape is None else tone
        lines = cell.price.replace("$", "").removesuffix("/h"), signed_percent(cell.difference)
        tip = "; ".join(f"{shape} {cost}, {fleet}" for shape, (cost, fleet) in zip(SHAPES, fleets(cell), strict=True))
        return HeatCell(cell.down, cell.across, lines, tone, f"{cell.place(keys)}: {tip}")

    columns = ("cheapest", "#difference", "#colocated", "colocated fleet", "#disaggregated", "disaggregated fleet")
    table = [
        (cell.down, cell.across, cell.shape or MISSING, signed_percent(cell.difference), *sum(fleets(cell), ()))
        for cell in cells
    ]
    return Chart(
        title=f"Cheapest fleet by {down} and {across}",
        caption="$/h of the cheapest fleet (C colocated, D disaggregated), and what disaggregated costs against "
        "colocated. The stronger the color, the more the cheaper one saves.",
        drawing=draw_heat_map(list(map(heat, cells)), down, across),
        table=table_of((*map(clean, keys), *columns), table),
        legend=(("split-6", "disaggregated is cheaper"), ("alone-6", "colocated is cheaper"), ("even", "same cost")),
    )
