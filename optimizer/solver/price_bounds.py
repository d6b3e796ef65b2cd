"""What fleets within given ranges cost at least, by prices of the types' time: for engines of one role and resource.

With load_tf the blocks of type t that the whole of flow f takes, and any price u_t > 0 of a block's time, each flow is
at its cheapest where u_t load_tf is least, so that numbers of blocks n serve the demand only if

    S(u) = sum_f min_t u_t load_tf <= sum_t u_t n_t

and, by duality of linear programmes, they do if that holds for all u. With blocks at price c_t and low <= n <= high,

    cost >= S(u) + sum_t [max(c_t - u_t, 0) low_t - max(u_t - c_t, 0) high_t]

for every u (Lagrangian relaxation, Geoffrion 1974). The right side is concave in u, of few dimensions, and its best
value is the linear relaxation within these ranges. It is raised by Newton steps on a smooth S, with the mean of flows
that weighs types by exp(-u_t load_tf / (eps S_f)) in place of the least; the bound is that of the exact S at the prices
found, so it holds however rough the steps are. Many ranges are worked on at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .tolerances import SAME, SAME_PRICE

FloatArray = NDArray[np.float64]
FloatArray32 = NDArray[np.float32]
IntArray = NDArray[np.int64]

NEWTON_STEPS = 8
"""Work limit: Newton steps at most (assumed)."""

EPSILON, FINER, FINEST = 3e-3, 0.25, 1e-6
"""Relative difference of prices that is smoothed over at most, its factor where that hides too much, and its least."""

ENGINES = 0.3
"""The same times the demand in blocks of mean price: in larger fleets, one block more or less moves prices less."""

COARSE, STILL = 7e-3, 2.5e-4
"""What the smoothing may hide, and progress of a step below which the steps end, in blocks of mean price."""

DAMPING, EASED, RAISED = 0.3, 0.2, 6.0
"""Curvature that is added, as a share of the demand's worth, and its factors after a step up and one down."""

REACH = 0.3
"""Relative change of a price in one step at most."""

