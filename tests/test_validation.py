"""`pdplan validate`: figures checked by hand on small files, and the goals on the data where it is at hand."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from costmodel.engine import Parallelism
from costmodel.errors import InputError
from pdplan.cli import cli
from pdplan.console import Console
from reports.answers.accuracy import validation_dict
from search_spaces.benchmark_results import documents, formats, read_results
from search_spaces.catalog import load_catalog
from search_spaces.measured_engines import measured_model, predict_serving
from search_spaces.measurements import MeasuredRun, Workers, read_measurements
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
    return json.loads(done.stdout)


def test_errors_are_those_of_the_predictions(tmp_path: Path) -> None:
    first = document(tmp_path, HEADER + GOOD.format(ttft=100, tpot=10), "--rows")
    row = first["predictions"][0]
    text = HEADER + GOOD.format(ttft=row["ttft_predicted_ms"] / 1.25, tpot=row["tpot_predicted_ms"] * 2)
    value = document(tmp_path, text)
    assert (value["rows"], value["predicted"]) == (1, 1)
    assert value["ttft_median_abs_pct"] == pytest.approx(25.0)
    assert value["ttft_bias_pct"] == pytest.approx(25.0)
    assert value["tpot_bias_pct"] == pytest.approx(-50.0)
    assert value["ttft_interval90_coverage"] == 1.0
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
        GOOD.format(ttft=1, tpot=1).replace("1000,200", "-5,200"),
        GOOD.format(ttft=1, tpot=0),
        "nv,m,h100\n",
        GOOD.format(ttft=1, tpot=1).replace("16,1,1", "16,4,3"),
    ]
    value = document(tmp_path, HEADER + GOOD.format(ttft=1, tpot=1) + "".join(bad))
    assert (value["rows"], value["predicted"]) == (8, 1)
    reasons = {one["line"]: one["reason"] for one in value["refused"]}
    assert "acme/Unheard-Of" in reasons[3]
    assert "accelerator 'h999' is not known" in reasons[4]
    assert reasons[5] == "isl: 'long' is not a number"
    assert reasons[6] == "isl: -5 is out of range; must be at least 1 and at most 16,777,216 tokens"
    assert reasons[7].endswith("at most 3,600,000 ms; leave it empty where nothing was measured")
    assert reasons[8] == "the row has 3 fields, the header 16"
    assert reasons[9] == "tp 3 x pp 1 x dp 1 does not divide num_gpus 4"


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


def test_rows_that_draft_tokens(tmp_path: Path) -> None:
    """One request at a time: TPOT falls with the tokens that a step makes; what the row leaves open is assumed."""
    path = tmp_path / "rows.csv"
    header = "model,accelerator,engine,isl,osl,concurrency,tp,precision,spec_method,spec_tokens,spec_acceptance\n"
    drafts = ("none,,", "MTP,3,", "nextn,3,0.74 0.56", "mtp,3,1.0", "mtp,,", "ngram,3,", "medusa,3,", "mtp,three,")
    drafts += (",3,", ",,0.7", "mtp,0,0.7")
    lines = [f"DeepSeek-V3,h200_sxm,sglang,1024,1024,1,8,fp8,{draft}\n" for draft in drafts]
    path.write_text(header + "".join(lines), encoding="utf-8")
    outcome = predict_serving(read_measurements(path)[1], load_catalog(), None)
    plain, usual, stated, perfect, assumed = (row.values["tpot"] for row in outcome.predicted)
    assert usual.predicted == stated.predicted < 0.7 * plain.predicted > assumed.predicted
    assert 0.25 * plain.predicted < perfect.predicted < stated.predicted  # four tokens a step, which is longer
    assert usual.low < stated.low < stated.high < usual.high
    assert [row.group["mode"] for row in outcome.predicted] == ["colocated", *["colocated, mtp"] * 4]
    assumed_acceptance = "spec_acceptance is not given and taken as 0.74 0.56"
    assert [row.notes for row in outcome.predicted[1:3]] == [(assumed_acceptance,), ()]
    assert outcome.predicted[-1].notes == (f"spec_tokens is not given and taken as 2; {assumed_acceptance}",)
    ngram, medusa, three, *unnamed, nothing = (row.reason for row in outcome.refused)
    assert ngram == "spec_acceptance is empty, and ngram has no default; state it, such as 0.5"
    assert medusa == "spec_method: 'medusa' is not known; allowed: none, mtp, eagle3, ngram"
    assert three == "spec_tokens: 'three' is not a number"
    assert unnamed == ["tokens are drafted, but spec_method is empty; allowed: none, mtp, eagle3, ngram"] * 2
    assert nothing == "spec_tokens is 0, but spec_method is mtp; state none where no tokens are drafted"


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


# --- reading measurement files: formats told apart, layouts understood, faults told by line


def only(folder: Path, text: str) -> object:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    _, rows = read_measurements(path)
    assert len(rows) == 1
    return rows[0]


def test_workers_of_a_disaggregated_row(tmp_path: Path) -> None:
    header = "model,accelerator,engine,mode,isl,osl,concurrency,prefill_workers,prefill_tp,prefill_dp,prefill_ep,"
    header += "decode_workers,decode_tp,decode_dp,decode_ep\n"
    row = only(tmp_path, f"{header}m,b200,sglang,disaggregated,8192,1024,64,2,1,4,4,1,8,1,0\n")
    assert row.prefill == Workers(2, Parallelism(1, 1, 4, 4))
    assert row.decode == Workers(1, Parallelism(8))
    assert row.gpus == 16
    header = header.replace("mode,", "mode,num_gpus,")
    row = only(tmp_path, f"{header}m,b200,sglang,disaggregated,16,8192,1024,64,1,8,8,8,1,8,1,1\n")
    assert row.prefill == Workers(1, Parallelism(1, 1, 8, 8))  # tp counts all ranks
    assert row.ttft.typical is None


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd"])
def test_no_file_outside_the_folder_of_models_is_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("secret", encoding="utf-8")
    with pytest.raises(InputError, match="is a path that leaves the folder of models; write ORG/NAME") as caught:
        measured_model(name, folder)
    assert "JSON" not in str(caught.value)


# --- every reader gives the same record: lengths, load and times of the file, in SI units, what is missing as None

FOLDER = Path(__file__).resolve().parent / "benchmark_results"


def raw(name: str) -> Any:
    """The file as plain values: one, or those of its lines."""
    text = (FOLDER / name).read_text("utf-8")
    if name.endswith(".yaml"):
        return yaml.safe_load(text)
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def runs(name: str) -> list[MeasuredRun]:
    found = read_results([FOLDER / name])
    assert all(isinstance(one, MeasuredRun) for one in found)
    return [one for one in found if isinstance(one, MeasuredRun)]


SAMPLES = yaml.safe_load((FOLDER.parent / "benchmark_samples.yaml").read_text("utf-8"))


@pytest.mark.parametrize("row", SAMPLES, ids=lambda row: row["run"])
def test_samples_of_every_tool(row: dict[str, Any]) -> None:
    (run,) = (run for run in runs(re.split(r"[:\[]", row["run"])[0]) if run.where.endswith(row["run"]))
    rate = row["request_rate"]
    assert (run.source, run.concurrency) == (row["tool"], row["concurrency"])
    assert [run.isl, run.osl] == pytest.approx([row["isl"], row["osl"]], rel=1e-4)
    assert run.prompts == run.completed
    assert run.request_rate == (None if rate is None else pytest.approx(rate, rel=1e-4))
    assert run.ttft.typical == pytest.approx(row["ttft_ms"] / 1e3, rel=1e-3)
    assert run.tpot.typical == pytest.approx(row["tpot_ms"] / 1e3, rel=1e-3)


def test_every_format_has_a_sample_and_a_row_in_the_docs() -> None:
    read = {
        next(number for number, form in enumerate(formats()) if form.recognizes(document))
        for path in FOLDER.iterdir()
        for document in documents(path)
    }
    assert read == set(range(len(formats())))
    page = (FOLDER.parents[1] / "docs" / "calibrate.md").read_text("utf-8")
    for form in formats():
        assert f"| {form.tool} | {form.file} | {form.shows} |" in page


def test_tokens_are_the_servers_where_the_file_has_its_count() -> None:
    """The client's tokenizer made two tokens of each: its TPOT is of half a token."""
    (run,), file = runs("profile_export_aiperf_0.13.json"), raw("profile_export_aiperf_0.13.json")
    assert (file["output_sequence_length"]["avg"], file["usage_completion_tokens"]["avg"]) == (48.0, 24.0)
    whole = (file["request_latency"]["avg"] - file["time_to_first_token"]["avg"]) / 23.0
    assert run.tpot.mean == pytest.approx(whole / 1e3, rel=1e-6)
    assert run.occupancy == pytest.approx(2.0, rel=0.1)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIXTURES = [
    (name, one)
    for name in sorted(path.name for path in FOLDER.iterdir())
    for one in [raw(name) if isinstance(raw(name), dict) else raw(name)[0]]
]


@given(data=st.data())
def test_any_field_may_be_anything(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A result file with one field replaced by anything is read or refused in a sentence, never a crash."""
    _, file = data.draw(st.sampled_from(FIXTURES))
    changed = json.loads(json.dumps(file))
    place = changed
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(json_values)
        break
    path = tmp_path_factory.mktemp("any") / "results.json"
    path.write_text(json.dumps(changed), "utf-8")
    with contextlib.suppress(InputError):
        read_results([path])
