"""One colocated engine at fixed concurrency: TTFT and TPOT in steady state, in closed form up to a fixed point.

C requests are in flight, each replaced when it ends; N = min(C, what memory holds) of them are in the engine, of which
B decode. If C is a mean below one, the engine is idle at times and serves a single request at others: N = 1.
With s the engine seconds of one prompt, f s the time until its first token, d(B) a decode step, O tokens a request:

    TPOT = d(B) + s x B / (O - 1)                         every decode step carries B / (O - 1) prompts
    TTFT = arrival + f s' + (looks + 1) / 2 d + first x (N - 1) / 2 x f s + (1 - first) W + line
    W    = wait of N requests that circulate, s at a time and away for R - W - s (`load.circulating_wait`)
    B    = N (O - 1) TPOT / R,    R = TTFT' + (O - 1) TPOT Little's law; TTFT' is TTFT without the line

s' is the prompt alone, at least what the host needs to launch its kernels; f is `InEngine.first_token`. The first wave
arrives at once, and each of N prompts that come at once waits for half of the others: `first` is the share of this wave
in the run, 1 / waves. Later requests come back scattered by their lengths, and wait little until prompts take all of
the time. Equal lengths are a case of their own, as requests that start together also end together: where prompts go
first the whole wave stays one, and where they share steps with decodes each waits for those that came just before. The
line is what waits outside for memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.engine_arrays import EngineArrays
from costmodel.transformer import Transformer

from .load import ClosedLoad, Steady, Times, circulating_wait, engine_times, waiting_line
from .policy import Scheduler, ServingPolicy

FloatArray = NDArray[np.float64]

ITERATIONS = 25
"""Fixed-point steps, each averaged with the last: the map contracts by a half or better, so 1e-4 is reached."""

FULL_SPREAD = 0.2
"""Width of a uniform length distribution, relative to its longest, that dissolves waves: InferenceX's [0.8, 1.0]."""


def closed_loop(
    model: Transformer, engines: EngineArrays, policy: ServingPolicy, load: ClosedLoad, fits: FloatArray
) -> Steady:
    """TTFT and TPOT of each engine at its load; `fits` is how many requests its memory holds [1]."""
    return settle(engine_times(model, engines, load, policy), policy, load, fits)


def settle(times: Times, policy: ServingPolicy, load: ClosedLoad, fits: FloatArray) -> Steady:
    """The fixed point of the equations above, given the engine's times."""
    prompt, gaps = times.prompt, load.gaps
    admitted = admitted_requests(policy, load, fits)
    first = wave_share(policy, load)
    base = policy.arrival + prompt.alone + first * (admitted - 1.0) / 2.0 * prompt.wave
    base = base + prompts_before(policy, load, admitted) * prompt.alone
    felt, whole = prompt.shared / gaps, np.zeros_like(admitted)
    if policy.scheduler is Scheduler.PREFILL_FIRST:
        whole = first  # a wave that stays together decodes as one, after half of its prompts on average
        felt = felt * (1.0 - 0.5 * whole)
    running, queue = admitted, np.zeros_like(admitted)
    for _ in range(ITERATIONS):
        batch = running + whole * (admitted - running)
        step = times.decode(batch)
        tpot = step + felt * batch
        inside = base + queue + (load.looks + 1.0) / 2.0 * step
        residence = inside + gaps * tpot
        away = residence - queue - prompt.shared
        wait = circulating_wait(admitted, prompt.shared, away, load.scatter * gaps * tpot)
        queue = 0.5 * queue + 0.5 * (1.0 - first) * wait
        running = 0.5 * running + 0.5 * admitted * gaps * tpot / residence
    rate = np.minimum(load.concurrency, admitted) / residence
    line = waiting_line(load, admitted, residence)
    return Steady(
        ttft=inside + line,
        tpot=tpot,
        running=running,
        admitted=admitted,
        rate=rate,
        decode_step=step,
        prefill=prompt.alone,
        shared=prompt.shared,
        prefill_share=np.minimum(rate * prompt.shared, 1.0),
        line=line,
    )


def wave_share(policy: ServingPolicy, load: ClosedLoad) -> FloatArray:
    """Share of requests that arrive together with all others [1]: the first wave, or all where it stays together."""
    first = 1.0 / load.waves
    if policy.scheduler is Scheduler.PREFILL_FIRST:
        return np.asarray(first + (1.0 - first) * _equality(load))
    return np.asarray(first + np.zeros_like(load.isl))


def prompts_before(policy: ServingPolicy, load: ClosedLoad, admitted: FloatArray) -> FloatArray:
    """How many prompts of equal length one waits for where prompts share steps with decodes [1]; 0 if it is alone."""
    if policy.scheduler is Scheduler.PREFILL_FIRST:
        return np.zeros_like(admitted)
    return np.asarray(policy.equal_wait * _equality(load) * (1.0 - 1.0 / admitted))


def _equality(load: ClosedLoad) -> FloatArray:
    """1 for equal lengths, 0 for fully spread ones [1]."""
    return np.asarray(1.0 - np.clip(load.spread / FULL_SPREAD, 0.0, 1.0))


def admitted_requests(policy: ServingPolicy, load: ClosedLoad, fits: FloatArray) -> FloatArray:
    """Requests inside a busy engine: what memory holds and the token budget keeps supplied, at least one [1]."""
    admitted = np.minimum(load.concurrency, fits)
    if policy.scheduler is Scheduler.TOKEN_BUDGET:
        admitted = np.minimum(admitted, load.gaps * policy.token_budget / load.isl)
    return np.asarray(np.maximum(admitted, 1.0))
