"""Everything pdplan raises on purpose.

    PdplanError
    ├── InputError            the user's file, field or flag is wrong            (exit code 2)
    │   ├── UnknownNameError  a name that the catalog lacks, with the nearest    (exit code 2)
    │   ├── ArchitectureError a config.json that cannot be understood            (exit code 2)
    │   ├── ImpossibleError   nothing that the file allows can exist             (exit code 2)
    │   └── BelowFloorError   a limit that no engine can keep, however idle      (exit code 3)
    └── InfeasibleError       the question is sound, but no fleet meets the SLOs (exit code 3)

Each message is one sentence that states where, what was found, what is allowed and, if there is one,
the nearest match. Anything else that escapes is a bug of ours (exit code 70).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .words import name_list, shown

LONGEST_NAME = 100
"""Characters of a name that are compared."""


class PdplanError(Exception):
    """Base of all errors that pdplan raises on purpose."""


class InputError(PdplanError):
    """The user's input is wrong; the message says where and how to mend it."""


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
