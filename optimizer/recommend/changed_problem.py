"""The search of `optimize` for a changed problem: other limits, step times or precisions.

If no fleet meets the SLOs, it finds the nearest fleet and the limits to relax for it. If one does, it finds the fleet
that meets them on slow GPUs too, and what narrower precisions would save.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from costmodel.arrays import BoolArray
from costmodel.engine import Role
from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.words import dearer, dollars, join_words, percentage, plural, spares_words
from costmodel.workload import scale_rate
from optimizer.fleets.build_plan import LIMIT_UNITS, amount, binding, engine_pools, fleet_bindings
from optimizer.fleets.evaluate import evaluate, holds_at
from optimizer.fleets.fleet import INVENTORY, Fleet, classes_apart, fleet_cost, fleet_gpus, gpu_limits
from optimizer.loads.effort import Effort, Late, Level, never
from optimizer.loads.instance import Instance, as_planned, planned_instance, slow_end
from optimizer.plans.plan import Alternative, Binding, Proof, Status
from optimizer.plans.records import (
    ALIKE,
    MOST_MORE,
    NO_DEARER,
    NOTABLE,
    OPTIMAL_GAP,
    ROUNDING,
    Outcome,
    PrecisionSaving,
    SafeFleet,
    SafeStatus,
)
from optimizer.search.bound import most_volume, possible_instance
from optimizer.search.mixtures import leanest
from optimizer.search.search import engines_unlike, evaluated, pool_survives, unmixed, with_near_fleets
from optimizer.search.settings import make_settings
from optimizer.verification.bench import Verdict, fleet_key, make_bench, miss_words, sure_verdict
from optimizer.verification.verify import Loop
from search_spaces.problem import Billing, Goal, Objective, Problem, Slo
from search_spaces.quantities import Kind, format_quantity

NEAREST: Final = "nearest_miss"
"""Kind of the row of a fleet that comes near."""

CONFIDENCE: Final = 0.9
"""A fleet is safe if it meets the SLOs at the slow end of the step-time interval of this probability [1], the error
bars of plans."""


NARROW: Final = "fp8"
"""The narrower precision that is tried: half of 16 bit, and the widest that has matrix units of its own."""

Limit = tuple[int, Metric]
"""A limit on latency: the number of its class, and what it limits."""
LOOSER: Final = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Factors by which limits on latency are loosened."""


EASIER: Final = (LOOSER[1], LOOSER[3])
"""Factors on latency limits, or divisors of the rate, at which a fleet counts as near; predictions are off by less than
the second [1]."""


def nearly_by_formula(instance: Instance, late: Late, usable: BoolArray | None = None) -> list[Fleet]:
    """The cheapest fleets that hold by formula once the latency limits are looser, or the rate is lower.

    The fleets are judged against what was asked for. usable: see `evaluated`.
    """
    problem, fleets = instance.problem, dict[object, Fleet]()
    easier = [with_looser_slos(problem, factor) for factor in EASIER]
    easier += [replace(problem, workload=scale_rate(problem.workload, 1.0 / factor)) for factor in EASIER]
    for easier_problem in easier:
        solution = None if late() else by_formula(planned_instance(easier_problem), late, usable)
        if solution is not None:
            fleets.setdefault(fleet_key(solution.fleet), solution.fleet)
    return list(fleets.values())


@dataclass(frozen=True, slots=True)
class Solution:
    """The cheapest fleet of an instance that meets the SLOs.

    verdict: how it did when it was simulated; None by formula.
    """

    instance: Instance
    fleet: Fleet
    verdict: Verdict | None = None

    @property
    def cost(self) -> float:
        """Price of the fleet [$/h]."""
        return fleet_cost(self.instance, self.fleet)

    @property
    def held(self) -> bool:
        """Whether every class keeps its goal."""
        return holds_at(self.instance, self.fleet) if self.verdict is None else self.verdict.held

    @property
    def attainment(self) -> float:
        """Share of all requests within their SLOs [1]."""
        return evaluate(self.instance, self.fleet).overall if self.verdict is None else self.verdict.overall

    def row(
        self, kind: str, label: str, why_not: str, *, proof: Proof | None = None, volume: float = 1.0
    ) -> Alternative:
        """The row of the fleet beside others; volume: multiple of the demand that it serves by formula."""
        fleet, verdict = self.fleet, self.verdict
        is_split = any((pool.route != 1.0).any() for pool in fleet.pools)
        return Alternative(
            kind=kind,
            label=label,
            status=Status.FEASIBLE if proof is None else proof.status,
            cost_usd_per_hour=self.cost,
            bound_usd_per_hour=None if proof is None else proof.bound,
            gap=None if proof is None else proof.gap,
            pools=engine_pools(self.instance, fleet),
            routes=[pool.route.tolist() for pool in fleet.pools] if is_split else [],
            attainment=evaluate(self.instance, fleet, volume).overall if verdict is None else verdict.overall,
            why_not=why_not,
            simulated=verdict is not None,
            confirmation=0 if verdict is None else verdict.confirmation,
            latencies=[] if verdict is None else list(verdict.judgement.classes),
        )


