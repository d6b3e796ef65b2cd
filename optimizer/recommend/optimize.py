"""`optimize`: from a problem to a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from costmodel.errors import InputError
from costmodel.simulator import prepare
from optimizer.fleets.build_plan import build_plan, fleet_cost, provenance
from optimizer.fleets.error_bars import at_quantile, class_error_bars, slow_end
from optimizer.fleets.fleet import Fleet
from optimizer.loads.diagnose import check_floors, check_shapes
from optimizer.loads.instance import Instance, make_instance
from optimizer.loads.late import Deadline
from optimizer.plans.plan import Alternative, Binding, Plan, Provenance, RunInfo, Status
from optimizer.plans.proof import proof_of_judged
from optimizer.rivals.alternatives import recommended
from optimizer.rivals.leanest import at_best_split
from optimizer.verification.bench import make_bench
from optimizer.verification.tune import Wish
from search_spaces.bounds import TIME_LIMIT
from search_spaces.engines import load_engine_overhead
from search_spaces.enumeration import enumerate_shapes
from search_spaces.fields import Reader, member, quantity, stated
from search_spaces.problem import Goal, Problem
from search_spaces.quantities import Kind

from .formula_search import solved_by_formula
from .judged import Judged, as_judged, judged, with_simulation
from .level import Brake, Level
from .near_fleets import with_near_fleets
from .nearest_miss import Held, Miss, Solve, by_formula, describe_miss, without_a_limit
from .precision import precision_savings
from .proven import Solved, proven
from .safe import safe_fleet
from .tuning import wish_of

Progress = Callable[[str, float], None]

BY_FORMULA = 0.5
"""Of the time left, the share in which fleets are found by formula where they are simulated too [1]."""

AGAIN = 0.25
"""Of the time left, the share that a repair by search, or a search beside the plan's, may take [1]."""

UNPROVEN = "The time was up before this fleet was simulated: that it meets the SLOs is by formula alone."
"""The warning of a plan by formula that should have been simulated."""

UNCONFIRMED = "The search was stopped before fresh requests confirmed this fleet: it held on those it was chosen by."
"""The warning of a plan whose fleet was simulated, but not once more."""


@dataclass(slots=True)
class Stopwatch:
    """Time of each stage by the clock and of the processor [s]."""

    progress: Progress | None
    timings: dict[str, float]
    started: float
    cpu: dict[str, float] = field(default_factory=dict)
    cpu_started: float = field(default_factory=time.process_time)

    def stage(self, label: str, fraction: float) -> None:
        """Report that a stage begins and book the time of the one before."""
        now, cpu_now = time.perf_counter(), time.process_time()
        if self.timings:
            last = next(reversed(self.timings))
            self.timings[last] = round(now - self.started, 4)
            self.cpu[last] = round(cpu_now - self.cpu_started, 4)
        self.timings[label] = 0.0
        self.started, self.cpu_started = now, cpu_now
        if self.progress is not None:
            self.progress(label, fraction)


