"""Arrivals, metrics, step models, and the work that a run counts."""

from __future__ import annotations

import heapq
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reference.lone_steps import CoefficientSteps, step_seconds
from benchmarks.reference.policies import SARATHI, VLLM_V1
from costmodel.engine import NO_OVERHEAD, EngineConfig, Parallelism, Role
from costmodel.engine_arrays import engine_arrays
from costmodel.errors import PdplanError
from costmodel.metric import limits_of
from costmodel.queues.waits import erlang_c
from costmodel.simulator import compiled, records
from costmodel.simulator.fleet import Limits, StepContent, StepNumbers, StepWork, least_bytes, least_flop
from costmodel.simulator.metrics import (
    TAIL,
    Attainment,
    batch_ends,
    overload,
    percentiles,
    run_span,
    share_of,
    steady,
    steady_throughput,
    throughput,
    within,
)
from costmodel.simulator.run import simulate
from costmodel.simulator.steps import cost_steps
from costmodel.step import StepLoad, step_time, step_time_one
from costmodel.workload import diurnal_arrivals, draw_lengths, gamma_arrivals, make_trace
from search_spaces.engines import load_engine_memory, load_serving_policy
from search_spaces.models import catalog_model
from tests.optimizer_cases import accelerator
from tests.simulator_cases import WORKING, colocated
from tests.toy import llama_8b


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_their_rate_and_burstiness(cv: float) -> None:
    gaps = np.diff(gamma_arrivals(40_000, 5.0, cv, seed=1), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


@given(
    profile=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=24).filter(lambda rates: max(rates) > 0.1),
    cv=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    factor=st.floats(0.01, 100.0),
    seed=st.integers(0, 99),
)
def test_a_higher_profile_is_the_same_in_less_time(profile: list[float], cv: float, factor: float, seed: int) -> None:
    rates = np.array(profile)
    slow, fast = (diurnal_arrivals(50, one, cv, seed) for one in (rates, factor * rates))
    np.testing.assert_allclose(slow, factor * fast, rtol=1e-9)
    assert slow[-1] <= 50 * rates.size / rates.sum() * (1 + 1e-9)
    assert np.all(np.diff(slow) >= 0)


def test_drawn_lengths_keep_their_means() -> None:
    isl, osl, bucket = draw_lengths(np.array([100.3, 900.0]), np.array([10.0, 50.5]), np.array([0.75, 0.25]), 40_000)
    assert isl.mean() == pytest.approx(0.75 * 100.3 + 0.25 * 900, rel=0.02)
    assert osl.mean() == pytest.approx(0.75 * 10 + 0.25 * 50.5, rel=0.02)
    assert set(bucket.tolist()) == {0, 1}


def test_percentiles_count_the_unfinished_as_never() -> None:
    assert percentiles(np.array([1.0, 2.0, 3.0, np.nan]), (0.5, 1.0)) == (2.5, np.inf)
    assert percentiles(np.arange(101.0), (0.5, 0.9, 0.99)) == (50.0, 90.0, 99.0)


def test_attainment_counts_the_steady_part_and_knows_its_error() -> None:
    count = 2000
    trace = make_trace(gamma_arrivals(count, 4.0), np.full(count, 100), np.full(count, 20))
    result = simulate(trace, colocated(VLLM_V1))
    goals = {}, limits_of(ttft=float(np.median(result.ttft)))
    everything, half = (share_of([within(result, limits)[steady(result)]]) for limits in goals)
    assert (everything.share, everything.high, everything.count) == (1.0, 1.0, 1800)
    assert 0.99 < everything.low < 1.0
    assert half.low < half.share < half.high
    assert half.share == pytest.approx(0.5, abs=0.05)
    assert not within(result, limits_of(tpot=1e-9)).any()
    assert share_of([np.zeros(0)]) == Attainment(1.0, 0.0, 1.0, 0)
    together = share_of([np.ones(3000), np.zeros(1000)])
    assert (together.share, together.count) == (0.75, 4000)


@pytest.mark.parametrize(("rate", "expected"), [(3.0, False), (40.0, True)])
def test_overload_is_named(rate: float, expected: bool) -> None:
    count = 1500
    trace = make_trace(gamma_arrivals(count, rate), np.full(count, 200), np.full(count, 40))
    found = overload([simulate(trace, colocated(VLLM_V1, limits=Limits(max_num_seqs=8)))])
    assert found.overloaded is expected
    if expected:
        assert found.where == "queue"
        assert found.growth > 0.2


