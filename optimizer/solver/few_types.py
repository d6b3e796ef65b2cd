"""The cheapest whole numbers of engines of a few types: one role and one resource, flows split as one likes.

Branch and bound (Land and Doig 1960) in the numbers of blocks alone, a dozen or so, with the bounds of `price_bounds`
for many ranges at a time: the routing of hundreds of flows is left out until a number of each type is chosen, when one
linear programme says whether they serve the demand. Nodes with the least bound go first, so that no more are looked at
than are needed to prove the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .assembly import routed
from .blocks import Blocks, Clock, Work, nothing
from .fleet_model import Aim
from .matrices import COLOCATED, Matrices
from .price_bounds import Demand, Ranges, raised
from .program import Outcome
from .steps import Steps
from .tolerances import SAME, WHOLE

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TYPES = 40
"""Types up to which few is few: the work of a Newton step grows with their square."""

ONE_IN, FEWEST, AT_ONCE = 8, 4, 32
"""Of those open, one in so many is split at a time, at least and at most so many."""

CELLS = 1_000_000
"""Types times flows of the ranges that are worked on at once, at most, for the sake of memory."""

SPLITS = 20_000
"""Work limit: ranges that are split at most (assumed: where these prove nothing, there is more hope elsewhere)."""

TIE = 1e-3
"""What counts of a bound that does not rise, so that the other one decides."""

SMALL = 1e-9
"""Room up to the limit that is none [$/h]."""

TESTED = 20
"""Steps that are tried to prove that some blocks do not serve the demand, before a linear programme is asked."""

STIFF = 0.1
"""Relative change of a price within which the blocks used follow it as they do at first."""


def plain(matrices: Matrices) -> bool:
    """Whether a few types of engines of one role and resource are asked for, without limits."""
    one = (matrices.role == COLOCATED).all() and matrices.need.shape[1] == 1 and not matrices.late.any()
    free = not matrices.limits and not matrices.counts_pools and matrices.level is None
    return bool(one and free and 0 < matrices.size <= TYPES and (matrices.price > 0.0).all())


@dataclass(slots=True)
class Tree:
    """The state of a search: what is open, the limit of what is looked for, and the best fleet.

    tried: blocks of which it is known whether they serve the demand; unsure: least cost of those of which neither a
    routing nor its absence was found [$/h].
    """

    matrices: Matrices
    demand: Demand
    steps: Steps
    work: Work
    limit: float
    open: Ranges
    best: Blocks
    clock: Clock
    tried: set[bytes] = field(default_factory=set)
    unsure: float = np.inf

    def within(self, cost: FloatArray) -> NDArray[np.bool_]:
        """Whether a fleet at such a cost is looked for: up to the limit, but below it if that is a fleet's cost."""
        limit = self.limit * (1.0 + (-SAME if self.best.index.size else SAME))
        return np.asarray((cost <= limit) & np.isfinite(cost))

    def hopeful(self, ranges: Ranges) -> Ranges:
        """Those that may have a fleet within the limit."""
        return ranges.take(self.within(np.array([self.steps.up(bound) for bound in ranges.bound.tolist()])))

    def next(self) -> Ranges:
        """The ranges to split next, those with the least bound, which are open no more."""
        order = np.argsort(self.open.bound, kind="stable")
        most = max(2, CELLS // (2 * self.demand.load.size))
        count = min(max(order.size // ONE_IN, FEWEST), AT_ONCE, most)
        chosen, self.open = self.open.take(order[:count]), self.open.take(order[count:])
        return chosen


def by_types(matrices: Matrices, aim: Aim, work: Work, limit: float) -> Blocks:
    """The best fleet of objective at most `limit` that is found for a plain problem, and a proven bound of all."""
    demand = Demand.of(aim.cost_weight * matrices.block_price, matrices.need[:, 0])
    enough = np.ceil(np.where(matrices.possible, demand.load, 0.0).sum(axis=1))  # for all that the type can serve
    most = np.minimum(enough, np.floor(matrices.most / matrices.replicas))[None]
    start = raised(demand, Ranges.within(demand, np.zeros_like(most), most), limit)
    none, clock = nothing(matrices, Outcome.NOTHING_FOUND), Clock(work.time_limit)
    tree = Tree(matrices, demand, Steps.of(matrices, aim), work, limit, start, none, clock)
    tree.open, nodes = tree.hopeful(start), 0
    while tree.open.bound.size and nodes < min(work.nodes, SPLITS) and tree.clock.left() > 0.0:
        chosen = tree.next()
        nodes += chosen.bound.size
        _try(tree, np.rint(chosen.blocks[~_fractional(demand, chosen).any(axis=1)]))
        chosen = tree.hopeful(chosen.take(np.flatnonzero((chosen.low < chosen.high).any(axis=1))))
        split = raised(demand, _halves(tree, chosen), tree.limit)
        tree.open = tree.hopeful(tree.open.and_also(split))
    bound = min(float(tree.open.bound.min(initial=np.inf)), tree.unsure, tree.limit)
    return replace(tree.best, bound=bound)


def _try(tree: Tree, blocks: FloatArray) -> None:
    """Keep the cheapest of some choices of blocks (K, T) that is within the limit and serves the demand."""
    cost = blocks @ tree.demand.price
    order = np.argsort(cost, kind="stable")
    order = order[tree.within(cost[order])]
    new = blocks[[number for number in order if blocks[number].tobytes() not in tree.tried]]
    tree.tried |= {one.tobytes() for one in new}
    points = raised(tree.demand, Ranges.within(tree.demand, new, new), np.inf, TESTED)
    for one in new[np.isfinite(points.bound)]:
        _keep(tree, one)
        if tree.best.index.size and not tree.within(np.array(one @ tree.demand.price)):
            break


def _keep(tree: Tree, blocks: FloatArray) -> None:
    """Keep these blocks (T,) if the demand can be routed to them."""
    cost, chosen = float(tree.demand.price @ blocks), np.flatnonzero(blocks)
    found = routed(tree.matrices.take(chosen), blocks[chosen], tree.clock.rest_of(tree.work))
    if found.index.size:
        tree.best = replace(found, index=chosen[found.index], objective=cost)
        tree.limit = tree.steps.below(cost, tree.work.gap)
    elif found.outcome is not Outcome.INFEASIBLE:
        tree.unsure = min(tree.unsure, cost)


def _fractional(demand: Demand, ranges: Ranges) -> NDArray[np.bool_]:
    """Types whose blocks are not whole at prices that ask for no other number of them (K, T)."""
    blocks = ranges.blocks
    part = blocks - np.floor(blocks)
    return np.asarray((ranges.prices == demand.price) & (part > WHOLE) & (part < 1.0 - WHOLE))


def _halves(tree: Tree, ranges: Ranges) -> Ranges:
    """Each of the ranges split in two, at the type whose fraction seems to raise both bounds most.

    Where nothing is fractional, at a type whose price is that of its blocks, or at any that has a choice left.
    """
    demand, blocks, row = tree.demand, ranges.blocks, np.arange(ranges.bound.size)
    down, room = blocks - np.floor(blocks), np.clip(tree.limit - ranges.bound, SMALL, demand.price.max())[:, None]
    below, above = (np.minimum(_gain(demand, part, ranges.bend) / room, 1.0) for part in (down, 1.0 - down))
    score = np.where(_fractional(demand, ranges), 2.0 + (below + TIE) * (above + TIE), ranges.prices == demand.price)
    split = np.where(ranges.high > ranges.low, score, -1.0).argmax(axis=1)
    most = np.clip(np.floor(blocks[row, split]), ranges.low[row, split], ranges.high[row, split] - 1.0)
    high, low, prices = ranges.high.copy(), ranges.low.copy(), ranges.prices.copy()
    high[row, split], low[row, split], prices[row, split] = most, most + 1.0, demand.price[split]
    return replace(ranges, high=high, prices=prices).and_also(replace(ranges, low=low, prices=prices))


def _gain(demand: Demand, part: FloatArray, bend: FloatArray) -> FloatArray:
    """How much the bound rises where a type's blocks change by a part of one, other prices as they are [$/h].

    The most of part v - bend v^2 / 2 over changes v of the price, which is not trusted beyond STIFF.
    """
    change = np.minimum(part / np.maximum(bend, 1e-12), STIFF * demand.price)
    return np.asarray(part * change - 0.5 * bend * change**2)
