"""Cost against demand or SLO: the whole curve as a staircase whose steps are exact to a stated tolerance.

Along a lever that only makes the problem harder, the cheapest fleet stays the cheapest until it no longer holds; the
evaluation of that one fleet says where. So each step of the curve takes one search and one bisection. The next fleet is
searched for RESOLUTION beyond that end: what would be the cheapest over less than that has no step.

With simulation the staircase is the same, and a step ends where its fleet was seen to hold, found by bisection
(`_last_held`); a fleet that holds nowhere in its stretch is refuted, and the cheapest of the others takes its place.

At the problem's own value the whole search is made, which knows more fleets: the curve is never above it there. Nor has
it a fleet there that costs less by formula alone, as the whole search has most likely refuted it: it is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from optimizer.search.search import SAME_COST, settled
from optimizer.verification.bench import LEAST_RUNS
from optimizer.verification.judge import MOST_RUNS
from optimizer.verification.verify import ROUNDS
from search_spaces.problem import Goal, Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .break_even import MOST_PIECES
from .scenario import (
    Answer,
    Engine,
    Missed,
    Physics,
    Pick,
    answer_of,
    cheapest,
    fleet_of,
    is_simple,
    look,
    nothing,
    own_value,
    physics_of,
    refuted_with,
    solve_full,
    unproven,
    why_none,
)

Progress = Callable[[str, float], None]

RESOLUTION = 0.01
"""Of the curve, relative to the lever's value (of attainment: to the misses that it permits) [1]: no step is narrower
but by its range, and what simulation says of an end is found to it."""
MOST_DOUBLINGS = 20
"""Of the rate at hand, or halvings, in search of a budget's."""

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

    def share(self, curve: Frontier, value: float) -> float:
        """How much of a curve is easier than a value [1]."""
        easy, hard = self.hardness(curve.steps[0].easy), self.hardness(curve.steps[-1].hard)
        return (self.hardness(value) - easy) / max(hard - easy, 1e-9)

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
    stairs = Stairs(ramp, (easy, hard), here, tolerance, progress=progress)
    steps = stairs.climb()
    if name == "budget" and budgets is None:  # it buys all that its last fleet serves, also beyond the range
        steps[-1] = replace(steps[-1], hard=max(steps[-1].hard, steps[-1].answer.goodput))
    curve = Frontier(ramp.key, ramp.unit, _rising(steps), tolerance, by_budget=name == "budget", here=here)
    return _within(curve, budgets)


def _check_range(name: str, low: float, high: float) -> None:
    if not 0.0 < low < high:
        raise InputError(f"--over {name}: the range from {low:g} to {high:g} is empty or not above zero")
    if name == "attainment" and high >= 1.0:
        meant = f"; did you mean {high:g}%?" if 1.0 < high < 100.0 else ""
        raise InputError(f"--over attainment: the range ends at {high:g}; goals are below 1, such as 0.999{meant}")


