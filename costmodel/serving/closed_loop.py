"""One colocated engine at fixed concurrency: TTFT and TPOT in steady state, in closed form up to a fixed point.

C requests are in flight, each replaced when it ends; N = min(C, what memory holds) of them are in the engine, of which
B decode. A mean C below one is that of an engine which is idle at times and serves a single request at others: N = 1.
With s the engine seconds of one prompt, d(B) a decode step, O tokens a request:

    TPOT = d(B) + interference x s x B / (O - 1)          every decode step carries B / (O - 1) prompts
    TTFT = arrival + wait x s' + (decode_wait + (looks - 1) / 2) d + burst x (N - 1) / 2 x (s" + frontend) + line
    B    = N (O - 1) TPOT / (TTFT' + (O - 1) TPOT)        Little's law; TTFT' is TTFT without the line

s' is the prompt alone, at least what the host needs to launch its kernels; wait is 1 and what the N - 1 others add to
it, by sharing a step with the prompt or by running as it arrives. The burst is the first wave, all of which
arrives at once, and whatever of it stays together: of N prompts at once each waits for half of the others. Equal
prompts share steps (s" = s); spread ones come one after the other and have steps of their own (s" = s'). The line is
what waits outside for memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine_arrays import EngineArrays
from costmodel.transformer import Transformer

from .load import MANY_WAVES, ClosedLoad, Steady, Times, engine_times, waiting_line
from .policy import Scheduler, ServingPolicy

FloatArray = NDArray[np.float64]

ITERATIONS = 12
"""Fixed-point steps, each averaged with the last: the map contracts by a half or better, so 1e-4 is reached."""
Figure = float | FloatArray

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
    share = burst_share(policy, load)
    each = _between(prompt.shared, prompt.alone, load)
    burst = share * (admitted - 1.0) / 2.0 * (each + policy.frontend)
    base = policy.arrival + prompts_waited(policy, load, admitted) * prompt.alone + burst
    felt = policy.interference * prompt.shared / gaps
    if policy.scheduler is Scheduler.PREFILL_FIRST:
        felt = felt * (1.0 - 0.5 * share)  # prompts of a wave that stays together run before most of its decodes
    running = admitted
    for _ in range(ITERATIONS):
        step = times.decode(running)
        tpot = step + felt * running
        inside = base + (policy.decode_wait + (load.looks - 1.0) / 2.0) * step
        running = 0.5 * running + 0.5 * admitted * gaps * tpot / (inside + gaps * tpot)
    residence = inside + gaps * tpot
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


def burst_share(policy: ServingPolicy, load: ClosedLoad) -> FloatArray:
    """Share of requests that arrive together with all others [1]: between equal lengths and fully spread ones.

    Fitted to runs of ten waves; the first wave's own share, 1 / waves, grows as a run gets shorter.
    """
    share = _between(policy.burst_fixed, policy.burst_random, load)
    return np.asarray(np.clip(share + 1.0 / load.waves - 1.0 / MANY_WAVES, 0.0, 1.0))


def prompts_waited(policy: ServingPolicy, load: ClosedLoad, admitted: FloatArray) -> FloatArray:
    """Prompts' worth of prefill that a request waits for outside of bursts, its own included [1]: 1 if it is alone."""
    waited = _between(policy.prefill_wait_fixed, policy.prefill_wait_random, load)
    return np.asarray(1.0 + (waited - 1.0) * (1.0 - 1.0 / admitted))


def outside_steps(policy: ServingPolicy, load: ClosedLoad, steady: Steady, kernels: FloatArray) -> FloatArray:
    """What a TTFT has outside of bursts that no step of a simulated engine accounts for [s].

    kernels: a prompt's step alone, by its kernels [s]. It is the way to the engine, what launching a prompt takes
    beyond its kernels, and the wait among many requests with spread lengths (`prompts_waited`), but for the share of
    the time in which other prompts run, for then a simulated request waits for them by itself. A single request waits
    for none.
    """
    spread = replace(load, spread=np.full_like(load.isl, FULL_SPREAD))
    waited = prompts_waited(policy, spread, steady.admitted) - 1.0
    launched = steady.prefill - kernels
    return np.asarray(policy.arrival + launched + (1.0 - steady.prefill_share) * waited * steady.prefill)


def _between(fixed: Figure, random: Figure, load: ClosedLoad) -> FloatArray:
    """A figure between that of equal lengths and that of fully spread ones."""
    return np.asarray(fixed + (random - fixed) * np.clip(load.spread / FULL_SPREAD, 0.0, 1.0))


def admitted_requests(policy: ServingPolicy, load: ClosedLoad, fits: FloatArray) -> FloatArray:
    """Requests inside a busy engine: what memory holds and the token budget keeps supplied, at least one [1]."""
    admitted = np.minimum(load.concurrency, fits)
    if policy.scheduler is Scheduler.TOKEN_BUDGET:
        admitted = np.minimum(admitted, load.gaps * policy.token_budget / load.isl)
    return np.asarray(np.maximum(admitted, 1.0))
