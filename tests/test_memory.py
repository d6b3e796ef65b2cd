"""Memory of a GPU: by hand, against figures that engines print at start-up, and as properties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from costmodel.accelerator import Link
from costmodel.engine import Parallelism
from costmodel.memory import (
    activation_bytes,
    hand_over_cards,
    kv_bytes_peak_per_gpu,
    kv_bytes_per_request_per_gpu,
    kv_bytes_per_token_per_gpu,
    kv_capacity_bytes,
    kv_transfer_time,
    max_requests,
    runtime_bytes,
    stage_layers,
    transfer_bandwidth,
    weight_bytes_per_gpu,
)
from costmodel.transformer import Transformer
from costmodel.units import GIB
from search_spaces.catalog import load_catalog
from search_spaces.engines import load_engine_memory
from search_spaces.models import load_model
from tests.toy import deepseek_v3, llama_8b, llama_70b, mixtral, toy_config, windowed

MODELS = {model.name: model for model in (llama_8b(), llama_70b(), windowed(), mixtral(), deepseek_v3())}
models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)


def test_weights_of_one_gpu_are_the_model() -> None:
    for model in MODELS.values():
        assert weight_bytes_per_gpu(model, toy_config()) == pytest.approx(model.weight_bytes("bf16"), rel=1e-12)
    assert weight_bytes_per_gpu(llama_70b(), toy_config()) / GIB == pytest.approx(131.4, abs=0.1)


def test_weights_split_over_tensor_ranks_but_not_the_replicated_ones() -> None:
    whole, eighth = (weight_bytes_per_gpu(llama_70b(), toy_config(tensor=t)) for t in (1, 8))
    assert eighth == whole / 8
    model = deepseek_v3()
    replicated = 2 * 61 * (7168 * 1536 + 7168 * 576) + 2 * 58 * 7168 * 256
    whole, eighth = (weight_bytes_per_gpu(model, toy_config(tensor=t, expert=t)) for t in (1, 8))
    assert eighth == pytest.approx(replicated + (whole - replicated) / 8, rel=1e-12)


def test_ranks_hold_as_many_experts_each_where_they_do_not_divide() -> None:
    """EP 72 of 256 experts: 288 places, four on every rank."""
    model = deepseek_v3()
    expert = 2 * 58 * 3 * 7168 * 2048
    fewer, more = (weight_bytes_per_gpu(model, toy_config(data=d, expert=d)) for d in (64, 72))
    assert more == pytest.approx(fewer, rel=1e-12)
    assert weight_bytes_per_gpu(model, toy_config(data=128, expert=128)) == pytest.approx(more - 2 * expert, rel=1e-12)
    assert [model.redundant_experts(ranks) for ranks in (1, 64, 72, 320)] == [0, 0, 32, 64]


def test_pipeline_stages_cover_all_layers_and_the_worst_counts() -> None:
    assert sum(stage_layers(80, 7)) == 80
    model = llama_8b()
    layer = (model.weight_bytes("bf16") - 2 * model.hidden * model.vocab * 2) / 32
    table = model.hidden * model.vocab * 2
    assert weight_bytes_per_gpu(model, toy_config(pipeline=2)) == pytest.approx(16 * layer + table)
    assert stage_layers(32, 3) == (11, 11, 10)
    assert weight_bytes_per_gpu(model, toy_config(pipeline=3)) == pytest.approx(11 * layer + table)
    tied = Transformer("tied", model.hidden, model.vocab, model.layers, tied_embeddings=True, max_position=8192)
    assert weight_bytes_per_gpu(tied, toy_config()) == pytest.approx(32 * layer + table)
    assert weight_bytes_per_gpu(tied, toy_config(pipeline=2)) == pytest.approx(16 * layer + table)


LOGS = yaml.safe_load((Path(__file__).parent / "start_up_logs.yaml").read_text("utf-8"))


@pytest.mark.parametrize("row", LOGS["kv_cache"], ids=lambda row: row["name"])
def test_kv_capacity_is_what_engines_print(row: dict[str, Any]) -> None:
    accelerator = load_catalog().accelerator(row["gpu"])
    accelerator = replace(accelerator, memory=row.get("hbm_gib", accelerator.memory / GIB) * GIB)
    config = toy_config(accelerator, memory=load_engine_memory(row.get("engine", "vllm")), **row["settings"])
    gib = row["gib"] if "gib" in row else row["tokens"] * row["bytes_per_token"] / GIB
    assert kv_capacity_bytes(load_model(row["model"]), config) / GIB == pytest.approx(gib, rel=0.06)


def test_engines_grant_their_share_of_different_things() -> None:
    """By hand: 80 GiB, of which start-up takes s, weights w and activations a."""
    for name, granted in {
        "vllm": lambda s, w, a: 0.9 * 80 - s - w - a,
        "sglang": lambda s, w, a: min(0.9 * (80 - s) - w, 80 - s - w - a),
        "trtllm": lambda s, w, a: 0.9 * (80 - s - w - a),
    }.items():
        config = toy_config(tensor=4, memory=load_engine_memory(name))
        weights = weight_bytes_per_gpu(llama_70b(), config)
        taken = (runtime_bytes(config), weights, activation_bytes(llama_70b(), config))
        expected = granted(*(each / GIB for each in taken))
        assert kv_capacity_bytes(llama_70b(), config) / GIB == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("engine", "per_token"), [("vllm", 61 * 708), ("trtllm", 61 * 708), ("sglang", 61 * 788)])
def test_sparse_latents_in_fp8_are_what_engines_store(engine: str, per_token: int) -> None:
    """576 bytes and the index key's 132 of each of 61 layers; SGLang has 656 (log: 43.67 GiB hold 975,424 tokens)."""
    config = toy_config(kv_dtype="fp8", memory=load_engine_memory(engine))
    assert kv_bytes_per_token_per_gpu(load_model("DeepSeek-V3.2"), config) == pytest.approx(per_token)


