"""A second look at the steps of a frontier: each fleet is simulated where it is said to hold last.

A fleet that misses there is tried at easier values of its stretch, by bisection; its step ends at the hardest at which
it holds, and the next fleet, which holds where it is harder, takes over from there. A fleet that holds nowhere in its
stretch has no step. Named first are the ends of the curve, then the steps before its largest jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from optimizer.rivals.by_evaluation import settled
from search_spaces.problem import Problem

from .frontier import Frontier, Step, Where, beyond, over_of
from .physics import fleet_of, physics_of
from .scenario import Missed
from .second_look import look, proven

HALVINGS = 2
"""Of the stretch of a fleet that misses at its end: the end is found to a quarter of it."""
RUNS = 2
"""Full runs after which a fleet that straddles a goal is taken for a miss: at its end by formula each is near one."""

Progress = Callable[[str, float], None]


def with_looks(
    problem: Problem, base: Path, name: str, curve: Frontier, *, looks: int, progress: Progress | None = None
) -> Frontier:
    """The curve with so many of its steps simulated."""
    where = Where(problem, base, over_of(problem, name))
    chosen = named_steps(curve.steps)[:looks]
    seen: dict[int, Step | Missed] = {}
    for number, at in enumerate(chosen):
        if progress is not None:
            gpus = " + ".join(f"{count} {name}" for name, count in curve.steps[at].answer.gpus.items())
            progress(f"simulating {gpus}", number / len(chosen))
        seen[at] = looked_at(where, curve.steps[at])
    return _joined(where, curve, seen, to_the_end=name != "budget")


def named_steps(steps: Sequence[Step]) -> list[int]:
    """Numbers of the steps that have a fleet: the last and the first, then those before the largest jumps in cost."""
    having = [number for number, step in enumerate(steps) if step.answer.pick is not None]
    costs = [float(steps[number].answer.cost or 0.0) for number in having]
    jumps = [(before - after, number) for number, (before, after) in zip(having, pairwise(costs), strict=False)]
    return list(dict.fromkeys([*having[-1:], *having[:1], *(number for _, number in sorted(jumps))]))


def looked_at(where: Where, step: Step) -> Step | Missed:
    """A step as far as its fleet holds when simulated; what it missed by, where that is nowhere."""
    reached, fault = _look(where, step, step.hard)
    if not fault:
        return replace(step, answer=replace(step.answer, attainment=reached))
    missed = Missed(step.answer.cost or 0.0, step.answer.pools, reached, fault)
    good, bad, share = step.easy, step.hard, None
    for _ in range(HALVINGS):
        middle = (good + bad) / 2.0
        reached, fault = _look(where, step, middle)
        if fault:
            bad = middle
        else:
            good, share = middle, reached
    if share is None:
        return missed
    answer = replace(step.answer, attainment=share, refuted=(missed,))
    return replace(step, hard=good, answer=answer, promised=step.hard)


def _look(where: Where, step: Step, value: float) -> tuple[float, str]:
    """A second look at the fleet of a step at some value, with the batch limits that it would have there."""
    pick = step.answer.pick
    if pick is None:
        return 0.0, "has no fleet"
    physics = physics_of(where.at(step.easy), where.base)
    here = where.instance_at(physics, pick.way, value)
    fleet = settled(here, fleet_of(physics, pick.way, pick.pools))
    return look(here, fleet, RUNS)


def _joined(where: Where, curve: Frontier, seen: Mapping[int, Step | Missed], *, to_the_end: bool) -> Frontier:
    """The steps that are left, each from where the one before it ends, and the cheapest fleet that holds at the end."""
    kept: list[Step] = []
    gone: list[Missed] = []
    for number, step in enumerate(curve.steps):
        found = seen.get(number, step)
        if isinstance(found, Missed):
            gone.append(found)
            continue
        easy = curve.steps[0].easy if not kept else beyond(where.over, kept[-1].hard, curve.tolerance)
        kept.append(replace(found, easy=easy))
    last = curve.steps[-1] if curve.steps and to_the_end else None
    if last is not None and (not kept or kept[-1].hard != last.hard):
        easy = last.easy if not kept else beyond(where.over, kept[-1].hard, curve.tolerance)
        there = where.at(last.hard)
        kept.append(Step(easy, last.hard, proven(there, physics_of(there, where.base))))
    return replace(curve, steps=tuple(kept), refuted=tuple(gone))
