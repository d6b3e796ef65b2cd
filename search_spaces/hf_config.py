"""Fields of a Hugging Face `config.json`, and what they say of the context and of the kind of each layer.

They are read with care: whatever is missing or not understood is named. What families name differently or leave unsaid
stands in `hf_families.yaml`, and what their classes take for it in `hf_defaults.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import chain
from types import UnionType
from typing import Any

from costmodel.errors import ArchitectureError, shown

from .files import shipped_table
from .sources import value_at

LARGEST = 10**8
"""No count in any config is larger; a larger one is a typo."""
TIED = "tie_word_embeddings"
LOCAL_GLOBAL = "LG"
"""Letters of layers that attend a window, and of those that attend in full."""
WAY_OUT = "`pdplan models --from CONFIG -o my-model.yaml` writes what is understood, to be completed"


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults that configs of a model_type leave unstated, fields that only they have, and their names for others.

    section: sizes of the class, which stand for those that a section of another model's config leaves out.
    """

    defaults: Mapping[str, Any]
    fields: frozenset[str]
    spells: Mapping[str, str]
    section: Mapping[str, Any]

    def over(self, group: Mapping[str, Any]) -> Family:
        """The same with an entry of the table laid over it."""
        spells = group.get("spells", {})
        roots = (path.partition(".")[0] for path in spells.values())
        return Family(
            {**self.defaults, **group.get("defaults", {})},
            self.fields.union(group.get("fields", ()), spells, roots),
            {**self.spells, **spells},
            self.section,
        )


UNKNOWN = Family({}, frozenset(), {}, {})


@cache
def notation() -> Mapping[str, Any]:
    """How families write their configs: `hf_families.yaml`, its patterns compiled and its families by model_type.

    What stands there outweighs the defaults of a family's class (`hf_defaults.yaml`). Of these, the fields of `sizes`
    count only where the config is a section of another one.

    >>> notation()["families"]["gemma2"].defaults["sliding_window_pattern"]
    2
    """
    table = dict(shipped_table("search_spaces", "hf_families.yaml"))
    families: dict[str, Family] = {}
    for name, defaults in shipped_table("search_spaces", "hf_defaults.yaml").items():
        sizes = {field: defaults.pop(field) for field in table["sizes"] if field in defaults}
        families[name] = Family(defaults, frozenset(), {}, sizes)
    for group in table["families"]:
        families |= {name: families.get(name, UNKNOWN).over(group) for name in group["names"]}
    for name, successor in table["renamed"].items():
        own = (group for group in table["families"] if name in group["names"])
        families[name] = reduce(Family.over, own, families[successor])
    everywhere = {*table["understood"], *table["by_layer"], *chain.from_iterable(table["aliases"].values())}
    alone = {field for group in table["families"] for field in group.get("fields", ())}
    patterns = {name: re.compile("|".join(table[name])) for name in ("shapes", "harmless")}
    return table | patterns | {"understood": frozenset(everywhere - alone), "families": families}


