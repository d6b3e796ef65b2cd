"""The best fleet along one lever, as steps on which it stays the same: frontiers, and break-even values.

Along a lever that only makes the problem harder (`frontier`), the cheapest fleet stays the cheapest until it no longer
holds; the evaluation of that one fleet says where. So each step takes one answer and one bisection. The next fleet is
searched for RESOLUTION beyond that end: what would be the cheapest over less than that has no step. With simulation a
step ends where its fleet was seen to hold, by bisection; one that holds nowhere in its stretch is refuted, and the
cheapest of the others takes its place. At the problem's own value the whole search is made.

Along a price (`break_even`) the cost of each fleet is a straight line, and two fleets meet where their lines cross
(Eisner and Severance 1976). Along any other lever the range is halved wherever the fleets at its ends differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from costmodel.errors import InputError, shown
from costmodel.metric import Metric
from costmodel.words import plural
from optimizer.fleets.evaluate import holds_at
from optimizer.fleets.fleet import owned_and_rented
from optimizer.loads.flows import make_flows
from optimizer.loads.instance import Instance, Progress, silent
from optimizer.plans.records import (
    CANDIDATES,
    HALVINGS,
    OPTIMAL_GAP,
    QUICK_CANDIDATES,
    ROUNDING,
    TOLERANCE,
    engine_counts,
)
from optimizer.search.search import Engines, smallest_batches
from optimizer.verification.bench import LEAST_RUNS, look
from optimizer.verification.judge import MOST_RUNS
from search_spaces.problem import Goal, Problem
from search_spaces.scenarios import LEVERS, changed, lever_of, scenario_problem

from .answer import Answer, Case, ScenarioEffort, answer, is_simple, unproven

MOST_STEPS: Final = 300
"""Of a curve; more are a range too wide."""


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a curve on which one fleet is the cheapest, from `start` to `end`; of a frontier, to its hardest.

    costs: at the two ends [$/h]; promised: up to which the fleet holds by formula, where a simulation says less;
    missed: where it was seen to miss then, at most RESOLUTION beyond `end`.
    """

    start: float
    end: float
    answer: Answer
    costs: tuple[float | None, float | None]
    promised: float | None = None
    missed: float | None = None

    @classmethod
    def of(cls, start: float, end: float, best: Answer) -> Step:
        """A step on which the cost stays the same."""
        return cls(start, end, best, (best.cost, best.cost))


# --- frontiers --------------------------------------------------------------------------------------------------------

RESOLUTION: Final = TOLERANCE / 2.0
"""Of the curve, relative to the lever's value (of attainment: to the misses that it permits) [1]: no step is narrower
but by its range, and what simulation says of an end is found to it."""
GOALS: Final = 0.5, 0.999
"""Goals of attainment that a curve goes over where no others are asked for [1]."""
OVER: Final = ("rate", *map(str, Metric), "attainment", "budget")
"""What `pdplan frontier` goes over."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Steps from the easiest value to the hardest; of break-even values, in ascending order.

    tolerance: of each step's end by formula, relative; of break-even values, in units of the lever. refuted: fleets
    that hold by formula somewhere in the range, and that did not when simulated; by_budget: whether it is over the rate
    to be read the other way, as what each budget buys; here: the problem's own value, where the range has it; own: what
    the whole search finds there, with its simulation, where it was made and found a fleet.
    """

    over: str
    steps: tuple[Step, ...]
    tolerance: float
    refuted: tuple[Answer, ...] = ()
    by_budget: bool = False
    here: float | None = None
    own: Answer | None = None


