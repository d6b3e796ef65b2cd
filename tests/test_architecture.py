"""Architecture files: what is written of a model is read back as the same model, and faults are named with a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import ArchitectureError, InputError
from search_spaces.architecture import architecture_text, read_architecture
from search_spaces.loader import load_problem, problem_of
from search_spaces.models import load_model, model_names, model_to_edit

CONFIG = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "vocab_size": 1000,
    "cross_attention_layers": [3, 8],
}


def test_every_model_of_the_catalog_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    for name in model_names():
        model = load_model(name)
        path.write_text(architecture_text(model))
        assert replace(read_architecture(path), date=model.date) == model, name


def test_what_is_not_understood_is_left_out_and_said(tmp_path: Path) -> None:
    config = tmp_path / "odd.json"
    config.write_text(json.dumps(CONFIG))
    with pytest.raises(ArchitectureError, match=r"cross_attention_layers.*; `pdplan models CONFIG -o FILE` writes"):
        load_model(str(config))
    model, gaps = model_to_edit(str(config))
    assert gaps == ("'cross_attention_layers' = [3, 8]",)
    text = architecture_text(model, gaps)
    assert "# Not understood, and left out: 'cross_attention_layers' = [3, 8]\n" in text
    (tmp_path / "odd.yaml").write_text(text)
    assert load_model(str(tmp_path / "odd.yaml")).layers == model.layers


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("hidden: 64", "hiden: 64", ":4:1: hiden: is not a known key; did you mean 'hidden'?"),
        ("kind: softmax", "kind: sofmax", "attention.kind: is 'sofmax'; allowed: softmax, latent, compressed, linear"),
        ("heads: 8", "heads: -8", "attention.heads: -8 is out of range; must be at least 0"),
        ("count: 8", "count: 0", "layers.0.count: 0 is out of range; must be at least 1"),
    ],
)
def test_faults_are_named(before: str, after: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text(json.dumps(CONFIG))
    text = architecture_text(model_to_edit(str(tmp_path / "odd.json"))[0])
    assert before in text
    path = tmp_path / "model.yaml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(InputError) as caught:
        read_architecture(path)
    assert fault in str(caught.value)


def test_a_workload_names_an_architecture_file(tmp_path: Path) -> None:
    model = load_model("Llama-3.1-8B")
    (tmp_path / "mine.yaml").write_text(architecture_text(model))
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        "name: own\nmodel: {architecture: mine.yaml}\nworkload:\n  request_rate: 1/s\n  lengths:\n"
        "    histogram: [{isl: 500, osl: 100, share: 1}]\nslo: {ttft: 1s, tpot: 50ms}\naccelerators: [H100]\n"
    )
    problem = load_problem(workload)
    assert problem.model.layers == model.layers


def test_a_plan_names_its_files_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("Llama-3.1-8B")
    (tmp_path / "mine.yaml").write_text(architecture_text(model))
    (tmp_path / "gpus.yaml").write_text("accelerators:\n  Own: {like: H100, price_usd_per_hour: 2.0}\n")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "workload.yaml").write_text(
        "name: own\nmodel: {architecture: ../mine.yaml}\ncatalog: ../gpus.yaml\nworkload:\n  request_rate: 1/s\n"
        "  lengths:\n    histogram: [{isl: 500, osl: 100, share: 1}]\nslo: {ttft: 1s, tpot: 50ms}\n"
        "accelerators: [Own]\n"
    )
    monkeypatch.chdir(tmp_path)
    inputs = load_problem("jobs/workload.yaml").inputs
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = problem_of(inputs, "provenance.inputs", Path())
    assert again.model.layers == model.layers
    assert again.offers[0].usd_per_hour == 2.0
    assert again.inputs == inputs
