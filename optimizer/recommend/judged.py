"""From the fleet that the formulas chose to the one that is proven by simulation, and what the plan says of both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from costmodel.words import percentage
from optimizer.fleets.binding import binding
from optimizer.fleets.build_plan import engine_pools, fleet_cost
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet
from optimizer.loads.late import Late
from optimizer.plans.plan import Alternative, Binding, Plan, Status
from optimizer.plans.proof import OPTIMAL_GAP, Proof, bound_for, proof_of_judged
from optimizer.rivals.alternatives import recommended
from optimizer.verification.bench import Bench, Verdict, make_bench, miss_words
from optimizer.verification.confirm import by_requests, confirmed
from optimizer.verification.goodput import OutOfTimeError, goodput_among
from optimizer.verification.record import Trail, as_simulated, other_rates, simulated_error_bars, simulation_of
from optimizer.verification.tune import Wish
from optimizer.verification.verify import Lean, Searched
from search_spaces.problem import Goal

from .level import Brake, Level
from .proven import Solved, Told, proven
from .rival_rows import compared, overall, winner_row
from .tuning import with_rivals

STEPS_DOWN = (0.0, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5)
"""How far below the goodput of one run volumes are tried, as shares of it."""

VOLUME_TOLERANCE = 0.02
"""To which the goodput of one run is found where goodput is the goal (relative)."""

FINE = 1e-4
"""To which a lower goal is stated [1]."""

THOROUGH_RUNS = 4
"""Full runs that confirm a fleet at least, at the highest effort."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The fleet that is proven by simulation; without pools where none is. rows: of the alternatives."""

    fleet: Fleet
    proof: Proof
    volume: float
    rows: list[Alternative]
    shortfalls: list[Binding]
    bench: Bench
    winner: Verdict | None
    trail: Trail


def judged(solved: Solved, level: Level, brake: Brake, told: Told, *, tune: Wish | None = None) -> Judged:
    """Find the cheapest fleet that holds when it is simulated, tuned if so; the bound stays that of the formulas."""
    told("simulating fleets", 0.65)
    least, tuning = THOROUGH_RUNS if level is Level.THOROUGH else 2, None
    if solved.instance.problem.objective.goal is Goal.MIN_COST:
        bench = make_bench(solved.instance, late=brake.stopped)
        searched, lean, tuning = proven(solved, bench, brake, told, tune=tune, least=least)
    else:
        bench, searched = verified_volume(solved, least, brake.stopped)
        lean = None if searched.winner is None else Lean(searched.winner, ())
    if searched.undecided is not None and holds(
        solved.instance, predict_misses(solved.instance, searched.undecided, solved.volume)
    ):
        return _undecided(solved, bench, searched.undecided)
    if lean is None:
        return _nothing_held(solved, bench, searched)
    brake.armed = True
    told("simulating alternatives", 0.85)
    proof = proof_of(solved, lean.winner, bench.volume)
    rows = compared(solved, bench, lean.winner, proof)
    if tuning is not None and tune is not None and tune.front:
        tuning = with_rivals(bench, lean.winner, tuning, brake.stopped)
    trail = Trail(
        one_less=lean.one_less,
        others=(*searched.missed, *lean.others),
        judged=len(bench.verdicts),
        repairs=searched.repairs,
        interrupted=brake.stopped(),
        tuning=tuning,
    )
    return Judged(lean.winner.fleet, proof, bench.volume, rows, [], bench, lean.winner, trail)


def as_judged(solved: Solved, winner: Verdict, level: Level, brake: Brake) -> Judged:
    """The fleet of `solved`, which held when it was simulated, with nothing beside it."""
    bench = make_bench(solved.instance, least=THOROUGH_RUNS if level is Level.THOROUGH else 2, late=brake.stopped)
    trail = Trail((), (), 1, 0, interrupted=brake.stopped())
    row = winner_row(bench, winner, solved.proof)
    return Judged(winner.fleet, solved.proof, 1.0, [row], [], bench, winner, trail)


def with_simulation(found: Judged, plan: Plan, brake: Brake, told: Told) -> Plan:
    """The plan of a fleet that was simulated, with what the simulation showed; plan: by formula."""
    if found.winner is None:
        return plan
    told("simulating other rates", 0.9)
    rates = other_rates(found.bench, found.winner, plan.goodput_rps, brake.stopped)
    counted = by_requests(found.bench, found.winner) if found.winner.held and not brake.stopped() else None
    trail = replace(found.trail, interrupted=brake.stopped(), counted=counted)
    simulation = simulation_of(found.bench, found.winner, plan, rates, trail)
    shown = as_simulated(found.bench.instance, plan, found.winner.judgement, simulation)
    if brake.stopped():
        return shown
    bars = simulated_error_bars(found.bench, found.fleet)
    classes = [item.model_copy(update={"error_bars": bar}) for item, bar in zip(shown.classes, bars, strict=True)]
    return shown.model_copy(update={"classes": classes})