@pytest.mark.parametrize("row", LOGS["weights"])
def test_mxfp4_experts_are_padded(row: dict[str, Any]) -> None:
    """Hidden size 2,880 and width 2,880 become 3,072 and 2,944; what is left is biases and norms, below 0.5 %."""
    config = toy_config(load_catalog().accelerator(row["gpu"]), weight_dtype="fp4")
    assert weight_bytes_per_gpu(load_model(row["model"]), config) / GIB == pytest.approx(row["gib"], rel=0.005)


@pytest.mark.parametrize(
    ("gpu", "tensor", "expert", "hidden", "width"),
    [
        ("H100", 1, 1, 3072, 2880),
        ("H100", 8, 1, 3072, 384),
        ("H100", 8, 8, 3072, 2880),
        ("A100-80", 8, 1, 3072, 384),
        ("B200", 1, 1, 3072, 3072),
        ("B200", 8, 1, 3072, 512),
        ("B200", 8, 8, 3072, 3072),
        ("MI355X", 4, 1, 3072, 768),
    ],
)
def test_padding_is_of_a_ranks_share(gpu: str, tensor: int, expert: int, hidden: int, width: int) -> None:
    model, accelerator = load_model("gpt-oss-120b"), load_catalog().accelerator(gpu)
    padded = toy_config(accelerator, weight_dtype="fp4", tensor=tensor, expert=expert)
    bare = toy_config(replace(accelerator, mxfp4_multiples=(1, 1)), weight_dtype="fp4", tensor=tensor, expert=expert)
    added = weight_bytes_per_gpu(model, padded) - weight_bytes_per_gpu(model, bare)
    experts = 36 * 128 // expert * 3 * (17 / 32)
    assert added == pytest.approx(experts * (hidden * width - 2880 * 2880 * expert / tensor), abs=1e3)


def test_kv_of_a_request_by_hand() -> None:
    """128 KiB a token; the mean context of a request is ISL + OSL / 2, its end ISL + OSL."""
    assert kv_bytes_per_request_per_gpu(llama_8b(), toy_config(), 1000.0, 200.0) == 1100 * 131072
    assert kv_bytes_peak_per_gpu(llama_8b(), toy_config(), 1200.0) == 1200 * 131072
    assert kv_bytes_per_token_per_gpu(llama_8b(), toy_config(kv_dtype="fp8")) == 65536


