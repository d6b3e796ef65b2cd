"""The engine step: values checked by hand, and the properties that physics demands."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator import InEngine, KernelEfficiency, Link, Origin
from costmodel.attention import Part
from costmodel.engine import NO_OVERHEAD, EngineConfig, Role
from costmodel.engine_arrays import (
    DISPATCHED,
    MARLIN_MXFP4,
    SERVING,
    TABLE_SKEW,
    TABLES,
    Conditions,
    compute_dtype,
    engine_arrays,
    kernels_of,
)
from costmodel.kernels import (
    CONVERTED_OUTSIDE,
    ELEMENTWISE_LAUNCH,
    ELEMENTWISE_SHARE,
    ROTARY_LAUNCH,
    all_reduce_time,
    all_to_all_time,
    attended_pairs,
    prefill_attention_work,
)
from costmodel.step import StepLoad, StepTime, step_time, step_time_one
from costmodel.transformer import Transformer, WeightScale, touched_experts
from costmodel.units import TERA
from search_spaces.measured_engines import table_conditions
from search_spaces.models import catalog_model, load_model
from tests.optimizer_cases import accelerator
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
    windowed,
)

MODELS = {model.name: model for model in (llama_8b(), llama_70b(), windowed(), mixtral(), deepseek_v3())}

GPUS = [toy_accelerator(), *map(accelerator, ("A100-80", "H100", "B200", "L40S", "MI300X"))]
"""One whose figures are round, and some whose efficiency curves are fitted."""

models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
counts = st.integers(0, 300)
lengths = st.integers(1, 20_000)


@st.composite
def loads(draw: st.DrawFn) -> StepLoad:
    prompts, decodes = draw(st.integers(0, 4)), draw(counts)
    return StepLoad.of(prompts, draw(st.integers(0, 4096)), draw(st.integers(0, 9000)), decodes, draw(lengths))


PARTS = ("gemm", "attention_prefill", "attention_decode", "experts", "communication", "host")


@st.composite
def engines(draw: st.DrawFn) -> EngineConfig:
    tensor = draw(st.sampled_from([1, 2, 4, 8, 16]))
    data = draw(st.sampled_from([1, 2, 8]))
    expert = draw(st.sampled_from([1, tensor * data]))
    pipeline = draw(st.sampled_from([1, 2]))
    dtype = draw(st.sampled_from(["bf16", "fp8", "int4"]))
    kv, gpu = draw(st.sampled_from(["bf16", "fp8"])), draw(st.sampled_from(GPUS))
    return toy_config(gpu, weight_dtype=dtype, kv_dtype=kv, tensor=tensor, data=data, expert=expert, pipeline=pipeline)


def total(model: Transformer, config: EngineConfig, load: StepLoad) -> float:
    return float(step_time_one(model, config, OVERHEAD, load).total[0, 0])


def test_one_decode_by_hand() -> None:
    """Llama-3.1-8B, batch 1, context 1000, on a GPU that reaches its roofline: weights and KV once."""
    gpu = perfect_accelerator()
    step = step_time_one(llama_8b(), toy_config(gpu), NO_OVERHEAD, StepLoad.decode(1, 1000))
    weights = 2 * (llama_8b().parameters - 128256 * 4096)
    activations = 32 * 2 * ((4096 + 6144) + (4096 + 4096) + (4096 + 28672) + (14336 + 4096)) + 2 * (4096 + 128256)
    elementwise = 32 * 2 * (8 * 4096 + 3 * 14336)
    small = 32 * 3 * ELEMENTWISE_LAUNCH + elementwise / (ELEMENTWISE_SHARE * gpu.bandwidth)
    assert step.gemm[0, 0] == pytest.approx((weights + activations) / gpu.bandwidth + small, rel=1e-9)
    assert step.attention_decode[0, 0] == pytest.approx(1000 * 131072 / gpu.bandwidth, rel=1e-9)
    assert step.traffic[0, 0] == pytest.approx(weights + activations + elementwise + 1000 * 131072, rel=1e-12)
    assert step.total[0, 0] == step.gemm[0, 0] + step.attention_decode[0, 0]
    assert step.arithmetic_intensity[0, 0] == pytest.approx(1.0, rel=0.05)


def test_prompt_attention_by_hand() -> None:
    """Causal pairs of 4096 tokens x 4 x 4096 FLOP x 32 layers at the vendor's peak, and the rotary kernels before."""
    gpu = perfect_accelerator()
    step = step_time_one(llama_8b(), toy_config(gpu), NO_OVERHEAD, StepLoad.prefill(4096))
    flop = 32 * (4096 * 4097 / 2) * 4 * 4096
    assert step.attention_prefill[0, 0] == pytest.approx(flop / gpu.peak_flops["bf16"] + 32 * ROTARY_LAUNCH, rel=1e-9)
    assert step.attention_decode[0, 0] == 0


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("Llama-3.1-8B", 2 * 8 * 128 + 32 * (128 + 128)),  # keys and values; queries and outputs
        ("DeepSeek-V3", 512 + 64 + 2 * 128 * (128 + 64 + 128)),  # a latent, and what it decompresses to
        ("DeepSeek-V4-Flash", 2 * 64 * 512),  # a window, whatever the length
        ("Qwen3-Next-80B-A3B", 32 * (16 * 128 + 384 + 512) + 2 * 8192),  # passes of chunk kernels, and the convolution
    ],
)
def test_traffic_of_a_prompt_by_hand(name: str, elements: int) -> None:
    """What a token more moves in the attention of the first layer, at two bytes each."""
    model = catalog_model(name)
    attention = model.layers[0].attention
    engines = engine_arrays(model, [toy_config(perfect_accelerator())], NO_OVERHEAD)
    less, more = (prefill_attention_work(engines, attention, *map(np.array, (3.0, new, 0.0))) for new in (64.0, 65.0))
    assert (more.traffic - less.traffic)[0, 0] == pytest.approx(3.0 * 2.0 * elements)