def test_loads_and_throughput_add_up() -> None:
    count = 300
    trace = make_trace(gamma_arrivals(count, 5.0), np.full(count, 100), np.full(count, 10))
    fleet = colocated(VLLM_V1, limits=Limits(kv_blocks=500))
    result = simulate(trace, fleet, fast_forward=False, log_rows=100_000)
    requests, tokens = throughput(result)
    assert tokens == pytest.approx(10 * requests)
    span = float(np.nanmax(result.finish)) - result.arrival[0]
    utilization, mfu, mbu, kv_occupancy = result.engines[0].shares(fleet[0], span)
    log = result.steps_log
    assert utilization == pytest.approx(float((log[:, 2] - log[:, 1]).sum()) / span)
    assert run_span(result) == span
    assert (mfu, mbu) == (0.0, 0.0)  # these step times come without a roofline
    assert 0 < kv_occupancy < 0.5
    assert result.steps == len(log)


def test_what_is_served_leaves_out_filling_and_emptying() -> None:
    count = 200
    trace = make_trace(gamma_arrivals(count, 5.0, 0.0), np.full(count, 100), np.full(count, 300))
    result = simulate(trace, colocated(VLLM_V1))
    assert throughput(result)[0] < 4.9
    requests, tokens = steady_throughput(result)
    assert requests == pytest.approx(5.0, rel=0.005)
    assert tokens == pytest.approx(300 * requests)
    together = make_trace(np.zeros(3), np.full(3, 10), np.full(3, 5))
    at_once = simulate(together, colocated(VLLM_V1))
    assert steady_throughput(at_once) == throughput(at_once)


def test_the_grid_follows_the_cost_model() -> None:
    """Largest error of a step within 1 %, mean within 0.2 %, on operating points between the nodes."""
    model, host, config = llama_8b(), load_serving_policy("vllm").overhead, engine(Parallelism(tensor=2))
    steps = cost_steps(model, config, host)
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(120):
        new, past = int(rng.integers(1, 1024)), int(rng.integers(0, 7000))
        batch, context = int(rng.integers(1, 65)), int(rng.integers(1, 8000))
        mixed = step_time_one(model, config, host, StepLoad.of(1, new, past, batch, context)).total[0, 0]
        decode = step_time_one(model, config, host, StepLoad.decode(batch, context)).total[0, 0]
        errors.append(step_seconds(steps, [new], [past], batch, batch * context) / mixed - 1)
        errors.append(step_seconds(steps, (), None, batch, batch * context) / decode - 1)
    assert np.abs(errors).max() < 0.01
    assert np.abs(errors).mean() < 0.002


# --- work of engines: sums equal in closed form and step by step, floors that hold, the bound against the cost model


def test_the_work_of_a_run_by_hand() -> None:
    """A prompt of 10 in chunks of 6 and 4, then decode steps that find 11 and 12 tokens."""
    trace = make_trace(np.zeros(1), np.array([10]), np.array([3]))
    result = simulate(trace, colocated(VLLM_V1, WORKING, Limits(max_num_seqs=6, max_num_batched_tokens=6)))
    (use,) = result.engines
    pairs, reach, context = 21 + (4 * 6 + 10), 6 + 10, 11 + 12
    assert least_flop(use.work, use.content) == 3 * (10 + 2) + 5 * 4 + 7 * pairs + 11 * 2 + 13 * context
    bytes_ = 17 * 4 + 19 * (5 + 4 + 1 + 1) + 23 * 12 + 29 * 4 + 31 * reach + 37 * 2 + 41 * context
    assert least_bytes(use.work, use.content) == bytes_
    assert (use.content.tokens, use.content.decodes) == (12, 2)
    assert (use.work.peak, use.work.bandwidth) == (1e15, 1e13)
    assert use.busy == pytest.approx(result.finish[0])
    chunks = step_seconds(WORKING, [6]) + step_seconds(WORKING, [4], [6])
    decodes = sum(step_seconds(WORKING, (), None, 1, context) for context in (11, 12))
    assert use.kv_block_seconds == pytest.approx(chunks + decodes)