def by_formula(instance: Instance, late: Late = never, usable: BoolArray | None = None) -> Solution | None:
    """The cheapest fleet that holds by formula; late: whether to stop looking; usable: see `evaluated`."""
    if late():
        return None
    fleet = leanest(evaluated(instance, late, usable))
    return Solution(instance, fleet) if fleet.pools else None


def solution_of(instance: Instance, effort: Effort) -> Solution | None:
    """The cheapest fleet of an instance: by formula, and confirmed by simulation where the effort simulates.

    Simulation begins with fleets of other engines too, as for the plan itself. Where the cheapest fleet by formula
    misses, one of them may meet the SLO for less than more replicas cost.
    """
    late = effort.brake.stopped
    if effort.level is Level.QUICK or late():
        return by_formula(instance, late)
    space = evaluated(instance, late)
    fleet = leanest(space)
    if not fleet.pools:
        return None
    rivals = [by_formula(instance, late, engines_unlike(instance, pool)) for pool in fleet.pools]
    fleets = [*with_near_fleets(space, fleet), *(rival.fleet for rival in rivals if rival is not None)]
    loop = Loop(make_bench(instance, late=late), fleets, space)
    winner = loop.confirmed(effort.inner).winner
    return None if winner is None else Solution(instance, winner.fleet, winner)


def price_words(cost: float, best: float) -> str:
    """What a fleet costs beside the best one, both in $/h, in words."""
    return "the same cost" if cost <= best * (1.0 + ROUNDING) else f"costs {dearer(cost, best)}"


# --- changes of a problem ---------------------------------------------------------------------------------------------


def without_limits(problem: Problem) -> Problem:
    """The problem without limits on GPUs, budget and power."""
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    return replace(problem, offers=offers, constraints=problem.constraints.lifted)


def with_looser_slos(problem: Problem, factor: float, limits: Collection[Limit] | None = None) -> Problem:
    """The same problem with these limits on latency multiplied by `factor`: of a class, on a metric; None: with all."""

    def looser(number: int, metric: Metric, limit: float) -> float:
        return limit * factor if limits is None or (number, metric) in limits else limit

    slos = (
        replace(slo, limits={metric: looser(number, metric, limit) for metric, limit in slo.limits.items()})
        for number, slo in enumerate(problem.slos)
    )
    return replace(problem, slos=tuple(slos))


# --- where no fleet meets the SLOs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Miss:
    """Why no fleet meets the SLOs: the nearest fleets, and by how much each limit would have to be relaxed.

    kept: a fleet that is within every limit after all, if the search for the nearest one found one.
    """

    rows: Sequence[Alternative] = ()
    shortfalls: Sequence[Binding] = ()
    kept: Solution | None = None


def describe_miss(instance: Instance, effort: Effort) -> Miss:
    """The nearest fleets: without one of the limits on fleets, or with looser SLOs, and what each takes.

    Empty if there is no fleet at all, or when the time is up.
    """
    return without_a_limit(instance, effort) or _with_looser_latencies(instance, effort) or Miss()


def describe_impossible(instance: Instance, effort: Effort) -> Miss:
    """The nearest miss where the floor shows that no fleet meets the SLOs, and how much the limits let any serve."""
    miss = describe_miss(instance, effort)
    limits = _limit_words(instance.problem)
    share = (
        most_volume(instance, make_settings(instance), least=1.0 / MOST_MORE) if miss.shortfalls and limits else None
    )
    if share is None:
        return miss
    worst, *other_shortfalls = miss.shortfalls
    rate = share * instance.problem.workload.request_rate
    with_spares = spares_words(instance.problem.constraints.spare_replicas)
    most = f"No fleet of at most {limits} can serve more than {rate:.3g} req/s{with_spares}."
    return replace(
        miss, shortfalls=[worst.model_copy(update={"sentence": f"{worst.sentence} {most}"}), *other_shortfalls]
    )


