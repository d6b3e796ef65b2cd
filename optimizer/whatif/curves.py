"""Curves: the cheapest fleet along a lever that only makes the problem harder, and a fleet along its prompt chunk.

The cheapest fleet stays the cheapest until it no longer holds, and evaluating that one fleet finds where. So each step
takes one answer and one bisection. The next fleet is searched at RESOLUTION beyond the end: a fleet that would be the
cheapest over a shorter stretch has no step. With simulation, a step ends at the hardest value at which its fleet was
seen to hold; a fleet that holds nowhere in its stretch is refuted, and the cheapest of the others takes its place. At
the problem's own value the whole search runs.

Chunks: latencies, goodput and cost of a fleet against `max_num_batched_tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from costmodel.engine import Role
from costmodel.errors import InputError, shown
from costmodel.metric import Metric
from costmodel.words import plural
from optimizer.fleets.evaluate import evaluate, holds_at
from optimizer.fleets.fleet import Fleet, bisection, fleet_cost, with_replicas
from optimizer.loads.effort import Progress, silent
from optimizer.loads.instance import Instance, make_flows
from optimizer.plans.records import (
    CANDIDATES,
    HALVINGS,
    OPTIMAL_GAP,
    QUICK_CANDIDATES,
    ROUNDING,
    ClassLatencies,
    Outcome,
    engine_counts,
)
from optimizer.search.search import Engines, smallest_batches
from optimizer.verification.bench import look, make_bench
from search_spaces.bounds import OVER
from search_spaces.problem import Goal, Problem
from search_spaces.scenarios import own_value, scenario_problem, usual_range

from .answer import MOST_STEPS, RESOLUTION, Answer, Case, ChunkCurve, ChunkRow, Frontier, ScenarioEffort, Step, unproven
from .solver import answer, break_of, is_simple


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

    def look(self, case: Case, value: float) -> tuple[float, str]:
        """Simulate a fleet at a value, with the batch limits that it would have there."""
        instance = self._instance(case, value)
        return look(instance, smallest_batches(instance, case.fleet))

    def hardness(self, value: float) -> float:
        """Hardness of a value: its logarithm, with the sign that makes harder values larger.

        For attainment: of the share of misses that it permits.
        """
        if self.key == "attainment":
            return -math.log1p(-value)
        return math.log(value) if self.upwards else -math.log(value)

    def value_at(self, hardness: float) -> float:
        """The value with this `hardness`."""
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
        """The hardest value at which a condition holds, and the next at which it does not, by bisection."""
        while self.hardness(bad) - self.hardness(good) > math.log1p(tolerance) * (1.0 + 1e-9):
            middle = self.value_at((self.hardness(good) + self.hardness(bad)) / 2.0)
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        return good, bad


def ramp_of(problem: Problem, name: str) -> Ramp:
    """The lever of a name; latency limits of several classes are scaled together."""
    if name in {"rate", "budget", "attainment"}:
        return Ramp(problem, "attainment" if name == "attainment" else "rate", upwards=True)
    if name not in set(Metric):
        raise InputError(f"over: {shown(name)} is not one of {', '.join(OVER)}")
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
        """Find all steps. Raises InputError for more than MOST_STEPS."""
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
        """The step from `easy` on: the cheapest fleet at a value as far as it holds, or its fault if it never does.

        Without a fleet there is none further on either, and the step begins there. in_place: of a fleet that missed.
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
        """A step as far as its fleet holds in simulation; with its fault if that is almost nowhere.

        Where it misses at its end by formula, it is looked at where it begins, then in between.
        """
        ramp, width = self.ramp, math.log1p(RESOLUTION)
        shares: dict[float, float] = {}

        def fault_at(value: float) -> str:
            shares[value], fault = ramp.look(case, value)
            return fault

        fault = fault_at(step.end)
        if not fault:
            return replace(step, answer=replace(step.answer, attainment=shares[step.end]))
        miss = replace(step.answer, attainment=shares[step.end], fault=fault)
        if fault_at(step.start):
            return replace(step, answer=miss)
        good, bad = ramp.last(step.start, step.end, lambda value: not fault_at(value), RESOLUTION)
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
    """The steps between two budgets [$/h]: from the fleet that the first buys to the fleet that the last buys."""
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


