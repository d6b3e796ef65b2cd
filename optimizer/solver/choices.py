"""Choices of whole blocks: the cheapest ones that no cut excludes, until one serves the demand or none is left.

Each choice is asked what it lacks (`projection`); the answer is a cut that excludes it and its like. The cost of a
choice bounds that of every fleet, and one that lacks nothing is optimal. Beside each, in a second thread, HiGHS looks
for a fleet among the columns of the last choices, which come close to a fleet long before a choice is one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .assembly import routed
from .blocks import Blocks, Clock, Prices, Work, nearest, nothing, whole_blocks, whole_cost
from .counts import kinds_of
from .fleet_model import Aim
from .matrices import Matrices
from .program import Outcome, solve, with_ceiling
from .projection import Projection, master_problem, relaxed
from .steps import Steps
from .tolerances import SAME

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CHOICE_NODES = 4
"""Work limit: nodes of the search tree of one choice at first, as a multiple of those of a search among columns
(assumed: a choice has no routing, so its nodes are cheap)."""

MORE_NODES = 4
"""Work limit: how many times as many it gets where they did not suffice for a choice (assumed)."""

FIRST = ((15, 40), (20, 60))
"""Work limits: columns of the first looks, so many nearest to the relaxation, and the nearest of so many kinds of
engine (`python -m benchmarks.reference fleet_pd`: each takes 1 to 2.5 s of CPU, one mostly finds the optimum)."""

EVERY_KIND = (20, 1000)
"""Work limit: the same of a look at every kind of engine, beside the first choice, for what costs less than those found
(`benchmarks/fleet_demands.py`: it improved one of nine fleet_pd cases, by 0.6 %, for 2 to 8 s of CPU)."""

BESIDE, MORE, LAST = (20, 20), 5, 3
"""Work limits: the same of later looks, how many more each time, and how many of the last choices lend their columns
(assumed)."""

HUNTED = 0.95
"""Work limit: share of the time left, which is a safety net only (assumed)."""

LOOK_NODES = 60
"""Work limit: nodes of the search tree of one look (assumed)."""

WALK = 8
"""Work limit: blocks that are added to a choice, one by one, for more cuts (assumed)."""

HALFWAY = 0.5
"""Where a second cut is made, between the relaxation (0) and a choice (1) (assumed)."""

Pools = tuple[IntArray, ...]
"""Columns, several times over: among each of them a fleet is looked for, beside one another."""


@dataclass(slots=True)
class Hunt:
    """The state of a search: the best fleet with the bound, what a better one may cost, and the choices so far.

    spent: iterations of the simplex method that the choices took.
    """

    projection: Projection
    aim: Aim
    work: Work
    steps: Steps
    limit: float
    best: Blocks
    nodes: int
    clock: Clock
    spent: int = 0
    stuck: bool = False
    recent: list[IntArray] = field(default_factory=list)
    tried: set[bytes] = field(default_factory=set)

    def done(self) -> bool:
        """Whether nothing better can be, or nothing more can be found out in this way.

        The first fleet may cost as much as the limit.
        """
        enough = self.best.bound >= self.limit if self.best.index.size else self.best.bound > self.limit
        return self.stuck or enough or self.clock.left() <= 0.0

    def found(self, one: Blocks) -> None:
        """Keep a fleet that is within the limit, and lower the limit."""
        if one.index.size and one.objective <= self.limit:
            self.best = replace(one, bound=self.best.bound)
            self.limit = self.steps.below(one.objective, self.work.gap)

    def proven(self, bound: float) -> None:
        """No fleet is below this bound."""
        self.best = replace(self.best, bound=max(self.best.bound, self.steps.up(bound)))


def by_choices(  # noqa: PLR0917
    projection: Projection, aim: Aim, work: Work, prices: Prices, limit: float, looks: tuple[Pools, ...]
) -> Blocks:
    """The best fleet of objective at most `limit` that is found, and a proven bound of all fleets.

    prices: the relaxation of the projection's cuts; looks: columns among which fleets are looked for at
    first, and beside the first choices.
    """
    matrices = projection.matrices
    empty = nothing(matrices, Outcome.NOTHING_FOUND, -np.inf)
    hunt = Hunt(
        projection,
        aim,
        work,
        Steps.of(matrices, aim),
        limit,
        empty,
        CHOICE_NODES * work.nodes,
        Clock(HUNTED * work.time_limit),
    )
    hunt.proven(prices.objective)
    if not hunt.done():
        _look(hunt, looks[0])
    for number in range(work.choices):
        if hunt.done() or not projection.cuts or hunt.spent >= work.iterations:
            break
        near = diverse(matrices, prices, BESIDE[0] + MORE * number, BESIDE[1] + MORE * number)
        last = np.concatenate([np.zeros(0, dtype=np.int64), *hunt.recent[-LAST:]])
        pools = looks[number + 1] if number + 1 < len(looks) else (np.union1d(near, last),)
        choice = _look(hunt, pools, prices)
        if choice is not None and not hunt.done():
            _judge(hunt, choice)
            prices = relaxed(projection, aim)
    return hunt.best


def diverse(matrices: Matrices, prices: Prices, near: int, kinds: int) -> IntArray:
    """So many columns nearest to the relaxation, and the nearest of so many kinds of engine: odd sizes fill gaps."""
    order = np.argsort(prices.relative, kind="stable")
    first = np.sort(np.unique(kinds_of(matrices, np.inf).of[order], return_index=True)[1])
    return np.union1d(nearest(prices, near), order[first[:kinds]])


def _look(hunt: Hunt, pools: Pools, prices: Prices | None = None) -> FloatArray | None:
    """Look for fleets among some columns, and beside that for the cheapest choice, which is returned."""
    new = {pool.tobytes(): pool for pool in pools if pool.tobytes() not in hunt.tried}
    hunt.tried |= new.keys()
    matrices, limit, rest = hunt.projection.matrices, hunt.limit, hunt.clock.rest_of(hunt.work)
    with ThreadPoolExecutor(max_workers=2) as threads:
        looks = []
        for pool in new.values():
            nodes = hunt.work.nodes if pool.size == matrices.size else min(hunt.work.nodes, LOOK_NODES)
            looks.append(threads.submit(among, matrices, hunt.aim, replace(rest, nodes=nodes), pool, limit))
        choice = None if prices is None else _choose(hunt, prices)
        for look in looks:
            found = look.result()
            hunt.proven(found.bound)
            hunt.found(found)
    return choice


def among(matrices: Matrices, aim: Aim, work: Work, chosen: IntArray, limit: float) -> Blocks:
    """The best fleet of the chosen columns: what is found there bounds nothing unless they are all."""
    found = whole_blocks(matrices.take(chosen), aim, work, limit)
    bound = min(found.bound, limit) if chosen.size == matrices.size else -np.inf
    return replace(found, index=chosen[found.index], bound=bound)


def _choose(hunt: Hunt, prices: Prices) -> FloatArray | None:
    """The cheapest blocks that no cut excludes (C,), of columns that can be in a fleet below the limit."""
    matrices, limit = hunt.projection.matrices, hunt.limit
    alive = np.arange(matrices.size)
    most: FloatArray | float = np.inf
    if np.isfinite(limit):
        alive = prices.within(limit)
        most = np.floor((limit / hunt.aim.cost_weight) / np.maximum(least_price(matrices.take(alive)), 1e-9) + SAME)
    cuts = [cut[alive] for cut in hunt.projection.cuts]
    program, blocks = master_problem(matrices.take(alive), cuts, hunt.aim, most)
    program = program if np.isinf(limit) else with_ceiling(program, limit)
    left = hunt.clock.rest_of(hunt.work).time_limit
    solution = solve(program, gap=0.25 * hunt.work.gap, nodes=hunt.nodes, time_limit=left)
    hunt.spent += solution.iterations
    hunt.proven(min(solution.bound, limit))
    hunt.stuck = solution.outcome is Outcome.INFEASIBLE
    if not solution.x.size:
        hunt.nodes *= MORE_NODES
        return None
    choice = np.zeros(matrices.size)
    choice[alive] = np.rint(solution.x[blocks])
    return choice


def _walk(projection: Projection, choice: FloatArray) -> None:
    """Cuts on the way from a choice to a fleet, which the next choices would ask for one by one."""
    blocks, known = choice.copy(), 0
    for _ in range(WALK):
        blocks[np.argmax(projection.bought * projection.price)] += 1.0
        known = len(projection.cuts)
        projection.missing(blocks)
        if len(projection.cuts) == known:
            break


def least_price(matrices: Matrices) -> FloatArray:
    """$/h that a block of each column costs at least, in whole nodes too, (C,)."""
    cost = matrices.block_price
    for limit in matrices.limits:
        if limit.node_size:
            cost = cost + matrices.replicas * limit.weight * limit.node_price / limit.node_size
    return cost


def _judge(hunt: Hunt, choice: FloatArray) -> None:
    """Cut off what lacks something; what lacks nothing is a fleet."""
    projection, known, limit = hunt.projection, len(hunt.projection.cuts), hunt.limit
    hunt.recent.append(np.flatnonzero(choice))
    fractions = projection.fractions
    projection.missing(choice)
    if len(projection.cuts) > known:
        _walk(projection, choice)
        projection.missing(HALFWAY * choice + (1.0 - HALFWAY) * fractions)
        return
    chosen, matrices = np.flatnonzero(choice), projection.matrices
    found = routed(matrices.take(chosen), choice[chosen], hunt.clock.rest_of(hunt.work))
    if found.index.size:
        found = replace(found, index=chosen[found.index])
        hunt.found(replace(found, objective=hunt.aim.cost_weight * whole_cost(matrices, found)))
    hunt.stuck = hunt.limit == limit