def test_sparse_prompt_attention_by_hand() -> None:
    """A query has 2,048 latents, by tiles of 64 heads, and the indexer everything; shorter prompts are dense."""
    gpu, glm = perfect_accelerator(), catalog_model("GLM-5.2")  # 64 heads, 78 layers; 21 with an indexer of 32 heads
    selected, pairs = 2048 * 2049 / 2, 8192 * 8193 / 2
    dense = 78 * selected * 2 * 64 * (256 + 256)
    sparse = 78 * (selected + 6144 * 2048) * 2 * 64 * (2 * 512 + 64) + 21 * pairs * 2 * 32 * 128
    for tokens, ranks, flop in ((2048, 1, dense), (8192, 1, sparse), (8192, 8, sparse)):
        step = step_time_one(glm, toy_config(gpu, tensor=ranks), NO_OVERHEAD, StepLoad.prefill(tokens))
        expected = flop / gpu.peak_flops["bf16"] + 78 * ROTARY_LAUNCH
        assert step.attention_prefill[0, 0] == pytest.approx(expected, rel=1e-9)


def test_a_rank_with_few_heads_decodes_latents_as_slowly_as_one_with_a_tile() -> None:
    """Where arithmetic binds: 128 heads on one rank are two tiles, on two or eight ranks one."""
    gpu, model = perfect_accelerator(bandwidth=1e20), deepseek_v3()
    arrays = engine_arrays(model, [toy_config(gpu, tensor=t) for t in (1, 2, 8)], NO_OVERHEAD)
    times = step_time(model, arrays, StepLoad.decode(64, 8192)).attention_decode[:, 0]
    assert times == pytest.approx(times[0] * np.array([1.0, 0.5, 0.5]), rel=1e-9)


def test_all_reduce_by_hand() -> None:
    gpu = toy_accelerator(efficiency=toy_efficiency(1, 1, 4e-6))
    arrays = engine_arrays(llama_8b(), [toy_config(gpu, tensor=t) for t in (1, 8, 16)], NO_OVERHEAD)
    size = np.array([[9e6]])
    inside = 2 * 7 / 8 * 9e6 / 450e9 + 4e-6
    across = inside + 2 * 1 / 2 * (9e6 / 8) / 50e9 + 2 * 10e-6
    assert all_reduce_time(arrays, size)[:, 0] == pytest.approx([0, inside, across])


