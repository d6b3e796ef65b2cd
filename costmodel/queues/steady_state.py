"""TTFT and TPOT of a deployment at fixed concurrency, in closed form up to a fixed point.

C requests are in flight, each replaced when it ends; N of them, as many as memory holds, are inside, of which B decode:
on one colocated engine (P = D = 1), or at P prefill workers that hand them to D decode workers. With s the seconds that
a prompt keeps its worker busy, s' the prompt alone until its first token, d(B) a decode step, which makes E tokens of
a request (`costmodel.engine.Speculation`; 1 where none are drafted), O tokens a request, n = N / P:

    TPOT = d(B / D) / E + s B (1 - 1 / N) / (O - 1)      with the prompts of others in colocated steps; s = 0 if apart
    TTFT = front + f w ((n - m) / 2 + k m) + (1 - f) (s' + W) + entry + line
    W    = wait of n requests that circulate, s at a time and away for the rest of R (`circulating_wait`, `dealt_wait`)
    B    = N (O - 1) TPOT / R,   R = TTFT' + (O - 1) TPOT   Little's law; TTFT' is TTFT without the line

The first wave arrives at once. Its n prompts go m to a step, m = min(n, room of a step), w seconds each, through k
pipeline stages, and all of a step get their first tokens when it ends. With one stage that is after (n + m) / 2 prompts
on average; no wave ends before a prompt alone. f is the share of this wave in the run, 1 / waves, and of disaggregated
requests that meet all others again (fitted).
Later requests come back scattered by their lengths; where roles are apart, the fitted share stands for those who meet.
Colocated requests that take as many steps start and end together: where prompts go first such a wave stays one, and
where they share steps with decodes each of these carries one of the others. Lengths scatter the steps of a request, and
so do drafted tokens, of which a step accepts more or fewer (`step_scatter`, `wave_survival`).

`front` is what a request waits for whatever the load: `ServingPolicy.fixed_ttft`. `entry` of a colocated engine is the
steps that end before it takes a prompt in (`waits.StepsAhead`) and the wait for the scheduler's next look at its queue
(`look_wait`); where roles are apart, it is the wait for others in the step of a prompt (`shared_step`) and for the
hand-over (`first_token.mean_hand_over`). The line is what waits outside for memory. With a mean C below one, the
deployment is idle at times and serves a single request at others: N = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.engine import ServingPolicy
from costmodel.engine_arrays import EngineArrays
from costmodel.first_token import mean_hand_over
from costmodel.kernels import layer_kernels
from costmodel.step import StepLoad, step_time
from costmodel.transformer import Transformer

from .waits import StepsAhead, step_in_progress

ITERATIONS = 40
"""Fixed-point steps, each averaged with the last: the map contracts by a half or better."""
MANY_WAVES = 10.0
"""Requests of a benchmark over its concurrency where not stated: the habit of InferenceX and vLLM's benchmarks [1]."""
CROWDING = 0.8
"""Figure of `circulating_wait` [1]: fitted to that queue, simulated at 54 loads of 4 to 400 requests and uniform
lengths; mean error 12 % of the time to the first token, 19 % too short where the server is just busy all the time."""


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """What a load generator keeps in flight; arrays of shape (deployments, 1).

    concurrency: of the whole deployment [1]; isl, osl: mean lengths [token]; spread: 1 - shortest / longest of evenly
    spread lengths [1]; waves: requests of the whole run over its concurrency, without end for a median, which no first
    wave touches [1]; looks: decode steps from one look of the scheduler at its queue to the next [1].
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
class WorkerPools:
    """Workers and what lies between them; arrays of shape (deployments, 1).

    prefill_workers, decode_workers [1]; transfer: time that a hand-over shows [s]; fits: requests that the memory of
    one (decode) worker holds [1]; apart: whether prefill and decode are.
    """

    prefill_workers: FloatArray
    decode_workers: FloatArray
    transfer: FloatArray
    fits: FloatArray
    apart: bool = True


@dataclass(frozen=True, slots=True)
class Steady:
    """A steady state; arrays of shape (deployments, 1).

    ttft, tpot: means [s]; running: decoding requests [1]; rate: requests that end per second [1/s]; decode_step: a step
    without prompts [s]; prefill: one prompt alone [s]; shared: its share of a prefilling worker that all lanes keep
    busy [s]; line: part of TTFT spent waiting for memory [s].
    """

    ttft: FloatArray
    tpot: FloatArray
    running: FloatArray
    rate: FloatArray
    decode_step: FloatArray
    prefill: FloatArray
    shared: FloatArray
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
    how long that share keeps the engine busy [s]; room: prompts that a step takes at most [1]; lanes: data-parallel
    ranks that they are dealt to [1]; stages: of the pipeline that a step passes through [1].
    """

    alone: FloatArray
    wave: FloatArray
    shared: FloatArray
    room: FloatArray
    lanes: FloatArray
    stages: FloatArray | float = 1.0


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """All that the steady state needs of an engine: a prompt, and a decode step by the requests that run [1 -> s].

    tokens_per_step: tokens that the step makes of each request; step_variance: of the steps that a token takes
    (`costmodel.engine.Speculation`) [1].
    """

    prompt: Prompt
    decode: Callable[[FloatArray], FloatArray]
    tokens_per_step: FloatArray | float = 1.0
    step_variance: FloatArray | float = 0.0


