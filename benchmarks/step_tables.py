"""Reads engine steps composed from measured kernels, split by class: evidence for GPUs without kernel tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernel_tables import BYTE_EDGES, ELEMENT, TOKEN_EDGES, WIDE, Array, Hardware, Row, regime, touched_experts

from costmodel.calibration.fit import Samples

CONFIGS = {
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a config.json counts here."""

    layers: int
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    vocab: int
    experts: int
    topk: int

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


def load_shapes(folder: Path) -> dict[str, Shape]:
    """Shapes of the models in the table."""
    shapes = {}
    for name, path in CONFIGS.items():
        config = json.loads((folder / "models" / path / "config.json").read_text(encoding="utf-8"))
        shapes[name] = Shape(
            config["num_hidden_layers"],
            config["hidden_size"],
            config["intermediate_size"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["vocab_size"],
            config.get("num_local_experts", 0),
            config.get("num_experts_per_tok", 0),
        )
    return shapes


def gemms_of(row: Row, shape: Shape) -> list[tuple[float, float, float, float]]:
    """(count, m, n, k) of a step's GEMMs: QKV, output, dense feed-forward (or router), vocabulary."""
    tensor = int(row["tp"])
    batch = float(row["batch"])
    tokens = batch * float(row["seq"]) if row["phase"] == "prefill" else batch
    queries = shape.hidden / tensor
    kv = 2 * shape.head_dim * max(shape.kv_heads / tensor, 1)
    layer = [(tokens, queries + kv, shape.hidden), (tokens, shape.hidden, queries)]
    if shape.experts:
        layer += [(tokens, shape.experts, shape.hidden), (0.0, 1.0, 1.0)]
    else:
        layer += [(tokens, 2 * shape.inter / tensor, shape.hidden), (tokens, shape.hidden, shape.inter / tensor)]
    kernels = [(float(shape.layers) if m else 0.0, max(m, 1.0), n, k) for m, n, k in layer]
    return [*kernels, (1.0, batch, shape.vocab / tensor, shape.hidden)]


def gemm_steps(rows: list[Row], shapes: dict[str, Shape], hardware: Hardware, dtype: str) -> Samples:
    """All GEMMs of a step against `gemm_ms`; the vocabulary projection stays at 16 bit but weighs little."""
    table = np.array([gemms_of(row, shapes[row["model"]]) for row in rows])
    count, m, n, k = (table[:, :, index] for index in range(4))
    seconds = np.array([float(row["gemm_ms"]) * 1e-3 for row in rows])
    return Samples(
        flop=2 * m * n * k,
        traffic=n * k * ELEMENT[dtype] + m * (k * ELEMENT[dtype] + n * WIDE),
        size=m * n,
        inputs=m * k,
        count=count,
        seconds=seconds,
        offset=np.zeros_like(seconds),
        regime=regime(m[:, 0], TOKEN_EDGES),
        importance=np.ones_like(seconds),
        peak=hardware.peak[dtype],
        bandwidth=hardware.bandwidth,
    )


def _one_kernel(
    count: Array, flop: Array, traffic: Array, size: Array, seconds: Array, edges: Array, roof: tuple[float, float]
) -> Samples:
    """Samples whose row is one kernel run `count` times."""
    zeros = np.zeros_like(seconds)
    return Samples(
        flop[:, None],
        traffic[:, None],
        size[:, None],
        zeros[:, None],
        count[:, None],
        seconds,
        zeros,
        edges.astype(np.int64),
        np.ones_like(seconds),
        *roof,
    )


def attention_steps(rows: list[Row], shapes: dict[str, Shape], hardware: Hardware, phase: str) -> Samples:
    """Attention of all layers against `attn_ms`, BF16 cache."""
    of = [shapes[row["model"]] for row in rows]
    tensor, b, s, ms = (np.array([float(row[name]) for row in rows]) for name in ("tp", "batch", "seq", "attn_ms"))
    layers = np.array([float(shape.layers) for shape in of])
    heads = np.array([shape.heads for shape in of]) / tensor
    kv = np.maximum(np.array([shape.kv_heads for shape in of]) / tensor, 1)
    d = np.array([float(shape.head_dim) for shape in of])
    roof = (hardware.peak["bf16"], hardware.bandwidth)
    if phase == "prefill":
        flop, traffic = 4 * b * heads * d * s * (s + 1) / 2, 2 * b * s * d * WIDE * (heads + kv)
        return _one_kernel(layers, flop, traffic, s, ms * 1e-3, regime(s, (600, 1600, 5000)), roof)
    flop, traffic = 4 * b * heads * d * s, 2 * b * s * kv * d * WIDE
    return _one_kernel(layers, flop, traffic, traffic, ms * 1e-3, regime(traffic, BYTE_EDGES), roof)


def tokens_of(rows: list[Row]) -> Array:
    """Tokens that a step computes."""
    return np.array([float(row["batch"]) * (float(row["seq"]) if row["phase"] == "prefill" else 1.0) for row in rows])


def moe_steps(rows: list[Row], shapes: dict[str, Shape], hardware: Hardware, dtype: str) -> Samples:
    """Experts of all layers, split by tensor only, against `moe_ms`."""
    of = [shapes[row["model"]] for row in rows]
    tokens, tensor = tokens_of(rows), np.array([float(row["moe_tp"]) for row in rows])
    experts, topk, hidden, inter, layers = (
        np.array([float(getattr(shape, name)) for shape in of])
        for name in ("experts", "topk", "hidden", "inter", "layers")
    )
    width = inter / tensor
    touched, pairs = touched_experts(experts, topk, tokens), tokens * topk
    traffic = touched * 3 * hidden * width * ELEMENT[dtype] + pairs * WIDE * (2 * hidden + 3 * width)
    seconds = np.array([float(row["moe_ms"]) * 1e-3 for row in rows])
    roof = (hardware.peak[dtype], hardware.bandwidth)
    edges = regime(tokens, TOKEN_EDGES)
    return _one_kernel(layers, 6 * pairs * hidden * width, traffic, pairs / touched, seconds, edges, roof)


def all_reduce_steps(rows: list[Row], shapes: dict[str, Shape], hardware: Hardware) -> Samples:
    """All-reduces of tokens x hidden, two per layer and one after the embedding, against `comm_ms`."""
    of = [shapes[row["model"]] for row in rows]
    gpus = np.array([float(row["tp"]) for row in rows])
    message = tokens_of(rows) * np.array([float(shape.hidden) for shape in of]) * WIDE
    traffic = 2 * (gpus - 1) / gpus * message
    count = 1 + 2 * np.array([float(shape.layers) for shape in of])
    seconds = np.array([float(row["comm_ms"]) * 1e-3 for row in rows])
    edges = regime(message, (64e3, 1e6, 16e6))
    return _one_kernel(count, np.zeros_like(traffic), traffic, traffic, seconds, edges, (1.0, hardware.link))
