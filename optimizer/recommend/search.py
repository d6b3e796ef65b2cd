"""The search for a fleet: the best by formula and its rivals, then the cheapest that simulations confirm.

Every other question (safe fleet, nearest miss, narrower precision, stated fleet) is this search on another instance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.arrays import BoolArray
from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.words import plural
from optimizer.fleets.fleet import Fleet, FleetPool, classes_apart, fleet_cost, within_limits
from optimizer.loads.effort import Brake, Effort, Level, StageReport, Wish, silent
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES, Instance
from optimizer.plans.plan import Proof, Status, bound_for, proof_of_cost, proof_of_judged, status_of
from optimizer.plans.records import ROUNDING, TOLERANCE, CheaperFleets
from optimizer.search.bound import least_cost
from optimizer.search.mixtures import best_serving, goodput_gap, leanest, or_mixed
from optimizer.search.search import FleetSearch, engines_unlike, evaluated, fleets_between, unmixed, with_near_fleets
from optimizer.search.settings import EngineSettings
from optimizer.verification.bench import Bench, Verdict, confirmed, fleet_key, goodput_of, make_bench
from optimizer.verification.judge import Goodput, OutOfTimeError
from optimizer.verification.tune import tuned
from optimizer.verification.verify import Loop, SearchResult, smaller_limits
from search_spaces.problem import Goal, Problem

STAGES: Final = (
    "pricing engines",
    "searching fleets",
    "comparing alternatives",
    "simulating fleets",
    "simulating smaller fleets",
    "confirming the fleet",
    "tuning",
    "simulating alternatives",
    "simulating other rates",
    "searching for a fleet that survives slow GPUs",
    "searching other precisions",
    "done",
)
"""Stages of a search for a plan, in order; progress counts them."""

OTHER_ENGINES = "other_engines"
"""Kind of an alternative that lacks an engine of the best fleet."""
FEW_POOLS: Final = ([Role.COLOCATED], [Role.PREFILL, Role.DECODE])
"""Roles of the fleets that are searched exhaustively."""
TUNED: Final = "tuned"
"""Label of a tuned fleet that fresh requests did not confirm."""


# --- by formula -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Restriction:
    """Fleets of some engines only; kind, label: of its row; usable: engines allowed in each role, (roles, shapes)."""

    kind: str
    label: str
    usable: BoolArray

    def allows(self, fleet: Fleet) -> bool:
        """Whether all pools of a fleet have allowed engines."""
        return all(bool(self.usable[ROLES.index(pool.role), pool.shape]) for pool in fleet.pools)


@dataclass(frozen=True, slots=True, eq=False)
class Rival:
    """The best fleet under a restriction, None for the best of all.

    fleets: the best first, then those that may replace it (`with_near_fleets`), none if none is found; why_none: why
    there is none; impossible: whether no engine is allowed or fits; search: the result of its simulations, if any.
    """

    fleets: tuple[Fleet, ...] = ()
    restriction: Restriction | None = None
    why_none: str = ""
    impossible: bool = False
    search: SearchResult | None = None

    @property
    def fleet(self) -> Fleet:
        """The best fleet; one without pools where none is found."""
        return self.fleets[0] if self.fleets else Fleet()

    def cost(self, instance: Instance) -> float:
        """Price of the best fleet, infinite where there is none [$/h]."""
        return fleet_cost(instance, self.fleet) if self.fleet.pools else math.inf


@dataclass(frozen=True, slots=True)
class FormulaResult:
    """Result of the search by formula: the proof for its best fleet, the volume that it serves, and its rivals.

    space: what was searched; rivals: the best fleet first, none where none holds.
    """

    space: FleetSearch
    proof: Proof
    volume: float = 1.0
    rivals: tuple[Rival, ...] = ()

    @property
    def instance(self) -> Instance:
        """The instance that was searched."""
        return self.space.instance

    @property
    def fleet(self) -> Fleet:
        """The best fleet; an empty one where none holds."""
        return self.rivals[0].fleet if self.rivals else Fleet(())

    @property
    def best(self) -> list[Fleet]:
        """The best fleet of each rival, in their order."""
        return [rival.fleet for rival in self.rivals if rival.fleets]

    @property
    def fleets(self) -> list[Fleet]:
        """These, and fleets that may replace the first."""
        return [*self.rivals[0].fleets, *self.best[1:]] if self.rivals else []


def search_by_formula(space: FleetSearch, brake: Brake, report: StageReport = silent) -> FormulaResult:
    """The best fleet by formula for the problem's goal, if any."""
    report("searching fleets")
    cheapest = space.instance.problem.objective.goal is Goal.MIN_COST
    result = _least_cost(space, brake) if cheapest else _most_goodput(space, brake)
    if not result.rivals and space.late():
        return replace(result, proof=Proof(Status.TIME_LIMIT, None, None))
    return result


