"""`pdplan workload`: what it advises about a trace that the model cannot take."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from costmodel.errors import InputError
from pdplan.cli import cli
from search_spaces.loader import load_problem


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(cli, ["workload", *arguments], standalone_mode=False)
    assert done.exception is None, done.output
    return done


def trace(name: str, times: list[float], lengths: list[int] | None = None) -> str:
    rows = zip(times, lengths or [100] * len(times), strict=True)
    Path(name).write_text("arrival,isl,osl\n" + "".join(f"{time:.6f},{isl},60\n" for time, isl in rows), "utf-8")
    return name


def steady(seconds: float, rate: float, start: float = 0.0) -> list[float]:
    return [start + number / rate for number in range(int(seconds * rate))]


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
