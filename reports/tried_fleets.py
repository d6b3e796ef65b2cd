"""The other fleets that were simulated on the way to a plan's: one row each, however often the search came by."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import Plan
from optimizer.plans.records import JudgedFleet, engine_counts

from .text import clean
from .words import misses_used

HOLDS: Final = "meets the SLO"
UNPROVEN: Final = "not proven"
NOT_SHOWN: Final = "not proven to meet it"
"""What can be said of every fleet that does not hold, whether it misses a goal or only is not proven."""
_OF_A_SEARCH: Final = {"found by formula": "cheapest by formula", "repaired": "repaired after a miss"}


@dataclass(frozen=True, slots=True)
class TriedFleet:
    """Engines that were simulated beside the plan's: the attempt that went best, and how many there were.

    Attempts differ in batch limits, or in how requests are routed.
    """

    best: JudgedFleet
    tries: int


def tried_fleets(plan: Plan) -> list[TriedFleet]:
    """Every fleet that was simulated beside the plan's once: one replica fewer first, then the others as tried."""
    if plan.simulation is None:
        return []
    attempts: dict[tuple[Hashable, float], list[JudgedFleet]] = {}
    for one in (*plan.simulation.one_replica_less, *plan.simulation.others):
        attempts.setdefault((engine_counts(one.pools), one.cost_usd_per_hour), []).append(one)
    goals = {item.name: item.attainment_goal for item in plan.classes}

    def merit(one: JudgedFleet) -> tuple[bool, bool, float]:
        used = [misses_used(share, goals.get(name, 0.0)) for name, share in one.attainment.items()]
        return one.held, not one.overloaded, -max(used, default=math.inf)

    return [TriedFleet(max(alike, key=merit), len(alike)) for alike in attempts.values()]


def origin_words(one: JudgedFleet) -> str:
    """Say in words how the search came by a fleet."""
    return _OF_A_SEARCH.get(one.what, clean(one.what))


def outcome_words(one: JudgedFleet, plan: Plan) -> str:
    """Say whether a fleet holds; one whose interval straddles a goal is not proven to."""
    if one.held or one.stuck:
        return HOLDS if one.held else "behind once its KV memory was full"
    if one.replayed:
        return "misses the SLO in the trace's own order"
    if one.overloaded:
        return "overloaded"
    return UNPROVEN if undecided(one, plan) else "misses the SLO"


def held_words(outcomes: Sequence[str]) -> str:
    """Say how many of several fleets hold, by their outcomes.

    >>> held_words(["misses the SLO"]), held_words(["misses the SLO", "not proven"])
    ('none meets the SLO', 'none is proven to meet the SLO')
    >>> held_words(["meets the SLO", "not proven"])
    '1 meets the SLO'
    """
    held = outcomes.count(HOLDS)
    if held:
        return f"{held} {'meets' if held == 1 else 'meet'} the SLO"
    return "none is proven to meet the SLO" if {UNPROVEN, NOT_SHOWN} & set(outcomes) else "none meets the SLO"


def undecided(one: JudgedFleet, plan: Plan) -> bool:
    """Whether the simulation does not tell if a fleet holds; older plans do not say: then the shares are compared."""
    if one.outcome is not None:
        return one.outcome == "undecided"
    goals = {item.name: item.attainment_goal for item in plan.classes}
    reached = all(share >= goals.get(name, 0.0) for name, share in one.attainment.items())
    return reached and not one.held and not one.overloaded
