"""Words of sentences, for every room that writes some: lists, dollars and percentages in one form."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

CENT: Final = Decimal("0.01")


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Join words as in a sentence; last: what stands before the last one.

    >>> join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def plural(number: float, noun: str) -> str:
    """Write a number and its noun.

    >>> plural(1, "engine"), plural(3, "engine"), plural(2, "class")
    ('1 engine', '3 engines', '2 classes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,.0f} {noun}{ending}"


def dollars(value: float) -> str:
    """Write dollars: cents up to $1,000, whole dollars above, three significant digits below ten cents; halves go up.

    A sum of prices carries the noise of binary fractions, so it is first cut to twelve digits: half a cent is then
    written alike however the sum was made.

    >>> dollars(40.4), dollars(35.735), dollars(3 * 6.325 + 16.76), dollars(1234.5), dollars(0.01234), dollars(-0.5)
    ('$40.40', '$35.74', '$35.74', '$1,235', '$0.0123', '-$0.50')
    >>> dollars(1e30) == "$" + f"{10**30:,d}"
    True
    """
    exact = Decimal(f"{abs(value):.12g}")
    if exact == 0:
        return "$0"
    if exact < Decimal("0.0995"):
        smallest = Decimal(1).scaleb(exact.adjusted() - 2)
        text = f"{exact.quantize(smallest, ROUND_HALF_UP):f}".rstrip("0")
    elif exact < Decimal("999.995"):
        text = f"{exact.quantize(CENT, ROUND_HALF_UP):,f}"
    else:  # twelve digits above 1e12 have no cents, and quantize refuses more than 28
        text = f"{exact if exact.adjusted() >= 12 else exact.quantize(Decimal(1), ROUND_HALF_UP):,f}"
    return f"-${text}" if value < 0 else f"${text}"


def whole_dollars(value: float) -> str:
    """Write dollars of a month, without cents, which would be unlike the thousands beside them; below $10 with them.

    >>> whole_dollars(726.35), whole_dollars(1234.5), whole_dollars(0.5)
    ('$726', '$1,235', '$0.50')
    """
    if not 10.0 <= value < 1000.0:  # above, `dollars` leaves cents out
        return dollars(value)
    return f"${Decimal(f'{value:.12g}').quantize(Decimal(1), ROUND_HALF_UP)}"


def listed(usd_per_hour: float) -> str:
    """Write the listed price of one GPU whole, up to four decimals, so that so many of them are a fleet's price.

    >>> listed(6.325), listed(40.4), listed(1 / 3)
    ('$6.325/h', '$40.40/h', '$0.33/h')
    """
    text = f"{usd_per_hour:,.12g}"
    whole = 3 <= len(text.partition(".")[2]) <= 4 and usd_per_hour > 0
    return f"${text}/h" if whole else f"{dollars(usd_per_hour)}/h"


def percentage(share: float, places: int = 0) -> str:
    """Write a share with at most `places` decimals, from 100 % on with three significant digits.

    >>> percentage(0.0451), percentage(0.0451, 2), percentage(-0.21), percentage(16.42)
    ('5 %', '4.51 %', '-21 %', '1,640 %')
    """
    percent = round(100.0 * share, places) + 0.0  # never -0
    return f"{percent:g} %" if abs(percent) < 100 else f"{float(f'{percent:.3g}'):,.0f} %"


def dearer(cost: float, base: float) -> str:
    """Say by how much one price per hour is above another.

    >>> dearer(44.0, 40.0)
    '$4.00/h more (+10 %)'
    """
    return f"{dollars(cost - base)}/h more (+{percentage(cost / base - 1.0, 1)})"


def spares_words(replicas: int) -> str:
    """Say which spare replicas a fleet has besides; empty where it has none.

    >>> spares_words(1)
    ' with 1 spare replica in every pool'
    """
    return f" with {plural(replicas, 'spare replica')} in every pool" if replicas else ""
