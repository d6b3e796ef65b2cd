"""`optimize`: from a problem to a plan.

1. The cost model fills the engine table, and fleets are searched by formula.
2. The best fleets are simulated until one holds that fresh requests confirm; so is the best under each restriction.
3. The plan adds what a safe fleet costs and what narrower precisions would save, or why no fleet holds.

A GPU type or a role should lose on its merits, not through an error of the formulas or a shorter search. So the fleet
of each restriction comes from the plan's own search (`Loop`) among the engines that the restriction allows; all these
searches share their simulations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from costmodel.errors import value_of
from costmodel.simulator.run import prepare
from costmodel.words import dollars, join_words
from optimizer.fleets.build_plan import binding, build_plan, provenance
from optimizer.fleets.evaluate import holds_at
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.effort import Brake, Effort, Level, Progress, Wish, silent
from optimizer.loads.instance import Instance, as_planned, make_instance
from optimizer.plans.plan import Alternative, Plan, Proof, Provenance, RunInfo, Status, proof_of_judged
from optimizer.plans.records import ROUNDING
from optimizer.search.bound import floors, possible_instance
from optimizer.search.search import evaluated
from optimizer.verification.bench import Bench, Verdict, make_bench, miss_words
from optimizer.verification.record import as_simulated
from optimizer.verification.verify import CANDIDATE, Loop, SearchResult, with_one_replica_less
from search_spaces.bounds import TIME_LIMIT
from search_spaces.fields import Reader, choice, quantity
from search_spaces.problem import Goal, Problem
from search_spaces.quantities import Kind

from .changed_problem import (
    Miss,
    Solution,
    describe_impossible,
    describe_miss,
    nearest_simulated,
    nearly_by_formula,
    precision_savings,
    price_words,
    safe_fleet,
    safe_record,
    safe_row,
    stated_limits,
    tier_warnings,
    without_a_limit,
)
from .search import (
    STAGES,
    FormulaResult,
    Restriction,
    Rival,
    cheaper_fleets,
    proof_of,
    search_by_formula,
    search_summary,
    simulated,
    wish_of,
    with_comparison,
)

UNPROVEN: Final = "The time was up before this fleet was simulated: that it meets the SLOs is by formula alone."
"""Warning: the plan is by formula, though a simulation was asked for."""

UNCONFIRMED: Final = (
    "The search was stopped before this fleet was confirmed on fresh requests: it may have been lucky on the others."
)
"""Warning: the plan's fleet was simulated, but not confirmed on fresh requests."""

UNSIMULATED_SESSIONS: Final = (
    "Not simulated: for sessions, formulas put the share of requests within the SLO up to 2 points too high or up to 9 "
    "points too low."
)
"""Warning: the plan is by formula, for sessions; docs/appendix/verification.md has the measured error of six plans."""

OUT_OF_TIME: Final = "The time limit stopped the search: with more time the answer may be another."
"""Warning: the plan depends on the speed of this machine."""


NOT_CONFIRMED: Final = "; not confirmed by simulation: the time was up"
"""Note on a rival that was not confirmed on fresh requests."""


@dataclass(slots=True)
class Stopwatch:
    """Time of each stage by the clock and of the processor [s]."""

    progress: Progress | None
    timings: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    cpu_started: float = field(default_factory=time.process_time)

    def stage(self, label: str) -> None:
        """Report that one of the STAGES begins, and record the time of the previous one."""
        now, cpu_now = time.perf_counter(), time.process_time()
        if self.timings:
            last = next(reversed(self.timings))
            self.timings[last] = round(now - self.started, 4)
            self.cpu[last] = round(cpu_now - self.cpu_started, 4)
        self.timings[label] = 0.0
        self.started, self.cpu_started = now, cpu_now
        if self.progress is not None:
            self.progress(label, STAGES.index(label) / (len(STAGES) - 1))


