"""Models by name: the catalog's architecture facts, and a user's own `config.json` or architecture file.

A catalog entry is one YAML file named after its model: `source`, `date`, `aliases` (other names of the same
architecture), `variants` (names whose config differs, as fields to overlay), `served` (the checkpoint that serving
means by a name that is no checkpoint's: the instruction-tuned one, of the same shapes by its model card; null where
none was published) and `config` (Hugging Face's fields).

`pdplan models CONFIG -o FILE` writes an architecture file; `model: {architecture: FILE}` plans with it. The keys of a
mixer and of a feed-forward are the fields of `costmodel.attention` and `costmodel.transformer`, described there.

Parameters can be counted by transformers too, which builds the model without weights or memory. That needs the extra
`pdplan[transformers]`; code that a checkpoint brings with it is never run.
"""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, astuple, fields, replace
from functools import cache, reduce
from importlib import resources
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

import yaml
from pydantic import Field, create_model, model_validator

from costmodel.attention import Attention, CompressedAttention, LatentAttention, LinearAttention, Part, SoftmaxAttention
from costmodel.engine import Draft, draft_layer
from costmodel.errors import (
    LONGEST_NAME,
    UNWRITABLE,
    ArchitectureError,
    InputError,
    UnknownNameError,
    nearest_name,
    shown,
)
from costmodel.transformer import DTYPE_BYTES, STORED_BYTES, FeedForward, LayerGroup, Transformer, WeightScale
from costmodel.units import MIB

from .bounds import Bounds
from .fields import FileSection, Text, choice, count, number, sections_of
from .files import check_name, decoded, read_file, shipped_table, shown_path
from .hf_config import completed, open_config
from .hf_quantization import part_of
from .huggingface import parse_config
from .sources import JsonText, json_kind, read_source

LARGEST_CONFIG = 4 * MIB
"""The largest config.json in public use is below 100 kB."""
CONFIG_FILE = "config.json"
MODELOPT_FILE = "hf_quant_config.json"
"""Where NVIDIA's quantiser notes the format, beside a config.json that does not mention it."""

OWN_MODEL = ", or the path of a config.json (in YAML, model: {config: PATH})"
QUANTIZED: Mapping[str, str] = shipped_table("search_spaces", "benchmark_words.yaml")["checkpoints"]
"""Words in the names of quantized checkpoints, by the weight_dtype to plan them with; the first found counts."""
ARCHITECTURES = (".yaml", ".yml")
"""Endings of architecture files."""
SLIP = 0.92
"""Likeness of two names that differ by a slip of the hand: a letter less, or another one."""
BEYOND = 2.0**30
"""A context that is longer than any window [token]."""
LEAST_SHARED = 2
"""Words of a name that the name of another model must share to be offered for it, such as family and size."""
_WORD = re.compile(r"a?\d+(?:\.\d+)?(?:x\d+)?b(?![a-z])|\d+(?:\.\d+)?|[a-z]+")


def model_names() -> list[str]:
    """Names of the catalog's models, in alphabetical order.

    >>> "Llama-3.1-70B" in model_names()
    True
    """
    return list(_entries())


def known_names() -> list[str]:
    """Names of the catalog's models and all their other names.

    >>> "meta-llama/Llama-3.1-70B-Instruct" in known_names()
    True
    """
    return list(_targets())


def other_names() -> dict[str, str]:
    """The entry of each name that does not begin with the entry's own, such as that of a later model of its shape.

    >>> other_names()["Llama-3.3-70B"], "Llama-3.1-70B-Instruct" in other_names()
    ('Llama-3.1-70B', False)
    """
    entries = {name: entry for name, (entry, _) in _targets().items() if "/" not in name}
    return {name: entry for name, entry in entries.items() if not name.lower().startswith(entry.lower())}


