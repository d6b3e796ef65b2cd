"""Cost against demand or SLO: the whole curve as a staircase whose steps are exact to a stated tolerance.

Along a lever that only makes the problem harder, the cheapest fleet stays the cheapest until it no longer holds; the
evaluation of that one fleet says where. So each step of the curve takes one search and one bisection. The next fleet is
searched for RESOLUTION beyond that end: what would be the cheapest over less than that has no step.

Then steps are simulated where they end (`with_looks`). A fleet that misses there is tried at ever easier values until
it holds, then by bisection, so that where its step ends depends on the fleet and not on the range of the
curve. One that holds nowhere in its stretch has no step. From there on the cheapest fleet that holds when simulated is
searched for, until the next step begins, whose fleet holds where it is harder and would have taken over.

At the problem's own value the whole search is made, which knows more fleets: the curve is never above it there. Nor has
it a fleet there that costs less by formula alone, as the whole search has most likely refuted it: it is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from costmodel.errors import BelowFloorError, ImpossibleError, InputError
from costmodel.metric import Metric
from costmodel.quoting import shown
from costmodel.units import SECONDS_PER_HOUR
from optimizer.fleets.evaluate import holds_at
from optimizer.loads.diagnose import with_looser_slos
from optimizer.loads.flows import splits
from optimizer.loads.instance import Instance
from optimizer.plans.records import engine_counts
from optimizer.recommend.search import Level
from optimizer.search.search import settled
from optimizer.verification.judge import MOST_RUNS
from search_spaces.problem import Goal, Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .physics import Physics, Refuted, fleet_of, physics_of, refuted_with
from .scenario import (
    Answer,
    Missed,
    Pick,
    answer_of,
    cheapest,
    cheapest_confirmed,
    is_simple,
    look,
    nothing,
    own_value,
    solve_full,
    why_none,
)

Progress = Callable[[str, float], None]

MOST_STEPS = 300
"""A curve of more steps than this is asked over too wide a range."""
RESOLUTION = 0.01
"""Of the curve, relative to the lever's value (of attainment: to the misses that it permits) [1]: no step is narrower
but by its range, and what simulation says of an end is found to it."""
MOST_DOUBLINGS = 20
"""Of the rate at hand, or halvings, in search of a budget's."""
RUNS = 2
"""Full runs after which a fleet that straddles a goal at its end by formula is taken for a miss: each is near one
there. Elsewhere it gets as many as in any second look, so that one search does not contradict another."""
BETWEEN = 3
"""Fleets searched for where one misses, before that of the next step takes over."""
SAME = 1.0 + 1e-9
"""Factor on a cost up to which another is no higher."""

