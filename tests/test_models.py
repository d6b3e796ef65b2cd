"""The catalog of models, and a user's own config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import ArchitectureError
from search_spaces.huggingface import parse_config
from search_spaces.models import architecture_text, load_model, model_to_edit, read_architecture

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "vocab_size": 1000,
}
TINY_LAYERS = parse_config(TINY, "tiny").layers


@pytest.mark.parametrize(
    ("name", "expected", "dtype"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "Llama-3.1-70B", "bf16"),
        ("META-LLAMA/llama-3.1-70B", "Llama-3.1-70B", "bf16"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "fp4"),
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen3-235B-A22B-FP8", "fp8"),
        ("moonshotai/Kimi-K2-Thinking", "Kimi-K2-Thinking", "int4"),
    ],
)
def test_names_and_aliases(name: str, expected: str, dtype: str) -> None:
    model = load_model(name)
    assert (model.name, model.native_weight_dtype) == (expected, dtype)


def test_a_file_or_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY), "utf-8-sig")
    for name in ("My-Model", "./My-Model", "My-Model/config.json", str(folder)):
        model = load_model(name, tmp_path)
        assert (model.name, model.source, model.layers) == ("My-Model", name, TINY_LAYERS)
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}', "utf-8")
    assert load_model("My-Model", tmp_path).native_weight_dtype == "fp8"


def test_published_configs_equal_the_catalog(data: Path) -> None:
    paths = sorted((data / "models").glob("*/*/config.json"))
    assert paths
    for path in paths:
        published, ours = load_model(str(path)), load_model("/".join(path.parent.parts[-2:]))
        assert published.layers == ours.layers
        assert (published.vocab, published.max_position) == (ours.vocab, ours.max_position)
        if "quantization_config" in path.read_text("utf-8"):
            assert (published.native_weight_dtype, published.quantized) == (ours.native_weight_dtype, ours.quantized)


@pytest.mark.parametrize("field", sorted(TINY.keys() - {"model_type"}))
def test_the_way_out_of_a_missing_field(tmp_path: Path, field: str) -> None:
    """The refusal names a command; the file that it writes says what was assumed, and can be planned with."""
    path, file = tmp_path / "config.json", tmp_path / "model.yaml"
    path.write_text(json.dumps({key: value for key, value in TINY.items() if key != field}), "utf-8")
    with pytest.raises(ArchitectureError, match=f"lacks '{field}'.*pdplan models --from CONFIG -o my-model.yaml"):
        load_model(str(path))
    file.write_text(architecture_text(*model_to_edit(str(path))), "utf-8")
    assert f"# Missing, and assumed: '{field}' = " in file.read_text("utf-8")
    assert read_architecture(file).parameters > 0
