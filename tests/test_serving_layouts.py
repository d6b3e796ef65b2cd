"""Rows whose public recipe contradicts their label: which are corrected, and how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.serving_layouts import RECIPES, as_run, degrees
from search_spaces.measurements import Layout, ServingRow, StepRow, read_measurements


def row(isl: float = 8192.0, labelled: tuple[int, int, int] = (1, 8, 8), **changes: Any) -> ServingRow:
    """A disaggregated row of TensorRT-LLM on H200."""
    tensor, data, expert = labelled
    base = ServingRow(
        line=2,
        source="ix-silicon",
        model="deepseek-ai/DeepSeek-R1",
        accelerator="h200_sxm",
        engine="trtllm",
        gemm_dtype="fp8",
        moe_dtype="fp8",
        isl=isl,
        osl=1024.0,
        concurrency=128.0,
        gpus=16,
        prefill=Layout(workers=1, tensor=tensor, pipeline=1, data=data, expert=expert),
        decode=Layout(workers=1, tensor=1, pipeline=1, data=8, expert=8),
        ttft=7.7,
        tpot=0.036,
        precision="fp8",
    )
    return replace(base, **changes)


def test_long_prompts_ran_on_tensor_ranks_and_short_ones_on_data_ranks() -> None:
    assert degrees(as_run(row()).prefill) == (8, 1, 8)
    assert degrees(as_run(row(1024.0, (8, 1, 8))).prefill) == (1, 8, 8)
    assert as_run(row(1024.0)) == row(1024.0)
    assert as_run(row(8192.0, (8, 1, 8))) == row(8192.0, (8, 1, 8))


def test_the_one_run_of_a_lone_request_has_a_recipe_of_its_own() -> None:
    b200 = row(accelerator="b200_sxm")
    assert degrees(as_run(b200).prefill) == (1, 8, 1)
    assert degrees(as_run(replace(b200, concurrency=1.0)).prefill) == (8, 1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"decode": None},
        {"model": "Qwen/Qwen3-32B"},
        {"precision": "fp4"},
        {"engine": "vllm"},
        {"accelerator": "h100_sxm"},
        {"isl": 4096.0},
    ],
)
def test_all_other_rows_are_taken_at_their_word(changes: dict[str, Any]) -> None:
    assert as_run(row(**changes)) == row(**changes)


def test_a_correction_changes_the_split_and_nothing_else() -> None:
    for each in RECIPES:
        tensor, data, _ = each.ran
        was = each.labelled[0] * each.labelled[1]
        assert tensor * data == was
        labelled = row(each.isl, each.labelled, engine=each.engine, accelerator=f"{each.gpu}_sxm")
        changed = as_run(labelled if each.concurrency is None else replace(labelled, concurrency=each.concurrency))
        assert replace(changed, prefill=labelled.prefill, concurrency=labelled.concurrency) == labelled


def test_steps_pass_through() -> None:
    step = StepRow.__new__(StepRow)
    assert as_run(step) is step


def test_every_corrected_row_of_tensorrt_llm_has_a_twin_with_the_same_times(data: Path) -> None:
    """Seventeen pairs, equal once corrected; of the layouts as labelled TTFT would differ by a third or more."""
    _, rows = read_measurements(data / "serving" / "closed_loop.csv")
    served = [each for each in rows if isinstance(each, ServingRow) and each.engine == "trtllm"]
    right = {alike(each): each for each in served if as_run(each) is each}
    pairs = [(each, right[alike(as_run(each))]) for each in served if as_run(each) is not each]
    assert len(pairs) == 17
    ratios = [max(one.ttft, two.ttft) / min(one.ttft, two.ttft) for one, two in pairs]
    assert median(ratios) < 1.02
    assert max(ratios) < 1.25
    assert max(max(one.tpot, two.tpot) / min(one.tpot, two.tpot) for one, two in pairs) < 1.07


def alike(row: ServingRow) -> tuple[Any, ...]:
    """What two runs of the same deployment have in common."""
    return row.accelerator, row.moe_dtype, row.isl, row.osl, row.concurrency, row.prefill, row.decode
