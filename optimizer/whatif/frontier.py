"""Cost against demand or SLO: the whole curve as a staircase whose steps are exact to a stated tolerance.

Along a lever that only makes the problem harder, the cheapest fleet stays the cheapest until it no longer holds; the
evaluation of that one fleet says where. So each step of the curve takes one search and one bisection. The next fleet is
searched for RESOLUTION beyond that end: what would be the cheapest over less than that has no step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from costmodel.errors import ImpossibleError, InputError
from costmodel.metric import Metric
from costmodel.quoting import shown
from costmodel.units import SECONDS_PER_HOUR
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.loads.diagnose import with_looser_slos
from optimizer.loads.flows import splits
from optimizer.loads.instance import Instance
from search_spaces.problem import Goal, Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .physics import Physics, fleet_of, physics_of
from .scenario import Answer, Missed, Pick, answer_of, cheapest, is_simple, nothing, why_none

MOST_STEPS = 300
"""A curve of more steps than this is asked over too wide a range."""

RESOLUTION = 0.01
"""Of the curve, relative to the lever's value (of attainment: to the misses that it permits) [1]: no step is narrower
but by its range, and what simulation says of an end is found to it."""

MOST_DOUBLINGS = 20
"""Of the rate at hand, or halvings, in search of a budget's."""

Change = Callable[[Problem, float], Problem]


@dataclass(frozen=True, slots=True)
class Over:
    """A lever that makes a problem harder: its key, the unit that it is told in, and the direction of harder.

    change: the problem at another value; low, high: range by default, as multiples of the value at hand.
    """

    key: str
    unit: str
    upwards: bool
    change: Change
    low: float
    high: float


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


def _rate(problem: Problem, value: float) -> Problem:
    return replace(problem, workload=replace(problem.workload, request_rate=value))


def _goal(problem: Problem, value: float) -> Problem:
    return replace(problem, slos=tuple(replace(slo, attainment=value) for slo in problem.slos))


def _limit(metric: Metric, *, scaled: bool) -> Change:
    """Set a limit of every class, or multiply it."""

    def apply(problem: Problem, value: float) -> Problem:
        if scaled:
            return with_looser_slos(problem, value, (metric,))
        slos = tuple(replace(slo, limits={**slo.limits, metric: value}) for slo in problem.slos)
        return replace(problem, slos=slos)

    return apply


LATENCY = MappingProxyType({"ttft": "s", "tpot": "s"})
OVER = ("rate", *LATENCY, "attainment", "budget")
"""What `pdplan frontier` goes over."""


def over_of(problem: Problem, name: str) -> Over:
    """The lever of a name; latency limits of several classes are scaled together."""
    if name in {"rate", "budget"}:
        return Over("rate", "req/s", upwards=True, change=_rate, low=0.25, high=4.0)
    if name == "attainment":
        return Over("attainment", "1", upwards=True, change=_goal, low=0.0, high=0.0)
    if name not in LATENCY:
        raise InputError(f"--over {shown(name)} is not one of {', '.join(OVER)}")
    several = len(problem.slos) > 1
    key, unit = (f"{name}_scale", "1") if several else (name, LATENCY[name])
    return Over(key, unit, upwards=False, change=_limit(Metric(name), scaled=several), low=0.25, high=4.0)


def usual_range(problem: Problem, over: Over) -> tuple[float, float]:
    """The range around the problem's own value."""
    if over.key == "attainment":
        return 0.5, 0.999
    here = own_value(problem, over) or 1.0
    return over.low * here, over.high * here


def own_value(problem: Problem, over: Over) -> float | None:
    """The problem's own value of the lever; None where its classes have several goals."""
    if over.key == "rate":
        return problem.workload.request_rate
    values = {getattr(slo, over.key, 1.0) for slo in problem.slos}
    return values.pop() if len(values) == 1 else None


