"""`pdplan whatif`, `pdplan map` and `pdplan frontier` as users run them: tables, files, refusals, restarts."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from optimizer.plans.plan import Status
from optimizer.plans.records import OPTIMAL_GAP
from optimizer.whatif.answer import Answer, ScenarioEffort
from optimizer.whatif.solver import Sweep, Task, run_sweep
from optimizer.whatif.workers import Journal, local_executor
from pdplan.cli import cli
from search_spaces.scenarios import Scenario
from tests.running import ROOT, THREE_GPUS

SCENARIOS = {"june": {"rate_scale": 2}, "tight": {"extends": "june", "slo": {"ttft": "500ms"}}}
AXES = ("--vary", "price.A100-80=0.5:4:4", "--vary", "rate=10,40")


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "workload.yaml"
    path.write_text(yaml.safe_dump(THREE_GPUS | {"scenarios": SCENARIOS}), "utf-8")
    return path


def answered(*arguments: object) -> dict[str, Any]:
    asked = [*map(str, arguments), "--verify", "0", "--json"]
    done = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0), done.output
    return json.loads(done.stdout)


def test_a_sweep_is_rows_in_grid_order_a_table_and_a_page(workload: Path, tmp_path: Path) -> None:
    target, page = tmp_path / "sweep.csv", tmp_path / "sweep.html"
    record = answered("whatif", workload, *AXES, "--jobs", 1, "--csv", target, "--html", page)
    assert (record["schema"], record["search"], record["simulated"]) == ("pdplan.whatif/3", "full", False)
    rows = record["rows"]
    prices = [0.5, 0.5 + 3.5 / 3, 0.5 + 7.0 / 3, 4.0]
    assert [(row["price.A100-80"], row["rate"]) for row in rows] == [
        (pytest.approx(price), rate) for price in prices for rate in (10, 40)
    ]
    assert [row["number"] for row in rows] == list(range(8))
    for row in rows:
        assert row["status"] == ("optimal" if row["gap"] <= OPTIMAL_GAP else "feasible")
        assert row["bound_usd_per_hour"] == pytest.approx(row["cost_usd_per_hour"] * (1.0 - row["gap"]))
        assert all(pool["max_num_seqs"] and pool["max_num_batched_tokens"] for pool in row["pools"])
        assert row["goodput_per_dollar"] == pytest.approx(row["goodput_rps"] * 3600 / row["cost_usd_per_hour"])
        assert row["goodput_rps"] >= row["rate"]
        assert sum(pool["gpus"] for pool in row["pools"]) == sum(row["gpus"].values())
        assert sum(pool["usd_per_hour"] for pool in row["pools"]) == pytest.approx(row["cost_usd_per_hour"])
    assert set(rows[0]["gpus"]) == {"A100-80"}
    with target.open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [float(line["rate_rps"]) for line in table] == [row["rate"] for row in rows]
    assert [float(line["price.A100-80_usd_per_hour"]) for line in table] == [row["price.A100-80"] for row in rows]
    assert [int(line["gpus.A100-80"]) for line in table] == [row["gpus"].get("A100-80", 0) for row in rows]
    for line, row in zip(table, rows, strict=True):
        roles = [pool["role"] for pool in row["pools"]]
        for number, (role, pool) in enumerate(zip(roles, row["pools"], strict=True)):
            name = f"{role}{'2' * (role in roles[:number])}"
            assert line[f"{name}.gpu"] == pool["accelerator"]
            assert int(line[f"{name}.max_num_batched_tokens"]) == pool["max_num_batched_tokens"]
    assert not any("[" in value or "{" in value for line in table for value in line.values())
    text = page.read_text("utf-8")
    twin = re.search(r'<script type="application/json" id="result">(.*?)</script>', text, re.S)
    assert json.loads(twin[1]) == record
    costs = [row["cost_usd_per_hour"] for row in rows]
    assert f"8 scenarios: the cheapest fleet costs ${min(costs):.2f}/h to ${max(costs):.2f}/h" in text


@pytest.mark.parametrize(("budget", "more"), [(1.5, "serves more demand"), (40, "serves no more demand")])
def test_a_budget_that_another_limit_makes_worthless_serves_no_more(budget: float, more: str, workload: Path) -> None:
    limits = {"max_gpus": 3, "budget": budget, "headroom": {"replicas": 0}}
    options = ("--set", f"constraints={json.dumps(limits)}", "--set", "workload.request_rate=1/s", "--verify", "0")
    done = CliRunner().invoke(cli, ["whatif", str(workload), "--shadow-prices", *options])
    assert f"{more}, saves nothing" in " ".join(done.stdout.split()), done.output


def test_a_map_has_the_cheapest_fleet_of_each_shape_in_every_cell(workload: Path, tmp_path: Path) -> None:
    page, table = tmp_path / "map.html", tmp_path / "map.csv"
    asked = ("map", workload, "--over", "isl=300,2400", "--over", "rate=10,80", "--jobs", 1)
    found = answered(*asked, "--html", page, "--csv", table)
    assert (found["schema"], found["over"]) == ("pdplan.map/2", ["isl", "rate"])
    rows = found["rows"]
    shapes = ("colocated", "disaggregated")
    assert [(row["isl"], row["rate"], row["shape"]) for row in rows] == [
        (isl, rate, shape) for isl in (300, 2400) for rate in (10, 80) for shape in shapes
    ]
    best = []
    for alone, split in zip(rows[::2], rows[1::2], strict=True):
        assert {pool["role"] for pool in alone["pools"]} == {"colocated"}
        assert {pool["role"] for pool in split["pools"]} == {"prefill", "decode"}
        costs = [row["cost_usd_per_hour"] for row in (alone, split)]
        best.append(min(costs))
        assert [row["cost_usd_per_hour"] for row in (alone, split) if row["cheapest"]] == [min(costs)]
    sweep = answered("whatif", workload, "--vary", "isl=300,2400", "--vary", "rate=10,80", "--jobs", 1, "--no-gap")
    assert [row["cost_usd_per_hour"] for row in sweep["rows"]] == pytest.approx(best)
    assert len(re.findall(r'<rect x=[^>]*class="(?:alone|split)-[1-8]"', page.read_text("utf-8"))) == 4
    with table.open(encoding="utf-8", newline="") as stream:
        assert [line["shape"] for line in csv.DictReader(stream)] == ["colocated", "disaggregated"] * 4


def program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pdplan", *map(str, arguments)]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent_and_a_sweep_goes_on_where_it_was(
    end: signal.Signals, workload: Path, tmp_path: Path
) -> None:
    log, rows = tmp_path / "sweep.log", 16
    question = ("whatif", workload, "--vary", f"rate=1:60:{rows}", "--no-gap")
    asked = program(*question, "--jobs", 2, "--verify", 0, "--json", "--resume", log)
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as parent:
        while parent.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < 2):
            time.sleep(0.02)
        parent.send_signal(end)
        shown, said = parent.communicate(timeout=60)  # ends when the last worker has closed its streams
    assert parent.returncode == (130 if end is signal.SIGINT else -end)
    assert shown == b""
    assert (b"pdplan: error: interrupted\n" in said) == (end is signal.SIGINT)
    assert b"Traceback" not in said
    assert b"resource_tracker" not in said
    assert 0 < log.read_bytes().count(b"\n") - 1 < rows
    assert answered(*question, "--jobs", 1, "--resume", log)["rows"] == answered(*question, "--jobs", 1)["rows"]
    numbers = [json.loads(line)["number"] for line in log.read_bytes().splitlines()[1:]]
    assert sorted(numbers) == list(range(rows))


CLUSTER = """
import sys
from distributed import LocalCluster
from pdplan.cli import run
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        run([*sys.argv[1:], "--address", cluster.scheduler_address])
"""


def test_one_core_two_cores_and_two_nodes_give_the_same_table(workload: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER, "utf-8")
    varied = ("--vary", "price.A100-80=0.5,4", "--vary", "rate=10,40")
    asked = ("whatif", str(workload), "--json", "--no-gap", "--verify", "1", *varied)
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    tables = [
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=here).stdout
        for command in (program(*asked, "--jobs", 2), [sys.executable, str(script), *asked])
    ]
    table = CliRunner().invoke(cli, [*asked, "--jobs", "1"], standalone_mode=False).stdout_bytes
    assert len(json.loads(table)["rows"]) == 4
    assert tables == [table, table]


# --- sweeps: the same rows after a killed worker, and after a journal that was cut short

KEY = "squares"


def square(task: Task) -> Answer:
    scenario, _ = task
    return Answer(Status.FEASIBLE, goodput=scenario.changes["x"] ** 2)


def squares(
    count: int, executor: Executor, jobs: int, journal: Journal, solve: Callable[[Task], Answer] = square
) -> list[float]:
    scenarios = tuple(Scenario("", {"x": x}) for x in range(count))
    sweep = Sweep(scenarios, solve, ScenarioEffort.SIMPLE, 0, KEY)
    return [item.answer.goodput for item in run_sweep(sweep, executor, jobs, journal)]


EXPECTED = [x * x for x in range(40)]


def is_killed_at_27(task: Task) -> Answer:
    if task[0].changes["x"] == 27:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(task)


def test_a_killed_worker_is_no_bug_and_loses_no_row_that_was_done(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sweep.jsonl", KEY)
    with pytest.raises(InputError, match=r"process of --jobs 2 was killed.*; use fewer --jobs"):  # noqa: SIM117
        with local_executor(2) as executor:
            squares(40, executor, 2, journal, is_killed_at_27)
    with ThreadPoolExecutor(1) as executor:
        assert squares(40, executor, 1, journal) == EXPECTED


@settings(max_examples=40)
@given(st.data())
def test_a_journal_cut_anywhere_costs_only_the_rows_behind_the_cut(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "sweep.jsonl", KEY)
        with ThreadPoolExecutor(1) as executor:
            squares(40, executor, 1, journal)
            content = journal.path.read_bytes()
            cut = data.draw(st.integers(content.index(b"\n") + 1, len(content)))
            journal.path.write_bytes(content[:cut])
            assert squares(40, executor, 1, journal) == EXPECTED
        lines = [json.loads(line) for line in journal.path.read_bytes().splitlines()]
        assert sorted(line["number"] for line in lines[1:]) == list(range(40))


def test_a_journal_of_another_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    with ThreadPoolExecutor(1) as executor:
        squares(3, executor, 1, Journal(path, KEY))
    with pytest.raises(InputError, match="holds another sweep"):
        Journal(path, "other").begin()
    path.write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(InputError, match=r"sweep.jsonl is no journal of a sweep, and is left as it is"):
        Journal(path, KEY).begin()
