"""Traces that people have: each is read as it is, by the names of its columns or keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplan.cli import run
from pdplan.exits import ExitCode
from search_spaces.traces.summary import read_trace, trace_source
from tests.trace_files import Write, jsonl

FOLDER = Path(__file__).resolve().parent / "traces"
CHAT = (812, 140), 5.0
SAMPLES = {
    "servegen.csv": ((1024, 20), 2.0),
    "splitwise_sim.csv": ((4808, 10), 0.5),
    "llmservingsim.jsonl": ((10, 70), 0.5),
    "profile_export.jsonl": ((48, 20), 0.3969),
    "litellm_payloads.jsonl": ((812, 140), 4.0),
    "openai_chat_completions.jsonl": CHAT,
    "openai_responses.jsonl": CHAT,
    "openai_batch_output.jsonl": CHAT,
}
"""Of each file: ISL and OSL of its first request [token], and the time from its first arrival to its last [s]."""


@pytest.mark.parametrize(("name", "expected"), SAMPLES.items())
def test_samples_are_read_without_a_word(name: str, expected: tuple[tuple[int, int], float]) -> None:
    summary = read_trace(FOLDER / name)
    (isl, osl), duration = expected
    assert (isl, osl) in zip(summary.rows.isl.tolist(), summary.rows.osl.tolist(), strict=True)
    assert summary.requests >= 3
    assert summary.arrivals.duration == pytest.approx(duration, abs=1e-3)


def test_every_sample_has_a_row_in_the_docs() -> None:
    page = (FOLDER.parents[1] / "docs" / "traces.md").read_text("utf-8")
    assert set(SAMPLES) == {path.name for path in FOLDER.iterdir()}
    for name in SAMPLES:
        summary = read_trace(FOLDER / name)
        assert f"`{summary.columns.arrival}`, `{summary.columns.isl}`, `{summary.columns.osl}`" in page, name


NESTED = ({"at": {"ms": 0}, "use": {"in": 5, "out": 6}}, {"at": {"ms": 2000}, "use": {"in": 7, "out": 8}})


def test_columns_are_keys_in_objects(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(jsonl(*NESTED), "log.jsonl")
    named = {"arrival": "at.ms", "isl": "use.in", "osl": "use.out", "arrival_unit": "ms"}
    summary = read_trace(path, columns=named)
    assert (summary.mean_isl, summary.mean_osl, summary.arrivals.duration) == (6.0, 7.0, 2.0)
    assert trace_source(summary, path.parent) == {"path": "log.jsonl", "format": "jsonl", "columns": named}
    columns = ",".join(f"{role}={name}" for role, name in named.items())
    assert run(["workload", str(path), "--columns", columns]) == ExitCode.DONE
    assert "2 in 2 s (jsonl)" in capsys.readouterr().out