@dataclass(slots=True)
class Stairs:
    """The staircase of a lever between two values, the easiest first.

    here: the problem's own value, where one step ends at the latest and another begins; seen: what simulation makes of
    a step, which by formula stays as it is; further: harder values to go on from where ROUNDS fleets missed; out:
    engines of fleets that were refuted; gone: those without a step.
    """

    ramp: Ramp
    ends: tuple[float, float]
    here: float | None
    tolerance: float
    seen: Callable[[Step], Step | Missed] = lambda step: step
    further: Sequence[float] = ()
    progress: Progress | None = None
    out: set[tuple[Engine, ...]] = field(default_factory=set)
    gone: list[Missed] = field(default_factory=list)

    def climb(self) -> list[Step]:
        """The steps. Raises InputError where there are more than MOST_PIECES."""
        ramp, (easy, hard), steps = self.ramp, self.ends, list[Step]()
        value = at = easy
        misses = 0
        while ramp.is_easier(value, hard):
            if len(steps) >= MOST_PIECES:
                raise InputError(f"--over {ramp.key}: more than {MOST_PIECES} fleets; narrow the range with --between")
            step = self.seen(self._step(value, at, steps[-1:]))
            if isinstance(step, Missed):
                self._refute(step.pick)
                self.gone.append(step)
                misses += 1
                if misses > ROUNDS:
                    stop = next((stop for stop in self.further if ramp.is_easier(at, stop)), None)
                    if stop is None:
                        return [*steps, Step(at, hard, unproven(self.gone[-misses:]))]
                    at, misses = stop, 0
                continue
            misses = 0
            steps.append(step)
            if step.missed is not None:
                self._refute(step.answer.pick)
            stops = (stop for stop in (hard, self.here) if stop is not None and ramp.is_easier(step.hard, stop))
            at = min([ramp.beyond(step.hard, RESOLUTION), *stops], key=ramp.hardness)
            value = min(at, ramp.beyond(step.hard, self.tolerance), key=ramp.hardness)
            if self.progress is not None:
                fleets = f"{len(steps)} fleet{'s' * (len(steps) > 1)}, at {value:.4g}"
                self.progress(fleets, (value - easy) / (hard - easy))
        return steps

    def _refute(self, pick: Pick | None) -> None:
        self.out |= set() if pick is None else {refuted_with(pick.pools)}

    def _step(self, easy: float, at: float, before: Sequence[Step]) -> Step:
        """The step from `easy` on of the cheapest fleet at one value, as far as it holds by formula.

        Where there is none, there is none further on, and the step begins there.
        """
        ramp, hard = self.ramp, self.ends[1]
        try:
            problem = ramp.at(at)
        except ImpossibleError as error:
            return Step(at, hard, nothing(str(error)))
        physics = physics_of(problem, ramp.base)
        pick = cheapest(problem, physics, frozenset(self.out))
        if pick is None:
            missed = [*(missed for step in before for missed in step.answer.refuted), *self.gone][-1:]
            return Step(at, hard, unproven(missed) if missed else why_none(problem, physics))
        return Step(easy, ramp.held_to(physics, pick, (at, hard), self.tolerance), answer_of(problem, physics, pick))


def _rising(steps: Sequence[Step]) -> tuple[Step, ...]:
    """A fleet that holds where it is harder holds where it is easier: no step costs more than the next."""
    rising: list[Step] = []
    for step in reversed(steps):
        cost, harder = step.answer.cost, rising[-1].answer.cost if rising else None
        if cost is not None and harder is not None and cost >= harder * (1.0 - SAME_COST):
            rising[-1] = replace(rising[-1], easy=step.easy)
        else:
            rising.append(step)
    return tuple(reversed(rising))


def rates_for(ramp: Ramp, budgets: tuple[float, float]) -> tuple[float, float]:
    """Rates between which a curve passes both of two budgets [$/h], as far as any rate does [1/s]."""
    physics = physics_of(ramp.problem, ramp.base)

    def dearer(rate: float, budget: float) -> bool:
        pick = cheapest(ramp.harder(rate), physics)
        return pick is None or pick.cost > budget * (1.0 + SAME_COST)

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
    low, high = (budget * (1.0 + SAME_COST) for budget in budgets)
    affordable = [step for step in curve.steps if step.answer.cost is not None and step.answer.cost <= high]
    below = sum(step.answer.cost is not None and step.answer.cost <= low for step in affordable)
    return replace(curve, steps=tuple(affordable[max(below - 1, 0) :]))


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
    numbers = list(dict.fromkeys([*first, *_ranked(curve.steps)]))[: max(looks, len(first))]
    by_formula = [_fleet(step) for step in curve.steps]
    trusted = {fleet for number, fleet in enumerate(by_formula) if number not in numbers}

    def seen(step: Step) -> Step | Missed:
        if step.answer.pick is None or _fleet(step) in trusted:
            return step
        if progress is not None:
            gpus = " + ".join(f"{count} {card}" for card, count in step.answer.gpus.items())
            progress(f"simulating {gpus}", ramp.share(curve, step.easy))
        if _fleet(step) not in by_formula:  # it takes the place of one that missed
            attainment, fault = ramp.look(step, step.easy)
            if fault:
                return step.answer.missed(attainment, fault)
            step = replace(step, answer=replace(step.answer, attainment=attainment))
        return _step_as_seen(ramp, curve, step)

    ends = (curve.steps[0].easy, curve.steps[-1].hard) if curve.steps else (1.0, 1.0)
    stairs = Stairs(ramp, ends, curve.here, curve.tolerance, seen, [step.easy for step in curve.steps])
    steps = _rising(stairs.climb())
    if curve.by_budget:  # no fleet that is dearer than what the budgets buy
        most = (curve.steps[-1].answer.cost or math.inf) * (1.0 + SAME_COST) if curve.steps else 0.0
        steps = tuple(step for step in steps if (step.answer.cost or math.inf) <= most)
    shown_fleets = {engine_counts(step.answer.pools) for step in steps}
    expected = (missed for missed in stairs.gone if missed.pick is not None and missed.pick.fleet in by_formula)
    refuted = tuple(missed for missed in expected if engine_counts(missed.pools) not in shown_fleets)
    return _with_own(ramp, replace(curve, steps=steps, refuted=refuted))