def is_model(name_or_path: str) -> bool:
    """Whether a name means one model of the catalog, or is a path that exists."""
    try:
        return name_or_path.strip().lower() in _spellings() or Path(name_or_path).expanduser().exists()
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
    lower = name.strip().lower()
    served_by_name = {
        key.lower(): target for entry in _entries().values() for key, target in entry.get("served", {}).items()
    }
    if lower in served_by_name:
        checkpoint: str | None = served_by_name[lower]
        return checkpoint
    return next((alias for alias in known_names() if "/" in alias and alias.lower().endswith(f"/{lower}")), None)


def load_model(name_or_path: str, base_dir: Path | None = None) -> Transformer:
    """The model of a catalog name or alias (any case), or of a config.json, its directory, or an architecture file.

    base_dir: what a relative path is relative to (the workload file's directory); default: the current one.
    A name of the catalog wins over a directory of the same name; write `./name` for the directory.
    Raises UnknownNameError, InputError (unreadable or malformed file) or ArchitectureError.

    >>> load_model("meta-llama/Llama-3.1-70B-Instruct").name
    'Llama-3.1-70B'
    """
    name = name_or_path.strip()
    explicit = name.startswith((".", "/", "~")) or name.lower().endswith((".json", *ARCHITECTURES))
    if not explicit and name.lower() in _spellings():
        return catalog_model(name)
    try:
        path = ((base_dir or Path()) / Path(name).expanduser()) if name else None
        exists = path is not None and path.exists()
    except PermissionError as error:
        raise InputError(f"model '{shown_path(name)}': cannot be read (permission denied)") from error
    except (OSError, RuntimeError, ValueError):  # too long, NUL inside, no such home: cannot be a path
        path, exists = None, False
    if path is None or not (exists or explicit):
        return catalog_model(name_or_path)  # which refuses it
    if path.suffix.lower() in ARCHITECTURES:
        return sections_of(read_source(path, "model", ARCHITECTURE_SCHEMA), ArchitectureFile).transformer()
    config, title = _named_config(path, name)
    try:
        return parse_config(config, title, source=name)
    except ArchitectureError as error:
        raise ArchitectureError(f"model {shown(name)}: {str(error).removeprefix(f'{title}: ')}") from error


def catalog_model(name: str) -> Transformer:
    """The catalog's model of that name or alias (any case); no file is looked at, whatever the name looks like.

    >>> catalog_model("QWEN/qwen3-32b").name
    'Qwen3-32B'
    """
    target = _spellings().get(name.strip().lower())
    if target is None:
        raise _unknown(name)
    return _build(*target)


def _unknown(name: str) -> UnknownNameError:
    close = nearest_model(name)
    dtype = next((dtype for dtype, words in QUANTIZED.items() if re.search(words, name.lower())), None)
    dtype = "" if close is None or dtype is None else f" with weight_dtype: {dtype}"
    return UnknownNameError("model", name, model_names(), close=close, mend=f"{dtype}{OWN_MODEL}")