LATENCY = MappingProxyType({"ttft": "s", "tpot": "s"})
OVER = ("rate", *LATENCY, "attainment", "budget")
"""What `pdplan frontier` goes over."""


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of the curve on which one fleet is the cheapest: from `easy` to `hard`, its hardest value.

    promised: up to which it holds by formula, where a simulation says less; missed: where it was seen to miss then, at
    most RESOLUTION beyond `hard`.
    """

    easy: float
    hard: float
    answer: Answer
    promised: float | None = None
    missed: float | None = None


@dataclass(frozen=True, slots=True)
class Frontier:
    """Steps from the easiest value to the hardest; tolerance: relative, of each step's end by formula.

    refuted: fleets of steps that are gone, as they did not hold when simulated; by_budget: whether it is over the rate
    to be read the other way, see `by_budget`; here: the problem's own value, where the range has it; own: what the
    whole search finds there, with its simulation, where it was made and found a fleet.
    """

    over: str
    unit: str
    steps: tuple[Step, ...]
    tolerance: float
    refuted: tuple[Missed, ...] = ()
    by_budget: bool = False
    here: float | None = None
    own: Answer | None = None


# --- the lever ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ramp:
    """A problem along a lever that makes it harder: its key, the unit that it is told in, and the direction of harder.

    base: folder of the files that the problem names.
    """

    problem: Problem
    base: Path
    key: str
    unit: str
    upwards: bool

    @property
    def own_value(self) -> float | None:
        """The problem's own value; None where its classes have several goals."""
        if self.key != "attainment":
            return own_value(self.problem, self.key)
        goals = {slo.attainment for slo in self.problem.slos}
        return goals.pop() if len(goals) == 1 else None

    @property
    def usual_range(self) -> tuple[float, float]:
        """The range around the problem's own value."""
        here = self.own_value or 1.0
        return (0.5, 0.999) if self.key == "attainment" else (0.25 * here, 4.0 * here)

    def at(self, value: float) -> Problem:
        """The problem at a value; raises ImpossibleError where no engine can exist there."""
        stated: Any = f"{value!r}s" if self.key in LATENCY else value
        return scenario_problem(self.problem, Scenario("", {self.key: stated}), self.base)

    def harder(self, value: float) -> Problem:
        """The same in less time, for what only reads the demand and the SLOs."""
        if self.key == "rate":
            return replace(self.problem, workload=replace(self.problem.workload, request_rate=value))
        if self.key.endswith("_scale"):
            return with_looser_slos(self.problem, value, (Metric(self.key.removesuffix("_scale")),))
        if self.key == "attainment":
            slos = (replace(slo, attainment=value) for slo in self.problem.slos)
        else:
            slos = (replace(slo, limits={**slo.limits, Metric(self.key): value}) for slo in self.problem.slos)
        return replace(self.problem, slos=tuple(slos))

    def instance_at(self, physics: Physics, way: int, value: float) -> Instance:
        """The instance of one way of some physics at a value."""
        harder = self.harder(value)
        flows = list(splits(harder))
        return replace(physics.ways[way].instance, problem=harder, flows=flows[min(way, len(flows) - 1)])

    def hardness(self, value: float) -> float:
        """How hard it is at a value: two values differ by the logarithm of how many times as large one is.

        Of attainment, those of the misses that it permits.
        """
        if self.key == "attainment":
            return -math.log1p(-value)
        return math.log(value) if self.upwards else -math.log(value)

    def value_at(self, hardness: float) -> float:
        """The value of some `hardness`."""
        if self.key == "attainment":
            return -math.expm1(-hardness)
        return math.exp(hardness if self.upwards else -hardness)

    def is_easier(self, value: float, other: float) -> bool:
        """Whether the problem is easier at one value than at the other."""
        return value < other if self.upwards else value > other

    def beyond(self, value: float, tolerance: float) -> float:
        """The first value that is harder by a tolerance."""
        if self.key == "attainment":
            return 1.0 - (1.0 - value) / (1.0 + tolerance)
        return value * (1.0 + tolerance if self.upwards else 1.0 / (1.0 + tolerance))

    def held_to(self, physics: Physics, pick: Pick, ends: tuple[float, float], tolerance: float) -> float:
        """The hardest value at which a fleet still keeps every goal by formula, by bisection between two ends."""
        fleet = fleet_of(physics, pick.way, pick.pools)

        def held(value: float) -> bool:
            instance = self.instance_at(physics, pick.way, value)
            return holds_at(instance, fleet)

        good, bad = ends
        if held(bad):
            return bad
        while abs(bad - good) > 0.1 * tolerance * (1.0 - good if self.key == "attainment" else good):
            middle = (good + bad) / 2.0
            good, bad = (middle, bad) if held(middle) else (good, middle)
        return good

    def look(self, step: Step, value: float, most: int = MOST_RUNS) -> tuple[float, str]:
        """Simulate the fleet of a step at some value, with the batch limits that it would have there.

        most: full runs at most (`scenario.look`). A fleet that was seen to hold where its step begins is not simulated
        there again.
        """
        pick = step.answer.pick
        if value == step.easy and step.answer.attainment is not None:
            return step.answer.attainment, ""
        if pick is None:
            return 0.0, "has no fleet"
        physics = physics_of(self.at(step.easy), self.base)
        instance = self.instance_at(physics, pick.way, value)
        return look(instance, settled(instance, fleet_of(physics, pick.way, pick.pools)), most)


