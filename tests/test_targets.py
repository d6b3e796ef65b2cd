"""Deployment targets: what their routers can serve, as limits on a search, and plans that are written as they are."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError, UnknownNameError
from optimizer.fleets.fleet import Fleet
from optimizer.plans.plan import Plan
from optimizer.recommend.nearest_miss import _pool_limit
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from optimizer.search.fleet_program import Aim, Matrices, Work, cheapest, pool_limits
from pdplan import options as command_line
from pdplan.cli import run
from reports.deploy import facts
from reports.deploy.deployment import Options
from reports.deploy.files import target_files
from search_spaces.enumeration import Shape, enumerate_shapes, pair_refusal
from search_spaces.loader import load_problem
from search_spaces.problem import (
    TARGET_NAMES,
    TARGETS,
    Balancing,
    Constraints,
    Gateway,
    Pools,
    Problem,
    Routing,
    target_of,
)
from tests.fleet_matrices import random_matrices
from tests.optimizer_cases import offer, problem
from tests.running import tiny
from tests.small_fleets import pool, small

EXACT = Work(gap=0.0)
TWO_CLASSES = [
    {"name": "near", "share": 0.5, "ttft": "1s", "tpot": "50ms"},
    {"name": "far", "share": 0.5, "ttft": "9s", "tpot": "200ms"},
]


def test_what_the_search_knows_of_targets_is_what_the_files_know() -> None:
    assert TARGET_NAMES == command_line.TARGETS == tuple(facts.fact("targets"))
    for one in TARGETS:
        assert one.engines == tuple(facts.fact("targets", one.name, "engines"))
    connectors = facts.hand_over_of("dynamo", ())
    assert ("NixlPushConnector" in connectors) is ("vllm" in target_of("dynamo").stage_by_stage)


@pytest.mark.parametrize("gateway", [Gateway(1, 1), Gateway(8, 1), Gateway(1, 8), Gateway(2, 2)])
def test_a_gateway_allows_the_pools_that_it_says(gateway: Gateway) -> None:
    limits = Constraints(gateway=gateway)
    for colocated, prefill, decode in product(range(4), repeat=3):
        roles = [Role.COLOCATED] * colocated + [Role.PREFILL] * prefill + [Role.DECODE] * decode
        one_kind = not (colocated and prefill)
        allowed = one_kind and colocated <= gateway.colocated and max(prefill, decode) <= gateway.apart
        assert limits.fits(roles) is allowed


def with_gateway(matrices: Matrices, gateway: Gateway) -> Matrices:
    """Random matrices behind a router."""
    return replace(matrices, pool_limits=pool_limits(problem(constraints=Constraints(gateway=gateway)), matrices.role))


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.sampled_from([Gateway(1, 1), Gateway(8, 1), Gateway(1, 8)]))
def test_a_router_allows_fewer_fleets(seed: int, gateway: Gateway) -> None:
    """None is cheaper than without a router, and it fits behind it."""
    free = random_matrices(seed, columns=6)
    behind = with_gateway(free, gateway)
    routed, anyway = cheapest(behind, Aim(), EXACT), cheapest(free, Aim(), EXACT)
    assert routed.objective >= anyway.objective * (1.0 - 1e-9)
    count = Counter((Role.PREFILL, Role.DECODE, Role.COLOCATED)[role] for role in behind.role[routed.index])
    assert Constraints(gateway=gateway).fits(count.elements())


class TestStated:
    """`target:` of a workload file."""

    @pytest.mark.parametrize(
        ("target", "engine", "routing", "balancing"),
        [
            ("vllm", "vllm", Routing.THRESHOLD, Balancing.FEWEST_REQUESTS),
            ("sglang", "sglang", Routing.THRESHOLD, Balancing.FEWEST_REQUESTS),
            ("dynamo", "vllm", Routing.THRESHOLD, Balancing.FEWEST_REQUESTS),
            ("llmd", "vllm", Routing.FRACTIONAL, Balancing.FEWEST_TOKENS),
            ("trtllm", "trtllm", Routing.THRESHOLD, Balancing.FEWEST_REQUESTS),
        ],
    )
    def test_its_engine_and_router_are_those_of_the_problem(
        self, tmp_path: Path, target: str, engine: str, routing: Routing, balancing: Balancing
    ) -> None:
        found = load_problem(tiny(tmp_path, target=target))
        assert (found.target, found.engine) == (target, engine)
        limits = found.constraints
        assert (limits.routing, limits.balancing) == (routing, balancing)
        assert limits.gateway == target_of(target).gateway
        again = load_problem(_written(tmp_path, found))
        assert (again.constraints, again.engine, again.target) == (limits, engine, target)

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
    def test_without_one_fleets_are_searched_that_some_target_runs(self, tmp_path: Path, engine: str) -> None:
        found = load_problem(tiny(tmp_path, engine=engine))
        able = [one for one in TARGETS if engine in one.engines]
        for colocated, prefill, decode in product(range(4), repeat=3):
            if (prefill == 0) is not (decode == 0):
                continue  # these serve nothing
            roles = [Role.COLOCATED] * colocated + [Role.PREFILL] * prefill + [Role.DECODE] * decode
            assert found.constraints.fits(roles) is any(Constraints(gateway=one.gateway).fits(roles) for one in able)
        assert (found.target, found.inputs["target"]) == (None, None)
        assert found.constraints.routing is Routing.THRESHOLD
        assert found.constraints.balancing is Balancing.FEWEST_TOKENS
        assert found.inputs["constraints"]["routing"] == "fractional"
        assert load_problem(_written(tmp_path, found)).constraints == found.constraints

    def test_with_none_every_fleet_is_searched(self, tmp_path: Path) -> None:
        apart = {"slo": TWO_CLASSES, "constraints": {"pools": "per_class"}}
        found = load_problem(tiny(tmp_path, target="none", **apart))
        assert (found.target, found.inputs["target"]) == (None, "none")
        assert (found.constraints.gateway, found.constraints.routing) == (None, Routing.FRACTIONAL)
        assert len(found.space.roles) == len(Role)
        again = load_problem(_written(tmp_path, found))
        assert (again.constraints, again.space) == (found.constraints, found.space)
        assert load_problem(tiny(tmp_path, **apart)).space.roles == (Role.COLOCATED,)

    def test_dynamo_counts_the_blocks_of_prompts_where_prefixes_are_shared(self) -> None:
        tokens = Balancing.FEWEST_TOKENS
        assert target_of("dynamo").balancing(tokens, prefixes=True) is tokens
        assert target_of("dynamo").balancing(tokens, prefixes=False) is Balancing.FEWEST_REQUESTS

    def test_an_engine_that_it_does_not_run_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"target: trtllm runs trtllm, but engine: vllm is stated; leave it out"):
            load_problem(tiny(tmp_path, target="trtllm", engine="vllm"))
        assert load_problem(tiny(tmp_path, target="dynamo", engine="sglang")).engine == "sglang"

    def test_unknown_targets_offer_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"target: .*'dynmo'.*did you mean 'dynamo'"):
            load_problem(tiny(tmp_path, target="dynmo"))
        with pytest.raises(UnknownNameError, match="did you mean 'vllm'"):
            target_of("vlm")

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


class TestEngines:
    """Engines that a target cannot run are no part of the search."""

    def test_gpus_that_no_files_ask_for(self) -> None:
        both = problem(offers=(offer("H100"), offer("MI300X")))
        found = enumerate_shapes(replace(both, target="dynamo"))
        assert {shape.offer for shape in found.shapes} == {0}
        assert "MI300X: the files of dynamo ask for devices of nvidia, not of amd" in found.dropped
        assert {shape.offer for shape in enumerate_shapes(both).shapes} == {0, 1}

    def test_gpus_that_no_files_ask_for_are_no_problem_at_all_alone(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"not of amd; leave the target out, or state other accelerators"):
            load_problem(tiny(tmp_path, target="dynamo", accelerators=["MI300X"]))

    @pytest.mark.parametrize(("target", "engine", "talks"), [("dynamo", "vllm", False), ("dynamo", "sglang", True)])
    def test_pipelines_that_hand_over(self, target: str, engine: str, *, talks: bool) -> None:
        one = Shape(0, Parallelism(1, 1), "bf16", "bf16")
        stages = replace(one, parallelism=Parallelism(1, 2))
        asked = problem(target=target, engine=engine)
        assert (pair_refusal(asked, stages, one) is None) is talks
        assert pair_refusal(replace(asked, target=None), stages, one) is None


def _written(folder: Path, found: Problem) -> Path:
    path = folder / "again.yaml"
    path.write_text(json.dumps(found.inputs))
    return path


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


@pytest.mark.parametrize("target", ["vllm", "dynamo", "llmd"])
def test_a_plan_for_a_target_is_one_that_it_runs(tmp_path: Path, target: str, free: Plan) -> None:
    mine = optimize(load_problem(tiny(tmp_path, **SEVERAL, target=target)), level=Level.QUICK)
    assert free.cost_usd_per_hour is not None
    assert mine.cost_usd_per_hour is not None
    assert mine.cost_usd_per_hour >= free.cost_usd_per_hour
    assert target_files(mine, Options(target, facts.checked_version(target, None)))


def test_more_pools_than_the_router_serves_are_said_to_be_in_the_way() -> None:
    limits = Constraints(gateway=Gateway(1, 1))
    instance = replace(small(), problem=replace(small().problem, constraints=limits, target="llmd"))
    pools = tuple(pool(instance, f"colocated-{number}", Role.COLOCATED, 1) for number in (1, 2))
    (row,) = _pool_limit(instance, Fleet(pools))
    assert (row.constraint, row.used, row.limit) == ("gateway", 2.0, 1.0)
    assert row.sentence == "2 pools are needed where the router of llmd serves 1."
    assert not _pool_limit(instance, Fleet(pools[:1]))


def test_the_command_line_writes_what_was_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plan, deployed = tiny(tmp_path), tmp_path / "plan", tmp_path / "deployed"
    asked = ["optimize", str(file), "--effort", "quick", "-q", "--target", "dynamo"]
    assert run([*asked, "-o", str(plan), "--deploy", str(deployed)]) == 0
    assert "vllm (target dynamo)" in " ".join(capsys.readouterr().out.split())
    assert (deployed / "dgd.yaml").exists()
    assert run(["deploy", str(plan / "plan.json"), "-q", "-o", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "dgd.yaml").exists()
    assert run(["optimize", str(file), "-q", "--set", "engine=sglang", "--target", "llmd"]) == 2
