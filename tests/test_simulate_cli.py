"""`pdplan simulate` end to end: a plan written by `pdplan optimize`, judged, written out, refused."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.simulator.metrics import Overload
from optimizer.fleets.build_plan import fleet_of_plan
from optimizer.verification.bench import Slice
from optimizer.verification.judge import Judgement, judge_runs
from optimizer.verification.simulated_plan import GOODPUT_RUNS, LOADS, SimulationRequest, replay
from pdplan.api import read_plan
from pdplan.cli import run
from reports.text import rate
from tests.running import QUICK, tiny


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulate")
    two = [{"name": "fast", "share": 0.5, "ttft": "1s", "tpot": "40ms", "attainment": 0.9}]
    two += [{"name": "slow", "share": 0.5, "ttft": "4s", "tpot": "80ms", "e2e": "60s", "attainment": 0.9}]
    assert run(["-q", "optimize", *QUICK, str(tiny(folder, slo=two)), "-o", str(folder / "plan")]) == 0
    return folder / "plan" / "plan.json"


def test_simulate_prints_the_table_and_writes_the_files(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    rows, steps = tmp_path / "rows.csv", tmp_path / "steps.json"
    page = tmp_path / "page.html"
    arguments = ["simulate", str(plan_file), "--requests", "2000", "--csv", str(rows), "--timeline", str(steps)]
    assert run([*arguments, "--html", str(page)]) == 0
    assert "<h1>Meets every SLO: " in page.read_text("utf-8")
    said, narration = capsys.readouterr()
    assert said.startswith("Meets every SLO: ")
    assert re.search(r"simulated in 0\.0*[1-9]|simulated in [1-9]", narration)
    assert " at 6 req/s (95 % interval " in " ".join(said.split())
    lines = said.splitlines()
    goals = [i for i, line in enumerate(lines) if " goal " in line and "≤" in line]
    assert [lines[i - 1].strip() for i in goals] == ["fast", "slow"]
    assert "by formula" in said
    told = " ".join(said.split())
    assert "e2e p50/p90/p99" in told
    assert "≤ 60 s" in told
    assert "Longest gap between tokens of fast" in told
    assert re.search(r"output tokens/s without the first and the last tenth\. .* Energy over the whole run: ", told)
    table = list(csv.DictReader(rows.read_text("utf-8").splitlines()))
    assert len(table) == 2000
    assert {row["slo_class"] for row in table} == {"fast", "slow"}
    first = table[0]
    assert float(first["e2e_s"]) == pytest.approx(
        float(first["ttft_s"]) + float(first["tpot_s"]) * (int(first["osl"]) - 1), rel=1e-6
    )
    events = json.loads(steps.read_text("utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert spans
    assert all(event["dur"] > 0 for event in spans)
    assert max(event["ts"] for event in spans) - min(event["ts"] + event["dur"] for event in spans) <= 30e6


@pytest.mark.parametrize(
    ("changes", "runs"),
    [({}, 1), ({"replications": 3}, 3), ({"goodput": True}, 1 + GOODPUT_RUNS), ({"curve": True}, 1 + 2 * len(LOADS))],
)
def test_the_work_of_a_request_is_that_of_all_its_runs(changes: dict[str, Any], runs: int) -> None:
    assert SimulationRequest(500, **changes).work == 500 * runs


def test_a_run_that_ends_before_the_fleet_is_full_says_so(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for requests in ("100", "2000"):
        run(["simulate", str(plan_file), "--rate", "15/s", "--requests", requests])
        said[requests] = "too short to fill the fleet" in " ".join(capsys.readouterr().out.split())
    assert said == {"100": True, "2000": False}


def test_a_plan_runs_without_its_spares_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = tiny(tmp_path, constraints={"headroom": {"replicas": 2}})
    assert run(["-q", "optimize", *QUICK, str(workload), "-o", str(tmp_path / "plan")]) == 0
    floor = "can cost less than $11.97/h with 2 spare replicas in every pool."
    assert floor in " ".join(capsys.readouterr().out.split())
    assert run(["simulate", str(tmp_path / "plan" / "plan.json"), "--requests", "2000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The 2 spare replicas are idle in these figures." in said
    assert " 1 (+2 spare) " in said
    assert run(["evaluate", str(tmp_path / "plan" / "plan.json"), "--effort", "none"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(2 spare)" in said
    assert "The 2 spare replicas are idle in these figures." in said
    assert "Apart from the spares, every pool has one replica." in said


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What `pdplan simulate --json` says, less its CPU time."""
    run(["simulate", *map(str, arguments), "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert value.pop("cpu_s") > 0.0
    return value


def test_the_json_is_the_same_again_and_its_parts_agree(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = answer(capsys, plan_file, "--requests", "1000", "--goodput", "--replications", "2")
    assert value == answer(capsys, plan_file, "--requests", "1000", "--goodput", "--replications", "2")
    assert (value["schema"], value["rate_rps"], value["curve"]) == ("pdplan.simulation/2", 6.0, None)
    assert (value["replications"], value["seeds"], value["until"]) == (2, [0, 1_000_003], None)
    assert 0.0 < value["half_width"] < 0.1
    assert value["goodput"]["rate_rps"] >= 6.0
    (pool,) = value["pools"]
    assert 0 < pool["mbu"] < pool["utilization"] <= 1
    assert 0.12 * pool["tdp_w"] < pool["power_w"] < pool["tdp_w"]
    assert (value["energy"]["power_w"], value["energy"]["origin"]) == (pool["power_w"], "assumed")
    per_token = pool["power_w"] / value["output_tokens_per_s"] / 3.6
    assert value["energy"]["wh_per_1000_output_tokens"] == pytest.approx(per_token, rel=0.03)
    assert value["served_rps"] == pytest.approx(6.0, rel=0.1)
    assert value["overload"]["pool"] is None
    assert [case["name"] for case in value["classes"]] == ["fast", "slow"]
    for case in value["classes"]:
        assert case["attainment_low"] <= case["attainment"] <= case["attainment_high"]
        ends, gaps = list(case["metrics"]["e2e"].values()), list(case["itl_max_s"].values())
        assert (ends, gaps) == (sorted(ends), sorted(gaps))
        assert ends[0] > case["ttft_s"]["p50"]
        assert gaps[0] >= case["tpot_s"]["p50"]


@pytest.mark.parametrize(
    ("test", "key", "verdict", "reason"),
    [
        ("stays_behind", "stuck", "misses", "It does not recover from a burst that fills its KV memory."),
        ("gives_way", "near_capacity", "undecided", "It is too near its limit to tell: with 5 % more requests"),
    ],
)
def test_a_fleet_that_misses_under_strain_is_told_so_by_simulate_and_by_evaluate(
    test: str,
    key: str,
    verdict: str,
    reason: str,
    plan_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missed(portion: Slice, *_: object) -> Judgement:
        judgement = judge_runs(portion.instance, portion.engines, portion.runs(500, 0, 1))
        return replace(judgement, overload=Overload(True, 0.2, 0.1, "queue"))

    assert answer(capsys, plan_file, "--requests", "8000")["verdict"] == "meets"
    monkeypatch.setattr(Slice, test, missed)
    value = answer(capsys, plan_file, "--requests", "8000")
    assert (value["verdict"], value["held"], value[key]) == (verdict, False, True)
    assert all(case["attainment_low"] >= case["attainment_goal"] for case in value["classes"])
    assert run(["simulate", str(plan_file), "--requests", "8000"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert reason in said
    assert re.search(r"Shares are known to within [\d.]+ percentage points? \(95 % interval\)\.", said)
    assert ("Misses the SLO of " in said and ", though " in said) == (verdict == "misses")
    day = ["simulate", str(plan_file), "--requests", "8000", "--diurnal", "1,0.5"]
    assert run(day) == 0  # not at one rate
    capsys.readouterr()
    assert run(["evaluate", str(plan_file), "--effort", "none"]) == 3
    assert reason in " ".join(capsys.readouterr().out.split())


def test_a_curve_is_shown_and_told(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(plan_file), "--requests", "600", "--curve"]
    assert run(arguments) == 0
    said = capsys.readouterr().out.partition("Latency and throughput\n")[2]
    assert said.startswith("  Saturation: ")
    assert run([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    curve = told["curve"]
    rates = [point["rate_rps"] for point in curve["points"]]
    assert rates == sorted(rates)
    points = [*curve["points"], *told["goodput"]["points"]]
    assert {"meets", "misses"} <= {point["verdict"] for point in points}
    assert [point["held"] for point in points] == [point["verdict"] == "meets" for point in points]
    assert {curve["saturation_rps"], curve["knee_rps"], curve["goodput_rps"]} <= set(rates)
    assert curve["goodput_rps"] == told["goodput"]["rate_rps"] <= curve["saturation_rps"]
    assert f"Saturation: {rate(curve['saturation_rps'])}, exact to 2 %." in said
    assert f"Knee: {rate(curve['knee_rps'])}. " in said
    assert f"Goodput: {rate(curve['goodput_rps'])}, exact to 2 %. Up to it the lower end" in said
    assert [
        set(one) >= {"attainment_low", "attainment_high", "ttft_s", "tpot_s"} for one in curve["points"][0]["classes"]
    ]
    assert said.count(" fast ") == said.count(" slow ") >= len(rates)


def test_a_day_has_its_worst_part(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(plan_file), "--requests", "1500", "--diurnal", "0.2,0.5,8,0.5"]
    assert run(arguments) == 3
    said = capsys.readouterr().out
    assert "over a day that is made to last 109 s" in " ".join(said.split())
    assert "by formula" not in said
    assert run([*arguments, "--json"]) == 3
    slots = json.loads(capsys.readouterr().out)["slots"]
    assert [slot["rate_rps"] for slot in slots] == pytest.approx([1.2, 3.0, 48.0, 3.0])
    worst = min(range(4), key=lambda k: min(slots[k]["attainment"]))
    start, end = 6 * worst, 6 * (worst + 1)
    assert f"Worst part of the day: {start:02d}:00 to {end:02d}:00 at {rate(slots[worst]['rate_rps'])}" in " ".join(
        said.split()
    )


def test_a_day_that_meets_the_slo_is_served_at_its_mean_and_is_worst_when_it_is_busiest(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most requests come at noon, but what is served over the day is its mean."""
    day = answer(capsys, plan_file, "--requests", "4000", "--diurnal", "0.01,1,0.01")
    assert day["rate_rps"] == pytest.approx(2.04, rel=0.05)
    assert day["served_rps"] == pytest.approx(day["rate_rps"], rel=0.05)
    assert run(["simulate", str(plan_file), "--requests", "4000", "--diurnal", "0.01,1,0.01"]) == 0
    assert "Worst part of the day: 08:00 to 16:00 at 6 req/s" in " ".join(capsys.readouterr().out.split())


def test_a_plan_without_a_day_is_not_replayed_over_it(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(plan_file), "--diurnal", "plan"]) == 2
    assert "the plan's workload has no diurnal profile" in capsys.readouterr().err


def test_an_overloaded_fleet_is_exit_code_3(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(plan_file), "--requests", "1500", "--rate", "500/s"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Overloaded at 500 req/s: colocated-1 falls behind. 100 % of the requests pile up")
    assert "undecided" not in said
    assert run(["simulate", str(plan_file), "--requests", "1500", "--rate", "500/s", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["overload"]["pool"] == "colocated-1"
    assert {item["analytic"] for item in answer["classes"]} == {None}  # no time can be told by formula


LINES = [f"{0.2 * k:.1f},{500 + k},{20 + k % 50}" for k in range(300)]


@pytest.mark.parametrize(
    ("lines", "options", "sentence"),
    [
        (LINES, ["--rate", "8/s"], "300 requests at 8 req/s, replayed from log.csv"),
        (LINES, ["--concurrency", "8"], "replayed from log.csv, 8 at a time"),
        (
            [*LINES, "60.0,900000,5", "60.1,900000,5"],
            ["--rate", "8/s"],
            "replayed from log.csv, less 2 of more than 8,192 tokens, which its engines do not take",
        ),
    ],
    ids=["at a rate", "in a closed loop", "too long"],
)
def test_a_trace_is_replayed(
    plan_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[str],
    options: list[str],
    sentence: str,
) -> None:
    trace = tmp_path / "log.csv"
    trace.write_text("\n".join(["arrival_s,isl,osl", *lines]) + "\n", "utf-8")
    assert run(["simulate", str(plan_file), "--trace", str(trace), *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert sentence in said
    assert "last tenth" not in said


def test_a_trace_of_as_many_requests_as_are_asked_for_is_known_to_have_no_more(plan_file: Path, tmp_path: Path) -> None:
    """Where it does not decide, no number of --requests is proposed that it lacks."""
    plan, trace = read_plan(plan_file), tmp_path / "log.csv"
    trace.write_text("\n".join(["arrival_s,isl,osl", *LINES]) + "\n", "utf-8")
    instance, fleet = fleet_of_plan(plan)
    said = [replay(instance, fleet, SimulationRequest(len(LINES) - less, trace=trace)) for less in (0, 1)]
    assert [(item[0].trace.size, item[2]) for item in said] == [(len(LINES), True), (len(LINES) - 1, False)]
