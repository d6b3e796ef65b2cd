"""Engines at an arrival rate: TTFT and TPOT in steady state, with the waits that random arrivals cause.

With lambda requests per second, s the engine seconds of a prompt and d(B) a decode step, the requests that decode are
B = lambda (O - 1) TPOT (Little) and

    TPOT = d(B) / (1 - lambda s)                          prompts take their share of the time
    TTFT = arrival + s' + W + TPOT / 2 + d + slot wait

W is the mean wait of M/G/c (Allen-Cunneen) for the prefilling engine, TPOT / 2 the rest of the step that is under way,
and the slot wait that of M/G/N for the N requests that memory holds. Where a load cannot be sustained all times are
infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.engine_arrays import EngineArrays
from costmodel.queueing import conditional_wait, wait_probability
from costmodel.transformer import Transformer

from .disaggregated import Pools
from .load import ClosedLoad, Steady, Times, engine_times
from .policy import ServingPolicy

FloatArray = NDArray[np.float64]

ITERATIONS = 60
"""Fixed-point steps from an empty engine: B rises to its least solution and passes the limit if there is none."""
MOST_SLOTS = 4096
"""Slots beyond which nobody waits for one unless all are busy [1]."""


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Requests that arrive; arrays of shape (engines, 1).

    rate: per second, to one colocated engine [1/s]; isl, osl: mean lengths [token];
    arrival_scv: squared coefficient of variation of the gaps between arrivals, 1 for Poisson [1];
    isl_scv: of the prompt lengths, 0 for equal ones [1].
    """

    rate: FloatArray
    isl: FloatArray
    osl: FloatArray
    arrival_scv: FloatArray
    isl_scv: FloatArray


def open_loop(
    model: Transformer, engines: EngineArrays, policy: ServingPolicy, load: OpenLoad, fits: FloatArray
) -> Steady:
    """Colocated engines; `fits` is how many requests the memory of one holds [1]."""
    closed = _as_closed(load, np.maximum(engines.data, 1.0))
    times = engine_times(model, engines, closed, policy)
    one = np.ones_like(load.rate)
    pools = Pools(one, one, np.zeros_like(one), fits)
    return _settle(times, policy, load, pools)


def _as_closed(load: OpenLoad, lanes: FloatArray) -> ClosedLoad:
    """What the times of an engine depend on; at low rates a prompt has a step to itself."""
    zero = np.zeros_like(load.rate)
    return ClosedLoad(lanes, load.isl, load.osl, zero, zero + 1.0)


def _settle(times: Times, policy: ServingPolicy, load: OpenLoad, pools: Pools) -> Steady:
    prompt, gaps = times.prompt, np.maximum(load.osl - 1.0, 1.0)
    busy = load.rate * prompt.shared / pools.prefill_workers
    free = np.maximum(1.0 - busy, 1e-9)
    most = pools.decode_workers * np.minimum(np.maximum(pools.fits, 1.0), 1e9)
    running = np.zeros_like(load.rate)
    for _ in range(ITERATIONS):
        step = times.decode(running / pools.decode_workers)
        tpot = step / free
        running = np.minimum(load.rate * gaps * tpot, most)
    slots = _slot_wait(running, most, gaps * tpot, load)
    second = prompt.shared**2 * (1.0 + load.isl_scv)
    queue = wait_probability(pools.prefill_workers, np.minimum(busy, 1.0), load.arrival_scv) * conditional_wait(
        pools.prefill_workers, busy, prompt.shared, second, load.arrival_scv
    )
    ttft = policy.arrival + prompt.alone + queue + 0.5 * tpot + step + slots
    unstable = (busy >= 1.0) | (load.rate * gaps * tpot >= most)
    return Steady(
        ttft=np.where(unstable, np.inf, ttft),
        tpot=np.where(unstable, np.inf, tpot),
        running=running,
        admitted=running + load.rate * (ttft - slots),
        rate=load.rate,
        decode_step=step,
        prefill=prompt.alone,
        shared=prompt.shared,
        prefill_share=np.minimum(busy, 1.0),
        line=np.where(unstable, np.inf, slots),
    )


def _slot_wait(running: FloatArray, most: FloatArray, service: FloatArray, load: OpenLoad) -> FloatArray:
    """Mean wait for one of `most` slots, each held for `service` seconds [s]."""
    slots = np.minimum(np.floor(most), MOST_SLOTS)
    used = running / most
    waits = wait_probability(slots, np.minimum(used, 1.0), load.arrival_scv)
    return np.asarray(waits * conditional_wait(slots, used, service, service**2, load.arrival_scv))