def engine_times(
    model: Transformer, prefill: EngineArrays, decode: EngineArrays, policy: ServingPolicy, load: ClosedLoad
) -> EngineTimes:
    """The times of engines under a load, from their steps: of a prompt where it is computed, of a step where decoded.

    The host launches the kernels of a step with prompts one by one, which is the least that it takes.
    """
    steps, least = prompt_steps(model, prefill, policy, load), launching_time(model, policy)
    prompt = prompt_of(steps, prefill.first_token, least)
    tokens = decode.tokens_per_step, decode.step_variance
    return EngineTimes(prompt, lambda running: decode_step(model, decode, running, load), *tokens)


def prompt_steps(model: Transformer, engines: EngineArrays, policy: ServingPolicy, load: ClosedLoad) -> PromptSteps:
    """Steps of a prompt alone, and of as many as a step takes on every lane.

    A step takes up to `token_budget` prompt tokens, so short prompts share one read of the weights.
    """
    group = np.maximum(np.minimum(policy.token_budget / load.isl, load.concurrency / engines.data), 1.0)
    alone = step_time(model, engines, StepLoad.prefill(load.isl)).total
    together = step_time(model, engines, StepLoad.prefill(load.isl, group * engines.data)).total
    return PromptSteps(alone, together, group, engines.data, engines.pipeline)


def prompt_of(steps: PromptSteps, first_token: FloatArray, least: FloatArray | float) -> Prompt:
    """A prompt from its steps, which take at least `least`, for no CUDA graph replays them [s].

    Ranks of data-parallel attention go in step, each with its own prompts. Pipeline stages hold one micro-batch each.
    first_token: how much later than its steps a first token comes (`Accelerator.in_engine`) [1].
    """
    room = steps.group * steps.lanes
    share = 1.0 / (room * steps.pipeline)
    return Prompt(
        alone=first_token * np.maximum(steps.alone, least),
        wave=first_token * np.maximum(steps.together, least) * share,
        shared=np.maximum(steps.together, least) * share,
        room=room,
        lanes=steps.lanes,
        stages=steps.pipeline,
    )


def launching_time(model: Transformer, policy: ServingPolicy) -> float:
    """Least time of a step with prompts, whose kernels the host launches one by one [s]; none for compiled models."""
    return policy.launch * sum(layer_kernels(group) * group.count for group in model.layers)


