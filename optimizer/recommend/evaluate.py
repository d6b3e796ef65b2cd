"""`evaluate`: a stated fleet, judged as a plan is: what it lacks or has to spare, and the cheapest fleet beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.engine import Role
from costmodel.errors import BelowFloorError, InputError, shown, value_of
from costmodel.simulator.run import prepare
from optimizer.fleets.build_plan import (
    build_plan,
    fleet_of_plan,
    planned_volume,
    pool_of_record,
    pools_of_records,
    problem_of_plan,
    routes_of,
    with_latencies,
)
from optimizer.fleets.fleet import (
    Fleet,
    FleetPool,
    can_hand_over,
    fewest_replicas,
    fleet_cost,
    largest_load,
    shared_out,
    with_names,
)
from optimizer.fleets.pool import pool_state
from optimizer.loads.effort import Level, Progress, silent
from optimizer.loads.instance import Instance, as_planned, planned_instance
from optimizer.plans.plan import Alternative, FleetEvaluation, Plan, Proof, Provenance, Status
from optimizer.plans.records import HALVINGS, EnginePool, JudgedFleet, PoolNeed, Provisioning
from optimizer.verification.bench import Bench, Verdict, confirmed, make_bench, sure_verdict
from optimizer.verification.judge import Judgement
from optimizer.verification.record import as_simulated, judged_fleet
from optimizer.verification.verify import SearchResult
from search_spaces.buying_terms import HOURS_PER_MONTH
from search_spaces.fields import choice
from search_spaces.files import Source
from search_spaces.fleet_file import StatedFleet, StatedPool
from search_spaces.problem import Goal, Problem

from .optimize import optimize, origin_of


def evaluate_fleet(
    fleet: StatedFleet | Plan,
    progress: Progress | None = None,
    *,
    level: Level | str | None = Level.STANDARD,
    base: Path | None = None,
) -> FleetEvaluation:
    """Evaluate a fleet that was stated, or that of a plan, as `optimize` evaluates the fleet of a plan.

    Its requests are those that confirm a plan, drawn with the problem's seed; of a plan those that confirmed it.
    progress is called with a label and the fraction done; level: effort of the search for the cheapest fleet, None for
    no search; base: folder from which files that a plan's problem names are looked up.
    Raises InputError for a fleet that does not serve all requests, or a plan without one.
    """
    effort: Level | None = None if level is None else choice(*Level).read(level)
    report = progress or silent
    prepare(lambda text: report(text, 0.0))
    subject = subject_of_plan(fleet, base) if isinstance(fleet, Plan) else subject_of(fleet)
    report("simulating the fleet", 0.0)
    bench = make_bench(subject.instance, subject.volume)
    verdict, judgement = _verdict(bench, subject, fleet if isinstance(fleet, Plan) else None)
    plan_verdict = replace(verdict, judgement=judgement)
    plan = as_simulated(bench, plan_of(subject), plan_verdict, SearchResult())
    report("simulating other replicas", 0.0)
    provisioning = _provisioning(bench, subject, verdict)
    report("simulating twice the rate", 0.0)
    twice = _provisioning(make_bench(subject.instance, 2.0 * subject.volume), subject)
    cheapest, why = (None, "") if effort is None else _cheapest(subject, effort, report)
    cost = fleet_cost(subject.instance, subject.fleet)
    cheapest_cost = None if cheapest is None else cheapest.cost_usd_per_hour
    return FleetEvaluation(
        outcome=verdict.outcome,
        stuck=verdict.stuck,
        replayed=verdict.replayed,
        near_capacity=verdict.near_capacity,
        plan=plan,
        usd_per_month=cost * HOURS_PER_MONTH,
        provisioning=provisioning,
        twice=twice,
        cheapest=cheapest,
        saving_usd_per_hour=None if cheapest_cost is None else cost - cheapest_cost,
        no_cheapest=why,
    )


def _verdict(bench: Bench, subject: Subject, plan: Plan | None) -> tuple[Verdict, Judgement]:
    """The verdict on a fleet by the requests that confirm a plan, and the judgement of their runs.

    plan: the plan, or alternative, whose fleet it is, if any: then the same requests are used that confirmed it.
    """
    candidate, simulation = bench.verdict(subject.fleet), None if plan is None else plan.simulation
    if simulation is not None and simulation.confirmation:
        return confirmed(bench, candidate, simulation.confirmation, runs=simulation.replications)
    own_rows = [] if plan is None else plan.alternatives[:1]
    return confirmed(bench, candidate, max([1, *(row.confirmation for row in own_rows)]))


def _cheapest(subject: Subject, level: Level, report: Progress) -> tuple[Plan | None, str]:
    """The plan of the cheapest fleet found, or the reason why physics forbids one."""
    report("searching the cheapest fleet", 0.0)
    try:
        return optimize(subject.wanted, report, level=level), ""
    except BelowFloorError as error:
        return None, str(error)


# --- the fewest replicas --------------------------------------------------------------------------------------------


def _provisioning(bench: Bench, subject: Subject, own: Verdict | None = None) -> Provisioning:
    """The fewest replicas of each pool with which the fleet meets every SLO at the rate of the bench.

    Replicas are doubled until it does, HALVINGS times at most (beyond that engines lack speed), and at twice the rate
    once more; then taken from one pool after the other, the dearest first, by bisection, until none can spare any.
    The spares that the workload asks for come on top, unless they are idle in the fleet already.
    own: the verdict on the fleet as it is.
    """
    pools = subject.fleet.pools
    start = tuple(pool.replicas for pool in pools)
    doublings = HALVINGS + math.ceil(math.log2(bench.volume / subject.volume))

    def verdict(counts: tuple[int, ...]) -> Verdict:
        return own if own is not None and counts == start else sure_verdict(bench, subject.resize(counts))

    def holds(counts: tuple[int, ...]) -> bool:
        try:
            return verdict(counts).held
        except InputError:  # without a pool that only this one can replace
            return False

    def judged(label: str, counts: tuple[int, ...]) -> JudgedFleet:
        return judged_fleet(subject.instance, label, verdict(counts))

    more = (tuple(count * 2**times for count in start) for times in range(doublings + 1))
    enough = next((counts for counts in more if verdict(counts).held), ())
    prices = [float(subject.instance.tables.usd_per_hour[pool.shape]) for pool in pools]
    needed_replicas, before = enough, tuple[int, ...]()
    while needed_replicas != before:
        before = needed_replicas
        needed_replicas = fewest_replicas(before, prices, holds, subject.least)
    spares = subject.instance.problem.constraints.spare_replicas
    bought = tuple(
        count and count + max(spares - pool.spares, 0) for pool, count in zip(pools, needed_replicas, strict=False)
    )
    less = [(pool.name, index) for index, pool in enumerate(pools) if needed_replicas and needed_replicas[index] > 1]
    return Provisioning(
        rate_rps=subject.instance.problem.workload.request_rate * bench.volume,
        stated=judged("as stated", start),
        pools=[
            PoolNeed(pool=pool.name, replicas=pool.replicas, needed=count)
            for pool, count in zip(pools, bought, strict=False)
        ],
        cost_usd_per_hour=fleet_cost(subject.instance, subject.resize(bought)) if bought else None,
        one_replica_fewer=[
            judged(
                f"{name}: one replica fewer",
                tuple(count - (index == at) for index, count in enumerate(needed_replicas)),
            )
            for name, at in less
        ],
        judged=len(bench.verdicts),
        most=2.0**doublings,
    )


# --- what is evaluated ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subject:
    """A fleet to evaluate.

    resize: the same fleet with other replicas, routed as it would be (InputError: requests are left that no pool
    serves); wanted: the problem whose cheapest fleet is set beside it; volume: multiple of the demand that it serves;
    least: fewest replicas of a pool; 0: it can do without the pool.
    """

    instance: Instance
    fleet: Fleet
    resize: Callable[[tuple[int, ...]], Fleet]
    wanted: Problem
    name: str
    volume: float = 1.0
    least: int = 1


def subject_of(stated_fleet: StatedFleet) -> Subject:
    """The subject of a fleet file: each flow is split over pools that may serve it, in proportion to capacity.

    Raises InputError for requests that no pool serves, and for pools that cannot hand over their requests.
    """
    instance = planned_instance(stated_fleet.problem)
    masks = [_served(instance, pool) for pool in stated_fleet.pools.values()]
    records = {name: _record_of(pool) for name, pool in stated_fleet.pools.items()}

    def resize(replicas: tuple[int, ...]) -> Fleet:
        rows = [row for row in zip(records.items(), replicas, masks, strict=True) if row[1]]
        pools = [pool_of_record(instance, record, name, count, mask) for (name, record), count, mask in rows]
        _check_served(instance, stated_fleet.source, pools)
        fleet = routed(instance, pools)
        if not can_hand_over(instance, fleet):
            fault = "the prefill pools cannot hand all their requests over to the decode pools"
            raise stated_fleet.source.error(fault, ("pools",))
        return fleet

    fleet = resize(tuple(pool.replicas for pool in stated_fleet.pools.values()))
    return Subject(instance, fleet, resize, stated_fleet.wanted, stated_fleet.name, least=0)


def subject_of_plan(plan: Plan, base: Path | None = None) -> Subject:
    """The fleet of a plan with its spares, routed as the plan has it; base: see `problem_of_plan`."""
    expected_instance, serving = fleet_of_plan(plan, base)
    instance = as_planned(expected_instance)
    spares = {pool.id: pool.spare_replicas for pool in plan.pools}
    fleet = Fleet(tuple(replace(pool, spares=spares[pool.name]) for pool in serving.pools))
    problem = instance.problem
    volume = 1.0 if problem.objective.goal is Goal.MIN_COST else planned_volume(plan)
    return Subject(instance, fleet, fleet.resized, problem, plan.name, volume)


def plan_of_alternative(plan: Plan, row: Alternative, base: Path | None = None) -> Plan:
    """The plan of an alternative's fleet for the same problem, with the latencies that its row has simulated.

    All else is by formula; its only alternative is that fleet itself. Where the row states no routing, requests are
    split over the pools of a role in proportion to their capacity, as `subject_of` does; base: see `problem_of_plan`.
    Raises InputError for a row without a fleet, or with settings or a routing that do not fit the plan's problem.
    """
    if not row.pools:
        raise InputError(f"the alternative {shown(row.label)} has no fleet: {row.why_not or row.status}")
    problem = problem_of_plan(plan, base)
    instance = planned_instance(problem)
    with value_of(f"the alternative {shown(row.label)}"):
        routes = routes_of(instance, row.pools, row.routes)
    if any(None in (pool.weight_dtype, pool.kv_dtype, pool.max_num_seqs) for pool in row.pools):
        raise InputError("this plan is of an earlier version, which did not state the settings of alternatives")
    pools = pools_of_records(instance, row.pools, routes)
    fleet = Fleet(with_names(instance, pools if row.routes else list(routed(instance, pools).pools)))
    if not can_hand_over(instance, fleet):
        raise InputError(f"the alternative {shown(row.label)}: its pools cannot hand all requests over to one another")
    chosen = plan_of(Subject(instance, fleet, fleet.resized, problem, f"{plan.name}: {row.label}"), plan.provenance)
    if row.latencies:
        chosen = with_latencies(chosen, row.latencies).model_copy(update={"attainment": row.attainment})
    own = row.model_copy(update={"kind": "recommended", "label": "recommended", "why_not": ""})
    return chosen.model_copy(update={"alternatives": [own]})


def _record_of(pool: StatedPool) -> EnginePool:
    """A stated pool as every record of a fleet has it."""
    settings = pool.model_dump(include=set(EnginePool.model_fields)) | {"role": pool.role.value}
    nothing = dict.fromkeys(("max_model_len", "memory_fraction", "usd_per_hour"))
    return EnginePool(**settings, **nothing, gpus=pool.replicas * pool.parallelism.gpus)


def _served(instance: Instance, pool: StatedPool) -> FloatArray:
    """1 for each flow that a pool may serve, else 0, (flows,)."""
    flows, names = instance.flows, [slo.name for slo in instance.problem.slos]
    classes = [names.index(name) for name in pool.slo_classes or names]
    low, high = pool.isl.low or 0, np.inf if pool.isl.high is None else pool.isl.high
    return np.asarray(np.isin(flows.slo, classes) & (flows.isl >= low) & (flows.isl < high), dtype=np.float64)


def _check_served(instance: Instance, source: Source, pools: list[FleetPool]) -> None:
    """Raise InputError for requests whose prompt no pool computes, or whose tokens none generates.

    The route of each pool, (flows,), is 1 for flows that it may serve, else 0; source: the file of the fleet.
    """
    flows, nothing = instance.flows, np.zeros(instance.flows.isl.size)
    colocated, prefill, decode = (
        sum((pool.route for pool in pools if pool.role is role), nothing)
        for role in (Role.COLOCATED, Role.PREFILL, Role.DECODE)
    )
    for fault, lost_flows in (
        ("no pool computes the prompts", (colocated == 0.0) & (prefill == 0.0)),
        ("no decode pool takes the requests", (prefill > 0.0) & (decode == 0.0)),
    ):
        if lost_flows.any():
            flow = int(np.argmax(lost_flows))
            slo = instance.problem.slos[int(flows.slo[flow])].name
            requests = f"{fault} of class {slo} with an ISL of {flows.isl[flow]:,.0f}"
            raise source.error(f"{requests}; widen slo_classes or isl of a pool", ("pools",))


def routed(instance: Instance, pools: list[FleetPool]) -> Fleet:
    """Split each flow over the pools of a stage that may serve it, in proportion to their capacity.

    The route of each pool given, (flows,), is 1 for flows that it may serve, else 0.
    """
    roles = {pool.role for pool in pools}
    alone = len(roles) == len(pools) and not {Role.PREFILL, Role.COLOCATED} <= roles

    def capacity(pool: FleetPool) -> float:
        """Requests that a pool keeps up with, of those that it may get, by formula [1/s]; never nothing."""
        load = largest_load(lambda load: pool_state(instance, pool, load).stable)
        return max(float(instance.flows.rate @ pool.route) * load, 1e-9)

    return shared_out(pools, [pool.route * (1.0 if alone else capacity(pool)) for pool in pools])


def plan_of(subject: Subject, origin: Provenance | None = None) -> Plan:
    """The plan by formula of a stated fleet; it makes no claim about other fleets."""
    origin = origin or origin_of(subject.instance, {})
    plan = build_plan(subject.instance, subject.fleet, Proof(Status.STATED, None, None), origin, subject.volume)
    return plan.model_copy(update={"name": subject.name})
