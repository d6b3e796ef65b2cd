"""`estimate`: one engine in numbers, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.accelerator import Link, Origin
from costmodel.engine import Role
from costmodel.engine_arrays import engine_arrays
from costmodel.estimate import Estimate, estimate
from costmodel.step import StepLoad, step_time, step_time_one
from costmodel.units import GIGA
from search_spaces.catalog import load_catalog
from search_spaces.models import load_model
from tests.toy import OVERHEAD, deepseek_v3, llama_8b, llama_70b, toy_accelerator, toy_config


def test_estimate_adds_up_and_names_what_binds() -> None:
    config = toy_config(tensor=4, max_num_seqs=64)
    result = estimate(llama_70b(), config, OVERHEAD, 1000, 200)
    assert result.max_batch == result.batch == 64
    for step in (result.prefill, result.decode):
        assert sum(step.split.values()) == pytest.approx(step.time)
        assert 0 < step.mfu < 1
        assert 0 < step.mbu < 1
    assert result.prefill.bound_by == "compute"
    assert result.prefill.arithmetic_intensity > result.ridge_point
    assert result.decode.bound_by == result.binds == "bandwidth"
    assert result.decode.arithmetic_intensity < result.ridge_point
    assert result.kv_bytes_per_token == 327680
    assert ("all_reduce", "bf16") in result.efficiencies
    assert result.origins == (Origin.ASSUMED,)
    assert estimate(llama_70b(), toy_config(tensor=2), OVERHEAD, 2000, 200).binds == "memory"


def test_estimate_names_network_and_host() -> None:
    slow_link = toy_accelerator(scale_up=Link(5 * GIGA, 5e-6))
    assert estimate(llama_70b(), toy_config(slow_link, tensor=8), OVERHEAD, 4000, 200).prefill.bound_by == "network"
    slow_host = replace(OVERHEAD, step=0.5)
    assert estimate(llama_8b(), toy_config(), slow_host, 100, 100, batch=1).decode.bound_by == "host"


# --- `pdplan estimate` and the model under it: a role shows what it does and nothing else


def of(role: Role, isl: float = 2000, osl: float = 201, **changes: Any) -> Estimate:
    return estimate(llama_8b(), toy_config(role=role), OVERHEAD, isl, osl, **changes)


@pytest.mark.parametrize("chain", ["L4 L40S RTX-PRO-6000 H100 H200 B200 B300", "A100-80 H100", "MI300X MI325X MI355X"])
@pytest.mark.parametrize("name", ["DeepSeek-V3", "Qwen3-30B-A3B", "gpt-oss-120b", "Mixtral-8x7B", "Llama-3.1-8B"])
def test_a_gpu_that_is_better_in_every_figure_is_no_slower(chain: str, name: str) -> None:
    model = load_model(name)
    configs = [toy_config(load_catalog().accelerator(gpu), tensor=8) for gpu in chain.split()]
    engines = engine_arrays(model, [replace(c, weight_dtype=model.native_weight_dtype) for c in configs], OVERHEAD)
    for load in (*(StepLoad.decode(batch, 2048) for batch in (1, 8, 64)), StepLoad.prefill(8192)):
        seconds = step_time(model, engines, load).total[:, 0]
        assert (seconds[1:] <= 1.05 * seconds[:-1]).all(), dict(zip(chain.split(), seconds, strict=True))


def test_a_role_does_its_own_stage_and_a_colocated_engine_pays_both() -> None:
    """Decodes make all tokens but the first; a prefill engine holds prompts, however long the answers."""
    prefill, decode = of(Role.PREFILL, isl=5000), of(Role.DECODE, batch=50)
    both = of(Role.COLOCATED, isl=5000, batch=50)
    assert (prefill.decode, prefill.batch, decode.prefill) == (None, None, None)
    assert prefill.requests_per_second == pytest.approx(1 / prefill.prefill.time)
    assert prefill.binds == prefill.prefill.bound_by == "compute"
    assert prefill.max_batch == of(Role.PREFILL, isl=5000, osl=1).max_batch
    assert decode.requests_per_second == pytest.approx(50 / (200 * decode.decode.time))
    assert 1 / both.requests_per_second == pytest.approx(both.prefill.time + 200 * both.decode.time / 50)


def test_stages_share_prompts() -> None:
    """Prompts leave at stages / latency."""
    found = estimate(llama_8b(), toy_config(role=Role.PREFILL, pipeline=2), OVERHEAD, 5000, 200)
    assert found.requests_per_second == pytest.approx(2.0 / found.prefill.time)


def test_short_prompts_share_a_step() -> None:
    """Eight prompts of 1,000 tokens fit in the budget of 8,192."""
    config = toy_config(role=Role.PREFILL, max_num_batched_tokens=8192)
    step = step_time(llama_8b(), engine_arrays(llama_8b(), [config], OVERHEAD), StepLoad.prefill(1000, 8))
    found = estimate(llama_8b(), config, OVERHEAD, 1000, 1)
    assert found.requests_per_second == pytest.approx(8.0 / step.total[0, 0])


def test_data_ranks_step_together() -> None:
    """Eight prompts in the time of a step with one on every rank, which is longer than that of a prompt alone."""
    roomy = toy_accelerator(memory=1e12)
    config = toy_config(roomy, role=Role.PREFILL, data=8, expert=8, max_num_batched_tokens=8 * 4096)
    found = estimate(deepseek_v3(), config, OVERHEAD, 4096, 200)
    step = step_time_one(deepseek_v3(), config, OVERHEAD, StepLoad.prefill(4096, 8)).total[0, 0]
    assert step > 1.5 * found.prefill.time
    assert found.requests_per_second == pytest.approx(8.0 / step)
    chunked = replace(config, max_num_batched_tokens=8 * 1024)
    steps = 4.0 * step_time_one(deepseek_v3(), config, OVERHEAD, StepLoad.prefill(1024, 8, 1536)).total[0, 0]
    assert estimate(deepseek_v3(), chunked, OVERHEAD, 4096, 200).requests_per_second == pytest.approx(8.0 / steps)