def test_all_to_all_by_hand() -> None:
    """16 data ranks in two domains: every token once to the ranks of its 8 experts, over the network to a domain."""
    gpu = toy_accelerator(efficiency=toy_efficiency(1, 1, 5e-6))
    arrays = engine_arrays(deepseek_v3(), [toy_config(gpu, data=16, expert=16)], NO_OVERHEAD)
    block = deepseek_v3().layers[1].feed_forward
    inside, across = 64 * 16 * (1 - (15 / 16) ** 8) * 7 / 8 / 450e9, 64 * (1 - (1 / 2) ** 8) / 50e9
    one_way = max(inside, across) * 7168 * 2 + 5e-6 + 10e-6
    assert all_to_all_time(arrays, block, np.array([[1024.0]]))[0, 0] == pytest.approx(2 * one_way)


def test_expert_weights_are_read_once_per_touched_expert() -> None:
    gpu = perfect_accelerator()
    step = step_time_one(mixtral(), toy_config(gpu), NO_OVERHEAD, StepLoad.decode(1, 1))
    read = 32 * (2 * 3 * 4096 * 14336 * 2 + 2 * (2 * 4096 + 3 * 14336) * 2)
    assert step.experts[0, 0] == pytest.approx(read / gpu.bandwidth, rel=1e-6)
    assert touched_experts(8, 2, np.array([0.0, 1.0, 2.0, 1e6])) == pytest.approx([0, 2, 3.5, 8])
    assert touched_experts(4, 4, np.array([0.0, 3.0])).tolist() == [0, 4]


def test_a_prompt_computes_with_the_experts_that_its_tokens_choose() -> None:
    """2 FLOP a token for each weight that it meets, the head once, and causal pairs."""
    model, tokens = mixtral(), 4096
    step = step_time_one(model, toy_config(perfect_accelerator()), NO_OVERHEAD, StepLoad.prefill(tokens))
    flop_per_pair = sum(group.count * group.attention.prefill_flop_per_pair for group in model.layers)
    pairs = tokens * (tokens + 1) / 2 * flop_per_pair
    body = model.active_parameters - model.embedding_elements
    assert step.flop[0, 0] == pytest.approx(2 * tokens * body + 2 * model.hidden * model.vocab + pairs, rel=1e-9)


@given(new=st.integers(1, 60), past=st.integers(0, 60), window=st.one_of(st.none(), st.integers(1, 80)))
def test_attended_pairs_is_the_exact_sum(new: int, past: int, window: int | None) -> None:
    reach = 10**9 if window is None else window
    expected = sum(min(past + i, reach) for i in range(1, new + 1))
    assert float(attended_pairs(np.array(float(new)), np.array(float(past)), window)) == expected


@given(model=models, config=engines(), load=loads())
def test_parts_are_not_negative_and_sum_to_the_total(model: Transformer, config: EngineConfig, load: StepLoad) -> None:
    step = step_time_one(model, config, OVERHEAD, load)
    parts = [float(getattr(step, name)[0, 0]) for name in PARTS]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(float(step.total[0, 0]), rel=1e-12)
    assert all(np.isfinite(getattr(step, field.name)).all() for field in fields(StepTime))


@given(model=models, config=engines(), load=loads())
def test_no_faster_than_the_roofline(model: Transformer, config: EngineConfig, load: StepLoad) -> None:
    """The vendor's peak of the fastest dtype and its bandwidth bound every step from below."""
    step = step_time_one(model, config, NO_OVERHEAD, load)
    gpu = config.accelerator
    floor = max(step.flop[0, 0] / max(gpu.peak_flops.values()), step.traffic[0, 0] / gpu.bandwidth)
    assert step.total[0, 0] >= floor * (1 - 1e-12)
    assert 0 <= step.mbu(engine_arrays(model, [config], NO_OVERHEAD))[0, 0] <= 1