# --- the chunk of a prompt --------------------------------------------------------------------------------------------


CHUNKS: Final = "search.max_num_batched_tokens"


MOST_TIMES: Final = 2**HALVINGS
"""As many replicas as the fleet has, beyond which none are counted for a chunk that needs more."""


def chunk_curve(
    problem: Problem,
    chunks: Sequence[int],
    *,
    simulated: bool = True,
    progress: Progress = silent,
) -> ChunkCurve | Answer:
    """The curve over some chunks and the fleet's own; where there is no fleet, the answer that says why.

    All engines that take prompts get each chunk in turn; everything else stays, so that the curve is of the chunk
    alone. A small chunk splits a prompt into more steps; a large one makes the tokens of running requests wait for it.
    Raises InputError where a chunk is out of range, or the least cost
    with pools that all classes share is not what the problem asks for.
    """
    if not is_simple(problem):
        raise InputError("--chunk is for the least cost with pools that all classes share")
    sizes = sorted({*problem.space.max_num_batched_tokens, *chunks})
    problem = scenario_problem(problem, {CHUNKS: sizes})
    best = answer(problem, ScenarioEffort.FULL, simulated=simulated)
    if best.case is None:
        return best
    case = replace(best.case, instance=replace(best.case.instance, problem=problem))
    tables, takers = case.instance.tables, [pool for pool in case.fleet.pools if pool.role is not Role.DECODE]
    own = int(tables.chunks[takers[0].chunk])
    curve_sizes = sorted({*chunks, own})
    places = {size: int(np.flatnonzero(tables.chunks == size)[0]) for size in curve_sizes}
    fitting = [
        size for size in curve_sizes if all(tables.roomy[pool.shape, pool.seqs, places[size]] for pool in takers)
    ]
    rows = []
    for number, size in enumerate(fitting):
        progress(f"chunk of {size:,} tokens", number / len(fitting))
        pools = [pool if pool.role is Role.DECODE else replace(pool, chunk=places[size]) for pool in case.fleet.pools]
        with_chunk = replace(case, key=f"{case.key} {size}", fleet=Fleet(tuple(pools)))
        rows.append(_chunk_row(size, with_chunk, simulated=simulated))
    return ChunkCurve(problem, best, takers[0].role, own, tuple(rows), tuple(sorted({*curve_sizes} - {*fitting})))


def _chunk_row(size: int, case: Case, *, simulated: bool) -> ChunkRow:
    """The fleet with one chunk."""
    instance, fleet = case.instance, case.fleet
    first = next(number for number, pool in enumerate(fleet.pools) if pool.role is not Role.DECODE)
    if simulated:
        judgement = make_bench(instance).verdict(fleet).judgement
        classes, outcome = list[ClassLatencies](judgement.classes), judgement.outcome
        overloaded = judgement.overloaded
    else:
        evaluation = evaluate(instance, fleet)
        classes, outcome = evaluation.classes, Outcome.MEETS if evaluation.holds else Outcome.MISSES
        overloaded = not evaluation.stable
    goodput = break_of(case)[0] * instance.problem.workload.request_rate
    enough = _fewest_replicas(instance, fleet, first)
    replicas = None if enough is None else enough.pools[first].replicas
    cost = None if enough is None else fleet_cost(instance, enough)
    return ChunkRow(size, outcome, simulated, classes, goodput, replicas, cost, overloaded)


def _fewest_replicas(instance: Instance, fleet: Fleet, index: int) -> Fleet | None:
    """The fleet with the fewest replicas in one pool that meet the SLO by formula; None if too many are needed."""

    def misses(count: int) -> bool:
        return not holds_at(instance, with_replicas(fleet, index, count))

    most = MOST_TIMES * fleet.pools[index].replicas
    count = bisection(0, most + 1, misses)[1]
    return None if count > most else with_replicas(fleet, index, count)
