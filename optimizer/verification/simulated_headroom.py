"""How much more load the pools of a simulated plan can take: one figure where formulas and simulation have one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costmodel.words import percentage
from optimizer.fleets.binding import binding
from optimizer.loads.engine_table import Resource
from optimizer.plans.plan import Binding
from optimizer.plans.records import Simulation

POOL_LIMITS: Final = frozenset(map(str, Resource))
"""Limits of pools; `used` is the planned load as a share of what the pool can take."""


def with_simulated_headroom(rows: Sequence[Binding], simulation: Simulation) -> list[Binding]:
    """Limits by formula, those of pools mended where the simulation refutes them.

    A pool that the formulas let give out below the goodput took that much in the simulation; and the first that they
    let give out takes no more where that is beyond the next rate that was tried, at which the fleet missed a goal.
    Without a simulated goodput the rows stay, but for pools that by formula could not even take the planned load. Of a
    fleet whose goodput is below the planned rate they stay too: what it lacks is what binds.
    """
    if simulation.goodput_rps is None or simulation.goodput_fails_rps is None:
        return [row for row in rows if row.slack >= 0.0]
    if simulation.goodput_rps < simulation.rate_rps:
        return list(rows)
    reached, fails = (rate / simulation.rate_rps for rate in (simulation.goodput_rps, simulation.goodput_fails_rps))
    pools = [row for row in rows if row.constraint in POOL_LIMITS]
    fullest = max((row.used for row in pools), default=0.0)

    def refuted(row: Binding) -> bool:
        return row in pools and (row.used * reached > 1.0 or (row.used == fullest and row.used * fails < 1.0))

    return [_as_simulated(row, reached) if refuted(row) else row for row in rows]


def _as_simulated(row: Binding, reached: float) -> Binding:
    """A pool that can take `reached` times the planned load; what gives out first is known by formula alone."""
    more, why = percentage(reached - 1.0), row.sentence.partition(": ")[2]
    said = f"{row.where} can take {more} more load, as the whole fleet could when simulated; by formula, {why}"
    return binding(row.constraint, row.where, 1.0 / reached, 1.0, row.unit, said)
