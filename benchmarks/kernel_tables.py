"""Reads the measured kernel tables and turns each into FLOP, bytes and seconds, ready to be fitted.

The counting here is the counting of the cost model: what a kernel must compute and move, nothing of how it does so.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from costmodel.calibration.curves import EfficiencyCurve, curve_time
from costmodel.calibration.fit import Samples, single_kernels

Array = NDArray[np.float64]
Row = dict[str, str]

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = {"a100_sxm": "A100-80", "h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "l40s": "L40S"}
"""Accelerator names by the tables' system names."""

DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "half": "bf16"}
ELEMENT = {"bf16": 2.0, "fp8": 1.0}
WIDE = 2.0
"""Bytes of an activation between kernels: 16 bit, whatever the kernel computes in."""

TOKEN_EDGES = (1.5, 16.5, 64.5, 511.5, 2048.5)
BYTE_EDGES = (1e6, 1e7, 1e8, 1e9)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Data sheet: peak [FLOP/s] by dtype, bandwidth of memory and of the link in one direction [byte/s]."""

    peak: dict[str, float]
    bandwidth: float
    link: float


def data_folder() -> Path:
    """Folder of the measurements: PDPLAN_DATA, else ../shared/data beside the repository."""
    return Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))


def rows_of(path: Path) -> list[Row]:
    """Rows of a CSV file, compressed or not."""
    opener: Callable[..., object] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as handle:  # type: ignore[attr-defined]
        return list(csv.DictReader(handle))


def load_hardware() -> dict[str, Hardware]:
    """Data-sheet figures of the measured accelerators, from the catalog."""
    text = (ROOT / "costmodel" / "catalog" / "accelerators.yaml").read_text(encoding="utf-8")
    entries = yaml.safe_load(text)["accelerators"]
    return {
        name: Hardware(
            peak={dtype: tera * 1e12 for dtype, tera in entries[name]["tflops"].items()},
            bandwidth=entries[name]["bandwidth_tb_s"] * 1e12,
            link=entries[name]["scale_up"]["gb_s"] * 1e9,
        )
        for name in SYSTEMS.values()
    }


def columns(rows: list[Row], *names: str) -> list[Array]:
    """Numeric columns."""
    return [np.array([float(row[name]) for row in rows]) for name in names]


def regime(value: Array, edges: tuple[float, ...]) -> NDArray[np.int64]:
    """Index of the bin that each value falls into."""
    return np.digitize(value, edges)


def touched_experts(experts: Array, chosen: Array, tokens: Array) -> Array:
    """Expected experts that at least one of `tokens` picks, routing evenly: E (1 - (1 - k/E)^T)."""
    return np.asarray(experts * (1.0 - (1.0 - chosen / experts) ** tokens))


def gemm_samples(rows: list[Row], hardware: Hardware, dtype: str) -> Samples:
    """GEMMs: FLOP 2mnk; bytes: weights and inputs in `dtype`, outputs at 16 bit, each once. Sizes of real layers only.

    Kept: n, k >= 768 and 2^20 <= n k < 2^29.5 (a shard of an 8B layer up to a whole layer of the largest models),
    m <= 16,384 (the largest chunk in use). A matrix weighs as many parameters as it has: a step is a sum of times.
    """
    m, n, k, milliseconds = columns(rows, "m", "n", "k", "latency_ms")
    real = (n >= 768) & (k >= 768) & (n * k >= 2**20) & (n * k < 2**29.5) & (m <= 16384)
    m, n, k, seconds = m[real], n[real], k[real], milliseconds[real] * 1e-3
    traffic = n * k * ELEMENT[dtype] + m * (k * ELEMENT[dtype] + n * WIDE)
    bins = regime(m, TOKEN_EDGES)
    return single_kernels(
        2 * m * n * k,
        traffic,
        seconds,
        bins,
        peak=hardware.peak[dtype],
        bandwidth=hardware.bandwidth,
        size=m * n,
        inputs=m * k,
        importance=n * k,
    )


def prefill_samples(rows: list[Row], hardware: Hardware, dtype: str, head_dim: int = 128) -> Samples:
    """Causal prefill attention: 4 d FLOP per head and pair of s(s+1)/2; bytes: Q and O at 16 bit, K and V once.

    `dtype` is that of the KV cache; attention is measured against the 16-bit peak whatever it is.
    Kept: head width 128, s >= 128, at least 4 heads, at most 32,768 tokens at once.
    """
    b, s, heads, kv, d, milliseconds = columns(
        rows, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "latency_ms"
    )
    real = (s >= 128) & (heads >= 4) & (b * s <= 32768) & (d == head_dim)
    b, s, heads, kv, d, seconds = (x[real] for x in (b, s, heads, kv, d, milliseconds * 1e-3))
    flop = 4 * b * heads * d * s * (s + 1) / 2
    traffic = 2 * b * s * d * (WIDE * heads + ELEMENT[dtype] * kv)
    bins = regime(s, (600, 1600, 5000))
    return single_kernels(
        flop, traffic, seconds, bins, peak=hardware.peak["bf16"], bandwidth=hardware.bandwidth, size=s
    )


def decode_samples(rows: list[Row], hardware: Hardware, dtype: str) -> Samples:
    """Decode attention: 4 d FLOP per head and cached token, against the 16-bit peak; bytes: K and V once."""
    b, s, heads, kv, d, milliseconds = columns(
        rows, "batch_size", "kv_len", "num_heads", "num_key_value_heads", "head_dim", "latency_ms"
    )
    real = (s >= 64) & (heads >= 4) & (b <= 1024)
    b, s, heads, kv, d, seconds = (x[real] for x in (b, s, heads, kv, d, milliseconds * 1e-3))
    traffic = 2 * b * s * kv * d * ELEMENT[dtype]
    bins = regime(traffic, BYTE_EDGES)
    return single_kernels(
        4 * b * heads * d * s,
        traffic,
        seconds,
        bins,
        peak=hardware.peak["bf16"],
        bandwidth=hardware.bandwidth,
        size=traffic,
    )


def moe_samples(rows: list[Row], hardware: Hardware, dtype: str) -> Samples:
    """Fused mixture of experts without expert parallelism: three matrices h x i per touched expert, read once.

    Rows with expert parallelism time the rank that the skewed routing loads most, which an even-routing count
    cannot describe; ungated experts (two matrices) are left out too.
    """
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    tokens, hidden, inter, topk, experts, tensor, expert, milliseconds = columns(rows, *names, "latency_ms")
    ungated = (inter == 1856) | (inter == 2688) | (topk == 22)
    width = inter / tensor
    real = (expert == 1) & ~ungated & (tokens <= 16384) & (hidden * width >= 2**19)
    tokens, hidden, width, topk, experts = (x[real] for x in (tokens, hidden, width, topk, experts))
    touched = touched_experts(experts, topk, tokens)
    pairs = tokens * topk
    traffic = touched * 3 * hidden * width * ELEMENT[dtype] + pairs * WIDE * (2 * hidden + 3 * width)
    return single_kernels(
        6 * pairs * hidden * width,
        traffic,
        milliseconds[real] * 1e-3,
        regime(tokens, TOKEN_EDGES),
        peak=hardware.peak[dtype],
        bandwidth=hardware.bandwidth,
        size=pairs / touched,
        inputs=pairs * hidden,
        importance=hidden * width,
    )


def collective_samples(rows: list[Row], hardware: Hardware, operation: str) -> Samples:
    """Collectives over the scale-up link: bytes over one GPU's link in one direction.

    all-reduce 2 (n-1)/n S, all-to-all (n-1)/n S, with S the message of one GPU [byte].
    """
    size, gpus, milliseconds = columns(rows, "message_bytes", "num_gpus", "latency_ms")
    share = (2.0 if operation == "all_reduce" else 1.0) * (gpus - 1) / gpus
    traffic = share * size
    bins = regime(size, (64e3, 1e6, 16e6))
    return single_kernels(np.zeros_like(size), traffic, milliseconds * 1e-3, bins, peak=1.0, bandwidth=hardware.link)


HIDDEN, QUERY_RANK, LATENT, ROPE, NOPE, VALUE = 7168, 1536, 512, 64, 128, 128
"""DeepSeek-V3, whose attention module the MLA tables time (its config.json)."""


def projection_time(curve: EfficiencyCurve, hardware: Hardware, tokens: Array, heads: Array) -> Array:
    """Time of the module's five projections in BF16 [s]: they are GEMMs, so the GEMM fit prices them."""
    ones = np.ones_like(heads)
    shapes = (
        (HIDDEN * ones, QUERY_RANK * ones),
        (QUERY_RANK * ones, heads * (NOPE + ROPE)),
        (HIDDEN * ones, (LATENT + ROPE) * ones),
        (LATENT * ones, heads * (NOPE + VALUE)),
        (heads * VALUE, HIDDEN * ones),
    )
    total = np.zeros_like(tokens)
    for k, n in shapes:
        traffic = WIDE * (n * k + tokens * (n + k))
        total += curve_time(
            curve,
            2 * tokens * n * k,
            traffic,
            peak=hardware.peak["bf16"],
            bandwidth=hardware.bandwidth,
            size=tokens * n,
            inputs=tokens * k,
        )
    return total