@dataclass(frozen=True, slots=True)
class Ramp:
    """A problem along a lever that makes it harder: its key, and whether larger values are harder."""

    problem: Problem
    key: str
    upwards: bool

    def answer(self, value: float, known_misses: Sequence[Engines] = ()) -> Answer:
        """The answer by formula at a value; none where no engine can exist there."""
        return answer(self.problem, ScenarioEffort.FULL, known_misses, changes={self.key: value})

    def _instance(self, case: Case, value: float) -> Instance:
        """The instance of a fleet at a value."""
        there = scenario_problem(self.problem, {self.key: value})
        return replace(case.instance, problem=there, flows=make_flows(there))

    def holds(self, case: Case, value: float) -> bool:
        """Whether a fleet keeps every goal by formula at a value."""
        if self.key == "rate":
            return holds_at(case.instance, case.fleet, value / case.instance.problem.workload.request_rate)
        return holds_at(self._instance(case, value), case.fleet)

    def look(self, case: Case, value: float, most: int) -> tuple[float, str]:
        """Simulate a fleet at a value, with the batch limits that it would have there; most: see `bench.look`."""
        instance = self._instance(case, value)
        return look(instance, smallest_batches(instance, case.fleet), most)

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

    def beyond(self, value: float, tolerance: float) -> float:
        """The first value that is harder by a tolerance."""
        return self.value_at(self.hardness(value) + math.log1p(tolerance))

    def hardest(self, *values: float) -> float:
        """The hardest of some values."""
        return max(values, key=self.hardness)

    def easiest(self, *values: float) -> float:
        """The easiest of some values."""
        return min(values, key=self.hardness)

    def last(self, good: float, bad: float, holds: Callable[[float], bool], tolerance: float) -> tuple[float, float]:
        """The hardest value at which something holds, and the next at which it does not, by bisection between two."""
        while self.hardness(bad) - self.hardness(good) > math.log1p(tolerance) * (1.0 + 1e-9):
            middle = self.value_at((self.hardness(good) + self.hardness(bad)) / 2.0)
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        return good, bad


def ramp_of(problem: Problem, name: str) -> Ramp:
    """The lever of a name; latency limits of several classes are scaled together."""
    if name in {"rate", "budget", "attainment"}:
        return Ramp(problem, "attainment" if name == "attainment" else "rate", upwards=True)
    if name not in set(Metric):
        raise InputError(f"--over {shown(name)} is not one of {', '.join(OVER)}")
    return Ramp(problem, f"{name}_scale" if len(problem.slos) > 1 else name, upwards=False)


def frontier(
    problem: Problem,
    name: str,
    bounds: tuple[float, float] | None = None,
    looks: int = 0,
    progress: Progress | None = None,
) -> Frontier:
    """The cheapest fleet for every value of a lever within bounds, in the lever's unit.

    looks: steps that are simulated at most, those in place of others apart, the easiest first. Raises InputError for a
    goal other than the least cost.
    """
    if problem.objective.goal is not Goal.MIN_COST:
        raise InputError(f"objective: a frontier is of the least cost, but the goal is {problem.objective.goal.value}")
    if not is_simple(problem):
        raise InputError("constraints.pools: a frontier is of fleets whose pools serve every class, not per_class")
    tell, by_budget = progress or silent, name == "budget"
    ramp = ramp_of(problem, name)
    low, high = bounds or usual_range(problem, ramp.key)
    if not 0.0 < low < high:
        raise InputError(f"--over {name}: the range from {low:g} to {high:g} is empty or not above zero")
    if name == "attainment" and high >= 1.0:
        hint = f"; did you mean {high:g}%?" if 1.0 < high < 100.0 else ""
        raise InputError(f"--over attainment: the range ends at {high:g}; goals are below 1, such as 0.999{hint}")
    ends, affordable = (low, high) if ramp.upwards else (high, low), list[Step]()
    if by_budget and bounds is not None:
        affordable = _within(_rising(Stairs(ramp, rates_for(ramp, bounds), tell).climb()), bounds)
        if not affordable:
            return Frontier(ramp.key, (), OPTIMAL_GAP, by_budget=True)
        ends = affordable[0].start, affordable[-1].end
    stairs = Stairs(ramp, ends, tell, looks)
    steps = affordable if affordable and not looks else _rising(stairs.climb())
    if by_budget and bounds is None:  # it buys all that its last fleet serves, also beyond the range
        steps[-1] = replace(steps[-1], end=max(steps[-1].end, steps[-1].answer.goodput))
    steps = _within(steps, (0.0, bounds[1])) if by_budget and bounds is not None else steps
    own = own_value(problem, ramp.key)
    here = own if own is not None and min(ends) <= own <= max(ends) else None
    refuted = {engine_counts(miss.pools): miss for miss in stairs.refuted}
    curve = Frontier(ramp.key, tuple(steps), OPTIMAL_GAP, tuple(refuted.values()), by_budget=by_budget, here=here)
    if here is None or not looks or not steps:
        return curve
    tell("searching at the file's own value", 1.0)
    return _with_own(ramp, curve, answer(problem, ScenarioEffort.SIMULATED))


