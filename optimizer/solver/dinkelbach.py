"""Most volume per cost: Dinkelbach's iteration, and a bound on the ratio of every fleet from its last problem.

Let F(p) = max V - p C over the fleets of volume V and cost C. F is convex and falls, and the best ratio V / C is where
it is zero (Dinkelbach 1967, On nonlinear fractional programming, Management Science 13, theorem 1). So

    p <- V / C of the fleet that attains F(p), until F(p) = 0

rises in every step, faster than linearly. If F(p) is known to be at most B, then V - p C <= B for every fleet, so that

    V / C <= p + B / C <= p + max(B, 0) / c        with c a cost that no fleet is below,

which is the certificate, wherever the iteration ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

PROBLEMS = 12
"""Work limit: problems that are solved at most (assumed: three or four suffice)."""

RISE = 1e-4
"""Work limit: relative rise of the ratio below which the iteration ends (assumed: the gap of each problem)."""

ENOUGH = 5e-3
"""Work limit: relative distance of the bound from the ratio below which it ends (assumed: worth no more problems)."""

Some = TypeVar("Some")


@dataclass(frozen=True, slots=True)
class Sold(Generic[Some]):
    """A fleet, the volume that it serves, and its cost in any unit."""

    fleet: Some
    volume: float
    cost: float

    @property
    def ratio(self) -> float:
        """Volume per cost."""
        return self.volume / self.cost


Richest = Callable[[float], tuple[Sold[Some] | None, float]]
"""For a price of the cost: the best fleet known of most V - price x C, and what no fleet exceeds."""


def most_per_cost(richest: Richest[Some], start: Sold[Some], least_cost: float) -> tuple[Sold[Some], float]:
    """The fleet of most volume per cost, from one to start with, and a ratio that no fleet exceeds.

    least_cost: that no fleet is below; where it is not positive, the bound is only known once F is 0.
    """
    best, top = start, math.inf
    for _ in range(PROBLEMS):
        price = best.ratio
        found, bound = richest(price)
        beyond = max(bound, 0.0)
        top = min(top, price + (beyond / least_cost if least_cost > 0.0 else math.inf if beyond else 0.0))
        if found is None or found.ratio <= price * (1.0 + RISE):
            break
        best = found
        if top <= best.ratio * (1.0 + ENOUGH):
            break
    return best, max(top, best.ratio)