def _least_cost(space: FleetSearch, brake: Brake) -> FormulaResult:
    """The cheapest fleet, or the cheapest fleets of all classes together where pools serve one class each."""
    instance, apart = space.instance, classes_apart(space.instance.problem)
    simple = Fleet(()) if apart else unmixed(space)
    fleet = leanest(space) if apart else or_mixed(space, simple)
    if not fleet.pools:  # that there is none is known only where none can do the work in time
        floor = _floor(space, brake)
        status = Status.INFEASIBLE if floor is None else Status.TIME_LIMIT
        return FormulaResult(space, Proof(status, None, None, floor))
    cost = fleet_cost(instance, fleet)
    few_pools = fleet_cost(instance, simple) if simple.pools and not space.cut else None
    floor = _floor(space, brake, cost)
    proof = proof_of_cost(few_pools, floor, cost)
    return FormulaResult(space, proof, rivals=(_rival(space, fleet),))


def with_comparison(result: FormulaResult, space: FleetSearch, report: StageReport) -> FormulaResult:
    """The result of a least-cost search with fleets to compare; none where pools serve one class each.

    A search under a restriction may find a mixture that the free search missed; then that is the best.
    """
    instance = space.instance
    if not result.rivals or instance.problem.objective.goal is not Goal.MIN_COST or classes_apart(instance.problem):
        return result
    report("comparing alternatives")
    rivals = compare(space, result.rivals[0])
    rivals += other_fleets(space, rivals)
    cheapest = min(rivals, key=lambda rival: rival.cost(instance))
    cost = cheapest.cost(instance)
    if cost >= rivals[0].cost(instance) * (1.0 - ROUNDING):
        return replace(result, rivals=tuple(rivals))
    best = replace(cheapest, restriction=None)
    limits = [(rival, rival.restriction) for rival in rivals[1:]]
    rest = [  # one that lacks engines which the best has none of either is no other fleet
        rival for rival, limit in limits if limit and not (limit.kind == OTHER_ENGINES and limit.allows(best.fleet))
    ]
    proof = proof_of_cost(result.proof.few_pools, result.proof.floor, cost)
    return replace(result, proof=proof, rivals=(best, *rest))


def _floor(space: FleetSearch, brake: Brake, ceiling: float = math.inf) -> float | None:
    """Lower bound on the cost of any fleet [$/h]; the time limit may weaken it, which is recorded."""
    floor = least_cost(space.instance, space.settings, brake.left(), ceiling)
    brake.late()
    return floor


def _most_goodput(space: FleetSearch, brake: Brake) -> FormulaResult:
    """The fleet that serves most, or most per dollar; the gap is to what no fleet within the limits can reach.

    Without one, no engine is allowed at all: no work is too little where the rate is open.
    """
    objective = space.instance.problem.objective
    fleet, volume = best_serving(space)
    if not fleet.pools:
        status = Status.TIME_LIMIT if space.settings.size else Status.INFEASIBLE
        return FormulaResult(space, Proof(status, None, None))
    gap = goodput_gap(space, (fleet, volume), brake.left())
    brake.late()
    if objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        volume = min(volume, objective.max_volume)
    return FormulaResult(space, Proof(status_of(gap), None, gap), volume, (Rival((fleet,)),))


