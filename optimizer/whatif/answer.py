"""The answer to one scenario: the search of `optimize` for the problem that a scenario makes, as one row.

    simple     fleets of one pool or two, by formula; what prices and limits leave alone is worked out once
    full       mixtures too, as `optimize --effort quick` has it
    simulated  what `optimize` says

By formula a fleet may miss when it is simulated (`confirmed`): then the cheapest of one pool or two is simulated that
has not more engines of the same kinds, CANDIDATES times at most. A fleet that missed is never an answer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from costmodel.errors import BelowFloorError, ImpossibleError
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import dollars, percentage
from optimizer.fleets.build_plan import engine_pools, fleet_bindings
from optimizer.fleets.evaluate import goodput_volume, pool_headroom
from optimizer.fleets.fleet import Fleet, fleet_cost, fleet_gpus
from optimizer.fleets.pool import KEPT, pool_key
from optimizer.loads.instance import Brake, Instance, as_planned, make_instance
from optimizer.plans.plan import Binding, Plan, Proof, Status, proof_of_judged
from optimizer.plans.records import CANDIDATES, EnginePool, pool_records, read_pools
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level, search_by_formula
from optimizer.search.bound import check_floors
from optimizer.search.mixtures import leanest
from optimizer.search.search import (
    Engines,
    FleetSearch,
    cheapest_held,
    engines_of,
    evaluated,
    is_refuted,
    priced,
    smallest_batches,
    without_prices,
)
from optimizer.verification.bench import look
from search_spaces.problem import Goal, Pools, Problem
from search_spaces.scenarios import scenario_problem

DEMANDS_KEPT = 6
"""Demands whose engine table and search are kept: they are large, and scenarios come back to few of them."""


class ScenarioEffort(StrEnum):
    """How a scenario is solved."""

    SIMPLE = "simple"
    """Fleets of one or two pools by formula, no bound: some milliseconds for another price."""
    FULL = "full"
    """The search of `optimize --effort quick`: some tenths of a second."""
    SIMULATED = "simulated"
    """The search of `optimize`: seconds."""


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet under some demand; key: of all that its figures depend on, which prices and limits do not change."""

    key: str
    instance: Instance = field(compare=False)
    fleet: Fleet = field(compare=False)

    @property
    def engines(self) -> Engines:
        """Its engines, whatever their batch limits."""
        return engines_of(self.instance, self.fleet)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best fleet of one scenario; without any, `binding` says what is in the way.

    cost [$/h]; bound: what no fleet of any shape costs less than [$/h], and gap: the share of the cost above it, None
    where nothing is proven; goodput [1/s]; gpus by type; binding: what gives out first, and how much of it is left;
    attainment: share of all requests within their SLOs when simulated [1], None where none were; refuted: cheaper
    fleets that hold by formula and missed when simulated; fault: how it missed itself, as the end of a sentence, empty
    where it did not; case: the fleet, if it is by formula.
    """

    status: Status
    cost: float | None = None
    bound: float | None = None
    gap: float | None = None
    goodput: float = 0.0
    gpus: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[EnginePool, ...] = ()
    binding: str = ""
    attainment: float | None = None
    refuted: tuple[Answer, ...] = ()
    fault: str = ""
    case: Case | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The answer as a row, ready for JSON."""
        return {
            "status": self.status.value,
            "cost_usd_per_hour": self.cost,
            "bound_usd_per_hour": self.bound,
            "gap": self.gap,
            "goodput_rps": self.goodput,
            "goodput_per_dollar": self.goodput * SECONDS_PER_HOUR / self.cost if self.cost else 0.0,
            "gpus": dict(self.gpus),
            "binding": self.binding,
            "pools": pool_records(self.pools),
            "simulated": self.attainment is not None,
            "simulated_attainment": self.attainment,
            "refuted": [miss.row for miss in self.refuted],
        } | ({"fault": self.fault} if self.fault else {})

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Answer:
        """The answer that a row states."""
        return cls(
            Status(row["status"]),
            cost=row["cost_usd_per_hour"],
            bound=row["bound_usd_per_hour"],
            gap=row["gap"],
            goodput=row["goodput_rps"],
            gpus=row["gpus"],
            pools=tuple(read_pools(row["pools"])),
            binding=row["binding"],
            attainment=row["simulated_attainment"],
            refuted=tuple(map(cls.of_row, row["refuted"])),
            fault=row.get("fault", ""),
        )