def ramp_of(problem: Problem, base: Path, name: str) -> Ramp:
    """The lever of a name; latency limits of several classes are scaled together."""
    if name in {"rate", "budget"}:
        return Ramp(problem, base, "rate", "req/s", upwards=True)
    if name == "attainment":
        return Ramp(problem, base, "attainment", "1", upwards=True)
    if name not in LATENCY:
        raise InputError(f"--over {shown(name)} is not one of {', '.join(OVER)}")
    key, unit = (f"{name}_scale", "1") if len(problem.slos) > 1 else (name, LATENCY[name])
    return Ramp(problem, base, key, unit, upwards=False)


# --- by formula -----------------------------------------------------------------------------------------------------


def frontier(
    problem: Problem,
    base: Path,
    name: str,
    bounds: tuple[float, float] | None = None,
    *,
    tolerance: float = 1e-4,
    progress: Progress | None = None,
) -> Frontier:
    """The cheapest fleet of one or two pools for every value of a lever within bounds, in the lever's unit.

    base: folder of the files that the problem names. Raises InputError for a goal other than the least cost.
    """
    if problem.objective.goal is not Goal.MIN_COST:
        raise InputError(f"objective: a frontier is of the least cost, but the goal is {problem.objective.goal.value}")
    if not is_simple(problem):
        raise InputError("constraints.pools: a frontier is of fleets whose pools serve every class, not per_class")
    ramp, budgets = ramp_of(problem, base, name), bounds if name == "budget" else None
    low, high = bounds or ramp.usual_range
    _check_range(name, low, high)
    if budgets is not None:
        low, high = rates_for(ramp, budgets)
    easy, hard = (low, high) if ramp.upwards else (high, low)
    here = ramp.own_value if ramp.own_value is not None and low <= ramp.own_value <= high else None
    steps, value, at = list[Step](), easy, easy
    while ramp.is_easier(value, hard):
        if len(steps) >= MOST_STEPS:
            raise InputError(f"--over {name}: more than {MOST_STEPS} fleets; narrow the range with --between")
        steps.append(_step(ramp, value, at, hard, tolerance))
        end = steps[-1].hard
        stops = (stop for stop in (hard, here) if stop is not None and ramp.is_easier(end, stop))
        at = min([ramp.beyond(end, RESOLUTION), *stops], key=ramp.hardness)
        value = min(at, ramp.beyond(end, tolerance), key=ramp.hardness)
        if progress is not None:
            progress(f"{len(steps)} fleet{'s' * (len(steps) > 1)}, at {value:.4g}", (value - easy) / (hard - easy))
    if name == "budget" and budgets is None:  # it buys all that its last fleet serves, also beyond the range
        steps[-1] = replace(steps[-1], hard=max(end, steps[-1].answer.goodput))
    curve = Frontier(ramp.key, ramp.unit, _rising(steps), tolerance, by_budget=name == "budget", here=here)
    return _within(curve, budgets)


def _check_range(name: str, low: float, high: float) -> None:
    if not 0.0 < low < high:
        raise InputError(f"--over {name}: the range from {low:g} to {high:g} is empty or not above zero")
    if name == "attainment" and high >= 1.0:
        meant = f"; did you mean {high:g}%?" if 1.0 < high < 100.0 else ""
        raise InputError(f"--over attainment: the range ends at {high:g}; goals are below 1, such as 0.999{meant}")


def _step(ramp: Ramp, easy: float, at: float, hard: float, tolerance: float) -> Step:
    """The step from `easy` on of the cheapest fleet at one value, as far as it holds.

    Where there is none, there is none further on, and the step begins there.
    """
    try:
        problem = ramp.at(at)
    except ImpossibleError as error:
        return Step(at, hard, nothing(str(error)))
    physics = physics_of(problem, ramp.base)
    pick = cheapest(problem, physics)
    if pick is None:
        return Step(at, hard, why_none(problem, physics))
    return Step(easy, ramp.held_to(physics, pick, (at, hard), tolerance), answer_of(problem, physics, pick))