def frontier(
    problem: Problem,
    base: Path,
    name: str,
    bounds: tuple[float, float] | None = None,
    *,
    tolerance: float = 1e-4,
    progress: Callable[[str, float], None] | None = None,
) -> Frontier:
    """The cheapest fleet of one or two pools for every value of a lever within bounds, in the lever's unit.

    base: folder of the files that the problem names. Raises InputError for a goal other than the least cost.
    """
    if problem.objective.goal is not Goal.MIN_COST:
        raise InputError(f"objective: a frontier is of the least cost, but the goal is {problem.objective.goal.value}")
    if not is_simple(problem):
        raise InputError("constraints.pools: a frontier is of fleets whose pools serve every class, not per_class")
    over = over_of(problem, name)
    low, high = bounds or usual_range(problem, over)
    if not 0.0 < low < high:
        raise InputError(f"--over {name}: the range from {low:g} to {high:g} is empty or not above zero")
    if name == "attainment" and high >= 1.0:
        meant = f"; did you mean {high:g}%?" if 1.0 < high < 100.0 else ""
        raise InputError(f"--over attainment: the range ends at {high:g}; goals are below 1, such as 0.999{meant}")
    budgets = bounds if name == "budget" else None
    if budgets is not None:
        low, high = rates_for(problem, base, budgets)
    easy, hard = (low, high) if over.upwards else (high, low)
    here = own_value(problem, over)
    here = here if here is not None and low <= here <= high else None
    where, steps, value, at = Where(problem, base, over), list[Step](), easy, easy
    while easier(over, value, hard):
        if len(steps) >= MOST_STEPS:
            raise InputError(f"--over {name}: more than {MOST_STEPS} fleets; narrow the range with --between")
        step = _step(where, value, at, hard, tolerance)
        steps.append(step)
        at = _next(over, step.hard, [hard, *([] if here is None else [here])])
        value = easiest(over, at, beyond(over, step.hard, tolerance))
        if progress is not None:
            progress(f"{len(steps)} fleet{'s' * (len(steps) > 1)}, at {value:.4g}", (value - easy) / (hard - easy))
    if name == "budget" and budgets is None:
        steps[-1:] = [_to_its_end(steps[-1])]
    curve = Frontier(over.key, over.unit, rising(steps), tolerance, by_budget=name == "budget", here=here)
    return within(curve, budgets)


def _next(over: Over, end: float, others: Sequence[float]) -> float:
    """Where the fleet after the end of a step is searched for: RESOLUTION beyond, or at one of others before that."""
    return easiest(over, beyond(over, end, RESOLUTION), *(value for value in others if easier(over, end, value)))


def _to_its_end(step: Step) -> Step:
    """A step over the rate as far as its fleet holds, also beyond the range: a budget buys all of it."""
    return replace(step, hard=max(step.hard, step.answer.goodput))


def hardness(over: Over, value: float) -> float:
    """How hard the problem is at a value: two values differ by the logarithm of how many times as large one is.

    Of attainment, those of the misses that it permits.
    """
    if over.key == "attainment":
        return -math.log1p(-value)
    return math.log(value) if over.upwards else -math.log(value)


def value_at(over: Over, hard: float) -> float:
    """The value of some `hardness`."""
    if over.key == "attainment":
        return -math.expm1(-hard)
    return math.exp(hard if over.upwards else -hard)


def easiest(over: Over, *values: float) -> float:
    """The value at which the problem is the easiest."""
    return min(values) if over.upwards else max(values)


def hardest(over: Over, *values: float) -> float:
    """The value at which the problem is the hardest."""
    return max(values) if over.upwards else min(values)


def easier(over: Over, one: float, other: float) -> bool:
    """Whether the problem is easier at one value of the lever than at the other."""
    return one < other if over.upwards else one > other


def beyond(over: Over, value: float, tolerance: float) -> float:
    """The first value that is harder by a tolerance."""
    if over.key == "attainment":
        return 1.0 - (1.0 - value) / (1.0 + tolerance)
    return value * (1.0 + tolerance if over.upwards else 1.0 / (1.0 + tolerance))


