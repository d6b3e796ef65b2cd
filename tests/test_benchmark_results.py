"""Every reader gives the same record: lengths, load and times of the file, in SI units, what is missing as None."""

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from search_spaces.benchmark_results import BenchmarkRun, Tool, documents, formats, read_results

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


def runs(name: str) -> list[BenchmarkRun]:
    found = read_results([FOLDER / name])
    assert all(isinstance(one, BenchmarkRun) for one in found)
    return [one for one in found if isinstance(one, BenchmarkRun)]


Expected = tuple[Tool, float, float, float | None, float | None, float, float]
SAMPLES: dict[str, Expected] = {
    "vllm_bench_serve.json:1": (Tool.VLLM, 1024, 256, 4, math.inf, 84.357, 7.901),
    "vllm_bench_serve.json:4": (Tool.VLLM, 4096, 128, 8, math.inf, 286.72, 14.634),
    "sglang_bench_serving.jsonl:2": (Tool.SGLANG, 1024, 256, 32, math.inf, 491.71, 11.453),
    "profile_export_aiperf.json": (Tool.AIPERF, 2000, 200, 16, None, 174.811, 12.8325),
    "profile_export_genai_perf.json": (Tool.GENAI_PERF, 500, 300, 10, None, 61.0137, 8.1346),
    "guidellm_benchmarks.json: benchmarks[0]": (Tool.GUIDELLM, 1000, 128, 1, None, 81.5713, 7.49374),
    "guidellm_benchmarks.json: benchmarks[2]": (Tool.GUIDELLM, 1000, 128, None, 5.0, 80.8864, 8.72213),
    "inferencex_agg.json[2]": (Tool.INFERENCEX, 7372.8, 921.6, 32, math.inf, 1583.25, 24.4892),
    "vllm_benchmark_serving_2024.json": (Tool.VLLM, 1024, 256, None, 4.0, 58.31, 10.72),
    "sglang_bench_serving_2024.jsonl": (Tool.SGLANG, 1024, 256, None, 2.0, 61.0, 9.8),
    "agg_dsr1_8k1k_fp8_trt_tp8-ep1_conc16.json": (Tool.INFERENCEX, 7372.8, 921.6, 16, math.inf, 610, 18.2),
    "stage_1_lifecycle_metrics.json": (Tool.INFERENCE_PERF, 135, 128, None, 20.0, 62.0, 22.5),
    "stage_0_lifecycle_metrics_concurrent.json": (Tool.INFERENCE_PERF, 1000, 200, 16, 6.2317, 80.0, 12.5),
    "benchmark_report_v0.1.yaml": (Tool.LLMD, 2200, 240, 32, math.inf, 210, 15.2),
    "benchmark_report_v0.2.yaml": (Tool.LLMD, 2262, 1000, None, 10.0, 120, 14.0),
    "guidellm_benchmarks_0.3.json: benchmarks[0]": (Tool.GUIDELLM, 23.667, 16, 2, None, 41.037, 4.7729),
    "profile_export_aiperf_0.13.json": (Tool.AIPERF, 45.8, 24, 2, None, 23.604, 2.364 * 47 / 23),
}
"""Of each run, by its place: tool, ISL, OSL, concurrency, request rate, and typical TTFT and TPOT [ms]."""


@pytest.mark.parametrize(("name", "expected"), SAMPLES.items())
def test_samples_of_every_tool(name: str, expected: Expected) -> None:
    (run,) = (run for run in runs(re.split(r"[:\[]", name)[0]) if run.where.endswith(name))
    tool, isl, osl, concurrency, rate, ttft, tpot = expected
    assert (run.tool, run.concurrency) == (tool, concurrency)
    assert [run.isl, run.osl] == pytest.approx([isl, osl], rel=1e-4)
    assert run.prompts == run.completed
    assert run.request_rate == (None if rate is None else pytest.approx(rate, rel=1e-4))
    assert run.ttft.typical == pytest.approx(ttft / 1e3, rel=1e-3)
    assert run.tpot.typical == pytest.approx(tpot / 1e3, rel=1e-3)


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


@settings(deadline=None, max_examples=100)
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
