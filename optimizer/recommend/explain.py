"""Why an engine config is out, or where it ranks, and what features of engines are worth.

A config is ranked by every feasibility rule and the best fleet that has it; a feature by the best fleet without it.

Where no fleet meets the SLOs: the fleet that comes nearest, and what would have to give for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from costmodel.arrays import BoolArray
from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.words import dearer, join_words, percentage, plural
from costmodel.workload import scale_rate
from optimizer.fleets.build_plan import LIMIT_UNITS, amount, binding, engine_pools, fleet_bindings
from optimizer.fleets.evaluate import evaluate, utilization
from optimizer.fleets.fleet import INVENTORY, Fleet, fleet_cost, fleet_gpus, gpu_limits
from optimizer.loads.instance import (
    COLOCATED,
    DECODE,
    PREFILL,
    ROLES,
    Instance,
    Resource,
    as_planned,
    make_instance,
    planned_instance,
)
from optimizer.plans.plan import Alternative, Binding, Worth
from optimizer.plans.records import ALIKE, MOST_MORE, OPTIMAL_GAP, ROUNDING, EnginePool
from optimizer.search.bound import check_floors, check_shapes, most_volume, with_looser_slos, without_limits
from optimizer.search.search import FleetSearch, Picks, cheapest_held, evaluated
from optimizer.search.settings import EngineSettings, make_settings
from optimizer.verification.bench import Verdict, miss_words
from optimizer.verification.record import fleet_row
from search_spaces.enumeration import HAND_OVER_RULES, RULES, end_of, enumerate_shapes, hand_over_refusals, refusals
from search_spaces.problem import Billing, Goal, Objective, Offer, Problem, SearchSpace, Slo
from search_spaces.quantities import Kind, format_quantity
from search_spaces.search_space import Wanted, with_wanted

from .search import LOOSER, Effort, Solution, by_formula, solution_of

PARTNERS = {PREFILL: (PREFILL, DECODE), DECODE: (PREFILL, DECODE), COLOCATED: (COLOCATED,)}
"""Roles of the pools of a fleet that has an engine of the key's role."""

Limit = tuple[int, Metric]
"""A limit on latency: the number of its class, and what it limits."""

FEATURES: Final = ("chunked prefill", "batching", "disaggregation")
"""What is turned off to see what it is worth."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A feasibility rule and why it refuses the config; None: it does not."""

    rule: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The cheapest fleet of one or two pools that has the config in a role.

    cost [$/h] and pools of that fleet, None and empty where there is none; rank of it among the `of` engines of
    that role that are tried, 1 is the best, whose fleet costs `best` [$/h]; binding: what the config's pool uses most,
    and used: the busy share of that [1], as in a plan; search: of the config's settings, and its possible partners.
    """

    role: Role
    cost: float | None
    pools: tuple[EnginePool, ...]
    rank: int | None
    of: int
    best: float | None
    binding: Resource | None
    used: float | None
    search: FleetSearch
    config: Wanted


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is to be said of one config; unsearched: settings of it, and the range of the search that lacks them.

    offer: the GPUs that it is taken to run on.
    """

    offer: Offer
    rulings: tuple[Ruling, ...]
    unsearched: dict[str, tuple[int | str, ...]]
    standings: tuple[Standing, ...]

    @property
    def feasible(self) -> bool:
        """Whether no rule refuses the config."""
        return all(ruling.reason is None for ruling in self.rulings)

    @property
    def cost(self) -> float:
        """Cost of the cheapest fleet that has the config in any role, infinite where there is none [$/h]."""
        return min((row.cost for row in self.standings if row.cost is not None), default=np.inf)


def explain_each(problem: Problem, configs: Sequence[Wanted]) -> list[Explanation]:
    """Check configs against every rule; where one can be, rank it by the cheapest fleet that it is part of.

    Settings outside the search space are tried all the same, and named; a search space is priced once, for all configs
    within it.
    """
    searches: dict[SearchSpace, FleetSearch] = {}
    return [_explain(problem, config, searches) for config in configs]


def _explain(problem: Problem, config: Wanted, searches: dict[SearchSpace, FleetSearch]) -> Explanation:
    wider, unsearched_settings = with_wanted(problem, config)
    offer, shape = wider.offers[config.offer], config.shape(wider)
    reasons = dict(refusals(wider, shape))
    rulings = tuple(Ruling(name, reasons.get(name)) for name in RULES)
    if any(ruling.reason is not None for ruling in rulings):
        return Explanation(offer, rulings, unsearched_settings, ())
    if wider.space not in searches:
        searches[wider.space] = evaluated(planned_instance(wider))
    roles = wider.space.roles if config.role is None else (config.role,)
    standings = tuple(_standing(searches[wider.space], config, role) for role in roles)
    return Explanation(offer, rulings, unsearched_settings, standings)


def explain_pair(problem: Problem, prefill: Wanted, decode: Wanted) -> tuple[Ruling, ...]:
    """What every rule on a hand-over says of a prefill and a decode config."""
    ends = [end_of(problem, config.shape(problem)) for config in (prefill, decode)]
    refusals = dict(hand_over_refusals(problem, *ends))
    return tuple(Ruling(name, refusals.get(name)) for name in HAND_OVER_RULES)


