"""Engines that span nodes: who is told what where, and what carries the traffic between them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from reports.deploy import facts
from reports.deploy.files import deployment_files
from reports.deploy.flags import place_words, span_words, words_of
from tests.deploy_cases import Ask, Case, deployment_of, options, plan_of
from tests.test_deploy_schemas import loaded

DENSE = Ask("Llama-3.1-405B", "fp8")
SPARSE = Ask("DeepSeek-V3", "fp8")
STAGES = (Case("colocated", "H200", replicas=2, tp=8, pp=2, seqs=64, tokens=8192),)
RANKS = (
    Case("prefill", "H200", dp=16, ep=16, seqs=64, tokens=32768),
    Case("decode", "H200", replicas=2, dp=24, ep=24, seqs=1536, tokens=6144),
)
"""Data ranks over two nodes, and over three."""


def groups(pools: tuple[Case, ...], ask: Ask) -> dict[str, Any]:
    """The LeaderWorkerSets of a fleet by their pools."""
    files = deployment_files(plan_of(pools, ask), options("llmd"))
    return {
        path.removeprefix("pools/").removesuffix(".yaml"): yaml.safe_load(text)
        for path, text in files.items()
        if path.startswith("pools/")
    }


def pods(group: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Leader's and workers' templates."""
    template = group["spec"]["leaderWorkerTemplate"]
    return template["leaderTemplate"], template["workerTemplate"]


def command(pod: dict[str, Any], index: int) -> list[str]:
    """The command line of a pod of a group, as Kubernetes, and a shell if there is one, make it."""
    container = pod["spec"]["containers"][0]
    known = {"LWS_LEADER_ADDRESS": "leader.svc", "LWS_WORKER_INDEX": str(index)}
    words = [
        re.sub(r"(?<!\$)\$\((\w+)\)", lambda found: known[found[1]], word).replace("$$(", "$(")
        for word in [*container["command"], *container["args"]]
    ]
    if words[0] != "sh":
        return words
    words[2] = words[2].replace("exec vllm serve", "printf '%s\\n' vllm serve")
    done = subprocess.run(words, env=os.environ | known, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(("pools", "ask"), [(STAGES, DENSE), (RANKS, SPARSE)])
def test_groups_pass_their_schema(data: Path, pools: tuple[Case, ...], ask: Ask) -> None:
    schema = loaded(data / "deploy" / "schemas" / "leaderworkerset_v1.schema.json")
    judge = jsonschema.Draft202012Validator(schema)
    found = groups(pools, ask)
    assert len(found) == len(pools)
    for group in found.values():
        judge.validate(group)
        group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["unheardOf"] = 1
        with pytest.raises(jsonschema.ValidationError):
            judge.validate(group)


def test_stages_are_ranks_of_one_engine() -> None:
    (group,) = groups(STAGES, DENSE).values()
    leader, worker = pods(group)
    first, second = command(leader, 0), command(worker, 1)
    assert group["spec"]["replicas"] == 2
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert first[:3] == second[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-405B-Instruct"]
    shared = ["--nnodes", "2", "--master-addr", "leader.svc", "--master-port", "29501", "--node-rank"]
    at = first.index("--nnodes")
    assert first[at:] == [*shared, "0", "--host", "0.0.0.0", "--port", "8000"]
    assert second == [*first[:at], *shared, "1", "--headless"]


def test_data_ranks_are_counted_on_over_the_nodes() -> None:
    found = groups(RANKS, SPARSE)
    leader, worker = pods(found["decode-2"])
    assert found["decode-2"]["spec"]["leaderWorkerTemplate"]["size"] == 3
    assert "--data-parallel-start-rank" not in command(leader, 0)
    for index in (1, 2):
        words = command(worker, index)
        assert words[words.index("--data-parallel-size-local") + 1] == "8"
        assert words[-3:] == ["--headless", "--data-parallel-start-rank", str(8 * index)]


def test_a_shell_of_workers_takes_no_word_for_code() -> None:
    nasty = "a$(touch x)'\";`id`"
    pools = (Case("colocated", "H200", dp=16, ep=16, seqs=64, tokens=8192),)
    files = deployment_files(plan_of(pools, SPARSE), options("llmd", model=nasty))
    _, worker = pods(yaml.safe_load(files["pools/colocated-1.yaml"]))
    assert command(worker, 1)[2] == nasty


def test_only_leaders_take_requests() -> None:
    for name, group in groups(RANKS, SPARSE).items():
        leader, worker = pods(group)
        assert leader["metadata"]["labels"]["llm-d.ai/role"] == name.partition("-")[0]
        assert leader["metadata"]["labels"]["pdplan.dev/deployment"] == "case"
        assert "llm-d.ai/inference-serving" not in worker["metadata"]["labels"]
        assert "readinessProbe" in leader["spec"]["containers"][0]
        assert "readinessProbe" not in worker["spec"]["containers"][0]
    decode, _ = pods(groups(RANKS, SPARSE)["decode-2"])
    (proxy,) = decode["spec"]["initContainers"]
    assert proxy["args"] == ["--port=8000", "--model-server-port=8200", "--kv-connector=nixlv2", "--secure-proxy=false"]


def test_a_fleet_of_both_kinds_has_deployments_and_groups() -> None:
    plan = plan_of((*STAGES, Case("colocated", "H200", tp=8, seqs=64, tokens=8192)), DENSE)
    files = deployment_files(plan, options("llmd"))
    kinds = {path: yaml.safe_load(text)["kind"] for path, text in files.items() if path.startswith("pools/")}
    assert kinds == {"pools/colocated-1.yaml": "LeaderWorkerSet", "pools/colocated-2.yaml": "Deployment"}


def test_ranks_on_several_nodes_have_rdma_though_nothing_is_handed_over() -> None:
    """Ranks of one engine exchange more than a hand-over does."""
    plan = plan_of(STAGES, DENSE)
    compose = deployment_files(plan, options("vllm"))["compose/h200-1.yaml"]
    assert yaml.safe_load(compose)["services"]["colocated-1-0-1"]["devices"] == ["/dev/infiniband:/dev/infiniband"]
    worker = yaml.safe_load(deployment_files(plan, options("dynamo"))["dgd.yaml"])["spec"]["components"][1]
    (container,) = worker["podTemplate"]["spec"]["containers"]
    assert container["resources"]["limits"].items() >= {"nvidia.com/gpu": "8", "rdma/ib": "8"}.items()
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


@pytest.mark.parametrize("version", facts.versions_of("vllm"))
def test_flags_of_nodes_are_those_of_every_version(version: str) -> None:
    for pools, ask in ((STAGES, DENSE), (RANKS, SPARSE)):
        for pool in deployment_of(plan_of(pools, ask), "vllm", version).pools:
            for rank in (0, 1):
                words = words_of("node", [*span_words(pool, "head", lambda _: 1), *place_words(pool, rank)])
                for name, value in words:
                    kind = facts.legal_flag("vllm", version, name)
                    assert kind is not None, name
                    assert (kind == facts.SWITCH) == (value is None), name
