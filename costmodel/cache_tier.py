"""A tier of KV memory below the GPU's: what it keeps of prompts, and what reading from there takes.

Engines copy the KV of every computed prompt to host memory (vLLM's KV offloading, SGLang's HiCache, TensorRT-LLM's host
cache), or to a store that several of them share (Mooncake, LMCache). The tier is *inclusive*: it has what GPU memory
has and more, and drops what was unused for longest. So it is a cache of its own law (`prefix_cache`), and a request
finds its history where the one or the other kept it for long enough.

What GPU memory no longer has is read, not computed. The engine goes on with other requests meanwhile, and the request
joins the queue when its KV is there. It is read only where that takes less time than computing it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import FloatArray
from .prefix_cache import Cached
from .queues.erlang import conditional_wait, split_scv
from .units import GIB

LEVELS = 65
"""Loads of a reader at which it is computed who waits too long."""


@dataclass(frozen=True, slots=True)
class CacheTier:
    """What one GPU adds to the tier.

    capacity [byte]; bandwidth: at which it reads its part of the KV [byte/s]; latency: of one read [s]; shared: whether
    the replicas of a pool read what any of them wrote, or each has its own.
    """

    capacity: float
    bandwidth: float
    latency: float = 0.0
    shared: bool = False

    def seconds(self, kv: FloatArray) -> FloatArray:
        """Time to read so many bytes by each GPU of an engine, kv (...,) [byte]: latency + kv / bandwidth [s].

        >>> CacheTier(100e9, 50e9, latency=0.001).seconds(np.array([1e9])).tolist()
        [0.021]
        """
        return np.asarray(self.latency + kv / self.bandwidth)


def usd_per_gpu(capacity: float, price_per_gib: float) -> float:
    """Price of a tier beside one GPU [$/h]; capacity: of that GPU's part [byte]; price_per_gib [$/h]."""
    return price_per_gib * capacity / GIB


@dataclass(frozen=True, slots=True)
class TierReads:
    """Requests whose history is read from the tier.

    chance (flows,): that a request is one of them [1]; seconds (flows,): from its arrival until its history is there
    [s]; keeps: how long the tier keeps what is not used [s].
    """

    chance: FloatArray
    seconds: FloatArray
    keeps: float

    @property
    def longest(self) -> float:
        """The longest that one of them takes [s]."""
        return float(np.where(self.chance > 0.0, self.seconds, 0.0).max())


def tier_reads(
    memory: Cached,
    tier: Cached,
    rate: FloatArray,
    *,
    seconds: FloatArray,
    computing: FloatArray,
    readers: float,
    arrival_scv: float = 1.0,
) -> TierReads:
    """What requests of each flow read of the tier.

    memory, tier: what GPU memory and the tier find; rate (flows,): requests [1/s]; seconds, computing (flows,): time to
    read the history alone, and to compute it alone [s]; readers: GPUs of the pool that read side by side, one of each
    tensor-parallel group [1]; arrival_scv: squared coefficient of variation of the times between arrivals [1].

    A reader is a queue of one server, as a network card: busy for the share rho of the time, and then waited for, theta
    on average. Who would wait for longer than reading saves, x = computing - seconds, computes, so of those who could
    read rho exp(-x / theta) do not. rho is the load of the others, which is found on a grid.

    >>> memory, tier = Cached(np.array([0.2]), 5.0), Cached(np.array([0.8]), 60.0)
    >>> def reads(seconds: float) -> TierReads:
    ...     times = {"seconds": np.array([seconds]), "computing": np.array([2.0])}
    ...     return tier_reads(memory, tier, np.array([1.0]), readers=1.0, **times)
    >>> [round(float(reads(seconds).chance[0]), 2) for seconds in (0.1, 1.0, 1.9, 2.1)]
    [0.6, 0.49, 0.29, 0.0]
    """
    worth = np.where(seconds < computing, np.maximum(tier.chance - memory.chance, 0.0), 0.0)
    load = rate * worth * seconds / readers
    if not load.any():
        return TierReads(worth, seconds, tier.keeps)
    mean, second = float(load.sum() / (rate @ worth)) * readers, float(load @ seconds / (rate @ worth)) * readers
    saved, scv = np.maximum(computing - seconds, 0.0), split_scv(arrival_scv, readers)

    def declined(busy: FloatArray) -> tuple[FloatArray, FloatArray]:
        wait = conditional_wait(1.0, busy, mean, second, scv)[..., None]
        return busy[..., None] * np.exp(-saved / wait), wait

    levels = np.linspace(0.0, 1.0, LEVELS)
    busy = np.interp(0.0, levels - (1.0 - declined(levels)[0]) @ load, levels)
    too_late, wait = declined(np.asarray(busy))
    waited = (busy * wait - too_late * (saved + wait)) / np.maximum(1.0 - too_late, 1e-12)
    return TierReads(worth * (1.0 - too_late), seconds + waited, tier.keeps)
