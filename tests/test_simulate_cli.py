"""`pdplan simulate` end to end: a plan written by `pdplan optimize`, judged, written out, refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from optimizer.evaluate import evaluate
from optimizer.plan_fleet import fleet_of_plan, planned_volume
from pdplan.cli import run
from pdplan.plan_files import read_plan

WORKLOAD = """\
schema: pdplan.workload/1
name: tiny
model: {name: Llama-3.1-8B}
workload:
  request_rate: 6/s
  max_tokens: 8192
  lengths: {histogram: [{isl: 800, osl: 150, share: 0.8}, {isl: 3000, osl: 80, share: 0.2}]}
slo:
  - {name: fast, share: 0.5, ttft: 1s, tpot: 40ms, attainment: 0.9}
  - {name: slow, share: 0.5, ttft: 4s, tpot: 80ms, attainment: 0.9}
accelerators: [H100]
search: {preset: quick}
"""


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulate")
    (folder / "tiny.yaml").write_text(WORKLOAD, "utf-8")
    assert run(["-q", "optimize", str(folder / "tiny.yaml"), "-o", str(folder / "plan")]) == 0
    return folder / "plan" / "plan.json"


def test_a_plan_gives_back_its_fleet(plan_file: Path) -> None:
    """The rebuilt fleet evaluates to what the plan states, as the plan took expected step times."""
    plan = read_plan(plan_file)
    instance, fleet = fleet_of_plan(plan)
    assert [pool.name for pool in fleet.pools] == [pool.id for pool in plan.pools]
    assert planned_volume(plan) == pytest.approx(1.0)
    predicted = evaluate(instance, fleet)
    if plan.confidence == 0.0:
        for k, one in enumerate(plan.classes):
            assert predicted.attainment[k] == pytest.approx(one.attainment, abs=1e-9)
            assert predicted.ttft[k][1] == pytest.approx(one.ttft_s.p90, rel=1e-9)


def test_simulate_prints_the_table_and_writes_the_files(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, steps = tmp_path / "rows.csv", tmp_path / "steps.json"
    arguments = ["simulate", str(plan_file), "--requests", "2000", "--csv", str(rows), "--timeline", str(steps)]
    assert run(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("Every class holds its goal at 6 req/s")
    assert [line.split()[0] for line in said.splitlines() if " goal " in line and "≤" in line] == ["fast", "slow"]
    assert "analytic" in said
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


def test_simulate_json_tells_the_same_and_the_same_again(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        assert run(["simulate", str(plan_file), "--requests", "1000", "--json", "--goodput"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    found = json.loads(told[0])
    assert found["schema"] == "pdplan.simulation/1"
    assert found["rate_rps"] == 6.0
    assert [one["name"] for one in found["classes"]] == ["fast", "slow"]
    assert all(one["attainment_low"] <= one["attainment"] <= one["attainment_high"] for one in found["classes"])
    assert found["goodput"]["rate_rps"] >= 6.0
    assert found["pools"][0]["utilization"] > 0


def test_an_overloaded_fleet_is_exit_code_3(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(plan_file), "--requests", "1500", "--rate", "500/s"]) == 3
    assert capsys.readouterr().out.startswith("Overloaded at 500 req/s")


def test_a_trace_is_replayed(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "log.csv"
    lines = [f"{0.2 * k:.1f},{500 + k},{20 + k % 50}" for k in range(300)]
    trace.write_text("\n".join(["arrival_s,isl,osl", *lines]) + "\n", "utf-8")
    assert run(["simulate", str(plan_file), "--trace", str(trace), "--rate", "8/s"]) == 0
    said = capsys.readouterr().out
    assert "300 requests at 8 req/s, replayed from log.csv" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trace", "x.csv", "--goodput"], "goes with neither --replications nor --goodput"),
        (["--csv", "same", "--timeline", "same"], "name the same file"),
        (["--requests", "5"], "is not in the range"),
        (["--trace", "none.csv"], "none.csv"),
    ],
)
def test_bad_flags_are_exit_code_2(
    flags: list[str], message: str, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", str(plan_file), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_plan_is_never_written_over(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(plan_file), "--csv", str(plan_file), "--force"]) == 2
    assert "is a plan, which the file would replace" in capsys.readouterr().err


def test_a_plan_without_a_fleet_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(root / "tests" / "plans" / "infeasible.json")]) == 2
    assert "has no fleet (its status is infeasible)" in capsys.readouterr().err


def test_a_plan_whose_routing_is_not_that_of_its_inputs_is_refused(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = json.loads(plan_file.read_text("utf-8"))
    plan["routing"][0]["isl"] += 1.0
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(plan), "utf-8")
    assert run(["simulate", str(changed)]) == 2
    assert "routing.0: its class and lengths are not those of row 0" in capsys.readouterr().err
