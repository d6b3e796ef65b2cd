"""The cheapest fleet of one or two pools for a scenario, in milliseconds once its physics and rate are known.

What the evaluation says of pools is free of prices and limits (`physics`); these only say which fleets are looked at,
and in which order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import dollars, percentage
from optimizer.fleets.binding import fleet_bindings
from optimizer.fleets.bought import with_rented
from optimizer.fleets.build_plan import engine_pools, fleet_gpus
from optimizer.fleets.fleet import Fleet
from optimizer.loads.settings import ROLES
from optimizer.plans.plan import Binding, Plan, Status
from optimizer.plans.plan_pools import EnginePool, pool_records
from optimizer.recommend.level import Level
from optimizer.recommend.optimize import optimize
from optimizer.search.search import FleetSearch, Picks, cheapest_held, settled
from search_spaces.problem import OWNED, Goal, Pools, Problem

from .physics import Engines, Physics, break_of, engines_of, fleet_of, known_at, physics_of
from .refuted import NONE, Refuted, remaining_at

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Missed:
    """A fleet that the formulas promised and a simulation refuted.

    cost [$/h]; attainment: share of all requests within their SLOs [1]; fault: how it
    missed, as the end of a sentence.
    """

    cost: float
    pools: tuple[EnginePool, ...]
    attainment: float
    fault: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The best fleet of one scenario; without any, `binding` says what is in the way.

    Its status is then infeasible where physics forbids a fleet, and else that none was found.

    cost, bound [$/h]; goodput [1/s]; gap: share of the cost that another fleet could save at most, None where nothing
    is proven; gpus by type; binding: what gives out first, and how much of it is left; attainment: share of all
    requests within their SLOs when simulated [1], None where none were; refuted: cheaper fleets that the formulas
    promised and that did not hold; pick: the fleet, if it is of one or two pools.
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


@dataclass(frozen=True, slots=True)
class Pick:
    """A fleet that holds: its way and pools (see `physics`), GPUs of each offer, and cost [$/h]."""

    way: int
    pools: tuple[Engines, ...]
    gpus: tuple[int, ...]
    cost: float


def cheapest(problem: Problem, physics: Physics, refuted: Refuted = NONE) -> Pick | None:
    """The cheapest fleet of one or two pools that keeps the limits and, as evaluated, every goal.

    refuted: fleets that did not hold when they were simulated at this rate, and are left out.
    """
    best: Pick | None = None
    for way, known in enumerate(remaining_at(physics, problem.workload.request_rate, refuted)):
        found = cheapest_held(known, problem, np.inf if best is None else best.cost)
        if found is not None:
            best = _pick(way, known, *found)
    return best


def _pick(way: int, known: FleetSearch, picks: Picks, cost: float) -> Pick:
    """A fleet that the evaluation shows to hold."""
    pools = [known.pool(*pick) for pick in picks]
    engines = tuple((ROLES.index(one.role), one.shape, one.seqs, one.chunk, one.replicas) for one in pools)
    gpus = fleet_gpus(known.instance, Fleet(tuple(pools)))
    return Pick(way, engines, tuple(gpus.tolist()), cost)


def cheapest_settled(problem: Problem, physics: Physics, refuted: Refuted = NONE) -> Pick | None:
    """The same fleet with the batch limits that `pdplan optimize` gives it: the smallest with which no more miss."""
    pick = cheapest(problem, physics, refuted)
    if pick is None:
        return None
    return replace(pick, pools=_settled(physics, problem.workload.request_rate, pick.way, pick.pools))


@lru_cache(maxsize=6000)
def _settled(physics: Physics, rate: float, way: int, pools: tuple[Engines, ...]) -> tuple[Engines, ...]:
    fleet = settled(known_at(physics, rate)[way].instance, fleet_of(physics, way, pools))
    return tuple(engines_of(pool) for pool in fleet.pools)


def solve_simple(problem: Problem, base: Path, refuted: Refuted = NONE) -> Answer:
    """The cheapest fleet of one or two pools.

    base: folder of the files that the problem names. Raises InputError as `load_problem` does.
    """
    physics = physics_of(problem, base)
    pick = None if physics.floor else cheapest_settled(problem, physics, refuted)
    return why_none(problem, physics) if pick is None else answer_of(problem, physics, pick)


def solve_cost(problem: Problem, base: Path, refuted: Refuted = NONE) -> Answer:
    """The same fleet with its cost alone, in half the time: its goodput is the rate, and nothing is said to give out.

    base: folder of the files that the problem names. Raises InputError as `load_problem` does.
    """
    physics = physics_of(problem, base)
    pick = None if physics.floor else cheapest(problem, physics, refuted)
    return why_none(problem, physics) if pick is None else _priced(problem, physics, pick)


def answer_of(problem: Problem, physics: Physics, pick: Pick) -> Answer:
    """A fleet as the answer to a scenario."""
    most = break_of(physics, pick.way, pick.pools)
    room = max(most.rate / problem.workload.request_rate - 1.0, 0.0)
    load = (1.0 - 1.0 / (1.0 + room), f"{most.resource} of {most.pool}, {percentage(room)} room")
    here = replace(physics.ways[pick.way].instance, problem=problem)
    limits = fleet_bindings(here, pick.cost, _bought(problem, pick))
    named = [(row.slack, _left_words(row)) for row in limits]
    return replace(_priced(problem, physics, pick), goodput=most.rate, binding=min([load, *named])[1])


def _priced(problem: Problem, physics: Physics, pick: Pick) -> Answer:
    """What a fleet buys and costs."""
    fleet = fleet_of(physics, pick.way, pick.pools)
    here = replace(physics.ways[pick.way].instance, problem=problem)
    gpus = _bought(problem, pick)
    pools = engine_pools(here, fleet)
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


def nothing(why: str, status: Status = Status.INFEASIBLE) -> Answer:
    """The answer where there is no fleet: none that is possible, if not said otherwise."""
    return Answer(status, None, None, None, 0.0, {}, (), why)


def unproven(missed: Sequence[Missed]) -> Answer:
    """The answer where none of the fleets that were simulated holds: that there is none is not proven."""
    several = f"none of the {len(missed)} fleets that were simulated holds: " if len(missed) > 1 else ""
    why = f"{several}the cheapest by formula, {dollars(missed[0].cost)}/h, {missed[0].fault}"
    return replace(nothing(why, Status.TIME_LIMIT), refuted=tuple(missed))


def why_none(problem: Problem, physics: Physics) -> Answer:
    """The answer to a scenario without a fleet, with what is in the way; only physics says that there is none."""
    if physics.floor:
        return nothing(physics.floor)
    return nothing(_in_the_way(problem, physics), Status.TIME_LIMIT)


def _in_the_way(problem: Problem, physics: Physics) -> str:
    """Which limit the cheapest fleet breaks that there would be without limits; or that there is none at all."""
    offers = tuple(replace(offer, inventory=None) for offer in problem.offers)
    pick = cheapest(replace(problem, constraints=problem.constraints.lifted, offers=offers), physics)
    if pick is None:
        return "by formula no fleet of one or two pools keeps the SLOs"
    here = replace(physics.ways[pick.way].instance, problem=problem)
    rows = fleet_bindings(here, pick.cost, _bought(problem, pick))
    short = [f"{row.constraint} of {row.where}: {row.sentence}" for row in rows if row.slack < 0.0]
    return " ".join(short) or "max_pools"


def solve_full(problem: Problem, level: Level) -> Answer:
    """The same from the whole search with its proof, or from the simulator too: what `pdplan optimize` says."""
    return answer_of_plan(optimize(problem, level=level, extras=False))


def _left_words(row: Binding) -> str:
    return f"{row.constraint} of {row.where}, {percentage(row.slack)} left"


def answer_of_plan(plan: Plan) -> Answer:
    """A plan as the answer to a scenario."""
    tightest = plan.binding[0] if plan.binding else None
    return Answer(
        status=plan.status,
        cost=plan.cost_usd_per_hour,
        bound=plan.bound_usd_per_hour,
        gap=plan.gap,
        goodput=plan.goodput_rps,
        gpus=dict(plan.gpus),
        pools=tuple(pool for row in plan.alternatives if row.kind == "recommended" for pool in row.pools),
        binding="" if tightest is None else _left_words(tightest),
        attainment=plan.attainment if plan.simulated else None,
    )


def is_simple(problem: Problem) -> bool:
    """Whether simple fleets answer the question: it is about the least cost, and classes may share their pools."""
    shared = problem.constraints.pools is Pools.SHARED or len(problem.slos) == 1
    return problem.objective.goal is Goal.MIN_COST and shared


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
            "cost_usd_per_hour": one.cost,
            "pools": pool_records(one.pools),
            "attainment": one.attainment,
            "fault": one.fault,
        }
        for one in missed
    ]