def optimize(
    problem: Problem,
    progress: Progress | None = None,
    time_limit: float | str | None = None,
    *,
    level: Level | str = Level.STANDARD,
    brake: Brake | None = None,
    tune: Wish | None = None,
    extras: bool = True,
) -> Plan:
    """Find the best fleet for a problem.

    progress is called with a label and the fraction done; time_limit is what the whole search may take [s], or a text
    such as "90s"; where it stops the search, the plan's warnings say so. level: how much is simulated, also by its
    name, as --effort has it; brake: armed once a fleet is proven, and pulled to end the search with it; tune: how the
    fleet is tuned, which it always is at the highest effort; extras: whether the plan also states the cheapest fleet
    that survives slow GPUs, and what narrower precisions save. Raises InputError for another level or time limit and
    when the model fits on no engine of the space, BelowFloorError when physics forbids an SLO. Where no fleet is found,
    or none is possible, the plan says what is in the way (`Status`).
    """
    effort_level: Level = _option("level", choice(*Level), level)
    seconds = math.inf if time_limit is None else _option("time_limit", quantity(Kind.DURATION, TIME_LIMIT), time_limit)
    tune = wish_of(problem, effort_level, tune)
    if (
        effort_level is not Level.QUICK
    ):  # before the clock starts: it is compiled once on a machine, not once for a plan
        prepare(None if progress is None else lambda text: progress(text, 0.0))
    watch, brake = Stopwatch(progress), brake or Brake()
    brake.until = watch.started + seconds
    effort = Effort(effort_level, brake, watch.stage, tune, extras)
    watch.stage("pricing engines")
    expected_instance = possible_instance(problem)
    first = brake if effort_level is Level.QUICK else brake.part(0.5)  # half of the time is for simulations
    space = evaluated(as_planned(expected_instance), first.late)
    result = with_comparison(search_by_formula(space, first, watch.stage), space, watch.stage)
    origin = origin_of(space.instance, search_summary(space))
    plan = _plan(origin, effort, result)
    if effort_level is not Level.QUICK:
        plan = as_unconfirmed(plan)
    plan = as_cut(plan, brake)
    watch.stage("done")
    timings = {label: seconds for label, seconds in watch.timings.items() if label != "done"}
    run = origin.run.model_copy(update={"timings_s": timings, "cpu_s": dict(watch.cpu)})
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"run": run})})


def _option(name: str, reader: Reader, value: object) -> Any:
    """Read an option as the command line does; an InputError names the option."""
    with value_of(name):
        return reader.read(value)


# --- the stages -----------------------------------------------------------------------------------------------------


def _plan(origin: Provenance, effort: Effort, result: FormulaResult) -> Plan:
    """The plan of the search by formula, confirmed by simulation if the effort asks for that."""
    explain = without_a_limit if result.rivals else describe_miss
    if result.rivals and effort.level is Level.QUICK:
        cost = fleet_cost(result.instance, result.fleet)
        plan = _formula_plan(origin, result, result.fleet)
        plan = _with_extras(plan, result.instance, result.fleet, cost, effort)
        doubts = [UNSIMULATED_SESSIONS] if result.instance.problem.workload.sessions is not None else []
        return plan.model_copy(update={"warnings": [*plan.warnings, *doubts]})
    impossible, goal = result.proof.status is Status.INFEASIBLE, result.instance.problem.objective.goal
    if not result.rivals and not impossible and goal is Goal.MIN_COST:  # the goal of others is the rate
        near = nearly_by_formula(result.instance, effort.brake.stopped)  # no formula says that there is none
        result = replace(result, rivals=tuple(Rival((fleet,)) for fleet in near))
    if not result.rivals:
        describe = describe_impossible if impossible else describe_miss
        return _without_fleet(origin, effort, result, describe(result.instance, effort))
    effort.report("simulating fleets")
    bench, best = simulated(result, effort)
    if best.winner is not None:
        return _confirmed_plan(origin, effort, result, bench, best, best.winner)
    if best.undecided is not None and holds_at(result.instance, best.undecided, result.volume):
        return _formula_plan(origin, result, best.undecided)
    nearest = Miss() if best.nearest is None else nearest_simulated(result.instance, best.nearest)
    miss = explain(result.instance, effort) or Miss()
    none = replace(result, rivals=(), proof=replace(result.proof, status=Status.TIME_LIMIT, gap=None))
    rows, shortfalls = [*miss.rows, *nearest.rows], miss.shortfalls or nearest.shortfalls
    return _without_fleet(origin, effort, none, Miss(rows, shortfalls, miss.kept))


def _confirmed_plan(  # noqa: PLR0917
    origin: Provenance, effort: Effort, result: FormulaResult, bench: Bench, best: SearchResult, winner: Verdict
) -> Plan:
    """The plan of the confirmed winner, with the best fleet under each restriction."""
    effort.brake.armed = True
    effort.report("simulating alternatives")
    rivals = list(judged_rivals(result, bench, winner, effort))
    best = with_cheaper_rival(best, rivals)
    if result.instance.problem.objective.goal is Goal.MIN_COST:
        best = with_one_replica_less(bench, best)
    winner = best.winner or winner
    proof = proof_of(result, winner, bench.volume, is_complete=best.complete)
    rows = comparison_rows(result.instance, winner.fleet, proof, rivals, volume=bench.volume, verdict=winner)
    plan = build_plan(result.instance, winner.fleet, proof, origin, bench.volume, rows)
    effort.report("simulating other rates")
    plan = as_simulated(bench, plan, winner, best)
    cheaper = cheaper_fleets(result.space, proof, winner.cost, bench) if best.complete else None
    plan = plan.model_copy(update={"cheaper_fleets": cheaper})
    return _with_extras(plan, bench.instance, winner.fleet, fleet_cost(result.instance, result.fleet), effort)


