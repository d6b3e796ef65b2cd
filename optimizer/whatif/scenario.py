"""The answer to one scenario: its cheapest fleet, by formula, by formula and simulation, or by the whole search.

What prices, limits on the fleet and the rate leave alone (`Physics`) is worked out once for all scenarios that share
it: a pure function of the scenario's text without those, so that a row is the same whether it is solved alone or after
a thousand others. Then the cheapest fleet of one or two pools takes milliseconds. Where it is simulated and does not
hold it is refuted, and with it those that have no more of the same engines in any pool; the cheapest of the others is
simulated next, ROUNDS times at most. A fleet that missed is never shown as an answer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import ImpossibleError, InputError
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import dollars, percentage
from optimizer.fleets.binding import fleet_bindings
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.error_bars import at_quantile, slow_end
from optimizer.fleets.evaluate import Misses, fuller, holds_at, largest_load, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool, fleet_gpus, with_rented
from optimizer.loads.diagnose import check_floors
from optimizer.loads.engine_table import Resource
from optimizer.loads.flows import splits
from optimizer.loads.instance import (
    COLOCATED,
    DECODE,
    PREFILL,
    ROLES,
    Instance,
    Settings,
    at_volume,
    instance_of_problem,
    make_settings,
)
from optimizer.plans.plan import Binding, Plan, Status
from optimizer.plans.records import EnginePool, pool_records
from optimizer.recommend.optimize import optimize
from optimizer.recommend.rival_rows import overall
from optimizer.recommend.search import Level
from optimizer.search.bound import keeping_up, least_cost
from optimizer.search.search import FleetSearch, Picks, cheapest_held, settled
from optimizer.verification.bench import Verdict, confirmed_once, make_bench, miss_words
from optimizer.verification.judge import MOST_RUNS, Outcome
from optimizer.verification.verify import ROUNDS
from search_spaces.loader import problem_of_values
from search_spaces.problem import OWNED, Goal, Pools, Problem
from search_spaces.scenarios import Scenario, scenario_problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CHEAP_LEVERS = ("price", "prices", "inventory", "owned", "owned_price", "budget", "power", "max_gpus", "max_pools")
"""What leaves the physics and the rate alone."""
STEP_TIME = "step_time_quantile"
"""The lever of efficiency: how slow all steps are within the errors of past predictions; 0.5: as predicted."""

# --- what scenarios share ---------------------------------------------------------------------------------------------

ANY = 10_000_000
"""More GPUs than any fleet has."""

Engines = tuple[int, int, int, int, int]
"""Role, shape, batch limit, token budget (as indices) and how many engines the demand needs."""
Engine = tuple[int, int, int, int]
"""Role, shape and token budget of an engine (as indices), and how many of it."""
Refuted = frozenset[tuple[Engine, ...]]
"""The pools of each fleet that did not hold when it was simulated."""
NONE: Refuted = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One split of end-to-end limits between first and later tokens: the instance at 1 request/s, and its engines."""

    instance: Instance
    settings: Settings


@dataclass(frozen=True, slots=True, eq=False)
class Physics:
    """A problem at 1 request/s, free of prices and limits; floor: why its SLOs cannot be kept at any price, or ""."""

    problem: Problem
    ways: tuple[Way, ...]
    floor: str


def physics_of(problem: Problem, base: Path) -> Physics:
    """What a problem shares with every other that differs in prices, limits, rate or name alone.

    base: folder of the files that the problem names.
    """
    return _physics(physics_text(problem), base, problem.confidence)


def physics_text(problem: Problem) -> str:
    """The inputs of a problem less what its physics does not depend on, the confidence apart."""
    inputs = dict(problem.inputs) | {
        "name": "physics",
        "prices": None,
        "seed": 0,
        "confidence": 0.0,
        "objective": {"goal": "min_cost"},
        "workload": problem.inputs["workload"] | {"request_rate": 1.0, "diurnal": None},
        "constraints": {
            "headroom": {"replicas": problem.constraints.spare_replicas},
            "balancing": problem.constraints.balancing.value,
        },
        "accelerators": [
            entry
            | {"price": 1.0, "catalog_price": None, "inventory": None, "billing": "gpu"}
            | ({"owned": ANY, "owned_price": 1.0} if entry.get("owned") else {})
            for entry in problem.inputs["accelerators"]
        ],
    }
    return json.dumps(inputs, sort_keys=True)


