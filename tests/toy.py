"""Hand-made accelerators and models for tests: round numbers, no catalog, no files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.accelerator import KERNEL_CLASSES, Accelerator, KernelEfficiency, Link, Origin, Price
from costmodel.attention import LatentAttention, SoftmaxAttention
from costmodel.engine import EngineConfig, EngineOverhead, Parallelism, Role
from costmodel.transformer import FeedForward, LayerGroup, Transformer
from costmodel.units import GIB, GIGA, TERA
from search_spaces.efficiency import WIDER
from search_spaces.engines import load_engine_memory

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "vocab_size": 1000,
}
"""The config.json of a small dense model."""
OVERHEAD = EngineOverhead(1e-3, 5e-6, Origin.ASSUMED, "toy")


def toy_efficiency(compute: float = 0.7, memory: float = 0.8, launch: float = 4e-6) -> dict[Any, KernelEfficiency]:
    """The same efficiency for every kernel class, in every dtype that all GPUs have figures for."""
    one = KernelEfficiency(compute, memory, launch, Origin.ASSUMED, "toy", float("nan"))
    return {(name, dtype): one for name in KERNEL_CLASSES for dtype in set(WIDER) - {"mxfp4"}}


def toy_accelerator(name: str = "H100", **changes: Any) -> Accelerator:
    """An H100-SXM by its data sheet; `changes` replaces fields."""
    made = Accelerator(
        name=name,
        vendor="nvidia",
        memory=80 * GIB,
        bandwidth=3.35 * TERA,
        peak_flops={"bf16": 989 * TERA, "fp8": 1979 * TERA, "int8": 1979 * TERA},
        scale_up=Link(450 * GIGA, 5e-6),
        scale_up_size=8,
        scale_out=Link(50 * GIGA, 10e-6),
        node_size=8,
        tdp=700.0,
        node_label="NVIDIA-H100-80GB-HBM3",
        kv_domain="nvidia",
        price=Price(3.0, 2.0, 6.0, 10, Origin.ASSUMED, "toy", "2025-01-01"),
        efficiency=toy_efficiency(),
        source="toy",
        date="2025-01-01",
    )
    return replace(made, **changes)


def toy_a100(**changes: Any) -> Accelerator:
    """An A100-SXM-80GB by its data sheet: no FP8 units."""
    fields: dict[str, Any] = {
        "bandwidth": 2.039 * TERA,
        "peak_flops": {"bf16": 312 * TERA, "int8": 624 * TERA},
        "scale_up": Link(300 * GIGA, 5e-6),
        "scale_out": Link(25 * GIGA, 10e-6),
        "tdp": 400.0,
    }
    return toy_accelerator("A100", **(fields | changes))


def perfect_accelerator(**changes: Any) -> Accelerator:
    """An H100 that reaches its roofline exactly: efficiency 1, launch 0."""
    return toy_accelerator("perfect", **({"efficiency": toy_efficiency(1.0, 1.0, 0.0)} | changes))


def dense(name: str, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int) -> Transformer:
    """A Llama-like model with heads of 128."""
    attention = SoftmaxAttention(hidden, heads, kv_heads, 128, 128)
    group = LayerGroup(layers, attention, FeedForward(hidden, intermediate, gated=True))
    return Transformer(name, hidden, vocab, (group,), tied_embeddings=False, max_position=131072)


def llama2_7b() -> Transformer:
    """Llama-2-7B."""
    return dense("Llama-2-7B", 32, 4096, 32, 32, 11008, 32000)


def llama_8b() -> Transformer:
    """Llama-3.1-8B."""
    return dense("Llama-3.1-8B", 32, 4096, 32, 8, 14336, 128256)


def llama_70b() -> Transformer:
    """Llama-3.1-70B."""
    return dense("Llama-3.1-70B", 80, 8192, 64, 8, 28672, 128256)


def opt_175b() -> Transformer:
    """OPT-175B: multi-head attention, no gate, learned positions."""
    attention = SoftmaxAttention(12288, 96, 96, 128, 128)
    group = LayerGroup(96, attention, FeedForward(12288, 49152, gated=False))
    return Transformer("OPT-175B", 12288, 50272, (group,), True, 2048, looked_up=2050 * 12288)


def windowed(window: int = 1024) -> Transformer:
    """Llama-3.1-8B with every second layer sliding."""
    block = FeedForward(4096, 14336, gated=True)
    full = SoftmaxAttention(4096, 32, 8, 128, 128)
    sliding = replace(full, window=window)
    groups = (LayerGroup(16, full, block), LayerGroup(16, sliding, block))
    return Transformer("windowed-8B", 4096, 128256, groups, False, 131072)


def mixtral() -> Transformer:
    """Mixtral-8x7B."""
    block = FeedForward(4096, 0, gated=True, experts=8, experts_per_token=2, expert_intermediate=14336)
    group = LayerGroup(32, SoftmaxAttention(4096, 32, 8, 128, 128), block)
    return Transformer("Mixtral-8x7B", 4096, 32000, (group,), False, 32768)


def deepseek_v3() -> Transformer:
    """DeepSeek-V3: three dense layers, 58 with 256 experts and a shared one, latent attention."""
    attention = LatentAttention(7168, 128, 1536, 512, 64, 128, 128)
    moe = FeedForward(7168, 2048, True, experts=256, experts_per_token=8, expert_intermediate=2048)
    groups = (LayerGroup(3, attention, FeedForward(7168, 18432, gated=True)), LayerGroup(58, attention, moe))
    return Transformer("DeepSeek-V3", 7168, 129280, groups, False, 163840, native_weight_dtype="fp8")


def toy_config(accelerator: Accelerator | None = None, **changes: Any) -> EngineConfig:
    """A colocated engine on one GPU in 16 bit; tensor, pipeline, expert, data set the split, the rest the fields."""
    split = {name: changes.pop(name) for name in ("tensor", "pipeline", "expert", "data") if name in changes}
    fields: dict[str, Any] = {
        "accelerator": accelerator or toy_accelerator(),
        "role": Role.COLOCATED,
        "parallelism": Parallelism(**split),
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 32768,
        "memory": load_engine_memory("vllm"),
    }
    return EngineConfig(**(fields | changes))
