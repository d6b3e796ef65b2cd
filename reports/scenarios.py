"""Scenarios in words: levers with their values, and tables and sentences of the fleets that answer them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from costmodel.words import plural
from optimizer.whatif.answer import Answer
from search_spaces.quantities import BASE_UNIT, Kind, QuantityError
from search_spaces.scenarios import LEVERS, lever_of, number_of

from .document import Column, Document, Section, Table, table_of
from .numbers import MISSING, exact, hourly, monthly, percent, significant
from .text import capital, clean, sentence
from .words import fleet_line

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


def fleet_table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[str]], answers: Sequence[Answer], *, fleets: bool = True
) -> Table:
    """A table of answers: some columns, the fleet and, where any was simulated, the share that met the SLO.

    fleets: whether the fleet has a column.
    """
    shows_shares = any(answer.attainment is not None for answer in answers)
    cells = [
        [
            *row,
            *([fleet_line(answer.pools) if answer.pools else MISSING] if fleets else ()),
            *([percent(answer.attainment)] if shows_shares else ()),
        ]
        for row, answer in zip(rows, answers, strict=True)
    ]
    return table_of([*columns, *([FLEET] if fleets else ()), *(["#SLO met"] if shows_shares else ())], cells)


def cost_cell(answer: Answer) -> str:
    """What the fleet of an answer costs."""
    return "no fleet" if answer.cost is None else hourly(answer.cost)


def simulated_notes(answers: Sequence[Answer], noun: str = "rows") -> tuple[str, ...]:
    """What the share that met the SLO is, and how many fleets were simulated; none where there is no fleet."""
    having = [answer for answer in answers if answer.cost is not None]
    count = sum(answer.attainment is not None for answer in having)
    if not count:
        none = "Not simulated: a fleet may miss the SLO in simulation (pdplan optimize, or --verify N)."
        return (none,) if having else ()
    every = "Every fleet meets its SLO."
    subset = (
        f"The fleets of {count:,} of {len(having):,} {noun} were simulated and meet the SLO; the others are by formula "
        "(--verify N)."
    )
    meaning = "SLO met: share of fresh simulated requests within their limits."
    return meaning, every if count == len(having) else subset


def no_fleet_sentences(answers: Iterable[AnswerAt]) -> list[str]:
    """A sentence for every limit that leaves scenarios without a fleet, with the first of them."""
    groups: dict[str, list[AnswerAt]] = {}
    for place, answer in answers:
        if answer.cost is None:
            groups.setdefault(answer.binding.partition(":")[0], []).append((place, answer))
    return [
        f"No fleet {rows[0][0]}{_others('nor', len(rows) - 1)}: {reason(rows[0][1].binding)}"
        for rows in groups.values()
    ]


def ruled_out_sentences(misses: Iterable[AnswerAt]) -> list[str]:
    """A sentence for every fleet that misses the SLO in simulation: where first, what it costs, and how it misses.

    Other settings of the same engines read alike, and are told once.
    """
    groups: dict[str, dict[str, Answer]] = {}
    for place, miss in misses:
        groups.setdefault(fleet_line(miss.pools), {}).setdefault(place, miss)
    sentences = []
    for rows in groups.values():
        place, miss = next(iter(rows.items()))
        where = f"{' ' if place else ''}{place}{_others('and', len(rows) - 1)}"
        fleet = fleet_line(miss.pools, limits=True)
        sentences.append(f"Simulated and ruled out{where}: {fleet} for {hourly(miss.cost)}. It {miss.fault}.")
    return sentences


def _others(conjunction: str, number: int) -> str:
    return f" ({conjunction} in {plural(number, 'other row')})" if number else ""


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