def nearest_model(name: str) -> str | None:
    """The catalog's name that shares most words with another one (family, version, size), unless one is a slip away.

    Of equals, one of the same family, then the one with the fewest other words, and of these the newest.

    >>> nearest_model("Llama-70B"), nearest_model("Qwen2.5-72B-Chat"), nearest_model("llama3-8b"), nearest_model("?")
    ('Llama-3.3-70B', 'Qwen2.5-72B', 'Llama-3.1-8B', None)
    """
    slip = nearest_name(name.strip(), known_names(), SLIP)
    if slip is not None:
        return slip
    name_words = _words_of(name)

    def likeness(candidate: str) -> tuple[int, bool, int, str, str]:
        words = _words_of(candidate)
        is_family = any(word.isalpha() for word in name_words & words)
        date = _entries()[_targets()[candidate][0]]["date"]
        return len(name_words & words), is_family, -len(words - name_words), str(date), candidate

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
    kinds, draft = Counter[str](), draft_layer(model, Draft.MTP)
    for group in model.layers:
        kinds[attention_kind(group.attention)] += group.count
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "prompt_parameters": model.prompt_parameters,
        "tower_parameters": model.towers,
        "host_table_parameters": model.host_tables,
        "draft_parameters": 0 if draft is None else model.draft_layers * (draft.dense_elements + draft.expert_elements),
        "layers": model.num_layers,
        "hidden_size": model.hidden,
        "vocabulary": model.vocab,
        "kv_bytes_per_token": {dtype: model.kv_bytes_per_token(dtype) for dtype in ("bf16", "fp8")},
        "kv_bytes_per_token_beyond_windows": {
            dtype: float(model.kv_bytes(BEYOND + 1.0, dtype) - model.kv_bytes(BEYOND, dtype))
            for dtype in ("bf16", "fp8")
        },
        "state_bytes_per_request": model.state_bytes,
        "attention": [{"kind": kind, "layers": count} for kind, count in kinds.items()],
        "experts": max(group.feed_forward.experts for group in model.layers),
        "experts_per_token": max(group.feed_forward.experts_per_token for group in model.layers),
        "native_weight_dtype": model.native_weight_dtype,
        "quantized_parts": sorted(model.quantized) if model.native_weight_dtype != "bf16" else [],
        "own_dtypes": {str(component): dtype for component, dtype in sorted(model.own_dtypes)},
        "max_position": model.max_position,
        "source": model.source,
        "date": model.date,
    }


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
            kind = "CSA" if attention.index_topk else "HCA"
            kind += " of earlier KV" if attention.reads_earlier_kv else ""
        case LatentAttention():
            kind = "DSA" if attention.index_topk else "MLA"
        case SoftmaxAttention(kv_heads=1) if attention.heads > 1:
            kind = "MQA"
        case SoftmaxAttention():
            kind = "MHA" if attention.kv_heads == attention.heads else f"GQA-{attention.kv_heads}"
            kind += " + index" if attention.index_topk else ""
            kind += " of earlier KV" if attention.reads_earlier_kv else ""
    return kind if attention.window is None else f"{kind}, window {attention.window}"


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    """The catalog's models by name, in alphabetical order; each is a file."""
    folder = resources.files("costmodel") / "catalog" / "models"
    names = (item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))
    return {name: shipped_table("costmodel", f"catalog/models/{name}.yaml") for name in sorted(names, key=str.lower)}


@cache
def _targets() -> dict[str, tuple[str, str | None]]:
    """Model of every name, and its variant where the config differs: of models first, then of their other names."""
    table: dict[str, tuple[str, str | None]] = {name: (name, None) for name in _entries()}
    for name, entry in _entries().items():
        table |= dict.fromkeys(entry.get("aliases", ()), (name, None))
        table |= {variant: (name, variant) for variant in entry.get("variants", {})}
    return table


@cache
def _spellings() -> Mapping[str, tuple[str, str | None]]:
    """The same by names in lower case, with the publisher of a checkpoint or without; of equals the first."""
    rows = {name.lower(): target for name, target in reversed([*_targets().items()])}
    return {spelling.rpartition("/")[2]: target for spelling, target in rows.items()} | rows


@cache
def _build(name: str, variant: str | None) -> Transformer:
    entry = _entries()[name]
    model = parse_config(_catalog_config(name, variant), name, entry["source"], str(entry["date"]))
    return replace(model, name=variant.rpartition("/")[2]) if variant else model


def _catalog_config(name: str, variant: str | None) -> dict[str, Any]:
    entry = _entries()[name]
    return {**entry["config"], **(entry["variants"][variant] if variant else {})}


def config_of(name_or_path: str) -> dict[str, Any]:
    """The config.json of a model of the catalog, or of a path; InputError for an architecture file, which has none."""
    if name_or_path.lower().endswith(ARCHITECTURES):
        raise InputError(f"model {shown(name_or_path)} is an architecture file; only a config.json can be counted anew")
    target = _spellings().get(name_or_path.strip().lower())
    return _catalog_config(*target) if target else _named_config(Path(name_or_path).expanduser(), name_or_path)[0]


