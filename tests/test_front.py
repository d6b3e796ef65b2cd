"""What a dollar more buys: the front of cost and tail, asked for with --front, in the plan and its views."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from optimizer.plans.plan import Plan
from optimizer.plans.reading import parse_plan
from optimizer.verification import bench as benches
from reports.answers.plan import front_section
from tests.running import Done, tiny, within


def front_rows(plan: Plan) -> tuple[tuple[str, ...], ...]:
    table = front_section(plan).table
    return () if table is None else table.rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("front")


@pytest.fixture(scope="module")
def done(folder: Path) -> Done:
    file = tiny(folder, search={"roles": ["colocated"], "tensor_parallel": [1], "max_num_seqs": [32, 128]})
    with pytest.MonkeyPatch.context() as patch:  # short runs are enough for what is asked here
        patch.setattr(benches, "LEAST_REQUESTS", 1000)
        patch.setattr(benches, "MOST_RELAXED", 1000)
        return within("optimize", file, "--front", "8", "-o", folder / "plan")


@pytest.fixture(scope="module")
def asked(done: Done, folder: Path) -> Plan:
    assert done.returncode == 0, done.stderr
    return parse_plan((folder / "plan" / "plan.json").read_bytes())


def test_the_plan_stays_the_cheapest_that_holds_and_every_view_shows_what_costs_more(
    asked: Plan, done: Done, folder: Path
) -> None:
    assert asked.simulation is not None
    tuning = asked.simulation.tuning
    assert tuning is not None
    assert 2 <= tuning.looks <= 8
    assert tuning.objectives == ["cost", "tail"]
    own = asked.cost_usd_per_hour or 0.0
    held = [fleet for fleet in tuning.front if fleet.outcome == "meets"]
    assert min(fleet.cost_usd_per_hour for fleet in held) >= own - 1e-9
    assert any(fleet.cost_usd_per_hour > own for fleet in held)
    assert all(a.cost_usd_per_hour < b.cost_usd_per_hour and a.tail > b.tail for a, b in pairwise(held))
    assert all(fleet.tail <= 1.0 and len(fleet.served) == len(fleet.pools) for fleet in tuning.front)
    page = (folder / "plan" / "report.html").read_text("utf-8")
    rows = front_rows(asked)
    assert rows[0][-1] == "recommended"
    for row in rows:
        assert row[1] in done.stdout
        assert row[1] in page
        assert row[-1] in {"recommended", "meets the SLO", "misses the SLO", "undecided", "one short run"}
