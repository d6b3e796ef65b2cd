"""The engine step: fitted efficiency curves, the precision that computes, and the host's time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator import KernelEfficiency, Link, Origin
from costmodel.engine_arrays import EXPANDING, Conditions, compute_dtype, engine_arrays, kernel_efficiency
from costmodel.errors import InputError
from costmodel.host import NO_OVERHEAD, host_time
from costmodel.kernels import (
    CONVERTED_OUTSIDE,
    ELEMENTWISE_LAUNCH,
    ELEMENTWISE_SHARE,
    ROTARY_LAUNCH,
    all_reduce_time,
)
from costmodel.step import StepLoad, step_time, step_time_one
from costmodel.transformer import Transformer
from costmodel.units import TERA
from search_spaces.catalog import load_catalog
from tests.step_cases import loads, models
from tests.toy import (
    OVERHEAD,
    deepseek_v3,
    llama_8b,
    llama_70b,
    mixtral,
    perfect_accelerator,
    toy_a100,
    toy_accelerator,
    toy_config,
    toy_efficiency,
)


def curved(**figures: float) -> KernelEfficiency:
    return KernelEfficiency(1.0, 1.0, 0.0, Origin.ASSUMED, "toy", float("nan"), **figures)


def test_a_curved_gemm_by_hand() -> None:
    """Llama-3.1-8B's output projection and friends: (M n + h) (k + d) multiply-adds, and c bytes per input element."""
    shape = {"compute_half": 5e5, "depth_half": 200.0, "cast": 8.0}
    gpu = perfect_accelerator(efficiency=toy_efficiency(1, 1, 0) | {("gemm", "bf16"): curved(**shape)})
    tokens = 4096
    step = step_time_one(llama_8b(), toy_config(gpu), NO_OVERHEAD, StepLoad.prefill(tokens))
    expected = 0.0
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
        arithmetic = 2 * (tokens * n + 5e5) * (k + 200) / gpu.peak_flops["bf16"]
        expected += 32 * (arithmetic + 8 * tokens * k / gpu.bandwidth)
    head = 2 * (128256 * 4096 + 4096 + 128256) / gpu.bandwidth + 8 * 4096 / gpu.bandwidth
    small = 32 * 3 * ELEMENTWISE_LAUNCH + 32 * 2 * tokens * (8 * 4096 + 3 * 14336) / (ELEMENTWISE_SHARE * gpu.bandwidth)
    assert step.gemm[0, 0] == pytest.approx(expected + head + small, rel=1e-9)


@pytest.mark.parametrize(("dtype", "share"), [("bf16", 1.0), ("fp8", CONVERTED_OUTSIDE)])
def test_narrow_experts_convert_less_of_their_inputs_and_outputs(dtype: str, share: float) -> None:
    """Mixtral over two ranks: c bytes for each of 3 x 14336 / 2 elements between the matrices and 2 x 4096 outside."""
    flat = toy_efficiency(1, 1, 0)
    casting, plain = (
        perfect_accelerator(efficiency=flat | {("moe", dtype): curved(**figures)}) for figures in ({"cast": 8.0}, {})
    )
    with_cast, without = (
        step_time_one(
            mixtral(), toy_config(gpu, tensor=2, weight_dtype=dtype), NO_OVERHEAD, StepLoad.prefill(4096)
        ).experts[0, 0]
        for gpu in (casting, plain)
    )
    elements = 2 * 4096 * (share * 2 * 4096 + 3 * 14336 / 2)
    assert with_cast - without == pytest.approx(32 * 8 * elements / plain.bandwidth)


def test_short_prompts_on_few_heads_fill_the_gpu_badly() -> None:
    shape = {"compute_half": 1000.0, "depth_half": 64.0, "fill_half": 1e4}
    gpu = perfect_accelerator(efficiency=toy_efficiency(1, 1, 0) | {("attention_prefill", "bf16"): curved(**shape)})
    step = step_time_one(llama_8b(), toy_config(gpu, tensor=8), NO_OVERHEAD, StepLoad.prefill(1000))
    flop = 1000 * 1001 / 2 * 4 * 4096 / 8
    slowed = flop * (1 + 1000 / 1000) * (1 + 1e4 / (1000 * 4)) * (1 + 64 / 128)
    assert step.attention_prefill[0, 0] == pytest.approx(32 * (slowed / gpu.peak_flops["bf16"] + ROTARY_LAUNCH))


