"""Fleets of the comparison as plans of their own: `--alternative N`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pdplan
from costmodel.words import dollars
from optimizer.plans.plan import Plan, Status
from optimizer.plans.reading import parse_plan
from optimizer.recommend.evaluate import plan_of_alternative
from reports.words import distinct_alternatives
from tests.report_cases import PLANS
from tests.running import tiny, within


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    folder = tmp_path_factory.mktemp("alternatives")
    workload = tiny(folder, accelerators=["H100", "L40S"], workload=LOAD, target="none")
    done = within("optimize", workload, "--effort", "quick", "-o", folder / "plan")
    assert done.returncode == 0, done.stderr
    file = folder / "plan" / "plan.json"
    return file, parse_plan(file.read_bytes())


LOAD = {
    "request_rate": "30/s",
    "max_tokens": 8192,
    "lengths": {"histogram": [{"isl": 800, "osl": 150, "share": 0.8}, {"isl": 3000, "osl": 80, "share": 0.2}]},
}


def test_an_alternative_has_the_cost_and_the_share_of_its_row(written: tuple[Path, Plan]) -> None:
    _, plan = written
    rows = [row for row in distinct_alternatives(plan)[1:] if row.pools]
    assert len(rows) >= 2
    for row in rows:
        other = plan_of_alternative(plan, row)
        assert other.status is Status.STATED
        assert other.cost_usd_per_hour == pytest.approx(row.cost_usd_per_hour)
        assert other.attainment == pytest.approx(row.attainment, abs=1e-9)
        assert sum(pool.gpus for pool in row.pools) == sum(other.gpus.values())


def test_report_compare_simulate_and_deploy_take_it(written: tuple[Path, Plan], tmp_path: Path) -> None:
    file, plan = written
    number, row = next((n, row) for n, row in enumerate(distinct_alternatives(plan), 1) if n > 1 and row.pools)
    shown = within("report", file, "--alternative", number)
    assert row.cost_usd_per_hour is not None
    assert f"for {dollars(row.cost_usd_per_hour)}/h" in shown.stdout
    assert shown.stdout.rstrip().endswith(f"Next: pdplan simulate {file} --alternative {number}")
    compared = json.loads(within("compare", file, "--alternative", number, "--format", "json").stdout)
    assert compared
    served = json.loads(within("simulate", file, "--alternative", number, "--requests", 500, "--json").stdout)
    assert served["requests"] == 500
    deployed = within("deploy", file, "--alternative", number, "--target", "vllm", "-o", tmp_path / "deploy")
    assert deployed.returncode == 0, deployed.stderr


def test_a_number_that_names_no_fleet_is_one_sentence(written: tuple[Path, Plan]) -> None:
    file, plan = written
    count = len(distinct_alternatives(plan))
    beyond = within("report", file, "--alternative", count + 1)
    assert (beyond.returncode, beyond.stdout) == (2, "")
    assert f"--alternative {count + 1}: the plan has {count} fleets;" in beyond.stderr
    assert within("compare", file).returncode == 2
    empty = next(row for row in parse_plan((PLANS / "disaggregated.json").read_bytes()).alternatives if not row.pools)
    with pytest.raises(pdplan.InputError, match="has no fleet"):
        plan_of_alternative(plan, empty)
