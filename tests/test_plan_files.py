"""plan.json read back: what no plan says is refused, and what is read is shown."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.words import dollars
from optimizer.plans.plan import Plan, Status, parse_plan
from optimizer.plans.records import engine_counts
from optimizer.recommend.evaluate import plan_of_alternative
from reports.fleets import distinct_alternatives
from reports.question import serving_words
from reports.text import json_text, record_of
from tests.golden_files import assert_golden
from tests.report_cases import PLANS, text_of
from tests.running import demand, tiny, within

FLEET = json.loads((PLANS / "disaggregated.json").read_text("utf-8"))


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The plan with one value replaced."""
    plan = copy.deepcopy(FLEET)
    section: Any = plan
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    return plan


WRONG: tuple[tuple[tuple[str | int, ...], object], ...] = (
    (("cost_usd_per_hour",), -1),
    (("demand_rps",), 0),
    (("pools",), []),
    (("status",), "infeasible"),
    (("attainment",), None),
    (("gpus",), {"H100": 10**400}),
    (("pools", 1, "id"), FLEET["pools"][0]["id"]),
    (("pools", 0, "replicas"), 1),
    (("gpus", "L4"), 1),
    (("workload", "isl"), [1.0]),
    (("cost_usd_per_hour",), "cheap"),
    (("color",), "red"),
    (("status",), "fine"),
    (("workload",), 3),
)
NO_PLANS = (
    b'{"schema": NaN}',
    b"name: chat\n",
    b'{"seed": 1,\n "seed": 2}',
    json.dumps(FLEET).encode("utf-16"),
    gzip.compress(b"{}", mtime=0),
    b"[" * 200_000,
    b"[]",
    b"1.5",
    b"{}",
    b'{"schema": "pdplan.comparison/1"}',
    b'{"schema": "pdplan.plan/3"}',
    b'{"schema": "pdplan.plan/2"}',
)


def refusal(text: bytes) -> str:
    with pytest.raises(InputError) as caught:
        parse_plan(text)
    return str(caught.value)


def test_golden_refusals() -> None:
    """What no plan says, by its place in the file, and what is no plan at all."""
    lines = [refusal(json.dumps(changed(path, value), indent=2).encode()) for path, value in WRONG]
    assert_golden("plan_faults.txt", "\n".join([*lines, *map(refusal, NO_PLANS), ""]))


# --- plans of schema pdplan.plan/1 ----------------------------------------------------------------------------------


BEFORE = PLANS / "schema-1.json"
"""Written by `pdplan optimize --front 4` of the last version of that schema."""


def test_the_whole_request_of_an_earlier_plan_is_a_metric_like_the_others() -> None:
    """It had a limit and simulated quantiles in fields of its own."""
    record = json.loads((PLANS / "schema-1.json").read_bytes())
    times = record["simulation"]["classes"][0]["e2e_s"]
    record["classes"][0]["e2e_limit_s"] = 8.0
    plan = parse_plan(json.dumps(record).encode())
    assert plan.classes[0].limits[Metric.E2E] == 8.0
    assert plan.classes[0].latencies.quantiles[Metric.E2E] == plan.simulation.classes[0].metrics[Metric.E2E]
    assert plan.simulation.classes[0].metrics[Metric.E2E].p90 == times["p90"]
    row = next(line for line in text_of(plan).splitlines() if " e2e " in line)
    assert row.split()[2:6] == ["3.82", "s", "6.2", "s"]


def test_an_earlier_plan_names_its_target_and_its_router_as_plans_do_today() -> None:
    record = json.loads(BEFORE.read_bytes())
    today = parse_plan(json.dumps(record).encode()).provenance.inputs
    inputs = record["provenance"]["inputs"]
    inputs["target"], inputs["constraints"] = "llmd", {**inputs["constraints"], "balancing": "fewest_requests"}
    plan = parse_plan(json.dumps(record).encode())
    named = {"target": "llm-d", "constraints": {**today["constraints"], "balancing": "least-requests"}}
    assert plan.provenance.inputs == {**today, **named}
    assert serving_words(plan) == "vLLM with llm-d"


