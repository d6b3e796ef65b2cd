"""What a load generator keeps in flight, what comes of it, and the two times of an engine that decide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.engine_arrays import EngineArrays
from costmodel.kernels import layer_kernels
from costmodel.step import StepLoad, step_time
from costmodel.transformer import Transformer

from .policy import ServingPolicy

FloatArray = NDArray[np.float64]

MANY_WAVES = 10.0
"""Requests of a benchmark over its concurrency where not stated: the habit of InferenceX and vLLM's benchmarks [1]."""
MOST_PROMPTS = 8.0
"""Prompts in one step beyond which sharing the weights saves nothing more [1]."""
CROWDING, ROUNDING = 0.8, 0.56
"""Figures of `circulating_wait` [1]: fitted to that queue, simulated at 54 loads of 4 to 400 requests and uniform
lengths; mean error 5 %, at most 16 % of the time to the first token."""


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """What a load generator keeps in flight; arrays of shape (engines, 1).

    concurrency [1]; isl, osl: mean lengths [token]; spread: 1 - shortest / longest of evenly spread lengths [1];
    waves: requests of the whole run over its concurrency, without end for a median, which no first wave touches [1];
    looks: decode steps from one look of the scheduler at its queue to the next [1].
    """

    concurrency: FloatArray
    isl: FloatArray
    osl: FloatArray
    spread: FloatArray
    waves: FloatArray
    looks: FloatArray = field(default_factory=lambda: np.ones((1, 1)))

    @property
    def gaps(self) -> FloatArray:
        """Gaps between the tokens of a request: OSL - 1, at least one [1]."""
        return np.asarray(np.maximum(self.osl - 1.0, 1.0))

    @property
    def scatter(self) -> FloatArray:
        """Standard deviation of the output length over its mean, of evenly spread lengths [1]."""
        return np.asarray(self.spread / np.sqrt(12.0) / (1.0 - self.spread / 2.0))


@dataclass(frozen=True, slots=True)
class Steady:
    """A steady state; arrays of shape (engines, 1).

    ttft, tpot: means [s]; running: decoding requests [1]; admitted: requests that memory lets in [1];
    rate: requests that end per second [1/s]; decode_step: a step without prompts [s]; prefill: one prompt alone [s];
    shared: its share of a prefilling engine that all lanes keep busy [s];
    prefill_share: share of the prefilling engines' time that prompts take [1]; line: part of TTFT spent waiting for
    memory [s].
    """

    ttft: FloatArray
    tpot: FloatArray
    running: FloatArray
    admitted: FloatArray
    rate: FloatArray
    decode_step: FloatArray
    prefill: FloatArray
    shared: FloatArray
    prefill_share: FloatArray
    line: FloatArray