def _spellings(field: str) -> Sequence[str]:
    """Names of a field in configs."""
    names: Sequence[str] = notation()["aliases"].get(field, (field,))
    return names


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One config: `values` as written, its family, `where` to begin error messages with."""

    where: str
    values: Mapping[str, Any]
    family: Family = UNKNOWN

    def error(self, text: str) -> ArchitectureError:
        """An error that says in which config it is."""
        return ArchitectureError(f"{self.where}: {text}")

    def missing(self, field: str, reason: str = "") -> ArchitectureError:
        """The error for a field that is not there, by the name that its family has for it; reason: why it is needed."""
        names = _spellings(field)
        name = next((name for name in names if name in self.family.fields), names[0])
        text = "; ".join(filter(None, (f"config.json lacks {shown(name)}", reason, WAY_OUT)))
        return ArchitectureError(f"{self.where}: {text}", missing=name)

    def of_layers(self, count: int) -> list[ConfigFields]:
        """The fields of each layer: where a layer has values of its own, these outweigh the common ones."""
        own: list[dict[str, Any]] = [{} for _ in range(count)]
        for field, common in notation()["by_layer"].items():
            if isinstance(self.values.get(field), list):
                for layer, value in enumerate(self.sequence(field, count) or ()):
                    own[layer] |= {field: None, common: value}
        listed = self._typed("per_layer_config", Mapping, "an object") or {}  # transformers 5
        for number, values in listed.items():
            if not str(number).isdecimal() or int(number) >= count or not isinstance(values, Mapping):
                raise self.error(f"'per_layer_config' must have an object for each of {count} layers that it names")
            own[int(number)] |= values
        for layer_values, block in zip(own, self.block_types() or (), strict=False):
            layer_values.update({"block_configs": None, **block})
        distinct = {repr(values): replace(self, values={**self.values, **values}) for values in own if values}
        return [distinct.get(repr(values), self) for values in own]

    def block_types(self) -> list[Mapping[str, Any]] | None:
        """`block_configs` where each is of one block with its type (Nemotron-H-Puzzle); None where there are none."""
        blocks = self.values.get("block_configs")
        if not isinstance(blocks, list) or not blocks:
            return None
        return blocks if all(isinstance(block, Mapping) and "block_type" in block for block in blocks) else None

    def get(self, field: str) -> Any:
        """Value of a field or of its alias; else the family's default; None where neither says anything."""
        names = _spellings(field)
        spellings = {name: self.values[name] for name in names if self.values.get(name) is not None}
        if len({repr(value) for value in spellings.values()}) > 1 and field != "hidden_act":
            pairs = ", ".join(f"{shown(name)} {shorten(value)}" for name, value in spellings.items())
            raise self.error(f"config.json gives {pairs}, which must agree")
        if spellings:
            return next(iter(spellings.values()))
        is_null = self._is_written(field)  # which outweighs the default
        return None if is_null else self.family.defaults.get(field)

    def lacks(self, field: str) -> bool:
        """Whether the config does not have a field, not even as null, and its family has no default for it."""
        return not self._is_written(field) and field not in self.family.defaults

    def _is_written(self, field: str) -> bool:
        return any(name in self.values for name in _spellings(field))

    def has(self, field: str) -> bool:
        """Whether the config itself has a field with a value that is neither null nor zero."""
        return any(self.values.get(name) for name in _spellings(field))

    def optional(self, field: str, low: int = 0) -> int | None:
        """A whole number, or None where the config is silent."""
        value = self.get(field)
        return None if value is None else self._whole(self._spelling(field), value, low)

    def count(self, field: str, reason: str = "") -> int:
        """A whole number of at least 1 that must be there."""
        value = self.optional(field, low=1)
        if value is None:
            raise self.missing(field, reason)
        return value

    def widths(self, mixer: str) -> dict[str, int]:
        """The widths of a kind of mixer, which must all be there."""
        return {name: self.count(field) for name, field in notation()["widths"][mixer].items()}

    def _typed(self, field: str, kind: type | UnionType, wanted: str) -> Any:
        """A value of a kind, or None where the config is silent."""
        value = self.get(field)
        if value is not None and not isinstance(value, kind):
            raise self.error(f"{shown(self._spelling(field))} is {shorten(value)}, but must be {wanted}")
        return value

    def flag(self, field: str) -> bool | None:
        """A truth value, or None where the config is silent."""
        value: bool | None = self._typed(field, bool, "true or false")
        return value

    def number(self, field: str) -> float | None:
        """A number, or None where the config is silent."""
        value: float | None = self._typed(field, int | float, "a number")
        return value

    def text(self, field: str) -> str | None:
        """A string, or None where the config is silent."""
        value: str | None = self._typed(field, str, "a string")
        return value

    def labels(self, field: str, words: Sequence[Any], length: int) -> tuple[Any, ...] | None:
        """One of the words, or numbers that stand for them, per layer, or None where the config is silent."""
        values = self.sequence(field, length)
        for layer, value in enumerate(values or ()):
            if value not in words:
                odd = f"{shown(field)} says {shorten(value)} for layer {layer}"
                raise self.error(f"{odd}, which pdplan does not know ({', '.join(map(str, words))})")
        return None if values is None else tuple(values)

    def sequence(self, field: str, length: int) -> list[Any] | None:
        """A list of one value per layer, those of draft layers left out, or None where the config is silent."""
        values: list[Any] | None = self._typed(field, list | tuple, "a list")
        drafts = self.optional("num_nextn_predict_layers") or 0
        if values is not None and length <= len(values) <= length + drafts:
            return list(values[:length])
        if values is not None and len(values) != length:
            raise self.error(f"{shown(field)} has {len(values)} entries for {length} layers")
        return values

    def layer_numbers(self, field: str, length: int) -> frozenset[int] | None:
        """Layer numbers from 0, in a list or between commas, or None where the config is silent."""
        values = self._typed(field, list | tuple | str, "a list of layer numbers")
        if isinstance(values, str):
            values = [int(word) if word.strip().isdecimal() else word for word in values.split(",")]
        return None if values is None else frozenset(self._whole(field, item, 0, length - 1) for item in values)

    def not_understood(self) -> tuple[str, ...]:
        """The fields that shape attention or experts in a way that pdplan does not model, each with its value."""
        shapes, harmless = notation()["shapes"], notation()["harmless"]
        understood = notation()["understood"] | self.family.fields
        own = self.get("per_layer_config")
        by_layer = (
            [values for values in own.values() if isinstance(values, Mapping)] if isinstance(own, Mapping) else []
        )
        return tuple(
            f"{shown(field)} = {shorten(value)}"
            for values in (self.values, *by_layer)
            for field, value in values.items()
            if value and field not in understood and shapes.search(field) and not harmless.search(field)
        )

    def _spelling(self, field: str) -> str:
        """The alias under which the config writes the field."""
        names = _spellings(field)
        return next((name for name in names if self.values.get(name) is not None), field)

    def _whole(self, field: str, value: object, low: int, high: int = LARGEST) -> int:
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"{shown(field)} is {shorten(value)}, but must be a whole number from {low} to {high}")
        return value


