"""The settings of a pool as flags of SGLang, and back.

SGLang counts ranks otherwise than vLLM: --tp-size is all ranks of a stage, --attn-dp-size the data ranks among them,
requests and chunk are of all data ranks together.
"""

from __future__ import annotations

from typing import Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .description import DeployedPool, Deployment, Settings
from .found import Reader, Words

OVERRIDES: Final = "--json-model-override-args"
REDUNDANT: Final = "--ep-num-redundant-experts"
MODE: Final = "--disaggregation-mode"


def sglang_words(deployment: Deployment, pool: DeployedPool) -> Words:
    """All flags of one engine that shaped its prediction, in the order of the settings table."""
    settings = pool.settings
    words: list[tuple[str, str | None]] = [
        ("--model-path", deployment.weights),
        ("--served-model-name", deployment.weights),
        ("--tp-size", str(settings.tensor * settings.data)),
        ("--pp-size", str(settings.pipeline)),
        ("--attn-dp-size", str(settings.data)),
        ("--ep-size", str(settings.expert)),
        *((("--enable-eplb", None), (REDUNDANT, str(settings.redundant))) if settings.redundant else ()),
        ("--max-running-requests", str(settings.max_num_seqs)),
        ("--chunked-prefill-size", str(settings.max_num_batched_tokens)),
        ("--max-prefill-tokens", str(settings.max_num_batched_tokens)),
        ("--context-length", str(settings.max_model_len)),
        ("--mem-fraction-static", repr(settings.memory_fraction)),
        ("--dtype", "bfloat16"),
        ("--kv-cache-dtype", facts.fact("kv_dtypes", "sglang", settings.kv_dtype)),
        ("--page-size", str(settings.block_tokens)),
        ("--schedule-policy", "fcfs"),
    ]
    if pool.role is not Role.PREFILL:
        words.append(("--cuda-graph-max-bs-decode", str(step_requests(settings))))
    if not settings.prefix_caching:
        words.append(("--disable-radix-cache", None))
    if settings.quantization is not None:
        words.append(("--quantization", settings.quantization))
    if settings.config_overrides:
        words.append((OVERRIDES, settings.config_overrides))
    if settings.attention_backend is not None:
        words.append(("--attention-backend", settings.attention_backend))
    if pool.role is not Role.COLOCATED:
        words += [(MODE, pool.role.value), ("--disaggregation-transfer-backend", "nixl")]
    return tuple(words)


def step_requests(settings: Settings) -> int:
    """Most requests of one decode step of a data rank: its CUDA graphs reach so far, as the step times have it.

    SGLang's default follows the GPU's memory alone; larger batches run without graphs and say nothing of it.
    """
    return -(-settings.max_num_seqs // (settings.data * settings.pipeline))


def sglang_settings(where: str, words: Words) -> Settings:
    """The settings that flags of SGLang state."""
    reader = Reader(where, {name: True if value is None else value for name, value in words})
    reader.must("--served-model-name", reader.text("--model-path"))
    reader.must("--dtype", "bfloat16")
    reader.must("--max-prefill-tokens", reader.text("--chunked-prefill-size"))
    reader.must("--schedule-policy", "fcfs")
    data = reader.whole("--attn-dp-size")
    ranks = reader.whole("--tp-size")
    if ranks % data:
        raise InputError(f"{where}: --tp-size {ranks} is not a multiple of --attn-dp-size {data}")
    return Settings(
        tensor=ranks // data,
        pipeline=reader.whole("--pp-size"),
        expert=reader.whole("--ep-size"),
        data=data,
        quantization=reader.text("--quantization") if reader.has("--quantization") else None,
        kv_dtype=reader.spelled("--kv-cache-dtype", facts.fact("kv_dtypes", "sglang")),
        max_num_seqs=reader.whole("--max-running-requests"),
        max_num_batched_tokens=reader.whole("--chunked-prefill-size"),
        max_model_len=reader.whole("--context-length"),
        memory_fraction=reader.number("--mem-fraction-static"),
        block_tokens=reader.whole("--page-size"),
        prefix_caching=not reader.has("--disable-radix-cache"),
        attention_backend=reader.text("--attention-backend") if reader.has("--attention-backend") else None,
        config_overrides=reader.overrides(OVERRIDES),
        redundant=reader.whole(REDUNDANT) if reader.has("--enable-eplb") else 0,
    )
