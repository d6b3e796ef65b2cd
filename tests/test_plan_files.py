"""plan.json read back: what no plan says is refused, and what is read is shown."""

from __future__ import annotations

import copy
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.words import dollars
from optimizer.plans.plan import Plan, Status, parse_plan
from optimizer.plans.records import engine_counts
from optimizer.recommend.evaluate import plan_of_alternative
from reports.alternatives import distinct_alternatives
from reports.provenance import serving_words
from reports.text import json_text, record_of
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


WRONG: dict[str, tuple[tuple[str | int, ...], object, str]] = {
    "negative-cost": (("cost_usd_per_hour",), -1, "cost_usd_per_hour: -1 is below 0"),
    "no-demand": (("demand_rps",), 0, "demand_rps: 0 is not above 0"),
    "no-pools": (("pools",), [], "the status is feasible, but pools or cost_usd_per_hour are missing"),
    "pools-of-no-fleet": (("status",), "infeasible", "the status is infeasible, but there are pools"),
    "null-attainment": (("attainment",), None, "attainment"),
    "huge-integer": (("gpus",), {"H100": 10**400}, "gpus.H100"),
    "same-id": (("pools", 1, "id"), FLEET["pools"][0]["id"], "two pools have one id"),
    "replica-less": (("pools", 0, "replicas"), 1, "pools.0.gpus: 8 is not 4, which replicas (1) of 4 GPUs each have"),
    "gpu-of-no-pool": (("gpus", "L4"), 1, "gpus.L4: 1 is not 0, which its pools have"),
    "lengths": (("workload", "isl"), [1.0], "workload.isl, osl and share differ in length"),
    "text": (("cost_usd_per_hour",), "cheap", "cost_usd_per_hour: 'cheap' is not a number"),
    "stranger-key": (("colour",), "red", "colour: is not a known key"),
    "status": (
        ("status",),
        "fine",
        "status: 'fine' is none of 'optimal', 'feasible', 'infeasible', 'time_limit' or 'stated'",
    ),
    "object": (("workload",), 3, "workload: 3 is not a mapping"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_plan_says_is_refused(case: str) -> None:
    path, value, words = WRONG[case]
    text = json.dumps(changed(path, value), indent=2)
    with pytest.raises(InputError) as refusal:
        parse_plan(text.encode(), "my/plan.json")
    said = str(refusal.value)
    assert words in said
    assert "\n" not in said
    place = re.match(r"my/plan\.json:(\d+):(\d+): is not a plan of this version of pdplan: ", said)
    assert place is not None
    line, column = int(place[1]), int(place[2])
    keys, colon, _ = said[place.end() :].partition(": ")
    if colon and " " not in keys:
        assert text.splitlines()[line - 1][: column - 1].strip() == f'"{keys.rpartition(".")[2]}":'
    else:  # the whole plan is at fault
        assert text.splitlines()[line - 1][column - 1] == "{"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"schema": NaN}', ":1:12: {}it is not valid JSON: NaN is not a number there"),
        (b"name: chat\n", ":1:1: {}it is not valid JSON: expecting value"),
        (b'{"seed": 1,\n "seed": 2}', ":2:2: {}seed: stands here again; keep one of them"),
        (json.dumps(FLEET).encode("utf-16"), ": is UTF-16 text; save it as UTF-8"),
        (gzip.compress(b"{}", mtime=0), ": is gzip-compressed; save it as UTF-8"),
        (b"[" * 200_000, ": {}it is nested too deeply"),
        (b"[]", ":1:1: {}it is an array, and a plan is an object with the schema pdplan.plan/2"),
        (b"1.5", ":1:1: {}it is a number, and"),
        (b"{}", ":1:1: {}it names no schema, which for a plan is pdplan.plan/2"),
        (b'{"schema": "pdplan.comparison/1"}', ":1:12: {}schema: is 'pdplan.comparison/1', not pdplan.plan/2"),
        (b'{"schema": "pdplan.plan/3"}', ":1:12: {}schema: is 'pdplan.plan/3', not pdplan.plan/2 or pdplan.plan/1"),
        (b'{"schema": "pdplan.plan/2"}', ":1:1: {}name: is missing"),
    ],
)
def test_what_is_no_json_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_plan(text)
    assert str(refusal.value).startswith("plan.json" + words.format("is not a plan of this version of pdplan: "))


# --- plans of schema pdplan.plan/1 ----------------------------------------------------------------------------------


BEFORE = PLANS / "schema-1.json"
"""Written by `pdplan optimize --front 4` of the last version of that schema."""


def test_the_whole_request_of_an_earlier_plan_is_a_metric_like_the_others() -> None:
    """It had a limit and simulated quantiles in fields of its own."""
    record = json.loads((PLANS / "schema-1.json").read_bytes())
    times = record["simulation"]["classes"][0]["e2e_s"]
    record["classes"][0]["e2e_limit_s"] = 8.0
    plan = parse_plan(json.dumps(record).encode())
    assert plan.simulation is not None
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
    assert plan.simulation is not None
    assert plan.simulation.tuning is not None
    assert plan.sensitivity is not None
    (tuned,) = plan.simulation.tuning.front[0].pools
    assert (tuned.max_num_seqs, tuned.max_num_batched_tokens) == (own.max_num_seqs, own.max_num_batched_tokens)
    assert engine_counts(plan.sensitivity.pools) == engine_counts(plan.pools)
    told = text_of(plan, width=100, color=False)
    assert "colocated 1 × H100 TP1 fp8/bf16  " in told  # of the comparison, without limits
    assert "  fp8/bf16 (256/2,048)" in told  # of the front
    assert Plan.model_validate_json(json_text(record_of(plan))) == plan


@pytest.mark.parametrize(
    ("words", "said"),
    [(["report"], "only H100"), (["simulate", "--requests", "2000"], "Meets the SLO: ")],
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
    assert row.cost_usd_per_hour is not None
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