def test_an_earlier_plan_says_of_its_pools_what_it_said_and_nothing_more() -> None:
    plan = parse_plan(BEFORE.read_bytes())
    assert plan.schema_ == "pdplan.plan/2"
    (own,), (rival,) = plan.pools, next(row.pools for row in plan.alternatives if row.label == "only H100")
    stated = (rival.role, rival.accelerator, rival.replicas, rival.tensor_parallel, rival.gpus)
    assert stated == ("colocated", "H100", 1, 1, 1)
    assert (rival.weight_dtype, rival.kv_dtype) == ("fp8", "bf16")
    limits = (rival.max_num_seqs, rival.max_num_batched_tokens, rival.max_model_len, rival.memory_fraction)
    assert (*limits, rival.usd_per_hour) == (None,) * 5
    (tuned,) = plan.simulation.tuning.front[0].pools
    assert (tuned.max_num_seqs, tuned.max_num_batched_tokens) == (own.max_num_seqs, own.max_num_batched_tokens)
    assert engine_counts(plan.sensitivity.pools) == engine_counts(plan.pools)
    told = text_of(plan, width=100, color=False)
    assert "colocated 1 × H100 TP1 fp8/bf16  " in told  # of the comparison, without limits
    assert "(256/2,048)" in told  # of the front
    assert Plan.model_validate_json(json_text(record_of(plan))) == plan


def test_the_front_has_whole_fleets_in_a_narrow_column() -> None:
    plan = parse_plan(BEFORE.read_bytes())
    simulation = plan.simulation
    point = simulation.tuning.front[0]
    wide = point.pools[0].model_copy(update={"accelerator": "RTX-4090", "weight_dtype": "int4", "replicas": 3})
    pools = [wide.model_copy(update={"role": role}) for role in ("prefill", "decode", "colocated")]
    costly = point.model_copy(update={"pools": pools, "cost_usd_per_hour": 2.0 * plan.cost_usd_per_hour, "tail": 0.9})
    tuning = simulation.tuning.model_copy(update={"front": [costly]})
    plan = plan.model_copy(update={"simulation": simulation.model_copy(update={"tuning": tuning})})
    table = text_of(plan, width=80, color=False).partition("What a dollar more buys")[2].partition("Latencies are")[0]
    assert "RTX-4090" in table
    assert "…" not in table


@pytest.mark.parametrize(
    ("words", "said"), [(["report"], "only H100"), (["simulate", "--requests", "2000"], "Meets the SLO: ")]
)
def test_every_command_takes_an_earlier_plan(words: list[str], said: str) -> None:
    command, *options = words
    done = within(command, BEFORE, *options)
    assert (done.returncode, said in done.stdout + done.stderr) == (0, True), done.stderr


# --- fleets of the comparison as plans of their own: `--alternative N`


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    folder = tmp_path_factory.mktemp("alternatives")
    workload = tiny(folder, accelerators=["H100", "L40S"], workload=demand("30/s"), target="none")
    done = within("optimize", workload, "--effort", "quick", "-o", folder / "plan")
    assert done.returncode == 0, done.stderr
    file = folder / "plan" / "plan.json"
    return file, parse_plan(file.read_bytes())


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
    assert f"for {dollars(row.cost_usd_per_hour)}/h" in shown.stdout
    assert shown.stdout.rstrip().endswith(f"Next: pdplan simulate {file} --alternative {number}")
    compared = json.loads(within("compare", file, "--alternative", number, "--format", "json").stdout)
    assert compared
    served = json.loads(
        within("simulate", file, "--alternative", number, "--requests", 500, "--replications", 1, "--json").stdout
    )
    assert served["requests"] == 500
    deployed = within("deploy", file, "--alternative", number, "--target", "vllm", "-o", tmp_path / "deploy")
    assert deployed.returncode == 0, deployed.stderr
