"""The answers to scenarios: the search of `optimize` for the problem that each makes.

    simple     fleets of one pool or two, by formula; what prices and limits leave alone is worked out once
    full       mixtures too, as `optimize --effort quick` has it
    simulated  what `optimize` says

A fleet found by formula may miss in simulation (`confirmed_answer`). Then the cheapest fleet of one pool or two that
the misses so far do not rule out is simulated, up to CANDIDATES times. A fleet that missed is never an answer.

A sweep answers each of its scenarios. Then some fleets are simulated, by default those of the most scenarios, and
scenarios whose fleet missed are solved again. The choice depends only on the answers, so it is the same on one core,
many, or a cluster.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from costmodel.arrays import FloatArray
from costmodel.errors import BelowFloorError, ImpossibleError, InputError
from costmodel.words import percentage
from optimizer.fleets.build_plan import engine_pools, fleet_bindings, package_versions, pools_of_records, routes_of
from optimizer.fleets.evaluate import goodput_volume, pool_headroom, still_holds
from optimizer.fleets.fleet import Fleet, can_hand_over, fleet_cost, fleet_gpus, with_names
from optimizer.fleets.pool import KEPT, pool_key
from optimizer.loads.effort import Brake, Level, Progress
from optimizer.loads.instance import Instance, as_planned
from optimizer.plans.plan import Binding, Plan, Proof, Status, proof_of_judged
from optimizer.plans.records import CANDIDATES, ROUNDING, EnginePool
from optimizer.recommend.changed_problem import without_limits
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import search_by_formula
from optimizer.search import search
from optimizer.search.bound import possible_instance
from optimizer.search.mixtures import leanest
from optimizer.verification.bench import look, valid
from search_spaces.problem import Goal, Pools, Problem
from search_spaces.scenarios import Scenario, SweepAxis, grid, lever_of, scenario_problem

from .answer import Answer, Case, ScenarioAnswer, ScenarioEffort, nothing, unproven
from .workers import Journal

DEMANDS_KEPT = 6
"""Demands whose engine table and search are kept: they are large, and scenarios come back to few of them."""


def answer(
    problem: Problem,
    effort: ScenarioEffort = ScenarioEffort.SIMPLE,
    known_misses: Sequence[search.Engines] = (),
    *,
    changes: Mapping[str, Any] | None = None,
    simulated: bool = False,
    proven: bool = False,
    name: str = "",
    fleets: Sequence[Case] = (),
) -> Answer:
    """The best fleet for a problem with some levers or values changed; none where no engine can exist then.

    fleets: of the same problem, whatever was changed in it, that are tried here too; the fleet of the problem without
    the changes always is where mixtures are searched. So nothing that is easier costs more than a fleet at hand, though
    the search for mixtures does not try them all.

    Goals other than the least cost, and pools for each class, take the whole search, by formula at least. known_misses:
    fleets that are known to miss, and are no answer by formula; simulated: whether a fleet by formula has to hold when
    it is simulated; proven: whether the whole search by formula states a bound; name: of the scenario, if it has one.
    """
    if changes is not None and effort is ScenarioEffort.FULL and is_simple(problem):
        fleets = [*fleets, *unchanged_fleet(KeyedProblem(digest(problem.inputs), problem))]
    try:
        problem = scenario_problem(problem, changes, name) if changes is not None else problem
    except ImpossibleError as error:  # the message begins with the scenario's name
        return nothing(str(error).splitlines()[0].partition(": ")[2])
    try:
        if effort is ScenarioEffort.SIMULATED:
            return answer_of_plan(optimize(problem, level=Level.STANDARD, extras=False))
        few = effort is ScenarioEffort.SIMPLE and is_simple(problem)
        best = _few_pools(problem, known_misses) if few else _whole(problem, proven=proven)
        if best.case is not None and search.is_refuted(best.case.engines, known_misses):
            best = _few_pools(problem, known_misses)
        best = _or_fleet(problem, best, [case for case in fleets if not search.is_refuted(case.engines, known_misses)])
    except BelowFloorError as error:
        return nothing(str(error).splitlines()[0].partition(": ")[2].partition(": ")[2])
    return confirmed_answer(problem, best) if simulated and is_simple(problem) else best


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
class KeyedProblem:
    """A problem, and a key of all that it states."""

    key: str
    problem: Problem = field(compare=False)


def digest(record: Any) -> str:
    """A key that is equal for equal records of JSON."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()