@lru_cache(maxsize=48)
def _physics(text: str, base: Path, confidence: float) -> Physics:
    problem = replace(problem_of_values(json.loads(text), "scenario", base), confidence=confidence)
    expected = instance_of_problem(problem)
    try:
        check_floors(expected)
    except InputError as error:
        return Physics(problem, (), str(error).splitlines()[0].partition(": ")[2].partition(": ")[2])
    return physics_at(expected)


def physics_at(expected: Instance) -> Physics:
    """The physics of an instance at 1 request/s, free of prices and limits, whose SLOs are above every floor."""
    problem = expected.problem
    slow = at_quantile(expected, slow_end(problem.confidence))
    instances = [replace(slow, flows=flows) for flows in splits(problem)]
    return Physics(problem, tuple(Way(instance, make_settings(instance)) for instance in instances), "")


# --- fleets -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=48)
def evaluated_at(physics: Physics, rate: float) -> tuple[FleetSearch, ...]:
    """What the evaluation says of any pools at a rate [1/s], for each way."""
    return tuple(FleetSearch.of(at_volume(way.instance, rate), way.settings) for way in physics.ways)


def fleet_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> Fleet:
    """The fleet of these pools, each of which serves all of its stage."""
    spares, route = physics.problem.constraints.spare_replicas, np.ones(physics.ways[way].instance.flows.isl.size)
    named = ((ROLES[engines[0]], engines[1:]) for engines in pools)
    return Fleet(tuple(FleetPool(f"{role.value}-1", role, *engine, spares, route) for role, engine in named))


def engines_of(pool: FleetPool) -> Engines:
    """The engines of a pool."""
    return ROLES.index(pool.role), pool.shape, pool.seqs, pool.chunk, pool.replicas


@lru_cache(maxsize=20_000)
def break_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> tuple[float, str]:
    """The highest rate at which a fleet keeps every goal [1/s], and what gives out first beyond it, in which pool."""
    instance, fleet = physics.ways[way].instance, fleet_of(physics, way, pools)
    most = largest_load(lambda rate: holds_at(instance, fleet, rate), tolerance=2e-4)
    before, after = (predict_misses(instance, fleet, max(most, 1e-3) * factor) for factor in (1.0, 1.01))
    _, resource, pool = max(_reasons(instance, fleet, before, after), key=lambda reason: reason[0])
    return most, f"{resource} of {pool}"


def _reasons(instance: Instance, fleet: Fleet, before: Misses, after: Misses) -> Iterator[tuple[float, Resource, str]]:
    """How much each reason to miss grows between two loads, with what is behind it and in which pool."""
    share = instance.flows.share
    first = next(pool for pool in fleet.pools if pool.role is not Role.DECODE)
    last = next(number for number, pool in enumerate(fleet.pools) if pool.role is not Role.PREFILL)
    pool = fleet.pools[last]
    yield float(share @ (after.ttft - before.ttft)), Resource.TIME, first.name
    yield float(share @ (after.tpot - before.tpot)), Resource.ATTENTION_TIME, pool.name
    yield float(share @ (after.full - before.full)), fuller(instance, pool, after.states[last]), pool.name


# --- fleets that a simulation refuted ---------------------------------------------------------------------------------


def refuted_with(pools: Iterable[Engines]) -> tuple[Engine, ...]:
    """What is refuted with a fleet: so many of its engines, whatever their batch limit.

    >>> refuted_with([(0, 7, 0, 2, 3), (1, 4, 5, 0, 1)])
    ((0, 7, 2, 3), (1, 4, 0, 1))
    """
    return tuple((role, shape, chunk, replicas) for role, shape, _seqs, chunk, replicas in pools)


