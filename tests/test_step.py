"""The engine step: values checked by hand, and the properties that physics demands."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator import InEngine, Link
from costmodel.engine import EngineConfig
from costmodel.engine_arrays import TABLE_SKEW, Conditions, engine_arrays
from costmodel.host import NO_OVERHEAD
from costmodel.kernels import (
    ELEMENTWISE_LAUNCH,
    ELEMENTWISE_SHARE,
    ROTARY_LAUNCH,
    all_reduce_time,
    all_to_all_time,
    attended_pairs,
    touched_experts,
)
from costmodel.step import StepLoad, StepTime, step_time, step_time_one, step_times
from costmodel.transformer import FeedForward, LayerGroup, LinearAttention, Transformer
from tests.step_cases import MODELS, loads, models
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

PARTS = ("gemm", "attention_prefill", "attention_decode", "experts", "communication", "host")


def hybrid() -> Transformer:
    """Two linear-attention layers."""
    mixer = LinearAttention(2048, 16, 32, 128, 128, 4)
    return Transformer("hybrid", 2048, 32000, (LayerGroup(2, mixer, FeedForward(2048, 8192, True)),), False, 262144)


@st.composite
def engines(draw: st.DrawFn) -> EngineConfig:
    tensor = draw(st.sampled_from([1, 2, 4, 8, 16]))
    data = draw(st.sampled_from([1, 2, 8]))
    expert = draw(st.sampled_from([1, tensor * data]))
    pipeline = draw(st.sampled_from([1, 2]))
    dtype = draw(st.sampled_from(["bf16", "fp8", "int4"]))
    kv = draw(st.sampled_from(["bf16", "fp8"]))
    return toy_config(weight_dtype=dtype, kv_dtype=kv, tensor=tensor, data=data, expert=expert, pipeline=pipeline)


def total(model: Transformer, config: EngineConfig, load: StepLoad) -> float:
    return float(step_time_one(model, config, OVERHEAD, load).total[0, 0])


def test_one_decode_by_hand() -> None:
    """Llama-3.1-8B, batch 1, context 1000, on a GPU that reaches its roofline: weights and KV once."""
    gpu = perfect_accelerator()
    step = step_time_one(llama_8b(), toy_config(gpu), NO_OVERHEAD, StepLoad.decode(1, 1000))
    weights = 2 * (llama_8b().parameters - 128256 * 4096)
    activations = 32 * 2 * ((4096 + 6144) + (4096 + 4096) + (4096 + 28672) + (14336 + 4096)) + 2 * (4096 + 128256)
    small = 32 * 3 * ELEMENTWISE_LAUNCH + 32 * 2 * (8 * 4096 + 3 * 14336) / (ELEMENTWISE_SHARE * gpu.bandwidth)
    assert step.gemm[0, 0] == pytest.approx((weights + activations) / gpu.bandwidth + small, rel=1e-9)
    assert step.attention_decode[0, 0] == pytest.approx(1000 * 131072 / gpu.bandwidth, rel=1e-9)
    assert step.total[0, 0] == step.gemm[0, 0] + step.attention_decode[0, 0]
    assert step.arithmetic_intensity[0, 0] == pytest.approx(1.0, rel=0.05)


def test_prompt_attention_by_hand() -> None:
    """Causal pairs of 4096 tokens x 4 x 4096 FLOP x 32 layers at the vendor's peak, and the rotary kernels before."""
    gpu = perfect_accelerator()
    step = step_time_one(llama_8b(), toy_config(gpu), NO_OVERHEAD, StepLoad.prefill(4096))
    flop = 32 * (4096 * 4097 / 2) * 4 * 4096
    assert step.attention_prefill[0, 0] == pytest.approx(flop / gpu.peak_flops["bf16"] + 32 * ROTARY_LAUNCH, rel=1e-9)
    assert step.attention_decode[0, 0] == 0


