"""From the words of a measurement file to a model and an engine that the cost model understands."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PureWindowsPath

from costmodel.engine import EngineConfig, Parallelism, Role
from costmodel.engine_arrays import TABLES, Conditions
from costmodel.errors import InputError, UnknownNameError
from costmodel.quoting import shown
from costmodel.transformer import Part, Transformer

from .catalog import AcceleratorCatalog
from .engines import load_engine_memory
from .files import shown_path
from .measurements import Layout
from .models import CONFIG_FILE, catalog_model, known_names, load_model

DTYPE_WORDS = (
    ("mxfp4", re.compile(r"w4a16_?-?mxfp4|mxfp4_?-?w4a16")),
    ("fp4", re.compile(r"fp4|e2m1")),
    ("int4", re.compile(r"int4|w4a|awq|gptq|q4|4bit")),
    ("w8a16", re.compile(r"w8a16|(int8|fp8)_?-?(wo|weight_?only)$")),
    ("fp8", re.compile(r"fp8|e4m3|float8|e5m2")),
    ("int8", re.compile(r"int8|w8a|smoothquant|(^|[_-])sq|q8|8bit")),
    ("bf16", re.compile(r"^$|bf16|bfloat16|fp16|float16|half|none|auto|w16a16|native")),
)
"""How benchmark files write weight formats; the first pattern found decides (nvfp4, w4a16_mxfp4, fp8_block, ...)."""
SERVED_AS = {"mxfp4": "fp4", "w8a16": "int8"}
"""Dtypes of an engine config for formats that only parts of a model can have."""
QUANTIZED_SUFFIX = re.compile(
    r"([-_.](fp8|fp4|nvfp4|mxfp4|bf16|awq|gptq|int4|int8|w4a16|w8a8|w8a16|quantized|dynamic|block|kv))+$"
)
TUNED_SUFFIX = re.compile(r"([-_](instruct|it|chat|hf|base|preview|thinking|\d{4}|v0\.\d|exp))+$")
MAKER_PREFIX = re.compile(r"^(meta|nvidia)[-_]|^moe_")
PLAIN = re.compile(r"[^a-z0-9]")
ROOMY = 10**7
"""A context that nothing reaches [token]: the benchmark ran, so its engine accepted the lengths."""
USUAL_SEQS = 1024
"""Requests for which a measured engine keeps logits: vLLM's default on large GPUs; no row states it."""


def stored_dtype(written: str) -> str:
    """The weight format meant by a benchmark's word for it; empty means the 16-bit default.

    >>> [stored_dtype(word) for word in ("nvfp4", "fp8_block", "w4a16_mxfp4", "int4_wo", "int8_wo", "sq", "")]
    ['fp4', 'fp8', 'mxfp4', 'int4', 'w8a16', 'int8', 'bf16']
    """
    plain = written.strip().lower()
    for dtype, pattern in DTYPE_WORDS:
        if pattern.search(plain):
            return dtype
    raise InputError(f"dtype {shown(written)} is not known; known: bf16, fp8, int8, int4, fp4 and their usual variants")


def weight_dtype(written: str) -> str:
    """The same as a dtype that a whole engine may have.

    >>> [weight_dtype(word) for word in ("nvfp4", "fp8_block", "w4a16_mxfp4", "int4_wo", "")]
    ['fp4', 'fp8', 'fp4', 'int4', 'bf16']
    """
    stored = stored_dtype(written)
    return SERVED_AS.get(stored, stored)


TABLE_KERNELS = {"fp8_block": "fp8_block", "fp8": "fp8_tensor", "fp8_tensor": "fp8_tensor", "fp8_static": "fp8_tensor"}
"""FP8 kernels of vLLM's tables by the dtype of a model's experts (of its matrices where it has none)."""


def table_conditions(backend: str, gemm: str, experts: str) -> Conditions:
    """The circumstances of steps composed from the kernel tables of `backend`, by the file's words for dtypes.

    Kernels launched one by one, experts chosen by a power law; vLLM's tables have FP8 kernels of their own.
    """
    kernels = TABLE_KERNELS.get((experts or gemm).strip().lower(), "fp8") if backend in ("", "vllm") else "fp8"
    return replace(TABLES, fp8_kernels=kernels)


def measured_model(name: str, folder: Path | None = None) -> Transformer:
    """The model of a Hugging Face id or short name: the catalog's, else FOLDER/<org>/<name>/config.json.

    An id that neither has is compared without punctuation, then without its organisation and a quantiser's suffix
    (-FP8, -NVFP4, ...), then without a tuner's (-Instruct, -2507, ...). No file outside the folder is ever looked at.
    """
    try:
        return catalog_model(name)
    except UnknownNameError as unknown:
        if _leaves_its_folder(name):
            raise InputError(
                f"model '{shown_path(name)}' is a path that leaves the folder of models; write ORG/NAME"
            ) from None
        if folder is not None and _is_file(folder / name / CONFIG_FILE):
            return replace(load_model(str((folder / name).resolve())), name=name.rpartition("/")[2])
        files = _by_plain_name(folder)
        known = {_plain(each): each for each in reversed(known_names())}
        for spelling in _spellings(name):
            plain = _plain(spelling)
            if plain in known:
                return catalog_model(known[plain])
            if plain in files:
                return replace(load_model(str(files[plain].resolve())), name=files[plain].name)
        there = f"; {shown_path(folder / name / CONFIG_FILE)} is not there either" if folder else "; give --models DIR"
        raise InputError(f"{unknown}{there}") from unknown


