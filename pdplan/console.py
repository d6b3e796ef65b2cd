"""Output: results on stdout, narration on stderr; for a person or for a program."""

from __future__ import annotations

import codecs
import importlib.util
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from costmodel.errors import InputError, escaped
from costmodel.words import percentage
from reports.document import Document
from reports.text import json_text
from reports.whole_files import check_directory, check_distinct, check_free, check_target, write_whole

from .exits import ExitCode

if TYPE_CHECKING:
    from reports.rows import Columns

PIPED_WIDTH = 100
"""Columns of a table when nobody's terminal says otherwise."""
_STYLE = re.compile(r"(\x1b\[[0-9]{1,2}m)")
"""What `click.style` writes."""
FORMS = ("text", "json", "csv", "parquet", "html", "md")
"""Of an answer, in the order in which its files are written."""


@dataclass(slots=True)
class Console:
    """The settings of one run, the two streams, and the files that its answer goes to.

    command: the command line, as it may be typed again;
    quiet: no narration; json_only: nor any beside a JSON document; verbose: narration all the same, and tracebacks;
    plain: no colour even on a terminal; shown: whether there is a result on stdout already;
    force: whether files may be replaced; files: by FORMS, the option that asks for one, and the file; screen: the form
    of the answer on stdout, empty where a file takes its place.
    """

    command: str = "pdplan"

    quiet: bool = False
    verbose: bool = False
    plain: bool = False
    json_only: bool = False
    shown: bool = False
    force: bool = False
    files: dict[str, tuple[str, Path]] = field(default_factory=dict)
    screen: str = "text"

    @property
    def colored(self) -> bool:
        """Whether stdout may carry colour: a terminal, and nobody objects (https://no-color.org)."""
        return not self.plain and not os.environ.get("NO_COLOR") and obeys_codes(sys.stdout)

    @property
    def width(self) -> int:
        """Columns available to a table.

        The terminal is asked through the stdout of now: Python's own look-up asks through its first one, which is
        detached where `guard_streams` put another in its place, and so takes every terminal for none.
        """
        if not os.environ.get("COLUMNS"):
            with suppress(OSError, ValueError):  # no terminal, or no file at all
                return os.get_terminal_size(sys.stdout.fileno()).columns or PIPED_WIDTH
        return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns

    @property
    def narrates(self) -> bool:
        """Whether stderr is written to at all: a program that reads JSON does not want a story."""
        return self.verbose or not (self.quiet or self.json_only)

    def show(self, value: object) -> None:
        """Write what was asked for to stdout: text as it is, an answer for the terminal, anything else as JSON."""
        if isinstance(value, Document):
            text = self.render(value, color=self.colored)
        else:
            text = value if isinstance(value, str) else json_text(value)
        self.shown = True
        click.echo(harmless(text, keeps_style=self.colored), color=self.colored, nl=not text.endswith("\n"))

    def answer(
        self,
        document: Document,
        record: object,
        rows: Sequence[Mapping[str, Any]] | Callable[[], Columns] = (),
        *,
        name: str = "result",
    ) -> ExitCode:
        """Write an answer's files and show it, or its record as JSON; the exit code says whether it is a yes.

        rows: those of csv and parquet; of many, what makes their columns; name: of the record in a page.
        """
        for form in FORMS:
            if form in self.files:
                self.write(self.files[form][1], self._contents(form, document, record, rows, name))
        if self.screen == "text":
            self.show(record if self.json_only else document)
        elif self.screen:
            self.show(self._contents(self.screen, document, record, rows, name))
        return ExitCode.DONE if document.positive else ExitCode.INFEASIBLE

    def _contents(self, form: str, document: Document, record: object, rows: Any, name: str) -> str | bytes:
        """An answer in one of the forms."""
        if form in {"text", "json"}:
            return json_text(record) if form == "json" else self.render(document, color=False)
        if form in {"html", "md"}:
            from reports.views import html_view, markdown_view

            return html_view(document, record, name) if form == "html" else markdown_view(document)
        from reports.rows import columns_csv, columns_parquet, row_columns

        columns = rows() if callable(rows) else row_columns(rows)
        return columns_csv(columns) if form == "csv" else columns_parquet(columns)

    def check_files(
        self, inputs: Mapping[str, Path | None], outputs: Mapping[str, Path | None] = MappingProxyType({})
    ) -> None:
        """Refuse files that cannot be written: before the work, not after it.

        inputs: what is read, by argument or option; outputs: what is written besides the answer's files, by option.
        """
        paths = {self.files[form][0]: self.files[form][1] for form in FORMS if form in self.files}
        paths |= {flag: path for flag, path in outputs.items() if path is not None}
        for path in paths.values():
            check_target(path)
        check_distinct(paths, {flag: path for flag, path in inputs.items() if path is not None})
        for path in paths.values():
            check_free(path, force=self.force)
        if "parquet" in self.files and importlib.util.find_spec("pyarrow") is None:
            raise InputError("--parquet needs pyarrow, which is not installed; install pdplan[parquet], or write --csv")

    def render(self, document: Document, *, color: bool) -> str:
        """An answer as text as wide as this terminal."""
        from reports.views import terminal_view

        return terminal_view(document, self.width, color=color)

    def note(self, text: str) -> None:
        """Narrate on stderr."""
        if self.narrates:
            click.echo(harmless(text), err=True)

    def write(self, path: Path, text: str | bytes, *, hint: str | None = "") -> None:
        """Write a file that the user named, and say so; an existing one is kept unless --force was given.

        hint: what to do with the file, None: the caller says that it is written.
        """
        check_free(path, force=self.force)  # the place may have been taken meanwhile
        check_target(path)
        write_whole({path: text})
        if hint is not None:
            self.note(f"wrote {path}{hint}")

    def write_folder(self, folder: Path, texts: Mapping[str, str]) -> None:
        """Write the files of a plan's or an evaluation's folder by their names, and say so; --force: over others."""
        check_directory(folder, texts, force=self.force)
        write_whole({folder / name: text for name, text in texts.items()})
        self.note(f"wrote {' and '.join(str(folder / name) for name in texts)}")

    def warn(self, text: str) -> None:
        """Say on stderr what keeps a result from being what was asked for; beside a JSON document too."""
        if self.verbose or not self.quiet:
            click.echo(f"pdplan: warning: {text}", err=True)

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, float], None] | None]:
        """Give a callback (stage, share done) that redraws one line on stderr; None where nobody would see it."""
        if not self.narrates or not obeys_codes(sys.stderr):
            yield None
            return
        try:
            yield _rising(_draw)
        finally:
            click.echo("\r\x1b[K", nl=False, err=True)

    @contextmanager
    def milestones(self) -> Iterator[Callable[[str, float], None] | None]:
        """The same for a command that takes a minute: where stderr is no terminal, a plain line at each new tenth."""
        with self.progress() as progress:
            if progress is not None or not self.narrates:
                yield progress
                return
            reached = -1

            def tell(stage: str, share: float) -> None:
                nonlocal reached
                tenth = int(10.0 * share)
                if tenth != reached:
                    reached = tenth
                    click.echo(f"{percentage(share):>5}  {stage}", err=True)

            yield _rising(tell)
            if reached >= 0:
                tell("done", 1.0)


