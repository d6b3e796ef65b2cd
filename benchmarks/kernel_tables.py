"""Reads the measured kernel tables and turns each into FLOP, bytes and seconds, ready to be fitted.

The counting here is the counting of the cost model: what a kernel must compute and move, nothing of how it does so.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.efficiency_curve import EfficiencyCurve, Samples, curve_time, single_kernels
from costmodel.engine_arrays import TABLE_SKEW
from costmodel.kernels import LATENT_TILE, converted_width
from costmodel.queues.waits import largest_of
from costmodel.transformer import STORED_BYTES, Routed, busiest_expert_rank, imbalance, sampled_spread

Array = NDArray[np.float64]
Row = dict[str, str]

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = {"a100_sxm": "A100-80", "h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "l40s": "L40S"}
"""Accelerator names by the tables' system names."""

DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "half": "bf16"}
ELEMENT = {"bf16": 2.0, "fp8": 1.0}
EXPANDED = {"mxfp4": "bf16"}
"""What weights are expanded to on the way where they are not computed with as they are stored."""
WIDE = 2.0
"""Bytes of an activation between kernels: 16 bit, whatever the kernel computes in."""

MATRIX_EDGES = (8.5, 64.5, 2048.5, 8192.5)
"""Rows of a GEMM: two bins of decode steps, one between, two of prompts."""
EXPERT_EDGES = (8.5, 64.5, 512.5, 2048.5)
PROMPT_EDGES = (600, 1600, 5000)
BYTE_EDGES = (1e6, 1e7, 1e8, 1e9)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Data sheet: peak [FLOP/s] by dtype, bandwidth of memory and of the link in one direction [byte/s]."""

    peak: dict[str, float]
    bandwidth: float
    link: float


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


def gemm_samples(rows: list[Row], hardware: Hardware, dtype: str) -> Samples:
    """GEMMs: FLOP 2mnk; bytes: weights and inputs in `dtype`, outputs at 16 bit, each once. Sizes of real layers only.

    Kept: n >= 512, k >= 1,024, neither more than 8 times the other, 2^20 <= n k < 2^29.5 (a shard of an 8B layer up to
    a whole layer of the largest models), m <= 16,384 (the largest chunk in use). A matrix weighs as the root of its
    parameters: large ones make a step, small ones are more.
    """
    m, n, k, milliseconds = columns(rows, "m", "n", "k", "latency_ms")
    real = (n >= 512) & (k >= 1024) & (n * k >= 2**20) & (n * k < 2**29.5) & (m <= 16384)
    real &= (n <= 8 * k) & (k <= 8 * n)
    m, n, k, seconds = m[real], n[real], k[real], milliseconds[real] * 1e-3
    return single_kernels(
        2 * m * n * k,
        n * k * ELEMENT[dtype] + m * (k * ELEMENT[dtype] + n * WIDE),
        seconds,
        regime(m, MATRIX_EDGES),
        peak=hardware.peak[dtype],
        bandwidth=hardware.bandwidth,
        size=m * n,
        inputs=m * k,
        importance=np.sqrt(n * k),
        depth=k,
    )


def prefill_samples(rows: list[Row], hardware: Hardware, dtype: str) -> Samples:
    """Causal prefill attention: 4 d FLOP per head and pair of s(s+1)/2; bytes: Q and O at 16 bit, K and V once.

    `dtype` is that of the KV cache; attention is measured against the 16-bit peak whatever it is.
    Kept: s >= 128, at least 2 heads, at most 65,536 tokens at once. A row weighs as the root of its time.
    """
    b, s, heads, kv, d, milliseconds = columns(
        rows, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "latency_ms"
    )
    real = (s >= 128) & (heads >= 2) & (b * s <= 65536)
    b, s, heads, kv, d, seconds = (x[real] for x in (b, s, heads, kv, d, milliseconds * 1e-3))
    flop = 4 * b * heads * d * s * (s + 1) / 2
    return single_kernels(
        flop,
        2 * b * s * d * (WIDE * heads + ELEMENT[dtype] * kv),
        seconds,
        regime(s, PROMPT_EDGES),
        peak=hardware.peak["bf16"],
        bandwidth=hardware.bandwidth,
        size=s,
        importance=np.sqrt(seconds),
        depth=d,
        fill=b * s * heads,
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


def busiest(tokens: Array, experts: Array, topk: Array, ranks: Array, skewed: Array) -> Routed:
    """What the most loaded rank computes; `skewed` is 1 where the routing follows the tables' power law, else 0.

    Even routing deals the rows out to the experts in turn.
    """
    largest = np.array([largest_of(int(count)) for count in ranks])
    factor = imbalance(experts, topk, ranks, largest, TABLE_SKEW * skewed)
    routed = busiest_expert_rank(experts, topk, tokens, ranks, factor, spread=sampled_spread(tokens))
    dealt = np.minimum(experts / ranks, np.maximum(tokens * topk / ranks, 1.0))
    return replace(routed, touched=np.where(skewed > 0, routed.touched, np.minimum(dealt, routed.rows)))


def moe_samples(rows: list[Row], hardware: Hardware, dtype: str) -> Samples:
    """Fused mixture of experts: three matrices h x i per touched expert, read once, on the most loaded rank.

    Narrow weights need fewer rows of an expert to outlast their reading (`costmodel.kernels.expert_work`).
    Left out: ungated experts (two matrices), more than 16,384 tokens and shards below 2^18 weights.
    """
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    tokens, hidden, inter, topk, experts, tensor, ranks, milliseconds = columns(rows, *names, "latency_ms")
    ungated = (inter == 1856) | (inter == 2688) | (topk == 22)
    width = inter / tensor
    real = ~ungated & (tokens <= 16384) & (hidden * width >= 2**18)
    skewed = np.array([float(row["distribution"] != "balanced") for row in rows])
    tokens, hidden, width, topk, experts, ranks, skewed = (
        x[real] for x in (tokens, hidden, width, topk, experts, ranks, skewed)
    )
    routed = busiest(tokens, experts, topk, ranks, skewed)
    passed = 2 * hidden + 3 * width
    unit = EXPANDED.get(dtype, dtype)
    return single_kernels(
        6 * routed.rows * hidden * width,
        routed.touched * 3 * hidden * width * STORED_BYTES[dtype] + routed.rows * WIDE * passed,
        milliseconds[real] * 1e-3,
        regime(tokens, EXPERT_EDGES),
        peak=hardware.peak[unit],
        bandwidth=hardware.bandwidth,
        size=routed.rows / routed.touched * (ELEMENT[unit] / STORED_BYTES[dtype]),
        inputs=routed.rows * converted_width(2 * hidden, 3 * width, ELEMENT[unit]),
        importance=np.sqrt(hidden * width),
        elsewhere=routed.elsewhere * passed,
    )


STAGE_LIMIT = 2**18
"""Message from which vLLM reduces in two stages among eight GPUs; up to four do so from twice as much [byte]."""


MESSAGE_EDGES = (64e3, 1e6, 16e6)
"""Bins of messages [byte]."""


def collective_samples(rows: list[Row], hardware: Hardware, operation: str) -> Samples:
    """Collectives over the scale-up link: bytes over one GPU's link in one direction.

    `messages_read` of S, the message of one GPU [byte].
    """
    size, gpus, milliseconds = columns(rows, "message_bytes", "num_gpus", "latency_ms")
    traffic = messages_read(operation, gpus) * size
    bins = regime(size, MESSAGE_EDGES)
    samples = single_kernels(np.zeros_like(size), traffic, milliseconds * 1e-3, bins, peak=1.0, bandwidth=hardware.link)
    return samples.where(in_reach(operation, size))


def messages_read(operation: str, gpus: Array) -> Array:
    """Messages that pass one GPU's link: n - 1 in one stage, 2 (n-1)/n in two [1]."""
    return gpus - 1.0 if operation == "all_reduce" else 2.0 * (gpus - 1.0) / gpus