def _named_config(path: Path, model_name: str) -> tuple[dict[str, Any], str]:
    """A user's config.json, with the quantiser's note beside it where there is one, and what the model is called."""
    folder = path if path.is_dir() else path.parent
    file = path / CONFIG_FILE if path.is_dir() else path
    config = read_config(file, model_name)
    if file.name == CONFIG_FILE and "quantization_config" not in config and (folder / MODELOPT_FILE).is_file():
        note = read_config(folder / MODELOPT_FILE, model_name).get("quantization")
        config = {**config, "quantization_config": note}
    name = (folder.resolve().name if file.name == CONFIG_FILE else file.stem) or model_name
    check_name(name)
    return config, name


def model_to_edit(name_or_path: str) -> tuple[Transformer, tuple[str, ...]]:
    """A model for an architecture file, and what of its config is not understood or missing, in sentences.

    Raises as `load_model` does, where what is left does not make a model.
    """
    try:
        return load_model(name_or_path), ()
    except ArchitectureError:
        config, name = _named_config(Path(name_or_path).expanduser(), name_or_path)
    fields = open_config(config, name, lenient=True)
    gaps = [f"Not understood, and left out: {gap}" for gap in fields.not_understood()]
    while True:
        try:
            return parse_config(config, name, source=name_or_path, lenient=True), tuple(gaps)
        except ArchitectureError as error:
            config, gap = completed(config, error)
            gaps.append(f"Missing, and assumed: {gap}")


def read_config(path: Path, model_name: str) -> dict[str, Any]:
    """The JSON object of a model's file; InputError where it is missing, huge, malformed or ambiguous.

    model_name: the model as the user named it.
    """
    where = f"model {shown(model_name)}: {path.name}"
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


# An architecture file: a model as groups of equal layers, for configs that pdplan does not understand.

ARCHITECTURE_SCHEMA = "pdplan.architecture/1"
MIXERS: Mapping[str, type[Any]] = {
    "softmax": SoftmaxAttention,
    "latent": LatentAttention,
    "compressed": CompressedAttention,
    "linear": LinearAttention,
}
"""Word of each kind of token mixer in a file."""
Count = Annotated[int, count(Bounds(0, 10**8))]
Positive = Annotated[int, count(Bounds(1, 10**8))]


@cache
def _section(kind: str, shape: type[Any]) -> type[FileSection]:
    """The keys of a shape of the cost model, but the hidden width, which the file states once."""
    hints = get_type_hints(shape)
    keys: dict[str, Any] = {"kind": (Literal[kind], ...)} if kind else {}
    for field in fields(shape):
        if field.name != "hidden":
            annotation = bool if hints[field.name] is bool else Count
            default = ... if field.default is MISSING else field.default
            keys[field.name] = (annotation | None if default is None else annotation, default)
    return create_model(f"{kind or shape.__name__}_section", __base__=FileSection, **keys)


if TYPE_CHECKING:
    Mixer = FileSection
    Block = FileSection
else:
    Mixer = Annotated[reduce(or_, (_section(*kind) for kind in MIXERS.items())), Field(discriminator="kind")]
    Block = _section("", FeedForward)


class LayersSection(FileSection):
    """Equal layers."""

    count: Annotated[int, count(Bounds(1, 10_000))]
    """How many of them."""
    attention: Mixer
    """Token mixer: kind softmax, latent, compressed or linear, and its widths."""
    feed_forward: Block | None = None
    """Feed-forward and experts; none: the layer has a mixer alone."""
    parallel: bool = False
    """Whether both read the same input."""
    sets: Count = 0
    """Sets of weights that these layers share; 0: each has its own."""
    tail: Count = 0
    """Tokens at the end of a prompt that pass these layers; 0: all."""

    def group(self, hidden: int) -> LayerGroup:
        """The same of a model of that width."""
        mixer = self.attention.model_dump()
        block = {"intermediate": 0, "gated": True} if self.feed_forward is None else self.feed_forward.model_dump()
        attention: Attention = MIXERS[mixer.pop("kind")](hidden=hidden, **mixer)
        feed_forward = FeedForward(hidden=hidden, **block)
        return LayerGroup(self.count, attention, feed_forward, self.parallel, self.sets, tail=self.tail)


