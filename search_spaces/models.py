"""Models by name: the catalog's architecture facts, and a user's own `config.json`.

A catalog entry is one YAML file named after its model: `source`, `date`, `aliases` (other names of the same
architecture), `variants` (names whose config differs, as fields to overlay), `served` (the checkpoint that serving
means by a name that is no checkpoint's: the instruction-tuned one, of the same shapes by its model card; null where
none was published) and `config` (Hugging Face's fields).
Listing the names opens no file; an entry is parsed when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from costmodel.errors import LONGEST_NAME, ArchitectureError, InputError, UnknownNameError, nearest_name
from costmodel.quoting import UNWRITABLE, shown
from costmodel.transformer import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    SoftmaxAttention,
    Transformer,
)
from costmodel.units import MIB

from .architecture import read_architecture
from .files import check_name, decoded, read_file, shown_path
from .hf_config import not_understood, open_config
from .huggingface import parse_config
from .json_source import JsonText, json_kind

LARGEST_CONFIG = 4 * MIB
"""The largest config.json in public use is below 100 kB."""
CONFIG_FILE = "config.json"
MODELOPT_FILE = "hf_quant_config.json"
"""Where NVIDIA's quantiser notes the format, beside a config.json that does not mention it."""

OWN_MODEL = ", or model: {config: path/to/config.json}"
ARCHITECTURES = (".yaml", ".yml")
"""Endings of architecture files."""
SLIP = 0.92
"""Likeness of two names that differ by a slip of the hand: a letter less, or another one."""
BEYOND = 2.0**30
"""A context that is longer than any window [token]."""
LEAST_SHARED = 2
"""Words of a name that the name of another model must share to be offered for it, such as family and size."""
_WORD = re.compile(r"a?\d+(?:\.\d+)?(?:x\d+)?b(?![a-z])|\d+(?:\.\d+)?|[a-z]+")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def model_names() -> list[str]:
    """Names of the catalog's models, in alphabetical order.

    >>> "Llama-3.1-70B" in model_names()
    True
    """
    return sorted(_files(), key=str.lower)


def known_names() -> list[str]:
    """Names of the catalog's models and all their other names.

    >>> "meta-llama/Llama-3.1-70B-Instruct" in known_names()
    True
    """
    return [*model_names(), *_aliases()]