def open_config(config: Mapping[str, Any], name: str, *, lenient: bool = False) -> ConfigFields:
    """The language model's fields of a config, whether at the top or nested beside a vision tower.

    Raises ArchitectureError where a field is not understood, unless lenient.
    """
    values = config = without_talker(config)
    while (section := text_section(values)) is not None:
        outer, values = values, _shared(values) | values[section]
        if outer.get(TIED) is not None and values.get(TIED) is not False:
            # The outer model has the head. Its class may tie it by default though the section says that it is not tied.
            values = {**values, TIED: outer[TIED]}
    family = _family_of(values)
    if values is not config and family.section:
        family = replace(family, defaults={**family.section, **family.defaults})
    elsewhere = {field: value_at(values, path) for field, path in family.spells.items()}
    values = {**values, **{field: value for field, value in elsewhere.items() if value is not None}}
    fields = ConfigFields(name, values, family)
    gaps = fields.not_understood()
    if gaps and not lenient:
        raise fields.error(f"config.json has {', '.join(gaps)}, which pdplan does not model; {WAY_OUT}")
    return fields


def check_file(config: Mapping[str, Any], fields: ConfigFields) -> None:
    """Raise ArchitectureError for another file of a model's folder: it has no width, but fields of that file."""
    if not fields.has("hidden_size"):
        for file, marks in notation()["other_files"].items():
            if any(mark in config for mark in marks):
                raise fields.error(f"this looks like {file}, which does not describe the model; give its config.json")