@given(
    model=models,
    config=engines(),
    load=loads(),
    factor=st.floats(1.0, 4.0),
    field=st.sampled_from(["bandwidth", "peak_flops", "scale_up", "scale_out"]),
)
def test_better_hardware_is_never_slower(
    model: Transformer, config: EngineConfig, load: StepLoad, factor: float, field: str
) -> None:
    gpu = config.accelerator
    better: Any
    if field == "bandwidth":
        better = gpu.bandwidth * factor
    elif field == "peak_flops":
        better = {dtype: peak * factor for dtype, peak in gpu.peak_flops.items()}
    else:
        link = getattr(gpu, field)
        better = Link(link.bandwidth * factor, link.latency / factor)
    improved = replace(config, accelerator=replace(gpu, **{field: better}))
    assert total(model, improved, load) <= total(model, config, load) * (1 + 1e-9)


@given(
    model=models,
    config=engines(),
    load=loads(),
    more=st.integers(1, 500),
    field=st.sampled_from([field.name for field in fields(StepLoad)]),
)
def test_more_work_is_never_faster(
    model: Transformer, config: EngineConfig, load: StepLoad, more: int, field: str
) -> None:
    heavier = replace(load, **{field: getattr(load, field) + more})
    assert total(model, config, heavier) >= total(model, config, load) * (1 - 1e-9)


@pytest.mark.parametrize(
    "name", ["Llama-3.1-8B", "gpt-oss-120b", "DeepSeek-V3", "GLM-5.2", "Qwen3-Next-80B-A3B", "DeepSeek-V4.1-Flash"]
)
@settings(max_examples=30)
@given(config=engines(), past=st.sampled_from([0, 5, 3000]))
def test_no_prompt_is_quicker_than_a_shorter_one(name: str, config: EngineConfig, past: int) -> None:
    """Full, windowed, latent, sparse, linear and compressed attention, with a tail; across every threshold."""
    tokens = np.unique(np.concatenate([np.arange(1, 40), np.arange(2040, 2060), np.geomspace(40, 70_000, 100).round()]))
    times = step_time_one(catalog_model(name), config, OVERHEAD, StepLoad.prefill(tokens, past=past)).total[0]
    assert np.all(times[1:] >= times[:-1] * (1 - 1e-9))


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "DeepSeek-V3"])
@pytest.mark.parametrize("tensor", [1, 8])
def test_decode_is_affine_in_context(name: str, tensor: int) -> None:
    contexts = np.array([0.0, 1000.0, 2000.0, 30_000.0])
    step = step_time_one(MODELS[name], toy_config(tensor=tensor), OVERHEAD, StepLoad.decode(64, contexts))
    time = step.total[0]
    slope = (time[1] - time[0]) / 1000
    assert slope > 0
    assert time == pytest.approx(time[0] + slope * contexts, rel=1e-12)


def test_layers_with_a_tail_compute_the_end_of_prompts_and_every_decode() -> None:
    """DeepSeek-V4.1: 19 of 40 layers see 128 tokens of a prompt; long prompts take about half of what all would."""
    model, config = catalog_model("DeepSeek-V4.1-Flash"), toy_config(accelerator("H200"), tensor=8)
    whole = replace(model, layers=tuple(replace(group, tail=0) for group in model.layers))
    assert sum(group.count for group in model.layers if group.tail == 128) == 19

    def flop(of: Transformer, load: StepLoad) -> float:
        return float(step_time_one(of, config, OVERHEAD, load).flop[0, 0])

    for same in (StepLoad.decode(64, 9000), StepLoad.prefill(128, 3, 500)):
        assert total(model, config, same) == total(whole, config, same)
    everywhere = replace(config, whole_prompts=True)
    assert total(model, everywhere, StepLoad.prefill(30_000)) == total(whole, config, StepLoad.prefill(30_000))
    late = replace(whole, layers=tuple(replace(group, tail=0) for group in model.layers if group.tail))
    for tokens in (1000, 30_000):
        load, end = StepLoad.prefill(tokens, 2, 500), StepLoad.prefill(128, 2, 500 + tokens - 128)
        skipped = flop(late, load) - flop(late, end)
        assert flop(model, load) == pytest.approx(flop(whole, load) - skipped, rel=1e-9)
    assert total(model, config, load) / total(whole, config, load) == pytest.approx(0.54, abs=0.02)