@dataclass(frozen=True, slots=True, eq=False)
class Remaining(FleetSearch):
    """The same, less the fleets that were refuted, and those that have no more of the same engines in any pool."""

    refuted: Refuted = NONE

    @classmethod
    def after(cls, evaluated: FleetSearch, refuted: Refuted) -> FleetSearch:
        """What is left of what was evaluated; the states of pools stay known."""
        if not refuted:
            return evaluated
        values = {field.name: getattr(evaluated, field.name) for field in fields(evaluated)}
        return cls(**values | {"pool_sizes": {}, "held": {}, "refuted": refuted})

    def carries(self, picks: Picks, volume: float) -> bool:
        """Whether a fleet keeps every goal at `volume` times the demand as evaluated, and is not refuted there."""
        role, shape, chunk = self.settings.role, self.settings.shape, self.settings.chunk
        engines = [(int(role[at]), int(shape[at]), int(chunk[at]), count) for at, count in picks]
        return not (volume >= 1.0 and self._lost(engines)) and FleetSearch.carries(self, picks, volume)

    def _lost(self, engines: list[Engine]) -> bool:
        """Whether a refuted fleet has the same kinds of engines, and as many or more of each."""
        return any(
            [engine[:3] for engine in engines] == [engine[:3] for engine in other]
            and all(engine[3] <= more[3] for engine, more in zip(engines, other, strict=True))
            for other in self.refuted
        )


@lru_cache(maxsize=48)
def remaining_at(physics: Physics, rate: float, refuted: Refuted) -> tuple[FleetSearch, ...]:
    """What the evaluation says of any pools at a rate [1/s], for each way, less the fleets that were refuted there."""
    return tuple(Remaining.after(evaluated, refuted) for evaluated in evaluated_at(physics, rate))


# --- floors -----------------------------------------------------------------------------------------------------------


def floor_cost(problem: Problem, physics: Physics) -> float:
    """What no fleet that keeps up with the demand can cost less than [$/h], in next to no time.

    Parts of engines: each flow goes to the colocated engine that takes it for the least, or to the cheapest prefill and
    decode engines. And at least one whole engine in each role, with its spares.
    """
    floors = []
    for evaluated in evaluated_at(physics, problem.workload.request_rate):
        tables, settings = evaluated.instance.tables, evaluated.settings
        prices = np.array([offer.usd_per_hour for offer in problem.offers])
        engine = (tables.gpus * prices[tables.offer])[settings.shape]
        need = _engines_kept_busy(evaluated) * engine[:, None]
        whole = (1 + problem.constraints.spare_replicas) * engine
        cheapest, first = (
            {role: costs[settings.role == role].min(axis=0, initial=np.inf) for role in (PREFILL, DECODE, COLOCATED)}
            for costs in (need, whole)
        )
        shared = np.minimum(cheapest[COLOCATED], cheapest[PREFILL] + cheapest[DECODE]).sum()
        floors.append(max(float(shared), min(float(first[COLOCATED]), float(first[PREFILL] + first[DECODE]))))
    return min(floors, default=0.0)


@lru_cache(maxsize=64)
def _engines_kept_busy(evaluated: FleetSearch) -> FloatArray:
    """Engines of each setting that each flow keeps busy at least, (settings, flows)."""
    return np.asarray(keeping_up(evaluated.instance, evaluated.settings) * evaluated.instance.flows.rate)


def lower_bound(problem: Problem, base: Path) -> float | None:
    """What no fleet of whole engines, the budget apart, can cost less than [$/h]; None where none can hold.

    base: folder of the files that the problem names. Half a second or more.
    """
    free = replace(problem, constraints=replace(problem.constraints, budget=None))
    prices, floors = np.array([offer.usd_per_hour for offer in problem.offers]), []
    for way in physics_of(free, base).ways:
        instance = at_volume(way.instance, problem.workload.request_rate)
        tables = replace(instance.tables, usd_per_hour=instance.tables.gpus * prices[instance.tables.offer])
        floors.append(least_cost(replace(instance, problem=free, tables=tables), way.settings))
    return min((floor for floor in floors if floor is not None), default=None)


