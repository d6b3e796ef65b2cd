"""Everything pdplan raises on purpose.

    PdplanError
    ├── InputError            the user's file, field or flag is wrong            (exit code 2)
    │   ├── UnknownNameError  a name that the catalog lacks, with the nearest    (exit code 2)
    │   ├── ArchitectureError a config.json that cannot be understood            (exit code 2)
    │   ├── ImpossibleError   nothing that the file allows can exist             (exit code 2)
    │   └── BelowFloorError   a limit that no engine can keep, however idle      (exit code 3)
    └── InfeasibleError       the question is sound, but no fleet meets the SLOs (exit code 3)

Each message is one sentence that states where, what was found, what is allowed and, if there is one,
the nearest match. Anything else that escapes is a bug of ours (exit code 70). What a user wrote is quoted short, on one
line, and without characters that change how it is shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

LONGEST_NAME = 100
"""Characters of a name that are compared."""


class PdplanError(Exception):
    """Base of all errors that pdplan raises on purpose."""


class InputError(PdplanError, ValueError):
    """The user's input is wrong; the message says where and how to mend it. What validates a value may raise it."""


@contextmanager
def value_of(place: str) -> Iterator[None]:
    """Let the refusal of a value begin with the option, key or argument that stated it.

    >>> with value_of("--gpu"):
    ...     raise InputError("accelerator 'H10' is not known; did you mean 'H100'?")
    Traceback (most recent call last):
        ...
    costmodel.errors.InputError: --gpu: accelerator 'H10' is not known; did you mean 'H100'?
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def name_hint(name: str, names: Iterable[str], otherwise: str = "known") -> str:
    """What may have been meant by a name, as the end of a sentence: the nearest one, or all that are known."""
    close = nearest_name(name, names)
    return f"did you mean {shown(close)}?" if close else f"{otherwise}: {name_list(names)}"


class UnknownNameError(InputError):
    """A name is not known; the message offers the nearest known one.

    close: it, where the caller knows better than `nearest_name`; mend: what else can be done, to end the sentence with.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, close: str | None = None, mend: str = "") -> None:
        known = sorted(known)
        close = close or nearest_name(name, known)
        hint = f"did you mean {shown(close)}{mend}?" if close else f"known: {name_list(known)}{mend}"
        super().__init__(f"{kind} {shown(name)} is not known; {hint}")


class ArchitectureError(InputError):
    """A model's config.json lacks a field (`missing`), or has one that pdplan does not understand."""

    def __init__(self, message: str, *, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing


class ImpossibleError(InputError):
    """The file is well formed, but no engine that it allows can exist; a sweep goes on with the next scenario."""


class BelowFloorError(InputError):
    """Physics forbids a limit; the message names the least that is possible, which is the nearest miss."""


class InfeasibleError(PdplanError):
    """No fleet meets the SLOs within the constraints; the message names the one that binds."""


def nearest_name(name: str, names: Iterable[str], least: float = 0.6) -> str | None:
    """Return the known name most like `name`, or None if nothing is close; case and O for 0 make no difference.

    least: likeness [1] that counts as close, as `difflib` has it.

    >>> nearest_name("h20O", ["H20", "H100", "H200"])
    'H200'
    >>> nearest_name("H201", ["H20", "H100", "H200"])
    'H200'
    >>> nearest_name("H10", ["H20", "H100"])
    'H100'
    >>> nearest_name("foo", ["BLOOM-176B", "H800"]) is None
    True
    >>> nearest_name("rate", ["lengths", "request_rate"])
    'request_rate'
    """
    by_plain = {_plain(candidate): candidate for candidate in names}
    plain = _plain(name[:LONGEST_NAME])
    close = difflib.get_close_matches(plain, by_plain, n=3, cutoff=least)
    # a lost end is the commonest slip, then a wrong letter; difflib prefers the shorter name
    longer = [near for near in close if near.startswith(plain)]
    slips = [near for near in close if len(near) == len(plain) and sum(map(str.__ne__, near, plain)) <= 1]
    whole_words = [candidate for candidate in by_plain if plain in candidate.split("_")]
    return next((by_plain[candidate] for candidate in (*longer, *slips, *close, *whole_words)), None)


def _plain(name: str) -> str:
    return name.lower().replace("o", "0")


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

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        plain = f"\\x{code - 0xDC00:02x}" if code in _BYTES else match[0].encode("unicode_escape").decode()
        return match[0] if match[0] in kept else plain

    return UNSHOWABLE.sub(escape, text)
