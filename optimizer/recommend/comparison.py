"""What a plan sets beside its fleet: the cheapest fleet under each restriction, a safe one, and what features save.

A GPU type or a role should lose on its merits, not through an error of the formulas about its cheapest fleet, nor
through a shorter search. So its fleet comes from the plan's own search (`search.cheapest_confirmed`), kept to what the
restriction allows; all these searches share their simulations. The rest is the search under another problem: with GPUs
as slow as the worst of past predictions, in another precision, without a feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from costmodel.engine import Role
from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.errors import InputError
from costmodel.words import dearer, dollars, percentage
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance, Late, at_quantile, instance_of_problem, planned_instance, slow_end
from optimizer.plans.plan import Alternative, Plan, Status, Worth
from optimizer.plans.proof import Proof
from optimizer.plans.records import PrecisionSaving, SafeFleet, SafeStatus
from optimizer.search.bound import check_floors, check_shapes
from optimizer.search.search import NO_DEARER, SAME_COST, at_best_split, evaluated
from optimizer.verification.bench import (
    MOST_BETWEEN,
    MOST_CONFIRMED,
    Bench,
    Verdict,
    confirmed_once,
    make_bench,
    miss_words,
)
from optimizer.verification.judge import MOST_RUNS, Outcome
from optimizer.verification.record import fleet_row
from optimizer.verification.verify import CANDIDATE, SearchResult, without_one_replica
from search_spaces.enumeration import enumerate_shapes
from search_spaces.problem import Goal, Problem

from .search import (
    Effort,
    FormulaResult,
    Restriction,
    Rival,
    by_formula,
    cheapest_confirmed,
    cheapest_of_few_pools,
    nearly_by_formula,
    sure_verdict,
)

SAME: Final = "the same cost"
UNCONFIRMED: Final = "; not confirmed by simulation, for want of time"
"""What is said of a rival that was not put to fresh requests."""
CONFIDENCE: Final = 0.9
"""Probability of the interval of step times at whose slow end a fleet is safe [1]: that which plans state as error
bars."""
NARROW: Final = "fp8"
"""Precision that is tried: half as wide as what models are served in, and the widest of those with units of its own."""
NOTABLE: Final = 0.05
"""Share of the cost from which on a saving is told; predictions err by as much [1]."""
FEATURES: Final = ("chunked prefill", "batching", "disaggregation")
"""What is turned off to see what it is worth."""

JudgedRival = tuple[Rival, SearchResult]

LAST: Final = MOST_CONFIRMED + 1
"""Number of the confirmation of a rival that takes the winner's place: no fleet was put to it before."""


def judged_rivals(result: FormulaResult, bench: Bench, winner: Verdict, effort: Effort) -> Iterator[JudgedRival]:
    """The rivals whose restriction does not allow the winner, each with the result of its search."""
    feasible_rivals = [rival for rival in result.rivals if rival.fleets]
    for rival in result.rivals[1:]:
        restriction = rival.restriction
        if restriction is None or restriction.allows(winner.fleet):
            continue
        fleets = [fleet for candidate in feasible_rivals for fleet in candidate.fleets if restriction.allows(fleet)]
        fleets = fleets or nearly_by_formula(bench.instance, bench.late, restriction.usable)
        near = [fleet for fleet in rival.near if restriction.allows(fleet)]
        yield rival, cheapest_confirmed(bench, fleets, effort.inner, near=near, eligible=restriction.allows)


def with_cheaper_rival(
    bench: Bench, best: SearchResult, rival_results: Iterable[JudgedRival], stopped: Late
) -> SearchResult:
    """The result of the cheapest rival, where it costs less than the winner and is confirmed again; else `best`.

    A search under a restriction may find a fleet that the free search passed over.
    """
    for _, rival in sorted(rival_results, key=lambda row: math.inf if row[1].winner is None else row[1].winner.cost):
        if best.winner is None or rival.winner is None or rival.winner.cost >= best.winner.cost * (1.0 - SAME_COST):
            break
        verdict = confirmed_once(bench, rival.winner, LAST, MOST_RUNS, MOST_BETWEEN)
        if verdict.held:
            one_less = without_one_replica(bench, verdict.fleet, stopped)
            return replace(best, winner=verdict, one_less=tuple(one_less))
    return best


def comparison_rows(
    instance: Instance,
    fleet: Fleet,
    proof: Proof,
    rivals: Sequence[Rival] = (),
    results: Iterable[JudgedRival] = (),
    *,
    volume: float = 1.0,
    verdict: Verdict | None = None,
) -> list[Alternative]:
    """The row of the plan's fleet first, then the best under each restriction by price, simulated as far as possible.

    verdict: on the plan's fleet, None by formula; results: the searches of the rivals that were simulated.
    """
    best = fleet_row(instance, fleet, verdict, ("recommended", "recommended"), "", proof, volume)
    searches, cost = {id(rival): search for rival, search in results}, fleet_cost(instance, fleet)
    rows = [
        best.model_copy(update={"kind": rival.restriction.kind, "label": rival.restriction.label, "why_not": SAME})
        if rival.restriction.allows(fleet)
        else _rival_row(instance, rival, rival.restriction, searches.get(id(rival)), cost)
        for rival in rivals
        if rival.restriction is not None
    ]
    rows.sort(key=lambda row: (row.cost_usd_per_hour is None, row.cost_usd_per_hour or 0.0, row.label))
    return [best, *rows]


