"""Contexts beyond the `max_position_embeddings` of a checkpoint: what engines are told in the place of its config.json.

A plan's model may be described by the user's own config.json, with a rotary scaling that the served checkpoint has too,
or lacks. By themselves engines go less far than the scaling does (docs/deploy.md has the sources):

- vLLM up to 0.24 multiplies YaRN's factor with the length that the model was trained on; since 0.31 it takes
  `max_position_embeddings` for the extended length, as SGLang does, and either refuses to start with a longer one;
- linear and dynamic scaling both multiply with `max_position_embeddings`;
- TensorRT-LLM cuts requests down to what it derives, passes over YaRN in some models, and has no positions for what
  linear and dynamic scaling add: it is refused.

So where a request needs the scaling, YaRN's extended length is stated as `max_position_embeddings`. The rotary
embedding itself is stated too unless the engines load the very file that describes it; and to all engines alike, since
keys that one of them computes are read by others. Where no request needs it, nothing is stated: the checkpoint serves
them as it is.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from search_spaces.hf_context import (
    ROPE_FIELDS,
    STATED,
    ContextScaling,
    check_limits,
    context_scaling,
    rope_parameters,
)
from search_spaces.models import CONFIG_FILE, known_names, load_model, read_config

from . import facts
from .description import Deployment, Settings
from .found import one_line


def with_context(deployment: Deployment, plan: Plan, base: Path | None = None) -> Deployment:
    """The deployment with every engine told how far positions reach, where requests need that.

    base: folder from which files that the plan's problem names are looked up. Raises InputError where an engine cannot
    go so far.
    """
    path = _config_file(plan, base or Path())
    if path is None:
        return deployment
    config = read_config(path, str(path))
    scaling = context_scaling(config, path.name)
    if scaling is None:
        return deployment
    served = deployment.options.model is None and path.name == CONFIG_FILE
    trtllm, family = plan.engine == "trtllm", config.get(scaling.section or "", config).get("model_type")
    # TensorRT-LLM needs no telling where the file states the extended length, if it knows how to scale the model
    able = trtllm and family not in facts.fact("passes_over_yarn")
    own = _own_context(scaling, deployment.options.model, served=served and not trtllm, able=able)
    longest = max(pool.settings.max_model_len for pool in deployment.pools)
    if longest <= own:
        return replace(deployment, own_context=own)
    if trtllm:
        raise InputError(
            f"requests of {longest} tokens need the rotary scaling of the model's config.json, which TensorRT-LLM "
            f"cannot be relied on to apply beyond {own} tokens; plan with engine: vllm or sglang"
        )
    check_limits(config, path.name, longest)
    told = _overrides(scaling, {} if served else rope_parameters(config, path.name))
    pools = [replace(one, settings=replace(one.settings, config_overrides=told)) for one in deployment.pools]
    return replace(deployment, pools=tuple(pools), own_context=own)


def reach(deployment: Deployment, settings: Settings) -> int:
    """Longest request that an engine starts with, by what it is told of the model's config.json [token]."""
    told: dict[str, Any] = json.loads(settings.config_overrides or "{}")
    inner = next((part for part in told.values() if isinstance(part, dict) and STATED in part), told)
    if STATED in inner:
        return int(inner[STATED])
    return deployment.model.max_position if told else deployment.own_context


def _config_file(plan: Plan, base: Path) -> Path | None:
    """The config.json by which the user described the model; None for a model of the catalog."""
    config = (plan.provenance.inputs.get("model") or {}).get("config")
    if not config:
        return None
    path = base / Path(str(config)).expanduser()
    return path / CONFIG_FILE if path.is_dir() else path


def _own_context(scaling: ContextScaling, checkpoint: str | None, *, served: bool, able: bool) -> int:
    """Longest request that engines surely take by the config.json of the weights that they load [token].

    checkpoint: its name, None where it is that of the described model; served: whether they load the described file;
    able: whether what that states as the extended length is taken to be the checkpoint's too. Else a checkpoint that
    nobody knows is taken to lack the scaling.
    """
    if checkpoint is not None and checkpoint.lower() in {name.lower() for name in known_names()}:
        return load_model(checkpoint).max_position
    if served and scaling.multiplies:
        return scaling.length
    return scaling.stated if served or able or scaling.length > scaling.stated else scaling.trained


def _overrides(scaling: ContextScaling, rope: dict[str, Any]) -> str:
    """What is laid over the checkpoint's config.json, as one line of JSON; empty where nothing has to be."""
    told: dict[str, Any] = {ROPE_FIELDS[0]: rope} if rope else {}
    if not scaling.multiplies:
        told[STATED] = scaling.length
    return one_line({scaling.section: told} if told and scaling.section else told)
