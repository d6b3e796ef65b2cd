"""The best fleet as a function of one lever: pieces on which it stays the same, and where it changes.

Along a price the cost of each fleet is a straight line, and two fleets meet where their lines cross (Eisner and
Severance 1976). Along any other lever the range is halved wherever the fleets at its ends differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from costmodel.errors import InputError
from optimizer.plans.records import engine_counts
from search_spaces.problem import Billing, Problem
from search_spaces.scenarios import LEVERS, changed

from .scenario import Answer, Depth, Engines, Missed, answer_at, is_simple, own_value, refuted_with

UNORDERED = ("without", "with", "weight_dtype", "kv_dtype", "efficiency")
"""Levers whose values have no order."""
MOST_PIECES = 300
"""Of a curve; more are a range too wide."""
STARTS = 9
"""Values at which a lever of unknown manners is looked at first."""
TIE = 1e-9
"""Share of the cost up to which two fleets cost the same."""


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

    refuted: fleets that hold by formula somewhere in the range and that did not when simulated.
    """

    key: str
    pieces: tuple[Piece, ...]
    tolerance: float
    refuted: tuple[Missed, ...] = ()

    @property
    def changes(self) -> list[tuple[Piece, Piece]]:
        """The pieces below and above every value at which the best fleet changes."""
        return list(pairwise(self.pieces))


def pieces_along(  # noqa: PLR0917
    problem: Problem,
    base: Path,
    key: str,
    low: float,
    high: float,
    tolerance: float,
    depth: Depth = Depth.SIMPLE,
    own: Answer | None = None,
    looks: int = 0,
) -> Pieces:
    """The best fleet for every value of a lever from low to high.

    tolerance: how exactly changes are found, as a share of the range; own: a fleet for the problem as it is, whatever
    found it, that is taken along a price where none is cheaper and the budget allows it; looks: fleets that are
    simulated at most along a price (`by_price`), apart from those in place of others. Raises InputError for a key
    without an order.
    """
    _check_order(key)
    if not low < high:
        raise InputError(f"{key}: the range from {low:g} to {high:g} is empty")
    price = own_value(problem, key) if key.startswith("price.") else None
    along = Along(problem, base, key, depth, tolerance * (high - low), price, own, looks)
    ends = (low, along.at(low)), (high, along.at(high))
    if price is not None and None not in {answer.cost for _, answer in ends}:
        pieces = along.envelope(*ends)
    else:
        steps = (low + (high - low) * step / (STARTS - 1) for step in range(1, STARTS - 1))
        points = [ends[0], *((value, along.at(value)) for value in steps), ends[1]]
        pieces = (piece for left, right in pairwise(points) for piece in along.halves(left, right))
    joined = along.joined(_wide(along.joined(pieces), along.least))
    if len(joined) > MOST_PIECES:
        raise InputError(f"the best fleet changes more than {MOST_PIECES} times in this range; state a smaller one")
    return Pieces(key, tuple(joined), along.least, tuple(along.missed.values()))


Point = tuple[float, Answer]
Fleet = tuple[int, tuple[Engines, ...]]


