"""The serving steady state: fixed points checked by hand, and what must hold for any load."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from costmodel.accelerator import Origin
from costmodel.engine import NO_OVERHEAD, EngineOverhead, Parallelism, Policy, ServingPolicy
from costmodel.engine_arrays import engine_arrays
from costmodel.queues.steady_state import (
    ClosedLoad,
    EngineTimes,
    Prompt,
    WorkerPools,
    admitted_requests,
    circulating_wait,
    closed_loop,
    dealt_wait,
    engine_times,
    launching_time,
    shared_step,
    step_scatter,
    wave_share,
    wave_survival,
)
from search_spaces.catalog import load_catalog
from search_spaces.measured_engines import measured_engine
from search_spaces.models import load_model

Array = NDArray[np.float64]

IDEAL = ServingPolicy(
    scheduler=Policy(),
    token_budget=10**9,
    memory_fraction=0.9,
    quantized_kv_dtype="bf16",
    overhead=EngineOverhead(0.0, 0.0, Origin.ASSUMED, "none"),
    launch=0.0,
    arrival=0.0,
    handover_burst=0.0,
    handover=0.0,
)
"""No overheads, and no burst but the first wave: what is left can be worked out by hand."""


FIRST = replace(IDEAL, scheduler=Policy(exclusive_prefill=True))


def cell(value: float) -> Array:
    return np.array([[float(value)]])


def load(concurrency: float, isl: float = 1000, spread: float = 0.2, waves: float = math.inf) -> ClosedLoad:
    """A load of 101 output tokens; without end by default, so that no first wave counts."""
    return ClosedLoad(cell(concurrency), cell(isl), cell(101), cell(spread), cell(waves))


def pools(prefills: float = 1, decodes: float = 1, transfer: float = 0, fits: float = 1e9) -> WorkerPools:
    return WorkerPools(cell(prefills), cell(decodes), cell(transfer), cell(fits))


def colocated(fits: float = 100) -> WorkerPools:
    return replace(pools(fits=fits), apart=False)


def times(prompt: float, decode: Callable[[Array], Array] | float) -> EngineTimes:
    """Prompts of which a step takes one."""
    step = decode if callable(decode) else (lambda running: np.full_like(running, decode))
    return EngineTimes(Prompt(*[cell(prompt)] * 3, room=cell(1.0), lanes=cell(1.0)), step)


def ttft(prompt_and_steps: EngineTimes, policy: ServingPolicy, users: ClosedLoad, workers: WorkerPools) -> float:
    return float(closed_loop(prompt_and_steps, policy, users, workers).ttft[0, 0])


@pytest.mark.parametrize("policy", [IDEAL, FIRST])
def test_no_first_token_comes_before_a_prompt_alone_could_end(policy: ServingPolicy) -> None:
    """Fewer prompts than a step of eight lanes has room for: each lane takes as long as it does alone."""
    prompt = Prompt(cell(0.1), cell(0.02), cell(0.02), room=cell(8.0), lanes=cell(8.0))
    for concurrency in (1, 4):
        users = load(concurrency, spread=0.0, waves=10)
        assert ttft(EngineTimes(prompt, lambda running: np.full_like(running, 0.01)), policy, users, colocated()) >= 0.1


def test_a_lone_request_is_its_prefill_and_meets_no_step() -> None:
    steady = closed_loop(times(0.2, 0.01), IDEAL, load(1), colocated())
    busy, gaps = float(steady.running[0, 0]), 100
    assert steady.ttft[0, 0] == pytest.approx(0.2)
    assert steady.tpot[0, 0] == pytest.approx(0.01)  # nobody else's prompt comes meanwhile
    assert busy == pytest.approx(gaps * steady.tpot[0, 0] / (0.2 + gaps * steady.tpot[0, 0]), rel=1e-6)


def test_memory_for_half_of_the_requests_makes_the_rest_wait_a_residence() -> None:
    steady = closed_loop(times(1e-9, 0.01), IDEAL, load(64, waves=10), colocated(32))
    # 32 wait, one is let in every R / 32 with R = 100.5 steps: R in all, less (64 + 32) / (2 x 10 x 64) = 7.5 %.
    assert admitted_requests(IDEAL, load(64, waves=10), colocated(32))[0, 0] == 32
    assert steady.line[0, 0] == pytest.approx((100 + 0.5) * 0.01 * 0.925, rel=1e-4)
    assert steady.ttft[0, 0] == pytest.approx(steady.line[0, 0] + 0.5 * 0.01, rel=1e-4)


def test_a_prompt_waits_for_the_step_formed_ahead_unless_stages_take_turns() -> None:
    """Half a step in progress, and the next one where it is formed already; half of the share of a pipeline's stage."""
    ahead, staged = replace(IDEAL, scheduler=Policy(formed_ahead=True)), times(1e-9, 0.04)
    staged = replace(staged, prompt=replace(staged.prompt, stages=4.0))
    for policy, engine, wait in (
        (IDEAL, times(1e-9, 0.04), 0.02),
        (ahead, times(1e-9, 0.04), 0.06),
        (ahead, staged, 0.005),
    ):
        assert ttft(engine, policy, load(64), colocated()) == pytest.approx(wait, rel=1e-4)