def decode_step(model: Transformer, engines: EngineArrays, running: FloatArray, load: ClosedLoad) -> FloatArray:
    """A decode step of `running` requests in all, at the mean context ISL + OSL / 2 [s].

    Every pipeline stage holds its share of the requests; a step that runs has at least one.
    """
    batch = np.maximum(running / engines.pipeline, 1.0)
    return step_time(model, engines, StepLoad.decode(batch, load.isl + load.osl / 2.0)).total


def closed_loop(times: EngineTimes, policy: ServingPolicy, load: ClosedLoad, pools: WorkerPools) -> Steady:
    """The fixed point of the equations above, from the times of a prefilling and of a decoding worker.

    A decode worker that pulls loads KV during a step of the others before one has it (`waits.step_in_progress`).
    """
    prompt, gaps = times.prompt, load.gaps
    prefills_first = policy.scheduler.exclusive_prefill and not pools.apart
    residents = admitted_requests(policy, load, pools)
    at_worker = np.maximum(residents / pools.prefill_workers, 1.0)
    scatter = step_scatter(times, load)
    survival = wave_survival(scatter, load.waves)
    together = wave_share(policy, load, pools, survival)
    in_step = np.minimum(prompt.room, at_worker)
    wave = np.maximum(((at_worker - in_step) / 2.0 + in_step * prompt.stages) * prompt.wave, prompt.alone)
    front = policy.fixed_ttft(pools.apart) + together * wave + (1.0 - together) * prompt.alone
    other_share = 1.0 - 1.0 / residents
    felt = np.zeros_like(gaps) if pools.apart else other_share * prompt.shared / gaps
    stays = together if prefills_first else np.zeros_like(gaps)  # a wave decodes as one, after half of its prompts
    # of a prompt, what each step of the others carries
    carried = 0.0 if prefills_first else survival * other_share * prompt.alone
    running, queue, delay = residents, np.zeros_like(residents), np.zeros_like(residents)
    for _ in range(ITERATIONS):
        batch = (running + stays * (residents - running)) / pools.decode_workers
        step = times.decode(batch)
        tpot = step / times.tokens_per_step + felt * (1.0 - 0.5 * stays) * batch
        met = step_in_progress(running / pools.decode_workers * other_share)
        if pools.apart:
            entry = mean_hand_over(met, step, float(policy.scheduler.pulls), pools.transfer) + delay
        else:
            begun = (step + carried) / prompt.stages
            formed = begun * policy.scheduler.forms_ahead(prompt.stages)
            entry = StepsAhead(met, begun, formed).mean + look_wait(load.looks, step, tpot * times.tokens_per_step)
        inside = front + queue + entry
        residence = inside + gaps * tpot
        away = residence - queue - prompt.shared
        if pools.apart:
            length, later = shared_step(prompt, at_worker / residence)
            delay = 0.5 * delay + 0.5 * later
            lanes = prompt.lanes if policy.scheduler.random_lanes else np.ones_like(length)
            wait = dealt_wait(at_worker, prompt.shared, away, length, lanes)
        else:
            wait = circulating_wait(at_worker, prompt.shared, away, scatter * tpot * times.tokens_per_step)
        queue = 0.5 * queue + 0.5 * (1.0 - together) * wait
        running = 0.5 * running + 0.5 * residents * gaps * tpot / residence
    line = waiting_line(load, residents, residence)
    return Steady(
        ttft=inside + line,
        tpot=tpot,
        running=running,
        rate=np.minimum(load.concurrency, residents) / residence,
        decode_step=step,
        prefill=prompt.alone,
        shared=prompt.shared,
        line=line,
    )


def admitted_requests(policy: ServingPolicy, load: ClosedLoad, pools: WorkerPools) -> FloatArray:
    """Requests inside a busy deployment [1]: what memory holds and the token budget keeps supplied, at least one."""
    residents = np.minimum(load.concurrency, pools.decode_workers * np.maximum(pools.fits, 1.0))
    if not (policy.scheduler.exclusive_prefill or pools.apart):
        residents = np.minimum(residents, load.gaps * policy.token_budget / load.isl)
    return np.asarray(np.maximum(residents, 1.0))