@dataclass(slots=True)
class Stairs:
    """The staircase of a lever between two values, the easiest first.

    looks: steps that are simulated at most, those in place of others apart; refuted: fleets without a step that did not
    hold.
    """

    ramp: Ramp
    ends: tuple[float, float]
    tell: Progress
    looks: int = 0
    refuted: list[Answer] = field(default_factory=list)

    def climb(self) -> list[Step]:
        """The steps. Raises InputError where there are more than MOST_STEPS."""
        ramp, (easy, hard), steps = self.ramp, self.ends, list[Step]()
        width = ramp.hardness(hard) - ramp.hardness(easy)
        value = at = easy
        misses, missed_until = list[Answer](), easy
        while ramp.hardness(value) < ramp.hardness(hard):
            if len(steps) >= MOST_STEPS:
                raise InputError(f"--over {ramp.key}: more than {MOST_STEPS} fleets; narrow the range with --between")
            cut = [miss for before in steps for miss in before.answer.refuted]
            step = self._step(value, at, [*self.refuted, *cut], in_place=bool(misses))
            if step.answer.fault:
                missed_until = step.end if not misses else missed_until
                misses.append(step.answer)
                self.refuted.append(step.answer)
                if len(misses) > CANDIDATES:
                    at = ramp.beyond(missed_until, RESOLUTION)
                    if ramp.hardness(at) >= ramp.hardness(hard):
                        return [*steps, Step.of(value, hard, unproven(misses))]
                    misses.clear()
                continue
            if step.answer.case is None:
                last_misses = misses or [miss for before in steps[-1:] for miss in before.answer.refuted]
                return [*steps, replace(step, answer=unproven(last_misses)) if last_misses else step]
            misses.clear()
            steps.append(step)
            at = ramp.easiest(ramp.beyond(step.end, RESOLUTION), ramp.hardest(hard, step.end))
            value = ramp.easiest(at, ramp.beyond(step.end, OPTIMAL_GAP))
            label = f"{plural(len(steps), 'fleet')}, at {value:.4g}"
            self.tell(label, (ramp.hardness(value) - ramp.hardness(easy)) / width)
        return steps

    def _step(self, easy: float, at: float, misses: Sequence[Answer], *, in_place: bool) -> Step:
        """The step from `easy` on of the cheapest fleet at one value, as far as it holds; of a fault, if nowhere.

        Where there is no fleet, there is none further on, and the step begins there. in_place: of a fleet that missed.
        """
        best = self.ramp.answer(at, [miss.case.engines for miss in misses if miss.case is not None])
        case, hard = best.case, self.ends[1]
        if case is None:
            return Step.of(at, hard, best)
        if not self.ramp.holds(case, hard):
            hard = self.ramp.last(at, hard, lambda value: self.ramp.holds(case, value), ROUNDING)[0]
        step = Step.of(easy, hard, best)
        if self.looks <= 0 and not in_place:
            return step
        self.looks -= 0 if in_place else 1
        return self._as_seen(step, case)

    def _as_seen(self, step: Step, case: Case) -> Step:
        """A step as far as its fleet holds when simulated; with its fault, where that is hardly anywhere.

        At its end by formula a fleet is near a goal, so that few runs have to tell; where the range ends it gets as
        many as elsewhere. Where it misses there, it is looked at ever further back, then in between.
        """
        ramp, width = self.ramp, math.log1p(RESOLUTION)
        shares: dict[float, float] = {}

        def fault_at(value: float, most: int = MOST_RUNS) -> str:
            shares[value], fault = ramp.look(case, value, most)
            return fault

        fault = fault_at(step.end, MOST_RUNS if step.end == self.ends[1] else LEAST_RUNS)
        if not fault:
            return replace(step, answer=replace(step.answer, attainment=shares[step.end]))
        miss = replace(step.answer, attainment=shares[step.end], fault=fault)
        good, bad, back = step.end, step.end, width
        while fault:
            if good == step.start:
                return replace(step, answer=miss)
            bad, good = good, ramp.hardest(step.start, ramp.value_at(ramp.hardness(good) - back))
            fault, back = fault_at(good), 2.0 * back
        good, bad = ramp.last(good, bad, lambda value: not fault_at(value), RESOLUTION)
        if ramp.hardness(good) - ramp.hardness(step.start) < width:
            return replace(step, answer=miss)
        simulated_answer = replace(step.answer, attainment=shares[good], refuted=(miss,))
        return replace(step, end=good, answer=simulated_answer, promised=step.end, missed=bad)


