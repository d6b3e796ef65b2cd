"""What the least cost hangs on: the tornado, the sensitivity of a plan, near-optimal fleets and shadow prices.

Shadow prices say what one more GPU, dollar or watt of a limit would save: at the margin of the floor's relaxation
(`dual`), and in whole engines (`whole`). A budget never makes the fleet
that meets a demand cheaper; what it is worth is how much more demand could be served.

What the chunk of a prompt does to a fleet: latencies, goodput and cost against `max_num_batched_tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.metric import Metric
from optimizer.fleets.build_plan import LIMIT_UNITS, pool_of_record
from optimizer.fleets.evaluate import bisection, evaluate, holds_at
from optimizer.fleets.fleet import INVENTORY, Fleet, fleet_cost, with_replicas
from optimizer.loads.instance import ENDS, Brake, Instance, Progress, planned_instance, silent, slow_end
from optimizer.plans.plan import Plan
from optimizer.plans.records import (
    CANDIDATES,
    HALVINGS,
    MOST_MORE,
    ROUNDING,
    BreakEven,
    ClassLatencies,
    EnginePool,
    Flip,
    LeverSensitivity,
    Outcome,
    PricePiece,
    Sensitivity,
    unpriced,
)
from optimizer.recommend.explain import stated_limits, with_limit
from optimizer.search.bound import floor_matrices
from optimizer.search.program import Aim, aim_of, write_model
from optimizer.search.program import solve as solve_program
from optimizer.search.search import Engines, engines_of, is_refuted
from optimizer.search.settings import make_settings
from optimizer.verification.bench import make_bench
from optimizer.whatif.answer import solve
from search_spaces.problem import Goal, Offer, Problem
from search_spaces.scenarios import Scenario, lever_of, scenario_problem

from .answer import (
    Answer,
    Case,
    Row,
    ScenarioEffort,
    answer,
    answer_of_plan,
    break_of,
    demand_of,
    is_simple,
    slow_instance,
)
from .curves import break_even, own_value

STEP_TIME: Final = "step_time_quantile"
"""The lever of how slow all steps are within the errors of past predictions."""
SHARE: Final = 0.2
"""By how much each lever of a tornado goes either way."""
WIDER: Final = tuple(2**step for step in range(CANDIDATES + 1))
"""GPUs, or per cent, by which a limit is widened in whole fleets, until it saves something."""


# --- the tornado ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MovedLever:
    """A lever, its value at hand, and what it is moved to; unit: that of workload.yaml, or 1 for factors.

    answers: at hand, lower and higher, once they are known.
    """

    key: str
    value: float
    low: float
    high: float
    answers: tuple[Answer, ...] = ()

    @property
    def swing(self) -> float:
        """Difference between the dearest and the cheapest of the answers [$/h]; infinite where one has no fleet."""
        return _swing([best.cost for best in self.answers])

    def record(self, flips: Sequence[Flip] = ()) -> LeverSensitivity:
        """The lever as a plan has it."""
        _, low, high = self.answers
        ends = {"usd_per_hour_low": low.cost, "usd_per_hour_high": high.cost}
        lever = {"lever": self.key, "value": self.value, "low": self.low, "high": self.high}
        return LeverSensitivity(**lever, **ends, flips=list(flips))


def _swing(costs: Sequence[float | None]) -> float:
    known_costs = [cost for cost in costs if cost is not None]
    return max(known_costs) - min(known_costs) if len(known_costs) == len(costs) else math.inf


def levers(
    problem: Problem, share: float = SHARE, effort: ScenarioEffort = ScenarioEffort.SIMPLE
) -> Iterator[MovedLever]:
    """Levers worth asking about, `share` lower and higher than they are; factors stand at 1.

    Lengths grow no further than the model's context, shares no further than 1. Step times go over the interval of their
    errors, where fleets are by formula.
    """
    load = problem.workload
    longest = problem.model.max_position / load.max_tokens if problem.model.max_position else float("inf")

    def lever(key: str, value: float, most: float = float("inf")) -> MovedLever:
        return MovedLever(key, value, value * (1.0 - share), max(min(value * (1.0 + share), most), value))

    for offer in problem.offers:
        yield lever(f"price.{offer.accelerator.name}", offer.usd_per_hour)
    limited = [metric for metric in Metric if any(metric in slo.limits for slo in problem.slos)]
    for key in ("rate_scale", "isl_scale", "osl_scale", *(f"{metric}_scale" for metric in limited), "link_scale"):
        yield lever(key, 1.0, longest if key in {"isl_scale", "osl_scale"} else float("inf"))
    if effort is not ScenarioEffort.SIMULATED and is_simple(problem):
        yield MovedLever(STEP_TIME, slow_end(problem.confidence), *ENDS)
    yield lever("burstiness", load.burstiness)
    if load.prefix_hit_share > 0.0 and load.sessions is None:
        yield lever("prefix_hit_share", load.prefix_hit_share, 1.0)
    for key in ("budget", "power"):
        limit = own_value(problem, key)
        if limit is not None:
            yield lever(key, limit)


def tornado(
    problem: Problem, levers: Iterable[MovedLever], effort: ScenarioEffort = ScenarioEffort.SIMPLE, looks: int = 0
) -> list[MovedLever]:
    """The cost with each lever lower and higher, the others as they are; the largest swing first.

    looks: costs that are of fleets which hold when simulated: that at hand, then those of the largest swings, of both
    ends of a lever or neither.
    """
    rows = list(levers)

    def groups(solved: Sequence[Row]) -> list[tuple[int, ...]]:
        """At hand, then both ends of each lever."""
        costs = [row["cost_usd_per_hour"] for row in solved]
        pairs = [(low, low + 1) for low in range(1, len(solved), 2)]
        return [(0,), *sorted(pairs, key=lambda pair: -_swing([costs[0], *(costs[end] for end in pair)]))]

    ends = [Scenario("", {row.key: end}) for row in rows for end in (row.low, row.high)]
    here, *answers = solve(problem, [Scenario("", {}), *ends], effort, looks, groups)
    pairs = zip(rows, answers[::2], answers[1::2], strict=True)
    moved = [replace(row, answers=(here, low, high)) for row, low, high in pairs]
    return sorted(moved, key=lambda row: -row.swing)


# --- the sensitivity of a plan ---------------------------------------------------------------------------------------


def sensitivity(
    problem: Problem,
    *,
    complete: bool,
    plan: Plan | None = None,
    brake: Brake | None = None,
    progress: Progress | None = None,
) -> Sensitivity | None:
    """How the least cost moves with prices and limits and, if complete, with everything else, by formula.

    Prices are moved in milliseconds, other levers in a second or so each; a value that no workload file may state is
    left out. None where no fleet holds, or for another goal than the least cost or pools for each class.

    plan: where its own fleet is cheaper than any of one pool or two, fleets of more pools are searched too; brake: once
    it is pulled, the levers that are left are left out; progress: called with a label and the share of the levers that
    is done.
    """
    if not is_simple(problem):
        return None
    brake, effort, here = brake or Brake(), ScenarioEffort.SIMPLE, answer(problem)
    own = answer_of_plan(plan) if plan is not None else None
    if own is not None and own.cost is not None and (here.cost is None or own.cost < here.cost * (1.0 - ROUNDING)):
        effort, here = ScenarioEffort.FULL, answer(problem, ScenarioEffort.FULL)
    if here.cost is None:
        return None
    moved_levers, rows = (
        [lever for lever in levers(problem) if complete or lever_of(lever.key).cheap],
        list[MovedLever](),
    )
    for number, lever in enumerate(moved_levers):
        if brake.stopped():
            complete = False
            break
        (progress or silent)(f"varying {lever.key}", number / len(moved_levers))
        with suppress(InputError):
            low, high = (answer(problem, effort, changes={lever.key: end}) for end in (lever.low, lever.high))
            rows.append(replace(lever, answers=(here, low, high)))
    break_evens, known_misses = [], [] if plan is None else list(_refuted(problem, plan))
    for offer in problem.offers:
        with suppress(InputError):
            break_evens.append(_break_even(problem, offer, effort, known_misses))
    is_own = own is not None and own.cost is not None and math.isclose(own.cost, here.cost, rel_tol=ROUNDING)
    return Sensitivity(
        share=SHARE,
        complete=complete,
        usd_per_hour=here.cost,
        pools=list(own.pools if own is not None and is_own else here.pools),
        levers=[row.record(_flips(problem, row, effort)) for row in sorted(rows, key=lambda row: -row.swing)],
        break_even=break_evens,
    )


def kind_of(pools: Iterable[EnginePool]) -> frozenset[Hashable]:
    """What kind of fleet it is: its engines by GPU, split and role, however many."""
    return frozenset(pool.engine for pool in pools)


def _flips(problem: Problem, lever: MovedLever, effort: ScenarioEffort) -> list[Flip]:
    """Where a lever changes the kind of fleet; along a price break-even prices say that exactly.

    The way from the value at hand to an end with a fleet of another kind is halved.
    """
    here, low, high = lever.answers
    own, flips = kind_of(here.pools), list[Flip]()
    for end in () if lever.key.startswith("price.") else ((lever.low, low), (lever.high, high)):
        inside, (beyond, best) = lever.value, end
        if kind_of(best.pools) == own:
            continue
        for _ in range(HALVINGS):
            middle = (inside + beyond) / 2.0
            there = answer(problem, effort, changes={lever.key: middle})
            if kind_of(there.pools) == own:
                inside = middle
            else:
                beyond, best = middle, there
        flips.append(Flip(same_at=inside, other_at=beyond, pools=list(best.pools), usd_per_hour=best.cost))
    return flips


def _refuted(problem: Problem, plan: Plan) -> Iterator[Engines]:
    """Engines of the fleets that a plan's simulation did not confirm: whatever the prices, they are no answer.

    Those that the plan itself has are one, with its own batch limits.
    """
    instance = slow_instance(demand_of(problem))
    route, spares = np.ones(instance.flows.isl.size), problem.constraints.spare_replicas

    def engines(pools: Iterable[EnginePool]) -> Engines:
        fleet_pools = (pool_of_record(instance, pool, pool.role, pool.replicas - spares, route) for pool in pools)
        return engines_of(instance, Fleet(tuple(fleet_pools)))

    with suppress(InputError):  # settings that tuning found beside those of the search
        own = engines(plan.pools)
        for fleet in [] if plan.simulation is None else plan.simulation.others:
            with suppress(InputError):
                if not fleet.held and not is_refuted(own, [miss := engines(fleet.pools)]):
                    yield miss


def _break_even(problem: Problem, offer: Offer, effort: ScenarioEffort, known_misses: Sequence[Engines]) -> BreakEven:
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
            problem, f"price.{offer.accelerator.name}", effort=effort, known_misses=known_misses
        ).steps
    ]
    return BreakEven(accelerator=offer.accelerator.name, usd_per_gpu_hour=offer.usd_per_hour, pieces=pieces)


# --- near-optimal fleets --------------------------------------------------------------------------------------------


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

    def groups(solved: Sequence[Row]) -> list[tuple[int, ...]]:
        """Each condition by itself, the cheapest first."""
        costs = [math.inf if row["cost_usd_per_hour"] is None else row["cost_usd_per_hour"] for row in solved]
        return [(number,) for number in sorted(range(len(solved)), key=lambda number: costs[number])]

    none = "by formula none meets the SLO within the file's limits"
    answers = solve(problem, scenarios, effort, max(looks - 1, 0), groups)
    rows = [
        (scenario.name, row if row.pools or row.refuted else replace(row, binding=none))
        for scenario, row in zip(scenarios, answers, strict=True)
    ]
    return [("cheapest", best), *sorted(rows, key=lambda row: math.inf if row[1].cost is None else row[1].cost)]


# --- shadow prices --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShadowPrice:
    """What one unit more of a limit is worth.

    limit: its name, such as "inventory H200"; upper, unit: its value. worth: unit of what it brings, "$/h" saved or
    "req/s" served. dual [worth per unit]: at the margin of the linear relaxation. wider [unit], whole [$/h]: the least
    widening tried that makes a cheaper whole fleet possible, and what that saves; None where none does.
    """

    limit: str
    upper: float
    unit: str
    worth: str
    dual: float
    wider: float | None
    whole: float | None


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
    solution = solve_program(model.program, relaxed=True)
    if not solution.x.size:
        return None
    return solution.objective * scale, (max(-float(solution.duals[model.limits[limit]]), 0.0) + 0.0) * scale


# --- the chunk of a prompt -------------------------------------------------------------------------------------------

CHUNKS: Final = "search.max_num_batched_tokens"
MOST_TIMES: Final = 2**HALVINGS
"""As many replicas as the fleet has, beyond which none are counted for a chunk that needs more."""


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A fleet whose engines that take prompts have one chunk, as the JSON document has it.

    classes: attainment [1] and quantiles [s] of each SLO class; outcome: whether they meet, miss or are undecided;
    simulated: whether both come from a simulation, else by formula; goodput_rps: the highest rate within the SLOs by
    formula; replicas_needed, cost_needed_usd_per_hour: of the first pool that takes prompts, and of the whole fleet,
    where as many of them are bought as meet the SLO by formula; None where MOST_TIMES as many do not; overloaded:
    whether the fleet falls behind its arrivals, so that its quantiles grow for as long as they last.
    """

    chunk_tokens: int
    outcome: Outcome
    simulated: bool
    classes: list[ClassLatencies]
    goodput_rps: float
    replicas_needed: int | None
    cost_needed_usd_per_hour: float | None
    overloaded: bool


@dataclass(frozen=True, slots=True)
class ChunkCurve:
    """The cheapest fleet, the role of its engines that take prompts, the chunk of the first, and what each chunk does.

    without_memory: chunks beside which the engines have no memory for a request.
    """

    problem: Problem
    answer: Answer
    role: Role
    own: int
    rows: tuple[ChunkRow, ...]
    without_memory: tuple[int, ...]


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
    """What one chunk makes of the fleet."""
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
    """The fleet with as few replicas in one pool as meet the SLO by formula; None where too many are needed."""

    def misses(count: int) -> bool:
        return not holds_at(instance, with_replicas(fleet, index, count))

    most = MOST_TIMES * fleet.pools[index].replicas
    count = bisection(0, most + 1, misses)[1]
    return None if count > most else with_replicas(fleet, index, count)