def latent_samples(rows: list[Row], hardware: Hardware, dtype: str, phase: str, gemm: EfficiencyCurve) -> Samples:
    """MLA modules with BF16 projections; the projections, priced by the GEMM fit, are the rows' known offset.

    Prefill decompresses the latent: 2 (d_nope + d_rope + d_v) FLOP per head and causal pair. Decode absorbs it:
    2 (2 r + d_rope) FLOP per head and cached token, and reads r + d_rope elements per token.
    """
    heads, b, isl, past, milliseconds = columns(rows, "num_heads", "batch_size", "isl", "step", "latency_ms")
    if phase == "latent_prefill":
        tokens, size = b * isl, isl
        flop = 2 * heads * (NOPE + ROPE + VALUE) * b * isl * (isl + 1) / 2
        traffic = tokens * ((LATENT + ROPE) * ELEMENT[dtype] + 2 * WIDE * HIDDEN * heads / 128)
        real = (isl >= 128) & (tokens <= 32768) & (heads >= 8)
        bins = regime(isl, (600, 1600, 5000))
    else:
        tokens = b
        flop = 2 * heads * (2 * LATENT + ROPE) * b * (past + 1)
        traffic = b * (past + 1) * (LATENT + ROPE) * ELEMENT[dtype]
        size = traffic
        real = (past >= 64) & (b <= 1024) & (heads >= 8)
        bins = regime(traffic, BYTE_EDGES)
    offset = projection_time(gemm, hardware, tokens, heads)
    samples = single_kernels(
        flop,
        traffic,
        milliseconds * 1e-3,
        bins,
        peak=hardware.peak["bf16"],
        bandwidth=hardware.bandwidth,
        size=size,
        offset=offset,
    )
    return samples.where(real)
