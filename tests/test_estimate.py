"""`estimate`: one engine in numbers, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.accelerator import Link, Origin
from costmodel.errors import InputError
from costmodel.estimate import estimate
from costmodel.units import GIGA
from tests.toy import (
    OVERHEAD,
    llama_8b,
    llama_70b,
    toy_accelerator,
    toy_config,
)


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


@pytest.mark.parametrize(
    ("changes", "lengths", "batch", "message"),
    [
        (
            {},
            (100, 100),
            None,
            r"Llama-3.1-70B in bf16 does not fit on 1 x H100: the weights and activations need more than 90 %",
        ),
        ({"tensor": 2}, (30_000, 100), None, r"the weights, activations and the KV cache of one request need more"),
        ({"tensor": 8}, (40_000, 100), None, r"ISL \+ OSL = 40100 tokens exceed max_model_len 32768"),
        ({"tensor": 8}, (0, 100), None, r"ISL and OSL must be at least 1 token; found 0 and 100"),
        ({"tensor": 8}, (float("nan"), 100), None, r"found nan and 100"),
        ({"tensor": 8}, (100, 100), 0, r"batch must be positive; found 0"),
        ({"tensor": 8}, (100, 100), 1000, r"batch 1000 exceeds the 256 requests"),
    ],
)
def test_estimate_refuses(
    changes: dict[str, Any], lengths: tuple[float, float], batch: float | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        estimate(llama_70b(), toy_config(**changes), OVERHEAD, *lengths, batch=batch)