def optimize(
    problem: Problem,
    progress: Progress | None = None,
    time_limit: float | str = 600.0,
    *,
    level: Level | str = Level.STANDARD,
    brake: Brake | None = None,
    tune: Wish | None = None,
    extras: bool = True,
) -> Plan:
    """Find the best fleet for a problem.

    progress is called with a label and the fraction done; time_limit is what all of it may take [s], or a text such as
    "90s"; work is limited besides, so that a plan does not depend on it where it is generous.
    level: whether the fleet is proven by simulation, also by its name, as --effort has it; brake: armed once a fleet is
    proven, and pulled to be content.
    tune: how the fleet is tuned; at the highest effort it always is.
    extras: whether a plan of least cost that is simulated also states the cheapest fleet that survives slow GPUs, and
    what narrower precisions save.
    Raises InputError for another level or time limit and when the model fits on no engine of the space,
    BelowFloorError when physics forbids an SLO.
    Where no fleet is found, or none is possible, the plan says what is in the way (`Status`).
    """
    asked: Level = _option("level", member(Level), level)
    seconds: float = _option("time_limit", quantity(Kind.DURATION, TIME_LIMIT), time_limit)
    tune = wish_of(problem, asked, tune)
    if asked is not Level.QUICK:  # before the clock starts: it is compiled once on a machine, not once for a plan
        prepare(None if progress is None else lambda text: progress(text, 0.0))
    watch = Stopwatch(progress, {}, time.perf_counter())
    until = watch.started + seconds
    watch.stage("pricing engines", 0.05)
    check_shapes(problem, enumerate_shapes(problem))
    expected = make_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
    check_floors(expected)
    deadline, brake = Deadline(until), brake or Brake()
    brake.until = until
    first = deadline if asked is Level.QUICK else deadline.part(BY_FORMULA)
    known = at_best_split(at_quantile(expected, slow_end(problem.confidence)), first.late)
    solved = solved_by_formula(known, first, watch.stage)
    origin = provenance(known.instance, solved.size, RunInfo(created=_now(), command="", timings_s={}))
    plan = _plan(Wanted(expected, origin, asked, deadline, brake, watch.stage, tune, extras), solved)
    if asked is not Level.QUICK:
        plan = as_unconfirmed(plan)
    watch.stage("done", 1.0)
    timings = {label: seconds for label, seconds in watch.timings.items() if label != "done"}
    run = origin.run.model_copy(update={"timings_s": timings, "cpu_s": dict(watch.cpu)})
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"run": run})})


