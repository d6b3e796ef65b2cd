"""Scenarios in words: levers with their values, and tables and sentences of the fleets that answer them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from optimizer.whatif.answer import Answer, Missed
from search_spaces.quantities import BASE_UNIT, Kind, QuantityError
from search_spaces.scenarios import LEVERS, kind_of, number_of

from .document import Column, Document, Section, Table, table_of
from .numbers import exact, hourly, monthly, percent, quantity, significant
from .text import capital, clean, sentence
from .words import fleet_line, in_words

_LEVERS: Final = {
    "rate_scale": "request rate",
    "isl": "mean input length",
    "osl": "mean output length",
    "isl_scale": "input lengths",
    "osl_scale": "output lengths",
    "ttft_scale": "TTFT limit",
    "tpot_scale": "TPOT limit",
    "link_scale": "network links",
    "step_time_quantile": "step times",
    "prefix_hit_share": "prefix hits",
    "power": "power limit",
}
_LENGTHS: Final = frozenset({"isl", "osl"})
_SHARES: Final = frozenset({"prefix_hit_share", "attainment", "growth"})
FACTOR: Final = "×"
"""Unit of levers that multiply."""
QUANTILE: Final = "step_time_quantile"


def lever_words(key: str) -> str:
    """Say a lever in words.

    >>> lever_words("price.H100"), lever_words("rate_scale"), lever_words("burstiness")
    ('price of H100', 'request rate', 'burstiness')
    """
    head, _, name = key.partition(".")
    return f"price of {clean(name, 24)}" if head == "price" and name else in_words(key, _LEVERS)


def value_words(key: str, value: float) -> str:
    """Write a lever's value with its unit; factors stand at ×1, step times at a quantile of their errors.

    >>> value_words("price.H100", 3.192), value_words("rate_scale", 0.8), value_words("budget", 40.0)
    ('$3.19/h', '×0.8', '$40.00/h')
    """
    if key == QUANTILE:
        return f"{percent(value)} quantile"
    unit = lever_unit(key)
    if unit == FACTOR:
        return f"{FACTOR}{significant(value)}"
    return quantity(value, unit) if unit else significant(value)


def exact_words(key: str, value: float, digits: int = 6) -> str:
    """The same to more digits, for values that were stated, or found exactly."""
    unit = lever_unit(key)
    return f"{FACTOR}{significant(value, digits)}" if unit == FACTOR else exact(value, unit, digits)


def lever_unit(key: str) -> str:
    """The unit of a lever's values; none for counts and other plain numbers.

    >>> lever_unit("price.H100"), lever_unit("rate"), lever_unit("rate_scale"), lever_unit("max_gpus")
    ('$/h', 'req/s', '×', '')
    """
    head, kind = key.partition(".")[0], kind_of(key)
    if kind is not None:
        return "req/s" if kind is Kind.RATE else BASE_UNIT[kind]
    if head in _LENGTHS:
        return "tokens"
    return "1" if head in _SHARES else FACTOR if head.endswith("_scale") else ""


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


# --- the fleets that answer ------------------------------------------------------------------------------------------

FLEET: Final = Column("replicas × GPU", shrink=True, lines=4)
"""The pools of a fleet, whole on a terminal of 80 columns where they are two."""


def whatif_document(answers: Sequence[Document], remarks: Sequence[str], about: Sequence[str]) -> Document:
    """The answers to all that was asked as one document.

    remarks: what a buyer has to know of the prices; about: the question, and the name of the problem.
    """
    first, *rest = answers
    sections = list(first.sections)
    for document in rest:
        sections += [Section(sentences=document.headline), *document.sections]
    sections.append(Section(sentences=tuple(remarks)))
    positive = any(item.positive for item in answers)
    return replace(first, sections=tuple(sections), positive=positive, about=tuple(about))


def fleet_table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[str]], attainments: Sequence[float | None]
) -> Table:
    """A table of fleets; its last column is the share that met the SLO in simulation, where any was simulated."""
    if all(share is None for share in attainments):
        return table_of(columns, rows)
    cells = [[*row, percent(share)] for row, share in zip(rows, attainments, strict=True)]
    return table_of([*columns, "#SLO met"], cells)


def simulated_note(simulated_count: int, total: int, noun: str = "rows") -> str:
    """How many of so many rows are of simulated fleets; empty where there is no row.

    >>> simulated_note(0, 0), simulated_note(2, 2).partition(". ")[2]
    ('', 'Every fleet meets its SLO.')
    """
    if not simulated_count:
        return (
            "Not simulated: a fleet may miss the SLO in simulation (pdplan optimize, or --verify N)." if total else ""
        )
    meaning = "SLO met: share of fresh simulated requests within their limits."
    if simulated_count == total:
        return f"{meaning} Every fleet meets its SLO."
    subset = f"{simulated_count:,} of {total:,} {noun}"
    return f"{meaning} The fleets of {subset} were simulated and meet the SLO; the others are by formula (--verify N)."


def refuted_sentence(miss: Missed) -> str:
    """Say which fleet misses the SLO in simulation, what it costs, and by how much it misses."""
    return f"Simulated and ruled out: {fleet_line(miss.pools)} for {hourly(miss.cost)} {miss.fault}."


def no_fleet_sentence(where: str, binding: str) -> str:
    """Say where there is no fleet, and what is in the way."""
    return f"No fleet {where}: {reason(binding)}"


def reason(binding: str) -> str:
    """What is in the way of a fleet, as the end of a sentence.

    >>> reason("budget of fleet: $5.00/h is needed, but the budget is $0.10/h.")
    '$5.00/h is needed, but the budget is $0.10/h.'
    """
    return f"{sentence(binding.partition(' of fleet: ')[2] or binding).removesuffix('.')}."


def no_fleet_document(headline: str, answer: Answer) -> Document:
    """Where no fleet meets the SLO, what is in the way."""
    return Document((headline,), (Section(sentences=(capital(reason(answer.binding)),)),), False)


def simulation_note(answers: Sequence[Answer]) -> str:
    """How many of some fleets were simulated."""
    having = [answer for answer in answers if answer.cost is not None]
    return simulated_note(sum(answer.attainment is not None for answer in having), len(having))


def cost_words(first: float | None, last: float | None) -> str:
    """From what to what a cost goes, by the hour and by the month.

    >>> cost_words(4.0, 4.0), cost_words(4.0, 9.0)
    ('$4.00/h ($2,920/month)', '$4.00/h to $9.00/h ($2,920 to $6,570/month)')
    """
    hours, months = (" to ".join(dict.fromkeys(map(words, (first, last)))) for words in (hourly, monthly))
    return f"{hours} ({months}/month)"
