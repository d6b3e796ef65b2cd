"""The longest context of a Hugging Face config.json: `max_position_embeddings`, as its rotary embedding scales it.

The rule is vLLM's (`_get_and_verify_max_len`, `patch_rope_parameters`): YaRN extends the length that the model was
trained on; linear and dynamic scaling extend `max_position_embeddings`; where Llama 3's or LongRoPE scales, it is the
extended length already. A scaling without a factor extends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .hf_fields import LARGEST, ConfigFields, shorten

EXTENDED = ("llama3", "longrope", "su")
"""Kinds whose `max_position_embeddings` is the extended length."""
STRETCHING = ("linear", "dynamic")
"""Kinds whose factor multiplies it."""
TRAINED = "original_max_position_embeddings"
ROPE_FIELDS = ("rope_parameters", "rope_scaling")
"""As transformers 5 writes it, and as it was before."""


def context_length(fields: ConfigFields) -> int:
    """Longest ISL + OSL that the model takes [token]; raises ArchitectureError for a scaling that is not understood."""
    stated = fields.count("max_position_embeddings")
    if fields.flag("context_is_scaled"):
        return stated
    scaled = {name: length for name, rope in _ropes(fields) if (length := _scaled(fields, name, rope, stated))}
    if len(set(scaled.values())) > 1:
        found = ", ".join(f"{length} by {name!r}" for name, length in scaled.items())
        raise fields.error(f"config.json gives a context of {found}, which must agree")
    return next(iter(scaled.values()), stated)


def _ropes(fields: ConfigFields) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rotary embeddings, one for all layers or one per type of layer, with where they stand."""
    for field in ROPE_FIELDS:
        rope = fields.get(field)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            raise fields.error(f"{field!r} is {shorten(rope)}, but must be an object")
        by_layer = [(f"{field}.{kind}", each) for kind, each in rope.items() if isinstance(each, Mapping)]
        yield from by_layer or [(field, rope)]


def _scaled(fields: ConfigFields, name: str, rope: Mapping[str, Any], stated: int) -> int | None:
    """The context that one rotary embedding extends to [token]; None where it extends nothing.

    stated: `max_position_embeddings` [token].
    """
    kind = rope.get("rope_type", rope.get("type"))
    factor = rope.get("factor")
    if kind in EXTENDED or ((factor is None or factor == 1) and kind != "yarn"):
        return None
    if kind != "yarn" and kind not in STRETCHING:
        raise fields.error(f"{name!r} scales by the kind {shorten(kind)}, which pdplan does not know")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= LARGEST:
        raise fields.error(f"'{name}.factor' is {shorten(factor)}, but must be a number from 1 to {LARGEST}")
    length = int((_trained(fields, name, rope) if kind == "yarn" else stated) * factor)
    if length > LARGEST:
        raise fields.error(f"{name!r} extends the context to {length} tokens, but at most {LARGEST} are believed")
    return length


def _trained(fields: ConfigFields, name: str, rope: Mapping[str, Any]) -> int:
    """Length that the model was trained on [token], beside its rotary embedding or at the top of the config."""
    length = rope.get(TRAINED, fields.get(TRAINED))
    if length is None:
        raise fields.missing(f"{name}.{TRAINED}", "it says which length YaRN extends")
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LARGEST:
        raise fields.error(f"'{name}.{TRAINED}' is {shorten(length)}, but must be a whole number from 1 to {LARGEST}")
    return length