def is_model(name_or_path: str) -> bool:
    """Whether a name means one model of the catalog, or is a path that exists."""
    try:
        return _catalog_model(name_or_path.strip().lower()) is not None or Path(name_or_path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, NUL inside, no such home: cannot be a path
        return False


def names_with(text: str) -> list[str]:
    """Names of the catalog that contain all words of a text, whatever their case and marks; each means one model.

    >>> names_with("qwen3 235b 2507 thinking")
    ['Qwen/Qwen3-235B-A22B-Thinking-2507']
    """
    words = [] if UNWRITABLE.search(text) else re.findall(r"[a-z]+|[0-9.]+", text[:LONGEST_NAME].lower())
    return [name for name in known_names() if words and all(word in name.lower() for word in words)]


def served_checkpoint(name: str) -> str | None:
    """The published checkpoint that serving a model of the catalog means; None where none is known.

    A name that is a checkpoint's means that one; else what the entry names, or the id that ends with the name.

    >>> served_checkpoint("llama-3.1-70b"), served_checkpoint("meta-llama/Llama-3.1-70B"), served_checkpoint("OPT-175B")
    ('meta-llama/Llama-3.1-70B-Instruct', 'meta-llama/Llama-3.1-70B', None)
    """
    if "/" in name:
        return name
    wanted = name.strip().lower()
    stated = {key.lower(): served for model in model_names() for key, served in _entry(model).get("served", {}).items()}
    if wanted in stated:
        checkpoint: str | None = stated[wanted]
        return checkpoint
    return next((alias for alias in _aliases() if "/" in alias and alias.lower().endswith(f"/{wanted}")), None)


def load_model(name_or_path: str, base_dir: Path | None = None) -> Transformer:
    """The model of a catalog name or alias (any case), or of a config.json, its directory, or an architecture file.

    base_dir: what a relative path is relative to (the workload file's directory); default: the current one.
    A name of the catalog wins over a directory of the same name; write `./name` for the directory.
    Raises UnknownNameError, InputError (unreadable or malformed file) or ArchitectureError.

    >>> load_model("meta-llama/Llama-3.1-70B-Instruct").name
    'Llama-3.1-70B'
    """
    wanted = name_or_path.strip()
    explicit = wanted.startswith((".", "/", "~")) or wanted.lower().endswith((".json", *ARCHITECTURES))
    if not explicit:
        model = _catalog_model(wanted.lower())
        if model is not None:
            return model
    try:
        path = ((base_dir or Path()) / Path(wanted).expanduser()) if wanted else None
        exists = path is not None and path.exists()
    except PermissionError as error:
        raise InputError(f"model '{shown_path(wanted)}': cannot be read (permission denied)") from error
    except (OSError, RuntimeError, ValueError):  # too long, NUL inside, no such home: cannot be a path
        path, exists = None, False
    if path is not None and (exists or explicit):
        return _load_file(path, wanted)
    raise _unknown(name_or_path)


def catalog_model(name: str) -> Transformer:
    """The catalog's model of that name or alias (any case); no file is looked at, whatever the name looks like.

    >>> catalog_model("QWEN/qwen3-32b").name
    'Qwen3-32B'
    """
    model = _catalog_model(name.strip().lower())
    if model is None:
        raise _unknown(name)
    return model


def _unknown(name: str) -> UnknownNameError:
    return UnknownNameError("model", name, model_names(), close=nearest_model(name), mend=OWN_MODEL)


def nearest_model(name: str) -> str | None:
    """The catalog's name that shares most words with another one (family, version, size), unless one is a slip away.

    Of equals, the one with the fewest other words, and of these the newest.

    >>> nearest_model("Llama-70B"), nearest_model("Qwen2.5-72B-Chat"), nearest_model("Llama-3.1-70"), nearest_model("?")
    ('Llama-3.3-70B', 'Qwen2.5-72B', 'Llama-3.1-70B', None)
    """
    slip = nearest_name(name.strip(), known_names(), SLIP)
    if slip is not None:
        return slip
    wanted = _words_of(name)

    def likeness(known: str) -> tuple[int, int, str, str]:
        words = _words_of(known)
        entry, _ = _aliases().get(known, (known, None))
        return len(wanted & words), -len(words - wanted), str(_entry(entry)["date"]), known

    best = max((candidate for candidate in known_names() if "/" not in candidate), key=likeness)
    enough = likeness(best)[0] >= LEAST_SHARED
    return best if enough else nearest_name(name.strip(), known_names())


def _words_of(name: str) -> set[str]:
    """Words of a model's name: letters, versions and sizes apart.

    >>> sorted(_words_of("Qwen2.5-72B")), sorted(_words_of("Mixtral-8x7B"))
    (['2.5', '72b', 'qwen'], ['8x7b', 'mixtral'])
    """
    return set(_WORD.findall(name[:LONGEST_NAME].lower().rpartition("/")[2]))


def model_entry(model: Transformer) -> dict[str, Any]:
    """What `pdplan models` shows of a model, ready for JSON; sizes in bytes, lengths in tokens."""
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layers": model.num_layers,
        "hidden_size": model.hidden,
        "vocabulary": model.vocab,
        "kv_bytes_per_token": {dtype: model.kv_bytes_per_token(dtype) for dtype in ("bf16", "fp8")},
        "kv_bytes_per_token_beyond_windows": {dtype: _beyond_windows(model, dtype) for dtype in ("bf16", "fp8")},
        "state_bytes_per_request": model.state_bytes,
        "attention": _attention_summary(model),
        "experts": max(group.feed_forward.experts for group in model.layers),
        "experts_per_token": max(group.feed_forward.experts_per_token for group in model.layers),
        "native_weight_dtype": model.native_weight_dtype,
        "quantized_parts": sorted(model.quantized) if model.native_weight_dtype != "bf16" else [],
        "max_position": model.max_position,
        "source": model.source,
        "date": model.date,
    }


def _beyond_windows(model: Transformer, dtype: str) -> float:
    """KV bytes that one more token adds once every window is full [byte/token]."""
    return float(model.kv_bytes(BEYOND + 1.0, dtype) - model.kv_bytes(BEYOND, dtype))


def _attention_summary(model: Transformer) -> list[dict[str, Any]]:
    """Number of layers by kind of attention, in the order of the model."""
    layers: dict[str, int] = {}
    for group in model.layers:
        kind = attention_kind(group.attention)
        layers[kind] = layers.get(kind, 0) + group.count
    return [{"kind": kind, "layers": count} for kind, count in layers.items()]


