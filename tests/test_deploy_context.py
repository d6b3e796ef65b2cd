"""Models whose rotary embedding is scaled: every engine is told what it needs to start with the planned context."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from optimizer.plans.plan import Plan
from reports.deploy.deployment import WorkerSettings
from reports.deploy.describe import describe
from reports.deploy.files import deployment_files
from tests.deploy_cases import ENGINES, Ask, Case, options, plan_of

GOLDEN = Path(__file__).parent / "golden" / "deploy" / "context.txt"
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "hidden_act": "silu",
    "vocab_size": 151936,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": False,
}
"""config.json of Qwen/Qwen3-8B."""
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
"""What its model card says to add for 131,072 tokens."""
PUBLIC = "Qwen/Qwen3-8B"
ABLE = ("vllm", "dynamo", "llmd", "sglang")
"""Targets whose engines can be told."""


def scaled_plan(
    folder: Path, engine: str, rope: dict[str, Any], length: int = 100_000, name: str = "config.json", **fields: Any
) -> Plan:
    """A plan whose model is described by a config.json of the user's."""
    file = folder / name
    file.write_text(json.dumps({**QWEN3, "rope_scaling": rope, **fields}), "utf-8")
    pools = (Case("prefill", seqs=8, tokens=8192, length=length), Case("decode", "H200", seqs=32, length=length))
    plan = plan_of(pools, Ask("Qwen3-8B", engine=engine))
    model = {"config": str(file), "weight_dtype": "bf16", "kv_dtype": "bf16"}
    inputs = {**plan.provenance.inputs, "model": model}
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"inputs": inputs})})


def told(plan: Plan, target: str, **more: Any) -> WorkerSettings:
    """The settings of the pools, which must all be told the same."""
    pools = describe(plan, options(target, **more)).pools
    assert len({pool.settings.config_overrides for pool in pools}) == 1
    return pools[0].settings


def test_golden_lines(tmp_path: Path) -> None:
    """How each target states it, in both cases."""
    lines = []
    for target in ABLE:
        plan = scaled_plan(tmp_path, ENGINES[target], YARN)
        for case, more in (("served as described", {}), ("served as published", {"model": PUBLIC})):
            if target == "llmd" and not more:  # its chart fetches weights by their id only
                continue
            files = deployment_files(plan, options(target, **more))
            texts = {path: text for path, text in files.items() if not path.startswith(("benchmark/", "planner"))}
            for path, text in texts.items():
                found = [one for one in re.split(r"\n| (?=--)", text) if "max_position_embeddings" in one]
                lines += [f"{target}, {case}: {path}: {one.strip()}\n" for one in found]
    text = "".join(lines).replace(str(tmp_path), "/models/qwen3")
    if "PDPLAN_UPDATE_GOLDEN" in os.environ:
        GOLDEN.write_text(text, "utf-8")
    assert text == GOLDEN.read_text("utf-8")