def demand_of(problem: Problem) -> KeyedProblem:
    """A problem without prices and limits; its key is equal for scenarios that differ only in these and the name."""
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
    return KeyedProblem(digest(inputs), search.without_prices(problem))


@lru_cache(maxsize=DEMANDS_KEPT)
def slow_instance(demand: KeyedProblem) -> Instance:
    """The engine table at the problem's confidence.

    Raises InputError where no engine can exist, BelowFloorError where physics forbids an SLO.
    """
    return as_planned(possible_instance(demand.problem))


@lru_cache(maxsize=DEMANDS_KEPT)
def free_search(demand: KeyedProblem) -> search.FleetSearch:
    """The search without prices and limits."""
    return search.evaluated(slow_instance(demand))


def _whole(problem: Problem, *, proven: bool) -> Answer:
    """The best fleet of any number of pools; proven: with a bound on its cost, which takes as long as the fleet."""
    demand = demand_of(problem)
    space = search.evaluated(search.priced(slow_instance(demand), problem))
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


def _few_pools(problem: Problem, known_misses: Sequence[search.Engines] = ()) -> Answer:
    """The cheapest fleet of one or two pools that is not refuted."""
    case = _cheapest_case(problem, known_misses)
    return why_none(problem) if case is None else _answer_of(problem, case)


@lru_cache(maxsize=DEMANDS_KEPT)
def unchanged_fleet(own: KeyedProblem) -> tuple[Case, ...]:
    """The fleet of a problem in which nothing is changed, if there is one."""
    try:
        best = answer(own.problem, ScenarioEffort.FULL)
    except InputError:  # no engine runs its model: the change may mend that
        return ()
    return () if best.case is None else (best.case,)


def fleet_under(
    demand: KeyedProblem, pools: Sequence[EnginePool], routes: Sequence[Sequence[float] | FloatArray] = ()
) -> Case:
    """A recorded fleet under some demand; routes (flows,): of each pool, none where each serves all.

    Raises InputError where there are no such engines, or other lengths.
    """
    instance = slow_instance(demand)
    fleet_pools = pools_of_records(instance, pools, routes_of(instance, pools, routes))
    return _case(demand.key, instance, Fleet(with_names(instance, fleet_pools)))


def _or_fleet(problem: Problem, best: Answer, fleets: Sequence[Case]) -> Answer:
    """The answer, or a fleet that costs less, is within the limits and holds here too, by formula."""
    floor, demand = best.bound, demand_of(problem)
    for rival in fleets:
        routes = [pool.route for pool in rival.fleet.pools]
        with suppress(InputError):
            case = fleet_under(demand, engine_pools(rival.instance, rival.fleet), routes)
            here = replace(case.instance, problem=problem)
            is_cheaper = best.cost is None or fleet_cost(here, case.fleet) < best.cost * (1.0 - ROUNDING)
            is_possible = is_cheaper and valid(here, case.fleet) and can_hand_over(here, case.fleet)
            if is_possible and still_holds(here, case.fleet):
                best = with_floor(_answer_of(problem, case), floor)
    return best


