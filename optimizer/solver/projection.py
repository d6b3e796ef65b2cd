"""Cuts on the numbers of blocks alone, whose linear relaxation is far tighter than that of the whole programme.

Which numbers of blocks n serve the demand is asked of a linear programme: what must be bought beside them, at least
cost? If anything, its shadow prices say what each flow is worth, D in all, and with E_c the most that one block of
column c earns at them

    sum_c E_c n_c >= D

holds for every fleet (Benders 1962), and excludes n. A block serves no flow more than once (x <= 1), which the
programme of fractions does not know, and earns no more than D, as blocks are whole: E_c is less than the dual
constraint says, so that the cuts bound small fleets where fractions of an engine do not. What is missing is measured
in money, so the shadow prices say something of every column, also of those that n does not buy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .blocks import Clock, Prices, priced_load, worths
from .fleet_model import Aim, limit_rows, pool_variables, write_model
from .matrices import Matrices
from .pricing import FloatArray32, most_earned_once
from .program import Builder, Program, solve
from .tolerances import EARNING, LACKING, LOOSENED, SAME, WORTHLESS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PRICINGS, PRICED = 20, 30
"""Work limits: rounds of column generation of one cut, and columns added in one of them (assumed: a few rounds do)."""


@dataclass(slots=True)
class Projection:
    """The problem in numbers of blocks: its columns, what a block costs, and the cuts so far.

    price (C,): of a block at the shadow prices of the limits, in which what is missing is measured;
    active (C,): columns of the programmes that make cuts;
    cuts: share of the demand's worth that one block of each column earns, (C,);
    fractions (C,): blocks that keep all cuts at least cost, when that was last asked; bought (C,): those that were
    bought beside the blocks of which it was last asked what is missing.
    """

    matrices: Matrices
    price: FloatArray
    active: NDArray[np.bool_]
    load: FloatArray32
    fractions: FloatArray
    bought: FloatArray
    cuts: list[FloatArray] = field(default_factory=list)

    @classmethod
    def of(cls, matrices: Matrices, prices: Prices, active: IntArray) -> Projection:
        """Without cuts; the programmes begin with the columns `active`, which can serve the demand."""
        at_hand = np.zeros(matrices.size, dtype=np.bool_)
        at_hand[active] = True
        none = np.zeros(matrices.size)
        return cls(matrices, np.maximum(prices.cost, 1e-9), at_hand, priced_load(matrices), none, none)

    def missing(self, blocks: FloatArray) -> float:
        """Share of the demand's worth that these blocks lack (C,); if any, a cut that says so is added.

        Nothing is said, 0, where all columns together cannot serve the demand.
        """
        free = replace(self.matrices.linear, limits=(), spares=0, pool_limits=())
        free = replace(free, price=self.price / free.replicas)
        self.active |= blocks > 0.0
        for _ in range(PRICINGS):
            index = np.flatnonzero(self.active)
            model = write_model(free.take(index), Aim())
            program, lower = model.program, model.program.lower.copy()
            lower[model.blocks] = blocks[index]
            solution = solve(replace(program, lower=lower), relaxed=True)
            if not solution.x.size:
                if self.active.all():
                    return 0.0
                self.active[:] = True  # those at hand cannot serve the demand
                continue
            duals = solution.duals
            gain = worths(free.take(index), model, duals).of(free)
            earned = most_earned_once(self.load, gain.astype(np.float32))
            dear = np.flatnonzero((earned > self.price * (1.0 + EARNING)) & ~self.active)
            if not dear.size:
                break
            self.active[dear[np.argsort(-(earned / self.price)[dear], kind="stable")[:PRICED]]] = True
        self.bought = np.zeros(free.size)
        self.bought[index] = np.maximum(solution.x[model.blocks] - lower[model.blocks], 0.0)
        exact = np.bincount(program.columns, program.values * duals[program.rows], program.cost.size)[model.blocks]
        worth = float(duals[model.cover].sum() + np.minimum(duals[model.attainment], 0.0) @ free.permitted)
        if worth <= WORTHLESS * self.price.max():
            return 0.0
        short = 1.0 - float(exact @ blocks[index]) / worth
        if short > LOOSENED:
            earned[index] = np.minimum(earned[index], exact)
            self.cuts.append(np.minimum(earned / worth, 1.0))
        return short


def lift(projection: Projection, aim: Aim, rounds: int, time_limit: float = np.inf) -> Prices:
    """Add cuts until blocks in fractions keep them all, nearly; the prices then. time_limit: a safety net [s]."""
    clock = Clock(time_limit)
    projection.missing(projection.fractions)
    prices = relaxed(projection, aim)
    for _ in range(rounds):
        if clock.left() < 0.0 or projection.missing(projection.fractions) <= LACKING:
            break
        prices = relaxed(projection, aim)
    return prices


def relaxed(projection: Projection, aim: Aim) -> Prices:
    """Blocks in fractions that keep all cuts at least cost: that cost, reduced costs, and which are bought.

    Without cuts, or where the limits leave no such blocks, nothing is known of any column.
    """
    unknown = Prices(-np.inf, projection.price, np.zeros(projection.matrices.size), np.zeros(0, dtype=np.int64))
    if not projection.cuts:
        return unknown
    program, blocks = master_problem(projection.matrices, projection.cuts, aim)
    solution = solve(program, relaxed=True)
    if not solution.x.size:
        return unknown
    projection.fractions = solution.x[blocks]
    earned = np.bincount(program.columns, program.values * solution.duals[program.rows], program.cost.size)
    reduced = np.maximum((program.cost - earned)[blocks], 0.0)
    return Prices(solution.objective, projection.price, reduced, np.flatnonzero(projection.fractions > SAME))


def master_problem(
    matrices: Matrices, cuts: Sequence[FloatArray], aim: Aim, most: FloatArray | float = np.inf
) -> tuple[Program, IntArray]:
    """The cheapest blocks, `most` of each, that no cut and no limit excludes; and which of its variables they are."""
    builder = Builder()
    names = [f"n{c}" for c in range(matrices.size)]
    blocks = builder.variables(names, aim.cost_weight * matrices.block_price, most, whole=True)
    switches = pool_variables(matrices, builder, blocks, aim)
    limit_rows(matrices, builder, blocks, switches, aim)
    for number, cut in enumerate(cuts):
        builder.entries(builder.rows([f"cut{number}"], 1.0 - LOOSENED, np.inf), blocks, cut)
    return builder.build(), blocks
