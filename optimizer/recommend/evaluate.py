"""`evaluate`: a fleet that runs today, judged as a plan is, with what it lacks or has to spare and the cheapest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from costmodel.errors import BelowFloorError
from costmodel.simulator import prepare
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.plans.evaluation import FleetEvaluation, PoolNeed, Provisioning
from optimizer.plans.plan import Plan, Status
from optimizer.plans.plan_simulation import JudgedFleet
from optimizer.plans.proof import Proof
from optimizer.verification.bench import REPLICATIONS, Bench, Verdict, make_bench
from optimizer.verification.confirm import MOST_BETWEEN, confirmed, on_fresh_requests
from optimizer.verification.judge import Judgement, Outcome
from optimizer.verification.record import Trail, judged_fleet
from search_spaces.contracts import HOURS_PER_MONTH
from search_spaces.fields import member, stated
from search_spaces.fleet_file import StatedFleet

from .judged import Judged, with_simulation
from .level import Brake, Level
from .optimize import Progress, optimize
from .stated_fleet import Subject, plan_of, subject_of, subject_of_plan

RUNS = 2
"""Full runs that judge a fleet at least, as those that confirm a plan's."""
DOUBLINGS = 3
"""So often the replicas of a fleet that misses are doubled to find one that meets the SLOs; more of the same engines
would not help then: what they lack is speed."""
SEARCHED = 0.4
"""Share of the work that is done when the search begins [1]."""
TWICE = 2.0
"""Multiple of the demand that is looked at beside it [1]."""