def test_a_window_stops_the_growth() -> None:
    contexts = np.array([1024.0, 2048.0, 4096.0])
    step = step_time_one(windowed(1024), toy_config(), OVERHEAD, StepLoad.decode(64, contexts))
    growth = np.diff(step.attention_decode[0])
    whole = step_time_one(llama_8b(), toy_config(), OVERHEAD, StepLoad.decode(64, contexts))
    assert growth == pytest.approx(np.diff(whole.attention_decode[0]) / 2, rel=1e-9)


def test_what_the_units_bound_takes_longer_inside_an_engine() -> None:
    """A long prompt of a dense model as many times as its clock falls; a small decode step reads memory as before."""
    bare = toy_config()
    slower = replace(bare, accelerator=replace(bare.accelerator, in_engine=InEngine(first_token=1.5, arithmetic=1.25)))
    load = StepLoad.of(np.array([1, 0]), np.array([8000, 0]), 0, np.array([0, 4]), 500)
    before, after = (step_time_one(llama_8b(), config, NO_OVERHEAD, load) for config in (bare, slower))
    assert after.gemm[0, 0] / before.gemm[0, 0] == pytest.approx(1.25, rel=0.02)
    assert after.total[0, 1] == before.total[0, 1]


def test_steps_of_workers_that_only_prefill_take_longer_than_their_kernels() -> None:
    """Of models with routed experts, on top of what their steps take longer anyway; the host takes as long as ever."""
    inside = replace(toy_config().accelerator, in_engine=InEngine(prefill_worker=1.5))
    slow = replace(inside, in_engine=InEngine(prefill_worker=1.5, expert_step=2.0))
    load = StepLoad.prefill(4096)
    for gpu, model, factor in ((inside, mixtral(), 1.5), (slow, mixtral(), 3.0), (slow, llama_8b(), 1.0)):
        here = step_time_one(model, toy_config(inside), OVERHEAD, load)
        there = step_time_one(model, toy_config(gpu, role=Role.PREFILL), OVERHEAD, load)
        assert there.total - there.host == pytest.approx(factor * (here.total - here.host))
        assert there.experts == pytest.approx(factor * here.experts)
        assert there.host == here.host


def test_engines_and_points_broadcast() -> None:
    configs = [toy_config(tensor=t, pipeline=p) for t in (1, 2, 4, 8) for p in (1, 2)]
    configs += [toy_config(toy_a100()), toy_config(weight_dtype="fp8", kv_dtype="fp8")]
    load = StepLoad.of(1, np.array([0, 100, 5000]), 0, np.array([64, 0, 7]), 1500)
    many = step_time(deepseek_v3(), engine_arrays(deepseek_v3(), configs, OVERHEAD), load)
    assert many.total.shape == (10, 3)
    for row, config in enumerate(configs):
        one = step_time_one(deepseek_v3(), config, OVERHEAD, load)
        for field in fields(StepTime):
            assert np.array_equal(getattr(many, field.name)[row], getattr(one, field.name)[0]), field.name
    per_engine = step_time(
        llama_8b(), engine_arrays(llama_8b(), configs, OVERHEAD), StepLoad.decode(np.arange(10)[:, None], 100)
    )
    assert per_engine.total.shape == (10, 1)


def test_pipeline_halves_nothing_but_adds_the_hand_over() -> None:
    """Latency through two stages is that of one GPU holding all layers, plus one send inside the node."""
    load = StepLoad.decode(32, 1000)
    one, two = (step_time_one(llama_70b(), toy_config(pipeline=p), NO_OVERHEAD, load) for p in (1, 2))
    send = 32 * 8192 * 2 / 450e9 + 5e-6
    assert two.total[0, 0] - one.total[0, 0] == pytest.approx(send, rel=1e-6)


