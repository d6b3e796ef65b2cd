"""Scenarios in words: levers and their values, with tables and sentences on their fleets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from costmodel.words import plural
from optimizer.plans.plan import Plan
from optimizer.plans.records import (
    BreakEven,
    EnginePool,
    LeverSensitivity,
    PricePiece,
    Sensitivity,
    engine_counts,
)
from optimizer.whatif.answer import Answer
from reports.document import Column, Detail, Document, Section, Table, said, table_of
from reports.numbers import MISSING, exact, hourly, monthly, percent, signed_percent, significant
from reports.text import capital, clean, sentence
from search_spaces.quantities import BASE_UNIT, Kind, QuantityError
from search_spaces.scenarios import LEVERS, lever_of, number_of

from .alternatives import own_pools
from .fleets import fleet_line

QUANTILE: Final = "step_time_quantile"
FACTOR: Final = "×"
"""Unit of levers that multiply."""


def lever_words(key: str) -> str:
    """Say a lever in words.

    >>> lever_words("price.H100"), lever_words("rate_scale"), lever_words("burstiness")
    ('price of H100', 'request rate', 'burstiness')
    """
    head, _, name = key.partition(".")
    return (
        f"price of {clean(name, 24)}"
        if head == "price" and name
        else lever_of(key).name or clean(key).replace("_", " ")
    )


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


# --- moved levers -----------------------------------------------------------------------------------------------------


def _ends(row: LeverSensitivity) -> tuple[tuple[str, float | None], tuple[str, float | None]]:
    """Both ends of a lever in words, and the least cost there [$/h]."""
    return (
        (value_words(row.lever, row.low), row.usd_per_hour_low),
        (value_words(row.lever, row.high), row.usd_per_hour_high),
    )


# --- prices -----------------------------------------------------------------------------------------------------------


def piece_here(row: BreakEven) -> PricePiece | None:
    """The piece that the price at hand is in."""
    return next((piece for piece in row.pieces if piece.low <= row.usd_per_gpu_hour <= piece.high), None)


def break_even_sentence(plan: Plan, sensitivity: Sensitivity) -> str:
    """Say at which price of a GPU another fleet takes over first.

    What changes is the cheapest fleet by formula, which is named unless it has the same GPUs as the
    recommended one.
    """
    rows = [
        (row, below.high, above if piece_here(row) == below else below)
        for row in sensitivity.break_even
        for below, above in pairwise(row.pieces)
        if row.usd_per_gpu_hour > 0 and piece_here(row) in (below, above)
    ]
    if not rows:
        owns_gpus = any(entry.get("owned") for entry in plan.provenance.inputs.get("accelerators", ()))
        gpu_phrase = "a GPU to rent (what owned ones cost was not moved)" if owns_gpus else "a GPU"
        return f"By formula no price of {gpu_phrase}, from a quarter to four times as much, changes the cheapest fleet"
    row, at, piece = min(rows, key=lambda item: abs(item[1] / item[0].usd_per_gpu_hour - 1.0))
    away = at / row.usd_per_gpu_hour - 1.0
    change = (
        f"{'above' if away >= 0 else 'below'} {hourly(at)} per {clean(row.accelerator, 24)} ({signed_percent(away)})"
    )
    is_own_fleet = _alike(own_pools(plan), piece.pools)
    fleet = "the recommended fleet" if is_own_fleet else fleet_line(piece.pools)
    takes_over = f"{fleet} becomes cheaper" if piece.pools else "no fleet fits the budget"
    here = piece_here(row)
    if here is None or _gpus(here.pools) == plan.gpus:  # the same GPUs cost the same unless whole nodes are billed
        return f"Break-even by formula: {change}, {takes_over}"
    return f"By formula the cheapest fleet is {fleet_line(here.pools)}; {change}, {takes_over}"


def _gpus(pools: Sequence[EnginePool]) -> Counter[str]:
    """GPUs by accelerator."""
    return sum((Counter({pool.accelerator: pool.gpus}) for pool in pools), Counter[str]())


def _alike(own: Sequence[EnginePool], pools: Sequence[EnginePool]) -> bool:
    """Whether these are the pools of the recommended fleet, in any order."""
    return bool(own) and engine_counts(own) == engine_counts(pools)


# --- the section ------------------------------------------------------------------------------------------------------


def base_sentence(plan: Plan, sensitivity: Sensitivity) -> str:
    """Say which fleets the section's costs are of, and how the recommended one stands to them."""
    own, base = hourly(plan.cost_usd_per_hour), hourly(sensitivity.usd_per_hour)
    opening = f"One lever moves at a time, by formula. Costs are those of the cheapest fleet, now {base}"
    if _alike(own_pools(plan), sensitivity.pools):
        return f"{opening}, the recommended one."
    simulated_fleets = [] if plan.simulation is None else plan.simulation.others
    missed = any(_alike(fleet.pools, sensitivity.pools) and not fleet.held for fleet in simulated_fleets)
    unconfirmed = ", as simulation did not confirm that one" if missed else ""
    return f"{opening}. The recommended fleet costs {own}{unconfirmed}."