@dataclass(frozen=True, slots=True)
class PromptSteps:
    """Steps with prompts only; arrays of shape (engines, 1).

    alone: of a single prompt; together: of `group` prompts on each of `lanes` data-parallel ranks [s]; pipeline: stages
    [1].
    """

    alone: FloatArray
    together: FloatArray
    group: FloatArray
    lanes: FloatArray
    pipeline: FloatArray


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt on an engine.

    alone: until its first token [s]; wave: the same for its share of an engine that all lanes keep busy [s]; shared:
    how long that share keeps the engine busy [s]; lockstep: a step in which every lane has a prompt, 0 where an engine
    has a single lane [s].
    """

    alone: FloatArray
    wave: FloatArray
    shared: FloatArray
    lockstep: FloatArray


@dataclass(frozen=True, slots=True)
class Times:
    """All that the steady state needs of an engine: a prompt, and a decode step by the requests that run [1 -> s]."""

    prompt: Prompt
    decode: Callable[[FloatArray], FloatArray]


def engine_times(model: Transformer, engines: EngineArrays, load: ClosedLoad, policy: ServingPolicy) -> Times:
    """The times of engines under a load, from their steps."""
    return Times(
        prompt_time(model, engines, load, policy),
        lambda running: decode_time(model, engines, running, load),
    )


def prompt_time(model: Transformer, engines: EngineArrays, load: ClosedLoad, policy: ServingPolicy) -> Prompt:
    """Seconds of a prompt alone, and its share when every lane has as many prompts as a step takes.

    A step takes up to `token_budget` prompt tokens, so short prompts share one read of the weights. Ranks of
    data-parallel attention go in step, each with its own prompts; they rarely are all as busy, which
    `lane_balance` >= 1 makes up for. Pipeline stages hold one micro-batch each. The host launches the kernels.
    """
    first_token, least = engines.first_token, launching_time(model, policy)
    return prompt_of(prompt_steps(model, engines, load, policy), first_token, least, policy.lane_balance)


def prompt_steps(model: Transformer, engines: EngineArrays, load: ClosedLoad, policy: ServingPolicy) -> PromptSteps:
    """Steps of a prompt alone, and of as many as a step takes on every lane."""
    group = prompts_in_a_step(engines, load, policy)
    alone = step_time(model, engines, StepLoad.prefill(load.isl)).total
    together = step_time(model, engines, StepLoad.prefill(load.isl, group * engines.data)).total
    return PromptSteps(alone, together, group, engines.data, engines.pipeline)


def prompt_of(steps: PromptSteps, first_token: FloatArray, least: FloatArray | float, lane_balance: float) -> Prompt:
    """A prompt from its steps, which take at least `least`, for no CUDA graph replays them [s].

    first_token: how much later than its steps a first token comes (`Accelerator.in_engine`) [1].
    """
    lanes = steps.lanes
    share = uneven_lanes(lane_balance, lanes) / (steps.group * lanes * steps.pipeline)
    shared = np.maximum(steps.together, least) * share
    return Prompt(
        alone=np.maximum(first_token * steps.alone, least),
        wave=np.maximum(first_token * steps.together, least) * share,
        shared=shared,
        lockstep=np.where(lanes > 1, shared * lanes * steps.pipeline, 0.0),
    )


def launching_time(model: Transformer, policy: ServingPolicy) -> float:
    """Least time of a step with prompts, whose kernels the host launches one by one [s]."""
    return policy.launch * sum(layer_kernels(group) * group.count for group in model.layers)


def uneven_lanes(lane_balance: float, lanes: FloatArray) -> FloatArray:
    """Time of a prompt on data-parallel lanes over that on evenly busy ones [1]: min(lane_balance, lanes).

    At worst one lane does all the work; an engine with a single lane has nothing to be uneven.

    >>> uneven_lanes(1.2, np.array([1.0, 2.0, 8.0])).tolist(), uneven_lanes(3.0, np.array([2.0])).tolist()
    ([1.0, 1.2, 1.2], [2.0])
    """
    return np.asarray(np.where(lanes > 1, np.minimum(lane_balance, lanes), 1.0))


def prompts_in_a_step(engines: EngineArrays, load: ClosedLoad, policy: ServingPolicy) -> FloatArray:
    """Prompts that one lane takes into a step when it has the choice [1]: what the token budget and the load allow."""
    most = np.minimum(policy.token_budget / load.isl, load.concurrency / engines.data)
    return np.asarray(np.clip(most, 1.0, MOST_PROMPTS))


def decode_time(model: Transformer, engines: EngineArrays, running: FloatArray, load: ClosedLoad) -> FloatArray:
    """A decode step of `running` requests in all, at the mean context ISL + OSL / 2 [s].

    Every pipeline stage holds its share of the requests; a step that runs has at least one.
    """
    batch = np.maximum(running / engines.pipeline, 1.0)
    return step_time(model, engines, StepLoad.decode(batch, load.isl + load.osl / 2.0)).total


def circulating_wait(requests: FloatArray, service: FloatArray, away: FloatArray, scatter: FloatArray) -> FloatArray:
    """Mean wait of n requests that circulate between a server and elsewhere, after the first round [s].

    n s > Z + s: the server is never idle, and all others are ahead but for those away, W = x = n s - Z - s (Denning and
    Buzen 1978). Otherwise requests come back s apart, as they left, and wait for as much as they scatter, of the order
    of sqrt(sigma s), and less as they drift apart. With u = sqrt(sigma s) (1 - 1 / sqrt(n)), rho = n s / (Z + s):

        W = 0.8 min(rho, 1) u + x / 2 + sqrt(x^2 / 4 + (0.56 u)^2)

    requests: n [1]; service: s [s]; away: Z, time until a request is back [s]; scatter: sigma, standard deviation of
    Z [s].

    >>> four = [np.array([number]) for number in (4.0, 1.0, 9.0, 0.0)]
    >>> float(circulating_wait(*four)[0]), float(circulating_wait(np.array([12.0]), *four[1:])[0])
    (0.0, 2.0)
    """
    spare = requests * service - away - service
    unit = np.sqrt(scatter * service) * (1.0 - 1.0 / np.sqrt(requests))
    crowd = CROWDING * np.minimum(requests * service / (away + service), 1.0) * unit
    return np.asarray(crowd + spare / 2.0 + np.sqrt(np.square(spare) / 4.0 + np.square(ROUNDING * unit)))


def waiting_line(load: ClosedLoad, admitted: FloatArray, residence: FloatArray) -> FloatArray:
    """Mean wait of a request for memory [s]: (C - N) R / N x (1 - (C + N) / (2 waves C)).

    C requests in flight, N inside for `residence` R [s] each, so one is let in every R / N. The first N of the run
    never waited and the next C - N waited for part of the line only.
    """
    outside = np.maximum(load.concurrency - admitted, 0.0)
    first = (load.concurrency + admitted) / (2.0 * load.waves * load.concurrency)
    return np.asarray(outside * residence / admitted * np.maximum(1.0 - first, 0.0))
