"""Parameters of a Hugging Face config as transformers counts them: the model is built without weights or memory.

Needs the extra `pdplan[transformers]`. Code that a checkpoint brings with it is never run.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from costmodel.errors import ArchitectureError
from costmodel.quoting import shown
from costmodel.transformer import Part, Transformer

EXTRA = ("torch", "transformers")
AGREEMENT = 0.01
"""Largest difference of two counts that agree [1]."""
GROUPS = ("embeddings", "attention", "feed-forward", "experts", "norms and biases")
_OTHER_TOWERS = re.compile(r"vision|visual|audio|image|multi_modal|mtp\.")
_TABLES = re.compile(r"embed|lm_head|wte|wpe|embd")
_FEED_FORWARD = re.compile(r"mlp|ffn|feed_forward|router|mixer\.(up|down)_proj|\.w\d\.|fc\d")
_MIXERS = re.compile(r"att|mamba|mixer|conv|ssm|linear_attn")


def has_transformers() -> bool:
    """Whether the extra is installed."""
    return all(importlib.util.find_spec(name) for name in EXTRA)


def counted(model: Transformer) -> Counter[str]:
    """Weights of pdplan's model by group [1]; it leaves norms and biases out."""
    groups = Counter({"embeddings": model.embedding_elements + model.looked_up})
    for group in model.layers:
        groups["experts"] += group.weight_sets * group.expert_elements
        for matrix in group.matrices:
            name = "attention" if matrix.part is Part.ATTENTION else "feed-forward"
            groups[name] += group.weight_sets * matrix.elements
    return groups


def reference_count(config: Mapping[str, Any], where: str) -> tuple[Counter[str], str]:
    """Weights of the text model by group [1], and the version of transformers that counts them.

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
            known = type(text) in AutoModelForCausalLM._model_mapping
            model = (AutoModelForCausalLM if known else AutoModelForImageTextToText).from_config(
                text if known else settings
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            raise ArchitectureError(f"{where}: {name} cannot build the model: {reason}") from error
    return by_group((key, value.numel(), value.ndim) for key, value in model.named_parameters()), version


def by_group(parameters: Iterable[tuple[str, int, int]]) -> Counter[str]:
    """Elements by group, from names, elements and dimensions of tensors; towers beside the text model are left out.

    >>> by_group([("model.layers.0.self_attn.q_proj.weight", 64, 2), ("model.layers.0.mlp.experts.down_proj", 96, 3)])
    Counter({'experts': 96, 'attention': 64})
    """
    groups = Counter[str]()
    for name, size, dimensions in parameters:
        if not _OTHER_TOWERS.search(name):
            groups[_group_of(name, dimensions)] += size
    return groups


def _group_of(name: str, dimensions: int) -> str:
    if dimensions < 2:
        return "norms and biases"
    if re.search(r"\.\d+\.", name) is None and _TABLES.search(name):
        return "embeddings"
    if "experts" in name and "shared" not in name:
        return "experts"
    return "attention" if _MIXERS.search(name) and not _FEED_FORWARD.search(name) else "feed-forward"
