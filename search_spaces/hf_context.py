"""How long a context a Hugging Face `config.json` allows: what was trained, and what a rotary embedding makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.quoting import shown

from .hf_fields import LARGEST, TEXT_SECTIONS, ConfigFields, open_config, shorten

EXTENDED = ("llama3", "longrope", "su")
"""Kinds whose `max_position_embeddings` is the extended length."""
STRETCHING = ("linear", "dynamic")
"""Kinds whose factor multiplies it."""
TRAINED = "original_max_position_embeddings"
ROPE_FIELDS = ("rope_parameters", "rope_scaling")
"""As transformers 5 writes it, and as it was before."""
STATED = "max_position_embeddings"
OTHER_LIMITS = ("n_positions", "seq_length", "max_sequence_length", "max_seq_len", "model_max_length")
"""Fields that vLLM or SGLang take for the context too, whatever `max_position_embeddings` is."""
THETA = ("rope_theta", "rotary_emb_base")
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
"""Names, as vLLM's `patch_rope_parameters` has them, of what transformers 5 keeps with the rotary embedding."""


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
    """How a config.json extends the context; None where nothing does, or nothing that has to be told (`EXTENDED`).

    name: how the model is called in messages. Raises ArchitectureError.
    """
    fields = open_config(config, name)
    stated, length = fields.count(STATED), context_length(fields)
    scalings = [(where, rope) for where, rope, _ in _extended(fields)]
    if not scalings or fields.flag("context_is_scaled"):
        return None
    multiplies = _kind(scalings[0][1]) in STRETCHING
    section = next((key for key in TEXT_SECTIONS if isinstance(config.get(key), Mapping) and config[key]), None)
    return ContextScaling(stated, stated if multiplies else _trained(fields, *scalings[0]), length, multiplies, section)


def rope_parameters(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The rotary embeddings of a config.json whole, as transformers 5 keeps them, with what stood beside them before.

    An engine that is told them puts them in the place of the checkpoint's, so that nothing may be missing. Raises
    ArchitectureError where the base is not stated.

    >>> linear = {"type": "linear", "factor": 4.0}
    >>> rope_parameters({"max_position_embeddings": 4096, "rope_theta": 1e6, "rope_scaling": linear}, "x")
    {'factor': 4.0, 'rope_type': 'linear', 'rope_theta': 1000000.0}
    """
    fields = open_config(config, name)
    scaled = [where for where, _, _ in _extended(fields)]
    # where both notations are there, transformers 5 takes the old one (`convert_rope_params_to_dict`)
    chosen = next((field for field in reversed(ROPE_FIELDS) if any(_field(where) == field for where in scaled)), None)
    whole = {where: _whole(fields, where, rope) for where, rope in _ropes(fields) if _field(where) == chosen}
    by_layer = {where.partition(".")[2]: rope for where, rope in whole.items()}
    return by_layer.get("", by_layer)


def _field(where: str) -> str:
    return where.partition(".")[0]


def check_limits(config: Mapping[str, Any], name: str, length: int) -> None:
    """Raise ArchitectureError where another field than `max_position_embeddings` keeps the context below a length."""
    fields = open_config(config, name)
    for field in OTHER_LIMITS:
        value = fields.values.get(field)
        if isinstance(value, int) and value < length:
            raise fields.error(
                f"{shown(field)} is {value}, by which engines would end the context before {length} tokens"
            )


def _whole(fields: ConfigFields, where: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    whole = {name: value for name, value in rope.items() if name != "type"} | {"rope_type": _kind(rope) or "default"}
    newer = fields.get(ROPE_FIELDS[0])
    places = (fields.values, newer if isinstance(newer, Mapping) else {})
    for name, names in (("rope_theta", THETA), ("partial_rotary_factor", PARTIAL)):
        beside = next((place[one] for place in places for one in names if place.get(one) is not None), None)
        if whole.get(name) is None and beside is not None:
            whole[name] = beside
    if whole.get("rope_theta") is None:
        raise fields.missing("rope_theta", f"engines that are told {shown(where)} need the base with it")
    if whole["rope_type"] == "yarn":
        whole[TRAINED] = _trained(fields, where, rope)
    return whole


def _kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type"))


def context_length(fields: ConfigFields) -> int:
    """Longest ISL + OSL that the model takes [token]; raises ArchitectureError for a scaling that is not understood."""
    stated = fields.count(STATED)
    if fields.flag("context_is_scaled"):
        return stated
    scaled = {name: length for name, _, length in _extended(fields)}
    if len(set(scaled.values())) > 1:
        lengths = ", ".join(f"{length} by {shown(name)}" for name, length in scaled.items())
        raise fields.error(f"config.json gives a context of {lengths}, which must agree")
    return next(iter(scaled.values()), stated)


def _extended(fields: ConfigFields) -> list[tuple[str, Mapping[str, Any], int]]:
    """The rotary embeddings that extend the context, with where they stand and to what length [token]."""
    stated = fields.count(STATED)
    scaled = [(where, rope, _scaled(fields, where, rope, stated)) for where, rope in _ropes(fields)]
    return [(where, rope, length) for where, rope, length in scaled if length]


def _ropes(fields: ConfigFields) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rotary embeddings, one for all layers or one per type of layer, with where they stand."""
    for field in ROPE_FIELDS:
        rope = fields.get(field)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            raise fields.error(f"{shown(field)} is {shorten(rope)}, but must be an object")
        by_layer = [(f"{field}.{kind}", each) for kind, each in rope.items() if isinstance(each, Mapping)]
        yield from by_layer or [(field, rope)]


def _scaled(fields: ConfigFields, name: str, rope: Mapping[str, Any], stated: int) -> int | None:
    """The context that one rotary embedding extends to [token]; None where it extends nothing.

    stated: `max_position_embeddings` [token].
    """
    kind, factor = _kind(rope), rope.get("factor")
    if kind in EXTENDED or ((factor is None or factor == 1) and kind != "yarn"):
        return None
    if kind != "yarn" and kind not in STRETCHING:
        raise fields.error(f"{shown(name)} scales by the kind {shorten(kind)}, which pdplan does not know")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= LARGEST:
        raise fields.error(f"'{name}.factor' is {shorten(factor)}, but must be a number from 1 to {LARGEST}")
    length = int((_trained(fields, name, rope) if kind == "yarn" else stated) * factor)
    if length > LARGEST:
        raise fields.error(f"{shown(name)} extends the context to {length} tokens, but at most {LARGEST} are believed")
    return length


def _trained(fields: ConfigFields, name: str, rope: Mapping[str, Any]) -> int:
    """Length that the model was trained on [token], beside its rotary embedding or at the top of the config."""
    length = rope.get(TRAINED, fields.get(TRAINED))
    if length is None:
        raise fields.missing(f"{name}.{TRAINED}", "it says which length YaRN extends")
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LARGEST:
        raise fields.error(f"'{name}.{TRAINED}' is {shorten(length)}, but must be a whole number from 1 to {LARGEST}")
    return length
