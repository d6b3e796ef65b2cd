"""Whether the time that a user gave is up: loops that could take long ask, and end with what they have."""

from __future__ import annotations

from collections.abc import Callable

Late = Callable[[], bool]


def never() -> bool:
    """Where nobody waits, there is always time."""
    return False
