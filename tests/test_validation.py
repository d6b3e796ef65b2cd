"""`pdplan validate`: figures checked by hand on small files, and the goals on the data where it is at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pdplan.cli import cli
from pdplan.console import Console
from reports.answers.accuracy import validation_dict
from search_spaces.catalog import load_catalog
from search_spaces.measured_predictions import predict_serving
from search_spaces.measurements import read_measurements
from search_spaces.serving_error import ASSUMED_WIDENING, Factors, Stratum, interval_factors

DATA = Path(os.environ.get("PDPLAN_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
HEADER = "set,model,accelerator,gemm_dtype,engine,mode,isl,osl,concurrency,num_gpus,tp,pp,ep,dp,ttft_ms,tpot_ms\n"
GOOD = "nv,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,fp8,vllm,colocated,1000,200,16,1,1,1,1,1,{ttft},{tpot}\n"


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["validate", *arguments], obj=Console("pdplan"), catch_exceptions=False)


def document(folder: Path, text: str, *more: str) -> dict[str, Any]:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    done = validate("--against", str(path), "--json", *more)
    assert done.exit_code == 0
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def test_errors_are_those_of_the_predictions(tmp_path: Path) -> None:
    first = document(tmp_path, HEADER + GOOD.format(ttft=100, tpot=10), "--rows")
    assert isinstance(first["predictions"], list)
    row = first["predictions"][0]
    text = HEADER + GOOD.format(ttft=row["ttft_predicted_ms"] / 1.25, tpot=row["tpot_predicted_ms"] * 2)
    value = document(tmp_path, text)
    assert (value["rows"], value["predicted"]) == (1, 1)
    assert value["ttft_median_abs_pct"] == pytest.approx(25.0)
    assert value["ttft_bias_pct"] == pytest.approx(25.0)
    assert value["tpot_bias_pct"] == pytest.approx(-50.0)
    assert value["ttft_interval90_coverage"] == 1.0
    assert isinstance(value["groups"], list)
    group = value["groups"][0]
    assert (group["engine"], group["mode"], group["rows"]) == ("vllm", "colocated", 1)


def test_measured_times_play_no_part_in_a_prediction(tmp_path: Path) -> None:
    pairs = [document(tmp_path, HEADER + GOOD.format(ttft=t, tpot=t), "--rows")["predictions"] for t in (1, 5000, "")]
    values = [[(p["ttft_predicted_ms"], p["tpot_predicted_ms"]) for p in part] for part in pairs]
    assert values[0] == values[1] == values[2]


def test_every_row_is_predicted_or_says_why_not(tmp_path: Path) -> None:
    bad = [
        GOOD.format(ttft=1, tpot=1).replace("meta-llama/Llama-3.1-8B-Instruct", "acme/Unheard-Of"),
        GOOD.format(ttft=1, tpot=1).replace("h100_sxm", "h999"),
        GOOD.format(ttft=1, tpot=1).replace("1000,200", "long,200"),
    ]
    value = document(tmp_path, HEADER + GOOD.format(ttft=1, tpot=1) + "".join(bad))
    assert (value["rows"], value["predicted"]) == (4, 1)
    assert isinstance(value["refused"], list)
    reasons = {one["line"]: one["reason"] for one in value["refused"]}
    assert "acme/Unheard-Of" in reasons[3]
    assert "accelerator 'h999' is not known" in reasons[4]
    assert reasons[5] == "isl: 'long' is not a number"


def test_the_nearest_stratum_decides() -> None:
    table = {"tpot": {"all": Factors(0.5, 2.0, 9), "dense": Factors(0.8, 1.2, 9), "dense/hopper": Factors(0.9, 1.1, 9)}}
    assert interval_factors(table, "tpot", Stratum("", "vllm", "dense", "hopper", "fp8")) == (0.9, 1.1)
    assert interval_factors(table, "tpot", Stratum("", "vllm", "dense", "ada", "fp8")) == (0.8, 1.2)
    low, high = interval_factors(table, "tpot", Stratum("", "vllm", "moe", "hopper", measured=False))
    assert (low, high) == pytest.approx((0.5**ASSUMED_WIDENING, 2.0**ASSUMED_WIDENING))


@pytest.mark.skipif(not (DATA / "serving" / "closed_loop.csv").is_file(), reason="needs the measurements (PDPLAN_DATA)")
def test_the_goals_hold_on_the_measurements() -> None:
    _, rows = read_measurements(DATA / "serving" / "closed_loop.csv")
    outcome = predict_serving(rows, load_catalog(), DATA / "models")
    assert len(outcome.refused) == 11  # Qwen3-235B on a single H200, which does not hold it
    assert all("Qwen3-235B-A22B-FP8 in fp8 with one request" in row.reason for row in outcome.refused)
    for quantity, goal in (("ttft", 0.25), ("tpot", 0.13)):
        values = [one.values[quantity] for one in outcome.predicted]
        error = np.array([value.error for value in values])
        assert np.median(np.abs(error)) < goal
        assert abs(np.median(error)) < 0.10
        assert 0.85 < np.mean([value.covered for value in values]) < 0.97


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "DeepSeek-V3", "Qwen3-Next-80B-A3B"])
def test_predictions_are_finite_up_to_the_bounds(tmp_path: Path, model: str) -> None:
    path = tmp_path / "rows.csv"
    header = (
        "model,accelerator,isl,osl,concurrency,num_gpus,tp,mode,prefill_workers,prefill_tp,decode_workers,decode_tp,"
        "ttft_ms,tpot_ms\n"
    )
    lengths = [(isl, osl) for isl in (1, 2**24) for osl in (1, 2**24)]
    split = ("colocated,,,,", "disaggregated,1,8,1024,8")
    lines = [
        f"{model},mi355x,{isl},{osl},{load},{gpus},8,{mode},0.001,0.001\n"
        for isl, osl in lengths
        for load in (1, 10**6)
        for gpus in ("", 10**7)
        for mode in split
    ]
    path.write_text(header + "".join(lines), encoding="utf-8")
    kind, rows = read_measurements(path)
    outcome = predict_serving(rows, load_catalog(), None)
    assert len(outcome.predicted) + len(outcome.refused) == len(lines)
    assert len(outcome.predicted) >= len(lines) // 4
    assert all("GiB of each of" in row.reason for row in outcome.refused)  # no GPU holds a request of 2**25 tokens
    json.dumps(validation_dict(kind, outcome, with_rows=True), allow_nan=False)