def _leaves_its_folder(name: str) -> bool:
    r"""Whether a name, taken as a path by any system, may lead out of the folder that it is looked up in.

    >>> [_leaves_its_folder(name) for name in ("org/model", "../model", "a/../../b", "/etc", "~/x", "..\\x", "C:\\x")]
    [False, True, True, True, True, True, True]
    """
    path = PureWindowsPath(name)  # knows both separators
    return bool(path.anchor) or ".." in path.parts or name.startswith("~")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than any file's, or a folder that must not be read
        return False


def _spellings(name: str) -> tuple[str, ...]:
    """Ever shorter names of a model: without organisation, quantiser's suffix, tuner's suffix and maker."""
    short = name.rpartition("/")[2].lower()
    bare = QUANTIZED_SUFFIX.sub("", short)
    plain = TUNED_SUFFIX.sub("", QUANTIZED_SUFFIX.sub("", TUNED_SUFFIX.sub("", bare)))
    return tuple(dict.fromkeys((short, bare, plain, MAKER_PREFIX.sub("", plain))))


def _plain(name: str) -> str:
    return PLAIN.sub("", name.rpartition("/")[2].lower())


def _by_plain_name(folder: Path | None) -> dict[str, Path]:
    """Folders with a config.json by every spelling of their name; the fuller spelling wins."""
    if folder is None or not folder.is_dir():
        return {}
    found: dict[str, Path] = {}
    paths = sorted(path.parent for path in folder.glob(f"*/*/{CONFIG_FILE}"))
    for fullness in range(4):
        for path in paths:
            for spelling in _spellings(path.name)[fullness : fullness + 1]:
                found.setdefault(_plain(spelling), path)
    return found


def in_dtype(model: Transformer, gemm: str, experts: str) -> tuple[Transformer, str]:
    """The model as the benchmark's checkpoint stores it, and the weight dtype of its quantised parts.

    gemm, experts: the file's words for the dtype of dense matrices and of routed experts. Published 4-bit checkpoints
    of models with latent attention leave the attention in 16 bit, and a checkpoint whose native format was asked for
    keeps the parts that it spares. Where dense matrices and experts differ, the experts' dtype is the engine's (they
    are most of the weights) and the dense parts keep their own.
    """
    dense = stored_dtype(gemm)
    routed = stored_dtype(experts or gemm) if model.is_moe else dense
    wanted = SERVED_AS.get(routed, routed)
    native = wanted == model.native_weight_dtype and dense in (routed, "bf16")
    if native and routed == wanted:
        return model, wanted
    parts = {Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS}
    if native:
        parts &= model.quantized
    elif wanted == "fp4" and dense == routed and model.is_latent:
        parts -= {Part.ATTENTION}
    elif dense == "bf16" and wanted != "bf16":
        parts = {Part.EXPERTS}
    if wanted == "fp4" and dense == routed and model.native_weight_dtype != "bf16":
        parts = (parts & model.quantized) or parts
    own = {part: dense for part in parts - {Part.EXPERTS} if dense not in (wanted, "bf16")}
    if routed != wanted:
        own |= dict.fromkeys(parts & {Part.EXPERTS}, routed)
    return replace(model, quantized=frozenset(parts), own_dtypes=frozenset(own.items())), wanted


def check_layers(model: Transformer, layout: Layout) -> None:
    """Raise InputError where a pipeline has more stages than the model has layers."""
    if layout.pipeline > model.num_layers:
        raise InputError(f"pp {layout.pipeline} is more than the {model.num_layers} layers of {model.name}")


def measured_engine(
    catalog: AcceleratorCatalog,
    accelerator: str,
    layout: Layout,
    dtype: str,
    *,
    kv_dtype: str,
    memory_fraction: float,
    engine: str = "vllm",
    role: Role = Role.COLOCATED,
) -> EngineConfig:
    """One worker of a measured deployment, without limits of its scheduler: those belong to the serving policy."""
    ranks = layout.tensor * layout.data
    expert = layout.expert if layout.expert and ranks % layout.expert == 0 else 1
    split = Parallelism(layout.tensor, layout.pipeline, expert, layout.data)
    return EngineConfig(
        accelerator=catalog.accelerator(accelerator),
        role=role,
        parallelism=split,
        weight_dtype=dtype,
        kv_dtype=kv_dtype,
        max_num_seqs=USUAL_SEQS,
        max_num_batched_tokens=8192,
        max_model_len=ROOMY,
        memory=load_engine_memory(engine),
        memory_fraction=memory_fraction,
    )
