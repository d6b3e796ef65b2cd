"""Colocated engines whose batch limit is what keeps their steps short enough.

Of a pool the evaluation looks at the largest batch limit, with which the fewest requests wait for a seat. In bursts it
is not always the one that misses least: all requests that came together then share long steps, and a TPOT limit is
missed where one on TTFT has room for some to wait. So where nothing as cheap holds, limits are tried at which even a
full batch decodes in time: the largest such, a half and a quarter of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from optimizer.fleets.fleet import Fleet
from optimizer.loads.columns import Columns
from optimizer.solver.fleet_model import COLOCATED
from search_spaces.problem import Problem

from .by_evaluation import BoolArray, Evaluated, cheapest_held

PARTS = (1, 2, 4)
"""What the largest limit in time is divided by for those that are tried."""


def held_with_few_seats(known: Evaluated, problem: Problem, below: float, free: BoolArray) -> Fleet | None:
    """The cheapest fleet of one colocated pool with a batch limit that keeps TPOT limits, below some cost, if any.

    problem, below: see `cheapest_held`; free (settings,): which engines it may have, at the limits tried here.
    """
    few = _with_few_seats(known, free & (known.settings.role == COLOCATED))
    if few.size == 0:
        return None
    other = Evaluated.of(known.instance, few, known.late)
    found = cheapest_held(other, problem, below)
    known.cut.update(other.cut)
    return None if found is None else other.fleet(found[0])


def _with_few_seats(known: Evaluated, free: BoolArray) -> Columns:
    """The settings at each of the limits that are tried, in their order."""
    tables, rows = known.instance.tables, np.flatnonzero(free)
    tpot: NDArray[np.float64] = known.instance.flows.tpot
    finite, limits, seqs = tpot[np.isfinite(tpot)], tables.limits, tables.seqs[tables.limits]
    some = known.settings.take(rows)
    if not finite.size or not rows.size:
        return some.take(np.zeros(0, dtype=np.int64))
    in_time = (tables.decode_base[some.shape][:, limits] <= finite.min()).sum(axis=1) - 1  # steps grow with the batch
    most = seqs[np.maximum(in_time, 0)]
    picked = [(row, tables.limit_for(most[row] / part)) for row in range(some.size) for part in PARTS]
    kept = [(row, limit) for row, limit in dict.fromkeys(picked) if in_time[row] >= 0 and limit < some.seqs[row]]
    order = np.array([row for row, _ in kept], dtype=np.int64)
    return replace(some.take(order), seqs=np.array([limit for _, limit in kept], dtype=np.int64))