def test_a_cuda_graph_hides_what_the_host_adds() -> None:
    figures = {"latent_decode": curved(eager=7e-5), "gemm": curved(floor=6e-5)}
    named = {(name, dtype): one for name, one in figures.items() for dtype in ("bf16", "fp8")}
    gpu = perfect_accelerator(efficiency=toy_efficiency(1, 1, 0) | named)
    config, model, load = toy_config(gpu, tensor=8), deepseek_v3(), StepLoad.decode(1, 10)
    graphed, eager = (
        step_time(model, engine_arrays(model, [config], NO_OVERHEAD, Conditions(graphs=graphs)), load)
        for graphs in (True, False)
    )
    layers = model.num_layers
    assert eager.attention_decode[0, 0] - graphed.attention_decode[0, 0] == pytest.approx(layers * 7e-5)
    assert eager.gemm[0, 0] > graphed.gemm[0, 0] + layers * 4e-5


def test_the_quicker_all_reduce_runs() -> None:
    quick = KernelEfficiency(1.0, 0.5, 5e-6, Origin.ASSUMED, "toy", float("nan"))
    broad = KernelEfficiency(1.0, 0.8, 30e-6, Origin.ASSUMED, "toy", float("nan"))
    more = {("all_reduce", "bf16"): quick, ("all_reduce_large", "bf16"): broad}
    gpu = toy_accelerator(efficiency=toy_efficiency() | more)
    arrays = engine_arrays(llama_8b(), [toy_config(gpu, tensor=2)], NO_OVERHEAD)
    times = all_reduce_time(arrays, np.array([[1e5, 1e9]]))[0]
    assert times == pytest.approx([1e5 / (0.5 * 450e9) + 5e-6, 1e9 / (0.8 * 450e9) + 30e-6])


def test_more_than_a_pair_share_a_link_in_the_host() -> None:
    one = KernelEfficiency(1.0, 0.6, 0.0, Origin.ASSUMED, "toy", float("nan"), shared=0.5)
    more = {("all_reduce", "bf16"): one, ("all_reduce_large", "bf16"): one}
    gpu = toy_accelerator(scale_up=Link(32e9, 5e-6), efficiency=toy_efficiency() | more)
    arrays = engine_arrays(llama_8b(), [toy_config(gpu, tensor=t) for t in (2, 4, 8)], NO_OVERHEAD)
    ideal = [2 * (n - 1) / n * 1e9 / 32e9 for n in (2, 4, 8)]
    assert all_reduce_time(arrays, np.array([[1e9]]))[:, 0] == pytest.approx(
        [ideal[0] / 0.6, ideal[1] / (0.5 / 4), ideal[2] / (0.5 / 8)]
    )


def test_named_fp8_kernels_are_used_only_where_asked_for() -> None:
    named = {("gemm", "fp8_block"): curved(cast=100.0)}
    gpu = perfect_accelerator(efficiency=toy_efficiency(1, 1, 0) | named)
    config, load = toy_config(gpu, weight_dtype="fp8"), StepLoad.prefill(4096)
    plain, block = (
        step_time(llama_8b(), engine_arrays(llama_8b(), [config], NO_OVERHEAD, Conditions(fp8_kernels=name)), load)
        for name in ("fp8", "fp8_block")
    )
    assert block.gemm[0, 0] > plain.gemm[0, 0]


