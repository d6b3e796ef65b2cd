"""What the cost of a fleet can be: multiples of a step, where all prices are decimal numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fleet_model import Aim
from .matrices import Matrices
from .tolerances import SAME_STEP

DECIMALS = 4
"""Digits after the point up to which prices count as decimal (assumed: price lists have two to four)."""


@dataclass(frozen=True, slots=True)
class Steps:
    """size: what objectives differ by at least, in the units of the aim; 0 where they can be anything."""

    size: float

    @classmethod
    def of(cls, matrices: Matrices, aim: Aim) -> Steps:
        """The greatest common divisor of all prices of engines and nodes, where volume is worth nothing."""
        nodes = [limit.node_price for limit in matrices.limits]
        scaled = np.append(matrices.price, nodes) * 10.0**DECIMALS
        whole = np.rint(scaled)
        if aim.volume_weight or (np.abs(scaled - whole) > SAME_STEP).any():
            return cls(0.0)
        return cls(aim.cost_weight * float(np.gcd.reduce(whole.astype(np.int64), initial=0)) / 10.0**DECIMALS)

    def up(self, bound: float) -> float:
        """The least objective that is possible where none is below `bound`."""
        if not self.size or not np.isfinite(bound):
            return bound
        return max(bound, float(np.ceil(bound / self.size - SAME_STEP)) * self.size)

    def below(self, objective: float, gap: float) -> float:
        """A limit that leaves out what is no better than `objective`, or better by no more than the relative gap."""
        return objective - max(gap * abs(objective), 0.5 * self.size)