def step_scatter(times: EngineTimes, load: ClosedLoad) -> FloatArray:
    """Standard deviation of the decode steps of a request [1]: sqrt((g s / E)^2 + g v).

    g gaps between tokens that scatter by s of their mean, at E tokens a step; v steps^2 for each token (Cox 1962).
    """
    lengths = load.gaps * load.scatter / times.tokens_per_step
    return np.asarray(np.sqrt(np.square(lengths) + load.gaps * times.step_variance))


def wave_survival(scatter: FloatArray, waves: FloatArray) -> FloatArray:
    """Share of the requests after the first wave that still come together [1]: the mean of p, p^2, ... p^(waves - 1).

    Two that started together end in one step with the chance p = 1 / sqrt(1 + 12 s^2): evenly spread over n steps it is
    1 / n, and their standard deviation is s = sqrt((n^2 - 1) / 12).

    scatter: s, of the decode steps of a request; waves: of the run [1].

    >>> wave_survival(np.array([0.0, 2.0, 2.0]), np.array([10.0, 2.0, 10.0])).round(3).tolist()
    [1.0, 0.143, 0.019]
    """
    chance, rounds = 1.0 / np.sqrt(1.0 + 12.0 * np.square(scatter)), np.maximum(waves - 1.0, 1.0)
    loss = np.maximum(1.0 - chance, np.finfo(np.float64).tiny)
    return np.where(chance < 1.0, chance * (1.0 - chance**rounds) / (loss * rounds), 1.0)


def wave_share(policy: ServingPolicy, load: ClosedLoad, pools: WorkerPools, survival: FloatArray) -> FloatArray:
    """Share of requests that arrive together with all others [1]: the first wave, or all where it stays together.

    survival: share of later requests that come together (`wave_survival`) [1].
    """
    first = 1.0 / load.waves + np.zeros_like(load.isl)
    if pools.apart:
        return np.minimum(first + policy.handover_burst, 1.0)
    if policy.scheduler.exclusive_prefill:
        return np.asarray(first + (1.0 - first) * survival)
    return first


def circulating_wait(requests: FloatArray, service: FloatArray, away: FloatArray, scatter: FloatArray) -> FloatArray:
    """Mean wait of n requests that circulate between a server and elsewhere, after the first round [s].

    n s > Z + s: the server is never idle, and all others are ahead but for those away, W = x = n s - Z - s (Denning and
    Buzen 1978). Otherwise requests come back s apart, as they left, and wait for as much as they scatter, of the order
    of sqrt(sigma s), and less as they drift apart. With u = sqrt(sigma s) (1 - 1 / sqrt(n)), rho = n s / (Z + s):

        W = 0.8 min(rho, 1) u + max(x, 0)

    requests: n [1]; service: s [s]; away: Z, time until a request is back [s]; scatter: sigma, standard deviation of
    Z [s].

    >>> four = [np.array([number]) for number in (4.0, 1.0, 9.0, 0.0)]
    >>> float(circulating_wait(*four)[0]), float(circulating_wait(np.array([12.0]), *four[1:])[0])
    (0.0, 2.0)
    """
    spare = requests * service - away - service
    unit = np.sqrt(scatter * service) * (1.0 - 1.0 / np.sqrt(requests))
    crowd = CROWDING * np.minimum(requests * service / (away + service), 1.0) * unit
    return np.asarray(crowd + np.maximum(spare, 0.0))