class Slow(CoefficientSteps):
    """A roofline that its times do not keep to: 1 FLOP/s."""

    __slots__ = ()

    def numbers(self) -> StepNumbers:
        return replace(super().numbers(), work=StepWork(peak=1.0, bandwidth=1.0, context_flop=1e-3))


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_step_below_its_floor_is_named(fast_forward: bool) -> None:
    """Decode steps of 10 ms hold 8, 9, ... tokens of 1 ms each: those that find 11 and 12 are too fast."""
    steps = Slow((0.1, 0.0, 0.0), (0.01, 0.0, 0.0))
    trace = make_trace(np.zeros(1), np.array([7]), np.array([6]))
    with pytest.raises(PdplanError, match=r"the first, on engine 0 at 0.1\d+ s, takes 0.01 s where 0.01") as caught:
        simulate(trace, colocated(VLLM_V1, steps), fast_forward=fast_forward)
    if not fast_forward:
        assert "2 steps are faster" in str(caught.value)
        assert "at 0.130000 s" in str(caught.value)


def engine(parallelism: Parallelism, seqs: int = 64) -> EngineConfig:
    return EngineConfig(
        accelerator("H100"), Role.COLOCATED, parallelism, "bf16", "bf16", seqs, 1024, 8192, load_engine_memory("vllm")
    )


