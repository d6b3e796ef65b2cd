"""Parameter counts against published figures, and the cache that a request holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.routing import (
    SAMPLED_SPREAD,
    busiest_expert_rank,
    imbalance,
    largest_of,
    sampled_spread,
    touched_experts,
)
from costmodel.transformer import (
    Attention,
    FeedForward,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    Part,
    SoftmaxAttention,
    Transformer,
)
from search_spaces.models import load_model, model_names


@dataclass(frozen=True)
class Published:
    """A publisher's own figures; counted: the embeddings that its active figure contains ("both", "head", "none")."""

    total: float
    source: str
    active: float | None = None
    counted: str = "both"
    tolerance: float = 0.01
    active_tolerance: float = 0.01


PUBLISHED = {
    "OPT-13B": Published(12_853_473_280, "counted by hand, with norms and biases"),
    "OPT-66B": Published(66e9, "Zhang 2022, table 1"),
    "OPT-175B": Published(175e9, "Zhang 2022, table 1"),
    "BLOOM-176B": Published(176_247_271_424, "BLOOM model card"),
    "Llama-2-7B": Published(6_738_415_616, "checkpoint metadata"),
    "Llama-2-13B": Published(13_015_864_320, "checkpoint metadata"),
    "Llama-2-70B": Published(68_976_648_192, "checkpoint metadata"),
    "Llama-3.1-8B": Published(8_030_261_248, "checkpoint metadata"),
    "Llama-3.1-70B": Published(70_553_706_496, "checkpoint metadata"),
    "Llama-3.1-405B": Published(405e9, "Grattafiori 2024, table 3"),
    "Mistral-7B": Published(7_248_023_552, "checkpoint metadata of v0.3"),
    "Mixtral-8x7B": Published(46.7e9, "Mistral AI, Mixtral of Experts", 12.9e9),
    "Qwen2.5-1.5B": Published(1.54e9, "Qwen2.5-1.5B model card"),
    "Qwen2.5-14B": Published(14.77e9, "checkpoint metadata"),
    "Qwen2.5-32B": Published(32.76e9, "checkpoint metadata"),
    "Qwen2.5-7B": Published(7.61e9, "Qwen2.5-7B model card"),
    "Qwen2.5-72B": Published(72.7e9, "Qwen2.5-72B model card"),
    "Gemma-3-27B": Published(1.416e9 + 25.6e9, "Gemma 3 technical report, table 1, without the vision encoder"),
    "Qwen3-8B": Published(8.2e9, "Qwen3-8B model card"),
    "Qwen3-32B": Published(32.8e9, "Qwen3-32B model card"),
    "Qwen3-30B-A3B": Published(30.5e9, "Qwen3-30B-A3B model card", 3.3e9, active_tolerance=0.02),
    "Qwen3-235B-A22B": Published(235e9, "Qwen3-235B-A22B model card", 22e9),
    "Qwen3-Next-80B-A3B": Published(
        80e9, "Qwen3-Next model card; active to one digit", 3e9, "none", active_tolerance=0.1
    ),
    "gpt-oss-20b": Published(20.91e9, "gpt-oss model card, table 1", 3.61e9, "head"),
    "gpt-oss-120b": Published(116.83e9, "gpt-oss model card, table 1", 5.13e9, "head"),
    "DeepSeek-V3": Published(671e9, "DeepSeek-V3 technical report, section 1", 37e9, "head", active_tolerance=0.015),
    # The report of V3.2 gives no count; the indexer adds 14 M a layer to V3's 671 B.
    "DeepSeek-V3.2": Published(671e9 + 61 * 13.96e6, "DeepSeek-V3 plus indexer", 37.5e9, "head"),
    # 1.04 T and 32.6 B in the report, while the checkpoint without its scales holds 1.026 T.
    "Kimi-K2": Published(1.04e12, "Kimi K2 report, table 2", 32.6e9, tolerance=0.015),
    "Kimi-K2.5": Published(1.04e12, "as Kimi K2", 32.6e9, tolerance=0.015),
    "GLM-4.5": Published(355e9, "GLM-4.5 report, table 1 (with the MTP layer)", 32e9, "none"),
    "GLM-4.5-Air": Published(106e9, "GLM-4.5 report, table 1", 12e9, "none", active_tolerance=0.02),
    "GLM-5": Published(744e9, "GLM-5 model card", 40e9, "none"),
    "MiniMax-M2": Published(230e9, "MiniMax-M2 model card", 10e9, "none", active_tolerance=0.03),
    "MiniMax-M3": Published(428e9, "SGLang's page on MiniMax-M3", 23e9, "none", active_tolerance=0.03),
    "DeepSeek-V4-Flash": Published(284e9, "DeepSeek-V4 model card", 13e9, "none", active_tolerance=0.03),
    "GLM-5.2": Published(
        743_377_000_704, "reference implementation; active as GLM-5", 40e9, "none", active_tolerance=0.02
    ),
    "Kimi-K3": Published(2.8e12, "Kimi K3 model card", 104e9, "head"),
    "Gemma-4-26B-A4B": Published(25_233_141_760, "reference implementation; model card", 3.8e9),
    "Nemotron-3-Nano-30B-A3B": Published(31_577_937_344, "reference implementation; model card", 3.6e9),
    "Nemotron-3-Super-120B-A12B": Published(
        120_668_687_360, "reference implementation; model card", 12e9, "none", active_tolerance=0.03
    ),
    "Llama-3.3-Nemotron-Super-49B": Published(49.87e9, "checkpoint metadata"),
    "Qwen3-Coder-480B-A35B": Published(
        480_154_875_392, "reference implementation; model card", 35e9, active_tolerance=0.015
    ),
    "Qwen3.5-122B-A10B": Published(122_111_526_912, "reference implementation; name", 10e9, active_tolerance=0.03),
    "MiMo-V2-Flash": Published(308_778_768_832, "reference implementation; model card", 15e9, active_tolerance=0.03),
    "Llama-4-Scout-17B-16E": Published(
        107_769_861_120, "reference implementation; model card", 17e9, active_tolerance=0.015
    ),
    "DeepSeek-V4-Pro": Published(1.6e12, "DeepSeek-V4 model card", 49e9, tolerance=0.02, active_tolerance=0.02),
    "GLM-4.7-Flash": Published(30e9, "name and model card", 3.9e9, active_tolerance=0.03),
    "Qwen3.5-397B-A17B": Published(397e9, "name", 17e9, active_tolerance=0.03),
    "Qwen3.6-27B": Published(26_895_998_464, "reference implementation"),
    "Qwen3.6-35B-A3B": Published(35e9, "name", 3.5e9, active_tolerance=0.03),
    "Llama-4-Maverick-17B-128E": Published(400e9, "model card", 17e9, active_tolerance=0.015),
    "Llama-3.2-1B": Published(1.24e9, "model card"),
    "Llama-3.2-3B": Published(3.21e9, "model card"),
    "Qwen3-4B": Published(4.0e9, "model card"),
    "Qwen3-14B": Published(14.8e9, "model card"),
    "Gemma-3-4B": Published(0.675e9 + 3.209e9, "Gemma 3 technical report, table 1, without the vision encoder"),
    "Gemma-3-12B": Published(1.012e9 + 10.759e9, "Gemma 3 technical report, table 1, without the vision encoder"),
    "Gemma-4-31B": Published(30.7e9, "model card"),
    "Mistral-Small-24B": Published(23.6e9, "checkpoint metadata, without the vision encoder of 3.1"),
    "Mistral-Large-2": Published(122.6e9, "checkpoint metadata"),
    "Mistral-Large-3": Published(673e9, "model card, without the vision encoder", 39e9, "head"),
    "PaLM-540B": Published(540.35e9, "Chowdhery 2022, table 1", tolerance=1e-4),
}


