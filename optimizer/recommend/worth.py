"""What chunked prefill, batching and disaggregation are each worth: one is turned off, and the problem solved again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.words import dearer
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.error_bars import at_quantile, slow_end
from optimizer.loads.diagnose import check_floors, check_shapes
from optimizer.loads.instance import make_instance
from optimizer.plans.plan import Plan, Worth
from optimizer.search.search import at_best_split
from search_spaces.engines import load_engine_overhead
from search_spaces.enumeration import enumerate_shapes
from search_spaces.problem import Goal, Problem

from .formula_search import cheapest_by_formula

Solve = Callable[[Problem], float | None]


def without_chunking(problem: Problem) -> Problem:
    """The problem with room for the longest request in every step, so that no prompt is computed in parts."""
    longest = 2 ** math.ceil(math.log2(problem.workload.max_tokens))
    return replace(problem, space=replace(problem.space, max_num_batched_tokens=(longest,)))


def without_batching(problem: Problem) -> Problem:
    """The problem with one request at a time in every engine."""
    return replace(problem, space=replace(problem.space, max_num_seqs=(1,)))


def without_disaggregation(problem: Problem) -> Problem:
    """The problem with colocated engines only."""
    return replace(problem, space=replace(problem.space, roles=(Role.COLOCATED,)))


FEATURES: Final[tuple[tuple[str, Callable[[Problem], Problem]], ...]] = (
    ("chunked prefill", without_chunking),
    ("batching", without_batching),
    ("disaggregation", without_disaggregation),
)


def formula_price(problem: Problem) -> float | None:
    """Price of the cheapest fleet that holds by formula [$/h]; None where none was found."""
    try:
        check_shapes(problem, enumerate_shapes(problem))
        expected = make_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
        check_floors(expected)
    except InputError:  # no engine of what is left is possible at all
        return None
    known = at_best_split(at_quantile(expected, slow_end(problem.confidence)))
    fleet = cheapest_by_formula(known)
    return fleet_cost(known.instance, fleet) if fleet.pools else None


def worths(problem: Problem, solve: Solve = formula_price) -> list[Worth]:
    """What each feature saves, by formula; empty unless the least price is sought and a fleet is found."""
    if problem.objective.goal is not Goal.MIN_COST:
        return []
    base = solve(problem)
    if base is None:
        return []
    changed = [(name, without(problem)) for name, without in FEATURES]
    return [_worth(name, base, solve(other)) for name, other in changed if _is_possible(name, problem)]


def _is_possible(name: str, problem: Problem) -> bool:
    """Whether turning a feature off leaves anything: colocated engines must be allowed to do without disaggregation."""
    return name != "disaggregation" or Role.COLOCATED in problem.space.roles


def _worth(name: str, base: float, price: float | None) -> Worth:
    return Worth(
        feature=name, with_usd_per_hour=base, without_usd_per_hour=price, sentence=_sentence(name, base, price)
    )


def _sentence(name: str, base: float, price: float | None) -> str:
    if price is None:
        return f"Without {name} no fleet of the search space is found that meets the SLOs."
    if price <= base * (1.0 + 1e-6):
        return f"Without {name} a fleet of the same price meets the SLOs."
    return f"Without {name} the cheapest fleet costs {dearer(price, base)}."


def with_worths(plan: Plan, problem: Problem) -> Plan:
    """The plan with what each feature is worth; as it is, where it has no fleet."""
    return plan.model_copy(update={"worth": worths(problem)}) if plan.pools else plan
