"""What a user wrote, as messages quote it: short, on one line, and without characters that change how it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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