def attention_kind(attention: Attention) -> str:
    """Short name of an attention's kind: "MHA", "GQA-8", "MQA", "MLA", "DSA", "linear", with its window if any.

    "CSA" and "HCA" are DeepSeek-V4's compressed attention with and without an indexer; "+ index" selects its keys.
    """
    match attention:
        case LinearAttention():
            return "linear"
        case CompressedAttention(ratio=0):
            kind = "MQA"
        case CompressedAttention():
            kind = "CSA" if attention.index_heads else "HCA"
        case LatentAttention():
            return "DSA" if attention.index_topk else "MLA"
        case SoftmaxAttention(kv_heads=1) if attention.heads > 1:
            kind = "MQA"
        case SoftmaxAttention():
            kind = "MHA" if attention.kv_heads == attention.heads else f"GQA-{attention.kv_heads}"
            kind += " + index" if attention.index_topk else ""
    return kind if attention.window is None else f"{kind}, window {attention.window}"


@cache
def _files() -> dict[str, Any]:
    """Catalog file by model name, which is the file's."""
    folder = resources.files("costmodel") / "catalog" / "models"
    return {item.name.removesuffix(".yaml"): item for item in folder.iterdir() if item.name.endswith(".yaml")}


@cache
def _entry(name: str) -> Mapping[str, Any]:
    text = _files()[name].read_text("utf-8")
    entry: Mapping[str, Any] = yaml.load(text, Loader=_LOADER)  # noqa: S506 the safe loader, in C where there is one
    return entry


@cache
def _aliases() -> dict[str, tuple[str, str | None]]:
    """Model and, where the config differs, variant of every other name; needs all entries."""
    table: dict[str, tuple[str, str | None]] = {}
    for name in model_names():
        entry = _entry(name)
        table.update(dict.fromkeys(entry.get("aliases", ()), (name, None)))
        table.update({variant: (name, variant) for variant in entry.get("variants", {})})
    return table


def _catalog_model(wanted: str) -> Transformer | None:
    """The catalog's model of that name in lower case, with the publisher of a checkpoint or without; or None."""
    exact = next((name for name in _files() if name.lower() == wanted), None)
    if exact is not None:
        return _build(exact, None)
    spellings = {alias.lower(): target for alias, target in reversed(_aliases().items())}
    checkpoints = {alias.rpartition("/")[2]: target for alias, target in spellings.items()}
    alias = spellings.get(wanted) or checkpoints.get(wanted)
    return _build(*alias) if alias else None


@cache
def _build(name: str, variant: str | None) -> Transformer:
    entry = _entry(name)
    overlay = entry["variants"][variant] if variant else {}
    model = parse_config({**entry["config"], **overlay}, name, entry["source"], str(entry["date"]))
    return replace(model, name=variant.rpartition("/")[2]) if variant else model


def _load_file(path: Path, wanted: str) -> Transformer:
    if path.suffix.lower() in ARCHITECTURES:
        return read_architecture(path)
    config, name = _named_config(path, wanted)
    try:
        return parse_config(config, name, source=wanted)
    except ArchitectureError as error:
        raise ArchitectureError(f"model {shown(wanted)}: {str(error).removeprefix(f'{name}: ')}") from error


def _named_config(path: Path, wanted: str) -> tuple[dict[str, Any], str]:
    """A user's config.json, with the quantiser's note beside it where there is one, and what the model is called."""
    folder = path if path.is_dir() else path.parent
    file = path / CONFIG_FILE if path.is_dir() else path
    config = read_config(file, wanted)
    if file.name == CONFIG_FILE and "quantization_config" not in config and (folder / MODELOPT_FILE).is_file():
        note = read_config(folder / MODELOPT_FILE, wanted).get("quantization")
        config = {**config, "quantization_config": note}
    name = (folder.resolve().name if file.name == CONFIG_FILE else file.stem) or wanted
    check_name(name)
    return config, name


def model_to_edit(name_or_path: str) -> tuple[Transformer, tuple[str, ...]]:
    """A model for an architecture file, and the fields of its config that are not understood and left out.

    Raises as `load_model` does, where what is left does not make a model.
    """
    try:
        return load_model(name_or_path), ()
    except ArchitectureError:
        config, name = _named_config(Path(name_or_path).expanduser(), name_or_path)
        model = parse_config(config, name, source=name_or_path, lenient=True)
        return model, not_understood(open_config(config, name, lenient=True))


def read_config(path: Path, wanted: str) -> dict[str, Any]:
    """The JSON object of a model's file; InputError where it is missing, huge, malformed or ambiguous.

    wanted: the model as the user named it.
    """
    where = f"model {shown(wanted)}: {path.name}"
    try:
        if not path.exists():
            raise InputError(f"{where} is not there; give a catalog name, a config.json or a directory with one")
        text = JsonText(where, decoded(read_file(path, LARGEST_CONFIG, f"a {CONFIG_FILE}"), where))
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror or error}") from error
    config: object = text.value(constants=True)  # transformers writes them
    if not isinstance(config, dict):
        raise text.error(f"is {json_kind(config)}, but must be an object")
    return config
