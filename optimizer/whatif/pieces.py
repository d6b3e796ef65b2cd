"""The best fleet as a function of one lever: pieces on which it stays the same, and where it changes.

Along a price the cost of each fleet is a straight line and the least cost their lower envelope: two fleets meet where
their lines cross, and one more solve says whether a third is cheaper there (Eisner and Severance 1976). Along any other
lever the range is halved wherever the fleets at its ends differ; where a lever only ever makes the problem harder,
equal fleets at both ends stand for all in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from costmodel.errors import ImpossibleError, InputError
from optimizer.plans.records import engine_counts
from search_spaces.problem import Billing, Problem
from search_spaces.scenarios import LEVERS, Scenario, changed, scenario_problem

from .refuted import NONE, Refuted
from .scenario import Answer, Missed, nothing
from .whatif import Depth, solve

UNORDERED = ("without", "with", "weight_dtype", "kv_dtype", "efficiency")
"""Levers whose values have no order."""
MOST_PIECES = 500
"""More are a range too wide."""
STARTS = 9
"""Values at which a lever of unknown manners is looked at first."""


@dataclass(frozen=True, slots=True)
class Piece:
    """From `low` to `high` the same fleet is best; answer: at some value of these; costs at the two ends [$/h]."""

    low: float
    high: float
    answer: Answer
    cost_low: float | None
    cost_high: float | None


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces in ascending order, and how exactly their ends are known (in units of the lever).

    refuted: fleets that the formulas promised somewhere in the range and that did not hold when simulated.
    """

    key: str
    pieces: tuple[Piece, ...]
    tolerance: float
    refuted: tuple[Missed, ...] = ()

    @property
    def changes(self) -> list[tuple[Piece, Piece]]:
        """The pieces below and above every value at which the best fleet changes."""
        return list(pairwise(self.pieces))


@dataclass(frozen=True, slots=True)
class Along:
    """The best fleet at any value of one lever."""

    problem: Problem
    base: Path
    key: str
    depth: Depth
    refuted: Refuted = NONE

    def at(self, value: float) -> Answer:
        """The answer at a value; none where no engine can exist there."""
        try:
            problem = scenario_problem(self.problem, Scenario("", {self.key: value}), self.base)
        except ImpossibleError as error:
            return nothing(str(error))
        return solve(problem, self.base, self.depth, self.refuted)


def pieces_along(  # noqa: PLR0917
    problem: Problem,
    base: Path,
    key: str,
    low: float,
    high: float,
    tolerance: float,
    depth: Depth = Depth.SIMPLE,
    refuted: Refuted = NONE,
) -> Pieces:
    """The best fleet for every value of a lever from low to high.

    tolerance: how exactly changes are found, as a share of the range; refuted: fleets that are no answer. Raises
    InputError for a key without an order.
    """
    _check_order(key)
    if not low < high:
        raise InputError(f"{key}: the range from {low:g} to {high:g} is empty")
    along, least = Along(problem, base, key, depth, refuted), tolerance * (high - low)
    ends = along.at(low), along.at(high)
    paid = paid_gpus(problem, key)
    if paid is not None and None not in {ends[0].cost, ends[1].cost}:
        found = _envelope(along, (low, ends[0]), (high, ends[1]), least, paid)
    else:
        values = [low + (high - low) * step / (STARTS - 1) for step in range(1, STARTS - 1)]
        points = [(low, ends[0]), *((value, along.at(value)) for value in values), (high, ends[1])]
        found = [piece for left, right in pairwise(points) for piece in _halved(along, left, right, least, paid)]
    by_gpus = paid is not None
    joined = _joined(_wide(_joined(found, by_gpus=by_gpus), least), by_gpus=by_gpus)
    if len(joined) > MOST_PIECES:
        raise InputError(f"the best fleet changes more than {MOST_PIECES} times in this range; state a smaller one")
    return Pieces(key, tuple(joined), least)


