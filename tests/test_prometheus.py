"""Range queries of Prometheus: as traffic to plan for, and as proof that a fleet meets its plan's SLO."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pdplan.cli import run
from pdplan.exits import ExitCode
from reports.deploy.describe import demand_of
from search_spaces.prometheus import EngineSeries, read_scrape
from tests.deploy_cases import Case, plan_of

START = 1_777_622_400
"""2026-05-01 08:00 UTC."""
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
"""Buckets of vllm:time_to_first_token_seconds [s]."""
GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
"""Buckets of its times per output token [s]."""
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 8192)
"""Buckets of its lengths [token]: 1, 2, 5 times powers of ten up to max_model_len."""


def histogram_series(
    name: str,
    bounds: Sequence[float],
    steps: Sequence[Sequence[float]],
    pod: str,
    *,
    step: float,
    restart: int = -1,
    model: str = "m",
) -> list[dict[str, Any]]:
    """The series of one histogram of one pod: observed values by step; restart: step after which it counts from 0."""
    labels = {"engine": "0", "instance": f"{pod}:8000", "job": "vllm", "model_name": model, "pod": pod}
    rows = []
    for bound in (*bounds, math.inf):
        le = "+Inf" if math.isinf(bound) else str(bound)
        increases = [sum(value <= bound for value in values) for values in steps]
        rows.append(_series(f"{name}_bucket", labels | {"le": le}, increases, step, restart))
    rows.append(_series(f"{name}_sum", labels, [sum(values) for values in steps], step, restart))
    return rows


def _series(
    name: str, labels: Mapping[str, str], increases: Sequence[float], step: float, restart: int
) -> dict[str, Any]:
    total, values = 7.0, [[START, "7"]]
    for number, increase in enumerate(increases):
        total = increase if number == restart else total + increase
        values.append([START + step * (number + 1), f"{total:g}"])
    return {"metric": {"__name__": name, **labels}, "values": values}


def answer(folder: Path, *series: dict[str, Any]) -> Path:
    path = folder / "prometheus.json"
    data = {"resultType": "matrix", "result": list(series)}
    path.write_text(json.dumps({"status": "success", "data": data}), "utf-8")
    return path


STEP = 60.0
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
PLAN = plan_of((Case("colocated", tp=2, replicas=2, tokens=8192),))
"""TTFT within 600 ms and TPOT within 30 ms for 95 % of the requests, at 7.5 req/s."""


def fleet(ttft: Sequence[Sequence[float]], tpot: Sequence[Sequence[float]], name: str = TPOT) -> list[dict[str, Any]]:
    """Two pods with the same requests, the second restarted in the middle."""
    return [
        series
        for pod, restart in (("vllm-0", -1), ("vllm-1", len(ttft) // 2))
        for metric, bounds, steps in ((TTFT, SECONDS, ttft), (name, GAPS, tpot))
        for series in histogram_series(metric, bounds, steps, pod, step=STEP, restart=restart)
    ]


def steps(
    count: int, requests: int, value: float, late: Sequence[int] = (), late_value: float = 0.0
) -> list[list[float]]:
    """Every step has as many equal requests; half of those of some steps are late."""
    return [
        [value] * (requests - requests // 2) + [late_value if step in late else value] * (requests // 2)
        for step in range(count)
    ]


def watched(
    folder: Path, series: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    (folder / "plan.json").write_text(PLAN.model_dump_json(by_alias=True), "utf-8")
    words = ["validate", "--prometheus", str(answer(folder, *series)), "--plan", str(folder / "plan.json"), "--json"]
    code = run(words)
    return code, json.loads(capsys.readouterr().out)


def test_increases_are_added_over_pods_and_restarts(tmp_path: Path) -> None:
    scrape = read_scrape(answer(tmp_path, *fleet(steps(10, 40, 0.3), steps(10, 40, 0.02))))
    ttft = scrape.histogram(EngineSeries.TTFT)
    assert ttft.total == 2 * 10 * 40
    assert ttft.mean == pytest.approx(0.3)
    assert ttft.share_within(0.6) == (1.0, 1.0)
    assert ttft.share_within(0.3) == (0.0, 1.0)  # somewhere in its bucket
    assert 0.25 < ttft.quantile(0.5) <= 0.5


def test_a_fleet_that_meets_its_slo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, value = watched(tmp_path, fleet(steps(20, 225, 0.3), steps(20, 225, 0.02)), capsys)
    assert code == ExitCode.DONE
    assert value["verdict"] == "meets"
    assert value["requests"] == 9000
    assert value["requests_per_second"] == pytest.approx(7.5)
    assert value["misses"] == []
    assert value["sentence"] == (
        "The fleet meets the plan's SLO: TTFT within 600 ms for 100 % and TPOT within 30 ms for 100 %; the goal is "
        "95 %. There is nothing to do."
    )


def test_when_an_slo_was_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three of twenty steps have half their first tokens late: 92.5 % are in time, and the clock says when not."""
    series = fleet(steps(20, 200, 0.3, (4, 5, 6), 2.0), steps(20, 200, 0.02))
    code, value = watched(tmp_path, series, capsys)
    assert (code, value["verdict"]) == (ExitCode.INFEASIBLE, "misses")
    (miss,) = value["misses"]
    assert miss == {
        "name": "TTFT",
        "start": "2026-05-01 08:04 UTC",
        "end": "2026-05-01 08:07 UTC",
        "requests": 1200,
        "share": 0.5,
    }
    assert "misses the plan's SLO by TTFT: TTFT within 600 ms for 92.5 %; the goal is 95 %." in value["sentence"]
    assert run(["validate", "--prometheus", str(tmp_path / "prometheus.json"), "--plan", str(tmp_path / "plan.json")])
    shown = capsys.readouterr().out
    assert "2026-05-01 08:04 UTC" in shown
    assert shown.rstrip().endswith("(`benchmark/run.sh`) to see which predictions are off.")


