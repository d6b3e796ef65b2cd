"""From the words of a measurement file to a model and an engine that the cost model understands."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from costmodel.engine import EngineConfig, Parallelism, Role
from costmodel.errors import InputError, UnknownNameError
from costmodel.transformer import LatentAttention, Part, Transformer

from .catalog import AcceleratorCatalog
from .measurements import Layout
from .models import CONFIG_FILE, load_model

DTYPE_WORDS = (
    ("fp4", re.compile(r"fp4|e2m1")),
    ("int4", re.compile(r"int4|w4a|awq|gptq|q4")),
    ("fp8", re.compile(r"fp8|e4m3|float8|e5m2")),
    ("int8", re.compile(r"int8|w8a|smoothquant|_sq|q8")),
    ("bf16", re.compile(r"^$|bf16|bfloat16|fp16|float16|half|none|auto")),
)
"""How benchmark files write weight formats; the first pattern found decides (nvfp4, w4a16_mxfp4, fp8_block, ...)."""
QUANTIZED_SUFFIX = re.compile(r"[-_](fp8|fp4|nvfp4|mxfp4|bf16|awq|gptq|int4|int8|w4a16|w8a8|quantized\S*|dynamic|kv)+$")
ROOMY = 10**7
"""A token or context limit that nothing reaches [token]: the benchmark ran, so its engine accepted the lengths."""


def weight_dtype(written: str) -> str:
    """The weight dtype meant by a benchmark's word for it; empty means the 16-bit default.

    >>> [weight_dtype(word) for word in ("nvfp4", "fp8_block", "w4a16_mxfp4", "int4_wo", "")]
    ['fp4', 'fp8', 'fp4', 'int4', 'bf16']
    """
    plain = written.strip().lower()
    for dtype, pattern in DTYPE_WORDS:
        if pattern.search(plain):
            return dtype
    raise InputError(f"dtype {written!r} is not known; known: bf16, fp8, int8, int4, fp4 and their usual variants")


def measured_model(name: str, folder: Path | None = None) -> Transformer:
    """The model of a Hugging Face id or short name: the catalog's, else FOLDER/<org>/<name>/config.json.

    An id that neither has is tried without its organisation and without a quantiser's suffix (-FP8, -NVFP4, ...).
    """
    try:
        return load_model(name)
    except UnknownNameError as unknown:
        if folder is not None and (folder / name / CONFIG_FILE).is_file():
            return replace(load_model(str((folder / name).resolve())), name=name.rpartition("/")[2])
        short = name.rpartition("/")[2]
        bare = QUANTIZED_SUFFIX.sub("", short.lower())
        for candidate in dict.fromkeys((short, bare)):
            try:
                return load_model(candidate)
            except InputError:
                continue
        where = f"; {folder / name / CONFIG_FILE} is not there either" if folder else "; give --models DIR"
        raise InputError(f"{unknown}{where}") from unknown


def in_dtype(model: Transformer, gemm: str, experts: str) -> tuple[Transformer, str]:
    """The model as the benchmark's checkpoint stores it, and the weight dtype of its quantised parts.

    gemm, experts: the file's words for the dtype of dense matrices and of routed experts. Published 4-bit checkpoints
    of models with latent attention leave the attention in 16 bit, and a checkpoint whose native format was asked for
    keeps the parts that it spares. Where dense and expert dtypes differ, the experts' dtype is kept (they are most of
    the weights) and the dense parts count as quantised only if they are as narrow.
    """
    dense, routed = weight_dtype(gemm), weight_dtype(experts) if experts else weight_dtype(gemm)
    wanted = routed if model.is_moe else dense
    if wanted == model.native_weight_dtype:
        return model, wanted
    parts = {Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS}
    if dense == "bf16" and wanted != "bf16":
        parts = {Part.EXPERTS}
    elif wanted == "fp4" and any(isinstance(group.attention, LatentAttention) for group in model.layers):
        parts -= {Part.ATTENTION}
    spared = model.quantized if model.native_weight_dtype != "bf16" and wanted == "fp4" else frozenset(parts)
    return replace(model, quantized=frozenset(parts) & spared if spared else frozenset(parts)), wanted


def measured_engine(
    catalog: AcceleratorCatalog, accelerator: str, layout: Layout, dtype: str, *, kv_dtype: str, memory_fraction: float
) -> EngineConfig:
    """One worker of a measured deployment, without limits of its scheduler: those belong to the serving policy."""
    ranks = layout.tensor * layout.data
    expert = layout.expert if layout.expert and ranks % layout.expert == 0 else 1
    split = Parallelism(layout.tensor, layout.pipeline, expert, layout.data)
    return EngineConfig(
        accelerator=catalog.accelerator(accelerator),
        role=Role.COLOCATED,
        parallelism=split,
        weight_dtype=dtype,
        kv_dtype=kv_dtype,
        max_num_seqs=ROOMY,
        max_num_batched_tokens=8192,
        max_model_len=ROOMY,
        memory_fraction=memory_fraction,
    )
