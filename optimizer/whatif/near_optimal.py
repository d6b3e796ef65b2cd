"""Nearly as cheap, but different: fleets within a slack of the least cost that leave a GPU type or a vendor out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.errors import InputError
from search_spaces.problem import Problem

from .physics import physics_of
from .scenario import Answer, answer_of, cheapest, is_simple, nothing, why_none


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


def near_optimal(problem: Problem, base: Path, slack: float) -> list[NearOptimal]:
    """The cheapest fleet of all first; then without each GPU type and vendor in it, and of each type and vendor alone.

    slack: share by which a fleet may cost more [1]. Of equal fleets the first is kept; cheapest first.
    """
    if not is_simple(problem):
        raise InputError("--slack compares fleets of least cost whose pools serve every class; state such a goal")
    physics = physics_of(problem, base)
    pick = None if physics.floor else cheapest(problem, physics)
    if pick is None:
        return [NearOptimal("cheapest", why_none(problem, physics), None, within=False)]
    best = answer_of(problem, physics, pick)
    found = [NearOptimal("cheapest", best, 0.0, within=True)]
    for condition, allowed in _conditions(problem, set(best.gpus)):
        offers = tuple(
            offer if keep else replace(offer, inventory=0) for offer, keep in zip(problem.offers, allowed, strict=True)
        )
        here = replace(problem, offers=offers)
        other = cheapest(here, physics)
        if other is None:
            found.append(NearOptimal(condition, nothing(f"no fleet {condition} keeps the SLOs"), None, within=False))
            continue
        excess = other.cost / pick.cost - 1.0
        found.append(NearOptimal(condition, answer_of(here, physics, other), excess, excess <= slack * (1.0 + 1e-9)))
    first, *others = found
    return [first, *sorted(others, key=lambda one: (one.excess is None, one.excess or 0.0))]


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
