"""Parameter counts against published figures, and the cache that a request holds."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.attention import Attention, LatentAttention, LinearAttention, Part, SoftmaxAttention
from costmodel.queues.waits import largest_of
from costmodel.transformer import FeedForward, LayerGroup, Transformer, busiest_expert_rank, imbalance
from search_spaces.engines import SUPPORT
from search_spaces.models import load_model, model_names

with (Path(__file__).parent / "published_models.csv").open(encoding="utf-8", newline="") as stream:
    PUBLISHED = {row["model"]: row for row in csv.DictReader(stream)}
"""Publishers' own figures; active_counts: the embeddings that the active figure contains ("both", "head", "none")."""


def test_every_catalog_model_has_a_published_figure() -> None:
    assert sorted(PUBLISHED) == sorted(model_names())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_match_the_published_figure(name: str) -> None:
    row, model = PUBLISHED[name], load_model(name)
    assert model.parameters == pytest.approx(float(row["parameters"]), rel=float(row["tolerance"])), row["source"]
    if not row["active"]:
        assert model.active_parameters == model.parameters - model.looked_up
        return
    counts = {
        "both": model.active_parameters,
        "head": model.matmul_parameters,
        "none": model.active_parameters - model.embedding_elements,
    }
    active = counts[row["active_counts"]]
    assert active == pytest.approx(float(row["active"]), rel=float(row["active_tolerance"])), row["source"]


def test_a_prompt_of_deepseek_v4_1_meets_half_of_the_layers() -> None:
    """By its card 197 billion weights in tables beside 552, and 8 billion for a token of a prompt."""
    model = load_model("DeepSeek-V4.1-Flash")
    assert model.host_tables == pytest.approx(197e9, rel=0.01)
    assert model.prompt_parameters - model.embedding_elements == pytest.approx(8e9, rel=0.05)
    assert model.weight_bytes("fp8") == pytest.approx(510.3e9 - model.host_tables / 32, rel=0.02)  # with the drafter


def test_gpt_oss_keeps_a_window_in_half_of_its_layers() -> None:
    per_layer = 2 * 8 * 64 * 2
    assert load_model("gpt-oss-120b").kv_bytes(10_000.0, "bf16") == 18 * per_layer * (10_000 + 128)


def test_linear_attention_holds_a_state_from_the_first_token() -> None:
    model = load_model("Qwen3-Next-80B-A3B")
    state = 36 * (4 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128))
    assert model.state_bytes == state
    assert model.kv_bytes(0.0, "bf16") == state
    assert model.kv_bytes(1000.0, "bf16") == state + 1000 * 24576


@pytest.mark.parametrize(
    ("name", "bits"),  # by engine: what the config states, 32 of Kimi Delta Attention, else the engine's own
    [("Qwen3-Next-80B-A3B", (16, 32, 16)), ("Qwen3.5-397B-A17B", (32, 32, 32)), ("Kimi-K3", (32, 32, 32))],
)
def test_an_engine_keeps_states_in_its_own_dtype_where_nothing_states_another(name: str, bits: tuple[int, ...]) -> None:
    model, full = load_model(name), load_model(name).with_states(32).state_bytes
    kept = [model.with_states(SUPPORT[engine].state_bits) for engine in ("vllm", "sglang", "trtllm")]
    assert tuple(served.state_bits for served in kept) == bits
    half = 36 * 2 * 32 * 128 * 128  # the window of the convolution has 16 bit in either
    assert [full - served.state_bytes for served in kept] == [half if count == 16 else 0 for count in bits]


def test_a_layer_that_shares_an_indexer_keeps_no_index_but_still_selects() -> None:
    own = LatentAttention(64, 4, 32, 16, 8, 16, 16, index_heads=2, index_dim=8, index_topk=128)
    shared = LatentAttention(64, 4, 32, 16, 8, 16, 16, index_topk=128)
    assert (own.index_bytes_per_token, shared.index_bytes_per_token) == (12.0, 0.0)
    assert own.selected == shared.selected == 128
    assert len(own.matrices) == len(shared.matrices) + 2


def test_weight_bytes_of_a_partly_quantised_checkpoint() -> None:
    model = load_model("gpt-oss-120b")
    experts = 36 * 128 * 3 * 2880 * 2880
    rest = model.parameters - experts
    assert model.quantized == {Part.EXPERTS}
    assert model.weight_bytes("fp4") == pytest.approx(experts * (0.5 + 1 / 32) + 2 * rest)  # MXFP4
    assert model.weight_bytes("bf16") == pytest.approx(2 * model.parameters)