def nothing(why: str, status: Status = Status.INFEASIBLE, misses: Sequence[Answer] = ()) -> Answer:
    """The answer where there is no fleet: none that is possible, if not said otherwise."""
    return Answer(status, binding=why, refuted=tuple(misses))


def unproven(misses: Sequence[Answer]) -> Answer:
    """The answer where none of the fleets that were simulated holds: that there is none is not proven."""
    several = f"none of the {len(misses)} fleets that were simulated holds: " if len(misses) > 1 else ""
    why = f"{several}the cheapest by formula, {dollars(misses[0].cost or 0.0)}/h, {misses[0].fault}"
    return nothing(why, Status.TIME_LIMIT, misses)


def answer(
    problem: Problem,
    effort: ScenarioEffort = ScenarioEffort.SIMPLE,
    known_misses: Sequence[Engines] = (),
    *,
    changes: Mapping[str, Any] | None = None,
    simulated: bool = False,
    proven: bool = False,
    name: str = "",
) -> Answer:
    """The best fleet for a problem with some levers or values changed; none where no engine can exist then.

    Goals other than the least cost, and pools for each class, take the whole search, by formula at least. known_misses:
    fleets that are known to miss, and are no answer by formula; simulated: whether a fleet by formula has to hold when
    it is simulated; proven: whether the whole search by formula states a bound; name: of the scenario, if it has one.
    """
    try:
        problem = scenario_problem(problem, changes, name) if changes is not None else problem
    except ImpossibleError as error:  # the message begins with the scenario's name
        return nothing(str(error).splitlines()[0].partition(": ")[2])
    try:
        if effort is ScenarioEffort.SIMULATED:
            return answer_of_plan(optimize(problem, level=Level.STANDARD, extras=False))
        few = effort is ScenarioEffort.SIMPLE and is_simple(problem)
        best = _few_pools(problem, known_misses) if few else _whole(problem, proven=proven)
        if best.case is not None and is_refuted(best.case.engines, known_misses):
            best = _few_pools(problem, known_misses)
    except BelowFloorError as error:
        return nothing(str(error).splitlines()[0].partition(": ")[2].partition(": ")[2])
    return confirmed(problem, best) if simulated and is_simple(problem) else best


def own_value(problem: Problem, key: str) -> float | None:
    """The problem's own value of a lever, in its unit; factors stand at 1. None where it has none.

    A limit of latency is that of the first class, and a goal that of all classes.
    """
    head, _, name = key.partition(".")
    if head.endswith("_scale"):
        return 1.0
    load, goals = problem.workload, {slo.attainment for slo in problem.slos}
    values: dict[str, float | None] = {
        "rate": load.request_rate,
        "burstiness": load.burstiness,
        "isl": load.mean_isl,
        "osl": load.mean_osl,
        **{str(metric): limit for metric, limit in problem.slos[0].limits.items()},
        "attainment": goals.pop() if len(goals) == 1 else None,
        "budget": problem.constraints.budget,
        "power": problem.constraints.power,
        **{f"price.{offer.accelerator.name.casefold()}": offer.usd_per_hour for offer in problem.offers},
    }
    value = values.get(f"price.{name.casefold()}" if head == "price" else key)
    return None if value is None or math.isinf(value) else value


def is_simple(problem: Problem) -> bool:
    """Whether simple fleets answer the question: it is about the least cost, and classes may share their pools."""
    shared = problem.constraints.pools is Pools.SHARED or len(problem.slos) == 1
    return problem.objective.goal is Goal.MIN_COST and shared