def test_data_ranks_share_requests_but_not_a_lone_prompt() -> None:
    config, loads = toy_config(data=8, expert=8), (StepLoad.prefill(2048, requests) for requests in (1, 8))
    alone, eight = (step_time_one(deepseek_v3(), config, NO_OVERHEAD, load) for load in loads)
    assert alone.attention_prefill[0, 0] == eight.attention_prefill[0, 0]
    assert alone.gemm[0, 0] == eight.gemm[0, 0]
    assert alone.experts[0, 0] < eight.experts[0, 0]


def test_expert_skew_slows_the_busiest_rank_only() -> None:
    """8 ranks of one expert each: with x = 1.43 skew and a limit of 4, the factor is 1 + 3 x / (x + 3)."""
    load = StepLoad.prefill(8192)

    def step(skew: float, expert: int) -> StepTime:
        conditions = Conditions(expert_skew=skew)
        config = toy_config(tensor=8, expert=expert)
        return step_time(mixtral(), engine_arrays(mixtral(), [config], NO_OVERHEAD, conditions), load)

    even, skewed = step(0.0, 8), step(TABLE_SKEW, 8)
    above = TABLE_SKEW * 1.4342
    factor = 1 + 3 * above / (above + 3)
    assert skewed.experts[0, 0] == pytest.approx(factor * even.experts[0, 0], rel=0.02)
    assert skewed.gemm[0, 0] == even.gemm[0, 0]
    assert step(TABLE_SKEW, 1).experts[0, 0] == step(0.0, 1).experts[0, 0]


# --- the engine step: fitted efficiency curves, the precision that computes, and the host's time


def curved(compute: float = 1.0, memory: float = 1.0, launch: float = 0.0, **figures: float) -> KernelEfficiency:
    return KernelEfficiency(compute, memory, launch, Origin.ASSUMED, "toy", float("nan"), **figures)


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
    times = []
    for cast in (8.0, 0.0):
        gpu = perfect_accelerator(efficiency=toy_efficiency(1, 1, 0) | {("moe", dtype): curved(cast=cast)})
        config = toy_config(gpu, tensor=2, weight_dtype=dtype)
        times.append(step_time_one(mixtral(), config, NO_OVERHEAD, StepLoad.prefill(4096)).experts[0, 0])
    elements = 2 * 4096 * (share * 2 * 4096 + 3 * 14336 / 2)
    assert times[0] - times[1] == pytest.approx(32 * 8 * elements / gpu.bandwidth)


def test_short_prompts_on_few_heads_fill_the_gpu_badly() -> None:
    shape = {"compute_half": 1000.0, "depth_half": 64.0, "fill_half": 1e4}
    gpu = perfect_accelerator(efficiency=toy_efficiency(1, 1, 0) | {("attention_prefill", "bf16"): curved(**shape)})
    step = step_time_one(llama_8b(), toy_config(gpu, tensor=8), NO_OVERHEAD, StepLoad.prefill(1000))
    flop = 1000 * 1001 / 2 * 4 * 4096 / 8
    slowed = flop * (1 + 1000 / 1001) * (1 + 1e4 / (1000 * 4)) * (1 + 64 / 128)  # 500.5 keys a query
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
    more = {("all_reduce", "bf16"): curved(1.0, 0.5, 5e-6), ("all_reduce_large", "bf16"): curved(1.0, 0.8, 30e-6)}
    gpu = toy_accelerator(efficiency=toy_efficiency() | more)
    arrays = engine_arrays(llama_8b(), [toy_config(gpu, tensor=2)], NO_OVERHEAD)
    times = all_reduce_time(arrays, np.array([[1e5, 1e9]]))[0]
    assert times == pytest.approx([1e5 / (0.5 * 450e9) + 5e-6, 1e9 / (0.8 * 450e9) + 30e-6])