@dataclass(frozen=True, slots=True)
class Along:
    """The best fleet at any value of one lever; least: width below which two values are not told apart.

    price: the problem's own, along a price. It changes nothing but the cost, so a fleet is simulated once; tried, held,
    missed: fleets that were, for their own sake or in place of others, by `Pick.fleet`.
    """

    problem: Problem
    base: Path
    key: str
    depth: Depth
    least: float
    price: float | None
    own: Answer | None
    looks: int
    tried: set[Fleet] = field(default_factory=set)
    held: set[Fleet] = field(default_factory=set)
    missed: dict[Fleet, Missed] = field(default_factory=dict)

    def at(self, value: float) -> Answer:
        """The answer at a value."""
        refuted = frozenset(refuted_with(pools) for _, pools in self.missed)
        answer = answer_at(self.problem, self.base, self.key, value, self.depth, refuted)
        fleet = None if answer.pick is None else answer.pick.fleet
        if fleet is not None and (fleet in self.held or len(self.tried) < self.looks):
            self.tried.update({fleet} - self.held)
            answer = answer_at(self.problem, self.base, self.key, value, Depth.CONFIRMED, refuted)
            self.missed.update({miss.pick.fleet: miss for miss in answer.refuted if miss.pick is not None})
            self.held.update([answer.pick.fleet] if answer.pick is not None else [])
        if self.own is None or self.own.cost is None or self.price is None:
            return answer
        cost = self.own.cost + self.bought(self.own) * (value - self.price)
        budget = self.problem.constraints.budget
        allowed = budget is None or cost <= budget * (1.0 + TIE)
        cheap = answer.cost is None or cost <= answer.cost + TIE * abs(cost)
        return replace(self.own, cost=cost) if allowed and cheap else answer

    def bought(self, answer: Answer) -> float:
        """How many GPUs an answer pays for of the accelerator whose price the lever is; none along another."""
        name = self.key.partition(".")[2].casefold()
        offers = (offer for offer in self.problem.offers if offer.accelerator.name.casefold() == name)
        offer = next(offers, None)
        if self.price is None or offer is None:
            return 0.0
        size = offer.accelerator.node_size if offer.billing is Billing.NODE else 1
        return -(-answer.gpus.get(offer.accelerator.name, 0) // size) * size

    def envelope(self, left: Point, right: Point) -> Iterator[Piece]:
        """Pieces between two solved prices: where their lines cross, and what is below that."""
        (low, first), (high, last) = left, right
        slope, flatter = self.bought(first), self.bought(last)
        if first.cost is None or last.cost is None or slope <= flatter:  # one line, so the same cost throughout
            yield Piece(low, high, first, first.cost, last.cost)
            return
        cross = low + (last.cost - flatter * (high - low) - first.cost) / (slope - flatter)
        cross = min(max(cross, low), high)
        met = first.cost + slope * (cross - low)
        apart = cross - low > self.least and high - cross > self.least
        middle = self.at(cross) if apart else None
        if middle is not None and middle.cost is not None and middle.cost < met * (1.0 - TIE):
            yield from self.envelope(left, (cross, middle))
            yield from self.envelope((cross, middle), right)
        else:
            two = Piece(low, cross, first, first.cost, met), Piece(cross, high, last, met, last.cost)
            yield from (piece for piece in two if apart or piece.high > piece.low)

    def halves(self, left: Point, right: Point) -> Iterator[Piece]:
        """Pieces between two solved values by bisection, wherever the fleets at the ends differ."""
        (low, first), (high, last) = left, right
        if _fleet(first) == _fleet(last):
            yield Piece(low, high, first, first.cost, last.cost)
        elif high - low <= self.least:
            change = self._change(left, right)
            yield Piece(low, change, first, first.cost, self._cost_at(first, change - low))
            yield Piece(change, high, last, self._cost_at(last, change - high), last.cost)
        else:
            middle = (low + high) / 2.0
            between = middle, self.at(middle)
            yield from self.halves(left, between)
            yield from self.halves(between, right)

    def _cost_at(self, answer: Answer, further: float) -> float | None:
        """What a fleet costs a little further along: along a price, as much more as GPUs are paid for."""
        return None if answer.cost is None else answer.cost + self.bought(answer) * further

    def _change(self, left: Point, right: Point) -> float:
        """Where the best fleet changes between two near values: half-way, or at the price that the budget allows it."""
        (low, first), (high, last) = left, right
        budget, bought = self.problem.constraints.budget, self.bought(first)
        if not bought or budget is None or first.cost is None or last.cost is not None:
            return (low + high) / 2.0
        return min(max(low + (budget - first.cost) / bought, low), high)

    def joined(self, pieces: Iterator[Piece] | list[Piece]) -> list[Piece]:
        """Neighboring pieces of one fleet as one; along a price fleets of equal GPUs cost the same, and are one."""
        joined: list[Piece] = []
        for piece in pieces:
            if joined and self._fleet(joined[-1].answer) == self._fleet(piece.answer):
                joined[-1] = replace(joined[-1], high=piece.high, cost_high=piece.cost_high)
            else:
                joined.append(piece)
        return joined

    def _fleet(self, answer: Answer) -> object:
        return _fleet(answer) if self.price is None else dict(answer.gpus)


def _fleet(answer: Answer) -> object:
    """What tells one fleet from another."""
    return engine_counts(answer.pools), sorted(answer.gpus.items())


def _wide(pieces: list[Piece], least: float) -> list[Piece]:
    """The pieces that are wider than their ends are exact; a narrower one is left to its neighbor."""
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
    value = own_value(problem, key)
    if value is None:
        changed(problem.inputs, {key: 1.0})  # raises where there is no such value at all
        raise InputError(f"{key}: say between which values, such as --between 1:8")
    return 0.25 * value, 4.0 * value


def by_price(problem: Problem, key: str) -> bool:
    """Whether the key is a price, and fleets of one or two pools answer the question: then they can be simulated."""
    return is_simple(problem) and key.startswith("price.") and own_value(problem, key) is not None