def in_reach(operation: str, size: Array) -> NDArray[np.bool_]:
    """Messages by which an all-reduce is told: vLLM's kernel has one stage below the limit, two from twice as much."""
    if operation == "all_reduce":
        return np.asarray(size < STAGE_LIMIT)
    return np.asarray(size >= 2 * STAGE_LIMIT)


def dispatch_samples(rows: list[Row], hardware: Hardware, *, spread: bool = False) -> Samples:
    """Tokens to the experts of n GPUs and back, half of it: bytes over one GPU's link, as `all_to_all_time` counts.

    A GPU sends each of its tokens to n (1 - (1 - 1/n)^k) GPUs, all but 1/n of them others; where the benchmark spreads
    the experts of a token evenly, to min(n, k). Of several kernels the quickest counts, as engines choose by the number
    of tokens.
    """
    quickest: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        ways = quickest[tuple(row[name] for name in ("num_gpus", "num_tokens", "hidden_size", "topk", "num_experts"))]
        ways[row["op"]] = min(float(row["latency_ms"]) * 1e-3, ways.get(row["op"], np.inf))
    gpus, tokens, hidden, chosen, _ = np.array([[float(figure) for figure in case] for case in quickest]).T
    seconds = np.array([(ways["dispatch"] + ways["combine"]) / 2.0 for ways in quickest.values()])
    gpu_share = np.minimum(chosen / gpus, 1.0) if spread else 1.0 - (1.0 - 1.0 / gpus) ** chosen
    traffic = tokens * gpu_share * (gpus - 1.0) * hidden * WIDE
    bins = regime(tokens * hidden * WIDE, MESSAGE_EDGES)
    return single_kernels(np.zeros_like(traffic), traffic, seconds, bins, peak=1.0, bandwidth=hardware.link)


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
            depth=k,
        )
    return total


def latent_samples(rows: list[Row], hardware: Hardware, dtype: str, phase: str, gemm: EfficiencyCurve) -> Samples:
    """MLA modules with BF16 projections; the projections, priced by the GEMM fit, are the rows' known offset.

    Prefill decompresses the latent: 2 (d_nope + d_rope + d_v) FLOP per head and causal pair. Decode absorbs it:
    2 (2 r + d_rope) FLOP per head, of whole tiles (`LATENT_TILE`), and cached token, and reads r + d_rope elements per
    token. Prefill also reads queries, keys and values and writes outputs of every head at 16 bit.
    """
    heads, b, isl, past, milliseconds = columns(rows, "num_heads", "batch_size", "isl", "step", "latency_ms")
    if phase == "latent_prefill":
        tokens, size = b * isl, isl
        flop = 2 * heads * (NOPE + ROPE + VALUE) * b * isl * (isl + 1) / 2
        traffic = tokens * ((LATENT + ROPE) * ELEMENT[dtype] + 2 * WIDE * heads * (NOPE + ROPE + VALUE))
        real = (isl >= 128) & (tokens <= 32768) & (heads >= 8)
        bins = regime(isl, PROMPT_EDGES)
    else:
        tokens = b
        flop = 2 * np.maximum(heads, LATENT_TILE) * (2 * LATENT + ROPE) * b * (past + 1)
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
