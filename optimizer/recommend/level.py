"""How much a plan is worth in time: by formulas alone, simulated, or tuned and simulated; and how it is cut short."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """What `--effort` asks for."""

    QUICK = "quick"
    """The cheapest fleet by the queueing formulas; not simulated."""
    STANDARD = "standard"
    """The cheapest fleet that holds its goals when its requests are simulated."""
    THOROUGH = "thorough"
    """The same, with engine settings, routing and replicas tuned by simulation."""


@dataclass(slots=True)
class Brake:
    """A wish to stop: armed once there is a plan worth having, pulled by whoever has no more time.

    until: what `time.perf_counter` tells when the time is up, whether or not there is a plan by then [s].
    """

    armed: bool = False
    pulled: bool = False
    until: float = math.inf

    def late(self) -> bool:
        """Whether the time is up, whatever there is."""
        return time.perf_counter() >= self.until

    def stopped(self) -> bool:
        """Whether to come to an end."""
        return self.late() or (self.armed and self.pulled)