def _family_of(values: Mapping[str, Any]) -> Family:
    """The family of a model_type; if that is unknown, of the model's class, by which engines choose an implementation.

    >>> _family_of({"model_type": "my_llama", "architectures": ["LlamaForCausalLM"]}).defaults["multi_head"]
    True
    """
    families: Mapping[str, Family] = notation()["families"]
    classes, model_type = values.get("architectures"), values.get("model_type")
    if str(model_type) in families or not isinstance(classes, list) or not classes:
        return families.get(str(model_type), UNKNOWN)
    word = re.sub(r"(For[A-Z]|LMHead)\w*$", "", str(classes[0])).lower()
    return next((family for name, family in families.items() if re.sub(r"[_.-]", "", name.lower()) == word), UNKNOWN)


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that hold for the language model in it too."""
    return {key: config[key] for key in ("quantization_config", "compression_config", "model_type") if key in config}


def without_talker(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the model that answers, of one that also talks (Qwen-Omni)."""
    thinker = config.get("thinker_config")
    return _shared(config) | thinker if isinstance(thinker, dict) else config


def completed(config: Mapping[str, Any], error: ArchitectureError) -> tuple[dict[str, Any], str]:
    """A config with a value for the field that it lacks, to be corrected by hand, and that field with its value.

    Raises the error where it is about another fault, or the value is no remedy.
    """
    field, config = error.missing.rpartition(".")[2], without_talker(config)
    section = text_section(config)
    values = config if section is None else config[section]
    if not field or values.get(field) is not None:
        raise error
    value = notation()["assumed"].get(field, 1)
    if isinstance(value, str):
        value = values.get(value.removeprefix("="), 1) if value.startswith("=") else value
    if isinstance(value, list):
        value = value * ConfigFields(field, values).count("num_hidden_layers")
    values = {**values, field: value}
    return (values if section is None else {**config, section: values}), f"{shown(field)} = {shorten(value)}"


def text_section(config: Mapping[str, Any]) -> str | None:
    """Key of the section that holds the language model; None where it is at the top."""
    sections = (key for key in notation()["text_sections"] if isinstance(config.get(key), Mapping) and config[key])
    return next(sections, None)


def shorten(value: object) -> str:
    """A value as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


TRAINED = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class ContextScaling:
    """A rotary embedding that extends the context beyond the length that the model was trained on.

    stated: `max_position_embeddings` [token]; trained: what is extended [token]; length: what it is extended to
    [token]; multiplies: whether every engine multiplies the one to the other itself, which it does for linear and
    dynamic scaling; section: of the config that holds the language model, None at the top.
    """

    stated: int
    trained: int
    length: int
    multiplies: bool
    section: str | None


def context_scaling(config: Mapping[str, Any], name: str) -> ContextScaling | None:
    """How a config.json extends the context; None where nothing does, or nothing that has to be told (`extended`).

    name: how the model is called in messages. Raises ArchitectureError.
    """
    fields = open_config(config, name)
    position_limit, length = _position_limit(fields), context_length(fields)
    scalings = [(where, rope) for where, rope, _ in _extensions(fields)]
    if not scalings or fields.flag("context_is_scaled"):
        return None
    multiplies = _kind(scalings[0][1]) in notation()["rope"]["stretching"]
    trained_length = position_limit if multiplies else _trained_length(fields, *scalings[0])
    return ContextScaling(position_limit, trained_length, length, multiplies, text_section(config))


def rope_parameters(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The rotary embeddings of a config.json whole, as transformers 5 keeps them, with what stood beside them before.

    An engine that is told them puts them in the place of the checkpoint's, so that nothing may be missing. Raises
    ArchitectureError where the base is not stated.

    >>> linear = {"type": "linear", "factor": 4.0}
    >>> rope_parameters({"max_position_embeddings": 4096, "rope_theta": 1e6, "rope_scaling": linear}, "x")
    {'factor': 4.0, 'rope_type': 'linear', 'rope_theta': 1000000.0}
    """
    fields = open_config(config, name)
    # where both notations are there, transformers 5 takes the old one (`convert_rope_params_to_dict`)
    newest = max((where.partition(".")[0] for where, _, _ in _extensions(fields)), default="")  # of two, rope_scaling
    newer = fields.get(notation()["rope"]["fields"][0])
    places = (fields.values, newer if isinstance(newer, Mapping) else {})
    by_layer: dict[str, Any] = {}
    for where, rope in _ropes(fields):
        field, _, layers = where.partition(".")
        if field != newest:
            continue
        embedding = {key: value for key, value in rope.items() if key != "type"}
        embedding["rope_type"] = _kind(rope) or "default"
        for key, spellings in notation()["rope"]["kept_beside"].items():
            outer = (place[spelling] for place in places for spelling in spellings if place.get(spelling) is not None)
            if embedding.get(key) is None and (value := next(outer, None)) is not None:
                embedding[key] = value
        if embedding.get("rope_theta") is None:
            raise fields.missing("rope_theta", f"engines that are told {shown(where)} need the base with it")
        if embedding["rope_type"] == "yarn":
            embedding[TRAINED] = _trained_length(fields, where, rope)
        by_layer[layers] = embedding
    whole: dict[str, Any] = by_layer.get("", by_layer)
    return whole