def paid_gpus(problem: Problem, key: str) -> Callable[[Answer], float] | None:
    """How many GPUs an answer pays for of the accelerator whose price the key is; None for any other key."""
    head, _, name = key.partition(".")
    if head != "price":
        return None
    matching = [offer for offer in problem.offers if offer.accelerator.name.casefold() == name.casefold()]
    if not matching:
        return None
    offer = matching[0]
    size = offer.accelerator.node_size if offer.billing is Billing.NODE else 1

    def paid(answer: Answer) -> float:
        return -(-answer.gpus.get(offer.accelerator.name, 0) // size) * size

    return paid


Point = tuple[float, Answer]


def _envelope(along: Along, left: Point, right: Point, least: float, paid: Callable[[Answer], float]) -> list[Piece]:
    """Pieces between two solved prices: where their lines cross, and what is below that."""
    (low, first), (high, last) = left, right
    slopes = paid(first), paid(last)
    if first.cost is None or last.cost is None or slopes[0] <= slopes[1]:  # one line, so the same cost throughout
        return [Piece(low, high, first, first.cost, last.cost)]
    cross = low + (last.cost - slopes[1] * (high - low) - first.cost) / (slopes[0] - slopes[1])
    cross = min(max(cross, low), high)
    met = first.cost + slopes[0] * (cross - low)
    two = [Piece(low, cross, first, first.cost, met), Piece(cross, high, last, met, last.cost)]
    if cross - low <= least or high - cross <= least:
        return [piece for piece in two if piece.high > piece.low]
    middle = along.at(cross)
    if middle.cost is None or middle.cost >= met * (1.0 - 1e-9):
        return two
    return [
        *_envelope(along, left, (cross, middle), least, paid),
        *_envelope(along, (cross, middle), right, least, paid),
    ]


def _halved(
    along: Along, left: Point, right: Point, least: float, paid: Callable[[Answer], float] | None
) -> list[Piece]:
    """Pieces between two solved values by bisection, wherever the fleets at the ends differ."""
    (low, first), (high, last) = left, right
    if _fleet(first) == _fleet(last):
        return [Piece(low, high, first, first.cost, last.cost)]
    if high - low <= least:
        change = _change(along, left, right, paid)
        met = [_cost_at(one, paid, change - value) for value, one in (left, right)]
        return [Piece(low, change, first, first.cost, met[0]), Piece(change, high, last, met[1], last.cost)]
    middle = (low + high) / 2.0
    between = middle, along.at(middle)
    return [*_halved(along, left, between, least, paid), *_halved(along, between, right, least, paid)]


def _change(along: Along, left: Point, right: Point, paid: Callable[[Answer], float] | None) -> float:
    """Where the best fleet changes between two near values: half-way, or at the price that the budget allows it."""
    (low, first), (high, last) = left, right
    budget = along.problem.constraints.budget
    if paid is None or budget is None or first.cost is None or last.cost is not None or not paid(first):
        return (low + high) / 2.0
    return min(max(low + (budget - first.cost) / paid(first), low), high)


def _cost_at(answer: Answer, paid: Callable[[Answer], float] | None, further: float) -> float | None:
    """What the fleet of an answer costs a little further along: along a price, as much more as GPUs are paid for."""
    return answer.cost if answer.cost is None or paid is None else answer.cost + paid(answer) * further


def _fleet(answer: Answer) -> object:
    """What tells one fleet from another."""
    return engine_counts(answer.pools), sorted(answer.gpus.items())


def _joined(pieces: list[Piece], *, by_gpus: bool) -> list[Piece]:
    """Neighbouring pieces of one fleet as one; by_gpus: fleets of equal GPUs cost the same, and are one."""
    joined: list[Piece] = []
    for piece in pieces:
        told = [dict(one.answer.gpus) if by_gpus else _fleet(one.answer) for one in (*joined[-1:], piece)]
        if len(told) == 2 and told[0] == told[1]:
            joined[-1] = replace(joined[-1], high=piece.high, cost_high=piece.cost_high)
        else:
            joined.append(piece)
    return joined


def _wide(pieces: list[Piece], least: float) -> list[Piece]:
    """The pieces that are wider than their ends are exact; a narrower one is left to its neighbour."""
    wide = [piece for piece in pieces if piece.high - piece.low > least] or pieces[:1]
    highs = [*(piece.low for piece in wide[1:]), pieces[-1].high]
    lows = [pieces[0].low, *highs[:-1]]
    return [replace(piece, low=low, high=high) for piece, low, high in zip(wide, lows, highs, strict=True)]


def _check_order(key: str) -> None:
    if key.partition(".")[0] in UNORDERED:
        ordered = ", ".join(lever for lever in LEVERS if lever not in UNORDERED)
        raise InputError(f"{key} has no order, so nothing breaks even along it; levers that have: {ordered}")


def usual_range(problem: Problem, key: str) -> tuple[float, float]:
    """From a quarter to four times the value at hand; factors stand at 1.

    Raises InputError for names and precisions, which have no order, and for what has no such value.
    """
    _check_order(key)
    head, _, name = key.partition(".")
    load, slo = problem.workload, problem.slos[0]
    known: dict[str, float | None] = {
        "rate": load.request_rate,
        "burstiness": load.burstiness,
        **{str(metric): limit for metric, limit in slo.limits.items()},
        "budget": problem.constraints.budget,
        "power": problem.constraints.power,
    }
    prices = {offer.accelerator.name.casefold(): offer.usd_per_hour for offer in problem.offers}
    value = prices.get(name.casefold()) if head == "price" else 1.0 if head.endswith("_scale") else known.get(key)
    if value is None or math.isinf(value):
        changed(problem.inputs, {key: 1.0})  # raises where there is no such value at all
        raise InputError(f"{key}: say between which values, such as --between 1:8")
    return 0.25 * value, 4.0 * value