def _rising(steps: Sequence[Step]) -> list[Step]:
    """A fleet that holds where it is harder holds where it is easier: no step costs more than the next."""
    rising: list[Step] = []
    for step in reversed(steps):
        cost, harder = step.answer.cost, rising[-1].answer.cost if rising else None
        if cost is not None and harder is not None and cost >= harder * (1.0 - ROUNDING):
            rising[-1] = replace(rising[-1], start=step.start)
        else:
            rising.append(step)
    return rising[::-1]


def rates_for(ramp: Ramp, budgets: tuple[float, float]) -> tuple[float, float]:
    """Rates between which a curve passes both of two budgets [$/h], as far as any rate does [1/s]."""

    def dearer(rate: float, budget: float) -> bool:
        cost = ramp.answer(rate).cost
        return cost is None or cost > budget * (1.0 + ROUNDING)

    low = high = here = ramp.problem.workload.request_rate
    while dearer(low, budgets[0]) and low > here / 2.0**QUICK_CANDIDATES:
        low /= 2.0
    while not dearer(high, budgets[1]) and high < here * 2.0**QUICK_CANDIDATES:
        high *= 2.0
    return low, max(high, low * 2.0)


def _within(steps: Sequence[Step], budgets: tuple[float, float]) -> list[Step]:
    """The steps between two budgets [$/h]: from what the first one buys to what the last one does."""
    low, high = (budget * (1.0 + ROUNDING) for budget in budgets)
    affordable = [step for step in steps if step.answer.cost is not None and step.answer.cost <= high]
    below = sum(step.answer.cost is not None and step.answer.cost <= low for step in affordable)
    return affordable[max(below - 1, 0) :]


def _with_own(ramp: Ramp, curve: Frontier, own: Answer) -> Frontier:
    """The curve with what the whole search finds at the own value, where its step there costs more.

    How much further that fleet holds is not looked at: it has the values up to the own one, as far as others cost more.
    """
    here, last = curve.here, curve.steps[-1].answer.cost if curve.steps else None
    if here is None or own.cost is None or own.attainment is None:
        return curve
    if curve.by_budget and last is not None and own.cost > last * (1.0 + ROUNDING):
        return curve
    curve = replace(curve, own=own)
    before = [step for step in curve.steps if ramp.hardness(step.end) < ramp.hardness(here)]
    after = curve.steps[len(before) :]
    if after and after[0].answer.cost is not None and after[0].answer.cost <= own.cost * (1.0 + ROUNDING):
        return curve
    begins = ramp.beyond(here, curve.tolerance)
    rest = [replace(step, start=ramp.hardest(step.start, begins)) for step in after[:1] if step.end != here]
    easy = ramp.easiest(here, *(step.start for step in after[:1]))
    return replace(curve, steps=tuple(_rising([*before, Step.of(easy, here, own), *rest, *after[1:]])))


# --- break-even values ------------------------------------------------------------------------------------------------

STARTS: Final = 2**HALVINGS
"""Parts into which the range of a lever of unknown manners is cut first."""

Point = tuple[float, Answer]


