"""Fleet files: what they state, what is wrong with them and where, and the rule by which a fleet cannot start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.errors import InputError
from search_spaces.files import shipped_text
from search_spaces.fleet_file import StatedFleet, load_fleet
from tests.golden_files import assert_golden
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


def test_defaults_are_those_of_the_workload(tmp_path: Path) -> None:
    stated = loaded(tmp_path, POOL | {"isl": {"from": 0}})
    ((name, pool),) = stated.pools.items()
    assert (stated.name, name, pool.role, pool.accelerator) == ("fleet", "colocated-1", "colocated", "H100")
    assert (pool.weight_dtype, pool.kv_dtype, pool.parallelism.gpus) == ("bf16", "bf16", 1)
    assert stated.problem.engine == "vllm"


LLAMA_70B = {"workload": TINY | {"model": {"name": "Llama-3.1-70B"}}}
TRTLLM = {"workload": TINY | {"engine": "trtllm"}}
FAULTS: tuple[tuple[list[dict[str, Any]], dict[str, Any]], ...] = (
    ([PREFILL, DECODE | {"role": "decod"}], {}),
    ([PREFILL, POOL | {"role": None}], {}),
    ([POOL], {"workload": "absent.yaml"}),
    ([POOL | {"gpu": "H10O"}], {}),
    ([POOL | {"accelerator": "H100"}], {}),
    ([POOL | {"replicas": 0}], {}),
    ([POOL | {"isl": {"from": 10, "to": 10}}], {}),
    ([POOL | {"slo_classes": ["defalt"]}], {}),
    ([POOL | {"tensor_parallel": 3}], {}),
    ([POOL | {"tensor_parallel": 3, "slo_classes": ["defalt"]}], {}),
    ([POOL], LLAMA_70B),
    ([POOL | {"gpu": "L4", "max_num_batched_tokens": 1_000_000}], {}),
    ([POOL | {"max_num_batched_tokens": 32}], {}),
    ([POOL | {"gpu": "MI300X"}], TRTLLM),
    ([PREFILL, DECODE | {"pipeline_parallel": 2}], {}),
    ([PREFILL, DECODE | {"kv_dtype": "fp8"}], {}),
)


def test_golden_faults(tmp_path: Path) -> None:
    """What is wrong stands with its place, and a fleet that cannot start with the rule that says so."""
    text = ""
    for pools, sections in FAULTS:
        with pytest.raises(InputError) as refused:
            loaded(tmp_path, *pools, **sections)
        text += f"{str(refused.value).replace(f'{tmp_path}/', '')}\n\n"
    assert_golden("fleet_faults.txt", text)


def test_the_example_states_what_serves_the_example_of_a_workload(tmp_path: Path) -> None:
    (tmp_path / "workload.yaml").write_text(shipped_text("search_spaces", "init_template.yaml"))
    (tmp_path / "fleet.yaml").write_text(shipped_text("search_spaces", "fleet_template.yaml"))
    stated = load_fleet(tmp_path / "fleet.yaml")
    assert (stated.name, [pool.replicas for pool in stated.pools.values()]) == ("today", [3])
