"""What the shell gets from every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell gets."""

    DONE = 0
    BAD_INPUT = 2
    INFEASIBLE = 3
    """The command ran, and its answer is no: no fleet, a missed SLO, a fleet that does not survive a loss."""
    BUG = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141
