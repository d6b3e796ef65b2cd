"""Ctrl-C while a search goes on: it ends the program, unless there is a fleet worth keeping."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.running import ROOT, SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

SEARCH = """
import os, signal, sys
from optimizer.loads.instance import Brake
from pdplan.exits import stop_on_interrupt
from pdplan.exits import end, end_on_interrupt
end_on_interrupt()
brake = Brake(armed={armed})
with stop_on_interrupt(brake):
    for _ in range({strikes}):
        os.kill(os.getpid(), signal.SIGINT)
    print("stopped" if brake.stopped() else "goes on")
assert signal.getsignal(signal.SIGINT) is end
"""


def search(*, armed: bool, strikes: int) -> tuple[int, str, str]:
    """A search that is interrupted so many times."""
    done = subprocess.run(
        [sys.executable, "-c", SEARCH.format(armed=armed, strikes=strikes)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("armed", "strikes", "end"),
    [
        (True, 1, (0, "stopped\n", "")),  # a proven fleet is kept
        (False, 1, (130, "", "pdplan: error: interrupted\n")),
        (True, 2, (130, "", "pdplan: error: interrupted\n")),
        (True, 0, (0, "goes on\n", "")),
    ],
)
def test_a_strike_ends_the_program_unless_there_is_a_proven_fleet(
    armed: bool, strikes: int, end: tuple[int, str, str]
) -> None:
    assert search(armed=armed, strikes=strikes) == end
