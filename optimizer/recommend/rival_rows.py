"""The comparison of a plan: the cheapest fleet under each restriction, found and confirmed as the recommended one.

A GPU type or a role should lose on its merits, not through an error of the formulas about its cheapest fleet, nor
through a shorter search. So its fleet comes from the plan's own search (`search.cheapest_confirmed`), kept to what the
restriction allows; all these searches share their simulations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from costmodel.words import dearer, dollars
from optimizer.fleets.build_plan import engine_pools, pool_routes
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative, Status
from optimizer.plans.proof import Proof
from optimizer.search.alternatives import Rival
from optimizer.search.search import SAME_COST
from optimizer.verification.bench import MOST_BETWEEN, MOST_CONFIRMED, Bench, Verdict, confirmed_once, miss_words
from optimizer.verification.judge import MOST_RUNS
from optimizer.verification.record import latencies
from optimizer.verification.verify import CANDIDATE, SearchResult

from .search import Effort, FormulaResult, cheapest_confirmed, nearly_by_formula

SAME: Final = "the same cost"
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


def overall(verdict: Verdict) -> float:
    """Share of all requests that count within their SLOs, as the record of a simulation states it."""
    shares = [item.attainment for item in verdict.judgement.classes]
    return sum(item.share * item.count for item in shares) / max(sum(item.count for item in shares), 1)


def fleet_row(  # noqa: PLR0917
    instance: Instance,
    fleet: Fleet,
    verdict: Verdict | None,
    named: tuple[str, str],
    why_not: str,
    proof: Proof | None = None,
    volume: float = 1.0,
) -> Alternative:
    """The row of a fleet that serves `volume` times the demand; named: its kind and label; verdict: if simulated."""
    return Alternative(
        kind=named[0],
        label=named[1],
        status=Status.FEASIBLE if proof is None else proof.status,
        cost_usd_per_hour=fleet_cost(instance, fleet),
        bound_usd_per_hour=None if proof is None else proof.bound,
        gap=None if proof is None else proof.gap,
        pools=engine_pools(instance, fleet),
        routes=pool_routes(fleet),
        attainment=evaluate(instance, fleet, volume).overall if verdict is None else overall(verdict),
        why_not=why_not,
        simulated=verdict is not None,
        confirmed=verdict is not None and verdict.confirmation > 0,
        latencies=[] if verdict is None else [latencies(item) for item in verdict.judgement.classes],
    )


def recommended(
    instance: Instance, fleet: Fleet, proof: Proof, volume: float = 1.0, verdict: Verdict | None = None
) -> Alternative:
    """The row of the plan's own fleet."""
    return fleet_row(instance, fleet, verdict, ("recommended", "recommended"), "", proof, volume)


def by_formula(instance: Instance, fleet: Fleet, best: Alternative, rivals: Sequence[Rival]) -> list[Alternative]:
    """The comparison by formula: the row of the plan's fleet first, then the best under each restriction by price."""
    rows = (
        _same(best, rival)
        if rival.restriction is None or rival.restriction.allows(fleet)
        else _formula_row(instance, rival, fleet)
        for rival in rivals
    )
    return [best, *_by_price(rows)]


def compared(
    result: FormulaResult, bench: Bench, winner: Verdict, proof: Proof, judged: Iterable[JudgedRival]
) -> list[Alternative]:
    """The comparison, simulated as far as possible: the winner first, then the best under each restriction by price."""
    instance, results = bench.instance, {id(rival): search for rival, search in judged}
    best, rows = recommended(instance, winner.fleet, proof, bench.volume, winner), []
    for rival in result.rivals[1:]:
        search = results.get(id(rival))
        if search is None:
            rows.append(_same(best, rival))
        elif search.winner is not None:
            rows.append(_simulated_row(instance, rival, search.winner, winner.cost))
        else:
            rows.append(_missed_row(_formula_row(instance, rival, result.fleet), search))
    return [best, *_by_price(rows)]


def _by_price(rows: Iterable[Alternative]) -> list[Alternative]:
    """Rows by price, those without one last."""
    return sorted(rows, key=lambda row: (row.cost_usd_per_hour is None, row.cost_usd_per_hour or 0.0, row.label))


def _same(best: Alternative, rival: Rival) -> Alternative:
    """The row of a restriction whose best fleet is the recommended one."""
    kind, label = _named(rival)
    return best.model_copy(update={"kind": kind, "label": label, "why_not": SAME})


def _formula_row(instance: Instance, rival: Rival, best: Fleet) -> Alternative:
    """The row of a restriction by formula; best: the recommended fleet."""
    named = _named(rival)
    if rival.fleets:
        why_not = _why_not(rival.cost(instance), fleet_cost(instance, best))
        return fleet_row(instance, rival.fleets[0], None, named, why_not)
    return _without_fleet(*named, Status.INFEASIBLE if rival.impossible else Status.TIME_LIMIT, rival.why_none)


def _named(rival: Rival) -> tuple[str, str]:
    """Kind and label of a rival's row."""
    return ("", "") if rival.restriction is None else (rival.restriction.kind, rival.restriction.label)


def _simulated_row(instance: Instance, rival: Rival, verdict: Verdict, best: float) -> Alternative:
    """The row of a restriction whose search was simulated; best: cost of the recommended fleet [$/h]."""
    row = fleet_row(instance, verdict.fleet, verdict, _named(rival), _why_not(verdict.cost, best))
    return row if row.confirmed else _unconfirmed(row)


def _missed_row(row: Alternative, search: SearchResult) -> Alternative:
    """The row of a restriction under which no fleet holds when simulated; row: by formula."""
    first = next((missed for what, missed in search.others if what == CANDIDATE), search.nearest)
    if first is None or search.undecided is not None:  # the time was up
        return row if row.cost_usd_per_hour is None else _unconfirmed(row)
    reason = f"the cheapest found by formula ({dollars(first.cost)}/h) {miss_words(first)}"
    return _without_fleet(row.kind, row.label, Status.TIME_LIMIT, reason).model_copy(update={"simulated": True})


def _unconfirmed(row: Alternative) -> Alternative:
    """The row of a fleet that was not put to fresh requests, which it says."""
    return row.model_copy(update={"why_not": f"{row.why_not}{UNCONFIRMED}"})


def _without_fleet(kind: str, label: str, status: Status, why_not: str) -> Alternative:
    """The row of a restriction under which no fleet is known."""
    nothing = dict.fromkeys(("cost_usd_per_hour", "bound_usd_per_hour", "gap", "attainment"))
    return Alternative(kind=kind, label=label, status=status, pools=[], why_not=why_not, **nothing)


def _why_not(cost: float, best: float) -> str:
    """Why a fleet that holds lost: its cost against the best one's [$/h]."""
    return SAME if cost <= best * (1.0 + SAME_COST) else f"costs {dearer(cost, best)}"
