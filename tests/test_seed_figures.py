"""Every figure of the seed documents that has a value and a tolerance comes out of the library."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodel.engine import NO_OVERHEAD
from costmodel.kernels import (
    ELEMENTWISE_LAUNCH,
    arithmetic_intensity,
    decode_limit,
    decode_tpot,
    elementwise_kernels,
    prefill_flop,
    prefill_time,
    required_bandwidth,
    static_batching_idle,
)
from costmodel.memory import kv_transfer_time
from costmodel.step import StepLoad, step_time_one
from costmodel.transformer import Transformer
from costmodel.units import GIGA, TERA
from tests.toy import llama2_7b, llama_8b, opt_175b, perfect_accelerator, toy_accelerator, toy_config

PEAK_A100, BANDWIDTH_A100 = 312 * TERA, 2 * TERA
BANDWIDTH_H100 = 3.35 * TERA


def intensity_over_weights(model: Transformer, load: StepLoad, weights: float) -> float:
    """FLOP of a step's matrices per byte of 16-bit weights read: its FLOP less that of attention's pairs."""
    step = step_time_one(model, toy_config(perfect_accelerator()), NO_OVERHEAD, load)
    prompt = float(load.prefill_tokens[0, 0])
    pairs = (
        sum(group.count * group.attention.prefill_flop_per_pair for group in model.layers) * prompt * (prompt + 1) / 2
    )
    return float(arithmetic_intensity(step.flop[0, 0] - pairs, 2.0 * weights))


def decode_intensity(batch: int) -> float:
    """Every weight but the input embedding's is read for `batch` tokens."""
    model = llama2_7b()
    return intensity_over_weights(model, StepLoad.decode(batch, 0), model.parameters - model.hidden * model.vocab)


def prefill_intensity(tokens: int) -> float:
    """The layers' weights are read for all tokens; the output head works on the last one only."""
    model = llama2_7b()
    return intensity_over_weights(model, StepLoad.prefill(tokens), model.parameters - model.embedding_elements)


CASES: dict[str, tuple[Callable[[], float], float, float]] = {
    "prefill_flop_7b": (lambda: prefill_flop(7e9, 4096.0), 5.734e13, 0.001),
    "prefill_time_7b_a100": (lambda: prefill_time(7e9, 4096.0, PEAK_A100, 0.5), 0.3676, 0.001),
    "decode_tpot_7b_a100": (lambda: decode_tpot(14e9, BANDWIDTH_A100, 1.0, 0.0), 0.007, 0.001),
    "decode_tpot_batched": (lambda: decode_tpot(14e9, BANDWIDTH_A100, 8.0, 0.5e9) / 8, 0.001125, 0.001),
    "chunk_time_7b_a100": (lambda: prefill_time(7e9, 512.0, PEAK_A100, 0.5), 0.04595, 0.001),
    "kv_transfer_bytes_7b_gqa": (lambda: llama_8b().kv_bytes(4096.0, "bf16"), 536870912, 0),  # 128 KiB per token
    "kv_transfer_bw": (lambda: required_bandwidth(512e6, 0.1), 5.12e9, 0.001),
    "static_idle": (lambda: static_batching_idle((100, 200, 400), 0.007), 3.5, 0.001),
    "ridge_h100": (lambda: toy_accelerator().ridge_point("bf16"), 295.2, 0.001),
    "decode_limit_8b_h100": (lambda: decode_limit(16e9, BANDWIDTH_H100, 1.0), 209.4, 0.001),
    "decode_real_8b_h100": (lambda: decode_limit(16e9, BANDWIDTH_H100, 0.6), 125.6, 0.005),
    "ai_decode": (lambda: decode_intensity(1), 1.0, 0.02),
    "ai_decode_batch": (lambda: decode_intensity(64), 64, 0.02),
    "ai_prefill": (lambda: prefill_intensity(2048), 2048, 0.02),
    "kv_per_token": (lambda: llama2_7b().kv_bytes_per_token("bf16"), 524288, 0),
    "kv_transfer_opt175b": (lambda: kv_transfer_time(opt_175b().kv_bytes(2048.0, "bf16"), 600 * GIGA), 0.0176, 0.02),
}


@pytest.mark.parametrize("row", CASES)
def test_seed_figure(row: str) -> None:
    compute, expected, tolerance = CASES[row]
    assert compute() == pytest.approx(expected, rel=tolerance, abs=0)


@pytest.mark.parametrize("tokens", [1, 64, 2048])
def test_a_step_has_two_flop_for_each_16_bit_weight_and_token(tokens: int) -> None:
    assert decode_intensity(tokens) == pytest.approx(tokens, rel=1e-9)


def test_closed_forms_are_the_limits_of_the_step() -> None:
    """On a GPU without losses a long prompt takes 2 N T / peak and a lone decode reads the weights once."""
    model, config = llama2_7b(), toy_config(perfect_accelerator())
    gpu = config.accelerator
    weights = model.parameters - model.hidden * model.vocab
    decode = step_time_one(model, config, NO_OVERHEAD, StepLoad.decode(1, 0))
    small = sum(group.count * elementwise_kernels(group) for group in model.layers) * ELEMENTWISE_LAUNCH
    floor = decode_tpot(2.0 * weights, gpu.bandwidth, 1.0, 0.0)
    assert decode.total[0, 0] - small == pytest.approx(floor, rel=0.001)
    prefill = step_time_one(model, config, NO_OVERHEAD, StepLoad.prefill(4096))
    body = model.parameters - 2 * model.hidden * model.vocab
    expected = prefill_time(float(body), 4096.0, gpu.peak_flops["bf16"], 1.0)
    gemm_only = prefill.gemm[0, 0]
    assert expected < gemm_only < 1.13 * expected  # norms and activations move a tenth more, at 0.8 of the bandwidth


def test_every_row_with_a_value_is_covered(data: Path) -> None:
    with (data / "seed_figures.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["value"] and row["rel_tol"]}
    assert rows.keys() == CASES.keys()
    for name, row in rows.items():
        _, expected, tolerance = CASES[name]
        assert expected == float(row["value"].split(" to ")[0]), name
        assert tolerance == float(row["rel_tol"]), name
