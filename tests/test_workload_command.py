"""`pdplan workload`: what it advises about a trace that the model, or a plan for its mean rate, cannot take."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from costmodel.errors import InputError
from pdplan.cli import cli
from search_spaces.loader import load_problem

WINDOW = 600


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(cli, ["workload", *arguments], standalone_mode=False)
    assert done.exception is None, done.output
    return done


def notes_of(*arguments: str) -> list[str]:
    notes: list[str] = json.loads(run(*arguments, "--json").stdout)["notes"]
    return notes


def trace(name: str, times: list[float], lengths: list[int] | None = None) -> str:
    rows = zip(times, lengths or [100] * len(times), strict=True)
    Path(name).write_text("arrival,isl,osl\n" + "".join(f"{time:.6f},{isl},60\n" for time, isl in rows), "utf-8")
    return name


def steady(seconds: float, rate: float, start: float = 0.0) -> list[float]:
    return [start + number / rate for number in range(int(seconds * rate))]


def busy(rate: float) -> list[float]:
    """1 request/s for an hour, but for `rate` in ten minutes of it."""
    return [*steady(1500, 1.0), *steady(WINDOW, rate, 1500.0), *steady(1500, 1.0, 1500.0 + WINDOW)]


LONG = [100] * 97 + [50_000, 45_000, 40_901]
"""With 60 output tokens each, three are longer than the 40,960 of Qwen3-32B, the last by one."""


def test_requests_beyond_the_context_are_counted_and_the_next_command_leaves_them_out() -> None:
    path = trace("t.csv", steady(100, 1.0), LONG)
    done = run(path, "--model", "Qwen3-32B", "-o", "w.yaml")
    said = " ".join(done.stdout.split())
    assert "3 of 100 requests (3 %) are longer than the context of Qwen3-32B, 40,960 tokens" in said
    assert "--max-tokens 40960, or name a --model of longer context" in said
    assert "# Note: 3 of 100 requests (3 %)" in Path("w.yaml").read_text("utf-8")
    with pytest.raises(InputError, match="50,060 tokens exceed the context"):
        load_problem(Path("w.yaml"))
    following = done.stderr.splitlines()[-1].removeprefix("Next: ")
    assert following.endswith("--max-tokens 40960 --force")
    again = run(path, "--model", "Qwen3-32B", "-o", "w.yaml", *shlex.split(following)[-3:])
    assert "Note: 3 requests have more than 40,960 tokens (ISL + OSL) and are left out of all figures." in again.stdout
    assert again.stderr.splitlines()[-1] == "Next: pdplan optimize w.yaml -o plan"
    load = load_problem(Path("w.yaml")).workload
    assert (load.isl.tolist(), load.max_tokens) == ([100.0], 160)


@pytest.mark.parametrize(("rate", "noted"), [(1.05, False), (1.15, True), (3.0, True)])
def test_a_long_peak_well_above_the_mean_is_noted_with_what_to_do(rate: float, noted: bool) -> None:
    """An hour of evenly spaced requests: the count of ten minutes is sure to one request."""
    times = busy(rate)
    found = notes_of(trace("t.csv", times))
    assert bool(found) is noted
    if noted:
        mean = (len(times) - 1) / (times[-1] - times[0])
        assert f"{rate:.3g} req/s came in the busiest 10 min, {100 * (rate / mean - 1):.3g} % more than" in found[0]
        assert f"add --rate {rate:.3g}/s to pdplan workload" in found[0]
        assert f"--set workload.request_rate={rate:.3g} to pdplan optimize" in found[0]
        assert ("pdplan optimize serves the recorded requests" in found[0]) == (len(times) >= 1000)


@pytest.mark.parametrize("at", [1, 2500, 4999])
def test_one_wrong_timestamp_is_named_with_its_line_and_the_rate_without_it(at: int) -> None:
    times = steady(2500, 2.0)
    times[at] = 99_999.0
    found = notes_of(trace("t.csv", times))
    last = 5000 if at == 4999 else 5001
    gap = 99_999.0 - (2499.0 if at == 4999 else 2499.5)
    pause = next(note for note in found if "one gap" in note)
    assert f"98 % of the trace is one gap of {gap:,.0f} s without a request" in pause
    assert f"between those of line {last:,} and line {at + 2:,}: without it the rate is 2 req/s" in pause
    assert not any("waves" in note or "busiest" in note for note in found)
