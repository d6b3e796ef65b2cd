"""Sentences on the simulation that a plan rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import Plan
from optimizer.plans.records import JudgedFleet, Simulation

from .numbers import count, percent, percent_beside
from .text import clean, plural
from .tried_fleets import undecided
from .words import misses_used

MOST_LESS: Final = 4
"""Pools that are named of those that cannot lose a replica."""


def simulation_sentence(plan: Plan) -> str:
    """Say what share of requests the simulation saw in time, with its interval; empty where there was none."""
    found = plan.simulation
    if found is None or not found.classes:
        return ""
    one = max(found.classes, key=lambda item: misses_used(item.attainment_low, item.attainment_goal))
    held, low, high = (
        percent_beside(share, one.attainment_goal)
        for share in (one.attainment, one.attainment_low, one.attainment_high)
    )
    tightest = "" if len(found.classes) == 1 else ", the tightest class,"
    fresh, by = ("fresh ", "") if found.confirmation else ("", " that it was also chosen by")
    own = "" if found.recorded is None else f" drawn from {clean(found.recorded.source, 60)} in stretches,"
    return (
        f"Simulated: {held} of {clean(one.name, 30)}{tightest} in time (95 % interval {low} to {high}) "
        f"for a goal of {percent(one.attainment_goal)}, over {count(found.requests)} {fresh}requests{own} in "
        f"{plural(found.replications, 'run')}{by}.{_recorded_words(found)}"
    )


def _recorded_words(found: Simulation) -> str:
    """Say what the fleet attains when the recorded requests come in their own order; empty where there are none."""
    run = found.recorded
    if run is None:
        return ""
    goals = {item.name: item.attainment_goal for item in found.classes}
    worst = max(run.classes, key=lambda item: misses_used(item.attainment, goals.get(item.name, 0.0)))
    held = percent_beside(worst.attainment, goals.get(worst.name, 0.0))
    part = "all" if run.requests == run.of else f"{count(run.requests)} of"
    return f" Replayed in order, {part} {count(run.of)} requests of it: {held} of {clean(worst.name, 30)} in time."


def waste_sentence(plan: Plan) -> str:
    """Say what the fleet attains with one replica less; empty where that was not simulated.

    Spare engines are idle in a plan's figures, so the replica is one of those in use.
    """
    found = plan.simulation
    if found is None or not found.one_replica_less:
        return ""
    goals = {item.name: item.attainment_goal for item in found.classes}
    unsure = [row for row in found.one_replica_less if undecided(row, plan)]
    sure = [row for row in found.one_replica_less if row not in unsure]
    parts = (("misses a goal", sure), ("is not proven to hold", unsure))
    told = "ne replica less " + ", and ".join(f"{verb}: {_pools_words(rows, goals)}" for verb, rows in parts if rows)
    if not any(pool.spare_replicas for pool in plan.pools):
        return f"O{told}."
    return f"With the spare engines idle, o{told}; pdplan resilience says what is borne where they serve."


def router_sentence(plan: Plan) -> str:
    """Say what the fleet attains behind a router that counts requests; empty where that was not simulated."""
    found = plan.simulation
    if found is None or found.fewest_requests is None:
        return ""
    kept = kept_by_requests(found, found.fewest_requests)
    verdict = "holds too" if found.fewest_requests.held else "is not shown to hold"
    return f"Behind a router that counts requests, not prompt tokens as assumed here, it {verdict}: {kept}."


def kept_by_requests(found: Simulation, row: JudgedFleet) -> str:
    """The share in time of the class with the least room, behind a router that counts requests."""
    goals = {item.name: item.attainment_goal for item in found.classes}
    worst = _worst_class(row, goals)
    share = percent_beside(row.attainment[worst], goals[worst])
    return f"{share} of {clean(worst, 30)} in time for a goal of {percent(goals[worst])}"


def _pools_words(rows: Sequence[JudgedFleet], goals: dict[str, float]) -> str:
    """The pools that a replica was taken from, with what is kept then."""
    words = [_less_words(row, goals) for row in rows[:MOST_LESS]]
    more = [plural(len(rows) - len(words), "more pool")] if len(rows) > len(words) else []
    return join_words([*words, *more])


def _less_words(row: JudgedFleet, goals: dict[str, float]) -> str:
    """The share that a fleet with one replica less keeps of the class that suffers most."""
    worst = _worst_class(row, goals)
    where = clean(row.what).partition(":")[0]
    why = " (overloaded)" if row.overloaded else " (once its KV memory was full)" if row.stuck else ""
    why = " (in the trace's own order)" if row.replayed else why
    return f"{where} {percent(row.attainment[worst])}{why}"


def _worst_class(row: JudgedFleet, goals: dict[str, float]) -> str:
    """The class that uses most of its permitted misses."""
    return max(row.attainment, key=lambda name: misses_used(row.attainment[name], goals.get(name, 0.0)))