def _standing(space: FleetSearch, config: Wanted, role: Role) -> Standing:
    """Where the config stands among the engines of one role."""
    instance, number = space.instance, ROLES.index(role)
    in_role = space.settings.role == number
    engines = np.unique(space.settings.shape[in_role])
    rivals = engines[engines != instance.tables.shapes.index(config.shape(instance.problem))]
    best = _cheapest_with(space, in_role, role)
    own = FleetSearch.of(instance, _with_config(instance, config, number))
    cheapest = _cheapest_with(own, own.settings.role == number, role)
    if cheapest is None:
        least = None if best is None else best[1]
        return Standing(role, None, (), None, rivals.size + 1, least, None, None, own, config)
    fleet, cost = own.fleet(cheapest[0]), cheapest[1]
    least = cost if best is None else min(best[1], cost)
    rivals_in_role = in_role & (space.settings.shape == rivals[:, None])  # its own settings are none
    rank = 1 + sum(_cheapest_with(space, rival, role, cost) is not None for rival in rivals_in_role)
    binding, used = _busiest(instance, fleet, role)
    pools = tuple(engine_pools(instance, fleet))
    return Standing(role, cost, pools, rank, rivals.size + 1, least, binding, used, own, config)


def _with_config(instance: Instance, config: Wanted, role: int) -> EngineSettings:
    """The settings of a config in a role, and those of every possible partner."""
    tables, settings = instance.tables, make_settings(instance, every_limit=True)
    shape = tables.shapes.index(config.shape(instance.problem))
    own = (settings.shape == shape) & (settings.role == role)
    seqs, chunk = (config.stated.get(name) for name in ("max_num_seqs", "max_num_batched_tokens"))
    if seqs is not None and role != PREFILL:
        own &= tables.seqs[settings.seqs] == seqs
    several = role == COLOCATED or (role == PREFILL and tables.pipeline[shape] > 1.0)  # budgets are searched
    if chunk is not None and several:
        own &= tables.chunks[settings.chunk] == chunk
    partner = (settings.role != role) & ((settings.role != DECODE) | (settings.seqs == tables.limits[-1]))
    return settings.take(own | partner)


def _cheapest_with(
    space: FleetSearch, eligible: BoolArray, role: Role, below: float = np.inf
) -> tuple[Picks, float] | None:
    """The cheapest fleet of one or two pools, below a cost [$/h], with one of the eligible settings in a role."""
    number = ROLES.index(role)
    partners = np.isin(space.settings.role, PARTNERS[number]) & (space.settings.role != number)
    return cheapest_held(space, space.instance.problem, below, eligible | partners)


def _busiest(instance: Instance, fleet: Fleet, role: Role) -> tuple[Resource, float]:
    """What the pool of the config's role uses most, and the busy share of that, as a plan states them."""
    states = evaluate(instance, fleet).states
    pool, state = next((pool, at) for pool, at in zip(fleet.pools, states, strict=True) if pool.role is role)
    used = utilization(instance, pool, state)
    first = max(used, key=lambda name: used[name])
    return Resource(first), used[first]


# --- features -------------------------------------------------------------------------------------------------------


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
        instance = make_instance(problem)
        check_floors(instance)
    except InputError:  # no engine of what is left is possible at all
        return None
    solution = by_formula(as_planned(instance))
    return None if solution is None else fleet_cost(solution.instance, solution.fleet)


def _worth(name: str, base: float, price: float | None) -> str:
    if price is None:
        return f"Without {name} no fleet of the search space is found that meets the SLOs."
    if price <= base * (1.0 + ROUNDING):
        return f"Without {name} a fleet of the same price meets the SLOs."
    return f"Without {name} the cheapest fleet costs {dearer(price, base)}."


# --- where no fleet meets the SLOs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Miss:
    """What is in the way: the nearest fleets, and limits by how much each would have to give.

    kept: a fleet that keeps every limit after all, where the search for the nearest one came by it.
    """

    rows: Sequence[Alternative] = ()
    shortfalls: Sequence[Binding] = ()
    kept: Solution | None = None