def shared_step(prompt: Prompt, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean step of a worker that only prefills, and how much later than alone a prompt ends that shares it [s].

    A step takes all prompts that came during the last one, up to its room m: a + b each. With lambda prompts a second

        T = a + b max(1, lambda T) = a / (1 - lambda b),   a + b = the prompt alone,   a + m b = a full step.

    A prompt waits for half of a step in progress, which it meets with chance min(lambda T, 1), and then for the end of
    its own. With m = 1 whoever meets a step queues, and the queue counts it: the wait is (1 - 1 / m) of that.

    rate: lambda of one worker [1/s].

    >>> values = [np.array([number]) for number in (0.4, 0.1, 0.1, 8.0, 8.0)]
    >>> length, later = shared_step(Prompt(*values), np.array([5.0]))
    >>> round(float(length[0]), 3), round(float(later[0]), 3)
    (0.48, 0.29)
    """
    full = prompt.shared * prompt.room
    least = np.minimum(prompt.alone, full)
    more = (full - least) / np.maximum(prompt.room - 1.0, 1e-9)
    open_share = 1.0 - rate * more
    length = np.where(open_share > 0.0, (least - more) / np.maximum(open_share, 1e-9), full)
    length = np.clip(length, least, full)
    met = np.minimum(rate * length, 1.0)
    return length, length - least + met * length / 2.0 * (1.0 - 1.0 / prompt.room)


def dealt_wait(
    requests: FloatArray, service: FloatArray, away: FloatArray, step: FloatArray, lanes: FloatArray
) -> FloatArray:
    """Mean wait at a worker that only prefills for prompts that its next step does not take [s].

    Where the worker is never idle, all others are ahead but for those away: x = n s - Z - s, as in `circulating_wait`.
    Prompts dealt at random to L lanes leave some idle while others queue: with p = lambda T / L a lane is a queue of
    Poisson arrivals and one length T, (1 - 1 / L) p T / (2 (1 - p)), and 1 - p = -x / (Z + s) until it is saturated:

        W = x / 2 + sqrt(x^2 / 4 + (1 - 1 / L) n s T / 2)

    requests: n [1]; service: s [s]; away: Z [s]; step: T (`shared_step`) [s]; lanes: L, 1 where they are kept even [1].

    >>> four = [np.array([number]) for number in (1.0, 9.0, 1.0, 1.0)]
    >>> float(dealt_wait(np.array([4.0]), *four)[0]), float(dealt_wait(np.array([12.0]), *four)[0])
    (0.0, 2.0)
    """
    spare = requests * service - away - service
    uneven = (1.0 - 1.0 / lanes) * requests * service * step / 2.0
    return np.asarray(spare / 2.0 + np.sqrt(np.square(spare) / 4.0 + uneven))


def look_wait(looks: FloatArray, decode: FloatArray, iteration: FloatArray) -> FloatArray:
    """Mean wait of a prompt where the scheduler looks at its queue once in L steps [s]: (L - 1) / 2 x (2 i - d).

    Half of the L - 1 other steps pass first, each with the prompts that it carries. Those that come meanwhile are let
    in together, and half of them are ahead: (L - 1) / 2 x (i - d).

    looks: L [1]; decode: a step without prompts, d [s]; iteration: a step with the prompts that it carries, i [s].

    >>> three = [np.array([number]) for number in (31.0, 0.03, 0.05)]
    >>> round(float(look_wait(*three)[0]), 9), float(look_wait(np.ones(1), *three[1:])[0])
    (1.05, 0.0)
    """
    return np.asarray((looks - 1.0) / 2.0 * (2.0 * iteration - decode))


def waiting_line(load: ClosedLoad, residents: FloatArray, residence: FloatArray) -> FloatArray:
    """Mean wait of a request for memory [s]: (C - N) R / N x (1 - (C + N) / (2 waves C)).

    C requests in flight, N inside for `residence` R [s] each, so one is let in every R / N. The first N of the run
    never waited and the next C - N waited for part of the line only.
    """
    outside = np.maximum(load.concurrency - residents, 0.0)
    first = (load.concurrency + residents) / (2.0 * load.waves * load.concurrency)
    return np.asarray(outside * residence / residents * np.maximum(1.0 - first, 0.0))