def _rising(steps: Sequence[Step]) -> tuple[Step, ...]:
    """A fleet that holds where it is harder holds where it is easier: no step costs more than the next."""
    kept: list[Step] = []
    for step in reversed(steps):
        cost, harder = step.answer.cost, kept[-1].answer.cost if kept else None
        if cost is not None and harder is not None and cost >= harder * (1.0 - 1e-9):
            kept[-1] = replace(kept[-1], easy=step.easy)
        else:
            kept.append(step)
    return tuple(reversed(kept))


def rates_for(ramp: Ramp, budgets: tuple[float, float]) -> tuple[float, float]:
    """Rates between which a curve passes both of two budgets [$/h], as far as any rate does [1/s]."""
    physics = physics_of(ramp.problem, ramp.base)

    def dearer(rate: float, budget: float) -> bool:
        pick = cheapest(ramp.harder(rate), physics)
        return pick is None or pick.cost > budget * SAME

    low = high = ramp.problem.workload.request_rate
    for _ in range(MOST_DOUBLINGS):
        if not dearer(low, budgets[0]):
            break
        low /= 2.0
    for _ in range(MOST_DOUBLINGS):
        if dearer(high, budgets[1]):
            break
        high *= 2.0
    return low, max(high, low * 2.0)


def _within(curve: Frontier, budgets: tuple[float, float] | None) -> Frontier:
    """The curve between two budgets [$/h]: from what the first one buys to what the last one does."""
    if budgets is None:
        return curve
    low, high = (budget * SAME for budget in budgets)
    kept = [step for step in curve.steps if step.answer.cost is not None and step.answer.cost <= high]
    below = sum(step.answer.cost is not None and step.answer.cost <= low for step in kept)
    return replace(curve, steps=tuple(kept[max(below - 1, 0) :]))


def by_budget(curve: Frontier) -> list[Mapping[str, float]]:
    """The curve over the rate read the other way: what each budget buys.

    Each row: budget from which on [$/h], the highest rate [1/s], requests per dollar at it [1/$].
    """
    return [
        {
            "budget_usd_per_hour": step.answer.cost,
            "rate_rps": step.hard,
            "requests_per_dollar": step.hard * SECONDS_PER_HOUR / step.answer.cost,
        }
        for step in curve.steps
        if step.answer.cost
    ]


# --- by simulation --------------------------------------------------------------------------------------------------


def with_looks(
    problem: Problem, base: Path, name: str, curve: Frontier, *, looks: int, progress: Progress | None = None
) -> Frontier:
    """The curve with so many steps simulated, and with what the whole search finds at the problem's own value.

    First those that cost no more there, then the ends of the curve, then the steps before its largest jumps.
    """
    if not looks:
        return curve
    ramp = ramp_of(problem, base, name)
    if progress is not None:
        progress("searching at the file's own value", 0.0)
    curve = replace(curve, own=own_answer(problem, curve))
    first = _no_dearer(ramp, curve)
    chosen = list(dict.fromkeys([*first, *_ranked(curve.steps)]))[: max(looks, len(first))]
    kept: list[Step] = []
    gone: list[Missed] = []
    for number, step in enumerate(curve.steps):
        if progress is not None and number in chosen:
            gpus = " + ".join(f"{count} {card}" for card, count in step.answer.gpus.items())
            progress(f"simulating {gpus}", (1 + number) / (1 + len(curve.steps)))
        outcome = _step_as_seen(ramp, step) if number in chosen else step
        if isinstance(outcome, Missed):
            gone.append(outcome)
        else:
            kept += _with_those_before(ramp, curve, kept, outcome)
    last = curve.steps[-1] if curve.steps and name != "budget" else None
    if last is not None and (not kept or kept[-1].hard != last.hard):
        there = ramp.at(last.hard)
        final = Step(last.hard, last.hard, cheapest_confirmed(there, physics_of(there, base)))
        kept += _with_those_before(ramp, curve, kept, final)
    steps = _wide(ramp, curve.here, _merged(_rising(kept)))
    shown_fleets = {_engines(step) for step in steps}  # at easier values, by a search in between
    refuted = tuple(missed for missed in gone if engine_counts(missed.pools) not in shown_fleets)
    return _with_own(ramp, replace(curve, steps=steps, refuted=refuted))