def check_limits(config: Mapping[str, Any], name: str, length: int) -> None:
    """Raise ArchitectureError where another field than `max_position_embeddings` keeps the context below a length."""
    fields = open_config(config, name)
    for field in notation()["rope"]["other_limits"]:
        value = fields.values.get(field)
        if isinstance(value, int) and value < length:
            raise fields.error(
                f"{shown(field)} is {value}, by which engines would end the context before {length} tokens"
            )


def _kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type"))


def context_length(fields: ConfigFields) -> int:
    """Longest ISL + OSL that the model takes [token]; raises ArchitectureError for a scaling that is not understood."""
    position_limit = _position_limit(fields)
    if fields.flag("context_is_scaled"):
        return position_limit
    context_lengths = {name: length for name, _, length in _extensions(fields)}
    if len(set(context_lengths.values())) > 1:
        lengths = ", ".join(f"{length} by {shown(name)}" for name, length in context_lengths.items())
        raise fields.error(f"config.json gives a context of {lengths}, which must agree")
    return next(iter(context_lengths.values()), position_limit)


def _position_limit(fields: ConfigFields) -> int:
    """Positions that the config states [token].

    Engines put the tokenizer's name for them first (Command-R; vLLM's `_get_and_verify_max_len`, SGLang's
    `CONTEXT_LENGTH_KEYS`), and take other names where there is none.
    """
    limits = notation()["rope"]["other_limits"]
    names = ("max_position_embeddings", *limits)
    if fields.values.get("model_max_length") is not None:
        names = ("model_max_length",)
    stated = (fields.optional(name, low=1) for name in names)
    return next(filter(None, stated), None) or fields.count("max_position_embeddings")


def _extensions(fields: ConfigFields) -> list[tuple[str, Mapping[str, Any], int]]:
    """The rotary embeddings that extend the context, with where they stand and to what length [token]."""
    table, extensions = notation()["rope"], list[tuple[str, Mapping[str, Any], int]]()
    for name, rope in _ropes(fields):
        kind, factor = _kind(rope), rope.get("factor")
        if kind in table["extended"] or ((factor is None or factor == 1) and kind != "yarn"):
            continue
        if kind != "yarn" and kind not in table["stretching"]:
            raise fields.error(f"{shown(name)} scales by the kind {shorten(kind)}, which pdplan does not know")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= LARGEST:
            raise fields.error(f"'{name}.factor' is {shorten(factor)}, but must be a number from 1 to {LARGEST}")
        length = int((_trained_length(fields, name, rope) if kind == "yarn" else _position_limit(fields)) * factor)
        if length > LARGEST:
            most = f"but at most {LARGEST} are believed"
            raise fields.error(f"{shown(name)} extends the context to {length} tokens, {most}")
        extensions.append((name, rope, length))
    return extensions


