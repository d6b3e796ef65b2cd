"""Output that cannot be delivered: a full disk, a reader that has gone, a closed stream, letters that are missing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdplan.console import ReaderGoneError, guard_streams
from tests.running import ROOT, SECONDS

FULL = Path("/dev/full")
needs_shell = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    """Run `pdplan` in a shell line that may redirect it: its exit code, stdout and stderr."""
    command = f"'{sys.executable}' -W error -m pdplan {line}"
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        check=False,
        cwd=ROOT,
        timeout=SECONDS,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"} | environment,
    )
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("utf-8")


@needs_shell
@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("command", "encoding"), [("--help", "utf-8"), ("schema", "utf-8"), ("schema", "ascii")])
def test_a_full_disk_is_one_sentence(command: str, encoding: str) -> None:
    code, _, said = shell(f"{command} > {FULL}", PYTHONIOENCODING=encoding)
    assert (code, said) == (2, "pdplan: error: standard output cannot be written: No space left on device\n")


@needs_shell
def test_a_closed_stdout_is_one_sentence() -> None:
    code, _, said = shell("schema >&-")
    assert (code, said) == (2, "pdplan: error: standard output is closed; send it to a file, or to /dev/null\n")


@needs_shell
def test_narration_that_cannot_be_written_stops_nothing() -> None:
    assert shell("init - 2>&-")[0] == 0
    if FULL.exists():
        assert shell(f"report absent.json 2>{FULL}")[0] == 2


@needs_shell
@pytest.mark.parametrize("command", ["--help", "schema"])
def test_a_reader_that_has_gone_is_quiet(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "pdplan", command], stdout=write, stderr=subprocess.PIPE, check=False, cwd=ROOT
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@needs_shell
def test_letters_that_the_encoding_lacks_are_replaced() -> None:
    code, shown, said = shell("report tests/plans/colocated.json", PYTHONIOENCODING="latin-1")
    assert (code, said) == (0, "")
    assert "×" in shown
    assert "✓" not in shown


def test_a_stream_is_guarded_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(io.FileIO(write, "w")), encoding="utf-8"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    guard_streams()
    sys.stdout.write("lost")
    with pytest.raises(ReaderGoneError):
        sys.stdout.flush()
    sys.stdout.close()  # what is left goes nowhere
    assert isinstance(sys.stderr, io.StringIO)  # somebody's own stream is left alone
