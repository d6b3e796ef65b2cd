"""A second look at the steps of a frontier: each fleet is simulated where it is said to hold last.

A fleet that misses there is tried at easier values, from that end on: at distances that double until it holds, then by
bisection, so that where its step ends depends on the fleet and not on the range of the curve. One that holds nowhere in
its stretch has no step. From there on the cheapest fleet that holds when simulated is searched for, until the next step
begins, whose fleet holds where it is harder and would have taken over.

At the problem's own value the whole search is made, so that the curve is never above what it finds (`frontier_own`).
Looked at first are the steps that are cheaper there, then the ends of the curve, then the steps before its largest
jumps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from optimizer.plans.plan_pools import engine_counts
from optimizer.rivals.by_evaluation import settled
from optimizer.verification.bench import REPLICATIONS
from search_spaces.problem import Problem

from .frontier import (
    RESOLUTION,
    Frontier,
    Over,
    Step,
    Where,
    beyond,
    easier,
    hardness,
    held_to,
    over_of,
    rising,
    value_at,
)
from .frontier_own import no_dearer, own_answer, with_own
from .physics import fleet_of, physics_of
from .refuted import Refuted, refuted_with
from .scenario import Missed
from .second_look import look, proven

RUNS = 2
"""Full runs after which a fleet that straddles a goal at its end by formula is taken for a miss: each is near one
there. Elsewhere it gets as many as in any second look, so that one search does not contradict another."""
BETWEEN = 3
"""Fleets searched for where one misses, before that of the next step takes over."""

Progress = Callable[[str, float], None]


def with_looks(
    problem: Problem, base: Path, name: str, curve: Frontier, *, looks: int, progress: Progress | None = None
) -> Frontier:
    """The curve with so many steps simulated, and with what the whole search finds at the problem's own value."""
    if not looks:
        return curve
    where, told = Where(problem, base, over_of(problem, name)), progress or _untold
    told("searching at the file's own value", 0.0)
    curve = replace(curve, own=own_answer(problem, curve))
    first = no_dearer(where.over, curve)
    chosen = list(dict.fromkeys([*first, *named_steps(curve.steps)]))[: max(looks, len(first))]
    seen: dict[int, Step | Missed] = {}
    for number, at in enumerate(chosen):
        gpus = " + ".join(f"{count} {name}" for name, count in curve.steps[at].answer.gpus.items())
        told(f"simulating {gpus}", (1 + number) / (1 + len(chosen)))
        seen[at] = looked_at(where, curve.steps[at])
    return with_own(where.over, _joined(where, curve, seen, to_the_end=name != "budget"))


def _untold(label: str, fraction: float) -> None:
    """Nobody waits to be told."""


def named_steps(steps: Sequence[Step]) -> list[int]:
    """Numbers of the steps that have a fleet: the last and the first, then those before the largest jumps in cost."""
    having = [number for number, step in enumerate(steps) if step.answer.pick is not None]
    costs = [float(steps[number].answer.cost or 0.0) for number in having]
    jumps = [(before - after, number) for number, (before, after) in zip(having, pairwise(costs), strict=False)]
    return list(dict.fromkeys([*having[-1:], *having[:1], *(number for _, number in sorted(jumps))]))


def looked_at(where: Where, step: Step) -> Step | Missed:
    """A step as far as its fleet holds when simulated; what it missed by, where that is nowhere."""
    reached, fault = _look(where, step, step.hard, RUNS)
    if not fault:
        return replace(step, answer=replace(step.answer, attainment=reached))
    missed = Missed(step.answer.cost or 0.0, step.answer.pools, reached, fault)
    held = _last_held(where, step)
    if held is None:
        return missed
    good, bad, share = held
    answer = replace(step.answer, attainment=share, refuted=(missed,))
    return replace(step, hard=good, answer=answer, promised=step.hard, missed=bad)


def _last_held(where: Where, step: Step) -> tuple[float, float, float] | None:
    """The hardest value at which a fleet that misses at the end of its step was seen to hold; None if there is none.

    With it the easiest at which it was seen to miss, RESOLUTION beyond at most, and the share in time where it holds.
    """
    over, width = where.over, math.log1p(RESOLUTION)
    easy, end, back = hardness(over, step.easy), hardness(over, step.hard), width
    bad, good, share = end, -math.inf, 0.0
    while bad - good > width * (1.0 + 1e-9):
        from_end = bad - back if bad - back > easy + width else easy
        tried = from_end if math.isinf(good) else (good + bad) / 2.0
        reached, fault = _look(where, step, step.easy if tried == easy else value_at(over, tried))
        if not fault:
            good, share = tried, reached
        elif tried == easy:
            return None
        else:
            bad, back = tried, 2.0 * back
    ends = {easy: step.easy, end: step.hard}  # exactly as they are, whatever logarithms make of them
    return ends.get(good, value_at(over, good)), ends.get(bad, value_at(over, bad)), share