def _ropes(fields: ConfigFields) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rotary embeddings, one for all layers or one per type of layer, with where they stand."""
    for field in notation()["rope"]["fields"]:
        rope = fields.get(field)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            raise fields.error(f"{shown(field)} is {shorten(rope)}, but must be an object")
        by_layer = [(f"{field}.{kind}", section) for kind, section in rope.items() if isinstance(section, Mapping)]
        yield from by_layer or [(field, rope)]


def _trained_length(fields: ConfigFields, name: str, rope: Mapping[str, Any]) -> int:
    """Length that the model was trained on [token], beside its rotary embedding or at the top of the config."""
    length = rope.get(TRAINED, fields.get(TRAINED))
    if length is None:
        raise fields.missing(f"{name}.{TRAINED}", "it says which length YaRN extends")
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LARGEST:
        raise fields.error(f"'{name}.{TRAINED}' is {shorten(length)}, but must be a whole number from 1 to {LARGEST}")
    return length


# Which kind of token mixer each layer has.


def has_single_blocks(fields: ConfigFields) -> bool:
    """Whether each layer is either a mixer or a feed-forward."""
    words = fields.get("layer_types")
    is_listed = isinstance(words, list) and bool({"moe", "mlp"} & set(map(str, words)))
    return is_listed or fields.block_types() is not None or isinstance(fields.get("hybrid_override_pattern"), str)


def block_pattern(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """Kinds of layers that have one block each, a mixer or "moe" or "mlp"; None where layers have both."""
    pattern, blocks = fields.get("hybrid_override_pattern"), notation()["layers"]["blocks"]
    if isinstance(pattern, str):
        if not set(pattern) <= set(blocks) or len(pattern) != layers:
            raise fields.error(
                f"'hybrid_override_pattern' must have one of {' '.join(blocks)} for each of {layers} layers, "
                f"but is {shorten(pattern)}"
            )
        return tuple(blocks[letter] for letter in pattern)
    if not has_single_blocks(fields):
        if "hybrid_override_pattern" in fields.family.fields:
            raise fields.missing("hybrid_override_pattern", "it says which block each layer has")
        return None
    kinds = _layer_types(fields) | {"moe": "moe", "mlp": "mlp"}
    if blocks := fields.block_types():
        fields = replace(fields, values={"layer_types": [block["block_type"] for block in blocks]})
    return tuple(kinds[kind] for kind in fields.labels("layer_types", tuple(kinds), layers) or ())


def attention_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """The kind of mixer of each layer, from whichever of the families' notations the config uses."""
    for kinds in chain(_listed_kinds(fields, layers), _ruled_kinds(fields, layers)):
        return kinds
    for field in filter(fields.get, notation()["layers"]["sliding_heads"]):
        raise fields.error(f"config.json has {field!r} = {shorten(fields.get(field))}, but no sliding layers")
    if fields.flag("lightning_attention") or fields.get("linear_num_value_heads") or fields.get("linear_num_heads"):
        raise fields.missing("layer_types", "it says which layers attend and which have linear attention")
    return ("full_attention",) * layers


def _layer_types(fields: ConfigFields) -> dict[str, str]:
    """What `layer_types` may say, and the kind that each stands for."""
    kinds = notation()["layers"]["types"].items()
    return {
        word: kind
        for field, words in kinds
        if field == "any" or fields.get(field) is not None
        for word, kind in words.items()
    }


def _listed_kinds(fields: ConfigFields, layers: int) -> Iterator[tuple[str, ...]]:
    """Notations that list the layers; the first one counts."""
    kinds = notation()["layers"]["codes" if fields.flag("lightning_attention") else "softmax_codes"]
    codes = fields.labels("attn_type_list", tuple(kinds), layers)
    if codes is not None:
        yield tuple(kinds[code] for code in codes)
    types = _layer_types(fields)
    words = fields.labels("layer_types", tuple(types), layers)
    if words is not None:
        yield tuple(types[word] for word in words)
    if fields.get("index_source_layer_ids") is not None:  # DeepSeek-V4.1: whatever is compressed is selected from
        rates = fields.sequence("compress_ratios", layers)
        if rates is None:
            raise fields.missing("compress_ratios", "it says how many tokens share a latent of each layer")
        yield tuple("compressed_sparse_attention" if ratio else "sliding_attention" for ratio in rates)
    by_ratio = {0: "sliding_attention"} | {ratio: kind for kind, ratio in notation()["layers"]["ratios"].items()}
    ratios = fields.labels("compress_ratios", tuple(by_ratio), layers)  # DeepSeek-V4
    if ratios is not None:
        yield tuple(by_ratio[ratio] for ratio in ratios)
    full = fields.get("full_attn_layers")
    if isinstance(full, list):  # Kimi: numbers from 1
        yield _full_where((layer + 1 in full for layer in range(layers)), "linear_attention")


