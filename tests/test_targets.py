"""Deployment targets: what a workload file states of them, and plans that are written as they are."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.loads.effort import Level
from optimizer.plans.plan import Plan
from optimizer.recommend.optimize import optimize
from pdplan.api import deployment_options
from pdplan.cli import run
from reports.deploy.deployment import default_options, fact
from reports.deploy.files import target_files
from search_spaces.bounds import TARGET_NAMES
from search_spaces.engines import ENGINES
from search_spaces.loader import load_problem
from search_spaces.problem import TARGETS, Balancing, Pools, target_of
from tests.running import tiny

ROOT = Path(__file__).parents[1]
TWO_CLASSES = [
    {"name": "near", "share": 0.5, "ttft": "1s", "tpot": "50ms"},
    {"name": "far", "share": 0.5, "ttft": "9s", "tpot": "200ms"},
]


def test_what_the_search_knows_of_targets_is_what_the_files_know() -> None:
    assert tuple(target.name for target in TARGETS) == TARGET_NAMES
    assert set(ENGINES) == set(fact("engines")) <= set(TARGET_NAMES)
    for name, entry in fact("targets").items():
        assert set(target_of(name).engines) == set(entry.get("engines", target_of(name).engines))
    connectors = fact("targets", "dynamo", "connectors")
    assert ("NixlPushConnector" in connectors) is ("vllm" in target_of("dynamo").stage_by_stage)


@pytest.mark.parametrize("path", [*(ROOT / "reports" / "deploy").glob("*.py"), *(ROOT / "templates").rglob("*.j2")])
def test_nothing_asks_for_an_engine_or_a_target_by_name(path: Path) -> None:
    """What sets one apart is data of its entry in targets.yaml."""
    text = path.read_text("utf-8")
    quoted = set(re.findall(r"""["']([^"'\\s]+)["']""", text))
    if path.suffix == ".py":
        quoted = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert not quoted & {*ENGINES, *TARGET_NAMES}


class TestStated:
    """`target:` of a workload file."""

    @pytest.mark.parametrize(
        ("target", "engine", "balancing"),
        [
            ("vllm", "vllm", Balancing.LEAST_REQUESTS),
            ("sglang", "sglang", Balancing.LEAST_REQUESTS),
            ("dynamo", "vllm", Balancing.LEAST_REQUESTS),
            ("llm-d", "vllm", Balancing.LEAST_TOKENS),
            ("trtllm", "trtllm", Balancing.LEAST_REQUESTS),
        ],
    )
    def test_its_engine_and_router_are_those_of_the_problem(
        self, tmp_path: Path, target: str, engine: str, balancing: Balancing
    ) -> None:
        found = load_problem(tiny(tmp_path, target=target))
        assert (found.target, found.engine) == (target, engine)
        limits = found.constraints
        assert limits.balancing is balancing
        assert limits.gateway == target_of(target).gateway
        (tmp_path / "again.yaml").write_text(json.dumps(found.inputs))
        again = load_problem(tmp_path / "again.yaml")
        assert (again.constraints, again.engine, again.target) == (limits, engine, target)

    def test_classes_with_pools_of_their_own_need_a_router_that_tells_them_apart(self, tmp_path: Path) -> None:
        apart = {"slo": TWO_CLASSES, "constraints": {"pools": "per_class"}}
        with pytest.raises(
            InputError, match=r"per_class needs a router .* NVIDIA Dynamo has none; .*\(vllm, sglang and trtllm\)"
        ):
            load_problem(tiny(tmp_path, target="dynamo", **apart))
        with pytest.raises(InputError, match=r"vLLM tells SLO classes apart for colocated pools alone"):
            load_problem(tiny(tmp_path, target="vllm", search={"roles": ["prefill", "decode"]}, **apart))
        found = load_problem(tiny(tmp_path, target="vllm", **apart))
        assert (found.space.roles, found.constraints.gateway) == ((Role.COLOCATED,), None)
        assert found.constraints.pools is Pools.PER_CLASS


SEVERAL: dict[str, Any] = {
    "model": {"name": "Llama-3.1-8B"},
    "accelerators": ["H100", "L4"],
    "slo": {"ttft": "1s", "tpot": "80ms"},
    "workload": {
        "request_rate": 30,
        "lengths": {"histogram": [{"isl": 100, "osl": 100, "share": 0.7}, {"isl": 4000, "osl": 100, "share": 0.3}]},
    },
    "search": {"preset": "quick", "tensor_parallel": [1]},
}
"""Short requests that the small GPUs serve for less than the large ones, and long ones that they are too slow for."""


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan for no target."""
    return optimize(load_problem(tiny(tmp_path_factory.mktemp("free"), **SEVERAL)), level=Level.QUICK)


@pytest.mark.parametrize("target", ["vllm", "dynamo", "llm-d"])
def test_a_plan_for_a_target_is_one_that_it_runs(tmp_path: Path, target: str, free: Plan) -> None:
    mine = optimize(load_problem(tiny(tmp_path, **SEVERAL, target=target)), level=Level.QUICK)
    assert mine.cost_usd_per_hour >= free.cost_usd_per_hour
    assert target_files(mine, default_options(target))


def test_the_command_line_writes_what_was_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plan, deployed = tiny(tmp_path), tmp_path / "plan", tmp_path / "deployed"
    asked = ["optimize", str(file), "--effort", "quick", "-v", "--target", "dynamo"]
    assert run([*asked, "-o", str(plan), "--deploy", str(deployed)]) == 0
    assert "vLLM with NVIDIA Dynamo" in " ".join(capsys.readouterr().out.split())
    assert (deployed / "dgd.yaml").exists()
    assert run(["deploy", str(plan / "plan.json"), "-q", "-o", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "dgd.yaml").exists()
    assert run(["optimize", str(file), "-q", "--set", "engine=sglang", "--target", "llm-d"]) == 2


@pytest.mark.parametrize("name", ["llm-d", "llmd"])
def test_llm_d_may_be_written_either_way(name: str, tmp_path: Path) -> None:
    problem = load_problem(tiny(tmp_path, target=name, constraints={"balancing": "fewest_requests"}))
    assert (problem.inputs["target"], problem.constraints.balancing) == ("llm-d", Balancing.LEAST_REQUESTS)
    plan = optimize(problem, level=Level.QUICK)
    assert deployment_options(plan, target=name).target == "llm-d"
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'imagge'"):
        deployment_options(plan, imagge="x")


@pytest.mark.parametrize(("target", "shared"), [("vllm", True), ("dynamo", False)])
def test_two_gpu_types_share_a_length_where_a_router_splits_it(tmp_path: Path, target: str, shared: bool) -> None:
    """No router tells apart requests of one length; HAProxy splits them at random, whatever their answers."""
    lengths = {"histogram": [{"isl": 1000, "osl": osl, "share": 0.5} for osl in (100, 300)]}
    cards = [{"name": "H100", "inventory": 1}, {"name": "L40S", "inventory": 2}]
    search = {"tensor_parallel": 1, "pipeline_parallel": 1, "roles": ["colocated"]}
    sections = {"slo": {"ttft": "1s", "tpot": "50ms"}, "accelerators": cards, "search": search, "target": target}
    path = tiny(tmp_path, workload={"request_rate": "28/s", "lengths": lengths}, **sections)
    plan = optimize(load_problem(path), level=Level.QUICK)
    assert (set(plan.gpus) == {"H100", "L40S"}) is shared
    assert len({tuple(sorted(route.decode.items())) for route in plan.routing}) == shared