def _option(name: str, reader: Reader, value: object) -> Any:
    """An option as the command line reads it; InputError, which names the option, for what that refuses."""
    try:
        return stated(reader, value)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan is made with; expected: the instance with expected step times; told: when a stage begins."""

    expected: Instance
    origin: Provenance
    level: Level
    deadline: Deadline
    brake: Brake
    told: Progress
    tune: Wish | None = None
    extras: bool = True


def _plan(wanted: Wanted, solved: Solved) -> Plan:
    """The plan of what the search found, proven by simulation where that is wanted, or of what is in the way."""
    explain = without_a_limit if solved.fleet.pools else describe_miss
    if solved.fleet.pools and wanted.level is Level.QUICK:
        return _written(wanted, solved, [rival.row for rival in solved.rivals], [])
    if not solved.fleet.pools and solved.proof.status is not Status.INFEASIBLE:
        solved = with_near_fleets(solved, wanted.brake.stopped)
    if not solved.fleet.pools:
        return _in_the_way(wanted, solved, describe_miss(solved.instance, solver_of(wanted), wanted.brake.stopped))
    answer = judged(solved, wanted.level, wanted.brake, wanted.told, tune=wanted.tune)
    if answer.winner is not None:
        return _judged_plan(wanted, solved, answer)
    if answer.fleet.pools:  # the best by formula that no simulation refuted before the time was up
        shown = replace(solved, fleet=answer.fleet, proof=answer.proof, volume=answer.volume)
        return _written(wanted, shown, answer.rows, [])
    miss = explain(solved.instance, solver_of(wanted), wanted.brake.stopped) or Miss([], [])
    nothing = replace(solved, fleet=Fleet(()), proof=replace(solved.proof, status=Status.TIME_LIMIT, gap=None))
    rows, shortfalls = [*miss.rows, *answer.rows], miss.shortfalls or answer.shortfalls
    return _in_the_way(wanted, nothing, replace(miss, rows=rows, shortfalls=shortfalls))


def _in_the_way(wanted: Wanted, solved: Solved, miss: Miss) -> Plan:
    """The plan without a fleet; or of the one that the search for the nearest miss came by, which keeps every limit."""
    held = miss.kept
    if held is None:
        return _written(wanted, solved, miss.rows, miss.shortfalls)
    instance = replace(held.instance, problem=solved.instance.problem)
    expected = make_instance(held.instance.problem, instance.overhead)
    cost = fleet_cost(instance, held.fleet)
    proof = proof_of_judged(solved.proof.few_pools, solved.proof.floor, cost)
    found = replace(solved, instance=instance, fleet=held.fleet, proof=proof, volume=1.0, rivals=())
    wanted = replace(wanted, expected=expected)
    if held.verdict is None:
        return _written(wanted, found, [recommended(instance, held.fleet, proof, 1.0)], [])
    return _judged_plan(wanted, found, as_judged(found, replace(held.verdict, cost=cost), wanted.level, wanted.brake))


def as_unconfirmed(plan: Plan) -> Plan:
    """The plan with nothing called optimal that was to be confirmed by simulation and was not: fleet, alternatives."""
    rows = [
        row.model_copy(update={"status": Status.FEASIBLE})
        if row.status is Status.OPTIMAL and not row.simulated
        else row
        for row in plan.alternatives
    ]
    changes: dict[str, Any] = {"alternatives": rows}
    if plan.pools and (plan.simulation is None or not plan.simulation.confirmation):
        warning = UNPROVEN if plan.simulation is None else UNCONFIRMED
        changes |= {"status": Status.FEASIBLE, "warnings": [*plan.warnings, warning]}
    return plan.model_copy(update=changes)


def _judged_plan(wanted: Wanted, solved: Solved, answer: Judged) -> Plan:
    """The plan of a fleet that was proven by simulation."""
    shown = replace(solved, fleet=answer.fleet, proof=answer.proof, volume=answer.volume)
    plan = _written(wanted, shown, answer.rows, answer.shortfalls)
    plan = with_simulation(answer, plan, wanted.brake, wanted.told)
    least_cost = solved.instance.problem.objective.goal is Goal.MIN_COST
    return _with_extras(wanted, solved, answer, plan) if wanted.extras and least_cost else plan


def _with_extras(wanted: Wanted, solved: Solved, answer: Judged, plan: Plan) -> Plan:
    """The plan with the fleet that survives slow GPUs, and with what narrower precisions save."""
    changes: dict[str, Any] = {}
    if solved.instance.problem.confidence == 0.0:
        wanted.told("searching a safe fleet", 0.93)
        late = wanted.deadline.part(AGAIN).late
        changes["safe"] = safe_fleet(answer.bench.instance, answer.fleet, late, wanted.brake)
    wanted.told("searching other precisions", 0.97)
    ends, base = wanted.deadline.part(AGAIN), fleet_cost(solved.instance, solved.fleet)
    savings = precision_savings(solved.instance, base, lambda: ends.late() or wanted.brake.stopped())
    return plan.model_copy(update=changes | {"precision": savings})


def solver_of(wanted: Wanted) -> Solve:
    """Finds the cheapest fleet of another instance: by formula, and proven by simulation where that is wanted."""

    def solve(instance: Instance) -> Held | None:
        late = wanted.brake.stopped
        if late() or by_formula(instance, late) is None:
            return None
        solved = solved_by_formula(at_best_split(instance, late), wanted.deadline, _untold)
        if not solved.fleet.pools:
            return None
        bench = make_bench(solved.instance, late=late)
        _, lean, _ = proven(solved, bench, wanted.brake, _untold)
        return None if lean is None else Held(solved.instance, lean.winner.fleet, lean.winner)

    def formula(instance: Instance) -> Held | None:
        return by_formula(instance, wanted.brake.stopped)

    return formula if wanted.level is Level.QUICK else solve


def _untold(label: str, fraction: float) -> None:
    """The stages of a search within a stage are not told."""


def _written(wanted: Wanted, solved: Solved, rows: list[Alternative], shortfalls: list[Binding]) -> Plan:
    """The plan file of a fleet, by formula."""
    instance, fleet, volume = solved.instance, solved.fleet, solved.volume
    bars = class_error_bars(replace(instance, tables=wanted.expected.tables), fleet, volume) if fleet.pools else []
    return build_plan(
        instance,
        fleet,
        bars=bars,
        proof=solved.proof,
        volume=volume,
        alternatives=rows,
        shortfalls=shortfalls,
        origin=wanted.origin,
    )