def _with_extras(plan: Plan, instance: Instance, fleet: Fleet, by_formula_cost: float, effort: Effort) -> Plan:
    """The plan of least cost with the fleet that survives slow GPUs, and with what narrower precisions would save.

    The lowest effort does not look for the latter.
    """
    if not effort.extras or instance.problem.objective.goal is not Goal.MIN_COST:
        return plan
    changes: dict[str, Any] = {}
    if instance.problem.confidence == 0.0:
        effort.report("searching for a fleet that survives slow GPUs")
        own, survivor = safe_fleet(instance, fleet, effort)
        if own is not None:
            changes["safe"] = safe_record(instance, own, survivor)
        if survivor is not None and survivor is not own:
            best, *rows = plan.alternatives
            row = safe_row(instance, survivor, plan.cost_usd_per_hour or 0.0)
            changes["alternatives"] = [best, *sorted((*rows, row), key=_price_order)]
    if effort.level is not Level.QUICK:
        effort.report("searching other precisions")
        changes["precision"] = precision_savings(instance, by_formula_cost, effort.brake.stopped)
    changes["warnings"] = plan.warnings + tier_warnings(instance, by_formula_cost, effort.brake.stopped)
    return plan.model_copy(update=changes)


def _formula_plan(origin: Provenance, result: FormulaResult, fleet: Fleet) -> Plan:
    """The plan by formula of the best fleet, or of the best that no simulation refuted before the time was up."""
    instance, cost, proof = result.instance, fleet_cost(result.instance, fleet), result.proof
    if fleet is not result.fleet:
        proof = proof_of_judged(proof.few_pools, proof.floor, cost)
    rivals = [rival for rival in result.rivals[1:] if rival.cost(instance) >= cost * (1.0 - ROUNDING)]
    rows = comparison_rows(instance, fleet, proof, rivals, volume=result.volume)
    plan = build_plan(instance, fleet, proof, origin, result.volume, rows)
    is_complete = proof.few_pools is not None and cost <= proof.few_pools * (1.0 + ROUNDING)
    return plan.model_copy(
        update={"cheaper_fleets": cheaper_fleets(result.space, proof, cost) if is_complete else None}
    )


def _without_fleet(origin: Provenance, effort: Effort, result: FormulaResult, miss: Miss) -> Plan:
    """The plan without a fleet, or with one that the search for the nearest miss found to be within every limit."""
    if miss.kept is None:
        return build_plan(result.instance, Fleet(()), result.proof, origin, result.volume, miss.rows, miss.shortfalls)
    solution = miss.kept
    instance = replace(solution.instance, problem=result.instance.problem)
    cost = fleet_cost(instance, solution.fleet)
    proof = proof_of_judged(result.proof.few_pools, result.proof.floor, cost)
    rows = comparison_rows(instance, solution.fleet, proof, verdict=solution.verdict)
    plan = build_plan(instance, solution.fleet, proof, origin, alternatives=rows)
    if solution.verdict is not None:
        winner = replace(solution.verdict, cost=cost)
        effort.report("simulating other rates")
        plan = as_simulated(make_bench(instance, late=effort.brake.stopped), plan, winner, SearchResult(winner))
    return _with_extras(plan, instance, solution.fleet, cost, effort)


def as_cut(plan: Plan, brake: Brake) -> Plan:
    """The plan, with a warning if the time limit stopped a search for it."""
    if not brake.passed or OUT_OF_TIME in plan.warnings:
        return plan
    return plan.model_copy(update={"warnings": [*plan.warnings, OUT_OF_TIME]})


def as_unconfirmed(plan: Plan) -> Plan:
    """The plan, whose fleet and alternatives are not called optimal where a confirmation was due and did not happen."""
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


def origin_of(instance: Instance, size: dict[str, Any]) -> Provenance:
    """The provenance of a plan that is made now; size: of the search."""
    timestamp = datetime.now(tz=UTC).isoformat(timespec="seconds")
    return provenance(instance, size, RunInfo(created=timestamp, command="", timings_s={}))


def plan_below_floor(problem: Problem) -> Plan:
    """The infeasible plan of a problem with limits below their floors; nothing is searched.

    It is for programs, which expect a plan whenever the input is valid.
    """
    instance = make_instance(problem)
    rows = []
    for floor in floors(instance):
        if floor.broken:
            name, sentence = instance.problem.slos[floor.k].name, f"{floor.metric.upper()}: {floor.why}."
            rows.append(binding(floor.metric, name, floor.least, floor.limit, "s", sentence))
    shortfalls = sorted(rows, key=lambda row: row.slack)
    nothing = Proof(Status.INFEASIBLE, None, None)
    return build_plan(instance, Fleet(()), nothing, origin_of(instance, {}), 0.0, shortfalls=shortfalls)


