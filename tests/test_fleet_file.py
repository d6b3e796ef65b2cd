"""Fleet files: what they state, what is wrong with them and where, and the rule by which a fleet cannot start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.errors import InputError
from search_spaces.files import shipped_text
from search_spaces.fleet_file import StatedFleet, load_fleet
from tests.running import TINY, tiny

POOL: dict[str, Any] = {"gpu": "H100", "replicas": 2, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
PREFILL, DECODE = POOL | {"role": "prefill"}, POOL | {"role": "decode"}


def fleet(folder: Path, *pools: dict[str, Any], **sections: Any) -> Path:
    """A fleet file beside the tiny workload, which it names unless told otherwise."""
    tiny(folder)
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({"workload": "tiny.yaml", "pools": list(pools)} | sections, sort_keys=False))
    return path


def loaded(folder: Path, *pools: dict[str, Any], **sections: Any) -> StatedFleet:
    return load_fleet(fleet(folder, *pools, **sections))


def refusal(folder: Path, *pools: dict[str, Any], **sections: Any) -> str:
    with pytest.raises(InputError) as refused:
        loaded(folder, *pools, **sections)
    return str(refused.value)


def test_an_unknown_role_is_one_fault(tmp_path: Path) -> None:
    said = refusal(tmp_path, PREFILL, DECODE | {"role": "decod"})
    assert "pools.1.role: 'decod'" in said
    assert "decode pool" not in said


def test_a_workload_that_is_not_there_is_told_with_the_line_that_names_it(tmp_path: Path) -> None:
    said = refusal(tmp_path, POOL, workload="absent.yaml")
    assert "fleet.yaml:1:11: workload: there is no 'absent.yaml'" in said
    assert "pdplan init absent.yaml" in said


def test_defaults_are_those_of_the_workload(tmp_path: Path) -> None:
    stated = loaded(tmp_path, POOL)
    ((name, pool),) = stated.pools.items()
    assert (stated.name, name, pool.role, pool.accelerator) == ("fleet", "colocated-1", "colocated", "H100")
    assert (pool.weight_dtype, pool.kv_dtype, pool.parallelism.gpus) == ("bf16", "bf16", 1)
    assert stated.problem.engine == "vllm"


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"gpu": "H10O"}, "pools.0.gpu: 'H10O' is not known; did you mean 'H100'"),
        ({"replicas": 0}, "pools.0.replicas: 0 is out of range; must be at least 1"),
        ({"isl": {"from": 10, "to": 10}}, "pools.0.isl: from 10 to 10 contains no length"),
        ({"slo_classes": ["defalt"]}, "pools.0.slo_classes.0: SLO class 'defalt' is not known; did you mean 'default'"),
    ],
)
def test_a_fault_is_told_with_its_place_and_the_nearest_name(tmp_path: Path, pool: dict[str, Any], words: str) -> None:
    said = refusal(tmp_path, POOL | pool)
    assert words in said
    assert f"{tmp_path / 'fleet.yaml'}:" in said
    assert "^" in said


LLAMA_70B = {"model": {"name": "Llama-3.1-70B"}}
CANNOT_START = {
    "heads": ({}, [POOL | {"tensor_parallel": 3}], "TP 3 does not divide 32 attention heads", "tensor_divides_heads"),
    "weights": (LLAMA_70B, [POOL], "weights do not fit in memory", "model_and_one_request_fit"),
    "chunk": (
        {},
        [POOL | {"gpu": "L4", "max_num_batched_tokens": 1_000_000}],
        "with max_num_seqs 64 and max_num_batched_tokens 1,000,000, weights do not fit",
        "model_and_one_request_fit",
    ),
    "tokens": ({}, [POOL | {"max_num_batched_tokens": 32}], "32 is below max_num_seqs 64", "tokens_cover_requests"),
    "engine": ({"engine": "trtllm"}, [POOL | {"gpu": "MI300X"}], "TensorRT-LLM", "engine_runs_there"),
    "pipeline": ({}, [PREFILL, DECODE | {"pipeline_parallel": 2}], "PP 2 of decode", "decode_is_one_stage"),
    "precision": ({}, [PREFILL, DECODE | {"kv_dtype": "fp8"}], "KV dtype bf16 of prefill", "kv_dtypes_agree"),
}


@pytest.mark.parametrize("case", CANNOT_START)
def test_a_fleet_that_cannot_start_is_refused_by_the_rule(tmp_path: Path, case: str) -> None:
    changes, pools, words, rule = CANNOT_START[case]
    said = refusal(tmp_path, *pools, workload=TINY | changes)
    (sentence,) = [line for line in said.splitlines() if "(rule " in line]
    assert words in sentence
    assert sentence.endswith(f"(rule {rule})")
    assert "cannot start: " in sentence or "cannot hand over to a decode pool: " in sentence


def test_the_example_states_what_serves_the_example_of_a_workload(tmp_path: Path) -> None:
    (tmp_path / "workload.yaml").write_text(shipped_text("search_spaces", "init_template.yaml"))
    (tmp_path / "fleet.yaml").write_text(shipped_text("search_spaces", "fleet_template.yaml"))
    stated = load_fleet(tmp_path / "fleet.yaml")
    assert (stated.name, [pool.replicas for pool in stated.pools.values()]) == ("today", [3])
