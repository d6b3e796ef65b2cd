"""Requests as a trace recorded them: drawn in stretches, replayed in order, kept in plans, and told of in views."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.question import readable_inputs
from search_spaces.loader import bunching, load_problem, problem_of, whole_echo, without_recording
from search_spaces.problem import Problem, Recorded
from tests.optimizer_cases import slo, workload
from tests.running import QUICK, within

HOUR = 3600.0


def recording(times: Sequence[float], span: float) -> Recorded:
    lengths = np.full(len(times), 1000), np.full(len(times), 200)
    return Recorded("t.csv", len(times), 0, span, np.asarray(times, dtype=np.float64), *lengths)


def waves(calm: float = 1.0, busy: float = 9.0, part: float = 0.2) -> Recorded:
    """An hour with `part` of it, in ten waves, at `busy` requests per second, the rest at `calm`; evenly spaced."""
    times: list[float] = []
    for start in np.arange(10) * HOUR / 10:
        middle = start + (1.0 - part) * HOUR / 10
        times += list(np.arange(start, middle, 1.0 / calm)) + list(np.arange(middle, start + HOUR / 10, 1.0 / busy))
    return recording(times, HOUR)


def write_trace(path: Path, found: Recorded) -> Path:
    rows = zip(found.arrival.tolist(), found.isl.tolist(), found.osl.tolist(), strict=True)
    path.write_text("arrival,isl,osl\n" + "".join(f"{t:.6f},{isl},{osl}\n" for t, isl, osl in rows), "utf-8")
    return path


@given(st.integers(1, 3000), st.floats(0.1, 50.0), st.integers(0, 9))
def test_stretches_are_in_order_and_do_not_depend_on_the_rate(count: int, rate: float, seed: int) -> None:
    found = waves()
    times, index = found.drawn(count, rate, seed)
    assert times.size == index.size == count
    assert (np.diff(times) >= -1e-9).all()
    assert 0 <= index.min() <= index.max() < found.arrival.size
    other, same = found.drawn(count, 1.0, seed)
    np.testing.assert_array_equal(index, same)
    np.testing.assert_allclose(times * rate, other)


def test_the_dispersion_of_waves_is_that_of_their_counts() -> None:
    """In 10 s there are 10 requests in four windows of five and 90 in the fifth: mean 26, variance 1024."""
    assert waves().dispersion(10.0) == pytest.approx(1024.0 / 26.0, rel=0.05)


def test_formulas_see_the_counts_of_the_time_that_a_request_may_take() -> None:
    """TTFT 2 s and 160 tokens of 50 ms are 10 s; at twice the rate of the recording 20 s of it."""
    found, load = waves(), workload(rate=waves().rate, buckets=((1000, 160, 1.0),))
    assert bunching(found, load, (slo(),)) == pytest.approx(found.dispersion(10.0) ** 0.5)
    assert bunching(found, replace(load, request_rate=2.0 * found.rate), (slo(),)) == pytest.approx(
        found.dispersion(20.0) ** 0.5
    )
    assert bunching(found, load, (slo(ttft=np.inf, tpot=np.inf, e2e=30.0),)) == found.dispersion(30.0) ** 0.5


BELOW = """
slo: {ttft: 2s, tpot: 50ms}
accelerators: [H100]
model: Llama-3.1-8B
search: {tensor_parallel: [1], pipeline_parallel: [1]}
"""


def stated(folder: Path, demand: str) -> Problem:
    write_trace(folder / "t.csv", waves())
    path = folder / "w.yaml"
    path.write_text(f"workload: {{{demand}}}{BELOW}", "utf-8")
    return load_problem(path)


LENGTHS = "lengths: {histogram: [{isl: 1000, osl: 200, share: 1}]}"


@pytest.mark.parametrize(
    ("demand", "recorded"),
    [
        ("lengths: {trace: {path: t.csv}}", True),
        ("lengths: {trace: {path: t.csv}}, burstiness: 2", False),
        (f"{LENGTHS}, request_rate: 5/s, recorded: t.csv", True),
        (f"{LENGTHS}, request_rate: 5/s", False),
    ],
)
def test_a_trace_is_simulated_unless_arrivals_are_stated(tmp_path: Path, demand: str, recorded: bool) -> None:
    assert (stated(tmp_path, demand).recorded is not None) is recorded


def test_a_plan_keeps_the_requests_and_scenarios_do_without(tmp_path: Path) -> None:
    own = stated(tmp_path, "lengths: {trace: {path: t.csv}}")
    assert "recorded" not in own.inputs["workload"]
    again = problem_of(json.loads(json.dumps(whole_echo(own))), "inputs", tmp_path)
    np.testing.assert_allclose(again.recorded.arrival, own.recorded.arrival, atol=2e-6)
    assert again.workload.burstiness == own.workload.burstiness
    assert problem_of(own.inputs, "inputs", tmp_path).recorded is None
    assert without_recording(own).recorded is None
    shown = readable_inputs(whole_echo(own))["workload"]["recorded"]
    assert shown["packed"].startswith("SHA-256 ")
    assert readable_inputs(own.inputs) == own.inputs


def test_a_trace_of_waves_is_planned_for_and_proven(tmp_path: Path, short_runs: None) -> None:
    """Waves of 60 requests a second: what holds for random arrivals at the mean rate misses on the trace itself."""
    write_trace(tmp_path / "t.csv", waves(calm=0.5, busy=40.0, part=0.03))
    made = within("workload", "t.csv", "--model", "Llama-3.1-8B", "-o", "w.yaml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "w.yaml").read_text("utf-8")
    assert 'recorded: {"path": "t.csv", "format": "csv"' in text
    assert "burstiness:" not in text
    settings = ("--set", "accelerators=[H100]", "--set", "search.tensor_parallel=[1]", "--set", "slo.ttft=1s")
    random = ("--set", "workload.recorded=null", "--set", "workload.burstiness=1")
    plans = {}
    for name, more in (("own", ()), ("random", (*random, *QUICK))):
        done = within("optimize", "w.yaml", *settings, *more, "-o", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        plans[name] = json.loads((tmp_path / name / "plan.json").read_text("utf-8"))
        assert ("Replayed in order, all " in " ".join(done.stdout.split())) == (name == "own")
    assert plans["own"]["cost_usd_per_hour"] > plans["random"]["cost_usd_per_hour"]
    assert plans["own"]["simulation"]["recorded"]["classes"][0]["attainment"] >= 0.9
    replayed = [
        within("simulate", f"{name}/plan.json", "--trace", "t.csv", "--requests", "9000", cwd=tmp_path).returncode
        for name in ("own", "random")
    ]
    assert replayed == [0, 3]
    deployed = within("deploy", "own/plan.json", "--target", "vllm", "-o", "files", cwd=tmp_path)
    assert deployed.returncode == 0, deployed.stderr
    rows = [json.loads(line) for line in (tmp_path / "files/benchmark/workload.jsonl").read_text("utf-8").splitlines()]
    gaps = np.diff([row["timestamp"] for row in rows])
    assert 1000.0 / gaps.mean() == pytest.approx(plans["own"]["demand_rps"], rel=0.1)
    assert np.isclose(gaps, 1000.0 / 40.0, rtol=0.01).mean() > 0.3