def harmless(text: str, *, keeps_style: bool = False) -> str:
    r"""Text for a terminal: what a user's value could tell the terminal to do is written as an escape.

    keeps_style: whether colours and weights, which are ours, stay.

    >>> harmless("\x1b]0;title\x07 \x1b[31mred\n"), harmless("\x1b[1mbold\x1b[0m \x1b[2J", keeps_style=True)
    ('\\x1b]0;title\\x07 \\x1b[31mred\n', '\x1b[1mbold\x1b[0m \\x1b[2J')
    """
    pieces = _STYLE.split(text) if keeps_style else [text]
    return "".join(piece if at % 2 else escaped(piece, kept="\n\t") for at, piece in enumerate(pieces))


def part_of(
    progress: Callable[[str, float], None] | None, start: float, end: float
) -> Callable[[str, float], None] | None:
    """The progress of a part of the work, from `start` to `end` of the whole [1]; its end is for the next to tell."""
    if progress is None:
        return None

    def tell(stage: str, share: float) -> None:
        if share < 1.0:
            progress(stage, start + (end - start) * share)

    return tell


def _rising(tell: Callable[[str, float], None]) -> Callable[[str, float], None]:
    """A callback that never tells less than it has told: work that is gone through again stays where it was."""
    most = 0.0

    def tell_more(stage: str, share: float) -> None:
        nonlocal most
        most = max(most, min(share, 1.0))
        tell(stage, most)

    return tell_more


def obeys_codes(stream: TextIO) -> bool:
    """Whether a stream is a terminal that knows colours and how to clear a line, which TERM=dumb says it does not."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _draw(stage: str, share: float) -> None:
    filled = round(20 * share)
    click.echo(f"\r\x1b[K{'█' * filled}{'·' * (20 - filled)} {stage}", nl=False, err=True)


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

    results = False
    """Whether what cannot be delivered is an error: results are, and narration that nobody can read is not."""

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
        if not self.results:
            return
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
    sys.stdout = _guarded(sys.stdout, results=True)
    sys.stderr = _guarded(sys.stderr, results=False)


def _guarded(stream: TextIO, *, results: bool) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # somebody's own stream, such as a test's
        return stream
    with suppress(OSError):
        stream.flush()
    encoding, line_buffering = stream.encoding, stream.line_buffering
    if codecs.lookup(encoding).name == "ascii":  # click takes it for an oversight, and would write past this guard
        encoding = "utf-8"
    guarded = _Guarded(stream.detach(), encoding=encoding, errors=_PLAIN_LETTERS, line_buffering=line_buffering)
    guarded.results = results
    return guarded


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in lacking), error.end
