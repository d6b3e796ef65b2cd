"""The comparison as simulated: of each kind of fleet the cheapest that keeps its goals, beside the recommended one.

A kind is to lose for what it is, not for an error of the formulas about its cheapest fleet. So the cheapest that holds
is searched for as the recommended one was (`verify`), with less effort: among all fleets of the kind that any search
came by, with other settings or more replicas for what misses; and what holds gives up the engines that it can spare.
It counts once fresh requests confirm it, as they did the recommended one (`confirm`), but once each: where they do not
confirm it the search goes on, and where no time is left the row says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from costmodel.words import dollars
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative, Status
from optimizer.plans.proof import Proof, bound_for, gap_of
from optimizer.search.alternatives import SAME, Kind, kinds, recommended, why_not
from optimizer.search.limits import allowed, fewer_replicas
from optimizer.verification.bench import Bench, Verdict, miss_words
from optimizer.verification.confirm import confirmed_once
from optimizer.verification.record import latencies
from optimizer.verification.verify import cheapest_verified, smaller

from .search import FormulaResult

MOST_LOOKS: Final = 10
"""Fleets of a kind that are looked at before one holds."""
CONFIRMATIONS: Final = 2
"""Confirmations of the fleets of a kind; what is refuted so often is no rival."""
FEWEST: Final = 0
"""Requests of a confirmation beyond which no runs are added to the fewest that confirm any fleet."""
SWAPS: Final = 3
"""Other engines in one pool that each fleet of a kind which holds is looked at with."""

UNCONFIRMED: Final = "; not confirmed by simulation, for want of time"
"""What is said of a rival that was not put to fresh requests."""


def compared(result: FormulaResult, bench: Bench, winner: Verdict, proof: Proof) -> list[Alternative]:
    """The comparison with every kind, all simulated that can be: the winner first, the best of each kind after it."""
    instance, settings = result.instance, result.settings
    best = winner_row(bench, winner, proof)
    by_label = {kind.label: kind for kind in kinds(instance, settings)}
    priced = [rival for rival in result.rivals if rival.row.cost_usd_per_hour is not None]
    rows = []
    for rival in result.rivals[1:]:
        kind = by_label.get(rival.row.label)
        if kind is not None and kind.has(instance, winner.fleet):
            same = {"kind": rival.row.kind, "label": rival.row.label, "why_not": SAME}
            rows.append(best.model_copy(update=same))
            continue
        fleets = rival.fleets
        if kind is not None:
            fleets = tuple(fleet for other in priced for fleet in other.fleets if kind.has(instance, fleet))
        verdict = None
        if not bench.late() or any(bench.judged(fleet) for fleet in fleets):
            verdict = _cheapest_confirmed(bench, fleets, kind, winner.cost)
        rows.append(_unconfirmed(rival.row) if verdict is None else _row(instance, rival.row, verdict, winner.cost))
    rows.sort(key=lambda row: (row.cost_usd_per_hour is None, row.cost_usd_per_hour or 0.0, row.label))
    return [best, *rows]


def winner_row(bench: Bench, winner: Verdict, proof: Proof) -> Alternative:
    """The row of the recommended fleet."""
    row = recommended(bench.instance, winner.fleet, proof, bench.volume)
    return row.model_copy(update=_as_simulated(bench.instance, winner))


def _as_simulated(instance: Instance, verdict: Verdict) -> dict[str, Any]:
    """What a row says of how its fleet did."""
    return {
        "attainment": overall(instance, verdict),
        "simulated": True,
        "confirmed": verdict.confirmation > 0,
        "latencies": [latencies(item) for item in verdict.judgement.classes],
    }


def overall(instance: Instance, verdict: Verdict) -> float:
    """Share of all requests within their SLOs."""
    shares = np.array([slo.share for slo in instance.problem.slos])
    return float(shares @ [item.attainment.share for item in verdict.judgement.classes] / shares.sum())


def _cheapest_confirmed(bench: Bench, fleets: Sequence[Fleet], kind: Kind | None, best: float) -> Verdict | None:
    """The cheapest of some fleets, or of what they are mended to, that fresh requests confirm; else the nearest miss.

    best: cost of the recommended [$/h]. Where the time is up, one that was not put to them; None where none was judged.
    """
    verdict = None
    for number in range(1, CONFIRMATIONS + 1):
        verdict = _cheapest_of(bench, fleets)
        if verdict is None or not verdict.held:
            return verdict
        verdict = verdict if kind is None else _leaner(bench, verdict, kind, best)
        if bench.late() or verdict.confirmation:
            return verdict
        verdict = confirmed_once(bench, verdict, number, most=FEWEST)
        if verdict.held:
            return verdict
    return verdict


def _cheapest_of(bench: Bench, fleets: Sequence[Fleet]) -> Verdict | None:
    """The cheapest of some fleets that holds, or of what they are mended to; else the nearest miss.

    None where the time was up before any was looked at.
    """
    searched = cheapest_verified(bench, fleets, most=MOST_LOOKS)
    first = searched.missed[0][1] if searched.missed else None
    return first if searched.winner is None else searched.winner


def _leaner(bench: Bench, verdict: Verdict, kind: Kind, best: float) -> Verdict:
    """The fleet without what it can spare: as long as one of its kind that costs less holds, this takes its place.

    best: cost of the recommended [$/h], below which no kind is looked for.
    """
    instance = bench.instance

    def eligible(fleet: Fleet) -> bool:
        return fleet_cost(instance, fleet) >= best and kind.has(instance, fleet) and allowed(instance, fleet)

    while True:
        fewer = [named for named in fewer_replicas(instance, verdict.fleet, 1) if eligible(named[1])]
        less = [*fewer, *smaller(instance, verdict, [], eligible)[:SWAPS]]
        verdicts = (bench.candidate(fleet) for _, fleet in less if not bench.late())
        held = next((other for other in verdicts if other.held), None)
        if held is None:
            return verdict
        verdict = held


def _row(instance: Instance, row: Alternative, verdict: Verdict, best: float) -> Alternative:
    """The row of a kind whose best fleet by formula was simulated."""
    if not verdict.held:
        lost = {"status": Status.TIME_LIMIT, "cost_usd_per_hour": None, "bound_usd_per_hour": None, "gap": None}
        reason = f"the cheapest found by formula ({dollars(verdict.cost)}/h) {miss_words(verdict)}"
        return row.model_copy(update=lost | {"pools": [], "attainment": None, "simulated": True, "why_not": reason})
    bound = bound_for(row.bound_usd_per_hour, verdict.cost)
    shown = {
        "status": Status.FEASIBLE,
        "cost_usd_per_hour": verdict.cost,
        "bound_usd_per_hour": bound,
        "gap": gap_of(bound, verdict.cost),
        "pools": engine_pools(instance, verdict.fleet),
        "why_not": why_not(verdict.cost, best),
    }
    simulated = row.model_copy(update=shown | _as_simulated(instance, verdict))
    return simulated if simulated.confirmed else _unconfirmed(simulated)


def _unconfirmed(row: Alternative) -> Alternative:
    """The row of a fleet with a price that was not put to fresh requests, which it says."""
    return row if row.cost_usd_per_hour is None else row.model_copy(update={"why_not": f"{row.why_not}{UNCONFIRMED}"})
