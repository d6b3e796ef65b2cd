"""Quotes of GPU prices: what a provider asks for an hour of one GPU under a commitment, and the prices made of them.

The catalog's own stand in `costmodel/catalog/quotes.csv`; a user's file has the same columns (`prices: my-quotes.csv`).
A price is the median over providers of each one's median, so that ten regions of one provider weigh no more than the
single price of another; low and high are the cheapest and the dearest quote.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Annotated, cast

from pydantic import ValidationError, ValidationInfo, field_validator

from costmodel.accelerator import Origin, Price, PriceBasis
from costmodel.errors import InputError, name_hint, name_list, shown
from costmodel.units import MIB

from . import bounds
from .fields import FileSection, choice, csv_rows, faults_of, quantity
from .files import Fault, FaultsError, read_text, shipped_text, shown_path
from .quantities import Kind

FILE = "quotes.csv"
ENDING = ".csv"
"""Of a file of quotes, by which it is told from a basis."""
LARGEST_FILE = 4 * MIB
"""A file of quotes has some 100 bytes a row; ten thousand rows are more than any catalog of prices."""
REQUIRED = ("accelerator", "usd_per_hour")
COLUMNS = (*REQUIRED, "provider", "commitment", "date", "origin", "source")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


BASES: Mapping[str, tuple[PriceBasis, int | None, str]] = MappingProxyType(
    {
        "on-demand": (PriceBasis.ON_DEMAND, None, "on-demand list price"),
        "reserved-3-years": (PriceBasis.RESERVED, 3, "3-year reserved price"),
        "reserved-1-year": (PriceBasis.RESERVED, 1, "1-year reserved price"),
        "spot": (PriceBasis.SPOT, None, "spot price"),
        "owned": (PriceBasis.TCO, None, "modeled TCO price"),
    }
)
"""By commitment, which binds the buyer: basis, term [year] and name of its price; the first quoted is the usual one."""


class Quote(FileSection):
    """Price of an hour of one GPU [$/h] at a provider; date: of the quote, "by" that of its table, or empty."""

    accelerator: str
    usd_per_hour: Annotated[float, quantity(Kind.PRICE, bounds.PRICE)]
    provider: str = ""
    commitment: Annotated[str, choice(*BASES)] = "on-demand"
    date: str = ""
    origin: Annotated[Origin, choice(*Origin)] = Origin.STATED
    source: str = ""

    @field_validator("accelerator")
    @classmethod
    def _catalog_name(cls, name: str, info: ValidationInfo) -> str:
        """The catalog's name, which the context looks up."""
        if not name:
            raise InputError("is empty; name one that `pdplan gpus` lists")
        return str(cast(Callable[[str], str], info.context or str)(name))

    @field_validator("date")
    @classmethod
    def _is_day(cls, text: str) -> str:
        """A day of the calendar, year first; 01/11/2026 is in January or in November."""
        day = text.removeprefix("by ")
        with suppress(ValueError):
            if not day or (_DAY.fullmatch(day) and date.fromisoformat(day)):
                return text
        raise InputError(f"{shown(text)} is not a date; write year-month-day, such as 2026-11-30")


@cache
def shipped_quotes() -> Mapping[str, tuple[Quote, ...]]:
    """The catalog's quotes by accelerator.

    >>> {quote.commitment for quote in shipped_quotes()["H200"]} >= {"on-demand", "spot"}
    True
    """
    return _quotes(shipped_text("costmodel.catalog", FILE), FILE, str)


def read_quotes(path: Path, name_of: Callable[[str], str]) -> Mapping[str, tuple[Quote, ...]]:
    """The quotes of a user's file by accelerator; FaultsError with all that is wrong with it, each with its line.

    name_of: the catalog's name of an accelerator; raises InputError where it has none.
    """
    where = shown_path(path)
    quotes = _quotes(read_text(path, LARGEST_FILE, "a CSV file of quotes"), where, name_of)
    if not quotes:
        raise InputError(f"{where}: has no quotes; each is a row with {name_list(REQUIRED)}")
    return quotes


def basis_of(prices: str | None) -> PriceBasis | None:
    """The basis that a choice of prices asks for; None where it is a user's file of quotes, or nothing is chosen.

    >>> basis_of("spot"), basis_of("my-quotes.csv")
    (<PriceBasis.SPOT: 'spot'>, None)
    """
    return PriceBasis(prices) if prices in list(PriceBasis) else None


def is_quotes_file(prices: str) -> bool:
    """Whether a choice of prices names a user's file of quotes.

    >>> is_quotes_file("my-quotes.CSV"), is_quotes_file("spot")
    (True, False)
    """
    return prices.lower().endswith(ENDING)


