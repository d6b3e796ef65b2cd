"""Prefill workers hand prompts to decode workers, at fixed concurrency: TTFT and TPOT in steady state.

C requests circulate: they queue for one of P prefill workers (s seconds of one each), are handed over, and decode on
one of D workers in batches of B = N (O - 1) TPOT / (D (TTFT + (O - 1) TPOT)). The wait W for a prefill worker is that
of a closed queue with think time Z = everything else (Schweitzer's mean-value analysis, the P workers as one that is
P times as fast): an arrival finds Q (N - 1) / N others, so

    W = s / P x (N - 1) / N x Q,   Q = N (W + s) / (W + Z)

A decode worker that pulls loads KV during a step of the others before one has it (`transfer.step_in_progress`).
A share of the requests finds all others' prompts ahead of it. It is fitted to runs of ten waves, of which the first
comes at once.
Only as many requests are let in as the decode workers' memory holds; the rest wait in front of them. N is at least one:
with a mean C below one, the deployment is idle at times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.engine_arrays import EngineArrays
from costmodel.transfer import step_in_progress
from costmodel.transformer import Transformer

from .load import MANY_WAVES, ClosedLoad, Steady, Times, decode_time, engine_times, waiting_line
from .policy import ServingPolicy

FloatArray = NDArray[np.float64]

ITERATIONS = 40
"""Queue and batch settle together, each averaged with its last value."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Workers of each side and what lies between; arrays of shape (deployments, 1).

    prefill_workers, decode_workers [1]; transfer: time that a hand-over shows [s]; fits: requests that the memory of
    one decode worker holds [1].
    """

    prefill_workers: FloatArray
    decode_workers: FloatArray
    transfer: FloatArray
    fits: FloatArray


def disaggregated(
    model: Transformer,
    prefill: EngineArrays,
    decode: EngineArrays,
    policy: ServingPolicy,
    *,
    load: ClosedLoad,
    pools: Pools,
) -> Steady:
    """TTFT and TPOT of each deployment; the concurrency is that of the whole deployment."""
    prompt = engine_times(model, prefill, load, policy).prompt
    return settle_pools(Times(prompt, lambda running: decode_time(model, decode, running, load)), policy, load, pools)


def settle_pools(times: Times, policy: ServingPolicy, load: ClosedLoad, pools: Pools) -> Steady:
    """The fixed point of the equations above; `times` has the prompt of a prefill and the step of a decode worker."""
    prompt, gaps = times.prompt, load.gaps
    admitted = np.minimum(np.maximum(load.concurrency, 1.0), pools.decode_workers * np.maximum(pools.fits, 1.0))
    ahead = np.maximum(admitted / pools.prefill_workers - 1.0, 0.0) / 2.0
    burst = np.clip(policy.handover_burst + 1.0 / load.waves - 1.0 / MANY_WAVES, 0.0, 1.0)
    fixed = (
        policy.arrival
        + policy.handover
        + policy.handover_wait * prompt.alone
        + pools.transfer
        + burst * ahead * prompt.shared
    )
    service = prompt.shared / pools.prefill_workers
    running, queue = 0.5 * admitted, np.zeros_like(admitted)
    for _ in range(ITERATIONS):
        step = times.decode(running / pools.decode_workers)
        others = running / pools.decode_workers * (1.0 - 1.0 / admitted)
        inside = fixed + queue + (1.0 + policy.hand_over_steps * step_in_progress(others)) * step
        residence = inside + gaps * step
        found = (admitted - 1.0) * (queue + prompt.shared) / residence
        queue = 0.5 * queue + 0.5 * service * found
        running = 0.5 * running + 0.5 * admitted * gaps * step / residence
    rate = np.minimum(load.concurrency, admitted) / residence
    line = waiting_line(load, admitted, residence)
    return Steady(
        ttft=inside + line,
        tpot=step,
        running=running,
        admitted=admitted,
        rate=rate,
        decode_step=step,
        prefill=prompt.alone,
        shared=prompt.shared,
        prefill_share=np.minimum(rate * service, 1.0),
        line=line,
    )