def test_more_than_a_pair_share_a_link_in_the_host() -> None:
    more = dict.fromkeys([("all_reduce", "bf16"), ("all_reduce_large", "bf16")], curved(memory=0.6, shared=0.5))
    gpu = toy_accelerator(scale_up=Link(32e9, 5e-6), efficiency=toy_efficiency() | more)
    arrays = engine_arrays(llama_8b(), [toy_config(gpu, tensor=t) for t in (2, 4, 8)], NO_OVERHEAD)
    ideal = [2 * (n - 1) / n * 1e9 / 32e9 for n in (2, 4, 8)]
    assert all_reduce_time(arrays, np.array([[1e9]]))[:, 0] == pytest.approx(
        [ideal[0] / 0.6, ideal[1] / (0.5 / 4), ideal[2] / (0.5 / 8)]
    )


@pytest.mark.parametrize(
    ("weights", "on_h100", "on_a100"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "fp8", "bf16"),
        ("int8", "int8", "int8"),
        ("int4", "bf16", "bf16"),
        ("fp4", "bf16", "bf16"),
        ("mxfp4", "bf16", "bf16"),
    ],
)
def test_compute_dtype(weights: str, on_h100: str, on_a100: str) -> None:
    assert compute_dtype(weights, toy_accelerator()) == on_h100
    assert compute_dtype(weights, toy_a100()) == on_a100
    blackwell = toy_accelerator(peak_flops={"bf16": 2250 * TERA, "fp8": 4500 * TERA, "fp4": 9000 * TERA})
    assert compute_dtype("fp4", blackwell) == "fp4"
    assert compute_dtype("mxfp4", blackwell) == "fp8"
    assert compute_dtype("w4a16", blackwell) == "bf16"


def experts_time(model: Transformer, config: EngineConfig, requests: float, conditions: Conditions = SERVING) -> float:
    """Of prompts of 8,192 tokens."""
    engines = engine_arrays(model, [config], NO_OVERHEAD, conditions)
    return float(step_time(model, engines, StepLoad.prefill(8192.0, requests)).experts[0, 0])


def test_a_kernel_made_for_mxfp4_expands_long_prompts_quicker_than_marlin() -> None:
    """On Hopper, whose units Marlin's instructions do not fill."""
    model = load_model("gpt-oss-120b")
    by_marlin = replace(model, own_dtypes=model.own_dtypes | {(Part.EXPERTS, MARLIN_MXFP4)})
    config = toy_config(accelerator("H200"), weight_dtype="fp4")
    own, marlin = (experts_time(stored, config, 1.0) for stored in (model, by_marlin))
    assert 1.3 * own < marlin < 2.5 * own


def test_mxfp4_experts_of_an_fp8_checkpoint_take_no_longer_than_fp8_ones_whose_scales_units_apply() -> None:
    """Both read their weights and multiply at the rate of FP8; blocks of 128, rescaled in software, take longer."""
    model = load_model("DeepSeek-V4-Flash")
    config = toy_config(accelerator("B200"), weight_dtype="fp8", expert=16, data=16)
    wide, by_matrix = replace(model, own_dtypes=frozenset()), replace(SERVING, fp8_kernels="fp8_tensor")
    of_matrix, of_blocks = (experts_time(wide, config, 16.0, each) for each in (by_matrix, SERVING))
    assert 0.8 * of_matrix < experts_time(model, config, 16.0) <= of_matrix < of_blocks


def test_fp8_weights_halve_decode_bytes_and_prefill_time_where_units_exist() -> None:
    decode, prompt = StepLoad.decode(1, 100), StepLoad.prefill(8192)
    for gpu, speedup in ((perfect_accelerator(), 2.0), (toy_a100(efficiency=toy_efficiency(1, 1, 0)), 1.0)):
        wide, narrow = toy_config(gpu), toy_config(gpu, weight_dtype="fp8")
        gemm = [step_time_one(llama_70b(), config, NO_OVERHEAD, prompt).gemm[0, 0] for config in (wide, narrow)]
        assert gemm[0] / gemm[1] == pytest.approx(speedup, rel=0.12)
        traffic = [step_time_one(llama_70b(), config, NO_OVERHEAD, decode).traffic[0, 0] for config in (wide, narrow)]
        assert traffic[0] / traffic[1] == pytest.approx(2.0, rel=0.03)


