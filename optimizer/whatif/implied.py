"""What bounds proven for some scenarios say of the others.

For one family of problems the least cost C of any fleet is the least of many that are linear in the prices p. So it is
concave (Eisner and Severance 1976), doubles with all prices, and never falls with any: together, for any a >= 0,

    sum_j a_j p_j <= p   =>   C(p) >= sum_j a_j C(p_j).

It never falls with the rate, nor with tighter SLOs and limits, so that each C(p_j) may be that of a looser problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from .bound import Place

FloatArray = NDArray[np.float64]

MOST_SETS = 3000
"""Sets of proofs whose mixtures are tried after each new proof; beyond that only the latest proofs are mixed."""
SAME = 1e-9
"""Relative difference of values that count as equal."""


@dataclass(frozen=True, slots=True)
class Family:
    """Scenarios whose bounds say something of one another.

    rows: their numbers; prices (rows, dimensions): that differ, and 1 for all that do not; hard (rows, values).
    """

    rows: tuple[int, ...]
    prices: FloatArray
    hard: FloatArray

    def looser(self, at: int) -> NDArray[np.bool_]:
        """Rows that the scenario `at` (a place among the rows) is no harder than, (rows,)."""
        slack = SAME * np.maximum(np.abs(self.hard[at]), 1e-12)
        return np.asarray((self.hard[at] <= self.hard + np.where(np.isfinite(slack), slack, 0.0)).all(axis=1))

    def multiple(self, at: int) -> FloatArray:
        """The largest share of the least cost of one scenario that each row costs at least by that alone, (rows,)."""
        with np.errstate(divide="ignore"):
            ratios = np.where(self.prices[at] > 0.0, self.prices / self.prices[at], np.inf)
        return np.where(self.looser(at), ratios.min(axis=1, initial=np.inf), 0.0)


def families(places: Sequence[tuple[int, Place]]) -> list[Family]:
    """Group numbered scenarios by family."""
    groups: dict[str, list[tuple[int, Place]]] = {}
    for number, place in places:
        groups.setdefault(place.family, []).append((number, place))
    found = []
    for members in groups.values():
        prices = np.array([place.prices for _, place in members], dtype=np.float64)
        differ = (prices != prices[0]).any(axis=0)
        fixed = (prices[0, ~differ] > 0.0).any()
        dimensions = np.concatenate([prices[:, differ], np.ones((len(members), int(fixed)))], axis=1)
        hard = np.array([place.hard for _, place in members], dtype=np.float64)
        found.append(Family(tuple(number for number, _ in members), dimensions, hard))
    return found


@dataclass(frozen=True, slots=True)
class Proven:
    """A bound on the least cost of the scenario `at` (a place among a family's rows) [$/h]."""

    at: int
    bound: float


def raised(family: Family, bounds: FloatArray, before: Sequence[Proven], new: Proven) -> FloatArray:
    """Bounds of all rows of a family once one more is proven, (rows,); before: the proofs that are in them already."""
    dimensions = family.prices.shape[1]
    reach = {proof.at: family.looser(proof.at) for proof in (*before, new)}
    best = bounds.copy()
    best[new.at] = max(best[new.at], new.bound)
    units = np.eye(dimensions)
    others = [proof for proof in before if (reach[proof.at] & reach[new.at]).any()]
    while others and comb(len(others) + dimensions, dimensions - 1) > MOST_SETS:
        others = others[1:]
    for chosen in combinations(range(len(others) + dimensions), max(dimensions - 1, 0)):
        mixed = [new, *(others[one] for one in chosen if one < len(others))]
        lines = [family.prices[proof.at] for proof in mixed]
        lines += [units[one - len(others)] for one in chosen if one >= len(others)]
        shares = _shares(np.array(lines).reshape(len(lines), dimensions), family.prices)
        if shares is None:
            continue
        able = (shares >= -SAME).all(axis=0)
        for proof in mixed:
            able &= reach[proof.at]
        found = np.maximum(shares[: len(mixed)], 0.0).T @ [proof.bound for proof in mixed]
        best = np.where(able, np.maximum(best, found * (1.0 - SAME)), best)
    return best


def _shares(lines: FloatArray, prices: FloatArray) -> FloatArray | None:
    """How much of each line makes up the prices of each row, (lines, rows); None where lines depend on others."""
    if not lines.size:
        return np.ones((lines.shape[0], prices.shape[0]))
    if abs(np.linalg.det(lines / np.maximum(np.abs(lines).max(axis=1, keepdims=True), 1e-300))) < SAME:
        return None
    return np.asarray(np.linalg.solve(lines.T, prices.T))