# --- answers ----------------------------------------------------------------------------------------------------------


class Depth(StrEnum):
    """How each scenario is solved."""

    SIMPLE = "simple"
    """Fleets of one or two pools by formula, no bound: some milliseconds where the physics is known."""
    COST = "cost"
    """The same fleets with their cost alone, not how much more they could serve: half the time."""
    CONFIRMED = "confirmed"
    """The cheapest of the same fleets that holds when it is simulated: a second or more."""
    FULL = "full"
    """The whole search with its bound, by formula: seconds."""
    SIMULATED = "simulated"
    """The whole search, and what it finds proven by simulation: more seconds."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A fleet that should hold by formula and that a simulation refuted.

    cost [$/h]; attainment: share of all requests within their SLOs [1]; fault: how it missed, as the end of a sentence;
    pick: what it is where it is of one or two pools.
    """

    cost: float
    pools: tuple[EnginePool, ...]
    attainment: float
    fault: str
    pick: Pick | None = None


@dataclass(frozen=True, slots=True)
class Pick:
    """A fleet that holds: its way and pools (see `physics`), GPUs of each offer, and cost [$/h]."""

    way: int
    pools: tuple[Engines, ...]
    gpus: tuple[int, ...]
    cost: float

    @property
    def fleet(self) -> tuple[int, tuple[Engines, ...]]:
        """What tells it from every other of one physics and rate."""
        return self.way, self.pools


@dataclass(frozen=True, slots=True)
class Answer:
    """The best fleet of one scenario; without any, `binding` says what is in the way.

    Its status is then infeasible where physics forbids a fleet, and else that none was found.

    cost, bound [$/h]; goodput [1/s]; gap: share of the cost that another fleet could save at most, None where nothing
    is proven; gpus by type; binding: what gives out first, and how much of it is left; attainment: share of all
    requests within their SLOs when simulated [1], None where none were; refuted: cheaper fleets that did not hold;
    pick: the fleet, if it is of one or two pools.
    """

    status: Status
    cost: float | None
    bound: float | None
    gap: float | None
    goodput: float
    gpus: Mapping[str, int]
    pools: tuple[EnginePool, ...]
    binding: str
    attainment: float | None = None
    refuted: tuple[Missed, ...] = ()
    pick: Pick | None = None

    @property
    def goodput_per_dollar(self) -> float:
        """Goodput over price: requests per dollar [1/$]."""
        return self.goodput * SECONDS_PER_HOUR / self.cost if self.cost else 0.0

    def missed(self, attainment: float, fault: str) -> Missed:
        """Its fleet as one that did not hold; see `Missed`."""
        return Missed(self.cost or 0.0, self.pools, attainment, fault, self.pick)


def solve(problem: Problem, base: Path, depth: Depth = Depth.SIMPLE, refuted: Refuted = NONE) -> Answer:
    """The best fleet for a problem; refuted: such as are no answer, where fleets of one or two pools are asked for.

    base: folder of the files that the problem names. Goals other than the least cost, and pools for each class, need
    the whole search. Raises InputError as `load_problem` does.
    """
    physics = physics_of(problem, base)
    if physics.floor:
        return nothing(physics.floor)
    if depth in {Depth.FULL, Depth.SIMULATED} or not is_simple(problem):
        return solve_full(problem, Level.STANDARD if depth is Depth.SIMULATED else Level.QUICK)
    if depth is Depth.CONFIRMED:
        return cheapest_confirmed(problem, physics, refuted)
    pick = (cheapest if depth is Depth.COST else cheapest_settled)(problem, physics, refuted)
    if pick is None:
        return why_none(problem, physics)
    return _priced(problem, physics, pick) if depth is Depth.COST else answer_of(problem, physics, pick)