def describe_miss(instance: Instance, effort: Effort) -> Miss:
    """The nearest fleet without one of the limits on it, or with SLOs loosened, and what each takes.

    Without any fleet whatever, or once it is late, nothing is named.
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
    most = f"No fleet {limits} can serve more than {rate:.3g} req/s."
    return replace(
        miss, shortfalls=[worst.model_copy(update={"sentence": f"{worst.sentence} {most}"}), *other_shortfalls]
    )


def _limit_words(problem: Problem) -> str:
    """What the limits on the fleet leave, such as "of 8 H100 GPUs within $20/h"; routers aside."""
    limits = dict(stated_limits(problem))
    stocks = {name.removeprefix(INVENTORY): most for name, most in limits.items() if name.startswith(INVENTORY)}
    gpus = [plural(most, f"{name} GPU") for name, most in stocks.items()]
    others = [amount(limits[name], unit) for name, unit in LIMIT_UNITS.items() if unit and name in limits]
    return " ".join(f"{word} {join_words(each)}" for word, each in (("of", gpus), ("within", others)) if each)


def nearest_simulated(instance: Instance, verdict: Verdict) -> Miss:
    """The nearest of the fleets that were simulated, and how far it is from each goal."""
    row = nearest_row(
        Solution(instance, verdict.fleet, verdict),
        "the nearest of the fleets that were simulated",
        f"It {miss_words(verdict)}.",
    )
    if verdict.judgement.overloaded:  # no lower goal would do
        return Miss([row])
    goals = [goal_missed(item.name, item.attainment_low, item.attainment_goal) for item in verdict.judgement.classes]
    return Miss([row], sorted(goals, key=lambda limit: limit.slack))


def nearest_row(solution: Solution, label: str, why: str) -> Alternative:
    """The row of a fleet that comes near."""
    return fleet_row(solution.instance, solution.fleet, solution.verdict, ("nearest_miss", label), why)


# --- limits on the fleet --------------------------------------------------------------------------------------------


def without_a_limit(instance: Instance, effort: Effort) -> Miss | None:
    """The nearest fleet without each limit on it, or without all where no single one would do; None without any."""
    nearest: list[tuple[Solution, list[Binding]]] = []
    problem = least_demand(instance.problem)
    free, limits = without_limits(problem), list(stated_limits(problem))
    pairs = [(with_limit(problem, name, None), with_limit(free, name, most)) for name, most in limits]
    pairs += [(free, problem)] if len(pairs) > 1 else []
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
            nearest.append((solution, broken))
        elif instance.problem.objective.goal is Goal.MIN_COST:
            return Miss(kept=solution)
    if not nearest:
        return None
    either = " Any one of these limits relaxed is enough." if len(nearest) > 1 else ""
    label = "without the limits on the fleet"
    rows = [nearest_row(solution, label, f"{_needs(broken)}{either}") for solution, broken in nearest]
    return Miss(rows, sorted((limit for _, broken in nearest for limit in broken), key=lambda limit: limit.slack))


def _broken_limits(instance: Instance, solution: Solution) -> list[Binding]:
    """Limits of the instance that a fleet of the unlimited one breaks, the worst first."""
    free, fleet = solution.instance, solution.fleet
    limits = fleet_bindings(instance, fleet_cost(free, fleet), fleet_gpus(free, fleet))
    broken = [limit for limit in limits if limit.slack < -ROUNDING] + _pool_limit(instance, fleet)
    return sorted(broken, key=lambda limit: limit.slack)


def _pool_limit(instance: Instance, fleet: Fleet) -> list[Binding]:
    """The limits on the number of pools that a fleet breaks: the user's, and what the target's router can serve."""
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
    """What a fleet needs beyond the limits, in words."""
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
    """The cheapest fleet is sought for the least volume that the objective asks for."""
    least = {
        Goal.MIN_COST: 1.0,
        Goal.MAX_GOODPUT: 1.0 / MOST_MORE,
        Goal.MAX_GOODPUT_PER_DOLLAR: problem.objective.min_volume,
    }
    load = scale_rate(problem.workload, least[problem.objective.goal])
    return replace(problem, workload=load, objective=Objective())


def costing_what_is_short(limited: Problem, free: Instance) -> Instance:
    """The instance, a GPU priced by the share of the limits of `limited` that it takes: its cheapest fleet is nearest.

    Of fleets that take as much of a limit (ALIKE), the one that costs less.
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


# --- limits on latency and goals ------------------------------------------------------------------------------------


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
            others = [other for other in needed if other != limit]
            needed = others if others and enough(others) else needed
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
        return Miss([nearest_row(solution, f"with {join_words(names)} x {factor:g}", why)], [*rows, *broken])
    return None


def _too_tight(slo: Slo, metric: Metric, factor: float) -> Binding:
    """A latency limit that a fleet keeps only `factor` times as long."""
    limit = slo.limits[metric]
    sentence = f"{metric.upper()} of {slo.name} is too tight: {format_quantity(limit, Kind.DURATION)}."
    return binding(metric, slo.name, limit * factor, limit, "s", sentence)


def _loose_instance(instance: Instance, factor: float, limits: Sequence[Limit]) -> Instance:
    """The instance without limits on the fleet, and these limits on latency multiplied by `factor`."""
    free = without_limits(least_demand(instance.problem))
    return planned_instance(with_looser_slos(free, factor, limits))


def goal_missed(name: str, attainment: float, goal: float) -> Binding:
    """How far a class is from its goal; attainment: share of its requests that is sure to be in time [1].

    What may miss is rounded up to hundredths of a per cent, so that what is read off it is no lower than what is kept.
    """
    miss_share = math.ceil(round((1.0 - attainment) / OPTIMAL_GAP, 6)) * OPTIMAL_GAP
    sentence = f"{percentage(1.0 - miss_share, 2)} of class {name} keep their SLO where {percentage(goal, 2)} should."
    return binding("attainment", name, miss_share, 1.0 - goal, "1", sentence)
