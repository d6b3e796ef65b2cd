"""From the fleet that the formulas chose to the one that is proven by simulation, and what the plan says of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.words import join_words
from optimizer.fleets.binding import binding
from optimizer.fleets.build_plan import fleet_cost, pool_line
from optimizer.fleets.fleet import Fleet
from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative, Binding, Plan, Status
from optimizer.plans.plan_simulation import SimulatedLatencies, Tuning
from optimizer.plans.proof import OPTIMAL_GAP, Proof, bound_for, gap_of, proof_of_cost
from optimizer.rivals.alternatives import SAME, Rival, kinds, recommended, why_not
from optimizer.verification.simulated_goodput import goodput_among
from optimizer.verification.simulation_record import (
    Trail,
    as_simulated,
    latencies,
    other_rates,
    simulated_error_bars,
    simulation_of,
    trials_of,
    tuning_record,
)
from optimizer.verification.tune import SAMPLER, tuned
from optimizer.verification.verdict import BRIEFLY, Bench, Verdict, make_bench
from optimizer.verification.verify import Resolve, Searched, cheapest_verified
from optimizer.verification.waste import Lean, without_waste
from search_spaces.problem import Goal

from .level import Brake, Level

STEPS_DOWN = (0.0, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5)
"""How far below the goodput of one run volumes are tried, as shares of it."""

VOLUME_TOLERANCE = 0.02
"""To which the goodput of one run is found where goodput is the goal (relative)."""

THOROUGH_RUNS = 4
"""Full runs of a fleet that holds, at the highest effort."""

Told = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Solved:
    """What the search found by formula: the fleet, what is proven of it, the volume it serves and its rivals.

    promised: the best fleet that columns promise, from which the fleet came.
    """

    instance: Instance
    space: Columns
    fleet: Fleet
    promised: Fleet
    proof: Proof
    volume: float
    rivals: tuple[Rival, ...]


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


def judged(solved: Solved, resolve: Resolve, level: Level, brake: Brake, told: Told) -> Judged:
    """Find the cheapest fleet that holds when it is simulated; the bound stays that of the formulas."""
    told("simulating fleets", 0.65)
    least = THOROUGH_RUNS if level is Level.THOROUGH else 2
    rivals = [fleet for rival in solved.rivals for fleet in (rival.fleet, rival.promised)]
    fleets = _distinct([solved.fleet, solved.promised, *rivals])
    cheapest = solved.instance.problem.objective.goal is Goal.MIN_COST
    if cheapest:
        bench = make_bench(solved.instance, least=least)
        searched = cheapest_verified(bench, fleets, resolve)
    else:
        bench, searched = verified_volume(solved, least)
    if searched.winner is None:
        return _nothing_held(solved, bench, searched)
    brake.armed = True
    lean, tuning = Lean(searched.winner, ()), None
    if cheapest:
        told("simulating smaller fleets", 0.75)
        lean = without_waste(bench, searched.winner, fleets, brake.stopped)
    if cheapest and level is Level.THOROUGH:
        told("tuning", 0.8)
        lean, tuning = _tuned(bench, lean, fleets, brake)
    told("simulating alternatives", 0.85)
    proof = proof_of(solved, lean.winner, bench.volume)
    trail = Trail(
        one_less=lean.one_less,
        others=(*searched.missed, *lean.others),
        judged=len(bench.verdicts),
        repairs=searched.repairs,
        interrupted=brake.stopped(),
        tuning=tuning,
    )
    rows = _rows(solved, bench, lean.winner, proof, brake)
    return Judged(lean.winner.fleet, proof, bench.volume, rows, [], bench, lean.winner, trail)


def _tuned(bench: Bench, lean: Lean, fleets: Sequence[Fleet], brake: Brake) -> tuple[Lean, Tuning]:
    """The winner with its knobs tuned, again without waste, and what was looked at."""
    found = tuned(bench, lean.winner, brake.stopped)
    improved = found.winner is not lean.winner
    record = tuning_record(bench.instance, found, SAMPLER, improved)
    if improved:
        again = without_waste(bench, found.winner, fleets, brake.stopped)
        lean = replace(again, others=(*lean.others, *again.others))
    return lean, record


def with_simulation(found: Judged, plan: Plan, brake: Brake, told: Told) -> Plan:
    """The plan of a fleet that was simulated, with what the simulation showed; plan: by formula."""
    if found.winner is None:
        return plan
    told("simulating other rates", 0.9)
    rates = other_rates(found.bench, found.winner, plan.goodput_rps, brake.stopped)
    trail = replace(found.trail, interrupted=brake.stopped())
    simulation = simulation_of(found.bench, found.winner, plan, rates, trail)
    shown = as_simulated(found.bench.instance, plan, found.winner.judgement, simulation)
    if brake.stopped():
        return shown
    bars = simulated_error_bars(found.bench, found.fleet)
    classes = [item.model_copy(update={"error_bars": bar}) for item, bar in zip(shown.classes, bars, strict=True)]
    return shown.model_copy(update={"classes": classes})


def _distinct(fleets: Iterable[Fleet]) -> list[Fleet]:
    """Fleets with pools, each once."""
    found: list[Fleet] = []
    for fleet in fleets:
        if fleet.pools and not any(fleet is other for other in found):
            found.append(fleet)
    return found


def proof_of(solved: Solved, winner: Verdict, volume: float) -> Proof:
    """What the search proved of the winner: its bound is over fleets that columns promise.

    A fleet that serves more than those is none of them: then no bound is known.
    """
    proof = solved.proof
    if solved.instance.problem.objective.goal is Goal.MIN_COST:
        return proof_of_cost(proof.bound, proof.floor, winner.cost)
    part = volume / solved.volume
    if solved.instance.problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        part *= fleet_cost(solved.instance, solved.fleet) / winner.cost
    if proof.gap is None or part * (1.0 - proof.gap) > 1.0:
        return Proof(Status.FEASIBLE, proof.bound, None)
    gap = 1.0 - part * (1.0 - proof.gap)
    optimal = proof.status is Status.OPTIMAL and gap <= OPTIMAL_GAP
    return Proof(Status.OPTIMAL if optimal else Status.FEASIBLE, proof.bound, gap)


def verified_volume(solved: Solved, least: int) -> tuple[Bench, Searched]:
    """The most of the demand that the fleet is proven to serve; where it serves too little, the promised one."""
    bench, searched = _volume_of(solved, solved.fleet, least)
    if searched.winner is None and solved.promised.pools and solved.promised is not solved.fleet:
        other = _volume_of(solved, solved.promised, least)
        return other if other[1].winner is not None else (bench, searched)
    return bench, searched


def _volume_of(solved: Solved, fleet: Fleet, least: int) -> tuple[Bench, Searched]:
    """The most of the demand that a fleet is proven to serve, near its simulated goodput, within what was asked."""
    instance, asked = solved.instance, solved.instance.problem.objective
    ratio = asked.goal is Goal.MAX_GOODPUT_PER_DOLLAR
    bench = make_bench(instance, solved.volume, least)
    part = bench.part(fleet)
    trials = trials_of(bench, part, part.requests)
    found_rate = goodput_among(trials, VOLUME_TOLERANCE, start=part.volume, step=1.0 + 4.0 * VOLUME_TOLERANCE).rate
    volume = found_rate * part.parts / instance.problem.workload.request_rate
    volume = min(volume, asked.max_volume) if ratio else volume
    nearest: Verdict | None = None
    for served in (volume * (1.0 - step) for step in STEPS_DOWN):
        if served <= 0.0 or (ratio and served < asked.min_volume):
            break
        bench = make_bench(instance, served, least)
        found = bench.verdict(fleet)
        if found.held:
            return bench, Searched(found, None)
        nearest = found
    return bench, Searched(None, nearest or bench.verdict(fleet))


def _rows(solved: Solved, bench: Bench, winner: Verdict, proof: Proof, brake: Brake) -> list[Alternative]:
    """The comparison with every kind, all simulated that can be: the winner first, the best of each kind after it."""
    instance = solved.instance
    reached = _overall(instance, winner)
    best = recommended(instance, winner.fleet, proof, bench.volume)
    best = best.model_copy(update={"attainment": reached, "simulated": True, "latencies": _latencies(winner)})
    own = {kind.label for kind in kinds(instance, solved.space) if kind.has(instance, winner.fleet)}
    rows = []
    for rival in solved.rivals[1:]:
        if rival.row.label in own:
            same = {"kind": rival.row.kind, "label": rival.row.label, "why_not": SAME}
            rows.append(best.model_copy(update=same))
        elif rival.row.cost_usd_per_hour is None or (brake.stopped() and not bench.judged(rival.fleet)):
            rows.append(rival.row)
        else:
            rows.append(_row(instance, rival.row, _of_rival(bench, rival, brake), winner.cost))
    rows.sort(key=lambda row: (row.cost_usd_per_hour is None, row.cost_usd_per_hour or 0.0, row.label))
    return [best, *rows]


def _of_rival(bench: Bench, rival: Rival, brake: Brake) -> Verdict:
    """How the best fleet of a kind did; where it misses, the one that columns promise, if that does not."""
    lean = bench.verdict(rival.fleet, BRIEFLY)
    if lean.judgement.held or not rival.promised.pools or brake.stopped():
        return lean
    promised = bench.verdict(rival.promised, BRIEFLY)
    return promised if promised.judgement.held else lean


def _row(instance: Instance, row: Alternative, found: Verdict, best: float) -> Alternative:
    """The row of a kind whose best fleet by formula was simulated; a cheaper one had to be proven to count."""
    if found.held or (found.judgement.held and found.cost >= best):
        bound = bound_for(row.bound_usd_per_hour, found.cost)
        shown = {
            "cost_usd_per_hour": found.cost,
            "bound_usd_per_hour": bound,
            "gap": gap_of(bound, found.cost),
            "pools": [pool_line(instance, pool) for pool in found.fleet.pools],
            "attainment": _overall(instance, found),
            "simulated": True,
            "latencies": _latencies(found),
        }
        return row.model_copy(update=shown | {"why_not": why_not(found.cost, best)})
    lost = {"status": Status.TIME_LIMIT, "cost_usd_per_hour": None, "bound_usd_per_hour": None, "gap": None}
    reason = f"the cheapest found by formula (${found.cost:,.2f}/h) {_miss_words(found)}"
    return row.model_copy(update=lost | {"pools": [], "attainment": None, "simulated": True, "why_not": reason})


def _latencies(found: Verdict) -> list[SimulatedLatencies]:
    """Of each class, as simulated."""
    return [latencies(one) for one in found.judgement.classes]


def _overall(instance: Instance, found: Verdict) -> float:
    """Share of all requests within their SLOs."""
    shares = np.array([slo.share for slo in instance.problem.slos])
    return float(shares @ [one.attainment.share for one in found.judgement.classes] / shares.sum())


def _miss_words(found: Verdict) -> str:
    """How a fleet missed, as the end of a sentence."""
    if found.judgement.overload.overloaded:
        return "falls behind its arrivals when simulated"
    behind = [one for one in found.judgement.classes if not one.proven]
    shares = [
        f"{one.attainment.share:.1%} of {one.name} ({one.attainment.low:.1%} to {one.attainment.high:.1%}) where "
        f"{one.goal:.1%} should"
        for one in behind
    ]
    only = "only " if any(not one.held for one in behind) else ""
    return f"keeps the SLOs of {only}{join_words(shares)} when simulated"


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
        pools=[pool_line(solved.instance, pool) for pool in missed.fleet.pools],
        attainment=_overall(solved.instance, missed),
        why_not=f"It {_miss_words(missed)}.",
        simulated=True,
    )
    rows = [
        binding(
            "attainment", one.name, 1.0 - one.attainment.share, 1.0 - one.goal, "1",
            f"{one.attainment.share:.2%} of class {one.name} keep their SLO simulated where {one.goal:.2%} should.",
        )
        for one in missed.judgement.classes
    ]  # fmt: skip
    return Judged(Fleet(()), proof, 1.0, [row], sorted(rows, key=lambda one: one.slack), bench, None, trail)