def cheapest_of(problem: Problem, changes: Mapping[str, Any], answers: Sequence[Answer]) -> Answer | None:
    """The cheapest of some answers to a problem with some levers changed, by formula; None where none has a fleet.

    Of those that cost the same, the one that `optimize` would choose (`preferred`). A fleet that mixes engines
    within a stage is taken only if it costs less than every other fleet.
    """
    least = min((item.cost for item in answers if item.cost is not None), default=math.inf)
    equal = [item for item in answers if item.cost is not None and item.cost <= least * (1.0 + ROUNDING)]
    plain = [item for item in equal if len({pool.role for pool in item.pools}) == len(item.pools)] or equal
    if len(plain) < 2:
        return plain[0] if plain else None
    demand = demand_of(scenario_problem(problem, changes))
    fleets = [fleet_under(demand, item.pools).fleet for item in plain]
    best = search.preferred(slow_instance(demand), fleets)
    return next(item for item, fleet in zip(plain, fleets, strict=True) if fleet is best)


def _cheapest_case(problem: Problem, known_misses: Sequence[search.Engines] = ()) -> Case | None:
    demand = demand_of(problem)
    space = free_search(demand)
    cheapest = search.cheapest_held(space.without(known_misses), problem)
    return None if cheapest is None else _smallest_case(_case(demand.key, space.instance, space.fleet(cheapest[0])))


def _case(demand: str, instance: Instance, fleet: Fleet) -> Case:
    """A fleet with a key of its engines that does not depend on indices in a table; demand: key of the problem."""
    shapes = [repr(instance.tables.shapes[pool.shape]) for pool in fleet.pools]
    settings = [(instance.tables.seqs[pool.seqs], instance.tables.chunks[pool.chunk]) for pool in fleet.pools]
    pools = [(pool_key(pool)[0], pool.replicas, pool.spares, pool_key(pool)[-1]) for pool in fleet.pools]
    return Case(hashlib.sha256(repr((demand, shapes, settings, pools)).encode()).hexdigest(), instance, fleet)


@lru_cache(maxsize=KEPT)
def _smallest_case(case: Case) -> Case:
    return replace(case, fleet=search.smallest_batches(case.instance, case.fleet))


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
    remaining = 1.0 - 1.0 / (1.0 + room)  # of the load that the pool can take, as `_slack_words` has it
    load = (remaining, f"{short}, {percentage(remaining)} left")
    names = [offer.accelerator.name for offer in problem.offers]
    return Answer(
        status=Status.FEASIBLE,
        cost=cost,
        goodput=volume * problem.workload.request_rate,
        gpus={name: count for name, count in zip(names, gpus.tolist(), strict=True) if count},
        pools=tuple(engine_pools(here, case.fleet)),
        binding=min([load, *limits])[1],
        fleet=case.key,
        case=case,
    )


def why_none(problem: Problem, status: Status = Status.TIME_LIMIT) -> Answer:
    """The answer to a scenario without a fleet, with the reason.

    The reason is the limits that the cheapest fleet without limits exceeds, if there is one.
    """
    case = _cheapest_case(without_limits(problem))
    if case is None:
        return nothing("by formula no fleet of one or two pools keeps the SLOs", status)
    here = replace(case.instance, problem=problem)
    limits = fleet_bindings(here, fleet_cost(here, case.fleet), fleet_gpus(here, case.fleet))
    why = " ".join(f"{row.constraint} of {row.where}: {row.sentence}" for row in limits if row.slack < 0.0)
    return nothing(why or "max_pools", status)


# --- by simulation ----------------------------------------------------------------------------------------------------


def confirmed_answer(problem: Problem, best: Answer) -> Answer:
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
    """Share of a fleet's requests that meet their SLOs in simulation [1], and in words how it missed, if it did."""
    return look(case.instance, case.fleet)


# --- many scenarios ---------------------------------------------------------------------------------------------------

PROVING = 0.7
"""Share of the work of a sweep that is done when simulations begin [1]."""
MOST_FULL = 64
"""Scenarios of a sweep up to which each gets the whole search that nobody has to ask for."""
Task = tuple[Scenario, bool]
"""A scenario, and whether its fleet is to be simulated."""