@dataclass(frozen=True, slots=True)
class Where:
    """Whose curve it is, and over what; base: folder of the files that the problem names."""

    problem: Problem
    base: Path
    over: Over

    def at(self, value: float) -> Problem:
        """The problem at a value of the lever; raises ImpossibleError where no engine can exist there."""
        stated: Any = f"{value!r}s" if self.over.key in LATENCY else value
        return scenario_problem(self.problem, Scenario("", {self.over.key: stated}), self.base)

    def instance_at(self, physics: Physics, way: int, value: float) -> Instance:
        """The instance of one way of some physics at another value."""
        harder = self.over.change(self.problem, value)
        flows = list(splits(harder))
        return replace(physics.ways[way].instance, problem=harder, flows=flows[min(way, len(flows) - 1)])


def _step(where: Where, easy: float, at: float, hard: float, tolerance: float) -> Step:
    """The step from `easy` on of the cheapest fleet at one value, as far as it holds.

    Where there is none, there is none further on, and the step begins there.
    """
    try:
        problem = where.at(at)
    except ImpossibleError as error:
        return Step(at, hard, nothing(str(error)))
    physics = physics_of(problem, where.base)
    pick = None if physics.floor else cheapest(problem, physics)
    if pick is None:
        return Step(at, hard, why_none(problem, physics))
    return Step(easy, held_to(where, physics, pick, (at, hard), tolerance), answer_of(problem, physics, pick))


def held_to(where: Where, physics: Physics, pick: Pick, ends: tuple[float, float], tolerance: float) -> float:
    """The hardest value at which a fleet still keeps every goal, by bisection."""
    fleet = fleet_of(physics, pick.way, pick.pools)

    def held(value: float) -> bool:
        here = where.instance_at(physics, pick.way, value)
        return holds(here, predict_misses(here, fleet))

    good, bad = ends
    if held(bad):
        return bad
    while abs(bad - good) > 0.1 * tolerance * _size(where.over, good):
        middle = (good + bad) / 2.0
        good, bad = (middle, bad) if held(middle) else (good, middle)
    return good


def _size(over: Over, value: float) -> float:
    """What a tolerance is relative to: the value, or the misses that a goal permits."""
    return 1.0 - value if over.key == "attainment" else value


def rising(steps: Sequence[Step]) -> tuple[Step, ...]:
    """A fleet that holds where it is harder holds where it is easier: no step costs more than the next."""
    kept: list[Step] = []
    for step in reversed(steps):
        if kept and step.answer.cost is not None and kept[-1].answer.cost is not None:
            last = kept[-1]
            if step.answer.cost >= last.answer.cost * (1.0 - 1e-9):  # type: ignore[operator]
                kept[-1] = replace(last, easy=step.easy)
                continue
        kept.append(step)
    return tuple(reversed(kept))


def rates_for(problem: Problem, base: Path, budgets: tuple[float, float]) -> tuple[float, float]:
    """Rates between which a curve passes both of two budgets [$/h], as far as any rate does [1/s]."""
    physics = physics_of(problem, base)

    def dearer(rate: float, budget: float) -> bool:
        pick = None if physics.floor else cheapest(_rate(problem, rate), physics)
        return pick is None or pick.cost > budget * (1.0 + 1e-9)

    low = high = problem.workload.request_rate
    for _ in range(MOST_DOUBLINGS):
        if not dearer(low, budgets[0]):
            break
        low /= 2.0
    for _ in range(MOST_DOUBLINGS):
        if dearer(high, budgets[1]):
            break
        high *= 2.0
    return low, max(high, low * 2.0)


def within(curve: Frontier, budgets: tuple[float, float] | None) -> Frontier:
    """The curve between two budgets [$/h]: from what the first one buys to what the last one does."""
    if budgets is None:
        return curve
    low, high = (budget * (1.0 + 1e-9) for budget in budgets)
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
