"""Why requests of a simulation missed: which pool made them late, and whether the first token or the later ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import PdplanError
from costmodel.metric import Metric
from costmodel.simulator.metrics import measured, steady, within
from optimizer.loads.instance import Instance

from .judge import Judgement, Run

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

BLAMED = 0.2
"""Share of the late requests with which a pool is one of those to blame."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Requests of classes below their goal that missed.

    pools (pools,): share of them that each pool made late [1]; first, later: share that was late by its first token,
    and by the later ones [1].
    """

    pools: FloatArray
    first: float
    later: float

    @property
    def worst(self) -> list[int]:
        """Pools that made BLAMED of them late or more; where there are none, those that made most of them late."""
        enough = min(BLAMED, float(self.pools.max(initial=0.0)))
        return [int(index) for index in np.flatnonzero(self.pools >= enough)]


def blame(instance: Instance, found: Judgement) -> Blame:
    """Count the misses of every class that has too many; of all classes where each has few enough."""
    behind = [not one.proven for one in found.classes]
    wanted = np.array(behind if any(behind) else [True] * len(behind))
    pools, first, later = np.zeros(len(found.engines.pools)), 0.0, 0.0
    for run in found.runs:
        late_first, late_next = _late(instance, run, wanted)
        first, later = first + float(late_first.sum()), later + float(late_next.sum())
        np.add.at(pools, _late_in(run, late_first), 1.0)
        np.add.at(pools, _pools(run)[1][late_next], 1.0)
    total = max(first + later, 1.0)
    return Blame(pools / total, first / total, later / total)


def _late(instance: Instance, run: Run, wanted: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Requests that count and came too late: by the first token, and else by the later ones."""
    result, slo = run.result, instance.flows.slo[run.demand.flow]
    first, later = np.zeros(slo.size, dtype=np.bool_), np.zeros(slo.size, dtype=np.bool_)
    for number, one in enumerate(instance.problem.slos):
        mine = steady(result) & (slo == number) & wanted[number]
        missed = mine & ~within(result, one.limits)
        tokens = np.nan_to_num(result.tpot, nan=0.0) > one.tpot
        for metric in instance.flows.others:
            tokens |= measured(result, metric) > one.limit(metric)
        waited = ~(result.ttft <= one.ttft)  # also where there is none
        if Metric.E2E in one.limits:  # late as a whole: by whatever took more of the time
            waited |= ~tokens & (result.ttft > 0.5 * result.e2e)
        first |= missed & waited
        later |= missed & ~waited
    return first, later


def _late_in(run: Run, late: BoolArray) -> IntArray:
    """Pool in which the first token of each late request lost most of its time."""
    result = run.result
    before = result.queue + result.prefill  # NaN where the prompt was never computed: it is the prompt pool's fault
    after = np.where(np.isnan(result.first), np.inf, result.ttft - before)
    handed = ~np.isnan(before) & (after > before)
    prompts, later = _pools(run)
    return np.where(handed, later, prompts)[late]


def _pools(run: Run) -> tuple[IntArray, IntArray]:
    """Pool that computes each prompt, and pool that makes its tokens."""
    prompts, later = run.demand.trace.pool, run.demand.trace.decode_pool
    if prompts is None or later is None:
        raise PdplanError("blame: the requests of a judged fleet are routed to its pools")
    return prompts, np.where(later < 0, prompts, later)
