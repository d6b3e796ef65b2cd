"""The comparison as simulated: of each kind of fleet the cheapest that keeps its goals, beside the recommended one.

A kind is to lose for what it is, not for an error of the formulas about its cheapest fleet. So the cheapest that holds
is searched for as the recommended one was (`verify`), with less effort: among all fleets of the kind that any search
came by, with other settings or more replicas for what misses; and what holds gives up the engines that it can spare.
It counts once fresh requests confirm it, as they did the recommended one (`confirm`), but once each: where they do not
confirm it the search goes on, and where no time is left the row says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.words import dollars
from optimizer.fleets.build_plan import engine_pools, fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative, Status
from optimizer.plans.plan_simulation import SimulatedLatencies
from optimizer.plans.proof import Proof, bound_for, gap_of
from optimizer.rivals.allowed import allowed
from optimizer.rivals.alternatives import SAME, Kind, kinds, recommended, why_not
from optimizer.rivals.fewer import fewer_replicas
from optimizer.verification.bench import BRIEFLY, Bench, Verdict, miss_words
from optimizer.verification.confirm import confirmed_once
from optimizer.verification.record import latencies
from optimizer.verification.verify import Judge, cheapest_verified, smaller

from .proven import Solved

MOST_LOOKS = 10
"""Fleets of a kind that are looked at before one holds."""
CONFIRMATIONS = 2
"""Confirmations of the fleets of a kind; what is refuted so often is no rival."""
FEWEST = 0
"""Requests of a confirmation beyond which no runs are added to the fewest that confirm any fleet."""
SWAPS = 3
"""Other engines in one pool that each fleet of a kind which holds is looked at with."""

UNCONFIRMED = "; not confirmed by simulation, for want of time"
"""What is said of a rival that was not put to fresh requests."""


def compared(solved: Solved, bench: Bench, winner: Verdict, proof: Proof) -> list[Alternative]:
    """The comparison with every kind, all simulated that can be: the winner first, the best of each kind after it."""
    instance, settings = solved.instance, solved.settings
    best = winner_row(bench, winner, proof)
    every = {kind.label: kind for kind in kinds(instance, settings)}
    known = [one for rival in solved.rivals for one in rival.fleets if rival.row.cost_usd_per_hour is not None]
    rows = []
    for rival in solved.rivals[1:]:
        kind = every.get(rival.row.label)
        if kind is not None and kind.has(instance, winner.fleet):
            same = {"kind": rival.row.kind, "label": rival.row.label, "why_not": SAME}
            rows.append(best.model_copy(update=same))
            continue
        fleets = rival.fleets if kind is None else [one for one in known if kind.has(instance, one)]
        if not fleets or (bench.late() and not any(bench.judged(fleet) for fleet in fleets)):
            rows.append(_unconfirmed(rival.row))
            continue
        found = _cheapest_confirmed(bench, fleets, kind, winner.cost)
        rows.append(_unconfirmed(rival.row) if found is None else _row(instance, rival.row, found, winner.cost))
    rows.sort(key=lambda row: (row.cost_usd_per_hour is None, row.cost_usd_per_hour or 0.0, row.label))
    return [best, *rows]


def winner_row(bench: Bench, winner: Verdict, proof: Proof) -> Alternative:
    """The row of the recommended fleet."""
    row = recommended(bench.instance, winner.fleet, proof, bench.volume)
    simulated = {
        "attainment": overall(bench.instance, winner),
        "simulated": True,
        "confirmed": winner.confirmation > 0,
        "latencies": _latencies(winner),
    }
    return row.model_copy(update=simulated)


def overall(instance: Instance, found: Verdict) -> float:
    """Share of all requests within their SLOs."""
    shares = np.array([slo.share for slo in instance.problem.slos])
    return float(shares @ [one.attainment.share for one in found.judgement.classes] / shares.sum())


def _judge(bench: Bench, best: float) -> Judge:
    """Says of a fleet whether it counts as one that holds; best: cost of the recommended [$/h]."""

    def judge(fleet: Fleet) -> Verdict:
        found = bench.verdict(fleet, BRIEFLY)
        return replace(found, held=_counts(found, best))

    return judge


def _cheapest_confirmed(bench: Bench, fleets: Sequence[Fleet], kind: Kind | None, best: float) -> Verdict | None:
    """The cheapest of some fleets, or of what they are mended to, that fresh requests confirm; else the nearest miss.

    best: cost of the recommended [$/h]. Where the time is up, one that was not put to them; None where none was judged.
    """
    found = None
    for number in range(1, CONFIRMATIONS + 1):
        found = _cheapest_of(bench, fleets, _judge(bench, best))
        if found is None or not found.held:
            return found
        if kind is not None:
            found = _leaner(bench, found, kind, best)
        if bench.late() or found.confirmation:
            return found
        found = confirmed_once(bench, found, number, most=FEWEST)
        if found.held:
            return found
    return found


def _cheapest_of(bench: Bench, fleets: Sequence[Fleet], judge: Judge) -> Verdict | None:
    """The cheapest of some fleets that counts, or of what they are mended to; else the nearest miss.

    None where the time was up before any was looked at.
    """
    found = cheapest_verified(bench, fleets, judge=judge, most=MOST_LOOKS)
    first = found.missed[0][1] if found.missed else None
    return first if found.winner is None else found.winner


def _leaner(bench: Bench, found: Verdict, kind: Kind, best: float) -> Verdict:
    """The fleet without what it can spare: as long as one of its kind that costs less holds, this takes its place.

    best: cost of the recommended [$/h], below which no kind is looked for.
    """
    instance, judge = bench.instance, _judge(bench, best)

    def wanted(fleet: Fleet) -> bool:
        return fleet_cost(instance, fleet) >= best and kind.has(instance, fleet) and allowed(instance, fleet)

    while True:
        fewer = [one for one in fewer_replicas(instance, found.fleet, 1) if wanted(one[1])]
        less = [*fewer, *smaller(instance, found, [], wanted)[:SWAPS]]
        tried = (judge(fleet) for _, fleet in less if not bench.late())
        held = next((one for one in tried if one.held), None)
        if held is None:
            return found
        found = held


def _counts(found: Verdict, best: float) -> bool:
    """Whether a rival counts as one that holds: in a run that is clear, what costs less than the best [$/h] in two."""
    return found.held or (found.judgement.proven and found.cost >= best and not (found.confirmation or found.stuck))


def _row(instance: Instance, row: Alternative, found: Verdict, best: float) -> Alternative:
    """The row of a kind whose best fleet by formula was simulated."""
    if not found.held:
        lost = {"status": Status.TIME_LIMIT, "cost_usd_per_hour": None, "bound_usd_per_hour": None, "gap": None}
        reason = f"the cheapest found by formula ({dollars(found.cost)}/h) {miss_words(found)}"
        return row.model_copy(update=lost | {"pools": [], "attainment": None, "simulated": True, "why_not": reason})
    bound = bound_for(row.bound_usd_per_hour, found.cost)
    shown = {
        "status": Status.FEASIBLE,
        "cost_usd_per_hour": found.cost,
        "bound_usd_per_hour": bound,
        "gap": gap_of(bound, found.cost),
        "pools": engine_pools(instance, found.fleet),
        "attainment": overall(instance, found),
        "simulated": True,
        "confirmed": found.confirmation > 0,
        "latencies": _latencies(found),
        "why_not": why_not(found.cost, best),
    }
    judged = row.model_copy(update=shown)
    return judged if judged.confirmed else _unconfirmed(judged)


def _unconfirmed(row: Alternative) -> Alternative:
    """The row of a fleet with a price that was not put to fresh requests, which it says."""
    return row if row.cost_usd_per_hour is None else row.model_copy(update={"why_not": f"{row.why_not}{UNCONFIRMED}"})


def _latencies(found: Verdict) -> list[SimulatedLatencies]:
    """Of each class, as simulated."""
    return [latencies(one) for one in found.judgement.classes]
