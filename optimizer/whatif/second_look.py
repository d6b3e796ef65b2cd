"""A second look at the fleets that formulas found: their requests are simulated, as `pdplan optimize` does it.

A fleet that does not hold is refuted, and with it those that have no more of the same engines in any pool; the
cheapest of those that are left is looked at next. That ends after ROUNDS more, with one that holds or with none: a
fleet that missed is never shown as an answer. Prices change no physics, so fleets are looked at once for all of them.

A fleet holds only if requests confirm it that had no part in its choice. It may be confirmed twice, by intervals beyond
whose lower ends the true share lies with a chance of 1.25 and 0.6 %: one that misses a goal passes with 1.9 % at most.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache

from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance, at_volume
from optimizer.recommend.rival_rows import overall
from optimizer.verification.bench import REPLICATIONS, Verdict, make_bench, miss_words
from optimizer.verification.confirm import confirmed_once
from optimizer.verification.judge import Outcome
from optimizer.verification.verify import ROUNDS
from search_spaces.problem import Problem

from .physics import Engines, Physics, fleet_of, physics_text
from .refuted import NONE, Engine, Refuted, refuted_with
from .scenario import Answer, Missed, answer_of, cheapest_settled, unproven, why_none

SHORTLY = 0
"""Full runs that a fleet gets before it is confirmed: a short one shows most of those that miss."""


def look(instance: Instance, fleet: Fleet, most: int = REPLICATIONS[-1]) -> tuple[float, str]:
    """Simulate a fleet: the share of all requests within their SLOs, and how it misses its goals, "" where it holds.

    most: full runs after which a fleet that straddles a goal is taken for a miss.
    """
    found = _looked(instance, fleet, most)
    return overall(instance, found), "" if found.held else miss_words(found)


def _looked(instance: Instance, fleet: Fleet, most: int) -> Verdict:
    """A fleet refuted by a short run, or confirmed on requests that no run before had (`confirm`).

    Formulas chose the fleet, so the runs that confirm it may be the first full ones. Where these do not tell, others
    say how many it takes, and it is confirmed once more.
    """
    bench = make_bench(instance)
    found = bench.verdict(fleet, SHORTLY)
    if found.judgement.missed:
        return found
    found = confirmed_once(bench, found, 1)
    if found.outcome is not Outcome.UNDECIDED or most <= bench.least:
        return found
    again = make_bench(instance)
    found = again.verdict(fleet, most)
    return confirmed_once(again, found, 2) if found.held else found


@lru_cache(maxsize=1000)
def look_at(physics: Physics, rate: float, seed: int, way: int, pools: tuple[Engines, ...]) -> tuple[float, str]:
    """The same for a fleet of some physics at a rate [1/s]."""
    free = physics.problem
    problem = replace(free, seed=seed, workload=replace(free.workload, request_rate=rate))
    instance = replace(at_volume(physics.ways[way].instance, rate), problem=problem)
    return look(instance, fleet_of(physics, way, pools))


def family_of(problem: Problem) -> str:
    """Digest of all that the simulation of a fleet depends on besides the fleet: everything but prices and limits."""
    told = [physics_text(problem), problem.confidence, problem.workload.request_rate, problem.seed]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def proven(problem: Problem, physics: Physics, known: Refuted = NONE) -> Answer:
    """The cheapest fleet of one or two pools that holds when it is simulated, and those that it stands for.

    known: fleets that were seen to miss there before.
    """
    missed: list[Missed] = []
    out: set[tuple[Engine, ...]] = set(known)
    for _ in range(1 + ROUNDS):
        pick = None if physics.floor else cheapest_settled(problem, physics, frozenset(out))
        if pick is None:
            break
        reached, fault = look_at(physics, problem.workload.request_rate, problem.seed, pick.way, pick.pools)
        answer = answer_of(problem, physics, pick)
        if not fault:
            return replace(answer, attainment=reached, refuted=tuple(missed))
        missed.append(Missed(pick.cost, answer.pools, reached, fault))
        out.add(refuted_with(pick.pools))
    return unproven(missed) if missed else why_none(problem, physics)