def _ranked(steps: Sequence[Step]) -> list[int]:
    """Numbers of the steps that have a fleet: the last and the first, then those before the largest jumps in cost."""
    having = [number for number, step in enumerate(steps) if step.answer.pick is not None]
    costs = [float(steps[number].answer.cost or 0.0) for number in having]
    jumps = [(before - after, number) for number, (before, after) in zip(having, pairwise(costs), strict=False)]
    return list(dict.fromkeys([*having[-1:], *having[:1], *(number for _, number in sorted(jumps))]))


def _step_as_seen(ramp: Ramp, step: Step) -> Step | Missed:
    """A step as far as its fleet holds when simulated; what it missed by, where that is nowhere."""
    reached, fault = ramp.look(step, step.hard, RUNS)
    if not fault:
        return replace(step, answer=replace(step.answer, attainment=reached))
    missed = step.answer.missed(reached, fault)
    held = _last_held(ramp, step)
    if held is None:
        return missed
    good, bad, share = held
    answer = replace(step.answer, attainment=share, refuted=(missed,))
    return replace(step, hard=good, answer=answer, promised=step.hard, missed=bad)


def _last_held(ramp: Ramp, step: Step) -> tuple[float, float, float] | None:
    """The hardest value at which a fleet that misses at the end of its step was seen to hold; None if there is none.

    With it the easiest at which it was seen to miss, RESOLUTION beyond at most, and the share in time where it holds.
    """
    width = math.log1p(RESOLUTION)
    easy, end, back = ramp.hardness(step.easy), ramp.hardness(step.hard), width
    bad, good, share = end, -math.inf, 0.0
    exact = {easy: step.easy, end: step.hard}  # as they are, whatever logarithms make of them
    while bad - good > width * (1.0 + 1e-9):
        from_end = bad - back if bad - back > easy + width else easy
        tried = from_end if math.isinf(good) else (good + bad) / 2.0
        reached, fault = ramp.look(step, step.easy if tried == easy else ramp.value_at(tried))
        if not fault:
            good, share = tried, reached
        elif tried == easy:
            return None
        else:
            bad, back = tried, 2.0 * back
    return exact.get(good, ramp.value_at(good)), exact.get(bad, ramp.value_at(bad)), share


def _with_those_before(ramp: Ramp, curve: Frontier, kept: Sequence[Step], step: Step) -> list[Step]:
    """A step from where the last one kept ends, after the cheaper fleets that hold where those of the curve do not.

    By formula its own fleet is the cheapest only from its beginning on. Each of these is the cheapest that holds where
    the one before was seen to miss, as far as it does; where something is harder it holds where it is easier.
    """
    between: list[Step] = []
    before = kept[-1:]
    bare = step.easy  # where nothing holds, if the step has no fleet
    most = math.inf if step.answer.cost is None else step.answer.cost * (1.0 - 1e-9)
    easy, at = _after(ramp, curve, before)
    while len(between) < BETWEEN and ramp.is_easier(ramp.beyond(at, curve.tolerance), step.easy):
        problem = ramp.at(at)
        physics = physics_of(problem, ramp.base)
        answer = cheapest_confirmed(problem, physics, _missed_at(before, at))
        if answer.pick is None or answer.cost is None or answer.cost >= most:
            bare = at
            break
        end = ramp.held_to(physics, answer.pick, (at, step.easy), curve.tolerance)
        outcome = _step_as_seen(ramp, Step(at, end, answer))
        if isinstance(outcome, Missed):  # not where it was just seen to hold
            break
        between.append(replace(outcome, easy=easy))
        before = between[-1:]
        easy, at = _after(ramp, curve, before)
    begins = easy if step.answer.cost is not None else bare
    return between if ramp.is_easier(step.hard, begins) else [*between, replace(step, easy=begins)]