def restrictions(instance: Instance, settings: EngineSettings) -> Iterator[Restriction]:
    """Restrictions to compare where the space has more: one GPU type, role kind or precision, no speculation."""
    offers, tables, problem = instance.problem.offers, instance.tables, instance.problem
    roles, shapes = np.arange(len(ROLES))[:, None], tables.offer[None, :]
    if len(offers) > 1:
        for index, bought in enumerate(offers):
            yield Restriction("single_type", f"{bought.accelerator.name} only", (roles >= 0) & (shapes == index))
    together = settings.role == COLOCATED
    if together.any() and not together.all():
        yield Restriction("colocated_only", "colocated only", (roles == COLOCATED) & (shapes >= 0))
        yield Restriction("disaggregated_only", "disaggregated only", (roles != COLOCATED) & (shapes >= 0))
    precision = problem.weight_dtype, problem.kv_dtype
    own = np.array([(shape.weight_dtype, shape.kv_dtype) == precision for shape in tables.shapes], dtype=np.bool_)
    if own.any() and not own.all():
        label = f"{problem.weight_dtype} weights and {problem.kv_dtype} KV cache only"
        yield Restriction("own_precision", label, (roles >= 0) & own)
    plain = tables.verified == 1
    if plain.any() and not plain.all():
        yield Restriction("no_speculation", "no speculative decoding", (roles >= 0) & plain)


def compare(search: FleetSearch, best: Rival) -> list[Rival]:
    """The best fleet, followed by the best of the same search under every restriction.

    Where a restriction allows the best fleet, it is the best there too.
    """
    return [
        best,
        *(
            replace(best, restriction=restriction)
            if restriction.allows(best.fleet)
            else _best_rival(search, restriction)
            for restriction in restrictions(search.instance, search.settings)
        ),
    ]


def _best_rival(search: FleetSearch, restriction: Restriction) -> Rival:
    """The best fleet under a restriction."""
    late = "the time was up before it was looked for"
    if search.late():
        return Rival(restriction=restriction, why_none=late)
    space = evaluated(search.instance, search.late, restriction.usable)
    fleet = or_mixed(space, unmixed(space))
    if fleet.pools:
        return _rival(space, fleet, restriction)
    if not space.settings.size:
        why_none = _why_none(search.instance, restriction.label)
        return Rival(restriction=restriction, why_none=why_none, impossible=True)
    if forbidden := _why_no_pair(space):
        return Rival(restriction=restriction, why_none=forbidden, impossible=True)
    none = "none was found that meets the SLOs within the limits; the search did not try every fleet"
    return Rival(restriction=restriction, why_none=late if search.late() else none)


def _rival(space: FleetSearch, fleet: Fleet, restriction: Restriction | None = None) -> Rival:
    """The best fleet of a search, with fleets that may replace it."""
    return Rival(with_near_fleets(space, fleet), restriction)


def _why_no_pair(space: FleetSearch) -> str:
    """Why the limits allow no prefill replica beside a decode replica; empty if they do."""
    problem, settings = space.instance.problem, space.settings
    if (settings.role == COLOCATED).any():
        return ""
    if not problem.constraints.fits((Role.PREFILL, Role.DECODE)):
        return "it takes two pools, more than the limits on pools allow"
    first, second = (np.unique(settings.shape[settings.role == role]) for role in (PREFILL, DECODE))
    tables, offers = space.instance.tables, np.arange(len(problem.offers))
    gpus = (tables.offer[:, None] == offers) * tables.gpus[:, None] * (1 + problem.constraints.spare_replicas)
    pairs = (gpus[first][:, None] + gpus[second])[tables.talks[np.ix_(first, second)]]
    if not pairs.size or within_limits(problem, pairs).any():
        return ""
    fewest = int(pairs.sum(axis=1).min())
    return f"a prefill and a decode replica take {fewest} GPUs or more, which the limits on the fleet forbid"


def other_fleets(search: FleetSearch, comparison: Sequence[Rival]) -> list[Rival]:
    """The cheapest fleets that lack an engine of the best one and are not among the alternatives yet.

    For buyers who cannot get what is recommended. comparison: the best fleet first, as in the comparison.
    """
    instance, best = search.instance, comparison[0]
    purchases = {_bought(instance, rival.fleet) for rival in comparison}
    alternatives: list[Rival] = []
    for pool in best.fleet.pools:
        rival = _best_rival(search, _without_engines(instance, pool))
        purchase = _bought(instance, rival.fleet)
        if not rival.fleet.pools or purchase in purchases:
            continue
        purchases.add(purchase)
        if rival.cost(instance) >= best.cost(instance) * (1.0 - ROUNDING):
            alternatives.append(rival)
    return sorted(alternatives, key=lambda rival: rival.cost(instance))


def _without_engines(instance: Instance, pool: FleetPool) -> Restriction:
    """A restriction that excludes engines of the GPU type, size and role of a pool."""
    return Restriction(OTHER_ENGINES, f"without {_engine_words(instance, pool)}", engines_unlike(instance, pool))