def quotes_lost(prices: object, basis: object) -> str:
    """Says that a basis would replace a user's file of quotes by the catalog's; empty where it replaces none.

    >>> quotes_lost("on-demand", "spot"), quotes_lost("my-quotes.csv", None), quotes_lost(None, "spot")
    ('', '', '')
    """
    word = str(basis).strip().lower()
    if not isinstance(prices, str) or not is_quotes_file(prices) or basis_of(word) is None:
        return ""
    lost = f"{word} would replace your own quotes in {shown(prices)} with the catalog's"
    return f"{lost}; remove `prices` from the workload file, or give --prices your own CSV file"


def _quotes(text: str, where: str, name_of: Callable[[str], str]) -> dict[str, tuple[Quote, ...]]:
    lines = csv_rows(text, where)
    _, header = next(lines, (1, []))
    faults = [
        f"{where}:1: {shown(column)} is not a column of quotes; {name_hint(column, COLUMNS)}"
        for column in header
        if column not in COLUMNS
    ]
    lacking = [column for column in REQUIRED if column not in header]
    if lacking:
        faults.append(f"{where}:1: lacks the column {name_list(lacking)}; a file of quotes has {name_list(COLUMNS)}")
    quotes: dict[str, list[Quote]] = defaultdict(list)
    for line, cells in () if faults else lines:
        if len(cells) != len(header):
            faults.append(f"{where}:{line}: has more or fewer cells than the header")
            continue
        values = {key: cell for key, cell in zip(header, cells, strict=True) if cell or key == "accelerator"}
        try:
            quote = Quote.model_validate({"source": where} | values, context=name_of)
            quotes[quote.accelerator].append(quote)
        except ValidationError as error:
            sentences = (fault.told() for fault in faults_of(error))
            faults += [f"{where}:{line}: {sentence}" for sentence in sentences]
    if faults:
        raise FaultsError(*(Fault((), sentence) for sentence in faults))
    return {name: tuple(rows) for name, rows in quotes.items()}


def prices_of(quotes: Sequence[Quote]) -> tuple[Price, ...]:
    """The prices that quotes of one GPU make, one for each commitment: the usual one first."""
    return tuple(
        _price(commitment, alike)
        for commitment in BASES
        if (alike := [quote for quote in quotes if quote.commitment == commitment])
    )


def _price(commitment: str, quotes: Sequence[Quote]) -> Price:
    """Median over providers of each provider's median price."""
    by_provider: dict[str, list[float]] = defaultdict(list)
    for quote in quotes:
        by_provider[quote.provider].append(quote.usd_per_hour)
    basis, term, label = BASES[commitment]
    is_assumed = any(quote.origin is Origin.ASSUMED for quote in quotes)
    is_guess = is_assumed and basis is PriceBasis.ON_DEMAND
    providers = ", ".join(sorted(filter(None, by_provider), key=str.lower)) or quotes[0].source
    return Price(
        usd_per_hour=round(median(map(median, by_provider.values())), 4),
        low=round(min(map(min, by_provider.values())), 4),
        high=round(max(map(max, by_provider.values())), 4),
        quotes=len(quotes),
        origin=Origin.ASSUMED if is_assumed else quotes[0].origin,
        source=f"{'assumed price' if is_guess else label}: {providers}",
        date=max((day.date for day in quotes if _DAY.fullmatch(day.date)), default=quotes[0].date or "undated"),
        basis=basis,
        term_years=term,
    )


@cache
def shipped_prices() -> Mapping[str, tuple[Price, ...]]:
    """The catalog's prices by accelerator, the one on demand first, so that one commitment prices all of a comparison.

    Where nobody quotes one on demand, it is that of the first other commitment times the median ratio of the two over
    all GPUs that have both, and is marked as assumed.
    """
    prices_by_gpu, usual = {name: prices_of(quotes) for name, quotes in shipped_quotes().items()}, PriceBasis.ON_DEMAND
    by_basis = [
        {price.basis: price.usd_per_hour for price in prices}
        for prices in prices_by_gpu.values()
        if not prices[0].guessed
    ]
    for name, prices in prices_by_gpu.items():
        base = prices[0]
        if base.basis is not usual:
            ratio = median(usd[usual] / usd[base.basis] for usd in by_basis if {usual, base.basis} <= usd.keys())
            usd = round(base.usd_per_hour * ratio, 4)
            why = f"{base.source}, x {ratio:.2f}, the median ratio of on-demand to {base.basis_words} prices"
            source = f"assumed on-demand price: {why}"
            guess = Price(usd, usd, usd, base.quotes, Origin.ASSUMED, source, base.date)
            prices_by_gpu[name] = (guess, *prices)
    return prices_by_gpu


def borrowed(price: Price, name: str) -> Price:
    """The price of accelerator `name` for another one that nobody quotes."""
    label, _, providers = price.source.partition(":")
    source = f"{label} of the {name}, for want of any quote:{providers}"
    return replace(price, borrowed_from=name, origin=Origin.ASSUMED, source=source)