NEVER = 1e9
"""Price of a flow where it cannot run, in those of its cheapest type: for the smooth sum only."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand and what serves it.

    price (T,): of a block [$/h]; load (T, F): blocks that each whole flow takes, infinite where it cannot run;
    worth (F,): least price of each flow [$/h]; relative (T, F): load over worth; root (F,), scaled (T, F): the root
    of the worth, and relative times that.
    """

    price: FloatArray
    load: FloatArray
    worth: FloatArray
    relative: FloatArray32
    root: FloatArray32
    scaled: FloatArray32

    @classmethod
    def of(cls, price: FloatArray, load: FloatArray) -> Demand:
        """Every price is above 0, every flow can run somewhere."""
        worth = (price[:, None] * load).min(axis=0)
        relative = np.minimum(load / worth, NEVER / price[:, None]).astype(np.float32)
        root = np.sqrt(worth).astype(np.float32)
        return cls(price, load, worth, relative, root, relative * root)

    def least(self, prices: FloatArray) -> FloatArray:
        """S at each of the prices (K, T), exactly."""
        least = prices[:, 0, None] * self.load[0]
        for number in range(1, self.price.size):
            np.minimum(least, prices[:, number, None] * self.load[number], out=least)
        return np.asarray(least.sum(axis=1))

    def smooth(self, prices: FloatArray, epsilon: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """How much less than S the smooth sum is (K,), its gradient (K, T), blocks that are used, and its Hessian."""
        share = prices.astype(np.float32)[:, :, None] * self.relative
        share -= share.min(axis=1, keepdims=True)
        share /= -epsilon.astype(np.float32)[:, None, None]
        np.exp(share, out=share)
        total = share.sum(axis=1)
        share /= total[:, None]
        share *= self.scaled
        bend = np.matmul(share, share.transpose(0, 2, 1)).astype(np.float64)
        types = np.arange(self.price.size)
        bend[:, types, types] -= np.einsum("ktf,tf->kt", share, self.scaled)
        used = (share @ self.root).astype(np.float64)
        return epsilon * (np.log(total) @ self.worth), used, bend / epsilon[:, None, None]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of the blocks of each type, K of them, and what is known of each.

    low, high (K, T): least and most blocks; prices (K, T): of a block's time [$/h]; bound (K,): what any fleet within
    costs at least [$/h], infinite where none serves the demand; used (K, T): blocks that a routing at these prices
    takes; bend (K, T): how fast that falls with the price of the type, blocks per $/h.
    """

    low: FloatArray
    high: FloatArray
    prices: FloatArray
    bound: FloatArray
    used: FloatArray
    bend: FloatArray

    @classmethod
    def within(cls, demand: Demand, low: FloatArray, high: FloatArray) -> Ranges:
        """Ranges of which nothing is known."""
        none = np.zeros(low.shape)
        prices = np.repeat(demand.price[None], low.shape[0], axis=0)
        return cls(low, high, prices, np.full(low.shape[0], -np.inf), none, none)

    def take(self, index: IntArray | NDArray[np.bool_]) -> Ranges:
        """Those at `index`."""
        return Ranges(*(getattr(self, name)[index] for name in self.__slots__))

    def and_also(self, other: Ranges) -> Ranges:
        """These and the others."""
        return Ranges(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in self.__slots__))

    @property
    def blocks(self) -> FloatArray:
        """Blocks of the routing that are within the ranges (K, T)."""
        return np.clip(self.used, self.low, self.high)


def raised(demand: Demand, ranges: Ranges, limit: float, steps: int = NEWTON_STEPS) -> Ranges:
    """The same ranges with bounds from better prices, as good as they get or above the limit."""
    size, now = ranges.bound.size, ranges.prices
    live, unit = np.arange(size), float(demand.price.mean())
    known = np.maximum(ranges.bound, ranges.low @ demand.price)
    best = replace(ranges, prices=now.copy(), bound=known, used=np.zeros(now.shape))
    value, hessian = np.full(size, -np.inf), np.zeros((*now.shape, now.shape[1]))
    epsilon = np.full(size, min(EPSILON, ENGINES * unit / float(demand.worth.sum())))
    damping = np.full(size, DAMPING)
    for step in range(steps):
        here, least = best.take(live), demand.least(now)
        hidden, used, bend = demand.smooth(now, epsilon[live])
        bound = least + _of_ranges(demand, here, now)
        none = least > (now * here.high).sum(axis=1) * (1.0 + SAME)
        best.bound[live] = np.maximum(here.bound, np.where(none, np.inf, bound))
        gain = bound - hidden - value[live]
        better = gain >= 0.0
        up = live[better]
        value[up] = (bound - hidden)[better]
        best.prices[up], best.used[up], hessian[up] = now[better], used[better], bend[better]
        damping[live] *= np.where(better, EASED, RAISED)
        still = better & (gain < STILL * unit) & (step > 0)
        finer = still & (hidden > COARSE * unit) & (epsilon[live] > FINEST)
        epsilon[live[finer]] *= FINER
        value[live[finer]] = -np.inf
        live = live[(best.bound[live] <= limit) & (finer | ~still)]
        if not live.size or step == steps - 1:
            break
        now = _stepped(demand, best.take(live), hessian[live], damping[live])
    return replace(best, bend=np.maximum(-np.diagonal(hessian, axis1=1, axis2=2), 0.0))


def _of_ranges(demand: Demand, ranges: Ranges, prices: FloatArray) -> FloatArray:
    """What the ranges add to S at these prices (K,): blocks that must be bought, less those that can be sold."""
    short = demand.price - prices
    return np.asarray(np.where(short > 0.0, short * ranges.low, short * ranges.high).sum(axis=1))


def _stepped(demand: Demand, ranges: Ranges, hessian: FloatArray, damping: FloatArray) -> FloatArray:
    """Prices after one damped Newton step.

    A price that equals the block's stays while the blocks used are within the range; none passes the block's price.
    """
    price, at = ranges.prices, demand.price
    slope = np.where(price < at, ranges.used - ranges.low, ranges.used - ranges.high)
    slope = np.where(price == at, ranges.used - ranges.blocks, slope)
    free = (price != at) | (slope != 0.0)
    types = np.arange(at.size)
    matrix = -hessian * free[:, :, None] * free[:, None, :]
    added = damping[:, None] * float(demand.worth.sum()) / at.size / at**2
    matrix[:, types, types] += np.where(free, added, 1.0)
    change = np.linalg.solve(matrix, np.where(free, slope, 0.0)[:, :, None])[:, :, 0]
    change *= np.minimum(1.0, REACH * (price / np.maximum(np.abs(change), 1e-300)).min(axis=1))[:, None]
    moved = price + change
    passed = ((price - at) * (moved - at) < 0.0) | (np.abs(moved - at) < SAME_PRICE * at)
    return np.asarray(np.where(passed, at, moved))
