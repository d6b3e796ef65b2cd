"""The cheapest fleet that is proven: chosen by simulation, confirmed on fresh requests, and tuned if it is to be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late
from optimizer.loads.settings import Settings
from optimizer.plans.plan_simulation import Tuning
from optimizer.plans.proof import Proof
from optimizer.rivals.alternatives import Rival
from optimizer.verification.bench import Bench
from optimizer.verification.confirm import MOST_CONFIRMED, confirmed, without_room
from optimizer.verification.tune import Wish
from optimizer.verification.verify import Lean, Searched, cheapest_verified, with_larger_batches, without_waste

from .level import Brake
from .tuning import with_tuning

TUNED = "tuned"
"""What the tuned fleet is called that fresh requests did not confirm."""

Told = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Solved:
    """What the search found by formula: the fleet, what is proven of it, the volume it serves and its rivals.

    settings: of the engines among which it was searched; size: of the search, as the plan has it.
    """

    instance: Instance
    settings: Settings
    fleet: Fleet
    proof: Proof
    volume: float
    rivals: tuple[Rival, ...]
    near: tuple[Fleet, ...] = ()
    """Cheaper fleets that miss by formula, but come near: the nearest first."""
    size: dict[str, Any] = field(default_factory=dict)


Chosen = tuple[Searched, Lean | None, Tuning | None]


def proven(
    solved: Solved,
    bench: Bench,
    brake: Brake,
    told: Told,
    *,
    tune: Wish | None = None,
    least: int = 2,
) -> Chosen:
    """The cheapest of the fleets found by formula, and of their repairs, that is confirmed, without what it can spare.

    bench: of the same instance; least: full runs that confirm a fleet. A fleet that fresh requests refute has missed,
    and the search is made again: what the bench knows takes it no time. Where it is to stop the fleet is not confirmed
    any more; None where nothing held. What is confirmed is tuned then, so that no tuning ends dearer than it began.
    """
    numbers = iter(range(1, MOST_CONFIRMED + 1))
    number = next(numbers, None)
    while number is not None:
        searched, lean = _chosen(solved, bench, brake, told)
        if lean is None or brake.stopped():
            return searched, lean, None
        told("confirming the fleet", 0.8)
        if without_room(bench, lean.winner, number) is not None:
            continue
        found = confirmed(bench, lean.winner, itertools.chain([number], numbers), least)
        if found.held:
            lean = replace(lean, winner=found)
            if tune is None or brake.stopped():
                return searched, lean, None
            told("tuning", 0.8)
            fleets = _candidates(solved)
            return searched, *_tuned(bench, lean, fleets, brake.stopped, numbers, tune=tune, least=least)
        number = next(numbers, None)
    return replace(searched, winner=None, nearest=found), None, None


def _tuned(
    bench: Bench, lean: Lean, fleets: Sequence[Fleet], stopped: Late, numbers: Iterator[int], *, tune: Wish, least: int
) -> tuple[Lean, Tuning]:
    """The confirmed fleet with its knobs tuned, where fresh requests confirm that too; else as it was.

    numbers: of the confirmations that are left; fleets, stopped: see `with_tuning`.
    """
    better, record = with_tuning(bench, lean, fleets, tune, stopped)
    number = next(numbers, None) if record.improved else None
    if number is not None and not stopped():
        found = confirmed(bench, better.winner, itertools.chain([number], numbers), least)
        if found.held:
            return replace(better, winner=found), record
        lean = replace(lean, others=(*better.others, (TUNED, found)))
    return lean, record.model_copy(update={"improved": False})


def _chosen(solved: Solved, bench: Bench, brake: Brake, told: Told) -> tuple[Searched, Lean | None]:
    """The cheapest fleet that holds on the requests that all fleets get."""
    fleets = _candidates(solved)
    searched = cheapest_verified(bench, fleets)
    if searched.winner is None:
        return searched, None
    brake.armed = True
    told("simulating smaller fleets", 0.75)
    lean = without_waste(bench, searched.winner, fleets, brake.stopped, near=solved.near)
    return searched, replace(lean, winner=with_larger_batches(bench, lean.winner, brake.stopped))


def _candidates(solved: Solved) -> list[Fleet]:
    """The fleets found by formula, the best first."""
    rivals = [fleet for rival in solved.rivals for fleet in rival.fleets]
    return _distinct([solved.fleet, *rivals])


def _distinct(fleets: Iterable[Fleet]) -> list[Fleet]:
    """Fleets with pools, each once."""
    found: list[Fleet] = []
    for fleet in fleets:
        if fleet.pools and not any(fleet is other for other in found):
            found.append(fleet)
    return found