def swing_sentence(sensitivity: Sensitivity) -> str:
    """Say which lever moves the cost most, or leaves no fleet."""
    base = sensitivity.usd_per_hour
    costs = {row.lever: [base, row.usd_per_hour_low, row.usd_per_hour_high] for row in sensitivity.levers}
    row = next((row for row in sensitivity.levers if None in costs[row.lever]), sensitivity.levers[0])
    lever, ends = lever_words(row.lever), [cost for cost in costs[row.lever] if cost is not None]
    name = lever if lever == "burstiness" else f"the {lever}"
    without = next((value for value, cost in _ends(row) if cost is None), None)
    if without is not None:
        return f"With {name} at {without}, no fleet meets the SLO"
    if max(ends) - min(ends) <= 1e-9 * base:
        return f"No lever changes the cost within {percent(sensitivity.share)}: this fleet has room"
    return f"The cost depends most on {name}: {hourly(min(ends))} to {hourly(max(ends))}"


def sensitivity_section(plan: Plan) -> Section:
    """The section of a plan that has a fleet; where no lever was moved, what moves them."""
    sensitivity = plan.sensitivity
    if sensitivity is None:
        none = "Not worked out for this plan; pdplan whatif moves prices, demand, SLOs and limits."
        return Section("Sensitivity", (none,), detail=Detail.PAGE)
    changes = [(row, flip) for row in sensitivity.levers for flip in row.flips]
    sentences = (
        break_even_sentence(plan, sensitivity),
        swing_sentence(sensitivity) if sensitivity.complete else "",
        f"No other lever changes the fleet within {percent(sensitivity.share)}"
        if sensitivity.complete and not changes
        else "",
        "Step times are moved over the 90 % interval of our prediction errors" if sensitivity.complete else "",
    )
    cells = [
        (
            lever_words(row.lever),
            *(value_words(row.lever, value) for value in (row.value, flip.same_at, flip.other_at)),
            fleet_line(flip.pools),
            hourly(flip.usd_per_hour),
        )
        for row, flip in changes
    ]
    which = Column("which", shrink=True, lines=4)
    table = table_of(("lever", "#now", "#same engines at", "#others at", which, "#$/h fleet"), cells)
    where = Section("Levers that make another fleet the cheapest", table=table)
    return Section(
        "Sensitivity",
        (base_sentence(plan, sensitivity), *(f"{text}." for text in said(*sentences))),
        levers_table(sensitivity.levers, sensitivity.usd_per_hour),
        sections=(*((_prices_section(sensitivity),) if sensitivity.break_even else ()), *((where,) if changes else ())),
    )


def levers_table(levers: Sequence[LeverSensitivity], base: float | None) -> Table:
    """Each lever with its ends and what the cheapest fleet costs there, and beside it at hand [$/h]."""
    change = Column("change", "right", optional=True)
    columns = (Column("lever", shrink=True), "#lower", "#$/h fleet", change, "#higher", "#$/h fleet", change)
    rows = []
    for row in levers:
        cells = [lever_words(row.lever)]
        for value, cost in _ends(row):
            swing = "no fleet" if cost is None else signed_percent(cost / base - 1.0) if base else MISSING
            cells += [value, hourly(cost), swing]
        rows.append(cells)
    return table_of(columns, rows)


def _prices_section(sensitivity: Sensitivity) -> Section:
    """Which fleet is the cheapest at each price of a GPU."""
    rows = [
        (
            clean(row.accelerator),
            hourly(piece.low),
            hourly(piece.high),
            fleet_line(piece.pools),
            hourly(piece.usd_per_hour_low),
            hourly(piece.usd_per_hour_high),
            "yes" if piece is piece_here(row) else "no",
        )
        for row in sensitivity.break_even
        for piece in row.pieces
    ]
    headers = ("GPU", "#$/h GPU from", "#to", "cheapest fleet", "#$/h fleet from", "#to", "now")
    return Section("Cheapest fleet by price of a GPU", table=table_of(headers, rows), detail=Detail.PAGE)
