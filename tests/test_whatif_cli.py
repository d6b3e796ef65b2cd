"""`pdplan whatif` and `pdplan frontier` as users run them: tables, files, refusals, restarts, and a cluster."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from optimizer.fleets.fleet import gpu_cost, within_limits
from optimizer.plans.proof import OPTIMAL_GAP
from pdplan.cli import cli, run
from reports.rows import flat_rows
from search_spaces.loader import problem_of
from search_spaces.problem import Billing

ROOT = Path(__file__).resolve().parent.parent

WORKLOAD = """\
schema: pdplan.workload/1
model: Llama-3.1-8B
workload:
  request_rate: 20/s
  max_tokens: 8192
  lengths: {histogram: [{isl: 800, osl: 150, share: 0.7}, {isl: 3000, osl: 80, share: 0.3}]}
slo: {ttft: 1s, tpot: 50ms}
accelerators: [{name: H100, price: 3}, {name: A100-80, price: 2}, {name: L4, price: 0.7}]
search: {preset: quick, tensor_parallel: [1, 2], max_num_seqs: [32, 128]}
scenarios:
  june: {rate_scale: 2}
  tight: {extends: june, slo: {ttft: 500ms}}
"""
AXES = ("--vary", "price.A100-80=0.5:4:4", "--vary", "rate=10,40")


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "workload.yaml"
    path.write_text(WORKLOAD, "utf-8")
    return path


def answered(*arguments: object, code: int = 0, verify: int = 0) -> dict[str, Any]:
    asked = [*map(str, arguments), "--verify", str(verify), "--json"]
    done = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert (done.exception, done.return_value) == (None, code), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([*map(str, arguments)]) == 2
    message = capsys.readouterr().err
    assert len(message.strip().splitlines()) == 1
    return message


def test_rows_come_in_grid_order_with_what_varied(workload: Path) -> None:
    found = answered("whatif", workload, *AXES, "--jobs", 1)
    assert (found["schema"], found["search"], found["simulated"]) == ("pdplan.whatif/2", "full", False)
    rows = found["rows"]
    prices = [0.5, 0.5 + 3.5 / 3, 0.5 + 7.0 / 3, 4.0]
    assert [(row["price.A100-80"], row["rate"]) for row in rows] == [
        (pytest.approx(price), rate) for price in prices for rate in (10, 40)
    ]
    assert [row["number"] for row in rows] == list(range(8))
    for row in rows:
        assert row["status"] == ("optimal" if row["gap"] <= OPTIMAL_GAP else "feasible")
        assert 0.0 <= row["gap"] < 1.0
        assert row["bound_usd_per_hour"] == pytest.approx(row["cost_usd_per_hour"] * (1.0 - row["gap"]))
        assert all(pool["max_num_seqs"] and pool["max_num_batched_tokens"] for pool in row["pools"])
        assert row["goodput_per_dollar"] == pytest.approx(row["goodput_rps"] * 3600 / row["cost_usd_per_hour"])
        assert row["goodput_rps"] >= row["rate"]
        assert row["gpus"]
        assert sum(pool["gpus"] for pool in row["pools"]) == sum(row["gpus"].values())
        assert sum(pool["usd_per_hour"] for pool in row["pools"]) == pytest.approx(row["cost_usd_per_hour"])
        assert row["binding"]
    assert set(rows[0]["gpus"]) == {"A100-80"}
    assert set(rows[-1]["gpus"]).isdisjoint({"A100-80"})


def test_scenarios_of_the_file_compose_with_axes(workload: Path) -> None:
    rows = answered("whatif", workload, "--scenario", "all", "--vary", "price.H100=2,9", "--jobs", 1)["rows"]
    assert [(row["scenario"], row["price.H100"]) for row in rows] == [
        ("june", 2), ("june", 9), ("tight", 2), ("tight", 9),
    ]  # fmt: skip
    assert rows[2]["cost_usd_per_hour"] >= rows[0]["cost_usd_per_hour"]


def test_a_scenario_without_a_fleet_is_a_row_and_no_error(workload: Path) -> None:
    rows = answered("whatif", workload, "--vary", "budget=0.1,100", "--jobs", 1)["rows"]
    assert rows[0]["status"] == "infeasible"
    assert (rows[0]["cost_usd_per_hour"], rows[0]["gpus"], rows[0]["pools"]) == (None, {}, [])
    assert rows[0]["binding"].startswith("budget of fleet: ")
    assert rows[0]["binding"].endswith(" needed, but the budget is $0.10/h.")
    none = answered("whatif", workload, "--vary", "ttft=1ms", "--jobs", 1, code=3)["rows"]
    assert "below the physical floor" in none[0]["binding"]


def test_no_engine_at_all_is_a_row_too(workload: Path) -> None:
    rows = answered("whatif", workload, "--vary", "model.name=Llama-3.1-8B,Llama-3.1-405B", "--jobs", 1)["rows"]
    assert [row["status"] for row in rows] == [rows[0]["status"], "infeasible"]
    assert "runs on no engine" in rows[1]["binding"]


def test_long_sweeps_are_of_fleets_of_few_pools_unless_they_are_asked_for(
    workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("whatif", workload, "--vary", "price.H100=2,3,4", "--jobs", 1)
    (few, *_), full = answered(*asked)["rows"], answered(*asked, "--full")
    monkeypatch.setattr("optimizer.whatif.sweep.MOST_FULL", 2)
    simple, again = answered(*asked)["rows"][0], answered(*asked, "--gap")
    assert (few["gap"] is None, simple["gap"]) == (False, None)
    assert full["rows"] == again["rows"]
    assert few["cost_usd_per_hour"] <= simple["cost_usd_per_hour"] * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "nothing is asked"),
        (("--vary", "price.H300=1"), "'H300' is not one of H100, A100-80, L4"),
        (("--vary", "price.H100=-1:2:3"), "price: -1.0 is out of range"),
        (("--vary", "rate=1:2"), "a range is LOW:HIGH:COUNT"),
        (
            ("--vary", "rate=1:9:101", "--vary", "ttft=1:2:100"),
            "the axes make 10,100 scenarios; more than 10,000 need --resume LOG",
        ),
        (("--scenario", "jnue"), "did you mean 'june'"),
        (("--backend", "dask", "--vary", "rate=1"), "--address"),
        (("--break-even", "weight_dtype"), "has no order"),
        (("--break-even", "with", "--between", "1:2"), "has no order"),
        (("--break-even", "rate", "--csv", "x.csv"), "is for the rows of a sweep or of --chunk"),
        (("--vary", "rate=1", "--between", "1:2"), "--break-even, which is not stated"),
        (("--tornado", "20%", "--simulate", "--verify", "1"), "so it does not go with --simulate; --simulate alone"),
        (("--break-even", "price.H100", "--between", "8:1"), "LOW must be below HIGH"),
        (("--slack", "much"), "is not a share"),
        (
            ("--tornado", "150%"),
            "'150%' is out of range; must be at least 1e-06 and at most 0.999999",
        ),
        (("--break-even", " "), "--break-even ' ' names no lever; state one, such as price.H200"),
        (("--break-even", "prise.H100"), "there is no 'prise'; did you mean 'price'?"),
        (("--break-even", "price.H10O"), "'H10O' is not one of H100, A100-80, L4; did you mean 'H100'?"),
    ],
)
def test_bad_questions_are_refused_in_one_sentence(
    workload: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(capsys, "whatif", workload, *arguments)


def test_a_table_holds_a_row_per_scenario_and_a_column_per_setting(workload: Path, tmp_path: Path) -> None:
    target = tmp_path / "sweep.csv"
    rows = answered("whatif", workload, *AXES, "--jobs", 1, "--csv", target)["rows"]
    with target.open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [float(line["cost_usd_per_hour"]) for line in table] == [row["cost_usd_per_hour"] for row in rows]
    assert [float(line["rate_rps"]) for line in table] == [row["rate"] for row in rows]
    assert [float(line["price.A100-80_usd_per_hour"]) for line in table] == [row["price.A100-80"] for row in rows]
    assert [int(line["gpus.A100-80"]) for line in table] == [row["gpus"].get("A100-80", 0) for row in rows]
    for line, row in zip(table, rows, strict=True):
        for pool in row["pools"]:
            assert line[f"{pool['role']}.gpu"] == pool["accelerator"]
            assert int(line[f"{pool['role']}.max_num_batched_tokens"]) == pool["max_num_batched_tokens"]
    assert not any("[" in value or "{" in value for line in table for value in line.values())
    parquet = pytest.importorskip("pyarrow.parquet")
    answered("whatif", workload, *AXES, "--jobs", 1, "--parquet", tmp_path / "sweep.parquet")
    columns = parquet.read_table(tmp_path / "sweep.parquet").to_pydict()
    assert columns["gap"] == [row["gap"] for row in rows]
    assert list(columns) == list(flat_rows(rows)[0])


def test_a_chunk_trades_ttft_for_tpot_and_large_ones_need_more_replicas(workload: Path, tmp_path: Path) -> None:
    page, table = tmp_path / "chunk.html", tmp_path / "chunk.csv"
    asked = ("whatif", workload, "--chunk", "128,512,4096", "--html", page, "--csv", table)
    found = answered(*asked, verify=1)["chunks"]
    sizes = [row["chunk_tokens"] for row in found["rows"]]
    assert {128, 512, 4096, found["own_chunk"]} == {*sizes}
    assert sizes == sorted(sizes)
    own = next(row for row in found["rows"] if row["chunk_tokens"] == found["own_chunk"])
    assert (own["outcome"], own["simulated"]) == ("meets", True)
    assert own["cost_needed_usd_per_hour"] == pytest.approx(found["cost_usd_per_hour"])
    first, last = found["rows"][0]["classes"][0], found["rows"][-1]["classes"][0]
    if found["role"] == "colocated":
        assert first["tpot_s"]["p90"] < last["tpot_s"]["p90"]
    assert page.read_text("utf-8").count('<svg class="chart"') == 2
    with table.open(encoding="utf-8", newline="") as stream:
        assert [int(line["chunk_tokens"]) for line in csv.DictReader(stream)] == sizes
    text = CliRunner().invoke(cli, ["whatif", str(workload), "--chunk", "512", "--verify", "0"], standalone_mode=False)
    assert text.stdout.startswith("The cheapest fleet takes prompts in chunks of ")
    assert "TTFT, TPOT and SLO met: by formula, at p" in " ".join(text.stdout.split())


def test_bad_chunks_are_refused(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--chunk 'many' is not a list of whole numbers" in refused(capsys, "whatif", workload, "--chunk", "many")
    assert "max_num_batched_tokens" in refused(capsys, "whatif", workload, "--chunk", "99999999999")


def test_a_map_has_the_cheapest_fleet_of_each_shape_in_every_cell(workload: Path, tmp_path: Path) -> None:
    page, table = tmp_path / "map.html", tmp_path / "map.csv"
    asked = ("map", workload, "--over", "isl=300,2400", "--over", "rate=10,80", "--jobs", 1)
    found = answered(*asked, "--html", page, "--csv", table)
    assert (found["schema"], found["over"]) == ("pdplan.map/1", ["isl", "rate"])
    cells = found["cells"]
    assert [(cell["isl"], cell["rate"]) for cell in cells] == [(300, 10), (300, 80), (2400, 10), (2400, 80)]
    for cell in cells:
        costs = {shape: cell[shape]["cost_usd_per_hour"] for shape in ("colocated", "disaggregated")}
        assert {pool["role"] for pool in cell["colocated"]["pools"]} == {"colocated"}
        assert {pool["role"] for pool in cell["disaggregated"]["pools"]} == {"prefill", "decode"}
        assert costs[cell["cheapest"]] == min(costs.values())
        difference = costs["disaggregated"] / costs["colocated"] - 1.0
        assert cell["disaggregated_over_colocated"] == pytest.approx(difference)
    sweep = answered("whatif", workload, "--vary", "isl=300,2400", "--vary", "rate=10,80", "--jobs", 1, "--no-gap")
    best = [cell[cell["cheapest"]]["cost_usd_per_hour"] for cell in cells]
    assert [row["cost_usd_per_hour"] for row in sweep["rows"]] == pytest.approx(best)
    assert len(re.findall(r'<rect x=[^>]*class="(?:alone|split)-[1-8]"', page.read_text("utf-8"))) == 4
    with table.open(encoding="utf-8", newline="") as stream:
        assert [line["shape"] for line in csv.DictReader(stream)] == ["colocated", "disaggregated"] * 4


def test_a_map_is_over_two_levers(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = "--over takes two levers, such as isl,rate; found 1: 'rate'"
    assert one in refused(capsys, "map", workload, "--over", "rate")
    three = "found 3: 'price.H100=2,6, rate=5:20:3, isl=500'"
    assert three in refused(capsys, "map", workload, "--over", "price.H100=2,6,rate=5:20:3,isl=500")
    assert "did you mean 'price'" in refused(capsys, "map", workload, "--over", "rate,prise.H100")
    none = "--over budget: the file has no value of it; state some, such as --over budget=20,40,80"
    assert none in refused(capsys, "map", workload, "--over", "rate,budget")


def test_the_page_has_a_cell_for_every_scenario_and_all_rows(workload: Path, tmp_path: Path) -> None:
    page = tmp_path / "sweep.html"
    found = answered("whatif", workload, *AXES, "--jobs", 1, "--html", page)
    text = page.read_text("utf-8")
    twin = re.search(r'<script type="application/json" id="result">(.*?)</script>', text, re.S)
    assert twin is not None
    assert json.loads(twin[1]) == found
    assert len(re.findall(r'<rect [^>]*class="heat-[1-8]"', text)) == len(found["rows"])
    assert "http" not in text.split("</style>", 1)[1].split("<script", 1)[0]
    costs = [row["cost_usd_per_hour"] for row in found["rows"]]
    assert f"8 scenarios: the cheapest fleet costs ${min(costs):.2f}/h to ${max(costs):.2f}/h" in text


def test_the_curve_prints_and_writes_its_steps(workload: Path, tmp_path: Path) -> None:
    target = tmp_path / "rate.csv"
    found = answered("frontier", workload, "--over", "rate", "--between", "10:60", "--csv", target)
    assert (found["schema"], found["over"], found["unit"]) == ("pdplan.frontier/2", "rate", "req/s")
    assert (found["steps"][0]["easiest"], found["steps"][-1]["hardest"]) == (10.0, 60.0)
    with target.open(encoding="utf-8", newline="") as stream:
        assert [float(row["rate.to_rps"]) for row in csv.DictReader(stream)] == [
            one["hardest"] for one in found["steps"]
        ]
    assert answered("frontier", workload, "--over", "rate", "--between", "600/min:60/s")["steps"] == found["steps"]


def test_between_is_in_units_of_what_varies(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = answered("frontier", workload, "--over", "budget", "--between", "3:$6")["steps"]
    costs = [one["budget_usd_per_hour"] for one in budget]
    assert costs == sorted(costs)
    assert sum(cost < 3.0 for cost in costs) <= 1
    assert max(costs) <= 6.0
    beyond = answered("whatif", workload, "--vary", f"rate={1.01 * budget[-1]['rate_rps']}", "--jobs", 1, "--no-gap")
    assert beyond["rows"][0]["cost_usd_per_hour"] > 6.0
    ttft = answered("frontier", workload, "--over", "ttft", "--between", "1900ms:2s")
    assert (ttft["steps"][0]["easiest"], ttft["steps"][-1]["hardest"]) == (2.0, 1.9)
    ended = refused(capsys, "frontier", workload, "--over", "attainment", "--between", "0.9:1")
    assert "goals are below 1" in ended
    assert "not above zero" in refused(capsys, "frontier", workload, "--over", "budget", "--between", "-1:3")
    said = refused(capsys, "frontier", workload, "--over", "ttft", "--between", "1/s:2/s")
    assert "--between '1/s:2/s' is not LOW:HIGH in units of ttft: '1/s' has the unit '/s', but a duration is in" in said
    assert "in units of price.H100" in refused(
        capsys, "whatif", workload, "--break-even", "price.H100", "--between", "1ms:2ms"
    )


def test_reasons_stand_below_the_table_and_not_among_the_fleets(workload: Path) -> None:
    def text(*arguments: object, code: int) -> str:
        done = CliRunner().invoke(cli, [*map(str, arguments), "--verify", "0"], standalone_mode=False)
        assert (done.exception, done.return_value) == (None, code), done.output
        return " ".join(done.stdout.split())

    sweep = text("whatif", workload, "--vary", "budget=0.1,0.2,100", "--jobs", 1, "--no-gap", code=0)
    assert "No fleet at budget $0.10/h (nor at 1 other): $" in sweep
    assert "$0.10/h none found – – –" in sweep
    shadow = text("whatif", workload, "--shadow-prices", "--set", "constraints.budget=0.1", code=3)
    assert shadow.startswith("No fleet meets the SLO, so no limit has a price. $")
    assert "needed, but the budget is $0.10/h." in shadow
    curve = text("frontier", workload, "--over", "ttft", "--between", "1ms:2ms", code=3)
    assert "No fleet meets the SLO from 2 ms to 1 ms." in curve
    slack = text("whatif", workload, "--slack", "5%", "--set", "constraints.budget=0.1", code=3)
    assert "Cheapest: no fleet. $" in slack


def test_along_other_levers_than_prices_nothing_is_simulated_and_that_is_said(workload: Path) -> None:
    def text(*arguments: object) -> str:
        done = CliRunner().invoke(cli, ["whatif", str(workload), *map(str, arguments)], standalone_mode=False)
        return " ".join(done.stdout.split())

    rate = text("--break-even", "rate", "--between", "19/s:21/s", "--verify", 2)
    assert "rate from to GPUs cost from to replicas × GPU" in rate
    assert " 19 req/s " in rate
    assert "Not simulated: --verify is for fleets along a price, not along rate." in rate
    assert "pdplan frontier --over rate shows how far each meets the SLO" in rate
    price = text("--break-even", "price.H100", "--between", "3:4", "--verify", 0)
    assert "Not simulated: a fleet may miss the SLO in simulation" in price
    assert " $3.00/h " in price


def test_owned_gpus_are_used_first_and_more_are_rented_at_full_price(workload: Path) -> None:
    """As `optimize` has it; at a rate that three A100s carry, and two with one rented."""
    workload.write_text(WORKLOAD.replace("20/s", "15/s"), "utf-8")
    rows = answered("whatif", workload, "--vary", "owned.A100-80=0,2,64", "--jobs", 1, "--no-gap")["rows"]
    costs = [row["cost_usd_per_hour"] for row in rows]
    assert costs[0] > costs[1] > costs[2], rows
    assert set(rows[2]["gpus"]) == {"A100-80"}
    assert costs[2] == pytest.approx(rows[2]["gpus"]["A100-80"] * 0.052)
    assert rows[1]["gpus"] == {"A100-80": 3}
    assert costs[1] == pytest.approx(2.0 + 2 * 0.052)
    pools = [[(pool["accelerator"], pool["gpus"], pool["usd_per_hour"]) for pool in row["pools"]] for row in rows]
    assert [sum(price for _, _, price in pool) for pool in pools] == pytest.approx(costs)
    for owned, row, has in zip((0, 2, 64), rows, pools, strict=True):
        asked = ["optimize", str(workload), "--effort", "quick", "--set", f"accelerators.1.owned={owned}", "--json"]
        plan = json.loads(CliRunner().invoke(cli, asked, standalone_mode=False).stdout)
        assert plan["cost_usd_per_hour"] == pytest.approx(row["cost_usd_per_hour"])
        assert [(pool["accelerator"], pool["gpus"]) for pool in plan["pools"]] == [pool[:2] for pool in has]


def test_a_pool_may_be_owned_in_part() -> None:
    problem = problem_of(
        yaml.safe_load(WORKLOAD) | {"accelerators": [{"name": "H100", "price": 3, "owned": 4, "owned_price": 0.1}]},
        "owned",
        Path(),
    )
    gpus = np.array([[3], [6], [5]])
    assert gpu_cost(problem, gpus).tolist() == pytest.approx([0.3, 6.4, 3.4])
    scarce = replace(problem, offers=(replace(problem.offers[0], inventory=1),))
    assert within_limits(scarce, gpus).tolist() == [True, False, True]
    by_node = replace(problem, offers=(replace(problem.offers[0], billing=Billing.NODE),))
    assert gpu_cost(by_node, gpus).tolist() == pytest.approx([0.3, 24.0, 24.0])


def program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pdplan", *map(str, arguments)]


def test_a_sweep_killed_in_the_middle_goes_on_and_gives_the_same_table(workload: Path, tmp_path: Path) -> None:
    log = tmp_path / "sweep.log"
    rows = 12
    question = ("whatif", workload, "--vary", f"rate=5:60:{rows}", "--jobs", 1, "--no-gap")
    whole, asked = answered(*question), program(*question, "--verify", 0, "--json")
    with subprocess.Popen([*asked, "--resume", str(log)], stdout=subprocess.DEVNULL, cwd=ROOT) as killed:
        while killed.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < 3):
            time.sleep(0.02)
        killed.kill()
    kept = log.read_bytes().count(b"\n") - 1
    assert 0 < kept < rows
    again = json.loads(subprocess.run([*asked, "--resume", str(log)], capture_output=True, check=True, cwd=ROOT).stdout)
    assert again["rows"] == whole["rows"]
    numbers = [json.loads(line)["number"] for line in log.read_bytes().splitlines()[1:]]
    assert sorted(numbers) == list(range(rows))


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent_whatever_ends_it(end: signal.Signals, workload: Path, tmp_path: Path) -> None:
    log = tmp_path / "sweep.log"
    asked = program("whatif", workload, "--vary", "rate=1:60:24", "--jobs", 2, "--no-gap", "--verify", 0)
    with subprocess.Popen(
        [*asked, "--resume", str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as parent:
        while parent.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < 2):
            time.sleep(0.02)
        parent.send_signal(end)
        shown, said = parent.communicate(timeout=60)  # ends when the last worker has closed its streams
    assert parent.returncode == (130 if end is signal.SIGINT else -end)
    assert shown == b""
    assert (b"pdplan: error: interrupted\n" in said) == (end is signal.SIGINT)
    assert b"Traceback" not in said
    assert b"resource_tracker" not in said


CLUSTER = """
import sys
from distributed import LocalCluster
from pdplan.cli import run
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        run([*sys.argv[1:], "--backend", "dask", "--address", cluster.scheduler_address])
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


def test_a_cluster_that_does_not_answer_is_one_sentence(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed")
    asked = ("whatif", workload, "--vary", "rate=1", "--backend", "dask", "--address", "nonsense://x:1")
    assert "no Dask scheduler answers there" in refused(capsys, *asked)