def _active(model: Transformer, counted: str) -> int:
    tables = {"both": model.active_parameters, "head": model.matmul_parameters}
    return tables.get(counted, model.active_parameters - model.embedding_elements)


def test_every_catalog_model_has_a_published_figure() -> None:
    assert sorted(PUBLISHED) == sorted(model_names())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_match_the_published_figure(name: str) -> None:
    published, model = PUBLISHED[name], load_model(name)
    assert model.parameters == pytest.approx(published.total, rel=published.tolerance), published.source
    if published.active is None:
        assert model.active_parameters == model.parameters - model.looked_up
    else:
        active = _active(model, published.counted)
        assert active == pytest.approx(published.active, rel=published.active_tolerance), published.source


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("Llama-2-7B", 2 * 32 * 32 * 128 * 2),
        ("Llama-3.1-8B", 128 * 1024),
        ("Llama-3.1-70B", 2 * 80 * 8 * 128 * 2),
        ("OPT-175B", 2 * 96 * 12288 * 2),
        ("DeepSeek-V3", 61 * (512 + 64) * 2),
        ("DeepSeek-V3.2", 61 * ((512 + 64) * 2 + 132)),
        ("PaLM-540B", 118 * 2 * 256 * 2),
        ("Qwen3-Next-80B-A3B", 12 * 2 * 2 * 256 * 2),
        ("gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
    ],
)
def test_kv_bytes_per_token(name: str, per_token: int) -> None:
    assert load_model(name).kv_bytes_per_token("bf16") == per_token


def test_gpt_oss_keeps_a_window_in_half_of_its_layers() -> None:
    per_layer = 2 * 8 * 64 * 2
    assert load_model("gpt-oss-120b").kv_bytes(10_000.0, "bf16") == 18 * per_layer * (10_000 + 128)


def test_linear_attention_holds_a_state_from_the_first_token() -> None:
    model = load_model("Qwen3-Next-80B-A3B")
    state = 36 * (4 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128))
    assert model.state_bytes == state
    assert model.kv_bytes(0.0, "bf16") == state
    assert model.kv_bytes(1000.0, "bf16") == state + 1000 * 24576


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


