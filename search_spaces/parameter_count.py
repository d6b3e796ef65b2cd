"""Parameters of a config as transformers counts them: the model is built without weights or memory.

Needs the extra `pdplan[transformers]`; code that a checkpoint brings with it is never run.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from costmodel.errors import ArchitectureError, shown
from costmodel.transformer import Part, Transformer

from .hf_quantization import part_of

EXTRA = ("torch", "transformers")
AGREEMENT = 0.01
"""Largest difference of two counts that agree [1]."""
VECTORS = "norms and biases"
GROUPS = (*(str(part) for part in Part), VECTORS)
_OTHER_TOWERS = re.compile(r"vision|visual|audio|image|multi_modal|mtp\.")
_TABLES = re.compile(r"embed|lm_head|wte|wpe|embd")


def has_transformers() -> bool:
    """Whether the extra is installed."""
    return all(importlib.util.find_spec(name) for name in EXTRA)


def counted(model: Transformer) -> Counter[str]:
    """Weights of pdplan's model by part [1], routers with the feed-forward; it leaves norms and biases out."""
    parts = Counter[str]({Part.EMBEDDING: model.embedding_elements + model.looked_up})
    for group in model.layers:
        parts[Part.EXPERTS] += group.weight_sets * group.expert_elements
        for matrix in group.matrices:
            part = Part.ATTENTION if matrix.part is Part.ATTENTION else Part.FEED_FORWARD
            parts[part] += group.weight_sets * matrix.elements
    return parts


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
    parts = Counter[str]()
    for name, size, dimensions in parameters:
        if _OTHER_TOWERS.search(name):
            continue
        if dimensions < 2:
            parts[VECTORS] += size
        elif _TABLES.search(name) and not re.search(r"\.\d+\.", name):
            parts[Part.EMBEDDING] += size
        else:
            parts[part_of(name) or Part.FEED_FORWARD] += size
    return parts
