"""Sentences on the simulation that a plan rests on."""

from __future__ import annotations

from typing import Final

from optimizer.plans.plan import Plan
from optimizer.plans.records import JudgedFleet, Simulation

from .numbers import count, percent, percent_beside
from .text import clean, plural
from .tried_fleets import undecided
from .words import misses_used, tightest_first

MOST_LESS: Final = 4
"""Pools that are named of those that cannot lose a replica."""


def slo_result_sentence(plan: Plan, *, brief: bool = False) -> str:
    """Say whether the fleet meets the SLO, by which share of the tightest class, and how that is known.

    brief: without the number of requests. Empty for a plan without classes.
    """
    simulation = plan.simulation
    if simulation is None or not simulation.classes:
        return _by_formula(plan)
    worst = max(simulation.classes, key=lambda item: misses_used(item.attainment_low, item.attainment_goal))
    met, low, high = (
        percent_beside(share, worst.attainment_goal)
        for share in (worst.attainment, worst.attainment_low, worst.attainment_high)
    )
    verdict = "Misses" if worst.attainment_high < worst.attainment_goal else "Meets"
    if verdict == "Meets" and worst.attainment_low < worst.attainment_goal:
        verdict = "Not proven to meet"
    fresh = "fresh requests" if simulation.confirmation else "requests by which it was also chosen"
    source = "" if simulation.recorded is None else f" drawn from {clean(simulation.recorded.source, 60)}"
    known = f"{count(simulation.requests)} {fresh}{source} in {plural(simulation.replications, 'run')}"
    result = _result(verdict, worst.name, met, worst.attainment_goal, len(simulation.classes))
    if brief:
        return f"{result}, simulated (95 % interval {low} to {high}).{_recorded_words(simulation)}"
    return f"{result}, simulated over {known} (95 % interval {low} to {high}).{_recorded_words(simulation)}"


def _result(verdict: str, name: str, met: str, goal: float, classes: int) -> str:
    """The verdict with the share of the only class that meets its SLO, or of the tightest of several."""
    share = f"{met} of requests ({percent(goal)} asked)"
    if classes == 1:
        return f"{verdict} the SLO: {share}"
    if verdict == "Meets":
        return f"Meets every SLO: {clean(name, 30)} is tightest with {share}"
    return f"{verdict} the SLO of {clean(name, 30)}: {share}"


def _by_formula(plan: Plan) -> str:
    if not plan.classes:
        return ""
    worst = tightest_first(plan)[0]
    goal, verdict = worst.attainment_goal, "Meets" if worst.attainment >= worst.attainment_goal else "Misses"
    met = percent_beside(worst.attainment, goal)
    return f"{_result(verdict, worst.name, met, goal, len(plan.classes))}, by formula, not simulated."


def _recorded_words(found: Simulation) -> str:
    """Say what the fleet attains when the recorded requests come in their own order; empty where there are none."""
    run = found.recorded
    if run is None:
        return ""
    goals = {item.name: item.attainment_goal for item in found.classes}
    worst = max(run.classes, key=lambda item: misses_used(item.attainment, goals.get(item.name, 0.0)))
    held = percent_beside(worst.attainment, goals.get(worst.name, 0.0))
    part = "all" if run.requests == run.of else f"{count(run.requests)} of"
    return f" Replayed in order, {part} its {count(run.of)} requests: {held} of {clean(worst.name, 30)} meet the SLO."


def waste_sentence(plan: Plan) -> str:
    """Say what the fleet attains with one replica fewer; empty where that was not simulated.

    Spare replicas are idle in a plan's figures, so the replica is one of those in use.
    """
    found = plan.simulation
    if found is None or not found.one_replica_less:
        return ""
    rows = found.one_replica_less
    spares = any(pool.spare_replicas for pool in plan.pools)
    subject = "Without the spare replicas, with one fewer" if spares else "No spare: with one replica fewer"
    losses = [_loss_words(row, plan, first=number == 0) for number, row in enumerate(rows[:MOST_LESS])]
    more = [plural(len(rows) - MOST_LESS, "more pool")] if len(rows) > MOST_LESS else []
    also = "; pdplan resilience tells which losses the spare replicas cover" if spares else ""
    return f"{subject} {'; '.join([*losses, *more])}{also}."


def _loss_words(row: JudgedFleet, plan: Plan, *, first: bool) -> str:
    """Of a fleet with one replica fewer: the pool, and which share of its worst class then meets the SLO."""
    goals = {item.name: item.attainment_goal for item in plan.classes}
    worst = _worst_class(row, goals)
    what = f" of {'requests' if len(goals) == 1 else clean(worst, 30)} meet the SLO" if first else ""
    why = " (overloaded)" if row.overloaded else " (once its KV memory was full)" if row.stuck else ""
    why = " (in the trace's own order)" if row.replayed else why
    why = " (not proven to miss)" if undecided(row, plan) else why
    return f"in {clean(row.what).partition(':')[0]}, {percent(row.attainment[worst])}{what}{why}"


def router_sentence(plan: Plan) -> str:
    """Say what the fleet attains behind a router that counts requests; empty where that was not simulated."""
    found = plan.simulation
    if found is None or found.fewest_requests is None:
        return ""
    kept = kept_by_requests(found, found.fewest_requests)
    verdict = "Also meets the SLO" if found.fewest_requests.held else "Not shown to meet the SLO"
    return f"{verdict} behind a least-requests router (vLLM's default): {kept}."


def kept_by_requests(found: Simulation, row: JudgedFleet) -> str:
    """The share of the tightest class that meets the SLO behind a least-requests router."""
    goals = {item.name: item.attainment_goal for item in found.classes}
    worst = _worst_class(row, goals)
    share = percent_beside(row.attainment[worst], goals[worst])
    return f"{share} of {clean(worst, 30)} ({percent(goals[worst])} asked)"


def _worst_class(row: JudgedFleet, goals: dict[str, float]) -> str:
    """The class that uses most of its permitted misses."""
    return max(row.attainment, key=lambda name: misses_used(row.attainment[name], goals.get(name, 0.0)))
