"""Text of answers: numbers with their units, text of a user made safe to show, text fitted to a terminal.

Model figures carry errors of several percent, so they are rounded to three significant digits; prices are sums of
list prices and keep their cents. None and NaN are written as a dash, never as a number; -0 is never written.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard

from costmodel.words import dollars, percentage, plural

if TYPE_CHECKING:
    from pydantic import BaseModel

MISSING: Final = "–"
INFINITE: Final = "∞"

_SI_PREFIXES: Final = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_HOURS_PER_MONTH: Final = 730.0
"""Average month as cloud price lists bill it: 365 days x 24 h / 12."""


def is_number(value: float | None) -> TypeGuard[float]:
    """Tell whether the value can be drawn or compared: neither None nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def _special(value: float | None) -> str | None:
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return INFINITE if value > 0 else "-" + INFINITE
    return None


def round_significant(value: float, digits: int = 3) -> float:
    """Round a finite value to `digits` significant digits.

    >>> round_significant(1234.5)
    1230.0
    >>> round_significant(0.0)
    0.0
    """
    if value == 0:
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def significant(value: float | None, digits: int = 3) -> str:
    """Write a value with at most `digits` significant digits, thousands separated, no trailing zeros.

    >>> significant(2.1), significant(0.04567), significant(123456.0), significant(-0.0), significant(None)
    ('2.1', '0.0457', '123,000', '0', '–')
    """
    special = _special(value)
    if special is not None or value is None:
        return special or MISSING
    number = round_significant(value, digits)
    if number == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    text = f"{number:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def si(value: float | None, unit: str, digits: int = 3) -> str:
    """Write a value with its SI prefix.

    >>> si(4.8e12, "B/s"), si(989.4e12, "FLOP/s"), si(999.7e6, "B"), si(12.0, "W"), si(12_345.6, "W", 6)
    ('4.8 TB/s', '989 TFLOP/s', '1 GB', '12 W', '12.3456 kW')
    """
    if value is None or not math.isfinite(value):
        return significant(value)
    number = round_significant(value, digits)
    prefix, factor = next(pair for pair in _SI_PREFIXES if abs(number) >= pair[1] or pair[1] == 1.0)
    return f"{significant(number / factor, digits)} {prefix}{unit}".rstrip()


def size(value: float) -> str:
    """Write a size of memory [byte], in GiB where it is a whole number of them.

    >>> size(500 * 2**30), size(500e9)
    ('500 GiB', '500 GB')
    """
    return f"{value / 2**30:,.0f} GiB" if value % 2**30 == 0.0 else si(value, "B")


def count(value: float | None) -> str:
    """Write an exact whole number.

    >>> count(131072)
    '131,072'
    """
    return _special(value) or f"{round(value or 0):,d}"


def power_of_two(value: float) -> str:
    """Write a token count in binary thousands, as context lengths are named.

    >>> power_of_two(512), power_of_two(2048), power_of_two(131072), power_of_two(3000)
    ('512', '2k', '128k', '2.93k')
    """
    return significant(value) if value < 1024 else f"{significant(value / 1024)}k"


def money(value: float | None) -> str:
    """Write dollars in the one form of `costmodel.words.dollars`.

    >>> money(40.4), money(1234.5), money(0.01234), money(-0.001), money(None)
    ('$40.40', '$1,235', '$0.0123', '-$0.001', '–')
    """
    return dollars(value) if is_number(value) else significant(value)


def hourly(value: float | None) -> str:
    """Write a price per hour.

    >>> hourly(40.4)
    '$40.40/h'
    """
    return money(value) if not is_number(value) else f"{money(value)}/h"


def monthly(usd_per_hour: float | None) -> str:
    """Write an hourly price as the dollars of an average month of 730 h.

    >>> monthly(40.4)
    '$29,492'
    """
    return money(None if usd_per_hour is None else usd_per_hour * _HOURS_PER_MONTH)


