"""The answers to scenarios: the search of `optimize` for the problem that each makes, as one row.

    simple     fleets of one pool or two, by formula; what prices and limits leave alone is worked out once
    full       mixtures too, as `optimize --effort quick` has it
    simulated  what `optimize` says

By formula a fleet may miss when it is simulated (`confirmed`): then the cheapest of one pool or two is simulated that
has not more engines of the same kinds, CANDIDATES times at most. A fleet that missed is never an answer.

A sweep has a row for each scenario; then some fleets are simulated, if not stated otherwise those of the most rows, and
the rows of those that missed are solved again. The choice depends on the rows alone, so that it is the same on one
core, many, or a cluster.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from costmodel.errors import BelowFloorError, ImpossibleError, InputError
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import dollars, percentage
from optimizer.fleets.build_plan import engine_pools, fleet_bindings, package_versions
from optimizer.fleets.evaluate import goodput_volume, pool_headroom
from optimizer.fleets.fleet import Fleet, fleet_cost, fleet_gpus
from optimizer.fleets.pool import KEPT, pool_key
from optimizer.loads.instance import Brake, Instance, Progress, as_planned, make_instance
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
from search_spaces.files import Journal
from search_spaces.problem import Goal, Pools, Problem
from search_spaces.scenarios import Scenario, SweepAxis, grid, lever_of, scenario_problem

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


# --- many scenarios ---------------------------------------------------------------------------------------------------

Row = dict[str, Any]
"""One scenario's result, ready for JSON; `number` is its place in the sweep."""
PROVING = 0.7
"""Share of a sweep's work that is done when simulations begin."""
MOST_FULL = 64
"""Scenarios of a sweep up to which each gets the whole search that nobody has to ask for."""
INNER = ("fleet", "refuted_fleets")
"""Keys of a row that are for the sweep alone: what tells its fleet, and those that were refuted, from every other."""


@dataclass(frozen=True, slots=True)
class Solver:
    """Solves scenarios of one problem; picklable.

    proven: whether whole searches by formula state a bound; shown: keys whose values stand in the rows; count: of the
    scenarios, whose numbers are raised by it where their fleets are to be simulated.
    """

    problem: Problem
    effort: ScenarioEffort
    proven: bool
    shown: tuple[str, ...]
    count: int

    def __call__(self, numbered: tuple[int, Scenario]) -> Row:
        """The row of one scenario: its name, what varied, and the answer; from `count` on, of simulated fleets."""
        number, scenario = numbered
        row = {"number": number} | ({"scenario": scenario.name} if scenario.name else {})
        row |= {key: scenario.changes[key] for key in self.shown}
        best = answer(
            self.problem,
            self.effort,
            changes=scenario.changes,
            simulated=number >= self.count,
            proven=self.proven,
            name=scenario.name,
        )
        refuted_fleets = [miss.case.key for miss in best.refuted if miss.case is not None]
        return row | best.row | {"fleet": best.case.key if best.case else "", "refuted_fleets": refuted_fleets}