class ArchitectureFile(FileSection):
    """A model."""

    schema_: Annotated[Literal["pdplan.architecture/1"], Field(alias="schema")]
    name: Text
    hidden: Positive
    """Width of the residual stream."""
    vocab: Positive
    """Rows of the embedding."""
    tied_embeddings: bool
    """Whether the output head shares them."""
    max_position: Positive
    """Longest ISL + OSL [token]."""
    looked_up: Annotated[int, count(Bounds(0, 10**12))] = 0
    """Weights of tables that are looked up beside the embedding: learned positions, embeddings of each layer."""
    towers: Annotated[int, count(Bounds(0, 10**12))] = 0
    """Weights of towers for images and sound."""
    host_tables: Annotated[int, count(Bounds(0, 10**13))] = 0
    """Weights of one byte in tables of n-grams, which engines keep in host memory."""
    draft_layers: Annotated[int, count(Bounds(0, 100))] = 0
    """Layers that predict further tokens (MTP)."""
    native_weight_dtype: Annotated[str, choice(*sorted(DTYPE_BYTES)), Field(alias="weights")] = "bf16"
    """Dtype of the published checkpoint."""
    quantized: tuple[Part, ...] = (Part.ATTENTION, Part.EXPERTS, Part.FEED_FORWARD)
    """Parts that are stored in `weights`; the others are 16-bit."""
    own_dtypes: Mapping[Part, Annotated[str, choice(*sorted(STORED_BYTES))]] = Field(default_factory=dict)
    """Dtypes of parts that are stored in another one."""
    mixed_bytes: Mapping[Part, Annotated[float, number(Bounds(0, 2))]] = Field(default_factory=dict)
    """Mean bytes of a weight of parts that are stored in several dtypes [byte]."""
    weight_scale: tuple[int, int, float] | None = None
    """Outputs and inputs of a block of weights that share a scale, and its size [byte]."""
    cache_quantizer: str = ""
    """Tool that made the checkpoint, where its config states a KV cache in FP8."""
    source: str = ""
    """Where the figures come from."""
    layers: Annotated[list[LayersSection], Field(min_length=1)]
    """Groups of equal layers, first to last."""

    @model_validator(mode="after")
    def _one_tail(self) -> Self:
        tails = sorted({section.tail for section in self.layers if section.tail})
        if len(tails) > 1:
            raise InputError(f"has layers with 'tail' {tails[0]} and {tails[1]}; all that have one need the same")
        return self

    def transformer(self) -> Transformer:
        """The model that the file describes."""
        facts = {name: getattr(self, name) for name in type(self).model_fields if name != "schema_"}
        facts |= {
            "layers": tuple(section.group(self.hidden) for section in self.layers),
            "quantized": frozenset(self.quantized),
            "own_dtypes": frozenset(self.own_dtypes.items()),
            "mixed_bytes": frozenset(self.mixed_bytes.items()),
            "weight_scale": None if self.weight_scale is None else WeightScale(*self.weight_scale),
        }
        return Transformer(**facts)


def architecture_text(model: Transformer, gaps: tuple[str, ...] = ()) -> str:
    """An architecture file of a model; gaps: what of its config was not understood or missing, as comments on top."""
    kinds = {shape: kind for kind, shape in MIXERS.items()}
    layers = [asdict(group) for group in model.layers]
    for section, group in zip(layers, model.layers, strict=True):
        section["attention"]["kind"] = kinds[type(group.attention)]
        del section["joined"], section["attention"]["hidden"], section["feed_forward"]["hidden"]
        section["feed_forward"] = None if group.feed_forward.is_empty else section["feed_forward"]
    facts = {name: getattr(model, name) for name in ArchitectureFile.model_fields if name != "schema_"} | {
        "schema": ARCHITECTURE_SCHEMA,
        "quantized": sorted(model.quantized),
        "own_dtypes": dict(sorted(model.own_dtypes)),
        "mixed_bytes": dict(sorted(model.mixed_bytes)),
        "weight_scale": None if model.weight_scale is None else astuple(model.weight_scale),
        "layers": layers,
    }
    file = ArchitectureFile.model_validate(facts)
    content = file.model_dump(mode="json", by_alias=True)
    content["layers"] = [section.model_dump(mode="json", exclude_defaults=True) for section in file.layers]
    head = [
        f"# {model.parameters:,} parameters, {model.active_parameters:,} of them active",
        *(f"# {gap}" for gap in gaps),
    ]
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return "\n".join([*head, body])