def _limit_words(problem: Problem) -> str:
    """The limits on the fleet in words, such as "8 H100 GPUs and $20/h"; those of routers are left out."""
    limits = dict(stated_limits(problem))
    stocks = {name.removeprefix(INVENTORY): most for name, most in limits.items() if name.startswith(INVENTORY)}
    gpus = [plural(most, f"{name} GPU") for name, most in stocks.items()]
    ceilings = [amount(limits[name], unit) for name, unit in LIMIT_UNITS.items() if unit and name in limits]
    return join_words([*gpus, *ceilings])


def nearest_simulated(instance: Instance, verdict: Verdict) -> Miss:
    """The nearest of the fleets that were simulated, and how far it is from each goal."""
    label = "the nearest of the fleets that were simulated"
    row = Solution(instance, verdict.fleet, verdict).row(NEAREST, label, f"It {miss_words(verdict)}.")
    if verdict.judgement.overloaded:  # no lower goal would do
        return Miss([row])
    goals = [goal_missed(item.name, item.attainment_low, item.attainment_goal) for item in verdict.judgement.classes]
    return Miss([row], sorted(goals, key=lambda limit: limit.slack))


# --- limits on the fleet ----------------------------------------------------------------------------------------------


def without_a_limit(instance: Instance, effort: Effort) -> Miss | None:
    """The nearest fleet without each limit in turn, or without all if no single one helps; None if none exists."""
    nearest: list[tuple[Solution, list[Binding], str]] = []
    problem = least_demand(instance.problem)
    free, limits = without_limits(problem), list(stated_limits(problem))
    pairs = [(with_limit(problem, name, None), with_limit(free, name, most)) for name, most in limits]
    pairs += [(free, problem)] if len(pairs) > 1 else []
    labels = [f"without the limit on {name.replace(INVENTORY, 'the inventory of ')}" for name, _ in limits]
    labels += ["without the limits on the fleet"]
    for place, (free_problem, alone) in enumerate(pairs):
        if effort.brake.stopped() or (nearest and place == len(pairs) - 1):
            break
        free_instance = planned_instance(free_problem)
        solution = solution_of(costing_what_is_short(alone, free_instance), effort)
        if solution is None:
            continue
        solution = replace(solution, instance=free_instance)
        broken = _broken_limits(instance, solution)
        if broken:
            nearest.append((solution, broken, labels[place]))
        elif instance.problem.objective.goal is Goal.MIN_COST:
            return Miss(kept=solution)
    if not nearest:
        return None
    either = " Any one of these limits relaxed is enough." if len(nearest) > 1 else ""
    rows = [solution.row(NEAREST, label, f"{_needs(broken)}{either}") for solution, broken, label in nearest]
    return Miss(rows, sorted((limit for _, broken, _ in nearest for limit in broken), key=lambda limit: limit.slack))


def _broken_limits(instance: Instance, solution: Solution) -> list[Binding]:
    """Limits of the instance that a fleet found without limits exceeds, the worst first."""
    free, fleet = solution.instance, solution.fleet
    limits = fleet_bindings(instance, fleet_cost(free, fleet), fleet_gpus(free, fleet))
    broken = [limit for limit in limits if limit.slack < -ROUNDING] + _pool_limit(instance, fleet)
    return sorted(broken, key=lambda limit: limit.slack)


def _pool_limit(instance: Instance, fleet: Fleet) -> list[Binding]:
    """Limits on the number of pools that a fleet exceeds: the user's, and those of the target's router."""
    limits, pools = instance.problem.constraints, len(fleet.pools)
    rows = []
    if limits.max_pools is not None and pools > limits.max_pools:
        sentence = f"{pools} pools are needed where max_pools allows {limits.max_pools}."
        rows.append(binding("max_pools", "fleet", float(pools), float(limits.max_pools), "pools", sentence))
    if limits.gateway is not None and not limits.gateway.allows([pool.role for pool in fleet.pools]):
        apart = any(pool.role is Role.PREFILL for pool in fleet.pools)
        most = 2 * limits.gateway.apart if apart else limits.gateway.colocated
        router = f"the router of {instance.problem.target or 'any target'}"
        sentence = f"{pools} pools are needed where {router} serves {most}."
        rows.append(binding("gateway", "fleet", float(pools), float(most), "pools", sentence))
    return rows