def _bought(instance: Instance, fleet: Fleet) -> frozenset[str]:
    """The engines of a fleet, regardless of their parallelism, settings and numbers."""
    return frozenset(_engine_words(instance, pool) for pool in fleet.pools)


def _engine_words(instance: Instance, pool: FleetPool) -> str:
    """The replicas of a pool as part of a sentence, such as "prefill replicas of 2 H100 GPUs"."""
    name = instance.problem.offers[int(instance.tables.offer[pool.shape])].accelerator.name
    return f"{pool.role.value} replicas of {plural(int(instance.tables.gpus[pool.shape]), f'{name} GPU')}"


def _why_none(instance: Instance, label: str) -> str:
    reasons = (reason for gpu, reason in instance.enumeration.dropped if gpu == label.removesuffix(" only"))
    return next(reasons, "no such engine config is allowed and fits in memory")


def search_summary(space: FleetSearch) -> dict[str, Any]:
    """Size of the search and why engine shapes were dropped."""
    enumeration = space.instance.enumeration
    size: dict[str, Any] = {
        "shapes_considered": enumeration.considered,
        "shapes_feasible": len(enumeration.shapes),
        "shapes_dropped": dict(sorted((f"{gpu}: {why}", count) for (gpu, why), count in enumeration.dropped.items())),
        "settings": space.settings.size,
        "fleets_evaluated": len(space.reached),
        "flows": int(space.instance.flows.isl.size),
    }
    return size | ({"fleets_cut_by": sorted(space.cut)} if space.cut else {})


# --- by simulation --------------------------------------------------------------------------------------------------


def simulated(result: FormulaResult, effort: Effort) -> tuple[Bench, SearchResult]:
    """The best fleet for the problem's goal in simulation, and the bench that judged it."""
    if result.instance.problem.objective.goal is not Goal.MIN_COST:
        return most_confirmed(result, effort)
    bench = make_bench(result.instance, late=effort.brake.stopped)
    loop = Loop(bench, result.fleets, result.space)
    return bench, _tuned_result(loop, loop.confirmed(effort), effort)


def most_confirmed(result: FormulaResult, effort: Effort) -> tuple[Bench, SearchResult]:
    """The largest multiple of the demand that the fleet is confirmed to serve, near its simulated goodput."""
    rate = result.instance.problem.workload.request_rate
    bench = make_bench(result.instance, result.volume, effort.brake.stopped)
    try:
        fleet, goodput = _with_limits_that_recover(bench, result.fleet)
        result = replace(result, rivals=(Rival((fleet,)), *result.rivals[1:]))
        return _confirmed_below(goodput.rate * bench.part(fleet).parts / rate, bench, result, effort)
    except OutOfTimeError:
        return bench, SearchResult(undecided=result.fleet)


def _with_limits_that_recover(bench: Bench, fleet: Fleet) -> tuple[Fleet, Goodput]:
    """The fleet, or the same with smaller batch limits that serve more, and its goodput.

    If the fleet does not recover from a crowd just above its goodput, the pools to blame get `smaller_limits` until it
    meets its goals there; repeated while that helps.
    """
    rate = bench.instance.problem.workload.request_rate
    while True:
        goodput = goodput_of(bench, fleet, rate * bench.volume, held=False)
        if not math.isfinite(goodput.fails):
            return fleet, goodput
        beyond = make_bench(bench.instance, goodput.fails * bench.part(fleet).parts / rate, bench.late)
        verdict = beyond.verdict(fleet)
        while verdict.stuck:
            smaller = smaller_limits(bench.instance, verdict)
            if smaller == verdict.fleet:
                break
            verdict = beyond.verdict(smaller)
        if not verdict.held or verdict.fleet == fleet:
            return fleet, goodput
        fleet = verdict.fleet