def test_all_reduce_by_hand() -> None:
    gpu = toy_accelerator(
        scale_up=Link(450e9, 5e-6), scale_out=Link(50e9, 10e-6), efficiency=toy_efficiency(1, 1, 4e-6)
    )
    arrays = engine_arrays(llama_8b(), [toy_config(gpu, tensor=t) for t in (1, 8, 16)], NO_OVERHEAD)
    size = np.array([[9e6]])
    inside = 2 * 7 / 8 * 9e6 / 450e9 + 4e-6
    across = inside + 2 * 1 / 2 * (9e6 / 8) / 50e9 + 2 * 10e-6
    assert all_reduce_time(arrays, size)[:, 0] == pytest.approx([0, inside, across])


def test_all_to_all_by_hand() -> None:
    """16 data ranks in two domains: every token to its 8 experts' ranks, once per distinct rank."""
    gpu = toy_accelerator(efficiency=toy_efficiency(1, 1, 5e-6))
    arrays = engine_arrays(deepseek_v3(), [toy_config(gpu, data=16, expert=16)], NO_OVERHEAD)
    block = deepseek_v3().layers[1].feed_forward
    copies = 64 * 16 * (1 - (15 / 16) ** 8)
    size = copies * 7168 * 2
    one_way = size * (7 / 16 / 450e9 + 8 / 16 / 50e9) + 5e-6 + 10e-6
    assert all_to_all_time(arrays, block, np.array([[1024.0]]))[0, 0] == pytest.approx(2 * one_way)


def test_expert_weights_are_read_once_per_touched_expert() -> None:
    gpu = perfect_accelerator()
    step = step_time_one(mixtral(), toy_config(gpu), NO_OVERHEAD, StepLoad.decode(1, 1))
    read = 32 * (2 * 3 * 4096 * 14336 * 2 + 2 * (2 * 4096 + 3 * 14336) * 2)
    assert step.experts[0, 0] == pytest.approx(read / gpu.bandwidth, rel=1e-6)
    assert touched_experts(8, 2, np.array([0.0, 1.0, 2.0, 1e6])) == pytest.approx([0, 2, 3.5, 8])
    assert touched_experts(4, 4, np.array([0.0, 3.0])).tolist() == [0, 4]


@given(new=st.integers(1, 60), past=st.integers(0, 60), window=st.one_of(st.none(), st.integers(1, 80)))
@settings(deadline=None, max_examples=100)
def test_attended_pairs_is_the_exact_sum(new: int, past: int, window: int | None) -> None:
    reach = 10**9 if window is None else window
    expected = sum(min(past + i, reach) for i in range(1, new + 1))
    assert float(attended_pairs(np.array(float(new)), np.array(float(past)), window)) == expected


@given(model=models, config=engines(), load=loads())
@settings(deadline=None, max_examples=80)
def test_parts_are_not_negative_and_sum_to_the_total(model: Transformer, config: EngineConfig, load: StepLoad) -> None:
    step = step_time_one(model, config, OVERHEAD, load)
    parts = [float(getattr(step, name)[0, 0]) for name in PARTS]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(float(step.total[0, 0]), rel=1e-12)
    assert all(np.isfinite(getattr(step, field.name)).all() for field in fields(StepTime))


@given(model=models, config=engines(), load=loads())
@settings(deadline=None, max_examples=80)
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
@settings(deadline=None, max_examples=100)
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
    assert total(model, improved, load) <= total(model, config, load) * (1 + 1e-12)


@given(
    model=models,
    config=engines(),
    load=loads(),
    more=st.integers(1, 500),
    field=st.sampled_from([field.name for field in fields(StepLoad)]),
)
@settings(deadline=None, max_examples=100)
def test_more_work_is_never_faster(
    model: Transformer, config: EngineConfig, load: StepLoad, more: int, field: str
) -> None:
    heavier = replace(load, **{field: getattr(load, field) + more})
    assert total(model, config, heavier) >= total(model, config, load) * (1 - 1e-12)


