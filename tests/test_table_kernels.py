"""Circumstances of the kernel tables that plans do not share: slow kernels for single rows and for grouped experts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.suspect import one_row_slower
from costmodel.engine_arrays import SERVING, TABLES, Conditions, engine_arrays
from costmodel.host import NO_OVERHEAD
from costmodel.step import StepLoad, StepTime, step_time
from costmodel.transformer import Transformer
from search_spaces.catalog import load_catalog
from search_spaces.measured_engines import table_conditions
from tests.toy import llama_8b, mixtral, toy_config


def decode(
    model: Transformer, gpu: str, batch: float, conditions: Conditions, *, dtype: str = "fp8", expert: int = 1
) -> StepTime:
    """A decode step at 1,000 tokens of context."""
    config = toy_config(load_catalog().accelerator(gpu), weight_dtype=dtype, tensor=expert, expert=expert)
    arrays = engine_arrays(model, [config], NO_OVERHEAD, conditions)
    return step_time(model, arrays, StepLoad.decode(batch, 1000))


def test_a_row_is_slower_only_where_steps_say_so() -> None:
    eight, kernels = np.array([2e-3, 3e-3]), np.array([100.0, 200.0])
    found = one_row_slower(eight + kernels * 14e-6, eight, kernels)
    assert (found.suspect, found.rows) == (True, 2)
    assert found.figure == pytest.approx(14e-6)
    assert not one_row_slower(eight + kernels * 1e-6, eight, kernels).suspect
    assert not one_row_slower(eight * 0.9, eight, kernels).suspect
    nothing = np.array([])
    assert math.isnan(one_row_slower(nothing, nothing, nothing).figure)


def test_single_rows_pay_for_a_slow_kernel_in_tables_only() -> None:
    more = load_catalog().accelerator("B200").efficiency["gemm", "fp8"].single
    assert 5e-6 < more < 30e-6
    ways = (TABLES, replace(TABLES, graphs=True))
    tables, graphs = (decode(llama_8b(), "B200", 1.0, how).gemm[0, 0] for how in ways)
    assert tables - graphs == pytest.approx(32 * 4 * more)  # four FP8 products a layer, the head is in 16 bit
    for batch, dtype in ((2.0, "fp8"), (8.0, "fp8"), (1.0, "bf16")):
        tables, graphs = (decode(llama_8b(), "B200", batch, how, dtype=dtype).gemm[0, 0] for how in ways)
        assert tables == pytest.approx(graphs)


def test_engines_convert_to_8_bit_within_the_kernel_before() -> None:
    """So FP8 decodes move bytes as fast as 16-bit ones: half the bytes in half the time, but for launches."""
    for gpu in ("H200", "B200"):
        alone, inside = (decode(llama_8b(), gpu, 8.0, how).gemm[0, 0] for how in (TABLES, SERVING))
        wide = decode(llama_8b(), gpu, 8.0, SERVING, dtype="bf16").gemm[0, 0]
        assert inside < 0.9 * alone
        assert 0.5 < inside / wide < 0.75


def test_a_relative_and_a_narrower_dtype_do_not_inherit_more_than_they_should() -> None:
    catalog = load_catalog()
    assert catalog.accelerator("GB200").efficiency["gemm", "fp8"].single > 0
    assert catalog.accelerator("B200").efficiency["gemm", "fp4"].single == 0.0
    assert catalog.accelerator("H200").efficiency["gemm", "fp8"].single == 0.0


def test_one_expert_a_rank_is_no_grouped_product() -> None:
    model, conditions = mixtral(), table_conditions("vllm", "fp8", "fp8")
    assert conditions.fp8_kernels == "fp8_tensor"
    grouped, alone = (decode(model, "H200", 8.0, conditions, expert=ranks).experts[0, 0] for ranks in (4, 8))
    as_plans = decode(model, "H200", 8.0, replace(conditions, fp8_kernels="fp8"), expert=8).experts[0, 0]
    assert alone == pytest.approx(as_plans)
    assert grouped > 4 * alone  # half the experts, but a kernel several times as fast