def evaluate(
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
    effort: Level | None = None if level is None else stated(member(Level), level)
    report = _untold if progress is None else progress
    prepare(lambda text: report(text, 0.0))
    subject = subject_of_plan(fleet, base) if isinstance(fleet, Plan) else subject_of(fleet)
    report("simulating the fleet", 0.05)
    bench = make_bench(subject.instance, subject.volume)
    verdict, judgement = _verdict(bench, subject, fleet if isinstance(fleet, Plan) else None)
    plan = _record(bench, subject, replace(verdict, judgement=judgement))
    report("simulating other replicas", 0.2)
    needed = _provisioning(bench, subject, verdict)
    report("simulating twice the rate", 0.3)
    twice = _provisioning(make_bench(subject.instance, TWICE * subject.volume), subject)
    cheapest, why = (None, "") if effort is None else _cheapest(subject, effort, report)
    cost = fleet_cost(subject.instance, subject.fleet)
    other = None if cheapest is None else cheapest.cost_usd_per_hour
    return FleetEvaluation(
        outcome=str(verdict.outcome),
        stuck=verdict.stuck,
        replayed=verdict.replayed,
        plan=plan,
        usd_per_month=cost * HOURS_PER_MONTH,
        provisioning=needed,
        twice=twice,
        cheapest=cheapest,
        saving_usd_per_hour=None if other is None else cost - other,
        no_cheapest=why,
    )


def _untold(label: str, fraction: float) -> None:
    """Nobody asked for progress."""


def _verdict(bench: Bench, subject: Subject, plan: Plan | None) -> tuple[Verdict, Judgement]:
    """The verdict on a fleet by the requests that confirm a plan, and what their runs say.

    plan: whose fleet it is, if any: the requests are those that confirmed it, as many of them.
    """
    chosen = bench.candidate(subject.fleet)
    seen = None if plan is None else plan.simulation
    if seen is not None and seen.confirmation:
        return on_fresh_requests(bench, chosen, seen.confirmation, seen.replications, seen.requests)
    verdict, judgement = on_fresh_requests(bench, chosen, 1, RUNS)
    if verdict.outcome is Outcome.UNDECIDED and judgement.held and not verdict.stuck:
        verdict, judgement = on_fresh_requests(bench, chosen, 2, REPLICATIONS[-1], MOST_BETWEEN)
    if chosen.replayed:  # it misses when the recorded requests come in their own order, which no draw of them shows
        verdict = replace(verdict, held=False, replayed=True)
    return verdict, judgement


def _record(bench: Bench, subject: Subject, verdict: Verdict) -> Plan:
    """The fleet as a plan states one, simulated."""
    trail = Trail((), (), judged=1, repairs=0, interrupted=False)
    proof = Proof(Status.STATED, None, None)
    judged = Judged(subject.fleet, proof, subject.volume, [], [], bench, verdict, trail)
    return with_simulation(judged, plan_of(subject), Brake(), _untold)


def _provisioning(bench: Bench, subject: Subject, own: Verdict | None = None) -> Provisioning:
    """The fewest replicas of each pool with which the fleet meets every SLO at the rate of the bench.

    Replicas are doubled until it does, then taken from one pool after the other, the dearest first, by bisection.
    own: the verdict on the fleet as it is.
    """
    pools, start = subject.fleet.pools, subject.replicas

    def verdict(counts: tuple[int, ...]) -> Verdict:
        return own if own is not None and counts == start else _sure(bench, subject.resize(counts))

    def enough(counts: tuple[int, ...], index: int, count: int) -> bool:
        return verdict(_with(counts, index, count)).held

    def judged(what: str, counts: tuple[int, ...]) -> JudgedFleet:
        return judged_fleet(subject.instance, what, verdict(counts))

    more = (tuple(count * 2**times for count in start) for times in range(DOUBLINGS + 1))
    needed: tuple[int, ...] = next((counts for counts in more if verdict(counts).held), ())
    for index in _dearest_first(subject) if needed else ():
        needed = _with(needed, index, fewest(partial(enough, needed, index), needed[index]))
    less = [(pool.name, index) for index, pool in enumerate(pools) if needed and needed[index] > 1]
    return Provisioning(
        rate_rps=subject.instance.problem.workload.request_rate * bench.volume,
        stated=judged("as stated", start),
        pools=[
            PoolNeed(pool=pool.name, replicas=pool.replicas, needed=count)
            for pool, count in zip(pools, needed, strict=False)
        ],
        cost_usd_per_hour=fleet_cost(subject.instance, subject.resize(needed)) if needed else None,
        one_replica_fewer=[
            judged(f"{name}: one replica fewer", _with(needed, at, needed[at] - 1)) for name, at in less
        ],
        judged=len(bench.verdicts),
        most=2.0**DOUBLINGS,
    )


def _sure(bench: Bench, fleet: Fleet) -> Verdict:
    """The verdict on a fleet; one that holds does so on the requests that would confirm it as a plan."""
    chosen = bench.candidate(fleet)
    return confirmed(bench, chosen, iter((1, 2)), RUNS) if chosen.held and not chosen.confirmation else chosen


def _dearest_first(subject: Subject) -> list[int]:
    """Indices of the pools, that with the dearest engine first."""
    prices = [float(subject.instance.tables.usd_per_hour[pool.shape]) for pool in subject.fleet.pools]
    return sorted(range(len(prices)), key=lambda index: (-prices[index], index))


def _with(counts: tuple[int, ...], index: int, count: int) -> tuple[int, ...]:
    return (*counts[:index], count, *counts[index + 1 :])


def fewest(good: Callable[[int], bool], most: int) -> int:
    """The least number from 1 to `most` that is good, where `most` is and more are no worse.

    >>> fewest(lambda number: number >= 5, 9)
    5
    """
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def _cheapest(subject: Subject, level: Level, report: Progress) -> tuple[Plan | None, str]:
    """The plan of the cheapest fleet that the search finds; or why physics forbids one."""
    report("searching the cheapest fleet", SEARCHED)
    try:
        return optimize(
            subject.wanted, lambda what, done: report(what, SEARCHED + (1 - SEARCHED) * done), level=level
        ), ""
    except BelowFloorError as error:
        return None, str(error)
