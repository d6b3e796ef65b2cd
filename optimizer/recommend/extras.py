"""What a plan says beyond its fleet: what a safe one costs, and what features and narrower precisions save.

Each is the search under another problem: with GPUs as slow as the worst of past predictions, in another precision,
without a feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from costmodel.engine import Role
from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.errors import InputError
from costmodel.words import dearer, dollars, percentage
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.error_bars import at_quantile, planned_instance, slow_end
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.diagnose import check_floors, check_shapes
from optimizer.loads.instance import Instance, Late, instance_of_problem
from optimizer.plans.plan import Plan, Worth
from optimizer.plans.records import PrecisionSaving, SafeFleet, SafeStatus
from optimizer.search.search import NO_DEARER, SAME_COST, at_best_split, evaluated
from optimizer.verification.bench import Verdict, make_bench
from optimizer.verification.judge import Outcome
from search_spaces.enumeration import enumerate_shapes
from search_spaces.problem import Goal, Problem

from .rival_rows import overall
from .search import Effort, by_formula, cheapest_confirmed, cheapest_of_few_pools, sure_verdict

CONFIDENCE: Final = 0.9
"""Probability of the interval of step times at whose slow end a fleet is safe [1]: that which plans state as error
bars."""
NARROW: Final = "fp8"
"""Precision that is tried: half as wide as what models are served in, and the widest of those with units of its own."""
NOTABLE: Final = 0.05
"""Share of the cost from which on a saving is told; predictions err by as much [1]."""
FEATURES: Final = ("chunked prefill", "batching", "disaggregation")
"""What is turned off to see what it is worth."""

# --- slow GPUs ------------------------------------------------------------------------------------------------------


def safe_fleet(expected: Instance, fleet: Fleet, late: Late, effort: Effort) -> SafeFleet | None:
    """The plan's own fleet where it survives slow GPUs, else the cheapest found that does; None where the time is up.

    expected: the instance that the plan's own `fleet` was found in, with expected step times; late: whether the search
    by formula is to end.
    """
    stopped = effort.brake.stopped
    if stopped():
        return None
    problem = replace(expected.problem, confidence=CONFIDENCE)
    slow = at_quantile(replace(expected, problem=problem), slow_end(CONFIDENCE))
    own = sure_verdict(make_bench(slow, late=stopped), fleet)
    survivor = own if own.held or stopped() else _survivor(slow, fleet, late, effort)
    return None if stopped() else _safe_record(slow, own, survivor)


def _survivor(slow: Instance, own: Fleet, late: Late, effort: Effort) -> Verdict | None:
    """The fleet of one pool or two that is cheapest by formula, or its repair, that is confirmed; else the own one's.

    Mixtures of engines within a stage, and repairs by search, would take longer than all else, and saved nothing on the
    examples.
    """
    space = at_best_split(slow, lambda: late() or effort.brake.stopped())
    cheapest = cheapest_of_few_pools(space)
    bench = make_bench(space.instance, late=effort.brake.stopped)
    return cheapest_confirmed(bench, [cheapest if cheapest.pools else own], effort.inner).winner


def _safe_record(slow: Instance, own: Verdict, survivor: Verdict | None) -> SafeFleet:
    status = SafeStatus.NONE if survivor is None else SafeStatus.OWN if survivor is own else SafeStatus.OTHER
    return SafeFleet(
        confidence=CONFIDENCE,
        status=status,
        cost_usd_per_hour=None if survivor is None else survivor.cost,
        pools=[] if survivor is None else engine_pools(slow, survivor.fleet),
        attainment=None if survivor is None else overall(survivor),
        own_attainment=overall(own),
        sentence=safe_sentence(own, survivor, len(slow.problem.slos)),
    )


def safe_sentence(own: Verdict, survivor: Verdict | None, classes: int) -> str:
    """Say whether a plan's own fleet survives slow GPUs, and what one costs that does; classes: with an SLO each."""
    slow = f"If these GPUs are as slow as the worst {percentage(1.0 - slow_end(CONFIDENCE))} of our predictions"
    if survivor is own:
        return f"{slow}, this fleet still meets {'the SLO' if classes == 1 else 'every SLO'}."
    misses = "misses" if own.outcome is Outcome.MISSES else "may miss"
    missed = f"{slow}, this fleet {misses} {'the SLO' if classes == 1 else 'an SLO'}."
    if survivor is None:
        return f"{missed} No fleet was found that survives."
    more = survivor.cost / own.cost - 1.0
    change = "the same" if abs(more) <= SAME_COST else f"{'+' if more > 0.0 else ''}{percentage(more, 1)}"
    return f"{missed} A fleet that survives costs {dollars(survivor.cost)}/h ({change})."


