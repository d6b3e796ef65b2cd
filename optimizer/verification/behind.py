"""Which pool falls behind its arrivals: the one in which requests pile up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role

from .judge import Judgement, Run

FloatArray = NDArray[np.float64]


def pool_behind(found: Judgement) -> int | None:
    """Index of the pool in which most requests piled up over all runs; None where the fleet keeps up."""
    if not found.overload.overloaded:
        return None
    roles = [pool.role for pool in found.engines.pools]
    piled = [sum(piled_up(run, number, role) for run in found.runs) for number, role in enumerate(roles)]
    return int(np.argmax(piled))


def piled_up(run: Run, number: int, role: Role) -> int:
    """Requests in a pool at the last arrival, less those at a quarter of the time until then (`metrics.overload`).

    One is in a prefill pool until its prompt is computed, then in its decode pool until it ends.
    """
    result, trace = run.result, run.demand.trace
    computed, ended = (np.where(np.isnan(times), np.inf, times) for times in (result.prompt_end, result.finish))
    chosen = trace.decode_pool if role is Role.DECODE else trace.pool
    mine = np.ones(trace.size, dtype=np.bool_) if chosen is None else chosen == number
    came: FloatArray = (computed if role is Role.DECODE else result.arrival)[mine]
    left: FloatArray = (computed if role is Role.PREFILL else ended)[mine]
    first, last = float(result.arrival.min()), float(result.arrival.max())
    quarter, end = (int((came <= t).sum() - (left <= t).sum()) for t in (first + 0.25 * (last - first), last))
    return end - quarter