def _needs(broken: Sequence[Binding]) -> str:
    """In words, what a fleet needs beyond the limits."""
    short = [
        f"{amount(limit.used, limit.unit)} of {limit.where} where the inventory has {amount(limit.limit, limit.unit)}"
        if limit.constraint == "inventory"
        else f"{amount(limit.used, limit.unit)} where {limit.constraint} allows {amount(limit.limit, limit.unit)}"
        for limit in broken
    ]
    return f"It needs {join_words(short)}."


def stated_limits(problem: Problem) -> Iterator[tuple[str, Any]]:
    """The limits on the fleet that a problem states: names, such as "budget" or "inventory H200", and values."""
    for name in LIMIT_UNITS:
        if (most := getattr(problem.constraints, name)) is not None:
            yield name, most
    for offer in problem.offers:
        if offer.inventory is not None:
            yield f"{INVENTORY}{offer.accelerator.name}", offer.inventory


def with_limit(problem: Problem, name: str, most: Any) -> Problem:
    """The problem with another limit; None: without it. A relaxation takes fractions of a GPU too."""
    if not name.startswith(INVENTORY):
        return replace(problem, constraints=replace(problem.constraints, **{name: most}))
    card = name.removeprefix(INVENTORY)
    offers = (replace(offer, inventory=most) if offer.accelerator.name == card else offer for offer in problem.offers)
    return replace(problem, offers=tuple(offers))


def least_demand(problem: Problem) -> Problem:
    """The instance at the least volume of the objective, for which the cheapest fleet is sought."""
    least = {
        Goal.MIN_COST: 1.0,
        Goal.MAX_GOODPUT: 1.0 / MOST_MORE,
        Goal.MAX_GOODPUT_PER_DOLLAR: problem.objective.min_volume,
    }
    load = scale_rate(problem.workload, least[problem.objective.goal])
    return replace(problem, workload=load, objective=Objective())


def costing_what_is_short(limited: Problem, free: Instance) -> Instance:
    """The instance with GPUs priced by their share of the limits of `limited`: its cheapest fleet is the nearest.

    Of fleets that use as much of a limit (ALIKE), the one that costs less is nearer.
    """
    budget, limits = limited.constraints.budget, [(most, weight) for _, most, weight in gpu_limits(limited)]
    if not limits or free.problem.constraints.budget is not None:
        return free  # prices in dollars say it all, whole nodes included
    if budget is not None:
        limits.append((budget, np.array([offer.in_use[1] for offer in limited.offers])))
    share = sum((weight / max(most, 0.5) for most, weight in limits), np.zeros(len(limited.offers)))
    usd = np.array([offer.usd_per_hour for offer in free.problem.offers])
    share = share + share.max() * ALIKE * usd / usd.max()
    singly = tuple(
        replace(offer, billing=Billing.GPU, usd_per_hour=float(price), owned=0, tier_usd_per_hour=0.0)
        for offer, price in zip(free.problem.offers, share, strict=True)
    )
    return replace(free, problem=replace(free.problem, offers=singly), tables=free.tables.with_prices(share))


# --- limits on latency and goals --------------------------------------------------------------------------------------


def _with_looser_latencies(instance: Instance, effort: Effort) -> Miss | None:
    """The nearest fleet once some latency limits are loosened; with the limits on it that it then breaks.

    Each that is enough by itself, however far it is loosened, or else the fewest that are enough together: the report
    names what is in the way, and no limit beside it.
    """
    slos, late = instance.problem.slos, effort.brake.stopped
    limits = [(number, metric) for metric in Metric for number, slo in enumerate(slos) if metric in slo.limits]

    def enough(loosened: Sequence[Limit]) -> bool:
        return by_formula(_loose_instance(instance, LOOSER[-1], loosened), late) is not None

    choices = [[limit] for limit in limits if enough([limit])]
    if not choices:
        needed = limits
        for limit in limits:
            fewer = [other for other in needed if other != limit]
            needed = fewer if fewer and enough(fewer) else needed
        choices = [needed]
    for factor, loosened in product(LOOSER, choices):
        if late():
            return None
        solution = solution_of(_loose_instance(instance, factor, loosened), effort)
        if solution is None:
            continue
        broken = _broken_limits(instance, solution)
        names = [f"{metric.upper()} of {slos[k].name}" if len(slos) > 1 else metric.upper() for k, metric in loosened]
        why = f"{join_words(names)} {'is' if len(names) == 1 else 'are'} too tight."
        why = f"{why} {_needs(broken)}" if broken else why
        rows = [_too_tight(slos[number], metric, factor) for number, metric in loosened]
        return Miss([solution.row(NEAREST, f"with {join_words(names)} x {factor:g}", why)], [*rows, *broken])
    return None


