"""Streams, colour and progress: who sees what, and when."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from costmodel.errors import InputError
from pdplan.console import Console, part_of


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_terminal() -> Iterator[Terminal]:
    """Make both streams a terminal, and give what is drawn on stderr; not a fixture, for pytest swaps streams too."""
    with redirect_stdout(Terminal()), redirect_stderr(Terminal()) as drawn:
        yield drawn


@pytest.fixture(autouse=True)
def term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_progress_redraws_one_line_on_stderr_and_clears_it() -> None:
    with on_terminal() as drawn, Console().progress() as progress:
        assert progress is not None
        progress("pricing", 0.25)
        progress("pricing", 2.0)
    assert drawn.getvalue() == f"\r\x1b[K{'█' * 5}{'·' * 15} pricing\r\x1b[K{'█' * 20} pricing\r\x1b[K"


def fail_at_once() -> None:
    with Console().milestones() as progress:
        assert progress is not None
        progress("searching", 0.0)
        raise InputError("no")


def test_milestones_are_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().milestones() as progress:
        assert progress is not None
        for number in range(41):
            progress(f"step {number}", number / 80)
    assert capsys.readouterr().err.splitlines() == [
        "  0 %  step 0", " 10 %  step 8", " 20 %  step 16", " 30 %  step 24", " 40 %  step 32", " 50 %  step 40",
        "100 %  done",
    ]  # fmt: skip
    with Console().milestones() as progress:
        searching, moving = part_of(progress, 0.0, 0.8), part_of(progress, 0.8, 1.0)
        assert searching is not None
        assert moving is not None
        searching("searching", 0.5)
        searching("done", 1.0)  # with its part only, so that the next one tells
        moving("moving prices", 0.0)
        searching("searching once more", 0.75)  # what is gone through again stays where it was
        moving("moving links", 0.5)
    told = capsys.readouterr().err.splitlines()
    assert told == [" 40 %  searching", " 80 %  moving prices", " 90 %  moving links", "100 %  done"]
    with pytest.raises(InputError):
        fail_at_once()
    assert capsys.readouterr().err.splitlines() == ["  0 %  searching"]
    with Console().milestones():
        pass
    assert capsys.readouterr().err == ""
    with Console(json_only=True).milestones() as progress:
        assert progress is None
    with on_terminal() as drawn, Console().milestones() as progress:
        assert progress is not None
        progress("pricing", 1.0)
    assert drawn.getvalue().startswith("\r")


def test_color_needs_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not Console().colored
    with on_terminal():
        assert Console().colored
        assert not Console(plain=True).colored
        monkeypatch.setenv("NO_COLOR", "1")
        assert not Console().colored


@pytest.mark.parametrize(
    ("console", "narrates"),
    [
        (Console(), True),
        (Console(quiet=True), False),
        (Console(json_only=True), False),
        (Console(json_only=True, verbose=True), True),
    ],
)
def test_narration(console: Console, narrates: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console.note("once upon a time")
    assert capsys.readouterr() == ("", "once upon a time\n" if narrates else "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_width_is_that_of_the_terminal_behind_the_guarded_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    import termios  # not on Windows

    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, redirect_stdout(terminal):
        termios.tcsetwinsize(theirs, (24, 73))
        assert Console().width == 73
        monkeypatch.setenv("COLUMNS", "61")
        assert Console().width == 61
    os.close(ours)