def _look(where: Where, step: Step, value: float, most: int = REPLICATIONS[-1]) -> tuple[float, str]:
    """A second look at the fleet of a step at some value, with the batch limits that it would have there.

    most: full runs at most (`look`). A fleet that was seen to hold where its step begins is not looked at there again.
    """
    pick = step.answer.pick
    if value == step.easy and step.answer.attainment is not None:
        return step.answer.attainment, ""
    if pick is None:
        return 0.0, "has no fleet"
    physics = physics_of(where.at(step.easy), where.base)
    here = where.instance_at(physics, pick.way, value)
    fleet = settled(here, fleet_of(physics, pick.way, pick.pools))
    return look(here, fleet, most)


def _joined(where: Where, curve: Frontier, seen: Mapping[int, Step | Missed], *, to_the_end: bool) -> Frontier:
    """The steps that are left, each from where the one before ends, and fleets that hold in between and at the end."""
    kept: list[Step] = []
    gone: list[Missed] = []
    for number, step in enumerate(curve.steps):
        found = seen.get(number, step)
        if isinstance(found, Missed):
            gone.append(found)
        else:
            kept += _with_those_before(where, curve, kept, found)
    last = curve.steps[-1] if curve.steps and to_the_end else None
    if last is not None and (not kept or kept[-1].hard != last.hard):
        there = where.at(last.hard)
        final = Step(last.hard, last.hard, proven(there, physics_of(there, where.base)))
        kept += _with_those_before(where, curve, kept, final)
    steps = _wide(where.over, curve.here, _merged(rising(kept)))
    shown = {_engines(step) for step in steps}  # at easier values, by a search in between
    return replace(curve, steps=steps, refuted=tuple(one for one in gone if engine_counts(one.pools) not in shown))


def _with_those_before(where: Where, curve: Frontier, kept: Sequence[Step], step: Step) -> list[Step]:
    """A step from where the last one kept ends, after the cheaper fleets that hold where those of the curve do not.

    By formula its own fleet is the cheapest only from its beginning on. Each of these is the cheapest that holds where
    the one before was seen to miss, as far as it does; where something is harder it holds where it is easier.
    """
    found: list[Step] = []
    easy, at = _after(where, curve, kept)
    before = kept[-1:]
    bare = step.easy  # where nothing holds, if the step has no fleet
    most = math.inf if step.answer.cost is None else step.answer.cost * (1.0 - 1e-9)
    while len(found) < BETWEEN and easier(where.over, beyond(where.over, at, curve.tolerance), step.easy):
        problem = where.at(at)
        physics = physics_of(problem, where.base)
        answer = proven(problem, physics, _missed_there(before, at))
        if answer.pick is None or answer.cost is None or answer.cost >= most:
            bare = at
            break
        end = held_to(where, physics, answer.pick, (at, step.easy), curve.tolerance)
        here = looked_at(where, Step(at, end, answer))
        if isinstance(here, Missed):  # not where it was just seen to hold
            break
        found.append(replace(here, easy=easy))
        before = found[-1:]
        easy, at = _after(where, curve, found)
    begins = easy if step.answer.cost is not None else bare
    return found if easier(where.over, step.hard, begins) else [*found, replace(step, easy=begins)]


def _missed_there(before: Sequence[Step], at: float) -> Refuted:
    """The fleet of the step before, where it is the one that was seen to miss at a value."""
    return frozenset(refuted_with(step.answer.pick.pools) for step in before if step.answer.pick and step.missed == at)


def _after(where: Where, curve: Frontier, steps: Sequence[Step]) -> tuple[float, float]:
    """Where the step after some begins, and where its fleet has to hold."""
    if not steps:
        return curve.steps[0].easy, curve.steps[0].easy
    last = steps[-1]
    easy = beyond(where.over, last.hard, curve.tolerance)
    return easy, easy if last.missed is None else last.missed


def _wide(over: Over, here: float | None, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps less those that simulation made narrower than RESOLUTION: the fleet of the next one holds there too.

    Both ends stay, and so does the step at the problem's own value `here`.
    """
    kept: list[Step] = []
    begins: float | None = None
    for number, step in enumerate(steps):
        easy = step.easy if begins is None else begins
        own = here is not None and min(easy, step.hard) <= here <= max(easy, step.hard)
        followed = number + 1 < len(steps) and steps[number + 1].answer.cost is not None
        if followed and not own and hardness(over, step.hard) - hardness(over, easy) < math.log1p(RESOLUTION):
            begins = easy
        else:
            kept.append(replace(step, easy=easy))
            begins = None
    return tuple(kept)


def _engines(step: Step) -> Hashable:
    return engine_counts(step.answer.pools)


def _merged(steps: Sequence[Step]) -> tuple[Step, ...]:
    """One step of those next to each other that have the same fleet."""
    merged: list[Step] = []
    for step in steps:
        if merged and step.answer.pools and _engines(step) == _engines(merged[-1]):
            merged[-1] = replace(step, easy=merged[-1].easy)
        else:
            merged.append(step)
    return tuple(merged)