def _too_tight(slo: Slo, metric: Metric, factor: float) -> Binding:
    """A latency limit that a fleet would meet if it were `factor` times as long."""
    limit = slo.limits[metric]
    sentence = f"{metric.upper()} of {slo.name} is too tight: {format_quantity(limit, Kind.DURATION)}."
    return binding(metric, slo.name, limit * factor, limit, "s", sentence)


def _loose_instance(instance: Instance, factor: float, limits: Sequence[Limit]) -> Instance:
    """The instance without limits on the fleet, and these limits on latency multiplied by `factor`."""
    free = without_limits(least_demand(instance.problem))
    return planned_instance(with_looser_slos(free, factor, limits))


def goal_missed(name: str, attainment: float, goal: float) -> Binding:
    """How far a class is from its goal; attainment: share of its requests that surely meet the SLO [1].

    The share that misses is rounded up to hundredths of a percent: the share shown to meet the SLO is never too high.
    """
    miss_share = math.ceil(round((1.0 - attainment) / OPTIMAL_GAP, 6)) * OPTIMAL_GAP
    sentence = f"{percentage(1.0 - miss_share, 2)} of class {name} meet the SLO; {percentage(goal, 2)} should."
    return binding("attainment", name, miss_share, 1.0 - goal, "1", sentence)


# --- slow GPUs --------------------------------------------------------------------------------------------------------


def safe_fleet(instance: Instance, fleet: Fleet, effort: Effort) -> tuple[Solution | None, Solution | None]:
    """The plan's own fleet on slow GPUs, and the cheapest fleet there: itself, or what a search finds if it misses.

    The first is None if stopped, the second if nothing was found. instance: the one in which `fleet` was found.
    """
    is_stopped = effort.brake.stopped
    if is_stopped():
        return None, None
    problem = replace(instance.problem, confidence=CONFIDENCE)
    slow = as_planned(replace(instance, problem=problem))
    by_formula = effort.level is Level.QUICK
    verdict = None if by_formula else sure_verdict(make_bench(slow, late=is_stopped), fleet)
    own = Solution(slow, fleet, verdict)
    survivor = own if own.held or is_stopped() else solution_of(slow, effort)
    return (None, None) if is_stopped() else (own, survivor)


def safe_row(instance: Instance, survivor: Solution, cost: float) -> Alternative:
    """The alternative that survives slow GPUs, at the plan's step times like all others; cost: of the plan [$/h]."""
    verdict = None if survivor.verdict is None else sure_verdict(make_bench(instance), survivor.fleet)
    there = Solution(instance, survivor.fleet, verdict)
    return there.row("safe", "for slow GPUs", price_words(survivor.cost, cost))


def safe_record(instance: Instance, own: Solution, survivor: Solution | None) -> SafeFleet:
    """The same as a plan states it."""
    status = SafeStatus.NONE if survivor is None else SafeStatus.OWN if survivor is own else SafeStatus.OTHER
    return SafeFleet(
        confidence=CONFIDENCE,
        status=status,
        cost_usd_per_hour=None if survivor is None else survivor.cost,
        pools=[] if survivor is None else engine_pools(survivor.instance, survivor.fleet),
        attainment=None if survivor is None else survivor.attainment,
        sentence=safe_sentence(instance, own, survivor),
    )