def test_inputs_are_converted_apart_unless_the_checkpoint_states_their_scales() -> None:
    """Weights in blocks, and those that the engine narrows itself, have inputs whose scales are found first."""
    config = toy_config(accelerator("H100"), weight_dtype="fp8")
    published = replace(llama_8b(), native_weight_dtype="fp8")
    models = (published, llama_8b(), replace(published, weight_scale=WeightScale(128, 128, 4.0)))
    fused, narrowed, blocks = (
        float(step_time_one(model, config, NO_OVERHEAD, StepLoad.prefill(2048.0)).gemm[0, 0]) for model in models
    )
    assert fused < 0.95 * narrowed
    assert blocks == pytest.approx(narrowed, rel=1e-3)


@pytest.mark.parametrize(("requests", "data", "busiest"), [(512, 1, 512), (512, 8, 64), (8192, 32, 256), (3, 8, 1)])
def test_the_host_of_a_data_rank_deals_with_its_own_requests(requests: int, data: int, busiest: int) -> None:
    step = step_time_one(deepseek_v3(), toy_config(data=data, expert=data), OVERHEAD, StepLoad.decode(requests, 1000))
    assert step.host[0, 0] == pytest.approx(OVERHEAD.step + OVERHEAD.per_request * busiest)


# --- circumstances of the kernel tables that plans do not share: slow kernels for single rows and for grouped experts


def decode(
    model: Transformer, gpu: str, batch: float, conditions: Conditions, *, dtype: str = "fp8", expert: int = 1
) -> StepTime:
    """A decode step at 1,000 tokens of context."""
    config = toy_config(accelerator(gpu), weight_dtype=dtype, tensor=expert, expert=expert)
    arrays = engine_arrays(model, [config], NO_OVERHEAD, conditions)
    return step_time(model, arrays, StepLoad.decode(batch, 1000))


@pytest.mark.parametrize(
    ("gpu", "data", "kernels"),
    [
        ("GB200", 8, DISPATCHED),
        ("GB200", 4, DISPATCHED),
        ("GB200", 1, "fp8"),
        ("B200", 8, "fp8"),
        ("B200", 16, DISPATCHED),
        ("A100-80", 16, "bf16"),
    ],
)
def test_experts_beyond_one_server_are_those_after_a_dispatch(gpu: str, data: int, kernels: str) -> None:
    config = toy_config(accelerator(gpu), weight_dtype="fp8", data=data, expert=data)
    assert kernels_of(deepseek_v3(), config, Part.EXPERTS) == kernels
    assert kernels_of(deepseek_v3(), config, Part.FEED_FORWARD) == kernels.partition("_")[0]


def test_single_rows_pay_for_a_slow_kernel_in_tables_only() -> None:
    more = accelerator("B200").efficiency["gemm", "fp8"].single
    assert 5e-6 < more < 30e-6
    ways = (TABLES, replace(TABLES, graphs=True))
    tables, graphs = (decode(llama_8b(), "B200", 1.0, how).gemm[0, 0] for how in ways)
    assert tables - graphs == pytest.approx(32 * 4 * more)  # four FP8 products a layer, the head is in 16 bit
    for batch, dtype in ((2.0, "fp8"), (8.0, "fp8"), (1.0, "bf16")):
        tables, graphs = (decode(llama_8b(), "B200", batch, how, dtype=dtype).gemm[0, 0] for how in ways)
        assert tables == pytest.approx(graphs)


def test_one_expert_a_rank_is_no_grouped_product() -> None:
    model, conditions = mixtral(), table_conditions("vllm", "fp8", "fp8")
    assert conditions.fp8_kernels == "fp8_tensor"
    grouped, alone = (decode(model, "H200", 8.0, conditions, expert=ranks).experts[0, 0] for ranks in (4, 8))
    as_plans = decode(model, "H200", 8.0, replace(conditions, fp8_kernels="fp8"), expert=8).experts[0, 0]
    assert alone == pytest.approx(as_plans)
    assert grouped > 4 * alone  # half the experts, but a kernel several times as fast
