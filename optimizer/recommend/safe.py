"""The cheapest fleet that meets every SLO though GPUs are as slow as the worst of past predictions.

It is searched by formula and judged by simulation as the plan's own is, and confirmed on fresh requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costmodel.words import dollars, percentage
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.error_bars import at_quantile, slow_end
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late
from optimizer.plans.plan import Status
from optimizer.plans.plan_safe import SafeFleet, SafeStatus
from optimizer.plans.proof import Proof
from optimizer.rivals.by_evaluation import SAME_COST
from optimizer.rivals.leanest import at_best_split, unmixed
from optimizer.rivals.per_class import classes_apart
from optimizer.verification.bench import Verdict, make_bench
from optimizer.verification.confirm import MOST_CONFIRMED, confirmed
from optimizer.verification.judge import Outcome

from .formula_search import cheapest_by_formula
from .level import Brake
from .proven import Solved, proven
from .rival_rows import overall

CONFIDENCE: Final = 0.9
"""Probability of the interval of step times at whose slow end a fleet is safe [1]: that which plans state as error
bars."""


def safe_fleet(expected: Instance, fleet: Fleet, late: Late, brake: Brake) -> SafeFleet | None:
    """The plan's own fleet where it survives, else the cheapest found that does; None where the time is up before.

    expected: the instance that the plan's own `fleet` was found in, with expected step times; late: whether the search
    by formula is to end.
    """
    if brake.stopped():
        return None
    problem = replace(expected.problem, confidence=CONFIDENCE)
    slow = at_quantile(replace(expected, problem=problem), slow_end(CONFIDENCE))
    own = _own(slow, fleet, brake.stopped)
    survivor = own if own.held or brake.stopped() else _cheapest(slow, fleet, late, brake)
    return None if brake.stopped() else _record(slow, own, survivor)


def _own(slow: Instance, fleet: Fleet, late: Late) -> Verdict:
    """The verdict on the plan's own fleet, confirmed where it holds."""
    bench = make_bench(slow, late=late)
    verdict = bench.candidate(fleet)
    return confirmed(bench, verdict, iter(range(1, MOST_CONFIRMED + 1))) if verdict.held else verdict


def _cheapest(slow: Instance, own: Fleet, late: Late, brake: Brake) -> Verdict | None:
    """The fleet of one pool or two that is cheapest by formula, or its repair, that is confirmed; else the own one's.

    Mixtures of engines within a stage would take longer than all else, and saved nothing on the examples.
    """
    space = at_best_split(slow, lambda: late() or brake.stopped())
    cheapest = cheapest_by_formula(space) if classes_apart(slow.problem) else unmixed(space)
    fleet, proof = cheapest if cheapest.pools else own, Proof(Status.FEASIBLE, None, None)
    solved = Solved(space.instance, space.settings, fleet, proof, 1.0, ())
    bench = make_bench(space.instance, late=brake.stopped)
    lean = proven(solved, bench, brake, lambda _label, _fraction: None)[1]
    return None if lean is None else lean.winner


def _record(slow: Instance, own: Verdict, survivor: Verdict | None) -> SafeFleet:
    status = SafeStatus.NONE if survivor is None else SafeStatus.OWN if survivor is own else SafeStatus.OTHER
    return SafeFleet(
        confidence=CONFIDENCE,
        status=status,
        cost_usd_per_hour=None if survivor is None else survivor.cost,
        pools=[] if survivor is None else engine_pools(slow, survivor.fleet),
        attainment=None if survivor is None else overall(slow, survivor),
        own_attainment=overall(slow, own),
        sentence=safe_sentence(own, survivor, len(slow.problem.slos)),
    )


def safe_sentence(own: Verdict, survivor: Verdict | None, classes: int) -> str:
    """Say whether a plan's own fleet survives slow GPUs, and what one costs that does; classes: with an SLO each."""
    slow = f"If these GPUs are as slow as the worst {percentage(1.0 - slow_end(CONFIDENCE))} of our predictions"
    if survivor is own:
        return f"{slow}, this fleet still meets {'the SLO' if classes == 1 else 'every SLO'}."
    misses = "misses" if own.outcome is Outcome.MISSES else "may miss"
    missed = f"{slow}, this fleet {misses} {'the SLO' if classes == 1 else 'an SLO'}."
    if survivor is None:
        return f"{missed} No fleet was found that survives."
    more = survivor.cost / own.cost - 1.0
    beside = "the same" if abs(more) <= SAME_COST else f"{'+' if more > 0.0 else ''}{percentage(more, 1)}"
    return f"{missed} A fleet that survives costs {dollars(survivor.cost)}/h ({beside})."
