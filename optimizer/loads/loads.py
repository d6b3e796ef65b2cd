"""What requests take of engines: prompts their time, running requests their memory; and the names of what runs out."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from costmodel.queueing import pipeline_cycle

from .flows import Flows

FloatArray = NDArray[np.float64]


class Resource(StrEnum):
    """What an engine can run out of."""

    TIME = "time"
    SLOTS = "slots"
    KV_MEMORY = "kv_memory"
    ATTENTION_TIME = "attention_time"
    LINK = "link"


LINK_UTILIZATION = 0.7
"""Busy share of a network card that hand-overs may plan on [1]; assumed: the transfer time counted is unloaded."""


def prompt_service(flows: Flows, latency: FloatArray, chunks: FloatArray, stages: FloatArray) -> FloatArray:
    """Seconds that a prompt keeps a prefill engine from others, (engines, flows).

    latency, chunks (engines, flows): of a prompt alone. Its chunks go through `stages` (engines,) one after another; in
    a pipeline the first waits for the longest of other prompts' steps beside it, the others follow steps like theirs.
    """
    service = latency / stages[:, None]
    deep = np.flatnonzero(stages > 1.0)
    step = service[deep] / chunks[deep]
    service[deep] += pipeline_cycle(step, flows.share / flows.share.sum(), stages[deep]) - step
    return np.asarray(service)


def prompt_latency(latency: FloatArray, chunks: FloatArray, stages: FloatArray) -> FloatArray:
    """Time from the start of a prompt to its end on an otherwise idle prefill engine [s], (engines, flows).

    latency (engines, flows): of its n `chunks` (engines, flows) one after another. In a pipeline of k stages the next
    chunk enters when the one before has left the first stage: n steps of t / k, and the last one's way through the
    other stages (engines,). Any axes may stand for the engines.
    """
    deep = stages[..., None]
    return np.asarray(latency / deep * (1.0 + (deep - 1.0) / chunks))


def peakedness(flows: Flows) -> float:
    """Variance over mean of the requests that run at once: 1 for Poisson arrivals, more for bursty ones [1]."""
    return max(1.0, (flows.arrival_scv + 1.0) / 2.0)
