"""Work of engines: sums equal in closed form and step by step, floors that hold, the bound against the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.optimizer_cases import accelerator
from tests.simulator_cases import WORKING, colocated
from tests.toy import llama_8b

# isort: split
from costmodel.engine import EngineConfig, Parallelism, Role
from costmodel.engine_arrays import engine_arrays
from costmodel.errors import PdplanError
from costmodel.host import NO_OVERHEAD
from costmodel.policy import VLLM_V1
from costmodel.simulator import CoefficientSteps, Limits, StepNumbers, StepWork, make_trace, simulate, step_seconds
from costmodel.simulator.steps import StepContent, cost_steps, least_bytes, least_flop
from costmodel.step import StepLoad, step_time
from search_spaces.engines import load_engine_memory


def test_the_work_of_a_run_by_hand() -> None:
    """A prompt of 10 in chunks of 6 and 4, then decode steps that find 11 and 12 tokens."""
    trace = make_trace(np.zeros(1), np.array([10]), np.array([3]))
    result = simulate(trace, colocated(VLLM_V1, WORKING, Limits(max_num_seqs=6, max_num_batched_tokens=6)))
    (use,) = result.engines
    pairs, reach, context = 21 + (4 * 6 + 10), 6 + 10, 11 + 12
    assert use.flop == 3 * (10 + 2) + 5 * 4 + 7 * pairs + 11 * 2 + 13 * context
    bytes_ = 17 * 4 + 19 * (5 + 4 + 1 + 1) + 23 * 12 + 29 * 4 + 31 * reach + 37 * 2 + 41 * context
    assert use.hbm_bytes == bytes_
    assert (use.prompt_tokens, use.output_tokens) == (10, 3)
    assert (use.peak_flops, use.hbm_bandwidth) == (1e15, 1e13)
    assert use.busy == pytest.approx(result.finish[0])
    chunks, decodes = (
        [step_seconds(WORKING, [6]), step_seconds(WORKING, [4], [6])],
        [step_seconds(WORKING, (), None, 1, 11), step_seconds(WORKING, (), None, 1, 12)],
    )
    assert use.kv_block_seconds == pytest.approx(sum(chunks) + sum(decodes))


def test_blocks_are_integrated_as_they_grow() -> None:
    """31 tokens of prompt and two blocks; the third one is taken by the decode step that finds 33 tokens."""
    trace = make_trace(np.zeros(1), np.array([31]), np.array([50]))
    flat = CoefficientSteps((0.1, 0.0, 0.0), (0.01, 0.0, 0.0))
    (use,) = simulate(trace, colocated(VLLM_V1, flat)).engines
    held = [-(-(32 + k) // 16) for k in range(49)]
    assert use.kv_block_seconds == pytest.approx(2 * 0.1 + 0.01 * sum(held))


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
        content = StepContent(
            1, tokens, min(tokens, work.knee), prompts + batch, pairs, prompts * (new + past), batch, batch * context
        )
        gpus = parallelism.tensor * ranks
        assert least_flop(work, content) == pytest.approx(gpus * time.flop[0, 0], rel=1e-9)
        assert least_bytes(work, content) == pytest.approx(gpus * time.traffic[0, 0], rel=0.02)
        assert least_bytes(work, content) <= gpus * time.traffic[0, 0] * (1 + 1e-9)
    assert work.peak == pytest.approx(gpus * 989e12)
    assert work.bandwidth == pytest.approx(gpus * 3.35e12)


@pytest.mark.parametrize("parallelism", [Parallelism(tensor=2), Parallelism(tensor=2, pipeline=2), Parallelism(data=2)])
def test_no_optimism_is_faster_than_physics(parallelism: Parallelism) -> None:
    """At a tenth of the expected times every part keeps its floor, so a run does too; a factor above one is exact."""
    steps = cost_steps(llama_8b(), engine(parallelism, seqs=24), NO_OVERHEAD)
    limits = Limits(max_num_seqs=24, max_num_batched_tokens=1024, kv_blocks=4000, block_size=16)
    fast = colocated(VLLM_V1, steps.scaled(0.1), limits)
    result = simulate(make_trace(np.arange(40.0) * 1e-3, np.full(40, 900), np.full(40, 300)), fast)
    assert result.finished.all()
    slow = steps.scaled(1.5)
    assert np.array_equal(slow.token_times, 1.5 * steps.token_times)
    assert np.array_equal(slow.decode_attention, 1.5 * steps.decode_attention)
    assert np.array_equal(slow.pair_times, 1.5 * steps.pair_times)
    with pytest.raises(PdplanError, match="faster than their FLOP"):
        simulate(
            make_trace(np.zeros(1), np.array([900]), np.array([9])),
            colocated(VLLM_V1, replace(steps, token_times=0.1 * steps.token_times), limits),
        )