def break_even(  # noqa: PLR0917
    problem: Problem,
    key: str,
    bounds: tuple[float, float] | None = None,
    effort: ScenarioEffort = ScenarioEffort.SIMPLE,
    looks: int = 0,
    known_misses: Sequence[Engines] = (),
) -> Frontier:
    """The best fleet for every value of a lever within bounds; None: the usual range.

    looks: fleets along a price that are simulated at most, apart from those in place of others; known_misses: fleets
    that are known to miss, and are none. Changes are found to OPTIMAL_GAP of the range; along a price, where lines
    cross, to ROUNDING. Raises InputError for a key without an order.
    """
    _check_order(key)
    low, high = bounds or usual_range(problem, key)
    if not low < high:
        raise InputError(f"{key}: the range from {low:g} to {high:g} is empty")
    price = own_value(problem, key) if key.startswith("price.") else None
    exact = OPTIMAL_GAP if price is None else ROUNDING
    along = Along(
        problem, key, effort, exact * (high - low), price, looks if by_price(problem, key) else 0, known_misses
    )
    ends = (low, along.at(low)), (high, along.at(high))
    points = list(ends)
    if price is None or None in {best.cost for _, best in ends}:
        values = (low + (high - low) * step / STARTS for step in range(1, STARTS))
        points[1:1] = [(value, along.at(value)) for value in values]
    steps = [step for low_point, high_point in pairwise(points) for step in along.between(low_point, high_point)]
    steps = along.joined(along.wide(along.joined(steps)))
    if len(steps) > MOST_STEPS:
        raise InputError(f"the best fleet changes more than {MOST_STEPS} times in this range; state a smaller one")
    return Frontier(key, tuple(steps), along.least, tuple(along.missed.values()))


@dataclass(frozen=True, slots=True)
class Along:
    """The best fleet at any value of one lever; least: width below which two values are not told apart.

    price: the problem's own, along a price; tried, missed: fleets that were simulated, and those that did not hold.
    """

    problem: Problem
    key: str
    effort: ScenarioEffort
    least: float
    price: float | None
    looks: int
    known_misses: Sequence[Engines] = ()
    tried: set[str] = field(default_factory=set)
    missed: dict[str, Answer] = field(default_factory=dict)

    def at(self, value: float) -> Answer:
        """The answer at a value."""
        best = answer(self.problem, self.effort, self.known_misses, changes={self.key: value})
        fleet = "" if best.case is None else best.case.key
        if fleet and (fleet in {*self.tried, *self.missed} or len(self.tried) < self.looks):
            self.tried.add(fleet)
            best = answer(self.problem, self.effort, changes={self.key: value}, simulated=True)
            self.missed.update({miss.case.key: miss for miss in best.refuted if miss.case is not None})
        return best

    def bought(self, best: Answer) -> float:
        """How many GPUs a fleet rents of the accelerator whose price the lever is; none along another."""
        name = self.key.partition(".")[2].casefold()
        names = [offer.accelerator.name for offer in self.problem.offers]
        _, rented_gpus = owned_and_rented(self.problem, np.array([best.gpus.get(gpu, 0) for gpu in names]))
        is_moved = np.array([gpu.casefold() == name for gpu in names])
        return 0.0 if self.price is None else float(rented_gpus @ is_moved)

    def between(self, low_point: Point, high_point: Point) -> Iterator[Step]:
        """Steps between two solved values: parted where lines of cost cross, or in the middle."""
        (low, first), (high, last) = low_point, high_point
        if dict(first.gpus) == dict(last.gpus):
            yield Step(low, high, first, (first.cost, last.cost))
            return
        has_costs = self.price is not None and first.cost is not None and last.cost is not None
        middle = self._crossing(low_point, high_point) if has_costs else (low + high) / 2.0
        apart = min(middle - low, high - middle) > self.least if has_costs else high - low > self.least
        between, met = self.at(middle) if apart else None, self._cost_at(first, middle - low)
        cheaper = between is not None and (between.cost or math.inf) < (met or 0.0) * (1.0 - ROUNDING)
        if between is None or (has_costs and not cheaper):
            middle = middle if has_costs else self._change(low_point, high_point)
            yield Step(low, middle, first, (first.cost, self._cost_at(first, middle - low)))
            yield Step(middle, high, last, (self._cost_at(last, middle - high), last.cost))
            return
        yield from self.between(low_point, (middle, between))
        yield from self.between((middle, between), high_point)

    def _crossing(self, low_point: Point, high_point: Point) -> float:
        """The price at which two fleets cost the same; in the middle where both buy as many GPUs."""
        (low, first), (high, last) = low_point, high_point
        slope, flatter = self.bought(first), self.bought(last)
        if slope <= flatter:
            return high
        cross = low + ((last.cost or 0.0) - flatter * (high - low) - (first.cost or 0.0)) / (slope - flatter)
        return min(max(cross, low), high)

    def _cost_at(self, best: Answer, further: float) -> float | None:
        """What a fleet costs a little further along: along a price, as much more as GPUs are paid for."""
        return None if best.cost is None else best.cost + self.bought(best) * further

    def _change(self, low_point: Point, high_point: Point) -> float:
        """Where the best fleet changes between two near values: half-way, or at the price that the budget allows it."""
        (low, first), (high, last) = low_point, high_point
        budget, bought = self.problem.constraints.budget, self.bought(first)
        if not bought or budget is None or first.cost is None or last.cost is not None:
            return (low + high) / 2.0
        return min(max(low + (budget - first.cost) / bought, low), high)

    def joined(self, steps: Sequence[Step]) -> list[Step]:
        """Neighboring steps of one fleet as one: of equal GPUs none is cheaper, however engines are made of them."""
        joint_steps: list[Step] = []
        for step in steps:
            if joint_steps and dict(joint_steps[-1].answer.gpus) == dict(step.answer.gpus):
                joint_steps[-1] = replace(
                    joint_steps[-1], end=step.end, costs=(joint_steps[-1].costs[0], step.costs[1])
                )
            else:
                joint_steps.append(step)
        return joint_steps

    def wide(self, steps: Sequence[Step]) -> list[Step]:
        """The steps that are wider than their ends are exact; a narrower one is left to its neighbor."""
        wide = [step for step in steps if step.end - step.start > self.least] or list(steps[:1])
        ends = [*(step.start for step in wide[1:]), steps[-1].end]
        starts = [steps[0].start, *ends[:-1]]
        return [replace(step, start=start, end=end) for step, start, end in zip(wide, starts, ends, strict=True)]


