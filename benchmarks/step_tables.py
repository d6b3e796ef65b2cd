"""Reads engine steps composed from measured kernels, split by class: evidence for GPUs without kernel tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernel_tables import (
    BYTE_EDGES,
    ELEMENT,
    EXPERT_EDGES,
    MATRIX_EDGES,
    PROMPT_EDGES,
    WIDE,
    Array,
    Hardware,
    Row,
    busiest,
    in_reach,
    messages_read,
    regime,
)
from numpy.typing import NDArray

from benchmarks.efficiency_curve import Samples
from costmodel.kernels import ROTARY_LAUNCH, converted_width

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


VOCABULARY = 4
"""Index of the last kernel of `gemms_of`."""


def gemm_steps(rows: list[Row], shapes: dict[str, Shape], hardware: Hardware, dtype: str) -> Samples:
    """All GEMMs of a step against `gemm_ms`; the vocabulary projection stays at 16 bit."""
    table = np.array([gemms_of(row, shapes[row["model"]]) for row in rows])
    count, m, n, k = (table[:, :, index] for index in range(4))
    seconds = np.array([float(row["gemm_ms"]) * 1e-3 for row in rows])
    wide = np.arange(5) == VOCABULARY
    element = np.where(wide, WIDE, ELEMENT[dtype])
    slower = np.where(wide, hardware.peak[dtype] / hardware.peak["bf16"], 1.0)
    return Samples(
        flop=2 * m * n * k * slower,
        traffic=n * k * element + m * (k * element + n * WIDE),
        size=m * n,
        inputs=np.where(wide, 0.0, m * k),
        count=count,
        seconds=seconds,
        offset=np.zeros_like(seconds),
        regime=regime(m[:, 0], MATRIX_EDGES),
        importance=np.ones_like(seconds),
        peak=hardware.peak[dtype],
        bandwidth=hardware.bandwidth,
        depth=k,
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """The one kernel of a row, run `count` times; the rest as in `Samples`, with one dimension less."""

    count: Array
    flop: Array
    traffic: Array
    size: Array
    inputs: Array | None = None
    depth: Array | None = None
    fill: Array | None = None
    elsewhere: Array | None = None


def one_kernel(kernel: Kernel, seconds: Array, bins: NDArray[np.int64], roof: tuple[float, float]) -> Samples:
    """Samples whose row is one kernel run `count` times."""
    zeros = np.zeros_like(seconds)
    return Samples(
        flop=kernel.flop[:, None],
        traffic=kernel.traffic[:, None],
        size=kernel.size[:, None],
        inputs=(zeros if kernel.inputs is None else kernel.inputs)[:, None],
        count=kernel.count[:, None],
        seconds=seconds,
        offset=zeros,
        regime=bins,
        importance=np.ones_like(seconds),
        peak=roof[0],
        bandwidth=roof[1],
        depth=None if kernel.depth is None else kernel.depth[:, None],
        fill=None if kernel.fill is None else kernel.fill[:, None],
        elsewhere=None if kernel.elsewhere is None else kernel.elsewhere[:, None],
    )


def attention_steps(rows: list[Row], shapes: dict[str, Shape], hardware: Hardware, phase: str) -> Samples:
    """Attention of all layers against `attn_ms`, BF16 cache; without what prefill adds before the kernel."""
    of = [shapes[row["model"]] for row in rows]
    tensor, b, s, ms = (np.array([float(row[name]) for row in rows]) for name in ("tp", "batch", "seq", "attn_ms"))
    layers = np.array([float(shape.layers) for shape in of])
    heads = np.array([shape.heads for shape in of]) / tensor
    kv = np.maximum(np.array([shape.kv_heads for shape in of]) / tensor, 1)
    d = np.array([float(shape.head_dim) for shape in of])
    roof = (hardware.peak["bf16"], hardware.bandwidth)
    if phase == "prefill":
        flop, traffic = 4 * b * heads * d * s * (s + 1) / 2, 2 * b * s * d * WIDE * (heads + kv)
        kernel = Kernel(layers, flop, traffic, s, depth=d, fill=b * s * heads)
        return one_kernel(kernel, ms * 1e-3 - layers * ROTARY_LAUNCH, regime(s, PROMPT_EDGES), roof)
    traffic = 2 * b * s * kv * d * WIDE
    kernel = Kernel(layers, 4 * b * heads * d * s, traffic, traffic)
    return one_kernel(kernel, ms * 1e-3, regime(traffic, BYTE_EDGES), roof)


def tokens_of(rows: list[Row]) -> Array:
    """Tokens that a step computes."""
    return np.array([float(row["batch"]) * (float(row["seq"]) if row["phase"] == "prefill" else 1.0) for row in rows])


def moe_steps(rows: list[Row], shapes: dict[str, Shape], hardware: Hardware, dtype: str) -> Samples:
    """Experts of all layers on the most loaded rank, routing skewed as in the tables, against `moe_ms`."""
    of = [shapes[row["model"]] for row in rows]
    tokens = tokens_of(rows)
    tensor, ranks, ms = (np.array([float(row[name]) for row in rows]) for name in ("moe_tp", "moe_ep", "moe_ms"))
    experts, topk, hidden, inter, layers = (
        np.array([float(getattr(shape, name)) for shape in of])
        for name in ("experts", "topk", "hidden", "inter", "layers")
    )
    width = inter / tensor
    routed = busiest(tokens, experts, topk, ranks, np.ones_like(tokens))
    passed = 2 * hidden + 3 * width
    kernel = Kernel(
        layers,
        6 * routed.rows * hidden * width,
        routed.touched * 3 * hidden * width * ELEMENT[dtype] + routed.rows * WIDE * passed,
        routed.rows / routed.touched,
        inputs=routed.rows * converted_width(2 * hidden, 3 * width, ELEMENT[dtype]),
        elsewhere=routed.elsewhere * passed,
    )
    return one_kernel(kernel, ms * 1e-3, regime(tokens, EXPERT_EDGES), (hardware.peak[dtype], hardware.bandwidth))


def all_reduce_steps(
    rows: list[Row], shapes: dict[str, Shape], hardware: Hardware, operation: str, *, together: bool = False
) -> Samples:
    """All-reduces of tokens x hidden, two per layer and one after the embedding, against `comm_ms`.

    together: the bytes of all ranks count, because they share one link.
    """
    of = [shapes[row["model"]] for row in rows]
    gpus = np.array([float(row["tp"]) for row in rows])
    message = tokens_of(rows) * np.array([float(shape.hidden) for shape in of]) * WIDE
    traffic = messages_read(operation, gpus) * message * (gpus if together else 1.0)
    seconds = np.array([float(row["comm_ms"]) * 1e-3 for row in rows])
    kernel = Kernel(1 + 2 * np.array([float(shape.layers) for shape in of]), np.zeros_like(traffic), traffic, traffic)
    samples = one_kernel(kernel, seconds, regime(message, (64e3, 1e6, 16e6)), (1.0, hardware.link))
    return samples.where(in_reach(operation, message))