def test_of_the_first_wave_each_waits_for_half() -> None:
    """It is one request in ten of a run of ten waves, and none of a median."""
    short, endless = (ttft(times(1e-3, 1.0), IDEAL, load(21, waves=n), colocated()) for n in (10, math.inf))
    later = endless - 0.5 * 1.0 - 1e-3
    assert 0.0 < later < 5e-3
    assert short - endless == pytest.approx(0.1 * 20 / 2 * 1e-3 - 0.1 * later, rel=5e-3)


def test_prompts_of_a_step_get_their_first_tokens_when_it_ends() -> None:
    """Of 16 that come at once, eight to a step, half wait for one step and half for two."""
    prompt = Prompt(*(cell(value) for value in (0.2, 0.1, 0.1, 8.0, 1.0)))
    engine = EngineTimes(prompt, lambda running: np.full_like(running, 1e-9))
    assert ttft(engine, FIRST, load(16, spread=0.0), colocated()) == pytest.approx(0.8 * 1.5, rel=1e-6)


def shared_steps(prompt: Prompt, requests: int, away: float, *, random: bool = False) -> float:
    """Mean time from arrival to the end of the own step, event by event, after the first round.

    A step takes what has come, one prompt of each lane, and lasts a + b for each. Times away vary by 6.4 %.
    """
    alone, room = float(prompt.alone[0, 0]), int(prompt.room[0, 0])
    more = (float(prompt.shared[0, 0]) * room - alone) / max(room - 1, 1)
    rng, rounds = np.random.default_rng(1), 12
    events = [(0.0, number, 0) for number in range(requests)]
    heapq.heapify(events)
    queues: list[deque[tuple[float, int, int]]] = [deque() for _ in range(room)]
    free, seen = 0.0, []
    while events or any(queues):
        if not any(queues):
            free = max(free, events[0][0])
        while events and events[0][0] <= free:
            place = int(rng.integers(room)) if random else min(range(room), key=lambda lane: len(queues[lane]))
            queues[place].append(heapq.heappop(events))
        batch = [queue.popleft() for queue in queues if queue]
        free += alone + more * (len(batch) - 1)
        for arrival, number, turn in batch:
            if turn:
                seen.append(free - arrival)
            if turn < rounds - 1:
                heapq.heappush(events, (free + away * rng.uniform(0.89, 1.11), number, turn + 1))
    return float(np.mean(seen))


@pytest.mark.parametrize("requests", [8, 128])
@pytest.mark.parametrize("load_share", [0.3, 0.7, 1.0, 1.3])
def test_requests_that_circulate_wait_as_a_queue_says_event_by_event(requests: int, load_share: float) -> None:
    """Beside the service and a tenth of the first round's wait, which a benchmark's mean has as well."""
    away = requests / load_share - 1.0
    scatter = 0.064 * away
    formula = float(circulating_wait(*(cell(value) for value in (requests, 1.0, away, scatter)))[0, 0])
    beside = 1.0 + 0.1 * (requests - 1) / 2.0
    one_by_one = Prompt(*[cell(1.0)] * 5)
    assert beside + formula == pytest.approx(beside - 1.0 + shared_steps(one_by_one, requests, away), rel=0.2)


