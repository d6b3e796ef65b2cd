"""The problem's own value on its frontier: what `optimize` finds there, with all its pools, settings and simulation.

A frontier is of fleets of one or two pools with the settings that formulas choose. The whole search knows more of them,
and is the word on the problem as it stands; the curve must not be above it there. Nor may a fleet that costs less be on
the curve there by formula alone, as the whole search has most likely refuted it.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from costmodel.errors import BelowFloorError, ImpossibleError
from optimizer.recommend.search import Level
from search_spaces.problem import Problem

from .frontier import Frontier, Over, Step, beyond, easier, easiest, hardest, rising
from .scenario import Answer, solve_full

SAME = 1.0 + 1e-9
"""Factor on a cost up to which another is no higher."""


def own_answer(problem: Problem, curve: Frontier) -> Answer | None:
    """What the whole search finds for the problem as it stands, where its value is in the range of the curve.

    None where nothing is proven to hold; for budgets also where it costs more than the curve shows.
    """
    if curve.here is None or not curve.steps:
        return None
    with suppress(BelowFloorError, ImpossibleError):
        found = solve_full(problem, Level.STANDARD)
        most = (curve.steps[-1].answer.cost or 0.0) * SAME if curve.by_budget else math.inf
        proven = found.cost is not None and found.attainment is not None
        return found if proven and (found.cost or 0.0) <= most else None
    return None


def no_dearer(over: Over, curve: Frontier) -> list[int]:
    """Numbers of the steps whose fleets hold at the own value by formula and cost no more than what was found there."""
    if curve.here is None or curve.own is None:
        return []
    first = len(_before(over, curve, curve.here))
    most = (curve.own.cost or 0.0) * SAME
    return [
        number
        for number, step in enumerate(curve.steps)
        if number >= first and step.answer.pick is not None and (step.answer.cost or 0.0) <= most
    ]


def with_own(over: Over, curve: Frontier) -> Frontier:
    """The curve with what was found at the own value, where its step there costs more.

    How much further that fleet holds is not looked at: it has the values up to the own one, as far as others cost more.
    """
    here, own = curve.here, curve.own
    if here is None or own is None or own.cost is None:
        return curve
    before = _before(over, curve, here)
    after = list(curve.steps[len(before) :])
    if after and after[0].answer.cost is not None and after[0].answer.cost <= own.cost * SAME:
        return curve
    easy = easiest(over, here, *(step.easy for step in after[:1]))
    begins = beyond(over, here, curve.tolerance)
    rest = [replace(step, easy=hardest(over, step.easy, begins)) for step in after[:1] if step.hard != here]
    return replace(curve, steps=rising([*before, Step(easy, here, own), *rest, *after[1:]]))


def _before(over: Over, curve: Frontier, here: float) -> list[Step]:
    """The steps that end at easier values than the own one."""
    return [step for step in curve.steps if easier(over, step.hard, here)]
