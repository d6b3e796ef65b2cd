"""Words of sentences, for every room that writes some: lists, dollars, percentages and quotes in one form.

What a user wrote is quoted short, on one line, and without characters that change how it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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


DOTS = "..."
"""Stand for what is cut out."""
LONGEST_SHOWN = 60
"""Characters of a value that a message quotes."""
LONGEST_LIST = 110
"""Characters of a list of names in a message."""
LONGEST_SHOWN_BITS = 190
"""Whole numbers up to here have at most 58 digits; Python refuses to print some thousands of them."""

_UNWRITABLE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff"
UNWRITABLE = re.compile(f"[{_UNWRITABLE}]")
"""Characters that no line of UTF-8 text, YAML or JSON holds as they are: control characters, halves of characters."""
UNSHOWABLE = re.compile(f"[{_UNWRITABLE}\u202a-\u202e\u2066-\u2069]")
"""These, and those that turn the direction of the text after them."""
_BYTES = range(0xDC80, 0xDD00)
"""What stands for a byte of a file's name that is not UTF-8 (PEP 383)."""


def shown(value: object) -> str:
    """How every message quotes a value: short, and in YAML's words.

    >>> shown(True), shown(None), shown("H20O"), shown([1, 2]), len(shown("x" * 1000))
    ('true', 'nothing', "'H20O'", 'a list', 60)
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > LONGEST_SHOWN_BITS:
        return f"a whole number of {value.bit_length():,} bits"
    text = repr(value[: LONGEST_SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def name_list(names: Iterable[str]) -> str:
    """How every message lists names: all of them, or the first that fit and how many there are.

    >>> name_list(["H100", "H200"]), name_list(letter * 40 for letter in "ABC")[80:]
    ('H100, H200', 'BB, ... (3 in all)')
    """
    short_names = [shortened(name) for name in names]
    text = whole = ", ".join(short_names)
    while len(text) > LONGEST_LIST:
        text = text.rpartition(", ")[0]
    return whole if text == whole else f"{text}, ... ({len(short_names)} in all)"


def shortened(text: str, most: int = LONGEST_SHOWN) -> str:
    r"""A name as a message writes it without quotes: escaped, and cut in the middle to `most` characters and dots.

    >>> shortened("a\nb.csv"), len(shortened("x" * 5000))
    ('a\\nb.csv', 63)
    """
    text = escaped(_cut(text, most))
    return text if len(text) <= most + len(DOTS) else _cut(text, most)


def _cut(text: str, most: int) -> str:
    """The text without what is in its middle beyond so many characters, where dots stand."""
    return text if len(text) <= most else f"{text[: most // 2]}{DOTS}{text[-most // 2 :]}"


def escaped(text: str, kept: str = "") -> str:
    r"""The text with the characters that cannot be shown written as escapes, but for those that are `kept`.

    >>> escaped("caf\udce9 \x1b[31m\u202e")
    'caf\\xe9 \\x1b[31m\\u202e'
    """
    return UNSHOWABLE.sub(lambda match: match[0] if match[0] in kept else _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if code in _BYTES else character.encode("unicode_escape").decode()
