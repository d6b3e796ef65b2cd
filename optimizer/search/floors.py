"""Limits that no engine can keep: a model that fits nowhere, a latency below that of the fastest idle engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.errors import BelowFloorError
from costmodel.metric import Metric, Scope, metrics_of
from costmodel.words import join_words, percentage
from optimizer.loads.instance import Instance
from optimizer.plans.records import ROUNDING
from search_spaces.checks import impossible_faults
from search_spaces.enumeration import Enumeration
from search_spaces.files import Fault
from search_spaces.problem import Problem, over_tokens

from .work import fastest_prompt


def check_shapes(problem: Problem, enumeration: Enumeration) -> None:
    """Raise InputError when no engine of the space can exist, with what each accelerator lacks."""
    if not enumeration.shapes:
        raise problem.refusal(list(impossible_faults(problem)))


@dataclass(frozen=True, slots=True)
class Floor:
    """What an idle engine needs at least for a limit of class `k`.

    metric, limit [s]: of the limit; least: of any engine [s]; why: a limit below it is not possible.
    """

    k: int
    metric: Metric
    limit: float
    least: float
    why: str

    @property
    def broken(self) -> bool:
        """Whether no engine can keep the limit, even an idle one."""
        return self.limit < self.least


def check_floors(instance: Instance) -> None:
    """Raise BelowFloorError for every SLO below what the fastest idle engine can do for the share that it must hold.

    The last fault of a class also says how low its other limits can be, so that none is a surprise later.
    """
    faults = []
    for _, rows in groupby(floors(instance), lambda floor: floor.k):
        own = list(rows)
        broken = [Fault(("slo", floor.k, floor.metric), floor.why) for floor in own if floor.broken]
        others = [
            f"{floor.metric.upper()} {_time(floor.least, floor.least)}"
            for floor in own
            if not floor.broken and floor.least
        ]
        if broken and others:
            broken[-1] = replace(broken[-1], sentence=f"{broken[-1].sentence}; least possible: {join_words(others)}")
        faults += broken
    if faults:
        raise BelowFloorError(str(instance.problem.refusal(faults)))


def floors(instance: Instance) -> list[Floor]:
    """The floor of every limit on latency, class by class."""
    # A batch limit bounds the requests that run from above alone, so one may run by itself whatever the limits are.
    prompt, step = fastest_prompt(instance), float(instance.tables.decode_base.min())
    return [floor for k in range(len(instance.problem.slos)) for floor in _floors(instance, k, prompt, step)]


def _floors(instance: Instance, k: int, prompt: FloatArray, step: float) -> Iterator[Floor]:
    """Those of class `k`; prompt (flows,), step: the shortest of any engine [s]."""
    flows, slo = instance.flows, instance.problem.slos[k]
    own = flows.slo == k
    share, later = flows.share[own] / flows.share[own].sum(), flows.gaps[own]
    token = step if share[later > 0.0].sum() > 1.0 - slo.attainment else 0.0
    times = {Metric.TTFT: prompt[own]}
    times |= {m: (prompt[own] + later * step) / over_tokens(m, flows.osl[own]) for m in metrics_of(Scope.WHOLE)}
    for metric, limit in slo.limits.items():
        floor, work = token, "a decode step of one request"
        if metric in times:
            at = _share_quantile(times[metric], share, slo.attainment)
            floor, longer = float(times[metric][at]), float(share[times[metric] >= times[metric][at]].sum())
            these = "all requests are" if longer > 1.0 - ROUNDING else f"{percentage(longer, 2)} of requests are"
            lengths = f"{flows.isl[own][at]:,.0f} input"
            lengths += f" and {flows.osl[own][at]:,.0f} output" * (metric is not Metric.TTFT)
            work = (
                f"a request of {lengths} tokens; {these} at least that long, but only "
                f"{percentage(1.0 - slo.attainment, 2)} may miss the SLO"
            )
        why = f"{_time(limit, floor)} of class {slo.name} is not possible: the fastest engine, idle, needs "
        yield Floor(k, metric, limit, floor, f"{why}{_time(floor, floor)} for {work}")


def _time(seconds: float, least: float) -> str:
    """A time in the unit in which the least possible one is shown."""
    return f"{seconds:,.4g} s" if least >= 1.0 else f"{1e3 * seconds:,.4g} ms"


def _share_quantile(values: FloatArray, share: FloatArray, goal: float) -> int:
    """Index of the smallest value that covers `goal` of the shares, which sum to 1."""
    order = np.argsort(values, kind="stable")
    return int(order[min(int(np.searchsorted(np.cumsum(share[order]), goal - 1e-12)), order.size - 1)])