def most_shared(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """The first row of each fleet, the fleets of the most rows first."""
    fleets = Counter(row["fleet"] for row in rows if row["fleet"])
    first = {row["fleet"]: number for number, row in reversed([*enumerate(rows)])}
    return [(first[fleet],) for fleet, _ in fleets.most_common()]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Scenarios to solve, how, and which of their fleets are simulated.

    looks: groups of rows whose fleets are simulated at most, fleets in place of others apart; key: digest of all that
    the rows depend on; groups: numbers of the rows whose fleets are simulated all or not at all, in order.
    """

    scenarios: tuple[Scenario, ...]
    solver: Solver
    looks: int
    key: str
    groups: Callable[[Sequence[Row]], Sequence[tuple[int, ...]]] = most_shared


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
    solver = Solver(problem, effort, gap is not False, tuple(axis.key for axis in axes), len(scenarios))
    changes = [[scenario.name, scenario.changes] for scenario in scenarios]
    identity = [problem.inputs, str(effort), gap, looks, package_versions(), changes, solver.shown]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return Sweep(scenarios, solver, looks, key)


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
) -> list[Row]:
    """Solve what the journal does not hold yet, and return all rows in the order of the scenarios.

    Scenarios that share engines and demand are solved one after another, whatever their order. Raises what a scenario
    raises; rows that were finished before stay in the journal.
    """
    known, count = {} if journal is None else journal.begin(), len(sweep.scenarios)

    def solved(tasks: Sequence[tuple[int, Scenario]], noun: str, begin: float, end: float) -> dict[int, Row]:
        """The rows of some scenarios; neighbors of what is not known yet are solved by the same worker.

        begin, end: shares of the work that is done before and after.
        """
        open_tasks, begun = [(number, task) for number, task in tasks if number not in known], time.monotonic()
        # each worker takes some again, so that none idles long
        size = min(max(len(open_tasks) // (CANDIDATES * workers), 1), MOST_FULL)
        for done_count, row in enumerate(executor.map(sweep.solver, open_tasks, chunksize=size), start=1):
            if journal is not None:
                journal.append(row)
            known[row["number"]] = row
            if progress is not None:
                waiting = len(open_tasks) - done_count
                seconds = (time.monotonic() - begun) / done_count * waiting
                label = f"{len(tasks) - waiting:,} of {len(tasks):,} {noun}"
                label += f", {seconds:,.0f} s left for these" if round(seconds) else ""
                progress(label, end - (end - begin) * waiting / len(tasks))
        return {number: known[number] for number, _ in tasks}

    rows = solved(sorted(enumerate(sweep.scenarios), key=lambda row: _demand(row[1])), "scenarios", 0.0, PROVING)
    groups = sweep.groups([rows[number] for number in range(count)])
    again, shares = _first_looks(rows, groups, sweep.looks), dict[str, float]()
    refuted_fleets, solved_again = set[str](), set[int]()
    while again:
        solved_again.update(again)
        tasks = [(number + count, sweep.scenarios[number]) for number in again]
        for number, row in solved(tasks, "simulated fleets", PROVING, 1.0).items():
            rows[number - count] = row | {"number": number - count}
            refuted_fleets.update(row["refuted_fleets"])
            if row["simulated"]:
                shares[row["fleet"]] = row["simulated_attainment"]
        judged_fleets = refuted_fleets | shares.keys()
        judged = {number for number in range(count) if number in solved_again or rows[number]["fleet"] in judged_fleets}
        judged.update(*(group for group in groups if judged.intersection(group)))
        again = sorted(number for number in judged - solved_again if rows[number]["fleet"] not in {"", *shares})
    shown = []
    for number in range(count):
        row, share = rows[number], shares.get(rows[number]["fleet"])
        row = row if share is None else row | {"simulated": True, "simulated_attainment": share}
        shown.append({key: value for key, value in row.items() if key not in INNER})
    return shown


def _first_looks(rows: Mapping[int, Row], groups: Sequence[tuple[int, ...]], looks: int) -> list[int]:
    """Rows whose fleets are simulated first: one for each fleet of so many groups, those without a new one apart."""
    chosen_rows = dict[str, int]()
    for group in groups:
        fleets = {rows[number]["fleet"]: number for number in group if rows[number]["fleet"]}
        if looks and fleets.keys() - chosen_rows.keys():
            chosen_rows, looks = fleets | chosen_rows, looks - 1
    return sorted(chosen_rows.values())


def solve(
    problem: Problem,
    scenarios: Sequence[Scenario],
    effort: ScenarioEffort,
    looks: int,
    groups: Callable[[Sequence[Row]], Sequence[tuple[int, ...]]],
) -> list[Answer]:
    """The answers to some scenarios, solved in this process; looks, groups: as of a sweep."""
    solver = Solver(problem, effort, proven=False, shown=(), count=len(scenarios))
    sweep = Sweep(tuple(scenarios), solver, 0 if effort is ScenarioEffort.SIMULATED else looks, "", groups)
    with ThreadPoolExecutor(1) as executor:
        return [Answer.of_row(row) for row in run_sweep(sweep, executor, 1)]


def _demand(scenario: Scenario) -> str:
    """What scenarios share that differ in prices and limits alone."""
    changes = scenario.changes.items()
    demand = [[key, value] for key, value in changes if not lever_of(key).cheap]
    return json.dumps([scenario.name, sorted(demand, key=str)], default=str)


# --- workers ----------------------------------------------------------------------------------------------------------


ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by libraries as they start: a worker for each core needs no threads beside it."""
WORKER_ENVIRONMENT = dict.fromkeys(ONE_THREAD, "1") | {"PYTHONWARNINGS": "ignore:resource_tracker"}
"""Semaphores that a parent leaves as it is ended are cleaned up by a helper of Python's, of which nobody need hear."""


@contextmanager
def local_executor(jobs: int) -> Iterator[Executor]:
    """Processes of this machine, started afresh: a fork would copy locks that threads of the solver hold.

    A single job stays in this process. Raises InputError where one of several is killed, which is what systems that run
    out of memory do.
    """
    if jobs == 1:
        with ThreadPoolExecutor(1) as thread:
            yield thread
        return
    spawn, missing = multiprocessing.get_context("spawn"), {*WORKER_ENVIRONMENT} - {*os.environ}
    os.environ.update({name: WORKER_ENVIRONMENT[name] for name in missing})
    try:
        with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_end_with_parent) as executor:
            try:
                with _interrupts_held():  # by all of them from their first line on
                    for _ in range(jobs):
                        executor.submit(os.getpid)
                yield executor
            except BrokenExecutor:
                raise InputError(
                    f"a worker process of --jobs {jobs} was killed, probably for want of memory; use fewer --jobs"
                ) from None
            finally:
                executor.shutdown(wait=False, cancel_futures=True)
    finally:
        for name in missing:
            del os.environ[name]


def _end_with_parent() -> None:
    """Let this worker end as soon as its parent does, whatever ends that, and hold no output of the parent open.

    The parent's end closes a pipe that `multiprocessing` has between the two.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back from this process for a moment, and for good from those that it starts meanwhile.

    A terminal sends it to all of them, but it is the parent's business.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """Workers of a Dask cluster (extra `dask`), and how many there are.

    Raises InputError when Dask is not installed or no scheduler answers at the address.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--backend dask needs Dask; install it with: pip install 'pdplan[dask]'") from None
    try:
        client = Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"--address {address}: no Dask scheduler answers there: {error}") from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise InputError(f"--address {address}: the Dask scheduler there has no workers")
        yield client.get_executor(), workers


def all_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
