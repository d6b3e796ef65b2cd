"""The end of a run: exit codes, and Ctrl-C, which ends the program at once, wherever it is.

Python's own way, an exception out of whatever line runs, is lost where C code calls back into Python: a compiled
module on its way in (the solver's takes a second) drops it, and the run goes on as if nobody had pressed Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
from enum import IntEnum  # which signal has imported

TYPE_CHECKING = False  # as typing has it: these lines run before Ctrl-C is looked after, and typing is slow to import
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

    from optimizer.loads.effort import Brake


class ExitCode(IntEnum):
    """What the shell gets."""

    DONE = 0
    BAD_INPUT = 2
    INFEASIBLE = 3
    """The command ran, and its answer is not yes: no fleet, an SLO missed or undecided, a loss that is not survived."""
    BUG = 70
    INTERRUPTED = 130
    """128 + SIGINT."""
    BROKEN_PIPE = 141


def end_on_interrupt() -> None:
    """Let SIGINT end this process; where the parent had it ignored (`nohup`, a job in the background) it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def end(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Say so, remove files that are half written, and leave; nothing here allocates much or waits for a lock."""
    writer = sys.modules.get("reports.whole_files")
    if writer is not None:
        writer.discard_unfinished()
    try:
        clear = b"\r\x1b[K" if os.isatty(2) and os.environ.get("TERM") != "dumb" else b""
        os.write(2, clear + b"pdplan: error: interrupted\n")
    finally:
        os._exit(ExitCode.INTERRUPTED)


class stop_on_interrupt:  # noqa: N801 - a context, which contextlib is slow to import for
    """Pull a search's brake at the first SIGINT, where it is armed; a second one, or one before, ends the process."""

    def __init__(self, brake: Brake) -> None:
        self.brake = brake
        self.before = signal.getsignal(signal.SIGINT)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self.brake.pulled or not self.brake.armed:
            end(number, frame)
        self.brake.pulled = True

    def __enter__(self) -> None:
        if self.before is end:
            signal.signal(signal.SIGINT, self._strike)

    def __exit__(self, *_error: object) -> None:
        if self.before is end:
            signal.signal(signal.SIGINT, self.before)
