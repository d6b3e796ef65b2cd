"""Ctrl-C: 130 and one line, wherever it strikes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT, SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

STRUCK_WHERE_IT_IS_SWALLOWED = """
import os, signal
from pdplan.exits import end_on_interrupt
end_on_interrupt()
{before}
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    pass
print("nobody noticed")
"""


def struck(before: str = "", *, ignored: bool = False) -> tuple[int, bytes, bytes]:
    """Run Python code that is interrupted where exceptions are lost, as in a compiled module on its way in."""
    done = subprocess.run(
        [sys.executable, "-c", STRUCK_WHERE_IT_IS_SWALLOWED.format(before=before)],
        capture_output=True,
        check=False,
        cwd=ROOT,
        timeout=SECONDS,
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
    )
    return done.returncode, done.stdout, done.stderr


def test_an_interrupt_cannot_be_swallowed() -> None:
    assert struck() == (130, b"", b"pdplan: error: interrupted\n")


def test_an_ignored_interrupt_stays_ignored() -> None:
    assert struck(ignored=True) == (0, b"nobody noticed\n", b"")


def test_an_interrupt_removes_what_is_half_written(tmp_path: Path) -> None:
    before = (
        f"from pathlib import Path; from reports.whole_files import _write_beside as w; w(Path('{tmp_path}/a'), 'x')"
    )
    assert struck(before)[0] == 130
    assert list(tmp_path.iterdir()) == []


def test_the_program_is_ready_for_it_before_it_is_imported() -> None:
    code = "import sys, pdplan.exits; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"click", "costmodel", "pathlib", "typing", "re"} & set(loaded.stdout.split())