def answer_at(  # noqa: PLR0917
    problem: Problem, base: Path, key: str, value: float, depth: Depth = Depth.SIMPLE, refuted: Refuted = NONE
) -> Answer:
    """The best fleet with one lever at a value; none where no engine can exist there."""
    try:
        if key == STEP_TIME:
            there = replace(problem, confidence=2.0 * value - 1.0)
        else:
            there = scenario_problem(problem, Scenario("", {key: value}), base)
    except ImpossibleError as error:
        return nothing(str(error))
    return solve(there, base, depth, refuted)


def own_value(problem: Problem, key: str) -> float | None:
    """The problem's own value of a lever, in its unit; factors stand at 1. None where it has none.

    A limit of latency is that of the first class.
    """
    head, _, name = key.partition(".")
    if head.endswith("_scale"):
        return 1.0
    if head == "price":
        prices = {offer.accelerator.name.casefold(): offer.usd_per_hour for offer in problem.offers}
        return prices.get(name.casefold())
    values: dict[str, float | None] = {
        "rate": problem.workload.request_rate,
        "burstiness": problem.workload.burstiness,
        "isl": problem.workload.mean_isl,
        "osl": problem.workload.mean_osl,
        **{str(metric): limit for metric, limit in problem.slos[0].limits.items()},
        "budget": problem.constraints.budget,
        "power": problem.constraints.power,
    }
    value = values.get(key)
    return None if value is None or math.isinf(value) else value


def is_simple(problem: Problem) -> bool:
    """Whether simple fleets answer the question: it is about the least cost, and classes may share their pools."""
    shared = problem.constraints.pools is Pools.SHARED or len(problem.slos) == 1
    return problem.objective.goal is Goal.MIN_COST and shared


def solve_full(problem: Problem, level: Level) -> Answer:
    """What `pdplan optimize` says: the whole search with its proof, by formula or with the simulator."""
    return answer_of_plan(optimize(problem, level=level, extras=False))


def answer_of_plan(plan: Plan) -> Answer:
    """A plan as the answer to a scenario."""
    return Answer(
        status=plan.status,
        cost=plan.cost_usd_per_hour,
        bound=plan.bound_usd_per_hour,
        gap=plan.gap,
        goodput=plan.goodput_rps,
        gpus=dict(plan.gpus),
        pools=tuple(pool for row in plan.alternatives if row.kind == "recommended" for pool in row.pools),
        binding=_slack_words(plan.binding[0]) if plan.binding else "",
        attainment=plan.attainment if plan.simulated else None,
    )


# --- by formula -------------------------------------------------------------------------------------------------------


def cheapest(problem: Problem, physics: Physics, refuted: Refuted = NONE) -> Pick | None:
    """The cheapest fleet of one or two pools that keeps the limits and, as evaluated, every goal.

    refuted: fleets that did not hold when they were simulated at this rate, and are left out.
    """
    best: Pick | None = None
    for way, evaluated in enumerate(remaining_at(physics, problem.workload.request_rate, refuted)):
        best_picks = cheapest_held(evaluated, problem, np.inf if best is None else best.cost)
        if best_picks is not None:
            fleet = evaluated.fleet(best_picks[0])
            gpus = fleet_gpus(evaluated.instance, fleet).tolist()
            best = Pick(way, tuple(map(engines_of, fleet.pools)), tuple(gpus), best_picks[1])
    return best


def cheapest_settled(problem: Problem, physics: Physics, refuted: Refuted = NONE) -> Pick | None:
    """The same fleet with the batch limits that `pdplan optimize` gives it: the smallest with which no more miss."""
    pick = cheapest(problem, physics, refuted)
    if pick is None:
        return None
    return replace(pick, pools=_settled(physics, problem.workload.request_rate, pick.way, pick.pools))


@lru_cache(maxsize=6000)
def _settled(physics: Physics, rate: float, way: int, pools: tuple[Engines, ...]) -> tuple[Engines, ...]:
    fleet = settled(evaluated_at(physics, rate)[way].instance, fleet_of(physics, way, pools))
    return tuple(map(engines_of, fleet.pools))