def _confirmed_below(volume: float, bench: Bench, result: FormulaResult, effort: Effort) -> tuple[Bench, SearchResult]:
    """The largest multiple of the demand at which the fleet is confirmed: `volume`, or a share of it below.

    The first step down is the tolerance to which `volume` is known, each further one is twice as far. Raises
    OutOfTimeError where it is late before one is.
    """
    instance, objective, fleet = result.instance, result.instance.problem.objective, result.fleet
    by_price = objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR
    volume = min(volume, objective.max_volume) if by_price else volume
    nearest, served_volume, step = None, volume, TOLERANCE
    for number in itertools.count(1):
        if served_volume <= 0.0 or (by_price and served_volume < objective.min_volume):
            break
        if effort.brake.stopped():
            raise OutOfTimeError(f"{fleet}: the time is up")
        bench = make_bench(instance, served_volume, effort.brake.stopped)
        verdict = bench.verdict(fleet)
        verdict = confirmed(bench, verdict, number, runs=effort.runs)[0] if verdict.held else verdict
        if verdict.held:
            return bench, SearchResult(winner=verdict)
        nearest, served_volume, step = verdict, volume * (1.0 - step), 2.0 * step
    return bench, SearchResult(nearest=nearest or bench.verdict(fleet))


def cheaper_fleets(space: FleetSearch, proof: Proof, cost: float, bench: Bench | None = None) -> CheaperFleets | None:
    """Count of the fleets between the floor and a cost [$/h], all of them tried; bench: the one that simulated."""
    instance, low = space.instance, proof.floor or 0.0
    count = fleets_between(space, low, cost)
    if count is None:
        return None
    misses = [verdict for verdict in bench.verdicts.values() if not verdict.held] if bench else []
    bought = {
        frozenset((_engine_words(instance, pool), pool.replicas) for pool in miss.fleet.pools)
        for miss in misses
        if [pool.role for pool in miss.fleet.pools] in FEW_POOLS
        and low * (1.0 - ROUNDING) <= miss.cost < cost * (1.0 - ROUNDING)
    }
    return CheaperFleets(count=count, simulated=len(bought))


def proof_of(result: FormulaResult, winner: Verdict, volume: float, *, is_complete: bool = False) -> Proof:
    """The proof for the winner; none if it serves more than any fleet could by formula.

    is_complete: whether simulation refuted all cheaper fleets of one pool or a pair that hold by formula.
    """
    proof, goal = result.proof, result.instance.problem.objective.goal
    by_formula_cost = fleet_cost(result.instance, result.fleet)
    if goal is Goal.MIN_COST:
        is_bound = is_complete and bound_for(proof.few_pools, winner.cost) is not None
        few_pools = winner.cost if is_bound else bound_for(proof.few_pools, by_formula_cost)
        return proof_of_judged(few_pools, proof.floor, winner.cost)
    share = volume / result.volume
    if goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        share *= by_formula_cost / winner.cost
    if proof.gap is None or share * (1.0 - proof.gap) > 1.0:
        return Proof(Status.FEASIBLE, proof.bound, None)
    gap = 1.0 - share * (1.0 - proof.gap)
    return Proof(status_of(gap), proof.bound, gap)


# --- tuning ---------------------------------------------------------------------------------------------------------


def wish_of(problem: Problem, level: Level, wish: Wish | None) -> Wish | None:
    """How a fleet is tuned: as asked, else as the level says; None: not at all.

    Raises InputError for a front where nothing is tuned.
    """
    if wish is None:
        return Wish() if level is Level.THOROUGH else None
    goal = problem.objective.goal
    if level is Level.QUICK:
        raise InputError("--front: its fleets are simulated, but --effort is quick; allowed: standard, thorough")
    if goal is not Goal.MIN_COST:
        raise InputError(
            f"--front shows cost against latency at one demand: it needs objective min_cost, not {goal.value}"
        )
    return wish


def _tuned_result(loop: Loop, result: SearchResult, effort: Effort) -> SearchResult:
    """The confirmed winner with its knobs tuned, if fresh requests confirm that; else unchanged."""
    bench, winner = loop.bench, result.winner
    if winner is None or effort.tune is None or bench.late():
        return result
    effort.report("tuning")
    best = tuned(bench, winner, effort.tune)
    verdict = winner
    if best.winner is not winner:
        loop.take(best.winner)
        lean = loop.run() or best.winner
        if fleet_key(lean.fleet) != fleet_key(winner.fleet) and not bench.late():
            verdict, _ = confirmed(bench, lean, bench.confirmation_after(winner), runs=effort.runs)
    if verdict.held and verdict is not winner:
        return replace(loop.result(verdict), tuning=best)
    refuted_rows = () if verdict is winner else ((TUNED, verdict),)
    return replace(result, tuning=best, others=(*result.others, *refuted_rows))