@pytest.mark.parametrize("parallelism", [Parallelism(tensor=2), Parallelism(tensor=2, pipeline=2), Parallelism(data=2)])
def test_the_bound_is_the_cost_model_where_that_is_linear(parallelism: Parallelism) -> None:
    """A dense model with full attention: within rounding in FLOP, and in traffic but for a prompt's queries."""
    model, config = llama_8b(), engine(parallelism)
    work = cost_steps(model, config, NO_OVERHEAD).numbers().work
    arrays = engine_arrays(model, [config], NO_OVERHEAD)
    ranks = parallelism.data
    for new, past, batch, context in ((512, 0, 0, 0), (300, 2000, 16, 700), (0, 0, 64, 4000)):
        prompts = ranks if new else 0
        time = step_time(model, arrays, StepLoad.of(prompts, new, past, batch, context))
        tokens, pairs = prompts * new + batch, prompts * (new * past + new * (new + 1) // 2)
        rows, reach = prompts + batch, prompts * (new + past)
        content = StepContent(1, tokens, min(tokens, work.knee), rows, pairs, reach, batch, batch * context)
        gpus = parallelism.tensor * ranks
        assert least_flop(work, content) == pytest.approx(gpus * time.flop[0, 0], rel=1e-9)
        assert least_bytes(work, content) == pytest.approx(gpus * time.traffic[0, 0], rel=0.02)
        assert least_bytes(work, content) <= gpus * time.traffic[0, 0] * (1 + 1e-9)
    assert work.peak == pytest.approx(gpus * 989e12)
    assert work.bandwidth == pytest.approx(gpus * 3.35e12)


def test_layers_with_a_tail_have_steps_and_a_bound_of_their_own() -> None:
    """DeepSeek-V4.1: a chunk passes them with its last tokens alone, decodes do with all."""
    model, host = catalog_model("DeepSeek-V4.1-Flash"), load_serving_policy("vllm").overhead
    config = replace(engine(Parallelism(tensor=8), seqs=256), max_num_batched_tokens=8192, weight_dtype="fp8")
    config = replace(config, accelerator=accelerator("H200"))
    steps = cost_steps(model, config, host)
    prompts = (8000, 0, 0, 0), (1000, 3000, 0, 0), (100, 0, 0, 0)
    for new, past, batch, context in (*prompts, (0, 0, 250, 700), (4000, 0, 64, 900)):
        time = step_time_one(model, config, host, StepLoad.of(bool(new), new, past, batch, context))
        chunks = ([new], [past]) if new else ((), None)
        assert step_seconds(steps, *chunks, batch, batch * context) == pytest.approx(time.total[0, 0], rel=0.01)
        tokens, rows, pairs = new + batch, bool(new) + batch, new * past + new * (new + 1) // 2
        knee = min(tokens, steps.work.knee)
        content = StepContent(1, tokens, knee, rows, pairs, new + past, batch, batch * context)
        for least, most in ((least_flop, time.flop), (least_bytes, time.traffic)):
            assert 0.5 * 8 * most[0, 0] < least(steps.work, content) <= 8 * most[0, 0] * (1 + 1e-9), (new, batch)


@pytest.mark.parametrize("parallelism", [Parallelism(tensor=2), Parallelism(tensor=2, pipeline=2), Parallelism(data=2)])
def test_no_optimism_is_faster_than_physics(parallelism: Parallelism) -> None:
    """At a tenth of the expected times every part keeps its floor, so a run does too; a factor above one is exact."""
    steps = cost_steps(llama_8b(), engine(parallelism, seqs=24), NO_OVERHEAD)
    limits = Limits(max_num_seqs=24, max_num_batched_tokens=1024, kv_blocks=4000, block_size=16)
    fast = colocated(VLLM_V1, steps.scaled(0.1), limits)
    result = simulate(make_trace(np.arange(40.0) * 1e-3, np.full(40, 900), np.full(40, 300)), fast)
    assert result.finished.all()
    slow = steps.scaled(1.5)
    for name in ("token_times", "decode_attention", "pair_times"):
        assert np.array_equal(getattr(slow, name), 1.5 * getattr(steps, name)), name
    broken = colocated(VLLM_V1, replace(steps, token_times=0.1 * steps.token_times), limits)
    with pytest.raises(PdplanError, match="faster than their FLOP"):
        simulate(make_trace(np.zeros(1), np.array([900]), np.array([9])), broken)


# --- the simulator against queueing theory: mean waits within the run's own confidence interval
#
# c slots of a decode engine whose step time does not depend on the batch are c servers.

COUNT = 30_000
MEAN = 0.1
"""Mean service time [s]."""


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_slots_are_m_m_c(servers: int) -> None:
    """Geometric outputs in steps of fixed time: memoryless but for the grid, on which a request waits half a step.

    The same arrivals through an exact queue of c servers (each request takes the server that is free first) wait as
    long to within that step, request by request; so what is left between the mean and Erlang's is chance.
    """
    load, step = 0.8, 1e-3
    osl = np.random.default_rng([servers, 4, 3]).geometric(step / MEAN, COUNT)
    arrival = gamma_arrivals(COUNT, load * servers / MEAN, seed=54)
    trace = make_trace(arrival, np.ones(COUNT, dtype=np.int64), osl)
    fleet = colocated(
        SARATHI, CoefficientSteps((step, 0.0, 0.0), (step, 0.0, 0.0)), Limits(servers, max_num_batched_tokens=64)
    )
    result = simulate(trace, fleet)
    waits = float(erlang_c(servers, load)) * MEAN / (servers * (1 - load))
    settled = result.queue[COUNT // 20 :]
    low, high = batch_ends([settled], float(settled.mean()), TAIL)
    assert abs(settled.mean() - waits) <= (high - low) / 2.0 + step
    free, exact = [0.0] * servers, []
    for time, tokens in zip(arrival.tolist(), osl.tolist(), strict=True):
        begin = max(time, heapq.heappop(free))
        exact.append(begin - time)
        heapq.heappush(free, begin + tokens * step)
    assert 0.0 <= float((result.queue - np.array(exact)).mean()) <= step


# --- the compiled loop: the same bytes as in plain Python, and kept until its sources change

SCRIPT = """
import hashlib
from tests.simulator_cases import random_fleet, random_trace
from benchmarks.reference.policies import POLICIES
from costmodel.simulator.run import simulate

digest = hashlib.sha256()
for seed, policy in enumerate(POLICIES.values()):
    for disaggregated in (False, True):
        paged = seed % 2 == 1 and not policy.static
        trace, fleet = random_trace(seed, 6, paged=paged), random_fleet(seed, policy, disaggregated, paged=paged)
        result = simulate(trace, fleet, log_rows=500)
        for name in ("first", "finish", "itl_max", "restarts", "engine", "hit", "steps_log"):
            digest.update(getattr(result, name).tobytes())
        digest.update(repr((result.engines, result.events)).encode())
print(digest.hexdigest())
"""


def test_compiled_and_plain_loops_give_the_same_bytes(root: Path) -> None:
    digests = set()
    for disabled in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disabled}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_numba_loads_with_the_first_run_only_and_from_one_module(root: Path) -> None:
    """It takes half a second, which commands that simulate nothing are spared."""
    script = "import sys, costmodel.simulator, optimizer.recommend.optimize; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)
    rooms = ("costmodel", "optimizer", "search_spaces", "reports", "pdplan")
    sources = [path for room in rooms for path in root.glob(f"{room}/**/*.py")]
    assert {path.name for path in sources if "import numba" in path.read_text("utf-8")} == {"compiled.py"}


def twice(world: object, number: float) -> float:
    return 2.0 * number


def test_what_is_compiled_is_kept_until_a_source_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    world = {"rules": records.records(records.Rules, 1, {})}
    entry = compiled.entry(twice)
    assert not compiled.is_kept(entry)
    assert entry(world, 4.0) == 8.0
    assert compiled.is_kept(entry)
    assert compiled.is_kept(compiled.entry(twice))
    monkeypatch.setattr(compiled, "sources_digest", lambda: "other sources")
    assert not compiled.is_kept(compiled.entry(twice))