def answer_of(problem: Problem, physics: Physics, pick: Pick) -> Answer:
    """A fleet as the answer to a scenario."""
    goodput, short = break_of(physics, pick.way, pick.pools)
    room = max(goodput / problem.workload.request_rate - 1.0, 0.0)
    load = (1.0 - 1.0 / (1.0 + room), f"{short}, {percentage(room)} room")
    limits = [(row.slack, _slack_words(row)) for row in _limits(problem, physics, pick)]
    return replace(_priced(problem, physics, pick), goodput=goodput, binding=min([load, *limits])[1])


def _limits(problem: Problem, physics: Physics, pick: Pick) -> Sequence[Binding]:
    """How much of each limit a fleet leaves."""
    here = replace(physics.ways[pick.way].instance, problem=problem)
    return fleet_bindings(here, pick.cost, _bought(problem, pick))


def _slack_words(row: Binding) -> str:
    return f"{row.constraint} of {row.where}, {percentage(row.slack)} left"


def _priced(problem: Problem, physics: Physics, pick: Pick) -> Answer:
    """What a fleet buys and costs; its goodput is the rate, and nothing is said to give out."""
    here = replace(physics.ways[pick.way].instance, problem=problem)
    pools, gpus = engine_pools(here, fleet_of(physics, pick.way, pick.pools)), _bought(problem, pick)
    if tuple(gpus.tolist()) != pick.gpus:
        pools = [_partly_rented(pool) for pool in pools]
    return Answer(
        status=Status.FEASIBLE,
        cost=pick.cost,
        bound=None,
        gap=None,
        goodput=problem.workload.request_rate,
        gpus={o.accelerator.name: count for o, count in zip(problem.offers, gpus.tolist(), strict=True) if count},
        pools=tuple(pools),
        binding="",
        pick=pick,
    )


def _partly_rented(pool: EnginePool) -> EnginePool:
    """A pool where some GPUs of an owned type are rented: such have two prices."""
    name = pool.accelerator.removesuffix(OWNED)
    return pool if name == pool.accelerator else pool.model_copy(update={"accelerator": name, "usd_per_hour": None})


def _bought(problem: Problem, pick: Pick) -> IntArray:
    """GPUs of each offer that a fleet takes, (offers,)."""
    return np.asarray(with_rented(problem, np.array(pick.gpus, dtype=np.int64)), dtype=np.int64)


# --- without a fleet --------------------------------------------------------------------------------------------------


def nothing(why: str, status: Status = Status.INFEASIBLE) -> Answer:
    """The answer where there is no fleet: none that is possible, if not said otherwise."""
    return Answer(status, None, None, None, 0.0, {}, (), why)


def unproven(missed: Sequence[Missed]) -> Answer:
    """The answer where none of the fleets that were simulated holds: that there is none is not proven."""
    several = f"none of the {len(missed)} fleets that were simulated holds: " if len(missed) > 1 else ""
    why = f"{several}the cheapest by formula, {dollars(missed[0].cost)}/h, {missed[0].fault}"
    return replace(nothing(why, Status.TIME_LIMIT), refuted=tuple(missed))


def why_none(problem: Problem, physics: Physics) -> Answer:
    """The answer to a scenario without a fleet, with what is in the way; only physics says that there is none.

    Else it is the limit that the cheapest fleet breaks which there would be without limits, if there is one.
    """
    if physics.floor:
        return nothing(physics.floor)
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    pick = cheapest(replace(problem, constraints=problem.constraints.lifted, offers=offers), physics)
    if pick is None:
        return nothing("by formula no fleet of one or two pools keeps the SLOs", Status.TIME_LIMIT)
    limits = (row for row in _limits(problem, physics, pick) if row.slack < 0.0)
    why = " ".join(f"{row.constraint} of {row.where}: {row.sentence}" for row in limits)
    return nothing(why or "max_pools", Status.TIME_LIMIT)


# --- by simulation ----------------------------------------------------------------------------------------------------