def answer_of_plan(plan: Plan) -> Answer:
    """A plan as the answer to a scenario."""
    cheapest = plan.objective == Goal.MIN_COST.value
    return Answer(
        status=plan.status,
        cost=plan.cost_usd_per_hour,
        bound=plan.floor_usd_per_hour if cheapest else plan.bound_usd_per_hour,
        gap=plan.certified_gap if cheapest else plan.gap,
        goodput=plan.goodput_rps,
        gpus=dict(plan.gpus),
        pools=tuple(pool for row in plan.alternatives if row.kind == "recommended" for pool in row.pools),
        binding=_slack_words(plan.binding[0]) if plan.binding else "",
        attainment=plan.attainment if plan.simulated else None,
    )


def _slack_words(row: Binding) -> str:
    return f"{row.constraint} of {row.where}, {percentage(row.slack)} left"


# --- by formula -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnpricedProblem:
    """A problem without its prices and limits; key: of all that is left of it."""

    key: str
    problem: Problem = field(compare=False)


def demand_of(problem: Problem) -> UnpricedProblem:
    """What scenarios share that differ in prices, limits and name alone."""
    limits = problem.constraints
    inputs = dict(problem.inputs) | {
        "name": None,
        "prices": None,
        "procurement": None,
        "objective": None,
        "confidence": problem.confidence,
        "workload": problem.inputs["workload"] | {"request_rate": problem.workload.request_rate, "diurnal": None},
        "constraints": [limits.spare_replicas, limits.balancing.value],
        "accelerators": [
            entry | dict.fromkeys(("price", "catalog_price", "inventory", "billing", "owned", "owned_price"))
            for entry in problem.inputs["accelerators"]
        ],
    }
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()
    return UnpricedProblem(key, without_prices(problem))


@lru_cache(maxsize=DEMANDS_KEPT)
def slow_instance(demand: UnpricedProblem) -> Instance:
    """The engine table at the problem's confidence. Raises BelowFloorError where physics forbids an SLO."""
    expected_instance = make_instance(demand.problem)
    check_floors(expected_instance)
    return as_planned(expected_instance)


@lru_cache(maxsize=DEMANDS_KEPT)
def free_search(demand: UnpricedProblem) -> FleetSearch:
    """The search free of prices and limits."""
    return evaluated(slow_instance(demand))


def _whole(problem: Problem, *, proven: bool) -> Answer:
    """The best fleet of any number of pools; proven: with a bound on its cost, which takes as long as the fleet."""
    demand = demand_of(problem)
    space = evaluated(priced(slow_instance(demand), problem))
    cheapest = problem.objective.goal is Goal.MIN_COST
    if cheapest and not proven:
        fleet, proof = leanest(space), Proof(Status.TIME_LIMIT, None, None)
    else:
        result = search_by_formula(space, Brake())
        fleet, proof = result.fleet, result.proof
    if not fleet.pools:
        return why_none(problem, proof.status)
    best = _answer_of(problem, _case(demand.key, space.instance, fleet))
    return with_floor(best, proof.floor) if cheapest else replace(best, gap=proof.gap)


def with_floor(best: Answer, floor: float | None) -> Answer:
    """An answer with its gap to what no fleet costs less than [$/h]; as it is without a floor, or below it."""
    if floor is None or best.cost is None:
        return best
    proof = proof_of_judged(None, floor, best.cost)
    return replace(best, status=proof.status, bound=proof.bound, gap=proof.gap)


def _few_pools(problem: Problem, known_misses: Sequence[Engines] = ()) -> Answer:
    """The cheapest fleet of one pool or two, which is none of those refuted."""
    case = _cheapest_case(problem, known_misses)
    return why_none(problem) if case is None else _answer_of(problem, case)


def _cheapest_case(problem: Problem, known_misses: Sequence[Engines] = ()) -> Case | None:
    demand = demand_of(problem)
    search = free_search(demand)
    cheapest = cheapest_held(search.without(known_misses), problem)
    return None if cheapest is None else _smallest_case(_case(demand.key, search.instance, search.fleet(cheapest[0])))


