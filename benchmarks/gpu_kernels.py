"""Times GEMM, attention and copy kernels on the GPU at hand with torch; nothing here is fitted.

Kernels are captured into a CUDA graph, many of them in a row on rotating buffers, so that neither the host's launches
nor a warm cache are in the time; the median over replays counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CACHE_BYTES = 256 * 2**20
"""Buffers rotate until they hold this much, more than any GPU's last cache [byte]."""
REPLAYS = 7
INSIDE_GRAPH = 20
"""Kernels of one graph; its replay is timed as a whole."""
LONG = 2e-3
"""A kernel of this length [s] needs fewer repetitions."""
MOST_BYTES = 12 * 2**30
"""Memory that one measurement may take [byte]; every GPU of the catalog has more."""

SUSTAINED = 4.0
"""Time over which the rate of products is taken [s]; clocks settle within one."""

MATRICES = (
    (4096, 4096),
    (6144, 4096),
    (28672, 4096),
    (4096, 14336),
    (8192, 8192),
    (10240, 8192),
    (8192, 28672),
)
"""Output and inner width: matrices of 8B and 70B models, whole and split."""
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PROMPTS = ((1, 256), (4, 256), (1, 512), (1, 1024), (4, 1024), (1, 2048), (1, 4096), (4, 4096), (1, 8192), (1, 16384))
HEADS = ((32, 8, 128), (8, 1, 128), (64, 8, 64))
"""Query heads, KV heads, width of a head."""
DECODES = tuple((batch, length) for batch in (1, 4, 16, 64, 256) for length in (512, 2048, 8192))


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured kernel; shape: by the column names of the kernel tables (`kernel_tables.py`)."""

    kernel_class: str
    dtype: str
    shape: Mapping[str, int]
    seconds: float


def plan(dtypes: tuple[str, ...]) -> list[tuple[str, str, dict[str, int]]]:
    """What is to be measured: kernel class, dtype, shape."""
    gemms = [("gemm", dtype, {"m": m, "n": n, "k": k}) for dtype in dtypes for n, k in MATRICES for m in TOKENS]
    prompts = [
        ("attention_prefill", "bf16", {"batch_size": b, "isl": s, **_heads(*heads)})
        for heads in HEADS
        for b, s in PROMPTS
    ]
    decodes = [
        ("attention_decode", "bf16", {"batch_size": b, "kv_len": s, **_heads(*heads)})
        for heads in HEADS
        for b, s in DECODES
        if 4 * b * s * heads[1] * heads[2] <= MOST_BYTES
    ]
    return gemms + prompts + decodes


def _heads(heads: int, kv: int, width: int) -> dict[str, int]:
    return {"num_heads": heads, "num_key_value_heads": kv, "head_dim": width}


def measure(torch: Any, dtypes: tuple[str, ...]) -> Iterator[Timing]:
    """Every kernel of the plan; one that the GPU or torch refuses is left out."""
    makers = {"gemm": _gemm, "attention_prefill": _prefill, "attention_decode": _decode}
    for kernel_class, dtype, shape in plan(dtypes):
        try:
            seconds = _seconds(torch, makers[kernel_class](torch, dtype, shape))
        except (RuntimeError, NotImplementedError):  # out of memory, or no such kernel on this GPU
            torch.cuda.empty_cache()
            continue
        yield Timing(kernel_class, dtype, shape, seconds)


def copy_bandwidth(torch: Any) -> float:
    """Bytes per second that a large copy moves, read and written [byte/s]."""
    size = 2**30
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / _seconds(torch, [lambda: target.copy_(source)])


def sustained_rate(torch: Any, dtype: str) -> float:
    """Rate of large products that run for `SUSTAINED` seconds, in which the GPU meets its power limit [FLOP/s]."""
    shape = {"m": 8192, "n": 10240, "k": 8192}
    kernels = _gemm(torch, dtype, shape)
    torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SUSTAINED:
        for kernel in kernels * INSIDE_GRAPH:
            kernel()
        torch.cuda.synchronize()
        count += len(kernels) * INSIDE_GRAPH
    return 2.0 * shape["m"] * shape["n"] * shape["k"] * count / (time.perf_counter() - start)


def launch_time(torch: Any) -> float:
    """Time of a kernel with next to nothing to do, inside a graph [s]."""
    small = torch.zeros(32, device="cuda")
    return _seconds(torch, [lambda: small.add_(1.0)])


def fp8_type(torch: Any) -> Any:
    """The FP8 format of this GPU's matrix units."""
    return torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn


def _copies(size: int) -> int:
    """Buffers to rotate through."""
    return max(1, min(INSIDE_GRAPH, CACHE_BYTES // size + 1))


def _gemm(torch: Any, dtype: str, shape: Mapping[str, int]) -> list[Callable[[], Any]]:
    m, n, k = shape["m"], shape["n"], shape["k"]
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    wide = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(_copies(2 * n * k))]
    if dtype == "bf16":
        return [lambda w=w: torch.matmul(x, w.t()) for w in wide]
    narrow = [w.to(fp8_type(torch)) for w in wide]
    one = torch.ones((), device="cuda")
    q = x.to(fp8_type(torch))
    return [lambda w=w: torch._scaled_mm(q, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16) for w in narrow]


def _prefill(torch: Any, _dtype: str, shape: Mapping[str, int]) -> list[Callable[[], Any]]:
    attention = torch.nn.functional.scaled_dot_product_attention
    b, s, d = shape["batch_size"], shape["isl"], shape["head_dim"]
    q = torch.randn(b, shape["num_heads"], s, d, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(b, shape["num_key_value_heads"], s, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return [lambda: attention(q, k, v, is_causal=True, enable_gqa=True)]


def _decode(torch: Any, _dtype: str, shape: Mapping[str, int]) -> list[Callable[[], Any]]:
    """One query per request; the query heads that share a KV head stand as its rows, so that KV is read once."""
    attention = torch.nn.functional.scaled_dot_product_attention
    b, s, kv, d = (shape[name] for name in ("batch_size", "kv_len", "num_key_value_heads", "head_dim"))
    group = shape["num_heads"] // kv
    q = torch.randn(b, kv, group, d, device="cuda", dtype=torch.bfloat16)
    pairs = [
        tuple(torch.randn(b, kv, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for _ in range(_copies(4 * b * kv * s * d))
    ]
    return [lambda k=k, v=v: attention(q, k, v) for k, v in pairs]


def _seconds(torch: Any, kernels: list[Callable[[], Any]]) -> float:
    """Median time of one kernel [s]."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # which fills the buffers
    with torch.cuda.stream(stream):
        for kernel in kernels:
            kernel()
        torch.cuda.synchronize()
        once = _elapsed(torch, kernels[0], 1)
        count = 3 if once > LONG else INSIDE_GRAPH
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(count):
                kernels[index % len(kernels)]()
        graph.replay()
        return statistics.median(_elapsed(torch, graph.replay, count) for _ in range(REPLAYS))


def _elapsed(torch: Any, run: Callable[[], Any], count: int) -> float:
    """Time of one of `count` kernels that `run` starts [s]."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / count