def solve_task(problem: Problem, effort: ScenarioEffort, task: Task, *, proven: bool) -> Answer:
    """The answer to one scenario, without tables, for any process.

    proven: whether whole searches by formula state a bound.
    """
    scenario, simulated = task
    best = answer(problem, effort, changes=scenario.changes, simulated=simulated, proven=proven, name=scenario.name)
    return replace(best, case=None, refuted=tuple(replace(miss, case=None) for miss in best.refuted))


def most_shared(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    """The first scenario of each fleet, the fleets of the most scenarios first."""
    fleets = Counter(best.fleet for best in answers if best.fleet)
    first = {best.fleet: number for number, best in reversed([*enumerate(answers)])}
    return [(first[fleet],) for fleet, _ in fleets.most_common()]


Groups = Callable[[Sequence[Answer]], Sequence[tuple[int, ...]]]
"""Numbers of the scenarios whose fleets are simulated all or not at all, in order."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Scenarios to solve, how, and which of their fleets are simulated.

    solver: of each, picklable; looks: groups of scenarios whose fleets are simulated at most, without fleets that
    replace one that missed; key: digest of all that the answers depend on; shown: keys of the axes.
    """

    scenarios: tuple[Scenario, ...]
    solver: Callable[[Task], Answer]
    effort: ScenarioEffort
    looks: int
    key: str = ""
    shown: tuple[str, ...] = ()
    groups: Groups = most_shared

    def results(self, answers: Sequence[Answer]) -> list[ScenarioAnswer]:
        """Each answer with what its scenario sets."""
        settings = [
            ({"scenario": scenario.name} if scenario.name else {}) | {key: scenario.changes[key] for key in self.shown}
            for scenario in self.scenarios
        ]
        return [ScenarioAnswer(*item) for item in zip(settings, answers, strict=True)]


def sweep_of(  # noqa: PLR0917
    problem: Problem,
    axes: Sequence[SweepAxis],
    named_scenarios: Sequence[Scenario] = (),
    effort: ScenarioEffort | None = None,
    gap: bool | None = None,
    looks: int = 0,
) -> Sweep:
    """The sweep over all combinations of the axes, for each of the named scenarios.

    effort: how each is solved; None: by the whole search, by formula, where there are no more than MOST_FULL or where
    gaps are asked for, else simply. gap: whether whole searches by formula state their gap; None: they do. Raises
    InputError for a bad key or value before any work.
    """
    scenarios = tuple(grid(axes, named_scenarios))
    _check(problem, scenarios)
    if effort is None:
        effort = ScenarioEffort.FULL if gap or len(scenarios) <= MOST_FULL else ScenarioEffort.SIMPLE
    solver, shown = partial(solve_task, problem, effort, proven=gap is not False), tuple(axis.key for axis in axes)
    changes = [[scenario.name, scenario.changes] for scenario in scenarios]
    key = digest([problem.inputs, str(effort), gap, looks, package_versions(), changes, shown])
    return Sweep(scenarios, solver, effort, looks, key, shown)


def _check(problem: Problem, scenarios: Sequence[Scenario]) -> None:
    """Make each change by itself: every text; of numbers, which have bounds, the ends and a fraction."""
    values: dict[str, dict[str, Any]] = {}
    for scenario in scenarios:
        for key, value in scenario.changes.items():
            values.setdefault(key, {})[repr(value)] = value
    for key, distinct in values.items():
        numbers = sorted(value for value in distinct.values() if isinstance(value, int | float))
        fraction = [value for value in numbers if value % 1.0][:1]
        texts = [value for value in distinct.values() if not isinstance(value, int | float)]
        for value in (*numbers[:1], *numbers[-1:], *fraction, *texts):
            with suppress(ImpossibleError):  # a row that says so
                scenario_problem(problem, {key: value})


def run_sweep(
    sweep: Sweep, executor: Executor, workers: int, journal: Journal | None = None, progress: Progress | None = None
) -> list[ScenarioAnswer]:
    """Solve what the journal does not hold yet, and return all answers in the order of the scenarios.

    Scenarios that share engines and demand are solved one after another, whatever their order. Raises what a scenario
    raises; answers that were finished before stay in the journal, those with simulated fleets numbered from the count
    of scenarios on.
    """
    records, count = {} if journal is None else journal.begin(), len(sweep.scenarios)
    finished = {number: Answer.of_record(record) for number, record in records.items()}

    def solved(numbers: Sequence[int], noun: str, begin: float, end: float) -> list[Answer]:
        """The answers to some scenarios; neighbors of what is not finished yet are solved by the same worker.

        begin, end: shares of the work that is done before and after.
        """
        tasks, begun = [number for number in numbers if number not in finished], time.monotonic()
        # each worker takes some again, so that none idles long
        size = min(max(len(tasks) // (CANDIDATES * workers), 1), MOST_FULL)
        settings = [(sweep.scenarios[number % count], number >= count) for number in tasks]
        answers = executor.map(sweep.solver, settings, chunksize=size)
        for done_count, (number, best) in enumerate(zip(tasks, answers, strict=True), start=1):
            if journal is not None:
                journal.append({"number": number} | best.record)
            finished[number] = best
            if progress is not None:
                waiting = len(tasks) - done_count
                seconds = (time.monotonic() - begun) / done_count * waiting
                label = f"{len(numbers) - waiting:,} of {len(numbers):,} {noun}"
                label += f", {seconds:,.0f} s left for these" if round(seconds) else ""
                progress(label, end - (end - begin) * waiting / len(numbers))
        return [finished[number] for number in numbers]

    solved(sorted(range(count), key=lambda number: _demand(sweep.scenarios[number])), "scenarios", 0.0, PROVING)
    answers = [finished[number] for number in range(count)]
    groups = sweep.groups(answers)
    again, shares = _first_looks(answers, groups, sweep.looks), dict[str, float]()
    refuted_fleets, solved_again = set[str](), set[int]()
    while again:
        solved_again.update(again)
        looks = solved([number + count for number in again], "simulated fleets", PROVING, 1.0)
        for number, best in zip(again, looks, strict=True):
            answers[number] = best
            refuted_fleets.update(miss.fleet for miss in best.refuted)
            if best.attainment is not None:
                shares[best.fleet] = best.attainment
        judged_fleets = refuted_fleets | shares.keys()
        judged = {number for number in range(count) if number in solved_again or answers[number].fleet in judged_fleets}
        judged.update(*(group for group in groups if judged.intersection(group)))
        again = sorted(number for number in judged - solved_again if answers[number].fleet not in {"", *shares})
    return sweep.results(
        [replace(best, attainment=shares[best.fleet]) if best.fleet in shares else best for best in answers]
    )


def _first_looks(answers: Sequence[Answer], groups: Sequence[tuple[int, ...]], looks: int) -> list[int]:
    """Scenarios to simulate first: one for each fleet of so many groups, those without a new one apart."""
    chosen = dict[str, int]()
    for group in groups:
        fleets = {answers[number].fleet: number for number in group if answers[number].fleet}
        if looks and fleets.keys() - chosen.keys():
            chosen, looks = fleets | chosen, looks - 1
    return sorted(chosen.values())


def solve_scenarios(
    problem: Problem, scenarios: Sequence[Scenario], effort: ScenarioEffort, looks: int, groups: Groups
) -> list[Answer]:
    """The answers to some scenarios, solved in this process; looks, groups: as of a sweep."""
    looks = 0 if effort is ScenarioEffort.SIMULATED else looks
    solver = partial(solve_task, problem, effort, proven=False)
    sweep = Sweep(tuple(scenarios), solver, effort, looks, groups=groups)
    with ThreadPoolExecutor(1) as executor:
        return [item.answer for item in run_sweep(sweep, executor, 1)]


def _demand(scenario: Scenario) -> str:
    """A key that is equal for scenarios that differ only in prices and limits."""
    changes = scenario.changes.items()
    demand = [[key, value] for key, value in changes if not lever_of(key).cheap]
    return json.dumps([scenario.name, sorted(demand, key=str)], default=str)
