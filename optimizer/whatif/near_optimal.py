"""Nearly as cheap, but different: fleets within a slack of the least cost that leave a GPU type or a vendor out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.errors import InputError
from optimizer.plans.plan import Status
from search_spaces.problem import Problem

from .physics import physics_of
from .scenario import Answer, answer_of, cheapest_settled, is_simple, nothing, solve_simple
from .second_look import proven


@dataclass(frozen=True, slots=True)
class NearOptimal:
    """The cheapest fleet under one more condition.

    condition: such as "without H200"; excess: what it costs more than the cheapest of all, as a share, None where there
    is no such fleet; within: whether that is within the slack.
    """

    condition: str
    answer: Answer
    excess: float | None
    within: bool


def near_optimal(problem: Problem, base: Path, slack: float, looks: int = 0) -> list[NearOptimal]:
    """The cheapest fleet of all first; then without each GPU type and vendor in it, and of each type and vendor alone.

    slack: share by which a fleet may cost more [1]; looks: of so many conditions, the cheapest first, the cheapest
    fleet that holds when simulated. Of equal fleets the first is kept; cheapest first.
    """
    if not is_simple(problem):
        raise InputError("--slack compares fleets of least cost whose pools serve every class; state such a goal")
    physics = physics_of(problem, base)
    best = proven(problem, physics) if looks else solve_simple(problem, base)
    if best.cost is None:
        return [NearOptimal("cheapest", best, None, within=False)]
    found = []
    for condition, allowed in _conditions(problem, set(best.gpus)):
        offers = tuple(
            offer if keep else replace(offer, inventory=0) for offer, keep in zip(problem.offers, allowed, strict=True)
        )
        here = replace(problem, offers=offers)
        pick = cheapest_settled(here, physics)
        none = f"by formula no fleet {condition} keeps the SLOs"
        answer = nothing(none, Status.TIME_LIMIT) if pick is None else answer_of(here, physics, pick)
        found.append((condition, here, answer))
    found.sort(key=lambda one: _by_cost(one[2]))
    rows = [
        (condition, proven(here, physics) if number < looks - 1 and answer.cost is not None else answer)
        for number, (condition, here, answer) in enumerate(found)
    ]
    rows.sort(key=lambda one: _by_cost(one[1]))
    return [_beside(condition, answer, best.cost, slack) for condition, answer in [("cheapest", best), *rows]]


def _by_cost(answer: Answer) -> tuple[bool, float]:
    return answer.cost is None, answer.cost or 0.0


def _beside(condition: str, answer: Answer, least: float, slack: float) -> NearOptimal:
    """What a condition costs more than the least cost [$/h]."""
    if answer.cost is None:
        return NearOptimal(condition, answer, None, within=False)
    excess = answer.cost / least - 1.0
    return NearOptimal(condition, answer, excess, excess <= slack * (1.0 + 1e-9))


def _conditions(problem: Problem, used: set[str]) -> Iterator[tuple[str, list[bool]]]:
    """Conditions that the cheapest fleet does not meet, with the offers that each allows."""
    cards = [offer.accelerator for offer in problem.offers]
    names, vendors = [card.name for card in cards], [card.vendor for card in cards]
    used_vendors = {card.vendor for card in cards if card.name in used}
    for name in names:
        if name in used and len(names) > 1:
            yield f"without {name}", [other != name for other in names]
        if used != {name}:
            yield f"only {name}", [other == name for other in names]
    for vendor in sorted(set(vendors)):
        if vendor in used_vendors and len(set(vendors)) > 1:
            yield f"without {vendor}", [other != vendor for other in vendors]
        if used_vendors != {vendor}:
            yield f"only {vendor}", [other == vendor for other in vendors]