LENGTHS = ("vllm:request_prompt_tokens", "vllm:request_generation_tokens")


def test_traffic_that_is_not_the_planned_one_does_not_show_that_the_slo_is_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one pod, of a quiet day with or without a busy hour, of longer prompts, and of another model."""
    isl, osl = demand_of(PLAN, None).mean_isl, demand_of(PLAN, None).mean_osl

    def lengths(factor: float) -> list[dict[str, Any]]:
        columns = zip(LENGTHS, (factor * isl, osl), strict=True)
        return [
            series
            for name, tokens in columns
            for series in histogram_series(name, TOKENS, steps(20, 225, tokens), "vllm-0", step=STEP)
        ]

    fast, quiet = steps(20, 225, 0.3), steps(20, 50, 0.3)
    busy = [*quiet[:10], *fast[:2], *quiet[12:]]
    half = "the busiest tenth of the time had 3.75 req/s, and the plan is for 7.5 req/s"
    cases = (
        ([*fleet(fast, steps(20, 225, 0.02)), *lengths(1.0)], "There is nothing to do."),
        (fleet(fast, steps(20, 225, 0.02))[: len(fleet(fast, fast)) // 2], f"{half}. The file has 1 of the plan's 2"),
        (fleet(quiet, steps(20, 50, 0.02)), "had 1.67 req/s, and the plan is for 7.5 req/s."),
        (fleet(busy, steps(20, 50, 0.02)), "There is nothing to do."),
        ([*fleet(fast, steps(20, 225, 0.02)), *lengths(1.5)], f"its prompts have {1.5 * isl:,.0f} tokens on average"),
    )
    for series, words in cases:
        code, value = watched(tmp_path, series, capsys)
        is_met = words == "There is nothing to do."
        assert (code, value["verdict"]) == ((ExitCode.DONE, "meets") if is_met else (ExitCode.INFEASIBLE, "undecided"))
        assert words in value["sentence"]
    late = [*fleet(steps(20, 225, 2.0), steps(20, 225, 0.02)), *lengths(1.5)]  # no prediction that is off
    assert "It is other traffic than planned: its prompts have" in watched(tmp_path, late, capsys)[1]["sentence"]
    series = histogram_series(TTFT, SECONDS, fast, "vllm-0", step=STEP, model="Qwen/Qwen3-8B")
    words = ["validate", "--prometheus", str(answer(tmp_path, *series)), "--plan", str(tmp_path / "plan.json")]
    assert run(words) == ExitCode.BAD_INPUT
    assert "it ran Qwen3-8B, not Llama-3.1-8B, so it did not measure the plan's fleet" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "planned"), [("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"), ("m", "Llama-3.1-70B")])
def test_the_model_that_was_served_is_planned_for(
    name: str, planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that the catalog lacks tells nothing: the file is to be corrected."""
    series = [
        row
        for metric, tokens in zip(LENGTHS, (800.0, 100.0), strict=True)
        for row in histogram_series(metric, TOKENS, steps(20, 200, tokens), "vllm-0", step=STEP, model=name)
    ]
    output = tmp_path / "workload.yaml"
    assert run(["workload", str(answer(tmp_path, *series)), "-o", str(output)]) == ExitCode.DONE
    assert yaml.safe_load(output.read_text("utf-8"))["model"] == {"name": planned}
    needs = "slo and accelerators" if name == planned else "model, slo and accelerators"
    assert f"set its {needs}\n" in capsys.readouterr().err


def test_metrics_are_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(1)
    counts = generator.poisson(300.0, size=200)
    lengths = [
        (name, [generator.integers(low, high, size=count).tolist() for count in counts])
        for name, low, high in zip(LENGTHS, (600, 60), (1000, 180), strict=True)
    ]
    series = [row for name, steps in lengths for row in histogram_series(name, TOKENS, steps, "vllm-0", step=STEP)]
    cached = (("vllm:prefix_cache_hits_total", 30.0), ("vllm:prefix_cache_queries_total", 120.0))
    series += [_series(name, {"pod": "vllm-0"}, [value] * 200, STEP, -1) for name, value in cached]
    path, output = answer(tmp_path, *series), tmp_path / "workload.yaml"
    assert run(["workload", str(path), "--model", "Llama-3.1-8B", "-o", str(output), "--json"]) == ExitCode.DONE
    value = json.loads(capsys.readouterr().out)
    assert (value["format"], value["prefix_hit_share"]) == ("prometheus", 0.25)
    assert value["request_rate_rps"] == pytest.approx(5.0, rel=0.02)
    assert value["burstiness"] == pytest.approx(1.0, abs=0.25)
    assert (value["mean_isl"], value["mean_osl"]) == (pytest.approx(799.5, rel=0.01), pytest.approx(119.5, rel=0.01))
    workload = yaml.safe_load(output.read_text("utf-8"))["workload"]
    rows = workload["lengths"]["histogram"]
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert sum(row["share"] * row["isl"] for row in rows) == pytest.approx(799.5, rel=0.01)
    assert workload["max_tokens"] == 1200
    assert run(["workload", str(path)]) == ExitCode.DONE
    assert "(prometheus)" in capsys.readouterr().out
