"""Colocated pools that take different lengths or classes: a gateway that sends requests where the plan does."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from pdplan.cli import run
from pdplan.exits import ExitCode
from reports.deploy.deployment import Deployment, Lane
from reports.deploy.files import deployment_files
from reports.deploy.gateway import (
    PARTS,
    Rule,
    gateway_rules,
    misplacing,
    placed,
    tolerated,
)
from reports.next_steps import deploy_sentence
from tests.deploy_cases import Ask, Case, classes_plan, deployment_of, options, parted_plan, plan_of


def test_the_edge_lies_between_the_lengths_in_proportion() -> None:
    """512 and 2,048 tokens meet at 1,024, at four bytes each; a tenth of the long prompts go to the small GPUs."""
    deployment = deployment_of(parted_plan(), "vllm")
    assert gateway_rules(deployment) == (
        Rule("colocated-1", 4096),
        Rule("colocated-1", None, PARTS // 10),
        Rule("colocated-2"),
    )
    assert placed(gateway_rules(deployment), 4096.0, "") == {"colocated-1": 1.0}
    assert placed(gateway_rules(deployment), 4097.0, "") == pytest.approx({"colocated-1": 0.1, "colocated-2": 0.9})
    assert misplacing(deployment, gateway_rules(deployment))(4.0) == pytest.approx(0.0, abs=1e-12)


def test_how_far_off_the_assumption_may_be() -> None:
    """Short prompts seem long from 8 bytes per token on, long ones short below 2."""
    deployment = deployment_of(parted_plan(), "vllm")
    worst = misplacing(deployment, gateway_rules(deployment))
    assert tolerated(deployment, gateway_rules(deployment)) == (2.0, 8.0)
    assert worst(8.0) == pytest.approx(0.0, abs=1e-12)
    assert worst(8.001) == pytest.approx(0.9 * 0.5 / 0.45)  # the H100 gets nine in ten of the short prompts too
    assert worst(1.999) == pytest.approx(0.9 * 0.5 / 0.55)  # the L40S get the nine in ten of the long ones
    alone = replace(deployment, lanes=deployment.lanes[:1])
    assert tolerated(alone, (Rule("colocated-1"),)) == (0.0, math.inf)


def test_lanes_of_one_length_get_what_differs_least() -> None:
    """A few requests of a length go to another pool than most: they cannot be told apart, and go with them."""
    deployment = deployment_of(parted_plan(), "vllm")
    first, second = {"colocated-1": 1.0}, {"colocated-2": 1.0}
    lanes = (Lane(512.0, 0.58, first, first), Lane(512.0, 0.02, second, second), Lane(2048.0, 0.4, second, second))
    few = replace(deployment, lanes=lanes)
    assert gateway_rules(few) == (Rule("colocated-1", 4096), Rule("colocated-2"))
    assert misplacing(few, gateway_rules(few))(4.0) == pytest.approx(0.02 / 0.58)


def test_lengths_that_a_gateway_cannot_tell_apart_are_refused() -> None:
    plan = parted_plan()
    first, second = plan.routing
    alike = plan.model_copy(update={"routing": [first, second.model_copy(update={"isl": first.isl})]})
    with pytest.raises(InputError, match=r"a pool would get 81.8 % on top of the requests .* optimize --target vllm$"):
        deployment_files(alike, options("vllm"))
    said = deploy_sentence(alike)
    assert said.startswith("Deploy: not with vLLM: a pool would get 81.8 %")
    assert ". For a plan that vLLM runs: pdplan optimize " in said
    assert said.endswith(" --target vllm")


def test_a_size_that_finds_no_pool_is_misplaced() -> None:
    deployment = deployment_of(parted_plan(), "vllm")
    assert misplacing(deployment, [Rule("colocated-1", 4096)])(4.0) == pytest.approx(0.5)
    assert misplacing(deployment, [])(4.0) == pytest.approx(1.0)
    assert misplacing(deployment, [Rule("elsewhere")])(4.0) == pytest.approx(1.0)


@st.composite
def parted(draw: st.DrawFn) -> Deployment:
    """Any routing by length of three pools: what a plan with fractional routing may say."""
    deployment = deployment_of(plan_of(tuple(Case("colocated", gpu) for gpu in ("H100", "L40S", "H200"))), "vllm")
    lengths = draw(st.lists(st.integers(1, 60_000), min_size=2, max_size=8, unique=True))
    lanes = []
    for length in lengths:
        weights = draw(st.tuples(*[st.sampled_from([0, 0, 1, 2, 7])] * 3).filter(any))
        parts = {pool.name: weight / sum(weights) for pool, weight in zip(deployment.pools, weights, strict=True)}
        lanes.append(Lane(float(length), 1.0 / len(lengths), parts, parts))
    return replace(deployment, lanes=tuple(lanes))


@settings(deadline=None, max_examples=60)
@given(deployment=parted())
def test_every_length_finds_the_pools_of_the_plan(deployment: Deployment) -> None:
    lengths = sorted(lane.isl for lane in deployment.lanes)
    if any(longer < 1.001 * length + 1.0 for length, longer in pairwise(lengths)):
        return  # closer than a byte can tell
    rules = gateway_rules(deployment)
    for lane in deployment.lanes:
        parts = placed(rules, 4.0 * lane.isl, "")
        assert sum(parts.values()) == pytest.approx(1.0)
        for pool in deployment.pools:
            assert parts.get(pool.name, 0.0) == pytest.approx(lane.decode.get(pool.name, 0.0), abs=3.0 / PARTS)


def test_an_engine_of_tensorrt_llm_alone_needs_no_router() -> None:
    alone = deployment_files(plan_of((Case("colocated"),), Ask(engine="trtllm")), options("trtllm"))
    assert not {"router.cfg", "router.sh", "hosts.env"} & set(alone)


@pytest.mark.parametrize("size", [0.0, -1.0, 1000.0, math.nan, math.inf])
def test_sizes_that_no_token_has_are_refused(size: float) -> None:
    with pytest.raises(InputError, match=r"^--bytes-per-token \S+ is not between 0\.1 and 100$"):
        deployment_files(parted_plan(), options("vllm", bytes_per_token=size))


@pytest.mark.parametrize("plan", [plan_of((Case("colocated"),)), classes_plan()], ids=["one pool", "by class alone"])
def test_a_router_that_does_not_look_at_sizes_takes_none(plan: Plan) -> None:
    with pytest.raises(InputError, match="--bytes-per-token is for a router that chooses a pool by the size"):
        deployment_files(plan, options("vllm", bytes_per_token=3.0))


def write(plan: Plan, folder: Path, *more: str) -> Path:
    path = folder / "plan.json"
    path.write_text(plan.model_dump_json(by_alias=True), "utf-8")
    assert run(["deploy", str(path), "-o", str(folder / "out"), *more]) == 0
    return path


def test_a_changed_edge_is_told_by_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = write(parted_plan(), tmp_path, "--bytes-per-token", "3.5"), tmp_path / "out"
    config = (out / "router.cfg").read_text("utf-8")
    assert "req.body_size le 3584" in config
    assert run(["deploy", str(plan), "--check", str(out)]) == 0
    (out / "router.cfg").write_text(config.replace("le 3584", "le 358"), "utf-8")
    capsys.readouterr()
    assert run(["deploy", str(plan), "--check", str(out)]) == ExitCode.BAD_INPUT
    told = capsys.readouterr().out
    assert "as_written: router.cfg[" in told
    assert "'358', not '3584', in the line 'use_backend colocated-1 if { req.body_size le 358 }'" in told