EXTRA = ("torch", "transformers")
FLOAT = "__float__"
"""How transformers writes what JSON has no number for, such as {"__float__": "Infinity"}."""
AGREEMENT = 0.01
"""Largest difference of two counts that agree [1]."""
VECTORS = "norms and biases"
GROUPS = (*(str(part) for part in Part), VECTORS)
_OTHER_TOWERS = re.compile(r"vision|visual|audio|image|projector|multi_modal|mtp\.")
_TABLES = re.compile(r"embed|lm_head|wte|wpe|embd")


def has_transformers() -> bool:
    """Whether the extra is installed."""
    return all(importlib.util.find_spec(name) for name in EXTRA)


def counted(model: Transformer) -> Counter[str]:
    """Weights of pdplan's model by part [1], routers with the feed-forward; it leaves norms and biases out."""
    pieces = Counter[str]({Part.EMBEDDING: model.embedding_elements + model.looked_up})
    for group in model.layers:
        pieces[Part.EXPERTS] += group.weight_sets * group.expert_elements
        for matrix in group.matrices:
            component = Part.ATTENTION if matrix.part is Part.ATTENTION else Part.FEED_FORWARD
            pieces[component] += group.weight_sets * matrix.elements
    return pieces


def reference_count(config: Mapping[str, Any], where: str) -> tuple[Counter[str], str]:
    """Weights of the text model by part [1], and the version of transformers that counts them.

    config: a config.json; where: how to call it in messages. Raises ArchitectureError where transformers cannot build
    the model.
    """
    import torch
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    transformers.logging.set_verbosity_error()
    name, version = f"transformers {transformers.__version__}", transformers.__version__
    if config.get("model_type") not in CONFIG_MAPPING:
        raise ArchitectureError(f"{where}: {name} does not know the model_type {shown(config.get('model_type'))}")
    plain = {key: value for key, value in config.items() if key not in {"quantization_config", "auto_map"}}
    plain = json.loads(json.dumps(plain), object_hook=lambda item: float(item[FLOAT]) if FLOAT in item else item)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        try:
            settings = CONFIG_MAPPING[config["model_type"]].from_dict(plain)
            text = settings.get_text_config(decoder=True)
            is_causal = type(text) in AutoModelForCausalLM._model_mapping
            model = (AutoModelForCausalLM if is_causal else AutoModelForImageTextToText).from_config(
                text if is_causal else settings
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            raise ArchitectureError(f"{where}: {name} cannot build the model: {reason}") from error
    return by_part((key, value.numel(), value.ndim) for key, value in model.named_parameters()), version


def by_part(parameters: Iterable[tuple[str, int, int]]) -> Counter[str]:
    """Elements by part, from names, elements and dimensions of tensors; towers beside the text model are left out.

    >>> dict(by_part([("layers.0.self_attn.q_proj.weight", 64, 2), ("layers.0.mlp.experts.down_proj", 96, 3)]))
    {<Part.ATTENTION: 'attention'>: 64, <Part.EXPERTS: 'experts'>: 96}
    """
    pieces = Counter[str]()
    for name, size, dimensions in parameters:
        if _OTHER_TOWERS.search(name):
            continue
        if dimensions < 2:
            pieces[VECTORS] += size
        elif _TABLES.search(name) and not re.search(r"\.\d+\.", name):
            pieces[Part.EMBEDDING] += size
        else:
            pieces[part_of(name) or Part.FEED_FORWARD] += size
    return pieces
