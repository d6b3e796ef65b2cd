"""Weights of the towers for images and sound beside a language model, which no token of text is multiplied by."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from .hf_config import LARGEST, notation, without_talker

MOST_RATIO = 100
"""A ratio of widths, or a side of merged patches, that is larger is a slip [1]."""
SECTIONS = ("vision_config", "visual", "audio_config")
"""Where configs describe them."""


def towers_of(config: Mapping[str, Any], text_width: int) -> tuple[int, tuple[str, ...]]:
    """Weights of the towers of a config [1], and the sections of those whose weights do not follow from it.

    text_width: hidden size of the language model [1].

    >>> siglip = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    >>> towers_of({"model_type": "gemma3", "vision_config": siglip}, 5376)
    (417263616, ())
    """
    config = without_talker(config)
    sections = [section for section in SECTIONS if isinstance(config.get(section), Mapping)]
    weights = {section: _elements(config, config[section], text_width) for section in sections}
    return sum(filter(None, weights.values())), tuple(section for section in sections if weights[section] is None)


def _elements(config: Mapping[str, Any], tower: Mapping[str, Any], text_width: int) -> int | None:
    """Weights of a tower and of the matrices that lead from it to the text model [1]; None where it is not understood.

    layers x (4 v a + 2 v w, or 3 v w with a gate) and the products of `towers` in `hf_families.yaml`, for v the width
    of the tower, a that of its heads together and w that of its feed-forward. Tables of positions and of patches are
    below 1 % of a tower, unless they stand there.
    """
    table = notation()["towers"]
    kinds = (str(config.get("model_type")), str(tower.get("model_type")))
    defaults = [table["defaults"].get(kind, {}) for kind in kinds]
    products = next((table["products"][kind] for kind in kinds if kind in table["products"]), None)
    own = {**defaults[1], **defaults[0], **tower}

    def stated(word: str, *places: Mapping[str, Any]) -> int | None:
        spellings = table["aliases"].get(word, (word,))
        values = (place.get(spelling) for place in places or (own,) for spelling in spellings)
        return next((value for value in values if type(value) is int and 1 <= value <= LARGEST), None)

    layers, width = stated("layers"), stated("width")
    if products is None or layers is None or width is None:
        return None
    heads, head_dim, ratio = stated("heads"), stated("head_dim"), own.get("mlp_ratio")
    inner = stated("attention") or (heads * head_dim if heads and head_dim else width)
    block = stated(table["blocks"].get(kinds[0], "feed_forward"))
    block = block or (round(ratio * width) if isinstance(ratio, int | float) and 0 < ratio < MOST_RATIO else None)
    if block is None:
        return None
    gated = any(kind in table["gated"] for kind in kinds)
    deep = own.get("deepstack_visual_indexes")
    widths: dict[str, float] = {"v": width, "m": width * _merged_patches(own, config), "t": text_width, "f": block}
    factors = [
        [widths.get(factor) or stated(factor, own, config) if isinstance(factor, str) else factor for factor in row]
        for row in products
    ]
    sizes = [prod(factor for factor in row if factor is not None) for row in factors if None not in row]
    if len(sizes) < len(products):
        return None
    layer = 4 * width * inner + (3 if gated else 2) * width * block
    joins = 1 + (len(deep) if isinstance(deep, list) else 0)
    return (layers + (stated("num_global_layers") or 0)) * layer + joins * round(sum(sizes))


def _merged_patches(*places: Mapping[str, Any]) -> int:
    """Patches that are joined to one token of the text model [1]."""
    for place in places:
        for field in notation()["towers"]["merges"]:
            value = place.get(field)
            if isinstance(value, list) and value and all(type(side) is int and 0 < side < MOST_RATIO for side in value):
                return prod(value)
            if isinstance(value, int | float) and 1 / MOST_RATIO < value < MOST_RATIO:  # a side, or its inverse
                return round(value if value >= 1 else 1 / value) ** 2
    return 1