def duration(seconds: float | None) -> str:
    """Write a time in the unit that keeps it short.

    >>> duration(0.4123), duration(2.1), duration(0.0000321), duration(0.9999), duration(7200.0), duration(0.0)
    ('412 ms', '2.1 s', '32.1 µs', '1 s', '2 h', '0 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return significant(seconds)
    value = round_significant(seconds)
    size = abs(value)
    if size == 0:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if size < limit:
            return f"{significant(seconds * factor)} {unit}"
    return f"{significant(seconds / 3600)} h"


def durations(times: Sequence[float]) -> str:
    """Write times beside each other, their unit once where all have the same.

    >>> durations([0.36, 0.684]), durations([0.684, 1.49]), durations([math.nan, math.nan])
    ('360/684 ms', '684 ms/1.49 s', '–/–')
    """
    texts = [duration(seconds) for seconds in times]
    first, *others = (text.partition(" ")[2] for text in texts)
    return "/".join(texts).replace(f" {first}/", "/") if {first} == {*others} else "/".join(texts)


def percent(share: float | None) -> str:
    """Write a share as a percentage; what is not all or nothing is never rounded to it.

    >>> percent(0.9361), percent(0.99996), percent(1.0), percent(0.0001), percent(0.0), percent(1.234)
    ('93.6 %', '>99.9 %', '100 %', '<0.1 %', '0 %', '123 %')
    """
    if not is_number(share):
        return significant(share)
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return "<0.1 %" if 0 < share < 0.0005 else percentage(share, 1)


def goal_percent(goal: float) -> str:
    """Write the share that an SLO asks for as it was stated: what is rounded up could not be met.

    >>> goal_percent(0.95), goal_percent(0.99999), goal_percent(0.9995)
    ('95 %', '99.999 %', '99.95 %')
    """
    return percentage(goal, 6)


def points(text: str, noun: str = "point") -> str:
    """A percentage, or a difference of two, as percentage points.

    >>> points("+1.9 %"), points("1 %", "percentage point"), points("-1 %"), points("±0 %")
    ('+1.9 points', '1 percentage point', '-1 point', '±0 points')
    """
    number = text.removesuffix(" %")
    return f"{number} {noun}{'' if number.lstrip('+-') == '1' else 's'}"


def percent_beside(share: float, rival: float) -> str:
    """Write a share as a percentage, with up to two decimals more where it would read as another share does.

    >>> percent_beside(0.9994, 0.999), percent_beside(0.9994, 0.99), percent_beside(0.9, 0.9)
    ('99.94 %', '99.9 %', '90 %')
    """
    for decimals in (2, 3):
        texts = [f"{round(value * 100, decimals):g} %" for value in (share, rival)]
        if percent(share) == percent(rival) and texts[0] != texts[1]:
            return texts[0]
    return percent(share)


def signed_percent(share: float | None, places: int = 1) -> str:
    """Write a relative difference with its sign and at most `places` decimals.

    >>> signed_percent(0.0451), signed_percent(-0.21), signed_percent(0.0), signed_percent(-0.00001)
    ('+4.5 %', '-21 %', '±0 %', '±0 %')
    >>> signed_percent(0.0451, 0)
    '+5 %'
    """
    if not is_number(share):
        return significant(share)
    text = percentage(share, places)
    if text == "0 %":
        return "±0 %"
    return f"+{text}" if share > 0 else text


def rate(per_second: float | None) -> str:
    """Write a request rate.

    >>> rate(7.5)
    '7.5 req/s'
    """
    return significant(per_second) if not is_number(per_second) else f"{significant(per_second)} req/s"


_PREFIXED: Final = frozenset({"W", "B", "B/s", "FLOP/s", "byte", "byte/s"})
COUNTED = frozenset({"GPU", "pools"})
"""Units of what comes in whole numbers, which are never rounded."""


def quantity(value: float | None, unit: str) -> str:
    """Write a value whose unit comes with it, in the form that the unit calls for.

    >>> quantity(0.97, "1"), quantity(40.4, "$/h"), quantity(0.05, "s"), quantity(7e3, "W"), quantity(12, "GPU")
    ('97 %', '$40.40/h', '50 ms', '7 kW', '12 GPUs')
    """
    if not is_number(value):
        return significant(value)
    writers = {"": percent, "1": percent, "share": percent, "$/h": hourly, "usd/h": hourly, "s": duration}
    if unit.lower() in writers:
        return writers[unit.lower()](value)
    if unit in _PREFIXED:
        return si(value, unit.replace("byte", "B"))
    if unit in COUNTED:  # a limit of 1,000 that 1,001 break must not read as 1,000
        return plural(value, unit.rstrip("s"))
    return f"{significant(value)} {unit}"


def exact(value: float, unit: str, digits: int = 6) -> str:
    """Write a value that was found to many digits with its unit; a share as a percentage.

    >>> exact(3.99, "$/h"), exact(5.97123, "$/h"), exact(0.8123456, "s"), exact(6.79362, "req/s"), exact(0.9876, "1")
    ('$3.99/h', '$5.97123/h', '812.346 ms', '6.79362 req/s', '98.76 %')
    """
    text = significant(value, digits)
    if unit == "$/h":
        return f"${text}/h" if len(text.partition(".")[2]) > 2 else hourly(value)
    if unit == "s" and abs(value) < 1:
        return f"{significant(1e3 * value, digits)} ms"
    if unit == "1":
        return f"{significant(100 * value, digits)} %"
    return si(value, unit, digits) if unit in _PREFIXED else f"{text} {unit}".rstrip()


# --- text -------------------------------------------------------------------------------------------------------------

NAME_LIMIT: Final = 60
SENTENCE_LIMIT: Final = 400
ELLIPSIS: Final = "…"

_NUMBER_AND_UNIT: Final = re.compile(
    r"(?<=[0-9∞]) (?=(?:%|×|µs|ms|s|min|h|req/s|GPU|GiB|[kMGT]?(?:W|B/s|B|FLOP/s))(?![A-Za-z]))"
)
_MOMENT: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2}:[0-9]{2}):[0-9.]+(?:\+00:00|Z)")
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"

Align = Literal["left", "right"]


def clean(text: str, limit: int = NAME_LIMIT) -> str:
    r"""Drop control, format (bidirectional) and unassigned characters, collapse blanks, cut to `limit` characters.

    A name such as a right-to-left override or a terminal escape must not change how the text around it is shown.

    >>> clean("a\u202eb\x1b[31mc\n d")
    'ab[31mc d'
    >>> clean("abcdef", 4)
    'abc…'
    """
    printable = "".join(
        " " if char.isspace() else char
        for char in text[: 4 * limit]
        if char.isspace() or unicodedata.category(char) not in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
    )
    short = " ".join(printable.split())
    return short if len(short) <= limit and len(text) <= 4 * limit else short[: limit - 1] + ELLIPSIS


def sentence(text: str) -> str:
    """Clean a sentence: as `clean`, with room for a sentence."""
    return clean(text, SENTENCE_LIMIT)


def moment(text: str) -> str:
    """Write a moment of ISO 8601 for a reader, to the minute; another text only cleaned.

    >>> moment("2026-11-21T23:59:58+00:00"), moment("soon")
    ('2026-11-21 23:59 UTC', 'soon')
    """
    match = _MOMENT.fullmatch(text)
    return f"{match[1]} {match[2]} UTC" if match else clean(text, 40)


def display_width(text: str) -> int:
    """Count the terminal columns that the text takes: wide characters two, combining marks none.

    >>> display_width("4 × H200 ✓"), display_width("日本")
    (10, 4)
    """
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def fit(text: str, width: int) -> str:
    """Cut the text to `width` columns, with an ellipsis where something was cut.

    >>> fit("attention", 5), fit("gemm", 5)
    ('atte…', 'gemm')
    """
    if display_width(text) <= width:
        return text
    characters, used = [], 0
    for char in text:
        used += _columns(char)
        if used > width - 1:
            break
        characters.append(char)
    return ("".join(characters).rstrip() + ELLIPSIS) if width > 0 else ""


def pad(text: str, width: int, align: Align = "left") -> str:
    """Fill the text with blanks to `width` columns."""
    blanks = " " * max(0, width - display_width(text))
    return blanks + text if align == "right" else text + blanks


def glue(text: str) -> str:
    r"""Put a no-break space between a number and its unit.

    >>> glue("4 × H200 in 585 ms")
    '4\xa0×\xa0H200 in 585\xa0ms'
    """
    return _NUMBER_AND_UNIT.sub(_NO_BREAK, text).replace("× ", f"×{_NO_BREAK}")


def wrap(text: str, width: int) -> list[str]:
    """Break the text at blanks into lines of at most `width` columns; before a unit only where both fit in none.

    A longer word is cut.

    >>> wrap("two short lines", 9), wrap("in 585 ms", 6), wrap("2 × H100", 5)
    (['two short', 'lines'], ['in', '585 ms'], ['2 ×', 'H100'])
    """
    lines: list[str] = []
    line = ""
    glued = ([word] if display_width(word) <= width else word.split(_NO_BREAK) for word in glue(text).split(" "))
    for word in itertools.chain.from_iterable(glued):
        longer = f"{line} {word}" if line else word
        if display_width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        line = fit(word, width)
    return [item.replace(_NO_BREAK, " ") for item in [*lines, line]]


def capital(text: str) -> str:
    """The text with a capital first letter.

    >>> capital("prefill steps")
    'Prefill steps'
    """
    return text[:1].upper() + text[1:]


def json_text(record: Any) -> str:
    """Write plain values as JSON text, numbers that it cannot say as null."""
    return json.dumps(finite(record), indent=2, allow_nan=False) + "\n"


def record_of(model: BaseModel) -> dict[str, Any]:
    """A plan, or an evaluation, as plain values, its fields in the model's order."""
    return model.model_dump(mode="python", by_alias=True)


def finite(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, infinity) by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_words(name: str, words: dict[str, str]) -> str:
    """Look a short name up; an unknown one is cleaned and its underscores become blanks."""
    return words.get(name, clean(name).replace("_", " "))


def as_sentence(text: str) -> str:
    """The text with a capital first letter and an end; empty as it is."""
    return text if not text or text.endswith((".", "…")) else f"{capital(text)}."
