"""How latency limits are split between the stages of a request: the split whose simple fleet is cheapest.

The parts are fixed shares of a limit, not what another limit leaves over: so a looser limit leaves every part at
least as large as it was, and never makes a plan dearer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from costmodel.engine import Role
from optimizer.loads.columns import Columns, Grid, make_columns
from optimizer.loads.fewest import fewest_blocks
from optimizer.loads.flows import Flows, make_flows
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late, never
from search_spaces.problem import Problem

from .fleet_model import COLOCATED
from .simple_plans import Totals, block_costs, block_counts, price_space, simple_plans

FIRST_SHARES = (1.0 / 3.0, 0.05, 0.1, 0.2, 0.5)
"""Parts of an end-to-end limit that are tried for the first token."""

STEP_SHARES = (1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0)
"""Parts of a TTFT limit that are tried for the first decode step of disaggregated requests."""


def with_best_split(instance: Instance, late: Late = never, at_last: Late = never) -> Instance:
    """The same instance with its limits split where the cheapest fleet of one or two pools costs least.

    A request that keeps the parts keeps the whole, so a plan for any split is a plan. Once it is late, no more splits
    are tried; columns are priced until the time is up at last.
    """
    first, *others = _tried(instance)
    if not others:
        return first
    return _best_split((first, price_space(first, make_columns(first, Grid()), at_last)), others, late, at_last)


def priced_at_best_split(
    instance: Instance, late: Late = never, at_last: Late = never
) -> tuple[Instance, tuple[Columns, Totals]]:
    """The same, and what `price_space` says of all its columns there."""
    first, *others = _tried(instance)
    priced = price_space(first, make_columns(first, Grid()), at_last)
    best = _best_split((first, priced), others, late, at_last)
    return best, priced if best is first else price_space(best, make_columns(best, Grid()), at_last)


def _tried(instance: Instance) -> list[Instance]:
    """The instance with every split of its limits that is worth trying."""
    return [replace(instance, flows=flows) for flows in splits(instance.problem)]


def _best_split(
    first: tuple[Instance, tuple[Columns, Totals]], others: list[Instance], late: Late, at_last: Late
) -> Instance:
    """Of the first split, with what `price_space` says of its columns, and the others the one of the cheapest fleet."""
    best, priced = first
    plans = simple_plans(best, *priced) if others else []
    least = plans[0].cost if plans else np.inf
    for here in others:
        if late():
            break
        cost = _cheaper(here, least, at_last)
        if cost < least or np.isinf(least):
            best, least = here, cost
    return best


def _cheaper(instance: Instance, most: float, late: Late) -> float:
    """Cost of the cheapest fleet of one pool or two that columns promise [$/h]; infinite unless it is below `most`.

    A column of which the fewest blocks that can serve the demand cost as much is in no such fleet, and not priced.
    Disaggregated pairs come first, as they are few: what they cost rules out colocated columns.
    """
    columns, least = make_columns(instance, Grid()), most
    for mine in (columns.role != COLOCATED, columns.role == COLOCATED):
        some = columns.take(mine)
        cost = block_costs(instance, some, block_counts(fewest_blocks(instance, some)))
        plans = simple_plans(instance, *price_space(instance, some.take(cost < least), late))
        least = min([least, *(plan.cost for plan in plans)])
    return least if least < most else np.inf


def splits(problem: Problem) -> Iterator[Flows]:
    """The flows of every split worth trying; the parts for the first step grow until they cover every TPOT limit."""
    limited = any(slo.e2e is not None for slo in problem.slos)
    apart = {Role.PREFILL, Role.DECODE} <= set(problem.space.roles)
    for first_share in FIRST_SHARES if limited else FIRST_SHARES[:1]:
        for step_share in STEP_SHARES:
            flows = make_flows(problem, first_share, step_share)
            yield flows
            if not apart or (flows.longest_step >= flows.tpot)[flows.osl > 1.0].all():
                break