# --- narrower precisions --------------------------------------------------------------------------------------------


def precision_savings(instance: Instance, base: float, late: Late) -> list[PrecisionSaving]:
    """Fleets in narrower precisions that cost at least NOTABLE less than `base` [$/h], and than those before them.

    First of a narrower KV cache, then of narrower weights, then of both. instance: of the plan, whose split of
    end-to-end limits is kept; base: cost of the cheapest fleet by formula there. Empty where the time is up.
    """
    savings: list[PrecisionSaving] = []
    for problem in narrower(instance.problem):
        least = min([base, *(saving.cost_usd_per_hour for saving in savings)]) * (1.0 - NOTABLE)
        priced = None if late() else _priced(problem, instance)
        if priced is None:
            continue
        fleet = cheapest_of_few_pools(evaluated(priced, late), least * NO_DEARER)
        if fleet.pools:
            saving = PrecisionSaving(
                weight_dtype=problem.weight_dtype,
                kv_dtype=problem.kv_dtype,
                cost_usd_per_hour=fleet_cost(priced, fleet),
                base_usd_per_hour=base,
                pools=engine_pools(priced, fleet),
            )
            savings.append(saving)
    return [] if late() else savings


def narrower(problem: Problem) -> Iterator[Problem]:
    """The problem with a narrower KV cache, weights, or both, as far as they are wide and the user lists none."""
    cache = problem.kv_dtype == ACTIVATION_DTYPE and not problem.space.kv_dtype
    weights = problem.weight_dtype == ACTIVATION_DTYPE and not problem.space.weight_dtype
    if cache:
        yield replace(problem, kv_dtype=NARROW)
    if weights:
        yield replace(problem, weight_dtype=NARROW)
    if cache and weights:
        yield replace(problem, weight_dtype=NARROW, kv_dtype=NARROW)


def _priced(problem: Problem, instance: Instance) -> Instance | None:
    """The instance of another precision; None where no engine runs it on any GPU on offer."""
    try:
        check_shapes(problem, enumerate_shapes(problem))
    except InputError:
        return None
    return replace(planned_instance(problem, instance.overhead), flows=instance.flows)


# --- features -------------------------------------------------------------------------------------------------------


def with_worths(plan: Plan, problem: Problem) -> Plan:
    """The plan with what each feature is worth; as it is, where it has no fleet."""
    return plan.model_copy(update={"worth": worths(problem)}) if plan.pools else plan


def worths(problem: Problem) -> list[Worth]:
    """What each feature saves, by formula; empty unless the least price is sought and a fleet is found."""
    base = formula_price(problem) if problem.objective.goal is Goal.MIN_COST else None
    if base is None:
        return []
    possible = [name for name in FEATURES if name != "disaggregation" or Role.COLOCATED in problem.space.roles]
    prices = [(name, formula_price(without(name, problem))) for name in possible]
    return [
        Worth(feature=name, with_usd_per_hour=base, without_usd_per_hour=price, sentence=_worth(name, base, price))
        for name, price in prices
    ]


def without(feature: str, problem: Problem) -> Problem:
    """The problem without one of FEATURES: prompts in one chunk, requests one by one, or colocated engines only."""
    longest = 2 ** math.ceil(math.log2(problem.workload.max_tokens))
    space = {
        "chunked prefill": replace(problem.space, max_num_batched_tokens=(longest,)),
        "batching": replace(problem.space, max_num_seqs=(1,)),
        "disaggregation": replace(problem.space, roles=(Role.COLOCATED,)),
    }
    return replace(problem, space=space[feature])


def formula_price(problem: Problem) -> float | None:
    """Price of the cheapest fleet that holds by formula [$/h]; None where none was found."""
    try:
        check_shapes(problem, enumerate_shapes(problem))
        expected = instance_of_problem(problem)
        check_floors(expected)
    except InputError:  # no engine of what is left is possible at all
        return None
    solution = by_formula(at_quantile(expected, slow_end(problem.confidence)))
    return None if solution is None else fleet_cost(solution.instance, solution.fleet)


def _worth(name: str, base: float, price: float | None) -> str:
    if price is None:
        return f"Without {name} no fleet of the search space is found that meets the SLOs."
    if price <= base * (1.0 + SAME_COST):
        return f"Without {name} a fleet of the same price meets the SLOs."
    return f"Without {name} the cheapest fleet costs {dearer(price, base)}."
