"""How the least cost depends on everything else: moved levers, break-even values, near-optimal fleets, shadow prices.

Break-even: along a price the cost of each fleet is a straight line, and two fleets meet where their lines cross (Eisner
and Severance 1976). Along any other lever the range is halved wherever the fleets at its ends differ.

Shadow prices: what one more GPU, dollar or watt of a limit would save, at the margin of the floor's relaxation
(`dual`), and in whole engines (`whole`). A budget never makes the fleet that meets a demand cheaper; its value is how
much more demand could be served.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Final

import numpy as np

from costmodel.errors import InputError
from costmodel.metric import Metric
from optimizer.fleets.build_plan import LIMIT_UNITS
from optimizer.fleets.fleet import INVENTORY, owned_and_rented
from optimizer.loads.effort import Brake, Progress, silent
from optimizer.loads.instance import ENDS, Instance, planned_instance, slow_end
from optimizer.plans.plan import Plan
from optimizer.plans.records import (
    CANDIDATES,
    HALVINGS,
    MOST_MORE,
    OPTIMAL_GAP,
    ROUNDING,
    BreakEven,
    EnginePool,
    Flip,
    PricePiece,
    Sensitivity,
    unpriced,
)
from optimizer.recommend.changed_problem import stated_limits, with_limit
from optimizer.search.bound import floor_matrices
from optimizer.search.program import Aim, aim_of, solve, write_model
from optimizer.search.search import Engines, is_refuted
from optimizer.search.settings import make_settings
from search_spaces.problem import Goal, Offer, Problem
from search_spaces.scenarios import Scenario, check_order, lever_of, own_value, usual_range

from .answer import (
    MOST_STEPS,
    Answer,
    Case,
    Frontier,
    MovedLever,
    ScenarioEffort,
    ShadowPrice,
    Step,
)
from .solver import answer, answer_of_plan, demand_of, fleet_under, is_simple, solve_scenarios

STEP_TIME: Final = "step_time_quantile"
"""Lever of the step times: their quantile within the errors of past predictions."""
SHARE: Final = 0.2
"""By how much each lever moves in either direction [1]."""
WIDER: Final = tuple(2**step for step in range(CANDIDATES + 1))
"""GPUs, or per cent, by which a limit is widened in whole fleets, until it saves something."""


# --- levers -----------------------------------------------------------------------------------------------------------


def levers(problem: Problem) -> Iterator[MovedLever]:
    """Levers worth asking about, SHARE lower and higher than they are; factors stand at 1.

    Lengths grow no further than the model's context, shares no further than 1. Step times go over the interval of their
    errors.
    """
    load = problem.workload
    longest = problem.model.max_position / load.max_tokens if problem.model.max_position else float("inf")

    def lever(key: str, value: float, most: float = float("inf")) -> MovedLever:
        return MovedLever(key, value, value * (1.0 - SHARE), max(min(value * (1.0 + SHARE), most), value))

    for offer in problem.offers:
        yield lever(f"price.{offer.accelerator.name}", offer.usd_per_hour)
    limited = [metric for metric in Metric if any(metric in slo.limits for slo in problem.slos)]
    for key in ("rate_scale", "isl_scale", "osl_scale", *(f"{metric}_scale" for metric in limited), "link_scale"):
        yield lever(key, 1.0, longest if key in {"isl_scale", "osl_scale"} else float("inf"))
    if is_simple(problem):
        yield MovedLever(STEP_TIME, slow_end(problem.confidence), *ENDS)
    yield lever("burstiness", load.burstiness)
    if load.prefix_hit_share > 0.0 and load.sessions is None:
        yield lever("prefix_hit_share", load.prefix_hit_share, 1.0)
    for key in ("budget", "power"):
        limit = own_value(problem, key)
        if limit is not None:
            yield lever(key, limit)


# --- break-even values ------------------------------------------------------------------------------------------------

STARTS: Final = 2**HALVINGS
"""First subdivision of the range of a lever whose effect need not be monotone."""
AnswerAt = tuple[float, Answer]


def break_even(  # noqa: PLR0917
    problem: Problem,
    key: str,
    bounds: tuple[float, float] | None = None,
    effort: ScenarioEffort = ScenarioEffort.SIMPLE,
    looks: int = 0,
    known_misses: Sequence[Engines] = (),
    fleets: Sequence[Case] = (),
) -> Frontier:
    """The best fleet for every value of a lever within bounds; None: the usual range.

    looks: fleets along a price that are simulated at most, apart from those in place of others; known_misses: fleets
    that are known to miss, and are none; fleets: as of `answer`. Changes are found to OPTIMAL_GAP of the range; along a
    price, where lines cross, to ROUNDING. Raises InputError for a key without an order.
    """
    check_order(key)
    low, high = bounds or usual_range(problem, key)
    if not low < high:
        raise InputError(f"{key}: the range from {low:g} to {high:g} is empty")
    price = own_value(problem, key) if key.startswith("price.") else None
    exact = OPTIMAL_GAP if price is None else ROUNDING
    looks = looks if by_price(problem, key) else 0
    along = Along(problem, key, effort, exact * (high - low), price, looks, known_misses, fleets)
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
    fleets: Sequence[Case] = ()
    tried: set[str] = field(default_factory=set)
    missed: dict[str, Answer] = field(default_factory=dict)

    def at(self, value: float) -> Answer:
        """The answer at a value of the lever."""
        changes = {self.key: value}
        best = answer(self.problem, self.effort, self.known_misses, changes=changes, fleets=self.fleets)
        fleet = "" if best.case is None else best.case.key
        if fleet and (fleet in {*self.tried, *self.missed} or len(self.tried) < self.looks):
            self.tried.add(fleet)
            best = answer(self.problem, self.effort, changes=changes, simulated=True)
            self.missed.update({miss.case.key: miss for miss in best.refuted if miss.case is not None})
        return best

    def bought(self, best: Answer) -> float:
        """GPUs that a fleet rents of the accelerator whose price the lever is; 0 along another lever."""
        name = self.key.partition(".")[2].casefold()
        names = [offer.accelerator.name for offer in self.problem.offers]
        _, rented_gpus = owned_and_rented(self.problem, np.array([best.gpus.get(gpu, 0) for gpu in names]))
        is_moved = np.array([gpu.casefold() == name for gpu in names])
        return 0.0 if self.price is None else float(rented_gpus @ is_moved)

    def between(self, low_point: AnswerAt, high_point: AnswerAt) -> Iterator[Step]:
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
            yield Step(low, middle, first, (first.cost, self._cost_at(first, middle - low)))
            yield Step(middle, high, last, (self._cost_at(last, middle - high), last.cost))
            return
        yield from self.between(low_point, (middle, between))
        yield from self.between((middle, between), high_point)

    def _crossing(self, low_point: AnswerAt, high_point: AnswerAt) -> float:
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


def by_price(problem: Problem, key: str) -> bool:
    """Whether the key is a price, and fleets of one or two pools answer the question: then they can be simulated."""
    return is_simple(problem) and key.startswith("price.") and own_value(problem, key) is not None


# --- the sensitivity of a plan ----------------------------------------------------------------------------------------


def sensitivity(
    problem: Problem,
    *,
    complete: bool,
    plan: Plan | None = None,
    brake: Brake | None = None,
    progress: Progress | None = None,
) -> Sensitivity | None:
    """How the least cost moves with prices and limits and, if complete, with everything else, by formula.

    An end of a lever takes up to a second or two; a value that no workload file may state is left out. None where no
    fleet holds, or for another goal than the least cost or pools for each class.

    plan: its fleet is tried wherever a lever stands, and where it is cheaper than any of one pool or two, fleets of
    more pools are searched too; brake: once it is pulled, the levers that are left are left out; progress: called with
    a label and the share of the levers that is done.
    """
    if not is_simple(problem):
        return None
    brake, fleets = brake or Brake(), [] if plan is None else list(_own_fleet(problem, plan))
    own, effort, here = None if plan is None else answer_of_plan(plan), ScenarioEffort.SIMPLE, answer(problem)
    if own is not None and own.cost is not None and (here.cost is None or own.cost < here.cost * (1.0 - ROUNDING)):
        effort, here = ScenarioEffort.FULL, answer(problem, ScenarioEffort.FULL, fleets=fleets)
    if here.cost is None:
        return None
    moved_levers = [lever for lever in levers(problem) if complete or lever_of(lever.key).cheap]
    rows = list[MovedLever]()
    for number, lever in enumerate(moved_levers):
        if brake.stopped():
            complete = False
            break
        (progress or silent)(f"varying {lever.key}", number / len(moved_levers))
        with suppress(InputError):
            low, high = (
                answer(problem, effort, changes={lever.key: end}, fleets=fleets) for end in (lever.low, lever.high)
            )
            rows.append(replace(lever, answers=(here, low, high)))
    break_evens, known_misses = [], [] if plan is None else list(_refuted(problem, plan))
    along_prices = [best.case for row in rows if row.key.startswith("price.") for best in row.answers]
    priced_fleets = [*{case.key: case for case in (*fleets, *along_prices) if case is not None}.values()]
    for offer in problem.offers:
        with suppress(InputError):
            break_evens.append(_break_even(problem, offer, known_misses, priced_fleets))
    is_own = own is not None and own.cost is not None and math.isclose(own.cost, here.cost, rel_tol=ROUNDING)
    return Sensitivity(
        share=SHARE,
        complete=complete,
        usd_per_hour=here.cost,
        pools=list(own.pools if own is not None and is_own else here.pools),
        levers=[row.record(_flips(problem, row, effort, fleets)) for row in sorted(rows, key=lambda row: -row.swing)],
        break_even=break_evens,
    )


def kind_of(pools: Iterable[EnginePool]) -> frozenset[Hashable]:
    """The kind of a fleet: its engines by GPU, split and role, regardless of their number."""
    return frozenset(pool.engine for pool in pools)


def _flips(problem: Problem, lever: MovedLever, effort: ScenarioEffort, fleets: Sequence[Case]) -> list[Flip]:
    """Where a lever changes the kind of fleet, by bisection; along a price, break-even prices are exact.

    fleets: that are tried at every value, besides those of the lever's answers.
    """
    here, low, high = lever.answers
    fleets = [*fleets, *(best.case for best in lever.answers if best.case is not None)]
    own, flips = kind_of(here.pools), list[Flip]()
    for end in () if lever.key.startswith("price.") else ((lever.low, low), (lever.high, high)):
        inside, (beyond, best) = lever.value, end
        if kind_of(best.pools) == own:
            continue
        for _ in range(HALVINGS):
            middle = (inside + beyond) / 2.0
            there = answer(problem, effort, changes={lever.key: middle}, fleets=fleets)
            if kind_of(there.pools) == own:
                inside = middle
            else:
                beyond, best = middle, there
        flips.append(Flip(same_at=inside, other_at=beyond, pools=list(best.pools), usd_per_hour=best.cost))
    return flips


def _own_fleet(problem: Problem, plan: Plan) -> Iterator[Case]:
    """The fleet of a plan, unless its settings were tuned beside those of the search."""
    for row in plan.alternatives:
        if row.kind == "recommended":
            with suppress(InputError):
                yield fleet_under(demand_of(problem), row.pools, row.routes)


def _refuted(problem: Problem, plan: Plan) -> Iterator[Engines]:
    """Engines of the fleets that a plan's simulation did not confirm: whatever the prices, they are no answer.

    Those that the plan itself has are one, with its own batch limits.
    """
    demand = demand_of(problem)
    with suppress(InputError):  # settings that tuning found beside those of the search
        own = fleet_under(demand, plan.pools).engines
        for fleet in [] if plan.simulation is None else plan.simulation.others:
            with suppress(InputError):
                if not fleet.held and not is_refuted(own, [miss := fleet_under(demand, fleet.pools).engines]):
                    yield miss


def _break_even(problem: Problem, offer: Offer, known_misses: Sequence[Engines], fleets: Sequence[Case]) -> BreakEven:
    """The cheapest fleet at any price of one accelerator, those that simulation did not confirm left out."""
    pieces = [
        PricePiece(
            low=step.start,
            high=step.end,
            usd_per_hour_low=step.costs[0],
            usd_per_hour_high=step.costs[1],
            pools=list(unpriced(step.answer.pools)),
        )
        for step in break_even(
            problem, f"price.{offer.accelerator.name}", known_misses=known_misses, fleets=fleets
        ).steps
    ]
    return BreakEven(accelerator=offer.accelerator.name, usd_per_gpu_hour=offer.usd_per_hour, pieces=pieces)


# --- near-optimal fleets ----------------------------------------------------------------------------------------------


def near_optimal(
    problem: Problem, effort: ScenarioEffort = ScenarioEffort.SIMPLE, looks: int = 0
) -> list[tuple[str, Answer]]:
    """The cheapest fleet of all first; then without each GPU type and vendor in it, and of each type and vendor alone.

    Each with its condition, such as "without H200"; cheapest first. looks: fleets that are simulated at most, the
    cheapest first.
    """
    if not is_simple(problem):
        raise InputError("--slack compares fleets of least cost whose pools serve every class; state such a goal")
    best = answer(problem, effort, simulated=bool(looks))
    if best.cost is None:
        return [("cheapest", best)]
    cards, conditions = [offer.accelerator for offer in problem.offers], dict[frozenset[str], str]()
    for is_only, labels in product((False, True), ({c.name: c.name for c in cards}, {c.name: c.vendor for c in cards})):
        used = {labels[name] for name in best.gpus}
        for label in dict.fromkeys(labels.values()):
            out = frozenset(name for name, own in labels.items() if (own == label) is not is_only)
            if len(out) < len(cards) and (used != {label} if is_only else label in used):
                conditions.setdefault(out, f"{'only' if is_only else 'without'} {label}")
    scenarios = [
        Scenario(name, {f"{lever}.{card}": 0 for card in sorted(out) for lever in ("owned", "inventory")})
        for out, name in conditions.items()
    ]

    def groups(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
        """Each condition by itself, the cheapest first."""
        costs = [math.inf if best.cost is None else best.cost for best in answers]
        return [(number,) for number in sorted(range(len(answers)), key=lambda number: costs[number])]

    none = "by formula none meets the SLO within the file's limits"
    answers = solve_scenarios(problem, scenarios, effort, max(looks - 1, 0), groups)
    rows = [
        (scenario.name, row if row.pools or row.refuted else replace(row, binding=none))
        for scenario, row in zip(scenarios, answers, strict=True)
    ]
    return [("cheapest", best), *sorted(rows, key=lambda row: math.inf if row[1].cost is None else row[1].cost)]


# --- shadow prices ----------------------------------------------------------------------------------------------------


def shadow_prices(problem: Problem, effort: ScenarioEffort = ScenarioEffort.SIMPLE) -> list[ShadowPrice]:
    """The shadow price of every limit that the problem states; none for one without which no fleet is known."""
    limits = [
        (name, float(upper))
        for name, upper in stated_limits(problem)
        if upper and (name in {"budget", "power", "max_gpus"} or name.startswith(INVENTORY))
    ]
    if not limits or problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        return []
    instance, here, rows = planned_instance(problem), answer(problem, effort).cost, []
    for name, upper in limits:
        goodput, unit = problem.objective.goal is not Goal.MIN_COST or name == "budget", LIMIT_UNITS.get(name, "GPU")
        relaxed = relaxation(instance, name, goodput=goodput)
        if relaxed is None:
            continue
        row = ShadowPrice(name, upper, unit, "req/s" if goodput else "$/h", relaxed[1], None, None)
        for count in () if goodput or here is None else WIDER:
            more = float(count) if unit == "GPU" else upper * count / 100.0
            there = answer(with_limit(problem, name, upper + more), effort).cost
            if there is not None and here is not None and there < here * (1.0 - ROUNDING):
                row = replace(row, wider=more, whole=here - there)
                break
        rows.append(row)
    return rows


def relaxation(instance: Instance, limit: str, *, goodput: bool) -> tuple[float, float] | None:
    """The linear relaxation of the floor, for the least cost or the most goodput: its value, and the dual of a limit.

    [$/h] saved or [req/s] served, and per unit.
    """
    aim = Aim(0.0, 1.0, 0.0, MOST_MORE) if goodput else aim_of(instance.problem)
    scale = float(instance.flows.rate.sum()) if goodput else 1.0 / aim.cost_weight
    matrices = floor_matrices(instance, make_settings(instance))
    if not matrices.size:
        return None
    model = write_model(matrices, aim)
    solution = solve(model.program, relaxed=True)
    if not solution.x.size:
        return None
    return solution.objective * scale, (max(-float(solution.duals[model.limits[limit]]), 0.0) + 0.0) * scale
