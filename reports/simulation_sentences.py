"""Sentences on the simulation that a plan rests on."""

from __future__ import annotations

from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import Plan
from optimizer.plans.plan_simulation import JudgedFleet

from .numbers import count, percent, percent_beside
from .text import clean, plural

MOST_LESS: Final = 4
"""Pools that are named of those that cannot lose a replica."""


def simulation_sentence(plan: Plan) -> str:
    """Say what share of requests the simulation saw in time, with its interval; empty where there was none."""
    found = plan.simulation
    if found is None or not found.classes:
        return ""
    one = min(found.classes, key=lambda item: item.attainment_low - item.attainment_goal)
    held, low, high = (
        percent_beside(share, one.attainment_goal)
        for share in (one.attainment, one.attainment_low, one.attainment_high)
    )
    tightest = "" if len(found.classes) == 1 else ", the tightest class,"
    return (
        f"Simulated: {held} of {clean(one.name, 30)}{tightest} in time (95 % interval {low} to {high}) "
        f"for a goal of {percent(one.attainment_goal)}, over {count(found.requests)} requests in "
        f"{plural(found.replications, 'run')}."
    )


def waste_sentence(plan: Plan) -> str:
    """Say what the fleet attains with one replica less; empty where that was not simulated."""
    found = plan.simulation
    if found is None or not found.one_replica_less:
        return ""
    goals = {item.name: item.attainment_goal for item in found.classes}
    words = [_less_words(row, goals) for row in found.one_replica_less[:MOST_LESS]]
    rest = len(found.one_replica_less) - len(words)
    more = [plural(rest, "more pool")] if rest else []
    return f"One replica less misses a goal: {join_words([*words, *more])}."


def _less_words(row: JudgedFleet, goals: dict[str, float]) -> str:
    """The share that a fleet with one replica less keeps of the class that suffers most."""
    worst = min(row.attainment, key=lambda name: row.attainment[name] - goals.get(name, 0.0))
    where = clean(row.what).partition(":")[0]
    return f"{where} {percent(row.attainment[worst])}{' (overloaded)' if row.overloaded else ''}"