@given(model=models, load=loads(), pipeline=st.sampled_from([1, 2]))
@settings(deadline=None, max_examples=30)
def test_one_rank_communicates_only_between_stages(model: Transformer, load: StepLoad, pipeline: int) -> None:
    step = step_time_one(model, toy_config(pipeline=pipeline), NO_OVERHEAD, load)
    assert (step.communication[0, 0] > 0) == (pipeline > 1 and load.tokens[0, 0] > 0)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "DeepSeek-V3"])
@pytest.mark.parametrize("tensor", [1, 8])
def test_decode_is_affine_in_context(name: str, tensor: int) -> None:
    contexts = np.array([0.0, 1000.0, 2000.0, 30_000.0])
    step = step_time_one(MODELS[name], toy_config(tensor=tensor), OVERHEAD, StepLoad.decode(64, contexts))
    time = step.total[0]
    slope = (time[1] - time[0]) / 1000
    assert slope > 0
    assert time == pytest.approx(time[0] + slope * contexts, rel=1e-12)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3"])
def test_decode_attention_depends_on_the_sum_of_contexts(name: str) -> None:
    load = StepLoad.decode(np.array([10, 20, 40]), np.array([4000, 2000, 1000]))
    time = step_time_one(MODELS[name], toy_config(), OVERHEAD, load).attention_decode[0]
    assert time == pytest.approx([time[0]] * 3, rel=1e-12)


def test_a_window_stops_the_growth() -> None:
    contexts = np.array([1024.0, 2048.0, 4096.0])
    step = step_time_one(windowed(1024), toy_config(), OVERHEAD, StepLoad.decode(64, contexts))
    growth = np.diff(step.attention_decode[0])
    whole = step_time_one(llama_8b(), toy_config(), OVERHEAD, StepLoad.decode(64, contexts))
    assert growth == pytest.approx(np.diff(whole.attention_decode[0]) / 2, rel=1e-9)


def test_linear_attention_forgets_the_context() -> None:
    step = step_time_one(hybrid(), toy_config(), OVERHEAD, StepLoad.decode(64, np.array([10.0, 100_000.0])))
    assert step.total[0, 0] == step.total[0, 1]
    assert step.attention_decode[0, 0] > 0


def test_nothing_to_do_takes_only_the_host() -> None:
    step = step_time_one(llama_8b(), toy_config(tensor=4, pipeline=2), OVERHEAD, StepLoad.of())
    assert step.total[0, 0] == step.host[0, 0] == OVERHEAD.step
    assert step.arithmetic_intensity[0, 0] == 0


def test_what_the_units_bound_takes_longer_inside_an_engine() -> None:
    """A long prompt of a dense model as many times as its clock falls; a small decode step reads memory as before."""
    bare = toy_config()
    slower = replace(bare, accelerator=replace(bare.accelerator, in_engine=InEngine(first_token=1.5, arithmetic=1.25)))
    load = StepLoad.of(np.array([1, 0]), np.array([8000, 0]), 0, np.array([0, 4]), 500)
    before, after = (step_time_one(llama_8b(), config, NO_OVERHEAD, load) for config in (bare, slower))
    assert after.gemm[0, 0] / before.gemm[0, 0] == pytest.approx(1.25, rel=0.02)
    assert after.total[0, 1] == before.total[0, 1]


def test_engines_and_points_broadcast() -> None:
    configs = [toy_config(tensor=t, pipeline=p) for t in (1, 2, 4, 8) for p in (1, 2)]
    configs += [toy_config(toy_a100()), toy_config(weight_dtype="fp8", kv_dtype="fp8")]
    load = StepLoad.of(1, np.array([0, 100, 5000]), 0, np.array([64, 0, 7]), 1500)
    many = step_times(deepseek_v3(), configs, OVERHEAD, load)
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
    config = toy_config(data=8, expert=8)
    alone, eight = (
        step_time_one(deepseek_v3(), config, NO_OVERHEAD, StepLoad.prefill(2048, requests)) for requests in (1, 8)
    )
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
