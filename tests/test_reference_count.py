"""`pdplan models CONFIG --check`: parameters counted by transformers, on no memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pdplan.cli import cli
from search_spaces import reference_count

GEMMA3N: dict[str, Any] = {
    "model_type": "gemma3n_text",
    "hidden_size": 256,
    "intermediate_size": [512, 512, 1024, 1024],
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size_per_layer_input": 32,
    "vocab_size": 1000,
    "vocab_size_per_layer_input": 900,
    "activation_sparsity_pattern": [0.0] * 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 128,
    "max_position_embeddings": 4096,
    "laurel_rank": 16,
    "altup_num_inputs": 4,
}


def check(folder: Path, config: dict[str, Any], *options: str) -> Result:
    path = folder / "config.json"
    path.write_text(json.dumps(config), "utf-8")
    return CliRunner().invoke(cli, ["models", str(path), "--check", *options], standalone_mode=False)


def test_without_the_extra_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_count, "EXTRA", ("no_such_module",))
    message = str(check(tmp_path, GEMMA3N).exception)
    assert message.startswith("--check needs")
    assert message.endswith("pip install 'pdplan[transformers]'")


def test_counts_agree_by_group(tmp_path: Path) -> None:
    for name in reference_count.EXTRA:
        pytest.importorskip(name)
    result = check(tmp_path, GEMMA3N, "--json")
    record = json.loads(result.stdout)
    assert abs(record["difference"]) < 0.01
    for group in ("embedding", "attention", "experts"):
        ours, theirs = record["groups"][group]
        assert ours == theirs, group