@given(
    model=models,
    name=st.sampled_from(["A100-80", "H100", "B200", "L40S", "MI300X"]),
    dtype=st.sampled_from(["bf16", "fp8", "int4"]),
    tensor=st.sampled_from([1, 2, 8]),
    expert=st.booleans(),
    load=loads(),
)
@settings(deadline=None, max_examples=100)
def test_fitted_curves_never_beat_the_roofline_and_more_work_never_helps(
    model: Transformer, name: str, dtype: str, tensor: int, expert: bool, load: StepLoad
) -> None:
    gpu = load_catalog().accelerator(name)
    config = toy_config(gpu, weight_dtype=dtype, tensor=tensor, expert=tensor if expert else 1)
    step = step_time_one(model, config, NO_OVERHEAD, load)
    floor = max(step.flop[0, 0] / max(gpu.peak_flops.values()), step.traffic[0, 0] / gpu.bandwidth)
    assert step.total[0, 0] >= floor * (1 - 1e-12)
    for change in (
        {"prefill_tokens": load.prefill_tokens + 100},
        {"prefill_requests": load.prefill_requests + 1},
        {"decode_requests": load.decode_requests + 1},
        {"decode_context": load.decode_context + 100},
    ):
        more = step_time_one(model, config, NO_OVERHEAD, replace(load, **change))
        assert more.total[0, 0] >= step.total[0, 0] * (1 - 1e-9), change


@pytest.mark.parametrize(
    ("weights", "on_h100", "on_a100"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "fp8", "bf16"),
        ("int8", "int8", "int8"),
        ("int4", "bf16", "bf16"),
        ("fp4", "bf16", "bf16"),
    ],
)
def test_compute_dtype(weights: str, on_h100: str, on_a100: str) -> None:
    assert compute_dtype(weights, toy_accelerator()) == on_h100
    assert compute_dtype(weights, toy_a100()) == on_a100
    blackwell = toy_accelerator(peak_flops={"bf16": 2250 * TERA, "fp8": 4500 * TERA, "fp4": 9000 * TERA})
    assert compute_dtype("fp4", blackwell) == "fp4"


def test_fp8_weights_halve_decode_bytes_and_prefill_time_where_units_exist() -> None:
    decode, prompt = StepLoad.decode(1, 100), StepLoad.prefill(8192)
    for gpu, speedup in ((perfect_accelerator(), 2.0), (toy_a100(efficiency=toy_efficiency(1, 1, 0)), EXPANDING)):
        wide, narrow = toy_config(gpu), toy_config(gpu, weight_dtype="fp8")
        gemm = [step_time_one(llama_70b(), config, NO_OVERHEAD, prompt).gemm[0, 0] for config in (wide, narrow)]
        assert gemm[0] / gemm[1] == pytest.approx(speedup, rel=0.12)
        traffic = [step_time_one(llama_70b(), config, NO_OVERHEAD, decode).traffic[0, 0] for config in (wide, narrow)]
        assert traffic[0] / traffic[1] == pytest.approx(2.0, rel=0.03)


def test_efficiency_falls_back_to_kin_and_says_when_there_is_none() -> None:
    bare = KernelEfficiency(0.5, 0.5, 1e-6, Origin.ASSUMED, "toy", float("nan"))
    gpu = toy_accelerator(efficiency={("gemm", "bf16"): bare})
    assert kernel_efficiency(gpu, "moe", "fp8") is bare
    with pytest.raises(InputError, match=r"'H100' has no efficiency for 'all_reduce' in 'bf16' or 'bf16'"):
        kernel_efficiency(gpu, "all_reduce", "bf16")


def test_host_time_is_per_step_and_per_request() -> None:
    step = step_time_one(llama_8b(), toy_config(), OVERHEAD, StepLoad.of(2, 100, 0, 30, 500))
    assert step.host[0, 0] == pytest.approx(host_time(OVERHEAD, 32))


@pytest.mark.parametrize(("requests", "data", "busiest"), [(512, 1, 512), (512, 8, 64), (8192, 32, 256), (3, 8, 1)])
def test_the_host_of_a_data_rank_deals_with_its_own_requests(requests: int, data: int, busiest: int) -> None:
    step = step_time_one(deepseek_v3(), toy_config(data=data, expert=data), OVERHEAD, StepLoad.decode(requests, 1000))
    assert step.host[0, 0] == pytest.approx(host_time(OVERHEAD, busiest))