def look(instance: Instance, fleet: Fleet, most: int = MOST_RUNS) -> tuple[float, str]:
    """Simulate a fleet: the share of all requests within their SLOs, and how it misses its goals, "" where it holds.

    most: full runs after which a fleet that straddles a goal is taken for a miss.
    """
    verdict = _verdict(instance, fleet, most)
    return overall(verdict), "" if verdict.held else miss_words(verdict)


def _verdict(instance: Instance, fleet: Fleet, most: int) -> Verdict:
    """A fleet refuted by a short run, or confirmed on requests that no run before had.

    Formulas chose the fleet, so the runs that confirm it may be the first full ones. Where these do not tell, others
    say how many it takes, and it is confirmed once more: one that misses a goal passes with 1.9 % at most.
    """
    bench = make_bench(instance)
    verdict = bench.look(fleet)
    if verdict.judgement.missed:
        return verdict
    verdict = confirmed_once(bench, verdict, 1)
    if verdict.outcome is not Outcome.UNDECIDED or most <= bench.least:
        return verdict
    again = make_bench(instance)
    verdict = again.verdict(fleet)
    return confirmed_once(again, verdict, 2) if verdict.held else verdict


@lru_cache(maxsize=1000)
def look_at(physics: Physics, rate: float, seed: int, way: int, pools: tuple[Engines, ...]) -> tuple[float, str]:
    """The same for a fleet of some physics at a rate [1/s]."""
    free = physics.problem
    problem = replace(free, seed=seed, workload=replace(free.workload, request_rate=rate))
    instance = replace(at_volume(physics.ways[way].instance, rate), problem=problem)
    return look(instance, fleet_of(physics, way, pools))


def family_of(problem: Problem) -> str:
    """Digest of all that the simulation of a fleet depends on besides the fleet: everything but prices and limits."""
    basis = [physics_text(problem), problem.confidence, problem.workload.request_rate, problem.seed]
    return hashlib.sha256(repr(basis).encode()).hexdigest()


def cheapest_confirmed(problem: Problem, physics: Physics, refuted: Refuted = NONE) -> Answer:
    """The cheapest fleet of one or two pools that holds when it is simulated, and those that it stands for.

    refuted: fleets that were seen to miss there before.
    """
    missed: list[Missed] = []
    out: set[tuple[Engine, ...]] = set(refuted)
    while len(missed) <= ROUNDS:
        pick = cheapest_settled(problem, physics, frozenset(out))
        if pick is None:
            break
        attainment, fault = look_at(physics, problem.workload.request_rate, problem.seed, *pick.fleet)
        answer = answer_of(problem, physics, pick)
        if not fault:
            return replace(answer, attainment=attainment, refuted=tuple(missed))
        missed.append(answer.missed(attainment, fault))
        out.add(refuted_with(pick.pools))
    return unproven(missed) if missed else why_none(problem, physics)


# --- for JSON ---------------------------------------------------------------------------------------------------------


def answer_row(answer: Answer) -> dict[str, Any]:
    """An answer as a row, ready for JSON."""
    return {
        "status": answer.status.value,
        "cost_usd_per_hour": answer.cost,
        "bound_usd_per_hour": answer.bound,
        "gap": answer.gap,
        "goodput_rps": answer.goodput,
        "goodput_per_dollar": answer.goodput_per_dollar,
        "gpus": dict(answer.gpus),
        "binding": answer.binding,
        "pools": pool_records(answer.pools),
        "simulated": answer.attainment is not None,
        "simulated_attainment": answer.attainment,
        "refuted": refuted_rows(answer.refuted),
    }


def refuted_rows(missed: Sequence[Missed]) -> list[dict[str, Any]]:
    """Fleets that were refuted, ready for JSON."""
    return [
        {
            "cost_usd_per_hour": fleet.cost,
            "pools": pool_records(fleet.pools),
            "attainment": fleet.attainment,
            "fault": fleet.fault,
        }
        for fleet in missed
    ]