def _missed_at(before: Sequence[Step], at: float) -> Refuted:
    """The fleet of the step before, where it is the one that was seen to miss at a value."""
    return frozenset(refuted_with(step.answer.pick.pools) for step in before if step.answer.pick and step.missed == at)


def _after(ramp: Ramp, curve: Frontier, before: Sequence[Step]) -> tuple[float, float]:
    """Where the step after another begins, and where its fleet has to hold."""
    if not before:
        return curve.steps[0].easy, curve.steps[0].easy
    easy = ramp.beyond(before[-1].hard, curve.tolerance)
    return easy, easy if before[-1].missed is None else before[-1].missed


def _wide(ramp: Ramp, here: float | None, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps less those that simulation made narrower than RESOLUTION: the fleet of the next one holds there too.

    Both ends stay, and so does the step at the problem's own value `here`.
    """
    kept: list[Step] = []
    begins: float | None = None
    for number, step in enumerate(steps):
        easy = step.easy if begins is None else begins
        own = here is not None and min(easy, step.hard) <= here <= max(easy, step.hard)
        followed = number + 1 < len(steps) and steps[number + 1].answer.cost is not None
        if followed and not own and ramp.hardness(step.hard) - ramp.hardness(easy) < math.log1p(RESOLUTION):
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


# --- at the problem's own value -------------------------------------------------------------------------------------


def own_answer(problem: Problem, curve: Frontier) -> Answer | None:
    """What the whole search finds for the problem as it stands, where its value is in the range of the curve.

    None where nothing is proven to hold; for budgets also where it costs more than the curve shows.
    """
    if curve.here is None or not curve.steps:
        return None
    most = (curve.steps[-1].answer.cost or 0.0) * SAME if curve.by_budget else math.inf
    with suppress(BelowFloorError, ImpossibleError):
        own = solve_full(problem, Level.STANDARD)
        return own if own.cost is not None and own.attainment is not None and own.cost <= most else None
    return None


def _no_dearer(ramp: Ramp, curve: Frontier) -> list[int]:
    """Numbers of the steps whose fleets hold at the own value by formula and cost no more than what is found there."""
    if curve.here is None or curve.own is None:
        return []
    first = len(_easier_steps(ramp, curve, curve.here))
    most = (curve.own.cost or 0.0) * SAME
    return [
        number
        for number, step in enumerate(curve.steps)
        if number >= first and step.answer.pick is not None and (step.answer.cost or 0.0) <= most
    ]


def _with_own(ramp: Ramp, curve: Frontier) -> Frontier:
    """The curve with what was found at the own value, where its step there costs more.

    How much further that fleet holds is not looked at: it has the values up to the own one, as far as others cost more.
    """
    here, own = curve.here, curve.own
    if here is None or own is None or own.cost is None:
        return curve
    before = _easier_steps(ramp, curve, here)
    after = curve.steps[len(before) :]
    if after and after[0].answer.cost is not None and after[0].answer.cost <= own.cost * SAME:
        return curve
    easy = min([here, *(step.easy for step in after[:1])], key=ramp.hardness)
    begins = ramp.beyond(here, curve.tolerance)
    rest = [replace(step, easy=max(step.easy, begins, key=ramp.hardness)) for step in after[:1] if step.hard != here]
    return replace(curve, steps=_rising([*before, Step(easy, here, own), *rest, *after[1:]]))


def _easier_steps(ramp: Ramp, curve: Frontier, here: float) -> list[Step]:
    """The steps that end at easier values than the own one."""
    return [step for step in curve.steps if ramp.is_easier(step.hard, here)]
