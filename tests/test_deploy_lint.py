"""Broken files are refused: a dozen seeded defects or more for every target, each by the rule that is about it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from pdplan.api import deployment_options
from reports.deploy.checking import AS_WRITTEN, causes
from reports.deploy.deployment import Deployment
from reports.deploy.files import TARGETS, deployment_files, recorded_options, refuse_faults
from reports.deploy.lint import RULES
from tests.deploy_cases import (
    ENGINES,
    PAIR,
    Ask,
    Case,
    deployment_of,
    lengths_plan,
    options,
    parted_plan,
    plan_of,
)
from tests.deploy_defects import DEFECTS, Defect, Files

SPAN = (
    Case("prefill", "H200", dp=16, ep=16, seqs=64, tokens=32768),
    Case("decode", "H200", dp=16, ep=16, seqs=1024, tokens=4096),
)
"""Engines of two nodes."""


@cache
def case_of(target: str) -> tuple[Deployment, Files]:
    if target == "dynamo by length":
        deployment = deployment_of(lengths_plan(), "dynamo")
        return deployment, TARGETS["dynamo"].files(deployment)
    if target == "vllm by length":
        deployment = deployment_of(parted_plan(), "vllm")
        return deployment, TARGETS["vllm"].files(deployment)
    if target == "llmd of nodes":
        deployment = deployment_of(plan_of(SPAN, Ask("DeepSeek-V3", "fp8")), "llmd")
        return deployment, TARGETS["llmd"].files(deployment)
    deployment = deployment_of(plan_of(PAIR, Ask(engine=ENGINES[target])), target)
    return deployment, TARGETS[target].files(deployment)


@pytest.mark.parametrize("target", DEFECTS)
def test_sound_files_break_no_rule(target: str) -> None:
    deployment, files = case_of(target)
    assert causes(deployment, files, files) == []
    refuse_faults(deployment, files)


@pytest.mark.parametrize(
    ("target", "rule", "defect"),
    [
        pytest.param(target, rule, defect, id=f"{target}: {name}")
        for target, defects in DEFECTS.items()
        for name, rule, defect in defects
    ],
)
def test_a_defect_is_refused_by_its_rule(target: str, rule: str, defect: Defect) -> None:
    deployment, files = case_of(target)
    found = causes(deployment, files, defect(files))
    assert all(one.differs for one in found), found
    assert rule in {AS_WRITTEN, *(name for one in found for name, _ in one.breaks)}, found
    if rule != AS_WRITTEN:
        with pytest.raises(InputError, match=r"^the deployment breaks the rule \w+: "):
            refuse_faults(deployment, defect(files))


@pytest.mark.parametrize("target", DEFECTS)
def test_a_dozen_defects_at_least(target: str) -> None:
    assert len(DEFECTS[target]) >= 12


def test_every_rule_is_broken_by_some_defect() -> None:
    seeded = {rule for defects in DEFECTS.values() for _, rule, _ in defects}
    assert {*RULES, AS_WRITTEN} - seeded == set()


def test_every_rule_says_what_it_is_about() -> None:
    assert all((rule.__doc__ or "").strip().endswith(".") for rule in RULES.values())


@pytest.mark.parametrize("target", ["dynamo", "llmd"])
@pytest.mark.parametrize("label", ["MY H100", "-H100", "H" * 64, "H100/80"])
def test_a_label_that_no_node_can_carry_is_refused(target: str, label: str) -> None:
    with pytest.raises(InputError, match=r"no node can carry the label|begins with a dash"):
        deployment_files(plan_of(), options(target, labels={"H100": label}))


def test_data_ranks_stay_whole_on_every_node() -> None:
    pools = (Case("colocated", "H200", tp=4, dp=3, ep=12, seqs=63, tokens=8190),)
    for target in ("vllm", "dynamo"):
        with pytest.raises(InputError, match="data ranks of 4 GPUs do not fill the 6 that it has on each node"):
            deployment_files(plan_of(pools, Ask("Qwen3-235B-A22B", "fp8")), options(target))


REFUSED: list[tuple[str, tuple[Case, ...], Ask, str, dict[str, Any], str]] = [
    (
        "heads",
        (Case("prefill", tp=8, seqs=8, tokens=8192), Case("decode", tp=4)),
        Ask("Qwen3-30B-A3B"),
        "vllm",
        {},
        "ends_can_talk: .* TP 8 of prefill exceeds TP 4 of decode and the model's 4 KV heads",
    ),
    (
        "decode pipeline",
        (Case("prefill", seqs=8), Case("decode", pp=2)),
        Ask(),
        "dynamo",
        {},
        "ends_can_talk: .* PP 2 of decode",
    ),
    (
        "prefill pipeline in an old version",
        (Case("prefill", pp=2, seqs=8), Case("decode")),
        Ask(),
        "vllm",
        {"version": "0.20.1"},
        "PP above 1 of a prefill pool needs the NixlPushConnector, which vLLM 0.20.1 lacks",
    ),
    (
        "prefill pipeline in Dynamo",
        (Case("prefill", pp=2, seqs=8), Case("decode")),
        Ask(),
        "dynamo",
        {},
        "NixlPushConnector, which NVIDIA Dynamo 1.6.1 does not hand over with; plan again with pdplan "
        "optimize --target dynamo; or choose --target vllm or llmd, which run this plan as it is$",
    ),
    (
        "requests that ranks cannot share",
        (Case("colocated", ep=8, dp=8, seqs=100, tokens=8192),),
        Ask("Qwen3-30B-A3B"),
        "vllm",
        {},
        "max_num_seqs 100 is not a multiple of DP 8",
    ),
    (
        "another engine",
        PAIR,
        Ask(engine="sglang"),
        "vllm",
        {},
        "evaluated for sglang, which target vllm does not run; .*; or choose --target sglang or dynamo, which run ",
    ),
    (
        "attention in part data-parallel",
        (Case("colocated", tp=2, dp=2, ep=4, tokens=8192),),
        Ask("Qwen3-30B-A3B", engine="trtllm"),
        "trtllm",
        {},
        "attention data-parallel over all ranks or none",
    ),
    (
        "both kinds",
        (Case("colocated"), Case("prefill", seqs=8), Case("decode")),
        Ask(),
        "dynamo",
        {},
        "serves some requests in one engine and hands others over",
    ),
    (
        "weights that nobody publishes",
        (Case("colocated"),),
        Ask(weight_dtype="int4"),
        "vllm",
        {},
        "the plan assumes int4 weights, but Llama-3.1-8B is published in bf16",
    ),
    (
        "a kernel for all",
        (Case("prefill", "H200", tp=8, seqs=8), Case("decode", "B200", tp=8)),
        Ask("DeepSeek-V3", "fp8", "fp8"),
        "vllm",
        {},
        "no attention kernel of vllm runs latent attention with fp8 KV on all of B200, H200",
    ),
    (
        "another vendor",
        (Case("colocated", "MI300X"),),
        Ask(),
        "dynamo",
        {},
        "MI300X is a GPU of amd, .*choose --target vllm",
    ),
]


@pytest.mark.parametrize(
    ("pools", "ask", "target", "more", "sentence"), [pytest.param(*case, id=name) for name, *case in REFUSED]
)
def test_a_plan_that_a_target_cannot_run_is_refused(
    pools: tuple[Case, ...], ask: Ask, target: str, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        deployment_files(plan_of(pools, ask), options(target, **more))


def test_routing_by_length_is_a_grid_of_dynamos_router() -> None:
    files = deployment_files(lengths_plan(), options("dynamo"))
    text = yaml.safe_load(files["router-configmap.yaml"])["data"]["global_router_config.json"]
    grid = json.loads(text)["prefill_pool_selection_strategy"]
    width = grid["isl_max"] / grid["isl_resolution"]
    pools = {length: grid["prefill_pool_mapping"][int(length / width)][0] for length in (1, 512, 2048)}
    assert pools == {1: 0, 512: 0, 2048: 1}


@pytest.mark.parametrize("target", ["vllm", "llmd"])
def test_routing_by_length_is_refused_elsewhere_with_who_can(target: str) -> None:
    with pytest.raises(InputError, match=r"plan again .*; or choose --target dynamo, which runs this plan as it is$"):
        deployment_files(lengths_plan(), options(target))


def test_lengths_that_a_router_cannot_tell_apart_are_refused() -> None:
    plan = lengths_plan()
    first, second = plan.routing
    halves = [first, second.model_copy(update={"prefill": {"prefill-1": 0.5, "prefill-2": 0.5}})]
    with pytest.raises(
        InputError, match=r"25 % of the requests would find another prefill pool .*optimize --target dynamo"
    ):
        deployment_files(plan.model_copy(update={"routing": halves}), options("dynamo"))


def test_an_unsupported_version_names_the_supported() -> None:
    for version, way in (
        ("0.19.0", ""),
        ("latest", ""),
        ("0.34.0", "; --unchecked writes the flags of 0.33.0"),
        ("99", "; --unchecked writes the flags of 0.33.0"),
    ):
        with pytest.raises(InputError, match=rf"vLLM '{version}' is not known; known: 0\.20\.0, .*, 0\.33\.0{way}$"):
            options("vllm", version)


def test_a_newer_version_is_written_for_where_nobody_minds() -> None:
    plan = plan_of()
    asked = deployment_options(plan, target="llmd", engine_version="0.34.1", unchecked=True)
    files = deployment_files(plan, asked)
    assert "vllm/vllm-openai:v0.34.1" in "".join(files.values())
    assert "**Not checked:** llm-d 0.34.1 is newer than what pdplan knows" in files["README.md"]
    assert recorded_options(files["deployment.json"]) == asked
    assert not deployment_options(plan, engine_version="0.33.0", unchecked=True).unchecked


def test_a_checkpoint_of_ones_own_carries_the_weights() -> None:
    files = deployment_files(plan_of((Case("colocated"),), Ask(weight_dtype="int4")), options("vllm", model="my/awq"))
    config = files["workers/colocated-1-0.yaml"]
    assert "model: my/awq" in config
    assert "quantization" not in config


@pytest.mark.parametrize("target", DEFECTS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_mutilated_files_are_judged_and_never_crash(target: str, data: st.DataObject) -> None:
    """Leave out a stretch of lines, or change one character: whatever comes of it is a sentence, not a traceback."""
    deployment, files = case_of(target)
    path = data.draw(st.sampled_from(sorted(files)))
    lines = files[path].splitlines(keepends=True)
    first = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        mutilated = lines[:first] + lines[first + data.draw(st.integers(1, 5)) :]
    else:
        place = data.draw(st.integers(0, len(lines[first]) - 1))
        lines[first] = lines[first][:place] + data.draw(st.sampled_from("x0 :-{}[]\"'")) + lines[first][place + 1 :]
        mutilated = lines
    for cause in causes(deployment, files, {**files, path: "".join(mutilated)}):
        assert all(cause.differs)
        assert all(rule in {*RULES, "readable"} and said for rule, said in cause.breaks)