def safe_sentence(instance: Instance, own: Solution, survivor: Solution | None) -> str:
    """Sentence: whether the plan's fleet survives slow GPUs, and what a fleet costs that does.

    At the same price it says why that one is not the plan's: `preferred` puts another rule first. instance: at the
    expected step times.
    """
    classes = len(own.instance.problem.slos)
    slow = f"If these GPUs are as slow as the worst {percentage(1.0 - slow_end(CONFIDENCE))} of our predictions"
    basis = ", by formula" if own.verdict is None else ""
    if survivor is own:
        return f"{slow}, this fleet still meets {'the SLO' if classes == 1 else 'every SLO'}{basis}."
    is_undecided = own.verdict is not None and own.verdict.outcome is not Outcome.MISSES
    share = f": {percentage(own.attainment, 1)} of requests meet it in simulation" if is_undecided else ""
    misses = "may miss" if is_undecided else "misses"
    miss_sentence = f"{slow}, this fleet {misses} {'the SLO' if classes == 1 else 'an SLO'}{share}."
    if survivor is None:
        return f"{miss_sentence} No fleet was found that survives{basis}."
    more = survivor.cost / own.cost - 1.0
    if abs(more) <= ROUNDING:
        lasting = [all(pool_survives(instance, pool) for pool in fleet.pools) for fleet in (own.fleet, survivor.fleet)]
        reason = "Until your GPUs are measured, prefer the"
        if lasting == [True, False]:
            reason = "It keeps up with one replica fewer, unlike the"
        return f"{miss_sentence} {reason} alternative for slow GPUs, which survives at the same price{basis}."
    change = f"{'+' if more > 0.0 else ''}{percentage(more, 1)}"
    return f"{miss_sentence} A fleet that survives costs {dollars(survivor.cost)}/h ({change}){basis}."


# --- narrower precisions ----------------------------------------------------------------------------------------------


def precision_savings(instance: Instance, base: float, late: Late) -> list[PrecisionSaving]:
    """Fleets in narrower precisions that cost at least NOTABLE less than `base` [$/h], and than those before them.

    First of a narrower KV cache, then of narrower weights, then of both. base: cost of the cheapest fleet by formula
    of the instance. Empty where the time is up.
    """
    savings: list[PrecisionSaving] = []
    for problem in narrower(instance.problem):
        least = min([base, *(saving.cost_usd_per_hour for saving in savings)]) * (1.0 - NOTABLE)
        instance_and_fleet = _cheaper(problem, least * NO_DEARER, late)
        if instance_and_fleet is not None:
            saving = PrecisionSaving(
                weight_dtype=problem.weight_dtype,
                kv_dtype=problem.kv_dtype,
                cost_usd_per_hour=fleet_cost(*instance_and_fleet),
                base_usd_per_hour=base,
                pools=engine_pools(*instance_and_fleet),
            )
            savings.append(saving)
    return [] if late() else savings


def tier_warnings(instance: Instance, base: float, late: Late) -> list[str]:
    """Warning if a KV cache tier costs at least NOTABLE more than it saves; base: as in `precision_savings` [$/h]."""
    offers = tuple(replace(offer, tier_usd_per_hour=0.0) for offer in instance.problem.offers)
    if offers == instance.problem.offers:
        return []
    tierless = _cheaper(replace(instance.problem, kv_cache_tier=None, offers=offers), base * (1.0 - NOTABLE), late)
    if tierless is None:
        return []
    return [
        f"The KV cache tier costs more than it saves: by formula a fleet without it costs "
        f"{dollars(fleet_cost(*tierless))}/h in place of {dollars(base)}/h. Plan again without kv_cache_tier."
    ]


def narrower(problem: Problem) -> Iterator[Problem]:
    """The problem with a narrower KV cache, weights or both, if these are wide and the user lists no precisions."""
    cache = problem.kv_dtype == ACTIVATION_DTYPE and not problem.space.kv_dtype
    weights = problem.weight_dtype == ACTIVATION_DTYPE and not problem.space.weight_dtype
    if cache:
        yield replace(problem, kv_dtype=NARROW)
    if weights:
        yield replace(problem, weight_dtype=NARROW)
    if cache and weights:
        yield replace(problem, weight_dtype=NARROW, kv_dtype=NARROW)


def _cheaper(problem: Problem, below: float, late: Late) -> tuple[Instance, Fleet] | None:
    """The cheapest fleet by formula of a changed problem, for less than `below` [$/h]; None where there is none."""
    if late():
        return None
    try:
        instance = as_planned(possible_instance(problem))
    except InputError:  # no engine runs it on a GPU on offer
        return None
    space = evaluated(instance, late)
    fleet = leanest(space) if classes_apart(problem) else unmixed(space, below)
    return (instance, fleet) if fleet.pools and fleet_cost(instance, fleet) < below else None
