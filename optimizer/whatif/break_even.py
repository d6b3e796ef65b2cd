"""The best fleet as a function of one lever: pieces on which it stays the same, and where it changes.

Along a price the cost of each fleet is a straight line, and two fleets meet where their lines cross (Eisner and
Severance 1976). Along any other lever the range is halved wherever the fleets at its ends differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from costmodel.errors import InputError
from search_spaces.levers import LEVERS
from search_spaces.problem import Billing, Problem
from search_spaces.scenarios import changed

from .answer import Answer, Effort, Missed, answer_at, is_simple, own_value

UNORDERED = ("without", "with", "weight_dtype", "kv_dtype", "efficiency")
"""Levers whose values have no order."""
MOST_PIECES = 300
"""Of a curve; more are a range too wide."""
STARTS = 9
"""Values at which a lever of unknown manners is looked at first."""
TIE = 1e-9
"""Share of the cost up to which two fleets cost the same."""

Point = tuple[float, Answer]


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
    effort: Effort = Effort.SIMPLE,
    own: Answer | None = None,
    looks: int = 0,
) -> Pieces:
    """The best fleet for every value of a lever from low to high.

    tolerance: how exactly changes are found, as a share of the range; own: a fleet for the problem as it is, whatever
    found it, that is taken along a price where none is cheaper and the budget allows it; looks: fleets that are
    simulated at most, apart from those in place of others. Raises InputError for a key without an order.
    """
    _check_order(key)
    if not low < high:
        raise InputError(f"{key}: the range from {low:g} to {high:g} is empty")
    price = own_value(problem, key) if key.startswith("price.") else None
    along = Along(problem, base, key, effort, tolerance * (high - low), price, own, looks)
    ends = (low, along.at(low)), (high, along.at(high))
    if price is not None and None not in {best.cost for _, best in ends}:
        pieces = list(along.between(*ends))
    else:
        values = [low + (high - low) * step / (STARTS - 1) for step in range(1, STARTS - 1)]
        points = [ends[0], *((value, along.at(value)) for value in values), ends[1]]
        pieces = [piece for left, right in pairwise(points) for piece in along.between(left, right)]
    pieces = along.joined(along.wide(along.joined(pieces)))
    if len(pieces) > MOST_PIECES:
        raise InputError(f"the best fleet changes more than {MOST_PIECES} times in this range; state a smaller one")
    return Pieces(key, tuple(pieces), along.least, tuple(along.missed.values()))


@dataclass(frozen=True, slots=True)
class Along:
    """The best fleet at any value of one lever; least: width below which two values are not told apart.

    price: the problem's own, along a price; tried, missed: fleets that were simulated, and those that did not hold.
    """

    problem: Problem
    base: Path
    key: str
    effort: Effort
    least: float
    price: float | None
    own: Answer | None
    looks: int
    tried: set[str] = field(default_factory=set)
    missed: dict[str, Missed] = field(default_factory=dict)

    def at(self, value: float) -> Answer:
        """The answer at a value."""
        best = answer_at(self.problem, self.base, self.key, value, self.effort)
        fleet = "" if best.case is None else best.case.key
        if fleet and (fleet in {*self.tried, *self.missed} or len(self.tried) < self.looks):
            self.tried.add(fleet)
            best = answer_at(self.problem, self.base, self.key, value, self.effort, simulated=True)
            self.missed.update({missed.case.key: missed for missed in best.refuted if missed.case is not None})
        if self.own is None or self.own.cost is None or self.price is None:
            return best
        cost = self.own.cost + self.bought(self.own) * (value - self.price)
        budget = self.problem.constraints.budget
        allowed = budget is None or cost <= budget * (1.0 + TIE)
        cheap = best.cost is None or cost <= best.cost + TIE * abs(cost)
        return replace(self.own, cost=cost) if allowed and cheap else best

    def bought(self, best: Answer) -> float:
        """How many GPUs a fleet rents of the accelerator whose price the lever is; none along another."""
        name = self.key.partition(".")[2].casefold()
        offers = (offer for offer in self.problem.offers if offer.accelerator.name.casefold() == name)
        offer = next(offers, None)
        if self.price is None or offer is None:
            return 0.0
        size = offer.accelerator.node_size if offer.billing is Billing.NODE else 1
        rented = max(best.gpus.get(offer.accelerator.name, 0) - offer.owned, 0)
        return -(-rented // size) * size

    def between(self, left: Point, right: Point) -> Iterator[Piece]:
        """Pieces between two solved values: parted where lines of cost cross, or in the middle."""
        (low, first), (high, last) = left, right
        if _gpus(first) == _gpus(last):
            yield Piece(low, high, first, first.cost, last.cost)
            return
        priced = self.price is not None and first.cost is not None and last.cost is not None
        middle = self._crossing(left, right) if priced else (low + high) / 2.0
        apart = min(middle - low, high - middle) > self.least if priced else high - low > self.least
        between = self.at(middle) if apart else None
        met = self._cost_at(first, middle - low)
        if between is None or (priced and not _is_cheaper(between, met)):
            middle = middle if priced else self._change(left, right)
            yield Piece(low, middle, first, first.cost, self._cost_at(first, middle - low))
            yield Piece(middle, high, last, self._cost_at(last, middle - high), last.cost)
            return
        yield from self.between(left, (middle, between))
        yield from self.between((middle, between), right)

    def _crossing(self, left: Point, right: Point) -> float:
        """The price at which two fleets cost the same; in the middle where both buy as many GPUs."""
        (low, first), (high, last) = left, right
        slope, flatter = self.bought(first), self.bought(last)
        if slope <= flatter:
            return high
        cross = low + ((last.cost or 0.0) - flatter * (high - low) - (first.cost or 0.0)) / (slope - flatter)
        return min(max(cross, low), high)

    def _cost_at(self, best: Answer, further: float) -> float | None:
        """What a fleet costs a little further along: along a price, as much more as GPUs are paid for."""
        return None if best.cost is None else best.cost + self.bought(best) * further

    def _change(self, left: Point, right: Point) -> float:
        """Where the best fleet changes between two near values: half-way, or at the price that the budget allows it."""
        (low, first), (high, last) = left, right
        budget, bought = self.problem.constraints.budget, self.bought(first)
        if not bought or budget is None or first.cost is None or last.cost is not None:
            return (low + high) / 2.0
        return min(max(low + (budget - first.cost) / bought, low), high)

    def joined(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Neighboring pieces of one fleet as one."""
        joined: list[Piece] = []
        for piece in pieces:
            if joined and _gpus(joined[-1].answer) == _gpus(piece.answer):
                joined[-1] = replace(joined[-1], high=piece.high, cost_high=piece.cost_high)
            else:
                joined.append(piece)
        return joined

    def wide(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces that are wider than their ends are exact; a narrower one is left to its neighbor."""
        wide = [piece for piece in pieces if piece.high - piece.low > self.least] or list(pieces[:1])
        highs = [*(piece.low for piece in wide[1:]), pieces[-1].high]
        lows = [pieces[0].low, *highs[:-1]]
        return [replace(piece, low=low, high=high) for piece, low, high in zip(wide, lows, highs, strict=True)]


def _gpus(best: Answer) -> dict[str, int]:
    """What tells one fleet from another: of equal GPUs none is cheaper, however engines are made of them."""
    return dict(best.gpus)


def _is_cheaper(best: Answer, cost: float | None) -> bool:
    return best.cost is not None and cost is not None and best.cost < cost * (1.0 - TIE)


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
