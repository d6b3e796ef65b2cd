"""Ctrl-C ends the program at once, wherever it is.

Python's own way, an exception out of whatever line runs, is lost where C code calls back into Python: a compiled
module on its way in (the solver's takes a second) drops it, and the run goes on as if nobody had asked.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as typing has it: these lines run before Ctrl-C is looked after, and typing is slow to import
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130
"""What the shell gets: 128 + SIGINT."""


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
        os._exit(INTERRUPTED)