def test_matmul_parameters_leave_looked_up_tables_out() -> None:
    untied, tied = load_model("Llama-3.1-8B"), load_model("OPT-13B")
    assert untied.parameters - untied.matmul_parameters == 128256 * 4096
    assert tied.parameters - tied.matmul_parameters == 2050 * 5120


def _model(*attentions: Attention) -> Transformer:
    block = FeedForward(256, 512, gated=True)
    layers = tuple(LayerGroup(2, attention, block) for attention in attentions)
    return Transformer("tiny", 256, 1000, layers, False, 10**6)


def _softmax(window: int | None) -> SoftmaxAttention:
    return SoftmaxAttention(hidden=256, heads=8, kv_heads=2, head_dim=32, value_dim=32, window=window)


windows = st.one_of(st.none(), st.integers(1, 5000))
lengths = st.floats(0, 20_000, allow_nan=False)


@settings(deadline=None, max_examples=100)
@given(window=windows, short=lengths, extra=lengths)
def test_a_longer_context_never_holds_less(window: int | None, short: float, extra: float) -> None:
    model = _model(_softmax(window), LinearAttention(256, 2, 4, 16, 16, 4))
    assert model.kv_bytes(short + extra, "bf16") >= model.kv_bytes(short, "bf16")


@settings(deadline=None, max_examples=100)
@given(context=lengths, dtype=st.sampled_from(["bf16", "fp8"]))
def test_without_windows_the_cache_is_the_rate_times_the_context(context: float, dtype: str) -> None:
    model = _model(_softmax(None), LatentAttention(256, 8, 64, 32, 16, 32, 32, 4, 16, 64))
    assert model.kv_bytes(context, dtype) == pytest.approx(model.kv_bytes_per_token(dtype) * context)


@settings(deadline=None, max_examples=60)
@given(window=windows, isl=st.integers(0, 4000), osl=st.integers(1, 3000))
def test_mean_cache_is_the_integral_over_the_generation(window: int | None, isl: int, osl: int) -> None:
    model = _model(_softmax(window), _softmax(None), LinearAttention(256, 2, 4, 16, 16, 4))
    context = isl + np.arange(osl + 1.0)  # windows are whole, so the trapezium rule is exact
    held = model.kv_bytes(context, "bf16")
    expected = float(np.sum(0.5 * (held[1:] + held[:-1])) / osl)
    assert model.mean_kv_bytes(float(isl), float(osl), "bf16") == pytest.approx(expected)


# --- how tokens fall onto experts: values by hand and limits that hold whatever the routing


def test_a_spread_popularity_leaves_more_experts_idle() -> None:
    tokens = np.array([1.0, 4.0, 64.0, 1e7])
    even, spread = (touched_experts(128, 4, tokens, width) for width in (0.0, 1.0))
    assert even[0] == spread[0] == pytest.approx(4.0)
    assert np.all(spread[1:3] < even[1:3])
    assert spread[3] == pytest.approx(128.0, rel=1e-4)
    assert touched_experts(128, 4, tokens, 1e-6) == pytest.approx(even, rel=1e-4)
    reached = 63.0 * -np.log1p(-4 / 128)  # by hand: gamma of width 1 leaves 1 / (1 + x) idle
    assert spread[2] == pytest.approx(4 + 124 * (1 - 1 / (1 + reached)))


def test_the_tables_routing_spreads_out_as_the_batch_grows() -> None:
    widths = sampled_spread(np.array([1.0, 2.0, 8.0, 64.0, 4096.0]))
    assert widths[0] == pytest.approx(0, abs=1e-5)
    assert np.all(np.diff(widths) > 0)
    most = 0.8 * 8  # E[x] = (M - 1) / ln M, E[x^2] = (M^2 - 1) / (2 ln M) for a density of 1 / (x ln M)
    mean, square = (most - 1) / np.log(most), (most**2 - 1) / (2 * np.log(most))
    assert widths[2] == pytest.approx(SAMPLED_SPREAD * np.sqrt(square / mean**2 - 1))


def test_the_largest_of_normals_is_near_its_tables() -> None:
    """Expected maxima of standard normal samples (Teichroew 1956): 0.5642, 1.0294, 1.4236, 2.0697."""
    for count, expected in ((2, 0.5642), (4, 1.0294), (8, 1.4236), (32, 2.0697)):
        assert largest_of(count) == pytest.approx(expected, rel=0.05)
    assert largest_of(1) == 0


def test_one_token_wakes_one_expert_of_the_busiest_rank() -> None:
    ranks = np.array([[8.0]])
    routed = busiest_expert_rank(8, 2, np.array([[1.0]]), ranks, np.ones((1, 1)))
    assert (routed.rows[0, 0], routed.touched[0, 0], routed.elsewhere[0, 0]) == (1.0, 1.0, 1.0)


@given(
    experts=st.sampled_from([8, 64, 256]),
    per_token=st.sampled_from([1, 2, 8]),
    ranks=st.sampled_from([1, 2, 8]),
    skew=st.floats(0, 10),
    tokens=st.integers(1, 20_000),
)
@settings(deadline=None, max_examples=100)
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
