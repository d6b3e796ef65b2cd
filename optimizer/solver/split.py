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
from optimizer.loads.flows import Flows, make_flows
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late, never
from search_spaces.problem import Problem

from .simple_plans import Totals, price_space, simple_plans

FIRST_SHARES = (1.0 / 3.0, 0.05, 0.1, 0.2, 0.5)
"""Parts of an end-to-end limit that are tried for the first token."""

STEP_SHARES = (1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0)
"""Parts of a TTFT limit that are tried for the first decode step of disaggregated requests."""


def with_best_split(instance: Instance, late: Late = never, at_last: Late = never) -> Instance:
    """The same instance with its limits split where the cheapest fleet of one or two pools costs least.

    A request that keeps the parts keeps the whole, so a plan for any split is a plan. Once it is late, no more splits
    are tried; columns are priced until the time is up at last.
    """
    every = list(splits(instance.problem))
    return replace(instance, flows=every[0]) if len(every) == 1 else priced_at_best_split(instance, late, at_last)[0]


def priced_at_best_split(
    instance: Instance, late: Late = never, at_last: Late = never
) -> tuple[Instance, tuple[Columns, Totals]]:
    """The same, and what `price_space` says of all its columns there."""
    first, *others = (replace(instance, flows=flows) for flows in splits(instance.problem))
    best, priced = first, price_space(first, make_columns(first, Grid()), at_last)
    least = _simple_cost(first, priced) if others else 0.0
    for here in others:
        if late():
            break
        some = price_space(here, make_columns(here, Grid()), at_last)
        cost = _simple_cost(here, some)
        if cost < least or np.isinf(least):
            best, priced, least = here, some, cost
    return best, priced


def _simple_cost(instance: Instance, priced: tuple[Columns, Totals]) -> float:
    """Cost of the cheapest fleet of one pool or two that columns promise [$/h]; infinite without any."""
    plans = simple_plans(instance, *priced)
    return plans[0].cost if plans else np.inf


def splits(problem: Problem) -> Iterator[Flows]:
    """The flows of every split worth trying; the parts for the first step grow until they cover every TPOT limit."""
    limited = any(slo.e2e is not None for slo in problem.slos)
    apart = {Role.PREFILL, Role.DECODE} <= set(problem.space.roles)
    for first_share in FIRST_SHARES if limited else FIRST_SHARES[:1]:
        for step_share in STEP_SHARES:
            flows = make_flows(problem, first_share, step_share)
            yield flows
            if not apart or (flows.first_step >= flows.tpot)[flows.osl > 1.0].all():
                break
