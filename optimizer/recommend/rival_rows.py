"""The comparison as simulated: the cheapest fleet under each restriction, found and confirmed as the recommended one.

A GPU type or a role should lose on its merits, not through an error of the formulas about its cheapest fleet, nor
through a shorter search. So its fleet comes from the plan's own search (`search.cheapest_confirmed`), kept to what the
restriction allows; all these searches share their simulations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from costmodel.words import dollars
from optimizer.fleets.build_plan import engine_pools, pool_routes
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative, Status
from optimizer.plans.proof import Proof, bound_for, gap_of
from optimizer.search.alternatives import Rival, recommended, same_row, why_not
from optimizer.search.search import SAME_COST
from optimizer.verification.bench import MOST_BETWEEN, MOST_CONFIRMED, Bench, Verdict, confirmed_once, miss_words
from optimizer.verification.judge import MOST_RUNS
from optimizer.verification.record import latencies
from optimizer.verification.verify import CANDIDATE, SearchResult

from .search import Effort, FormulaResult, cheapest_confirmed, nearly_by_formula

UNCONFIRMED: Final = "; not confirmed by simulation, for want of time"
"""What is said of a rival that was not put to fresh requests."""

JudgedRival = tuple[Rival, SearchResult]


LAST: Final = MOST_CONFIRMED + 1
"""Number of the confirmation of a rival that takes the winner's place: no fleet was put to it before."""


def judged_rivals(result: FormulaResult, bench: Bench, winner: Verdict, effort: Effort) -> Iterator[JudgedRival]:
    """The rivals whose restriction does not allow the winner, each with the result of its search."""
    priced = [rival for rival in result.rivals if rival.fleets]
    for rival in result.rivals[1:]:
        restriction = rival.restriction
        if restriction is None or restriction.allows(winner.fleet):
            continue
        fleets = [fleet for other in priced for fleet in other.fleets if restriction.allows(fleet)]
        fleets = fleets or nearly_by_formula(bench.instance, bench.late, restriction.usable)
        near = [fleet for fleet in rival.near if restriction.allows(fleet)]
        yield rival, cheapest_confirmed(bench, fleets, effort.inner, near=near, eligible=restriction.allows)


def with_cheaper_rival(bench: Bench, best: SearchResult, judged: Iterable[JudgedRival]) -> SearchResult:
    """The result of the cheapest rival, where it costs less than the winner and is confirmed again; else `best`.

    A search under a restriction may find a fleet that the free search passed over.
    """
    for _, other in sorted(judged, key=lambda row: math.inf if row[1].winner is None else row[1].winner.cost):
        if best.winner is None or other.winner is None or other.winner.cost >= best.winner.cost * (1.0 - SAME_COST):
            break
        verdict = confirmed_once(bench, other.winner, LAST, MOST_RUNS, MOST_BETWEEN)
        if verdict.held:
            return replace(best, winner=verdict, one_less=other.one_less)
    return best


def compared(
    result: FormulaResult, bench: Bench, winner: Verdict, proof: Proof, judged: Iterable[JudgedRival]
) -> list[Alternative]:
    """The comparison, simulated as far as possible: the winner first, then the best under each restriction by price."""
    best, by_label = winner_row(bench, winner, proof), {rival.row.label: found for rival, found in judged}
    rows = []
    for rival in result.rivals[1:]:
        if rival.row.label in by_label:
            rows.append(_row(bench.instance, rival.row, by_label[rival.row.label], winner.cost))
        else:
            rows.append(same_row(best, rival.row.kind, rival.row.label))
    rows.sort(key=lambda row: (row.cost_usd_per_hour is None, row.cost_usd_per_hour or 0.0, row.label))
    return [best, *rows]


def winner_row(bench: Bench, winner: Verdict, proof: Proof) -> Alternative:
    """The row of the recommended fleet."""
    row = recommended(bench.instance, winner.fleet, proof, bench.volume)
    return row.model_copy(update=_as_simulated(winner))


def _as_simulated(verdict: Verdict) -> dict[str, Any]:
    """What a row says of how its fleet did."""
    return {
        "attainment": overall(verdict),
        "simulated": True,
        "confirmed": verdict.confirmation > 0,
        "latencies": [latencies(item) for item in verdict.judgement.classes],
    }


def overall(verdict: Verdict) -> float:
    """Share of all requests that count within their SLOs, as the record of a simulation states it."""
    shares = [item.attainment for item in verdict.judgement.classes]
    return sum(item.share * item.count for item in shares) / max(sum(item.count for item in shares), 1)


def _row(instance: Instance, row: Alternative, result: SearchResult, best: float) -> Alternative:
    """The row of a restriction once its search was simulated; best: cost of the recommended fleet [$/h]."""
    verdict = result.winner
    if verdict is None:
        first = next((missed for what, missed in result.others if what == CANDIDATE), result.nearest)
        if first is None or result.undecided is not None:  # the time was up
            return _unconfirmed(row)
        lost: dict[str, Any] = {
            "status": Status.TIME_LIMIT,
            "cost_usd_per_hour": None,
            "bound_usd_per_hour": None,
            "gap": None,
        }
        reason = f"the cheapest found by formula ({dollars(first.cost)}/h) {miss_words(first)}"
        return row.model_copy(
            update=lost | {"pools": [], "routes": [], "attainment": None, "simulated": True, "why_not": reason}
        )
    bound = bound_for(row.bound_usd_per_hour, verdict.cost)
    shown = {
        "status": Status.FEASIBLE,
        "cost_usd_per_hour": verdict.cost,
        "bound_usd_per_hour": bound,
        "gap": gap_of(bound, verdict.cost),
        "pools": engine_pools(instance, verdict.fleet),
        "routes": pool_routes(verdict.fleet),
        "why_not": why_not(verdict.cost, best),
    }
    simulated = row.model_copy(update=shown | _as_simulated(verdict))
    return simulated if simulated.confirmed else _unconfirmed(simulated)


def _unconfirmed(row: Alternative) -> Alternative:
    """The row of a fleet with a price that was not put to fresh requests, which it says."""
    return row if row.cost_usd_per_hour is None else row.model_copy(update={"why_not": f"{row.why_not}{UNCONFIRMED}"})