# --- rivals ---------------------------------------------------------------------------------------------------------


def judged_rivals(result: FormulaResult, bench: Bench, winner: Verdict, effort: Effort) -> Iterator[Rival]:
    """The rivals of the winner; those whose restriction excludes it have the result of their own search.

    A search under a restriction may find a cheaper fleet that the free search missed, and that becomes the plan. So it
    is confirmed as if the free search had found it: the count goes on, and there are as many runs.
    """
    for rival in result.rivals[1:]:
        restriction = rival.restriction
        if restriction is None or restriction.allows(winner.fleet):
            yield rival
            continue
        fleets = [fleet for fleet in (*result.best, *rival.fleets) if restriction.allows(fleet)]
        fleets = fleets or nearly_by_formula(bench.instance, bench.late, restriction.usable)
        quiet = replace(effort, report=silent)
        space = evaluated(bench.instance, bench.late, restriction.usable)
        search = Loop(bench, fleets, space).confirmed(quiet, winner)
        yield replace(rival, search=search)


def with_cheaper_rival(best: SearchResult, rivals: Iterable[Rival]) -> SearchResult:
    """The result with the fleet of the cheapest rival, if that costs less than the winner."""
    winners = [rival.search.winner for rival in rivals if rival.search is not None]
    cheapest = min(filter(None, winners), key=lambda verdict: verdict.cost, default=None)
    if cheapest is None or best.winner is None or cheapest.cost >= best.winner.cost * (1.0 - ROUNDING):
        return best
    return replace(best, winner=cheapest)


def comparison_rows(
    instance: Instance,
    fleet: Fleet,
    proof: Proof,
    rivals: Sequence[Rival] = (),
    *,
    volume: float = 1.0,
    verdict: Verdict | None = None,
) -> list[Alternative]:
    """The row of the plan's fleet first, then the best under each restriction by price, simulated as far as possible.

    verdict: on the plan's fleet, None by formula.
    """
    best = Solution(instance, fleet, verdict).row("recommended", "recommended", "", proof=proof, volume=volume)
    cost = fleet_cost(instance, fleet)
    rows = [
        best.model_copy(
            update={
                "kind": rival.restriction.kind,
                "label": rival.restriction.label,
                "why_not": price_words(cost, cost),
            }
        )
        if rival.restriction.allows(fleet)
        else _rival_row(instance, rival, rival.restriction, cost)
        for rival in rivals
        if rival.restriction is not None
    ]
    return [best, *sorted(rows, key=_price_order)]


def _price_order(row: Alternative) -> tuple[bool, float, str]:
    """Sort key: by price, rows without a fleet last."""
    return row.cost_usd_per_hour is None, row.cost_usd_per_hour or 0.0, row.label


def _rival_row(instance: Instance, rival: Rival, limit: Restriction, best: float) -> Alternative:
    """The row of a restriction that excludes the plan's fleet; best: the plan's cost [$/h]."""
    heading, search = (limit.kind, limit.label), rival.search
    verdict = None if search is None else search.winner
    if search is not None and verdict is None and search.undecided is None:
        first = next((tried for label, tried in search.others if label == CANDIDATE), search.nearest)
        if first is not None:
            cheapest = "the cheapest found by formula"
            if not rival.fleet.pools:
                names = [name for name, _ in stated_limits(instance.problem)]
                within = f" within the limits on {join_words(names)}" if names else ""
                cheapest = f"none was found by formula{within}; the nearest"
            reason = f"{cheapest} ({dollars(first.cost)}/h) {miss_words(first)}"
            return _row_without_fleet(heading, Status.TIME_LIMIT, reason).model_copy(update={"simulated": True})
    if verdict is None and not rival.fleet.pools:
        return _row_without_fleet(heading, Status.INFEASIBLE if rival.impossible else Status.TIME_LIMIT, rival.why_none)
    cost = rival.cost(instance) if verdict is None else verdict.cost
    why_not = price_words(cost, best)
    row = Solution(instance, rival.fleet if verdict is None else verdict.fleet, verdict).row(*heading, why_not)
    in_time = search is None or row.confirmation > 0
    return row if in_time else row.model_copy(update={"why_not": f"{why_not}{NOT_CONFIRMED}"})


def _row_without_fleet(heading: tuple[str, str], status: Status, why_not: str) -> Alternative:
    """The row of a restriction under which no fleet was found."""
    nothing = dict.fromkeys(("cost_usd_per_hour", "bound_usd_per_hour", "gap", "attainment"))
    kind, label = heading
    return Alternative(kind=kind, label=label, status=status, pools=[], why_not=why_not, **nothing)
