"""KV hand-over: bytes and times."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.accelerator import Link
from costmodel.engine import Parallelism
from costmodel.memory import hand_over_cards, kv_transfer_time, transfer_bandwidth
from search_spaces.models import load_model
from tests.toy import llama_70b, toy_config


def test_mooncake_moves_40_gb_of_llama_70b() -> None:
    """Mooncake FAST'25 §4: 128k tokens of LLaMA3-70B are 40 GB; 87 GB/s on 4 x 200 Gb/s, 190 GB/s on 8 x 400 Gb/s."""
    size = llama_70b().kv_bytes(128e3, "bf16")
    assert size == pytest.approx(40e9, rel=0.06)
    for nics, gbit, reached in ((4, 200, 87e9), (8, 400, 190e9)):
        link = Link(gbit * 1e9 / 8, 5e-6)
        wire = transfer_bandwidth(link, link, nics, nics)
        assert kv_transfer_time(size, wire) < size / reached
        assert reached < wire


def test_the_slower_end_decides() -> None:
    fast, slow = Link(50e9, 5e-6), Link(25e9, 5e-6)
    assert transfer_bandwidth(fast, slow) == transfer_bandwidth(slow, fast) == 25e9
    assert transfer_bandwidth(fast, slow, 1, 4) == 50e9


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