def proof_of(solved: Solved, winner: Verdict, volume: float) -> Proof:
    """What the search proved of the winner; where it serves more than any fleet could by formula, nothing."""
    proof = solved.proof
    if solved.instance.problem.objective.goal is Goal.MIN_COST:
        few_pools = bound_for(proof.few_pools, fleet_cost(solved.instance, solved.fleet))
        return proof_of_judged(few_pools, proof.floor, winner.cost)
    part = volume / solved.volume
    if solved.instance.problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        part *= fleet_cost(solved.instance, solved.fleet) / winner.cost
    if proof.gap is None or part * (1.0 - proof.gap) > 1.0:
        return Proof(Status.FEASIBLE, proof.bound, None)
    gap = 1.0 - part * (1.0 - proof.gap)
    optimal = proof.status is Status.OPTIMAL and gap <= OPTIMAL_GAP
    return Proof(Status.OPTIMAL if optimal else Status.FEASIBLE, proof.bound, gap)


def verified_volume(solved: Solved, least: int, late: Late) -> tuple[Bench, Searched]:
    """The most of the demand that the fleet is proven to serve."""
    numbers = itertools.count(1)
    try:
        bench, searched = _volume_of(solved, solved.fleet, least, late, numbers)
    except OutOfTimeError:
        return make_bench(solved.instance, solved.volume, least, late), Searched(None, None, undecided=solved.fleet)
    return bench, searched


def _volume_of(solved: Solved, fleet: Fleet, least: int, late: Late, numbers: Iterator[int]) -> tuple[Bench, Searched]:
    """The most of the demand that a fleet is confirmed to serve, near its simulated goodput, within what was asked.

    numbers: of the confirmations.
    """
    instance, asked = solved.instance, solved.instance.problem.objective
    ratio = asked.goal is Goal.MAX_GOODPUT_PER_DOLLAR
    bench = make_bench(instance, solved.volume, least, late)
    part = bench.part(fleet)
    trials = bench.trials_of(part, part.requests, late)
    found_rate = goodput_among(trials, VOLUME_TOLERANCE, start=part.volume, step=1.0 + 4.0 * VOLUME_TOLERANCE).rate
    volume = found_rate * part.parts / instance.problem.workload.request_rate
    volume = min(volume, asked.max_volume) if ratio else volume
    nearest: Verdict | None = None
    for served in (volume * (1.0 - step) for step in STEPS_DOWN):
        if served <= 0.0 or (ratio and served < asked.min_volume):
            break
        if late():
            raise OutOfTimeError(f"{fleet}: the time is up")
        bench = make_bench(instance, served, least)
        found = bench.verdict(fleet)
        found = confirmed(bench, found, numbers) if found.held else found
        if found.held:
            return bench, Searched(found, None)
        nearest = found
    return bench, Searched(None, nearest or bench.verdict(fleet))


def _undecided(solved: Solved, bench: Bench, fleet: Fleet) -> Judged:
    """The time was up before a fleet was proven to hold: the best by formula that had not missed."""
    cost = fleet_cost(solved.instance, fleet)
    own = fleet is solved.fleet
    proof = solved.proof if own else proof_of_judged(solved.proof.few_pools, solved.proof.floor, cost)
    first = solved.rivals[0].row if own else recommended(solved.instance, fleet, proof, solved.volume)
    rows = [first, *(rival.row for rival in solved.rivals[1:] if (rival.row.cost_usd_per_hour or cost) >= cost)]
    trail = Trail((), (), len(bench.verdicts), 0, interrupted=True)
    return Judged(fleet, proof, solved.volume, rows, [], bench, None, trail)


def _nothing_held(solved: Solved, bench: Bench, searched: Searched) -> Judged:
    """No fleet was proven to hold: the nearest miss, and how far it is from each goal."""
    proof = Proof(Status.TIME_LIMIT, None, None)
    trail = Trail((), (), len(bench.verdicts), searched.repairs, interrupted=False)
    missed = searched.nearest
    if missed is None:
        return Judged(Fleet(()), proof, 1.0, [], [], bench, None, trail)
    row = Alternative(
        kind="nearest_miss",
        label="the nearest of the fleets that were simulated",
        status=Status.FEASIBLE,
        cost_usd_per_hour=fleet_cost(solved.instance, missed.fleet),
        bound_usd_per_hour=None,
        gap=None,
        pools=engine_pools(solved.instance, missed.fleet),
        attainment=overall(solved.instance, missed),
        why_not=f"It {miss_words(missed)}.",
        simulated=True,
    )
    behind = missed.judgement.overload.overloaded  # then no lower goal would do
    rows = [] if behind else [goal_missed(one.name, one.attainment.low, one.goal) for one in missed.judgement.classes]
    return Judged(Fleet(()), proof, 1.0, [row], sorted(rows, key=lambda one: one.slack), bench, None, trail)


def goal_missed(name: str, reached: float, goal: float) -> Binding:
    """How far a class is from its goal; reached: share of its requests that is sure to be in time [1].

    What may miss is rounded up to hundredths of a per cent, so that what is read off it is no lower than what is kept.
    """
    missed = math.ceil(round((1.0 - reached) / FINE, 6)) * FINE
    sentence = f"{percentage(1.0 - missed, 2)} of class {name} keep their SLO where {percentage(goal, 2)} should."
    return binding("attainment", name, missed, 1.0 - goal, "1", sentence)
