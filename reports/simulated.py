"""What the views of a simulation show."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimizer.fleets.evaluate import Evaluation
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan
from optimizer.verification.demand import SEEDS
from optimizer.verification.goodput import Curve, Goodput
from optimizer.verification.judge import Judgement, Outcome
from optimizer.verification.record import ClassGaps, FleetUse, Slot


@dataclass(frozen=True, slots=True)
class Simulated:
    """A plan, its simulation, and what was asked for beside it.

    e2e: of each class, at p50, p90, p95 and p99 [s]; behind: the pool that falls behind, None where all keep up;
    source: where the requests come from, in words; most: requests that a run of them can have;
    concurrency: of a closed loop, 0 for an open one; analytic: prediction at the simulated rate with expected step
    times, None where requests do not come at one rate; slots: of a day; goodput, curve: if asked for; seed: of the
    first run's requests, None where they were recorded; until: half width of an interval that was asked for [1];
    cpu_seconds: of all runs [s].
    """

    plan: Plan
    instance: Instance
    judgement: Judgement
    use: FleetUse
    gaps: tuple[ClassGaps, ...]
    e2e: tuple[tuple[float, ...], ...]
    behind: str | None
    source: str
    most: int
    concurrency: int = 0
    analytic: Evaluation | None = None
    slots: tuple[Slot, ...] = ()
    goodput: Goodput | None = None
    curve: Curve | None = None
    seed: int | None = None
    until: float | None = None
    cpu_seconds: float = 0.0

    @property
    def seeds(self) -> list[int]:
        """Seed of each run; none where its requests were recorded."""
        return [] if self.seed is None else [self.seed + SEEDS * number for number in range(len(self.judgement.runs))]


def requests_to_decide(judgement: Judgement) -> int | None:
    """Requests of each run that would decide, rounded up to two digits; None where it is decided, or none would."""
    if judgement.outcome is not Outcome.UNDECIDED or not math.isfinite(judgement.deciding):
        return None
    digit = int(10 ** max(math.floor(math.log10(judgement.deciding)) - 1, 0))
    return math.ceil(judgement.deciding / digit) * digit
