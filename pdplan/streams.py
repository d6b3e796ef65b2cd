"""The output streams as a program must take them: on a full disk, closed, left by their reader, or short of letters."""

from __future__ import annotations

import codecs
import io
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

from costmodel.errors import InputError

_PLAIN: Final = {
    "✓": "+", "✗": "x", "×": "x", "±": "+-", "·": ".", "–": "-", "—": "-", "…": "..", "µ": "u", "μ": "u", "∞": "inf",
    "→": "->", "≥": ">=", "≤": "<=", "█": "#", "─": "-", "\N{NO-BREAK SPACE}": " ",
}  # fmt: skip
"""What stands for a letter that the terminal's encoding lacks (latin-1 has no tick); a question mark for any other."""

_PLAIN_LETTERS: Final = "pdplan.plain"


class ReaderGoneError(Exception):
    """Whoever read standard output has gone, as `head` does when it has seen enough."""


class _Guarded(io.TextIOWrapper):
    """A stream on which a failure is final: what comes after it goes nowhere, at the interpreter's exit too."""

    def write(self, text: str, /) -> int:
        """Write, or fail as this stream fails."""
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)
        return len(text)

    def flush(self) -> None:
        """Flush, or fail as this stream fails."""
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        self._report(error)

    def _report(self, error: OSError) -> None:
        """Go on: narration that nobody can read is no reason to stop."""


class _Results(_Guarded):
    """Standard output: results that cannot be delivered are an error."""

    def _report(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise ReaderGoneError from error
        raise InputError(f"standard output cannot be written: {error.strerror}") from error


def guard_streams() -> None:
    """Put guarded streams in the place of stdout and stderr; raise InputError where stdout is closed."""
    codecs.register_error(_PLAIN_LETTERS, _plain)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - stays open to the end
    if sys.stdout is None:
        raise InputError("standard output is closed; send it to a file, or to /dev/null")
    sys.stdout = _guarded(_Results, sys.stdout)
    sys.stderr = _guarded(_Guarded, sys.stderr)


def _guarded(kind: type[_Guarded], stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # somebody's own stream, such as a test's
        return stream
    with suppress(OSError):
        stream.flush()
    encoding, line_buffering = stream.encoding, stream.line_buffering
    if codecs.lookup(encoding).name == "ascii":  # click takes it for an oversight, and would write past this guard
        encoding = "utf-8"
    return kind(stream.detach(), encoding=encoding, errors=_PLAIN_LETTERS, line_buffering=line_buffering)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in lacking), error.end
