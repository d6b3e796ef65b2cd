"""What a pool under load is like: its waits and its steps, and what engines of every role that generates share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.metric import GAP_SHARE
from costmodel.prompt_queue import PromptWait
from costmodel.queueing import normal_exceeds, poisson_exceeds
from optimizer.loads.flows import peakedness
from optimizer.loads.instance import Instance

from .fleet import FleetPool

FloatArray = NDArray[np.float64]

SETTLED = 1e-10
"""Relative change of a batch from one round of its fixed point to the next at which it has settled [1]."""

MOST_ROUNDS = 5_000
"""Rounds after which a batch that has not settled is taken to grow without end (it settles by a factor of its own in
each round, mostly in ten to twenty)."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the requests that run at a pool.

    step: mean decode step [s]; quiet: mean step without prompts [s]; undisturbed (flows,): share of requests that meet
    no prompt; mean, spread (flows,): of the TPOT of the others, above `quiet` and `own` [s]; jitter: spread of a step
    that comes from the batch [s]; ceiling (flows,): TPOT at most [s]; own (flows,): by how much the quiet steps that a
    request meets are longer than `quiet`, as they hold it too [s]; alone: share of requests that find an engine without
    others [1], and lone (flows,): by how much their steps are longer than `quiet` [s]; below (flows,): by how much the
    TPOT of those who meet prompts may be shorter than `quiet` and `own`, as the batch varies [s]; prompt_step (any,):
    lengths of the steps that carry prompts [s], prompt_rate (any,): how many of each there are per second at an engine,
    and in_a_row: how many of them one prompt makes on average [1].
    """

    step: float
    quiet: float
    undisturbed: FloatArray
    mean: FloatArray
    spread: FloatArray
    jitter: float
    ceiling: FloatArray
    own: FloatArray | float = 0.0
    alone: float = 0.0
    lone: FloatArray | float = 0.0
    below: FloatArray | float = 0.0
    prompt_step: FloatArray | float = 0.0
    prompt_rate: FloatArray | float = 0.0
    in_a_row: float = 1.0

    def met(self, rate: FloatArray) -> float:
        """Mean step without prompts that requests at `rate` (flows,) [1/s] meet [s]."""
        return self.quiet + float(np.average(np.broadcast_to(self.own, rate.shape), weights=np.maximum(rate, 1e-300)))

    def calm_exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TPOT > limit) of requests of each flow that meet no prompt, limit (..., flows) or (..., 1) [1].

        Others than those who decode alone meet a batch that is normally distributed, of such a mean and variance that
        both together have `own` and `jitter`.
        """
        beside = max(1.0 - self.alone, 1e-12)
        more = np.maximum(self.own - self.alone * self.lone, 0.0) / beside
        between = self.alone * (self.lone - self.own) ** 2 + beside * (more - self.own) ** 2
        jitter = np.sqrt(np.maximum(self.jitter**2 - between, 0.0) / beside)
        others = normal_exceeds((limit - self.quiet - more) / np.maximum(jitter, 1e-12))
        return np.asarray(self.alone * (limit < self.quiet + self.lone) + (1.0 - self.alone) * others)

    def tail_exceeds(self, limit: FloatArray, gaps: FloatArray) -> FloatArray:
        """P(ITL p99 > limit) of requests with so many gaps (flows,), limit (..., flows) or (..., 1) [1].

        Of n gaps m = 0.01 n, rounded down, may be longer. Quiet steps of a request are about alike, so that all of them
        are or none. Of those with prompts M = n t sum prompt_rate [prompt_step > limit] are on average, in rows of c:
        P(Poisson(M / c) > m / c), and no more than meet a prompt. That counts each prompt as if it had its steps for
        itself, so it rather accepts.
        """
        length, rate = np.atleast_1d(self.prompt_step), np.atleast_1d(self.prompt_rate)
        order = np.argsort(length)
        longer = np.append(np.cumsum(rate[order][::-1])[::-1], 0.0)
        mean = gaps * self.step * longer[np.searchsorted(length[order], limit, side="right")] / self.in_a_row
        held_up = poisson_exceeds(mean, np.floor((1.0 - GAP_SHARE) * gaps + 1e-9) / self.in_a_row)
        return np.maximum(self.calm_exceeds(limit), np.minimum(held_up, 1.0 - self.undisturbed))


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool under load, in steady state.

    rate (flows,): requests per second; wait: of prompts for an engine, None where there are none;
    latency (flows,): prompt time once started [s]; steps: None on a prefill engine; running: requests per engine;
    full: probability that slots or KV memory are full; memory: mean share of KV memory in use; stable: whether the load
    is below capacity; beside, under_way: length of the step of an engine's other lanes, for the end of which a prompt
    waits that finds a lane free [s], and the chance that they have prompts [1]; 0 on engines with one lane;
    relaxation: time in which a batch that is larger than on average comes back by a factor e: requests of mean life T
    end as they came, but others come in the share D of it that is due to longer steps, T / (1 - D) [s].
    """

    rate: FloatArray
    wait: PromptWait | None
    latency: FloatArray
    steps: Steps | None
    running: float
    full: float
    memory: float
    stable: bool
    beside: float = 0.0
    under_way: float = 0.0
    relaxation: float = 0.0

    @property
    def utilization(self) -> float:
        """Busy share of the prompt servers, 0 without any [1]."""
        return 0.0 if self.wait is None else self.wait.utilization

    @property
    def step(self) -> float:
        """Mean decode step, 0 on a prefill engine [s]."""
        return 0.0 if self.steps is None else self.steps.step


def any_busy(busy: float, lanes: float) -> float:
    """Chance that an engine has a step under way, each lane of which is busy for so much of the time [1]."""
    return float(1.0 - (1.0 - min(busy, 1.0)) ** lanes)


def decode_base(instance: Instance, pool: FleetPool, running: float) -> float:
    """Step of a batch without KV reads [s]."""
    return float(np.interp(running, instance.tables.seqs, instance.tables.decode_base[pool.shape]))


def own_reads(instance: Instance, pool: FleetPool, per_engine: FloatArray, beside: float) -> FloatArray:
    """By how much the KV reads of a request of each flow exceed those of a mean one of a large batch, (flows,) [s].

    Those are spread over all lanes of an engine. A request keeps to one, whose step it makes longer for all unless so
    many others are beside it that each lane has its part.
    per_engine (flows,): rate of each flow at an engine [1/s]; beside: others in its batch [1].
    """
    tables, slope = instance.tables, instance.tables.attention_slope[pool.shape]
    tokens, lanes = per_engine * instance.flows.osl, float(tables.pipeline[pool.shape] * tables.ranks[pool.shape])
    return np.asarray(max(lanes - beside, 1.0) * slope - float(tokens @ slope) / float(tokens.sum()))


def saved_alone(instance: Instance, pool: FleetPool) -> float:
    """By how much a step of the smallest batch limit is longer than one of one request, KV reads apart [s]."""
    tables, shape = instance.tables, pool.shape
    return float(tables.decode_base[shape, 0] * (1.0 - tables.decode_alone[shape]))


def batch_jitter(instance: Instance, pool: FleetPool, per_engine: FloatArray, step: float) -> float:
    """Standard deviation of a decode step for the KV memory that happens to be in use [s]."""
    flows, slope = instance.flows, instance.tables.attention_slope[pool.shape]
    return float(np.sqrt(peakedness(flows) * step * float(per_engine * flows.osl @ slope**2)))


def fullness(instance: Instance, pool: FleetPool, resident: FloatArray, running: float) -> tuple[float, float]:
    """Chance that slots or KV memory are full, and the mean share of KV memory in use [1].

    Replicas share one queue: it waits when the slots of all are taken.
    """
    tables, burst = instance.tables, peakedness(instance.flows)
    capacity = float(tables.kv_capacity[pool.shape, pool.chunk]) * float(tables.ranks[pool.shape])
    memory, over = overflow(capacity, resident, tables.kv_held[pool.shape], burst)
    batch = float(tables.seqs[pool.seqs])
    room = (batch - running) * np.sqrt(pool.replicas / (burst * max(running, 1e-12)))
    return min(over + float(normal_exceeds(room)), 1.0), memory


def overflow(capacity: float, resident: FloatArray, held: FloatArray, burst: float) -> tuple[float, float]:
    """Mean share of KV memory in use, and the chance that it is full (compound Poisson, normal approximation)."""
    total = float(resident @ held)
    spread = float(np.sqrt(burst * max(float(resident @ held**2), 1e-300)))
    return total / max(float(capacity), 1e-12), float(normal_exceeds((capacity - total) / spread))


def overloaded(rate: FloatArray) -> PoolState:
    """A pool that falls behind: everything takes a million seconds."""
    endless = np.full(rate.size, 1e6)
    everyone = np.zeros(rate.size, dtype=np.int64)
    wait = PromptWait(np.inf, np.inf, 1.0, np.array([0.0, 1e6]), np.array([[1.0, 0.0]]), everyone, 5e5, 0.0)
    nothing = np.zeros(rate.size)
    steps = Steps(1e6, 1e6, nothing + 1.0, nothing, nothing, 0.0, nothing + 1e6)
    return PoolState(rate, wait, endless, steps, np.inf, 1.0, np.inf, stable=False)
