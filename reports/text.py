"""Text that came from a user, made safe to show, and text fitted to a number of terminal columns."""

from __future__ import annotations

import itertools
import json
import math
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pydantic import BaseModel


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