def test_waves_stay_together_only_where_equal_prompts_go_first() -> None:
    cases = (
        (FIRST, 0.0, 10, 1.0),
        (FIRST, 0.2, 10, 0.105),  # evenly spread over 22 steps: one in 22 of the second wave, one in 22^2 of the third
        (IDEAL, 0.0, 10, 0.1),
        (IDEAL, 0, 1, 1),
    )
    for policy, spread, waves, share in cases:
        users = load(8, spread=spread, waves=waves)
        survival = wave_survival(step_scatter(times(0.1, 0.01), users), users.waves)
        assert wave_share(policy, users, colocated(), survival)[0, 0] == pytest.approx(share, abs=5e-4)
    users = load(32, spread=0.0)
    together, apart = (closed_loop(times(0.1, 0.01), policy, users, colocated()) for policy in (FIRST, IDEAL))
    assert together.tpot[0, 0] < apart.tpot[0, 0]  # prompts that run first spare the decodes of such a wave


def test_drafted_tokens_part_equal_requests() -> None:
    """100 tokens, 1 or 3 of them a step: each step is one draw of variance 1, each request 50 of them."""
    drafting = replace(times(0.1, 0.01), tokens_per_step=cell(2.0), step_variance=cell(1.0 / 2.0**3))
    users = load(32, spread=0.0)
    assert step_scatter(drafting, users)[0, 0] == pytest.approx(math.sqrt(50.0) / 2.0)
    plain, parted = (closed_loop(each, FIRST, users, colocated()) for each in (times(0.1, 0.01), drafting))
    assert parted.ttft[0, 0] < 0.5 * plain.ttft[0, 0]


def test_a_saturated_prefill_pool_lets_out_what_it_can() -> None:
    steady = closed_loop(times(0.5, 0.001), IDEAL, load(200), pools(2))
    assert steady.rate[0, 0] == pytest.approx(2 / 0.5, rel=0.02)
    assert steady.ttft[0, 0] == pytest.approx(200 / 4 - 100 * 0.001, rel=0.02)


@pytest.mark.parametrize("requests", [8, 128])
@pytest.mark.parametrize("load_share", [0.2, 0.5, 0.8, 1.2])
def test_prompts_share_a_step_as_a_queue_says_event_by_event(requests: int, load_share: float) -> None:
    """The rate is that of the simulated queue."""
    prompt = Prompt(cell(0.4), cell(0.1), cell(0.1), room=cell(8.0), lanes=cell(8.0))
    away = requests * 0.1 / load_share - 0.1
    for random in (False, True):
        measured = shared_steps(prompt, requests, away, random=random)
        length, later = shared_step(prompt, cell(requests / (away + measured)))
        wait = dealt_wait(
            cell(requests), prompt.shared, cell(away + float(later[0, 0]) + 0.3), length, cell(8.0 if random else 1.0)
        )
        assert 0.4 + float((later + wait)[0, 0]) == pytest.approx(measured, rel=0.3)


def test_prompts_that_share_a_worker_come_later_by_what_the_shared_step_says() -> None:
    """Where no prompt queues and tokens take next to no time."""
    times = EngineTimes(
        Prompt(cell(0.4), cell(0.4), cell(0.1), cell(8), cell(1)), lambda running: np.full_like(running, 1e-4)
    )
    few, more = (closed_loop(times, IDEAL, load(requests, spread=0.0), pools()) for requests in (1, 4))
    later = [shared_step(times.prompt, steady.rate)[1] for steady in (few, more)]
    assert later[1] > 2.0 * later[0]
    assert more.ttft - few.ttft == pytest.approx(later[1] - later[0], rel=0.01)