def _case(demand: str, instance: Instance, fleet: Fleet) -> Case:
    """A fleet, told by what its engines are, whatever their places in the tables; demand: key of the problem."""
    shapes = [repr(instance.tables.shapes[pool.shape]) for pool in fleet.pools]
    settings = [(instance.tables.seqs[pool.seqs], instance.tables.chunks[pool.chunk]) for pool in fleet.pools]
    pools = [(pool_key(pool)[0], pool.replicas, pool.spares, pool_key(pool)[-1]) for pool in fleet.pools]
    return Case(hashlib.sha256(repr((demand, shapes, settings, pools)).encode()).hexdigest(), instance, fleet)


@lru_cache(maxsize=KEPT)
def _smallest_case(case: Case) -> Case:
    return replace(case, fleet=smallest_batches(case.instance, case.fleet))


@lru_cache(maxsize=KEPT)
def break_of(case: Case) -> tuple[float, str]:
    """The highest multiple of the demand at which a fleet keeps every goal, and what gives out first, in which pool."""
    instance, fleet = case.instance, case.fleet
    pools = [(pool_headroom(instance, fleet, number), pool) for number, pool in enumerate(fleet.pools)]
    headroom, pool = min(pools, key=lambda row: row[0].load)
    return goodput_volume(instance, fleet), f"{headroom.resource} of {pool.name}"


def _answer_of(problem: Problem, case: Case) -> Answer:
    """A fleet by formula as the answer to a scenario."""
    here = replace(case.instance, problem=problem)
    cost, gpus = fleet_cost(here, case.fleet), fleet_gpus(here, case.fleet)
    volume, short = break_of(case)
    room = max(volume - 1.0, 0.0)
    limits = [(row.slack, _slack_words(row)) for row in fleet_bindings(here, cost, gpus)]
    left = 1.0 - 1.0 / (1.0 + room)  # of the load that the pool can take, as `_slack_words` has it
    load = (left, f"{short}, {percentage(left)} left")
    names = [offer.accelerator.name for offer in problem.offers]
    return Answer(
        status=Status.FEASIBLE,
        cost=cost,
        goodput=volume * problem.workload.request_rate,
        gpus={name: count for name, count in zip(names, gpus.tolist(), strict=True) if count},
        pools=tuple(engine_pools(here, case.fleet)),
        binding=min([load, *limits])[1],
        case=case,
    )


def why_none(problem: Problem, status: Status = Status.TIME_LIMIT) -> Answer:
    """The answer to a scenario without a fleet, with what is in the way.

    The limits that the cheapest fleet breaks which there would be without limits, if there is one.
    """
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    case = _cheapest_case(replace(problem, constraints=problem.constraints.lifted, offers=offers))
    if case is None:
        return nothing("by formula no fleet of one or two pools keeps the SLOs", status)
    here = replace(case.instance, problem=problem)
    limits = fleet_bindings(here, fleet_cost(here, case.fleet), fleet_gpus(here, case.fleet))
    why = " ".join(f"{row.constraint} of {row.where}: {row.sentence}" for row in limits if row.slack < 0.0)
    return nothing(why or "max_pools", status)


# --- by simulation ----------------------------------------------------------------------------------------------------


def confirmed(problem: Problem, best: Answer) -> Answer:
    """The answer by formula if its fleet holds when it is simulated, else the cheapest of one pool or two that does."""
    misses: list[Answer] = []
    floor = best.bound
    while best.case is not None and len(misses) <= CANDIDATES:
        attainment, fault = look_at(best.case)
        if not fault:
            return with_floor(replace(best, attainment=attainment, refuted=tuple(misses)), floor)
        misses.append(replace(best, attainment=attainment, fault=fault))
        best = _few_pools(problem, [item.case.engines for item in misses if item.case is not None])
    return unproven(misses) if misses else best


@lru_cache(maxsize=KEPT)
def look_at(case: Case) -> tuple[float, str]:
    """The same for a fleet of an answer."""
    return look(case.instance, case.fleet)
