"""What a pool under load is like: its waits and its steps, and what engines of every role that generates share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.prompt_queue import PromptWait
from costmodel.queueing import normal_exceeds
from optimizer.loads.instance import Instance
from optimizer.loads.loads import peakedness

from .fleet import FleetPool

FloatArray = NDArray[np.float64]

ROUNDS = 40
"""Rounds until step and batch of a generating engine agree."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the requests that run at a pool.

    step: mean decode step [s]; quiet: mean step without prompts [s]; undisturbed (flows,): share of requests that meet
    no prompt; mean, spread (flows,): of the TPOT of the others, above `quiet` [s]; jitter: spread of a step that comes
    from the batch [s]; ceiling (flows,): TPOT at most [s].
    """

    step: float
    quiet: float
    undisturbed: FloatArray
    mean: FloatArray
    spread: FloatArray
    jitter: float
    ceiling: FloatArray


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