def test_a_prompt_waits_for_half_of_a_step_in_progress_and_for_all_that_share_its_own() -> None:
    """Two prompts a second: a step of 0.2 s and 0.2 s for each prompt lasts 0.4 s, and 0.8 of the arrivals meet one."""
    prompt = Prompt(cell(0.4), cell(0.25), cell(0.25), room=cell(4.0), lanes=cell(4.0))
    length, later = shared_step(prompt, cell(2.0))
    assert length[0, 0] == pytest.approx(0.4)
    assert later[0, 0] == pytest.approx(0.8 * 0.2 * 0.75)
    assert shared_step(prompt, cell(100.0))[0][0, 0] == pytest.approx(1.0)


def test_lanes_that_are_dealt_to_at_random_wait_longer() -> None:
    prompt = Prompt(cell(0.3), cell(0.1), cell(0.1), room=cell(8.0), lanes=cell(8.0))
    dealt = replace(IDEAL, scheduler=Policy(random_lanes=True))
    engine = replace(times(0.3, 0.05), prompt=prompt)
    even, uneven = (ttft(engine, policy, load(64), pools()) for policy in (IDEAL, dealt))
    assert even < uneven < 2.0 * even


def test_a_worker_that_pulls_loads_during_a_step_of_others() -> None:
    """A whole step more, less what it hides of the transfer."""
    pulls = replace(IDEAL, scheduler=Policy(pulls=True))
    for users, transfer, more in ((200, 0.0, 0.02), (200, 0.005, 0.015), (200, 0.03, 0.0), (1, 0.0, 0.0)):
        workers = pools(400, 1, transfer)
        sent, pulled = (ttft(times(0.1, 0.02), policy, load(users), workers) for policy in (IDEAL, pulls))
        assert pulled - sent == pytest.approx(more, abs=1e-4)


@given(
    concurrency=st.floats(1, 3000),
    prompt=st.floats(1e-3, 1.0),
    base=st.floats(1e-3, 0.1),
    slope=st.floats(0, 1e-3),
    fits=st.floats(1, 2000),
    workers=st.integers(0, 9),
)
def test_littles_law_holds_and_more_load_is_never_faster(
    concurrency: float, prompt: float, base: float, slope: float, fits: float, workers: int
) -> None:
    engine, deployment = times(prompt, lambda running: base + slope * running), colocated(fits)
    if workers:
        deployment = pools(workers, 1, 0, fits)
        fewer, many = (ttft(engine, IDEAL, load(concurrency), pools(n, 1, 0, fits)) for n in (workers, workers + 1))
        assert many <= fewer * (1 + 1e-3)
    less, more = (closed_loop(engine, IDEAL, load(c), deployment) for c in (concurrency, 1.5 * concurrency))
    admitted = admitted_requests(IDEAL, load(concurrency), deployment)
    assert less.rate * (less.ttft - less.line + 100 * less.tpot) == pytest.approx(admitted, rel=1e-6)
    assert less.rate[0, 0] <= max(workers, 1) / prompt * 1.02
    assert less.running[0, 0] <= admitted[0, 0] * (1 + 1e-9)
    assert more.tpot[0, 0] >= less.tpot[0, 0] * (1 - 1e-3)
    assert more.ttft[0, 0] >= less.ttft[0, 0] * (1 - 1e-3)


def test_launching_the_kernels_is_the_least_that_a_step_with_prompts_takes() -> None:
    """Kernels, not layers: 32 layers of Llama-3.1-8B have four matrices, three small kernels and attention each."""
    model, policy = load_model("Llama-3.1-8B"), replace(IDEAL, launch=1e-3)
    config = measured_engine(load_catalog(), "H100", model, Parallelism(), "bf16", kv_dtype="bf16", memory_fraction=0.9)
    engines = engine_arrays(model, [config], NO_OVERHEAD)
    assert launching_time(model, policy) == pytest.approx(32 * 8 * 1e-3)
    short, long = (load(1, isl=isl) for isl in (1, 30_000))
    assert engine_times(model, engines, engines, policy, short).prompt.alone[0, 0] == pytest.approx(32 * 8 * 1e-3)
    with_launch, without = (engine_times(model, engines, engines, each, long).prompt for each in (policy, IDEAL))
    assert with_launch.alone == pytest.approx(without.alone)
