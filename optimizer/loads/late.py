"""Whether the time that a user gave is up: loops that could take long ask, and end with what they have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

Late = Callable[[], bool]

LEAST_TIME = 0.05
"""Time that a search gets at least, however late it begins [s]."""


def never() -> bool:
    """Where nobody waits, there is always time."""
    return False


@dataclass(frozen=True, slots=True)
class Deadline:
    """until: what `time.perf_counter` tells when the user wants an answer [s]."""

    until: float = math.inf

    def late(self) -> bool:
        """Whether the user wants an answer now."""
        return time.perf_counter() >= self.until

    def part(self, share: float) -> Deadline:
        """The deadline of the first part of what is to be done, which may take that share of the time left."""
        now = time.perf_counter()
        return Deadline(now + share * (self.until - now))

    def seconds(self, most: float) -> float:
        """Time that is left, `most` at most [s]."""
        return min(most, max(self.until - time.perf_counter(), LEAST_TIME))
