"""What the shell gets from every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell gets."""

    DONE = 0
    BAD_INPUT = 2
    INFEASIBLE = 3
    """The command ran, and its answer is not yes: no fleet, an SLO missed or undecided, a loss that is not survived."""
    BUG = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141
