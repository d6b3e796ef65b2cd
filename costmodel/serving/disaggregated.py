"""Prefill workers hand prompts to decode workers, at fixed concurrency: TTFT and TPOT in steady state.

C requests circulate: n = N / P of them share each of P prefill workers (s seconds of one prompt each), are handed over,
and decode on one of D workers in batches of B = N (O - 1) TPOT / (D (TTFT + (O - 1) TPOT)). All of them come at once in
the first wave, where half of the others are ahead of one; later they wait as requests do that circulate
(`load.circulating_wait`), away for Z = everything else:

    TTFT = arrival + hand-over + transfer + l s' + steps + f (n - 1) l s / 2 + (1 - f) W(n, s, Z)

f = 1 / waves + a share of later requests that meet all others again (fitted); s' is the prompt alone, whose first token
comes l times as late as the worker is busy with it (`Accelerator.in_engine`). Data-parallel
lanes go in step: on a worker whose lanes are busy for a share rho of the time, a prompt waits for half of a step in
progress and then takes as long as a step of all lanes does. A decode worker that pulls loads KV during a step of the
others before one has it (`transfer.step_in_progress`).

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

from .load import ClosedLoad, Steady, Times, circulating_wait, decode_time, engine_times, waiting_line
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
    each = np.maximum(admitted / pools.prefill_workers, 1.0)
    together = np.minimum(1.0 / load.waves + policy.handover_burst, 1.0)
    wave = together * (each - 1.0) / 2.0 * prompt.wave
    longer = np.maximum(prompt.lockstep - prompt.alone, 0.0) + prompt.lockstep / 2.0
    running, queue, busy = 0.5 * admitted, np.zeros_like(admitted), np.zeros_like(admitted)
    for _ in range(ITERATIONS):
        step = times.decode(running / pools.decode_workers)
        others = running / pools.decode_workers * (1.0 - 1.0 / admitted)
        entry = (1.0 + policy.hand_over_steps * step_in_progress(others)) * step
        alone = policy.arrival + policy.handover + pools.transfer + prompt.alone + busy * longer + entry
        away = alone - prompt.shared + gaps * step
        wait = circulating_wait(each, prompt.shared, away, load.scatter * gaps * step)
        queue = 0.5 * queue + 0.5 * (1.0 - together) * wait
        inside = alone + wave + queue
        residence = inside + gaps * step
        busy = 0.5 * busy + 0.5 * np.minimum(each * prompt.shared / residence, 1.0)
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
        prefill_share=np.minimum(rate * prompt.shared / pools.prefill_workers, 1.0),
        line=line,
    )
