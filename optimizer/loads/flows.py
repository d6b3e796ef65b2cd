"""Flows: the demand as a search sees it, a flow per SLO class and length bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.metric import Metric
from costmodel.prefix_cache import Reuse
from costmodel.workload import Trace
from search_spaces.problem import Problem, whole_limit


@dataclass(frozen=True)
class Flows:
    """The flows of a problem, one per SLO class and length bucket; every array has shape (flows,).

    slo: index of the SLO class; isl, osl [token]; share of all requests [1]; rate [1/s];
    new_tokens: prompt tokens to compute after prefix hits; past_tokens: those found in the cache;
    limits: by metric that some class limits, (flows,) [s];
    reuse: where memory decides what is found (`history` by flow, which the past tokens have in them). Then each flow
    with a history has another, of no share itself, for those of its requests whose history is gone. missed (flows,):
    index of that one, or of the flow itself; source (flows,): the way back.
    """

    slo: IntArray
    isl: FloatArray
    osl: FloatArray
    share: FloatArray
    rate: FloatArray
    new_tokens: FloatArray
    past_tokens: FloatArray
    arrival_scv: float
    missed: IntArray
    source: IntArray
    limits: Mapping[Metric, FloatArray]
    reuse: Reuse | None = None

    @cached_property
    def alike(self) -> str:
        """Digest of the lengths and shares; it does not depend on rates or limits."""
        digest = digest_of(self, ("slo", "rate"))
        return digest if self.reuse is None else digest + digest_of(self.reuse) + digest_of(self.reuse.pause)

    @property
    def shared(self) -> float:
        """Tokens that all prompts begin with [token]."""
        return 0.0 if self.reuse is None else self.reuse.shared

    @property
    def asked(self) -> int:
        """Number of flows that requests come as; flows for requests whose history is no longer cached follow them."""
        return int(np.count_nonzero(self.share > 0.0))

    def with_misses(self, rate: FloatArray, chance: FloatArray) -> FloatArray:
        """Rates (flows,) split into requests that find their history, with a chance (flows,), and others [1/s]."""
        miss_rate = np.where(self.missed != np.arange(rate.size), rate * (1.0 - chance), 0.0)
        return np.asarray(rate - miss_rate + np.bincount(self.missed, miss_rate, rate.size))

    def take(self, members: BoolArray) -> Flows:
        """Some of the flows, each with the flow for its cache misses; (flows,)."""
        place = np.cumsum(members) - 1
        arrays = {name: getattr(self, name)[members] for name in BY_FLOW}
        arrays |= {name: place[getattr(self, name)[members]] for name in ("missed", "source")}
        limits = {metric: limit[members] for metric, limit in self.limits.items()}
        reuse = None if self.reuse is None else replace(self.reuse, history=self.reuse.history[members])
        return replace(self, limits=limits, reuse=reuse, **arrays)

    @cached_property
    def whole(self) -> FloatArray:
        """How long a request may take as a whole, (flows,) [s]; infinity where only its tokens are limited."""
        return whole_limit(self.limits, self.osl)

    @cached_property
    def ttft(self) -> FloatArray:
        """The most that its first token may take, (flows,) [s]."""
        return np.minimum(self.limits.get(Metric.TTFT, np.inf), self.whole)

    @cached_property
    def tpot(self) -> FloatArray:
        """The most that its later tokens may take on average, (flows,) [s]."""
        return np.minimum(self.limits.get(Metric.TPOT, np.inf), self.whole / np.maximum(self.gaps, 1.0))

    @property
    def gaps(self) -> FloatArray:
        """Gaps between the tokens of a request, OSL - 1 (flows,) [1]."""
        return np.maximum(self.osl - 1.0, 0.0)

    @property
    def longest(self) -> FloatArray:
        """How long a request may take within its limits, (flows,) [s]."""
        return np.minimum(self.ttft + self.osl * self.tpot, self.whole)

    @property
    def mean_context(self) -> FloatArray:
        """Mean context of a request while it generates, isl + osl / 2 [token]."""
        return self.isl + self.osl / 2.0

    def chunks_of(self, budget: FloatArray) -> FloatArray:
        """Steps that a prompt by itself takes with token budgets (...,) [token], (..., flows) [1]."""
        return np.asarray(np.ceil(self.new_tokens / budget[..., None]))

    @property
    def peakedness(self) -> float:
        """Variance over mean of the requests that run at once: 1 for Poisson arrivals, more for bursty ones [1].

        max(1, (ca2 + 1) / 2), the limit of many (`costmodel.queues.waits.peakedness`).
        """
        return max(1.0, (self.arrival_scv + 1.0) / 2.0)


def digest_of(record: Any, leave_out: Iterable[str] = ()) -> str:
    """Digest of the arrays and numbers of a dataclass, except those that are left out; equal only for equal inputs."""
    digest = hashlib.sha256()
    for item in fields(record):
        value = getattr(record, item.name)
        if item.name not in leave_out and isinstance(value, np.ndarray | float | int):
            array = np.asarray(value)
            digest.update(f"{item.name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()


def make_flows(problem: Problem) -> Flows:
    """Cross the SLO classes with the length buckets."""
    load = problem.workload
    classes, buckets = len(problem.slos), load.isl.size
    slo = np.repeat(np.arange(classes), buckets)
    isl, osl = np.tile(load.isl, classes), np.tile(load.osl, classes)
    share = np.concatenate([slo_class.share * load.share for slo_class in problem.slos])
    keep, past = share > 0.0, np.tile(load.reusable_tokens, classes)
    flows = Flows(
        slo=slo[keep],
        isl=isl[keep],
        osl=osl[keep],
        share=share[keep],
        rate=(share * load.request_rate)[keep],
        new_tokens=np.maximum(isl - past, 1.0)[keep],
        past_tokens=past[keep],
        arrival_scv=load.burstiness**2,
        missed=np.arange(int(keep.sum())),
        source=np.arange(int(keep.sum())),
        limits={
            metric: np.array([item.limit(metric) for item in problem.slos])[slo][keep]
            for metric in Metric
            if any(metric in item.limits for item in problem.slos)
        },
    )
    if load.reuse is None:
        return flows
    return _with_misses(replace(flows, reuse=replace(load.reuse, history=np.tile(load.reuse.history, classes)[keep])))


BY_FLOW = ("slo", "isl", "osl", "share", "rate", "new_tokens", "past_tokens")
"""Fields with a value for each flow, without those that only flows with a history have."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of one run; flow (requests,): index of each request's flow; gap_edges: as `simulate` takes them [s]."""

    trace: Trace
    flow: IntArray
    gap_edges: tuple[float, ...] = ()


def _with_misses(flows: Flows) -> Flows:
    """The flows, followed by those for requests whose history is no longer cached."""
    assert flows.reuse is not None  # noqa: S101 - the caller looked
    size, history = flows.isl.size, flows.reuse.history
    of = np.flatnonzero(history > 0.0)
    source = np.concatenate([np.arange(size), of])
    miss_flow = np.arange(source.size)
    miss_flow[of] = size + np.arange(of.size)
    there = np.where(np.arange(source.size) < size, 1.0, 0.0)
    arrays = {name: getattr(flows, name)[source] for name in BY_FLOW}
    arrays |= {name: arrays[name] * there for name in ("share", "rate")}
    lost_tokens = history[source] * (1.0 - there)
    arrays |= {"new_tokens": arrays["new_tokens"] + lost_tokens, "past_tokens": arrays["past_tokens"] - lost_tokens}
    limits = {metric: limit[source] for metric, limit in flows.limits.items()}
    reuse = replace(flows.reuse, history=history[source] * there)
    return replace(flows, limits=limits, reuse=reuse, missed=miss_flow, source=source, **arrays)
