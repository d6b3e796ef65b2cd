"""Handing the KV cache from a prefill engine to a decode engine: over how many cards, how quick, how long.

Functions of lengths and links take floats or arrays that broadcast together.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from .accelerator import Link
from .arrays import FloatArray
from .engine import EngineConfig
from .memory import kv_bytes_peak_per_gpu
from .speculation import with_draft
from .transformer import Transformer

Value = TypeVar("Value", float, FloatArray)

TRANSFER_EFFICIENCY = 0.92
"""Share of a link's bandwidth that KV hand-over reaches [1]; measured: DistServe moved 2048 tokens of OPT-175B over
NVLink (600 GB/s) in 17.6 ms, which is 0.915 of the link."""


def hand_over_cards(model: Transformer, config: EngineConfig, isl: Value, share: Value) -> float:
    """Network cards over which one copy of a prompt's KV leaves or reaches an engine [1].

    n = kv_bytes(ISL) / KV of the prompt on one GPU of its data rank, both as means of prompts of isl [token] by their
    share [1]. Each GPU has a card for what it holds: tp x pp, whatever dp; beyond the KV shards tensor ranks hold
    copies, and each rank of the receiver reads all that it holds from one rank of the sender, so that no card carries
    part of another's copy: for latents n = pp. Sources: vLLM's NIXL connector (vllm-project/vllm#27274: "each D worker
    reads from some other single P worker ... as MLA cache is duplicated. Some P workers will not be read from at all"),
    SGLang's `disaggregation/common/conn.py` ("for MLA models, we can retrieve KVCache from only one prefill rank").
    """
    whole = float(np.sum(with_draft(model, config.speculation).kv_bytes(isl, config.kv_dtype) * share))
    card_bytes = float(np.sum(kv_bytes_peak_per_gpu(model, config, isl) * share))
    return whole / card_bytes if card_bytes else float(config.parallelism.rank_gpus)


def transfer_bandwidth(sender: Link, receiver: Link, sender_nics: float = 1.0, receiver_nics: float = 1.0) -> float:
    """Bandwidth of a hand-over: the slower end, each end with the cards that one copy uses there [byte/s].

    min(n_s B_s, n_r B_r); n: `hand_over_cards`.

    >>> transfer_bandwidth(Link(50e9, 1e-5), Link(25e9, 1e-5), sender_nics=4, receiver_nics=4) / 1e9
    100.0
    """
    return min(sender_nics * sender.bandwidth, receiver_nics * receiver.bandwidth)


def kv_transfer_time(size: Value, bandwidth: Value, latency: float = 0.0) -> Value:
    """Time to move `size` bytes = latency + bytes / (bandwidth x `TRANSFER_EFFICIENCY`) [s].

    size [byte], as `Transformer.kv_bytes` has it of a prompt; bandwidth [byte/s], latency [s].

    >>> round(kv_transfer_time(2048 * 2 * 96 * 12288 * 2.0, 600e9), 4)  # OPT-175B, DistServe: 17.6 ms
    0.0175
    """
    return latency + size / (bandwidth * TRANSFER_EFFICIENCY)


def step_in_progress(running: FloatArray | float) -> FloatArray:
    """Chance that a request meets a decode step in progress where so many run on average: 1 - exp(-running) [1].

    An engine that pulls (`policy.Policy`) then loads the KV during one whole step more than one that is sent it.

    >>> step_in_progress(np.array([0.0, 1.0, 50.0])).round(3).tolist()
    [0.0, 0.632, 1.0]
    """
    return np.asarray(-np.expm1(-np.asarray(running)))