def _rival_row(
    instance: Instance, rival: Rival, limit: Restriction, search: SearchResult | None, best: float
) -> Alternative:
    """The row of a restriction that forbids the plan's fleet; search: None by formula; best: the plan's cost [$/h]."""
    heading, verdict = (limit.kind, limit.label), None if search is None else search.winner
    if search is not None and verdict is None and search.undecided is None:
        first = next((tried for label, tried in search.others if label == CANDIDATE), search.nearest)
        if first is not None:
            reason = f"the cheapest found by formula ({dollars(first.cost)}/h) {miss_words(first)}"
            return _without_fleet(heading, Status.TIME_LIMIT, reason).model_copy(update={"simulated": True})
    if verdict is None and not rival.fleets:
        return _without_fleet(heading, Status.INFEASIBLE if rival.impossible else Status.TIME_LIMIT, rival.why_none)
    cost = rival.cost(instance) if verdict is None else verdict.cost
    why_not = SAME if cost <= best * (1.0 + SAME_COST) else f"costs {dearer(cost, best)}"
    row = fleet_row(instance, rival.fleets[0] if verdict is None else verdict.fleet, verdict, heading, why_not)
    in_time = search is None or row.confirmed
    return row if in_time else row.model_copy(update={"why_not": f"{why_not}{UNCONFIRMED}"})


def _without_fleet(heading: tuple[str, str], status: Status, why_not: str) -> Alternative:
    """The row of a restriction under which no fleet is known."""
    nothing = dict.fromkeys(("cost_usd_per_hour", "bound_usd_per_hour", "gap", "attainment"))
    kind, label = heading
    return Alternative(kind=kind, label=label, status=status, pools=[], why_not=why_not, **nothing)


# --- slow GPUs ------------------------------------------------------------------------------------------------------


def safe_fleet(instance: Instance, fleet: Fleet, late: Late, effort: Effort) -> SafeFleet | None:
    """The plan's own fleet where it survives slow GPUs, else the cheapest found that does; None where the time is up.

    instance: the instance that the plan's own `fleet` was found in, with expected step times; late: whether the search
    by formula is to end.
    """
    is_stopped = effort.brake.stopped
    if is_stopped():
        return None
    problem = replace(instance.problem, confidence=CONFIDENCE)
    slow = at_quantile(replace(instance, problem=problem), slow_end(CONFIDENCE))
    own = sure_verdict(make_bench(slow, late=is_stopped), fleet)
    survivor = own if own.held or is_stopped() else _survivor(slow, fleet, late, effort)
    return None if is_stopped() else _safe_record(slow, own, survivor)


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
        attainment=None if survivor is None else survivor.overall,
        own_attainment=own.overall,
        sentence=safe_sentence(own, survivor, len(slow.problem.slos)),
    )


def safe_sentence(own: Verdict, survivor: Verdict | None, classes: int) -> str:
    """Say whether a plan's own fleet survives slow GPUs, and what one costs that does; classes: with an SLO each."""
    slow = f"If these GPUs are as slow as the worst {percentage(1.0 - slow_end(CONFIDENCE))} of our predictions"
    if survivor is own:
        return f"{slow}, this fleet still meets {'the SLO' if classes == 1 else 'every SLO'}."
    misses = "misses" if own.outcome is Outcome.MISSES else "may miss"
    miss_sentence = f"{slow}, this fleet {misses} {'the SLO' if classes == 1 else 'an SLO'}."
    if survivor is None:
        return f"{miss_sentence} No fleet was found that survives."
    more = survivor.cost / own.cost - 1.0
    change = "the same" if abs(more) <= SAME_COST else f"{'+' if more > 0.0 else ''}{percentage(more, 1)}"
    return f"{miss_sentence} A fleet that survives costs {dollars(survivor.cost)}/h ({change})."


# --- narrower precisions --------------------------------------------------------------------------------------------


def precision_savings(instance: Instance, base: float, late: Late) -> list[PrecisionSaving]:
    """Fleets in narrower precisions that cost at least NOTABLE less than `base` [$/h], and than those before them.

    First of a narrower KV cache, then of narrower weights, then of both. instance: of the plan, whose split of
    end-to-end limits is kept; base: cost of the cheapest fleet by formula there. Empty where the time is up.
    """
    savings: list[PrecisionSaving] = []
    for problem in narrower(instance.problem):
        least = min([base, *(saving.cost_usd_per_hour for saving in savings)]) * (1.0 - NOTABLE)
        narrow_instance = None if late() else _priced(problem, instance)
        if narrow_instance is None:
            continue
        fleet = cheapest_of_few_pools(evaluated(narrow_instance, late), least * NO_DEARER)
        if fleet.pools:
            saving = PrecisionSaving(
                weight_dtype=problem.weight_dtype,
                kv_dtype=problem.kv_dtype,
                cost_usd_per_hour=fleet_cost(narrow_instance, fleet),
                base_usd_per_hour=base,
                pools=engine_pools(narrow_instance, fleet),
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
        expected_instance = instance_of_problem(problem)
        check_floors(expected_instance)
    except InputError:  # no engine of what is left is possible at all
        return None
    solution = by_formula(at_quantile(expected_instance, slow_end(problem.confidence)))
    return None if solution is None else fleet_cost(solution.instance, solution.fleet)


def _worth(name: str, base: float, price: float | None) -> str:
    if price is None:
        return f"Without {name} no fleet of the search space is found that meets the SLOs."
    if price <= base * (1.0 + SAME_COST):
        return f"Without {name} a fleet of the same price meets the SLOs."
    return f"Without {name} the cheapest fleet costs {dearer(price, base)}."