@pytest.mark.parametrize(("tensor", "share"), [(1, 1), (4, 4), (8, 8), (16, 8)])
def test_kv_is_replicated_beyond_the_kv_heads(tensor: int, share: int) -> None:
    assert kv_bytes_per_token_per_gpu(llama_8b(), toy_config(tensor=tensor)) == 131072 / share
    latent = 61 * (512 + 64) * 2
    assert kv_bytes_per_token_per_gpu(deepseek_v3(), toy_config(tensor=tensor)) == latent


def test_requests_are_bounded_by_memory_then_by_max_num_seqs() -> None:
    config = toy_config(tensor=2, max_num_seqs=512)
    free = kv_capacity_bytes(llama_70b(), config)
    each = kv_bytes_per_request_per_gpu(llama_70b(), config, 2000.0, 400.0)
    assert max_requests(llama_70b(), config, 2000, 400) == int(free // each) < 20
    assert max_requests(llama_8b(), toy_config(max_num_seqs=16), 100, 100) == 16
    assert max_requests(llama_8b(), toy_config(max_model_len=1000), 900, 101) == 0
    assert max_requests(llama_70b(), config, 30_000, 100) == 0


@given(
    model=models,
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 3, 4]),
    data=st.sampled_from([1, 4]),
    isl=st.integers(1, 16000),
    osl=st.integers(1, 16000),
)
def test_more_gpus_never_hold_more_each(
    model: Transformer, tensor: int, pipeline: int, data: int, isl: int, osl: int
) -> None:
    small = toy_config(tensor=tensor, pipeline=pipeline, data=data)
    for times in ((2, 1, 1), (1, 2, 1), (1, 1, 2)):
        wider = toy_config(tensor=times[0] * tensor, pipeline=times[1] * pipeline, data=times[2] * data)
        assert weight_bytes_per_gpu(model, wider) <= weight_bytes_per_gpu(model, small) * (1 + 1e-12)
        kept = [activation_bytes(model, each) + runtime_bytes(each) for each in (wider, small)]
        assert kept[0] <= kept[1] or small.gpus == 1 or small.parallelism.tensor == 1
        assert max_requests(model, wider, isl, osl) >= max_requests(model, small, isl, osl)
    mean = kv_bytes_per_request_per_gpu(model, small, float(isl), float(osl))
    assert 0 < mean <= kv_bytes_peak_per_gpu(model, small, float(isl + osl))


# --- KV hand-over: bytes and times


def test_mooncake_moves_40_gb_of_llama_70b() -> None:
    """Mooncake FAST'25 §4: 128k tokens of LLaMA3-70B are 40 GB; 87 GB/s on 4 x 200 Gb/s, 190 GB/s on 8 x 400 Gb/s."""
    size = llama_70b().kv_bytes(128e3, "bf16")
    assert size == pytest.approx(40e9, rel=0.06)
    for nics, gbit, reached in ((4, 200, 87e9), (8, 400, 190e9)):
        link = Link(gbit * 1e9 / 8, 5e-6)
        wire = transfer_bandwidth(link, link, nics, nics)
        assert kv_transfer_time(size, wire) < size / reached
        assert reached < wire


@pytest.mark.parametrize(
    ("name", "split", "cards"),
    [
        ("Llama-3.1-70B", Parallelism(8), 8.0),
        ("Llama-3.1-70B", Parallelism(4, 2), 8.0),
        ("Llama-3.1-70B", Parallelism(16), 8.0),  # 8 KV heads, each on two ranks
        ("Qwen3-30B-A3B", Parallelism(8), 4.0),
        ("DeepSeek-V3", Parallelism(8), 1.0),  # every rank holds the whole latent, and is sent all of it
        ("DeepSeek-V3", Parallelism(8, 1, 8, 4), 1.0),
    ],
)
def test_one_copy_uses_the_cards_of_what_is_no_copy(name: str, split: Parallelism, cards: float) -> None:
    engine = toy_config(parallelism=split)
    assert hand_over_cards(load_model(name), engine, np.array([500.0, 4000.0]), np.array([0.3, 0.7])) == cards