def _ruled_kinds(fields: ConfigFields, layers: int) -> Iterator[tuple[str, ...]]:
    """Notations that say by a rule which layers attend in full; the first one counts."""
    if fields.get("conv_taps") is not None:  # LFM2
        full = fields.layer_numbers("full_attn_idxs", layers)
        if full is None:
            raise fields.missing("layer_types", "it says which layers attend and which are short convolutions")
        yield _full_where((layer in full for layer in range(layers)), "linear_attention")
    if fields.get("mamba_state") is not None and not fields.flag("parallel_mixers"):
        period, offset = fields.optional("attn_layer_period", low=1), fields.optional("attn_layer_offset") or 0
        full = fields.layer_numbers("attn_layer_indices", layers) or frozenset()  # Bamba; Jamba has a period
        attends = (layer in full if period is None else (layer - offset) % period == 0 for layer in range(layers))
        yield _full_where(attends, "linear_attention")
    windowed = fields.layer_numbers("sliding_window_layers", layers)
    if windowed is not None:
        yield _full_where((layer not in windowed for layer in range(layers)), "sliding_attention")
    switches = fields.labels("hybrid_layer_pattern", (0, 1), layers)
    if switches is not None:
        yield _full_where((not switch for switch in switches), "sliding_attention")
    interval = fields.optional("full_attention_interval", low=1)
    if interval is not None:
        yield _full_where(_last_of_every(interval, layers), "linear_attention")
    if fields.get("attention_chunk_size") is not None:  # Llama 4: layers with RoPE attend within a chunk
        reason = "it says which layers 'attention_chunk_size' does not apply to"
        rope = fields.sequence("no_rope_layers", layers) if fields.get("no_rope_layers") else None
        without = [not code for code in rope] if rope else None
        interval = 0 if without else fields.count("no_rope_layer_interval", reason)
        yield _full_where(without or _last_of_every(interval, layers), "chunked_attention")
    if fields.get("sliding_window") not in (None, -1) and fields.flag("use_sliding_window") is not False:
        yield _full_where(_beyond_window(fields, layers), "sliding_attention")


def _beyond_window(fields: ConfigFields, layers: int) -> list[bool]:
    """Which layers the one `sliding_window` of the config does not hold for: by a period, or letters that repeat."""
    letters = fields.get("sliding_window_pattern")
    if isinstance(letters, str) and letters and set(letters) <= set(LOCAL_GLOBAL):  # EXAONE
        return [letters[layer % len(letters)] == LOCAL_GLOBAL[1] for layer in range(layers)]
    pattern, first = fields.optional("sliding_window_pattern", low=1), fields.optional("max_window_layers")
    if pattern is not None:
        return _last_of_every(pattern, layers)
    if first is not None:
        return [layer < first for layer in range(layers)]
    everywhere = bool(fields.flag("windowed_everywhere"))
    if not everywhere and fields.count("sliding_window") < context_length(fields):
        raise fields.missing("layer_types", "it says which layers 'sliding_window' applies to")
    return [not everywhere] * layers


def _last_of_every(interval: int, layers: int) -> list[bool]:
    """Every `interval`-th layer."""
    return [(layer + 1) % interval == 0 for layer in range(layers)]


def _full_where(attends: Iterable[bool], otherwise: str) -> tuple[str, ...]:
    return tuple("full_attention" if in_full else otherwise for in_full in attends)