def _model(*attentions: Attention) -> Transformer:
    block = FeedForward(256, 512, gated=True)
    layers = tuple(LayerGroup(2, attention, block) for attention in attentions)
    return Transformer("tiny", 256, 1000, layers, False, 10**6)


def _softmax(window: int | None) -> SoftmaxAttention:
    return SoftmaxAttention(hidden=256, heads=8, kv_heads=2, head_dim=32, value_dim=32, window=window)


windows = st.one_of(st.none(), st.integers(1, 5000))
lengths = st.floats(0, 20_000, allow_nan=False)


@given(window=windows, short=lengths, extra=lengths)
def test_a_longer_context_never_holds_less(window: int | None, short: float, extra: float) -> None:
    model = _model(_softmax(window), LinearAttention(256, 2, 4, 16, 16, 4))
    assert model.kv_bytes(short + extra, "bf16") >= model.kv_bytes(short, "bf16")


@given(context=lengths, dtype=st.sampled_from(["bf16", "fp8"]))
def test_without_windows_the_cache_is_the_rate_times_the_context(context: float, dtype: str) -> None:
    model = _model(_softmax(None), LatentAttention(256, 8, 64, 32, 16, 32, 32, 4, 16, 64))
    assert model.kv_bytes(context, dtype) == pytest.approx(model.kv_bytes_per_token(dtype) * context)


@given(window=windows, isl=st.integers(0, 4000), osl=st.integers(1, 3000))
def test_mean_cache_is_the_integral_over_the_generation(window: int | None, isl: int, osl: int) -> None:
    model = _model(_softmax(window), _softmax(None), LinearAttention(256, 2, 4, 16, 16, 4))
    context = isl + np.arange(osl + 1.0)  # windows are whole, so the trapezium rule is exact
    held = model.kv_bytes(context, "bf16")
    expected = float(np.sum(0.5 * (held[1:] + held[:-1])) / osl)
    assert model.mean_kv_bytes(float(isl), float(osl), "bf16") == pytest.approx(expected)


def test_linear_attention_of_prompts_is_counted_kernel_by_kernel() -> None:
    """Qwen3.6-27B: 16 key and 48 value heads, 128 wide; chunks of 64 tokens."""
    mixer = next(group.attention for group in load_model("Qwen3.6-27B").layers if group.attention.state_bytes)
    assert isinstance(mixer, LinearAttention)
    flop, elements = mixer.prompt_work
    assert flop == 48 * (3 * 2 * 128 * 128 + 64 * 10 * 128)
    assert elements == 48 * (7 * 128 + 9 * 128 + 6 * 64 + 2 * 128 * 128 / 64) + 2 * (2 * 16 * 128 + 48 * 128)
    scan = replace(mixer, products=2)
    assert scan.prompt_work[0] == 48 * (2 * 2 * 128 * 128 + 64 * 4 * 128)
    assert (mixer.prompt_kernels, scan.prompt_kernels) == (11, 7)


# --- how tokens fall onto experts: values by hand and limits that hold whatever the routing


@given(
    experts=st.sampled_from([8, 64, 256]),
    per_token=st.sampled_from([1, 2, 8]),
    ranks=st.sampled_from([1, 2, 8]),
    skew=st.floats(0, 10),
    tokens=st.integers(1, 20_000),
)
def test_the_busiest_rank_has_at_least_its_share_and_no_more_than_there_is(
    experts: int, per_token: int, ranks: int, skew: float, tokens: int
) -> None:
    column = np.array([[float(ranks)]])
    factor = imbalance(experts, per_token, column, np.array([[largest_of(ranks)]]), np.array([[skew]]))
    assert 1 <= factor[0, 0] <= ranks
    routed = busiest_expert_rank(experts, per_token, np.array([[float(tokens)]]), column, factor)
    pairs = tokens * per_token
    assert pairs / ranks <= routed.rows[0, 0] * (1 + 1e-12)
    assert routed.rows[0, 0] <= pairs * (1 + 1e-12)
    assert routed.rows[0, 0] + routed.elsewhere[0, 0] == pytest.approx(pairs)
    assert 1 <= routed.touched[0, 0] <= experts / ranks