def _fleet(step: Step) -> object:
    """What tells the fleet of a step from others."""
    return None if step.answer.pick is None else step.answer.pick.fleet


def _ranked(steps: Sequence[Step]) -> list[int]:
    """Numbers of the steps that have a fleet: the last and the first, then those before the largest jumps in cost."""
    having = [number for number, step in enumerate(steps) if step.answer.pick is not None]
    costs = [float(steps[number].answer.cost or 0.0) for number in having]
    jumps = [(before - after, number) for number, (before, after) in zip(having, pairwise(costs), strict=False)]
    return list(dict.fromkeys([*having[-1:], *having[:1], *(number for _, number in sorted(jumps))]))


def _step_as_seen(ramp: Ramp, curve: Frontier, step: Step) -> Step | Missed:
    """A step as far as its fleet holds when simulated; what it missed by, where that is hardly anywhere.

    At the problem's own value a step may be as narrow as it is. At its end by formula a fleet is near a goal, so that
    few runs have to tell; where the range ends it gets as many as elsewhere.
    """
    here, range_ends = curve.here, step.hard == curve.steps[-1].hard and not curve.by_budget
    attainment, fault = ramp.look(step, step.hard, MOST_RUNS if range_ends else LEAST_RUNS)
    if not fault:
        return replace(step, answer=replace(step.answer, attainment=attainment))
    missed = step.answer.missed(attainment, fault)
    held = _last_held(ramp, step)
    if held is None:
        return missed
    good, bad, share = held
    own = here is not None and min(step.easy, good) <= here <= max(step.easy, good)
    if not own and ramp.hardness(good) - ramp.hardness(step.easy) < math.log1p(RESOLUTION):
        return missed
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
        value = from_end if math.isinf(good) else (good + bad) / 2.0
        attainment, fault = ramp.look(step, step.easy if value == easy else ramp.value_at(value))
        if not fault:
            good, share = value, attainment
        elif value == easy:
            return None
        else:
            bad, back = value, 2.0 * back
    return exact.get(good, ramp.value_at(good)), exact.get(bad, ramp.value_at(bad)), share


# --- at the problem's own value -------------------------------------------------------------------------------------


def own_answer(problem: Problem, curve: Frontier) -> Answer | None:
    """What the whole search finds for the problem as it stands, where its value is in the range of the curve.

    None where nothing is proven to hold; for budgets also where it costs more than the curve shows.
    """
    if curve.here is None or not curve.steps:
        return None
    most = (curve.steps[-1].answer.cost or 0.0) * (1.0 + SAME_COST) if curve.by_budget else math.inf
    with suppress(BelowFloorError, ImpossibleError):
        answer = solve_full(problem, Level.STANDARD)
        return answer if answer.cost is not None and answer.attainment is not None and answer.cost <= most else None
    return None


def _no_dearer(ramp: Ramp, curve: Frontier) -> list[int]:
    """Numbers of the steps whose fleets hold at the own value by formula and cost no more than what is found there."""
    if curve.here is None or curve.own is None:
        return []
    first = len(_easier_steps(ramp, curve, curve.here))
    most = (curve.own.cost or 0.0) * (1.0 + SAME_COST)
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
    if after and after[0].answer.cost is not None and after[0].answer.cost <= own.cost * (1.0 + SAME_COST):
        return curve
    easy = min([here, *(step.easy for step in after[:1])], key=ramp.hardness)
    begins = ramp.beyond(here, curve.tolerance)
    rest = [replace(step, easy=max(step.easy, begins, key=ramp.hardness)) for step in after[:1] if step.hard != here]
    return replace(curve, steps=_rising([*before, Step(easy, here, own), *rest, *after[1:]]))


def _easier_steps(ramp: Ramp, curve: Frontier, here: float) -> list[Step]:
    """The steps that end at easier values than the own one."""
    return [step for step in curve.steps if ramp.is_easier(step.hard, here)]