def _check_order(key: str) -> None:
    if not lever_of(key).ordered:
        ordered_levers = ", ".join(name for name, lever in LEVERS.items() if lever.ordered)
        raise InputError(f"{key} has no order, so nothing breaks even along it; levers that have: {ordered_levers}")


def own_value(problem: Problem, key: str) -> float | None:
    """The problem's own value of a lever, in its unit; factors stand at 1. None where it has none.

    A limit of latency is that of the first class, and a goal that of all classes.
    """
    head, _, name = key.partition(".")
    if head.endswith("_scale"):
        return 1.0
    load, goals = problem.workload, {slo.attainment for slo in problem.slos}
    values: dict[str, float | None] = {
        "rate": load.request_rate,
        "burstiness": load.burstiness,
        "isl": load.mean_isl,
        "osl": load.mean_osl,
        **{str(metric): limit for metric, limit in problem.slos[0].limits.items()},
        "attainment": goals.pop() if len(goals) == 1 else None,
        "budget": problem.constraints.budget,
        "power": problem.constraints.power,
        **{f"price.{offer.accelerator.name.casefold()}": offer.usd_per_hour for offer in problem.offers},
    }
    value = values.get(f"price.{name.casefold()}" if head == "price" else key)
    return None if value is None or math.isinf(value) else value


def usual_range(problem: Problem, key: str) -> tuple[float, float]:
    """From a quarter to four times the value at hand; factors stand at 1, goals have a range of their own.

    Raises InputError for names and precisions, which have no order, and for what has no such value.
    """
    _check_order(key)
    value = own_value(problem, key)
    if key == "attainment":
        return GOALS
    if value is None:
        changed(problem.inputs, {key: 1.0})  # raises where there is no such value at all
        raise InputError(f"{key}: say between which values, such as --between 1:8")
    return value / 4, value * 4


def by_price(problem: Problem, key: str) -> bool:
    """Whether the key is a price, and fleets of one or two pools answer the question: then they can be simulated."""
    return is_simple(problem) and key.startswith("price.") and own_value(problem, key) is not None
