"""The effort of a search: its time limit, its progress messages, how much it simulates and tunes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from optimizer.plans.records import QUICK_CANDIDATES

Late = Callable[[], bool]
"""Whether the user's time limit has passed. Long loops ask, and end with what they have."""


LEAST_TIME = 0.05
"""Time that a search gets at least, however late it begins [s]."""


Progress = Callable[[str, float], None]
"""Called when a stage begins, with its label and the share of the work that is done [1]."""


def never() -> bool:
    """Never late: for searches without a time limit."""
    return False


def silent(label: str, fraction: float = 0.0) -> None:
    """Ignores progress, such as that of a search within a stage."""


@dataclass(slots=True)
class Brake:
    """Ends a search: at the user's time limit, the only clock that may do so, or when its caller has no more time.

    until: reading of `time.perf_counter` when the time is up [s]; infinite, nothing depends on the clock. whole: the
    brake of which this is a part; passed: whether any search was told that the time was up. armed: there is a plan
    worth having, so that the brake ends the search once it is pulled.
    """

    until: float = math.inf
    whole: Brake | None = None
    passed: bool = False
    armed: bool = False
    pulled: bool = False

    def stopped(self) -> bool:
        """Whether to come to an end."""
        return self.late() or (self.armed and self.pulled)

    def late(self) -> bool:
        """Whether the time is up. It is recorded that a search asked, as the answer must say that it was cut short."""
        if time.perf_counter() < self.until:
            return False
        self.passed = True
        if self.whole is not None:
            self.whole.passed = True
        return True

    def part(self, share: float) -> Brake:
        """A brake for the first part of the remaining work, which may take this share of the time left."""
        now = time.perf_counter()
        return Brake(now + share * (self.until - now), self)

    def left(self) -> float:
        """Time left for one search [s]: a little even when it is late; infinite without a time limit."""
        return max(self.until - time.perf_counter(), LEAST_TIME)


StageReport = Callable[[str], None]
"""Called when one of the STAGES begins."""


class Level(StrEnum):
    """What `--effort` asks for."""

    QUICK = "quick"
    """The cheapest fleet by the queueing formulas; not simulated."""
    STANDARD = "standard"
    """The cheapest fleet that holds its goals when its requests are simulated."""
    THOROUGH = "thorough"
    """The same, with engine settings and replicas tuned by simulation."""


TUNING_LOOKS = 2 * QUICK_CANDIDATES
"""Simulations that tuning may make."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How to tune: looks that it may take; front: for cost and tail both, and judge what a dollar more buys.

    study: name of the storage that keeps the study (`study.open_storage`), None: none does.
    """

    looks: int = TUNING_LOOKS
    front: bool = False
    study: str | None = None


LEAST_RUNS = 2
"""Least number of full runs that judge a fleet."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort of a search, and how its fleet is tuned; None: not at all.

    extras: whether a plan of least cost also states the safe fleet, and what narrower precisions save.
    """

    level: Level
    brake: Brake
    report: StageReport = silent
    tune: Wish | None = None
    extras: bool = True

    @property
    def runs(self) -> int:
        """Full runs that confirm a fleet at least."""
        return 2 * LEAST_RUNS if self.level is Level.THOROUGH else LEAST_RUNS

    def on_held(self) -> None:
        """Some fleet holds in simulation: there is a plan worth having."""
        self.brake.armed = True
        self.report("simulating smaller fleets")

    @property
    def inner(self) -> Effort:
        """The effort of a secondary search: without tuning, and without progress messages."""
        return replace(self, level=Level.STANDARD, report=silent, tune=None)
