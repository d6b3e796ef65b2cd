"""Manifests against the schemas of their resources, strictly, and flags against the dumps of the engines' parsers."""

from __future__ import annotations

import gzip
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.deploy import facts
from reports.deploy.deployment import Options
from reports.deploy.describe import demand_of
from reports.deploy.dynamo import router_words
from reports.deploy.files import TARGETS, deployment_files
from reports.deploy.hosts import place
from reports.deploy.lint import launches
from reports.deploy.readme import page_notes
from search_spaces.problem import Balancing
from tests.deploy_cases import PAIR, Ask, Case, deployment_of, lengths_plan, options, parted_plan, plan_of

ALONE = (Case("colocated", replicas=3, tokens=8192),)
SPREAD = (Case("colocated", "H200", dp=16, ep=16, seqs=64, tokens=8192),)
DUMPED = ("0.20.1", "0.24.0", "0.31.0", "0.33.0")
"""Versions of vLLM whose parsers were dumped."""
SPAN_ASK = Ask("DeepSeek-V3", "fp8", prefix=0.3)


@cache
def loaded(path: Path) -> Any:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    return yaml.safe_load(text) if path.suffix in {".yaml", ".yml"} else json.loads(text)


def check(document: Any, schema: dict[str, Any]) -> None:
    """Validate strictly: what an object of known fields does not know fails."""
    jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema).validate(document)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_graph_deployments_pass_their_schema(data: Path, engine: str) -> None:
    schema = loaded(data / "deploy" / "schemas" / "dynamo_dgd_v1beta1.schema.json")
    for pools, ask in ((PAIR, Ask(engine=engine, prefix=0.3)), (ALONE, Ask(engine=engine))):
        files = deployment_files(plan_of(pools, ask), options("dynamo"))
        for name in ("dgd.yaml", "dgd-with-planner.yaml"):
            check(yaml.safe_load(files[name]), schema)


def test_graphs_that_route_by_length_pass_their_schema(data: Path) -> None:
    schema = loaded(data / "deploy" / "schemas" / "dynamo_dgd_v1beta1.schema.json")
    files = deployment_files(lengths_plan(), options("dynamo"))
    graphs = [text for path, text in files.items() if path == "control.yaml" or path.startswith("pools/")]
    assert len(graphs) == 4
    for text in graphs:
        check(yaml.safe_load(text), schema)


def planner_data(plan: Plan) -> dict[str, Any]:
    """What the planner's config map holds, by name."""
    text = deployment_files(plan, options("dynamo"))["planner-configmap.yaml"]
    return {name: json.loads(value) for name, value in yaml.safe_load(text)["data"].items()}


@pytest.mark.parametrize(("pools", "mode"), [(PAIR, "disagg"), (ALONE, "agg")])
def test_planner_config_passes_its_schema(data: Path, pools: tuple[Case, ...], mode: str) -> None:
    schema = loaded(data / "deploy" / "schemas" / "dynamo_planner_config_1.6.1.schema.json")
    config = planner_data(plan_of(pools))["planner_config.json"]
    check(config, schema | {"additionalProperties": False})
    assert config["mode"] == mode
    assert config["max_gpu_budget"] == sum(case.replicas * case.tp for case in pools)
    assert (config["ttft_ms"], config["itl_ms"]) == (600.0, 30.0)  # the tighter of the plan's two classes


def test_planner_profile_has_the_documented_fields(data: Path) -> None:
    fields = loaded(data / "deploy" / "benchmark_formats.json")["dynamo_planner_profile"]["json"]
    data_of = planner_data(plan_of())
    for name, expected in fields.items():
        found = data_of[name]
        assert sorted(found) == sorted(field.split()[0] for field in expected)
        assert len({len(values) for values in found.values() if isinstance(values, list)}) == 1


def test_planner_profile_is_physical() -> None:
    profile = planner_data(plan_of())
    prefill, decode = profile["prefill_raw_data.json"], profile["decode_raw_data.json"]
    assert prefill["prefill_ttft"] == sorted(prefill["prefill_ttft"])
    assert max(decode["x_kv_usage"]) <= 1.0
    longest = list(zip(decode["x_kv_usage"], decode["z_itl"], decode["y_context_length"], strict=True))
    most = max(context for *_, context in longest)
    times = [itl for _, itl, context in sorted(longest) if context == most]
    assert times == sorted(times), "a fuller cache is never read faster"


@pytest.mark.parametrize("pools", [PAIR, ALONE])
def test_the_pool_of_a_picker_passes_its_schema(data: Path, pools: tuple[Case, ...]) -> None:
    files = deployment_files(plan_of(pools, Ask(prefix=0.2)), options("llmd"))
    check(
        yaml.safe_load(files["inferencepool.yaml"]),
        loaded(data / "deploy" / "schemas" / "inferencepool_v1.schema.json"),
    )


@pytest.mark.parametrize("plan", [plan_of(PAIR), plan_of(ALONE), parted_plan()], ids=["pair", "alone", "parted"])
def test_compose_files_pass_the_compose_spec(data: Path, plan: Plan) -> None:
    schema = loaded(data / "deploy" / "schemas" / "compose-spec.json")
    files = deployment_files(plan, options("vllm"))
    found = [yaml.safe_load(text) for path, text in files.items() if path.startswith("compose/")]
    assert found
    for document in found:
        check(document, schema)
    broken = found[0] | {"unheard": 1}
    with pytest.raises(jsonschema.ValidationError):
        check(broken, schema)


def test_shipped_flag_facts_are_those_of_the_dumps(data: Path) -> None:
    dump = loaded(data / "deploy" / "vllm_flags.json")["flags"]
    for version in DUMPED:
        for name, entry in dump.items():
            assert (facts.legal_flag("vllm", version, name) is not None) == (version in entry["versions"])
    sglang = loaded(data / "deploy" / "sglang_flags_0.5.23.json")["flags"]
    legal = {name for name, entry in sglang.items() if entry.get("no_cli") != "True"}
    assert {name for name in sglang if facts.legal_flag("sglang", "0.5.23", name) is not None} == legal


@pytest.mark.parametrize(
    ("target", "version", "engine"),
    [(target, version, "vllm") for version in DUMPED for target in ("vllm", "llmd")]
    + [("dynamo", "1.6.1", "vllm"), ("dynamo", "1.6.1", "sglang"), ("sglang", "0.5.23", "sglang")],
)
def test_every_flag_is_in_the_dump_of_its_version(data: Path, target: str, version: str, engine: str) -> None:
    for pools, ask in ((PAIR, Ask(engine=engine, prefix=0.3, kv_dtype="fp8")), (ALONE, Ask(engine=engine))):
        deployment = deployment_of(plan_of(pools, ask), target, version)
        started = launches(deployment, TARGETS[target].files(deployment))
        for name, value in (pair for launch in started for pair in launch.words):
            assert in_dump(data, deployment.engine, deployment.engine_version, target, name, value), (name, value)


@pytest.mark.parametrize("version", facts.versions_of("vllm"))
def test_no_version_of_vllm_is_left_out(version: str) -> None:
    """Versions between those whose parsers were dumped take what both take; the files say the same to all."""
    newest = deployment_files(plan_of(), options("vllm"))
    files = deployment_files(plan_of(), options("vllm", version))
    assert f"vllm/vllm-openai:v{version}" in files["compose/h200-0.yaml"]
    for path, text in files.items():
        if path.startswith("workers/"):
            assert text == newest[path]
    with pytest.raises(InputError, match="needs the NixlPushConnector") if version < "0.24" else nullcontext():
        deployment_files(
            plan_of((Case("prefill", pp=2, seqs=8, tokens=8192), Case("decode"))), options("vllm", version)
        )


def test_a_flag_between_two_dumps_is_what_both_know() -> None:
    kinds = {
        version: facts.legal_flag("vllm", version, "--max-num-partial-prefills") for version in ("0.22.0", "0.28.0")
    }
    assert kinds == {"0.22.0": "int", "0.28.0": None}, "it went away between 0.24.0 and 0.31.0"
    assert facts.legal_flag("vllm", "0.34.0", "--max-num-seqs") == "int"


def in_dump(data: Path, engine: str, version: str, target: str, name: str, value: str | None) -> bool:
    """Whether the raw dump knows the flag with this value; a second reading of it, apart from ours."""
    if target == "dynamo":
        programs = loaded(data / "deploy" / "dynamo_flags_1.6.1.json")["flags"]
        if any(name in entry["flag"].split() for entry in programs[f"{engine}_worker"]):
            return True
    if engine == "sglang":
        return name in loaded(data / "deploy" / "sglang_flags_0.5.23.json")["flags"]
    for entry in loaded(data / "deploy" / "vllm_flags.json")["flags"].values():
        said = {**entry, **entry.get("differs", {}).get(version, {})}
        options = [*said["options"], *(option.replace("--enable-", "--no-enable-") for option in said["options"])]
        if version in entry["versions"] and name in options:
            return said["choices"] is None or value in said["choices"]
    return False


def test_dynamo_frontend_flags_are_in_the_dump(data: Path) -> None:
    known = {
        name: entry
        for entry in loaded(data / "deploy" / "dynamo_flags_1.6.1.json")["flags"]["frontend"]
        for name in entry["flag"].split()
    }
    for prefix, mode in ((0.0, "least-loaded"), (0.3, "kv")):
        deployment = deployment_of(plan_of(ask=Ask(prefix=prefix)), "dynamo")
        words = router_words(deployment)
        assert {word for word in words if word.startswith("--")} <= set(known)
        assert words[words.index("--router-mode") + 1] == mode
        assert mode in known["--router-mode"]["choices"]


def test_labels_are_spelled_as_the_facts_have_them(data: Path) -> None:
    known = loaded(data / "deploy" / "k8s_facts.json")["gpu_product_label"]
    labels = set(known["confirmed_here"].values()) | set(known["by_rule_unconfirmed"].values())
    for gpu in ("A100-80", "H100", "H200", "B200", "L40S"):
        deployment = deployment_of(plan_of((Case("colocated", gpu, tokens=8192, length=4096),)), "dynamo")
        assert deployment.pools[0].node_label in labels


def test_options_reach_the_files() -> None:
    asked = Options(
        "dynamo", "1.6.1", namespace="serving", rdma="rdma/shared", labels={"H100": "MY-H100"}, image="my/image:1"
    )
    files = deployment_files(plan_of(), asked)
    assert "rdma/shared: " in files["dgd.yaml"]
    assert "nvidia.com/gpu.product: MY-H100" in files["dgd.yaml"]
    assert "image: my/image:1" in files["dgd.yaml"]
    assert "case-frontend.serving:8000" in files["benchmark/run.sh"]


@pytest.mark.parametrize("target", ["dynamo", "llmd"])
def test_everything_is_in_the_namespace(target: str) -> None:
    files = deployment_files(plan_of(), options(target, namespace="serving"))
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    objects = [one for text in texts for one in yaml.safe_load_all(text) if "metadata" in one]
    spaces = [one["metadata"].get("namespace") for one in objects]
    assert len(spaces) >= 2
    assert set(spaces) == {"serving"}
    commands = re.findall(r"(?:kubectl (?:apply|logs|wait|create (?!namespace))|helm install).*", files["README.md"])
    assert len(commands) >= 5
    assert all("-n serving" in command for command in commands)


def test_weights_in_a_folder_are_mounted(data: Path) -> None:
    asked = options("dynamo", model="/models/mine")
    pods = deployment_files(plan_of(), asked)
    graph = yaml.safe_load(pods["dgd-with-planner.yaml"])
    check(graph, loaded(data / "deploy" / "schemas" / "dynamo_dgd_v1beta1.schema.json"))
    text = json.dumps(graph)
    assert text.count('"hostPath": {"path": "/models/mine", "type": "Directory"}') == 3  # frontend, prefill, decode
    assert text.count('"mountPath": "/models/mine"') == 3
    pod = yaml.safe_load(deployment_files(plan_of(), options("llmd", model="/models/mine"))["pools/decode-2.yaml"])
    assert "/models/mine" in json.dumps(pod["spec"]["template"]["spec"]["volumes"])
    files = deployment_files(plan_of(), options("vllm", model="/models/mine"))
    services = yaml.safe_load(files["compose/h100-0.yaml"])
    check(services, loaded(data / "deploy" / "schemas" / "compose-spec.json"))
    mount = {"type": "bind", "source": "/models/mine", "target": "/models/mine", "read_only": True}
    assert mount in services["services"]["prefill-1-0"]["volumes"]
    for readme in (files["README.md"], pods["README.md"]):
        assert "Put the weights into the folder that the files name" in readme


def test_a_claim_keeps_the_weights_of_pods_and_groups(data: Path) -> None:
    alone = deployment_files(plan_of(), options("llmd", claim="models"))
    files = deployment_files(plan_of(SPREAD, SPAN_ASK), options("llmd", claim="models"))
    group = yaml.safe_load(files["pools/colocated-1.yaml"])
    check(group, loaded(data / "deploy" / "schemas" / "leaderworkerset_v1.schema.json"))
    template = group["spec"]["leaderWorkerTemplate"]
    single = yaml.safe_load(alone["pools/decode-2.yaml"])["spec"]["template"]["spec"]
    for pod in (single, *(template[name]["spec"] for name in ("leaderTemplate", "workerTemplate"))):
        assert {"name": "weights", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]
        assert {"name": "weights", "mountPath": "/model-cache"} in pod["containers"][0]["volumeMounts"]
        assert {"name": "HF_HOME", "value": "/model-cache"} in pod["containers"][0]["env"]
    kept = yaml.safe_load(files["model-cache.yaml"])
    assert (kept["metadata"]["name"], kept["spec"]["accessModes"]) == ("models", ["ReadWriteMany"])
    assert int(kept["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * 2**30 > 671e9
    assert "model-cache.yaml" in files["README.md"]


@pytest.mark.parametrize(
    ("target", "more", "sentence"),
    [
        ("vllm", {"claim": "models"}, "target vllm has none; or choose --target dynamo or llmd, which run this plan"),
        ("dynamo", {"claim": "my models"}, "--claim 'my models' is not of the form"),
        ("dynamo", {"claim": "models", "model": "/models/mine"}, "'/models/mine' is a folder of the nodes"),
    ],
)
def test_a_claim_of_no_use_is_refused(target: str, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        deployment_files(plan_of(), options(target, **more))


@pytest.mark.parametrize("folder", ["./mine", "../mine", "~/mine", "/a:b", "/a/../b", "/", "//"])
def test_a_folder_that_servers_do_not_have_is_refused(folder: str) -> None:
    with pytest.raises(
        InputError, match=r"^--model .* (is relative to a folder that servers do not have|mount no such)"
    ):
        deployment_files(plan_of(), options("vllm", model=folder))


def test_ports_of_eight_engines_on_a_host_do_not_meet() -> None:
    """SGLang takes some ports from 233 above its own, and a handshake port 13 above."""
    pools = (Case("prefill", replicas=4, seqs=8, tokens=8192), Case("decode", replicas=4))
    taken: list[int] = [facts.fact("ports", "http")]
    for one in place(deployment_of(plan_of(pools, Ask(engine="sglang")), "sglang")):
        assert one.hosts[0].name == "h100-0"
        taken += [one.port(kind) for kind in ("bootstrap", "master", "data_parallel", "side_channel")]
        port = one.port("worker")
        taken += [port, port + 13, *range(port + 233, port + 250), *range(one.port("nccl"), one.port("nccl") + 20)]
    assert len(set(taken)) == len(taken)
    assert max(taken) < 32768, "above, the kernel hands out ports itself"


def by_day(plan: Plan) -> Plan:
    """The plan of a day whose quietest hour has a tenth of the planned rate."""
    inputs = json.loads(json.dumps(plan.provenance.inputs))
    rate = plan.workload.request_rate_rps
    del inputs["workload"]["request_rate"]
    inputs["workload"]["diurnal"] = {"requests_per_second_by_hour": [0.1 * rate] * 6 + [rate] * 18, "percentile": 100}
    source = plan.provenance.model_copy(update={"inputs": inputs})
    return plan.model_copy(update={"provenance": source})


def test_quiet_hours_have_fewer_replicas_and_never_too_few(data: Path) -> None:
    pools = (Case("prefill", replicas=3, seqs=8, tokens=8192), Case("decode", "H200", replicas=3, seqs=128, tokens=512))
    plan = by_day(plan_of(pools))
    deployment = deployment_of(plan, "llmd")
    assert [pool.least for pool in deployment_of(plan_of(pools), "llmd").pools] == [3, 3]
    files = deployment_files(plan, options("llmd", namespace="serving"))
    scalers = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(files["autoscale.yaml"])}
    for pool in deployment.pools:
        spec = scalers[f"case-{pool.name}"]
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (pool.least, 3)
        assert 1 <= pool.least < 3
        (trigger,) = spec["triggers"]
        assert f'pool="{pool.name}"' in trigger["metadata"]["query"]
        assert 0.0 < float(trigger["metadata"]["threshold"]) <= pool.running
    assert "autoscale.yaml" not in files["kustomization.yaml"], "fixed replicas are the default"
    assert "`kubectl apply -n serving -f autoscale.yaml`" in files["README.md"]
    assert "autoscale.yaml" not in deployment_files(plan_of(pools), options("llmd"))
    budgets = [one for one in yaml.safe_load_all(files["support.yaml"]) if one["kind"] == "PodDisruptionBudget"]
    assert [one["spec"]["maxUnavailable"] for one in budgets] == [1, 1]


def test_the_page_says_what_sessions_and_networks_need() -> None:
    plan = plan_of((Case("colocated", replicas=3, tokens=8192),), Ask(prefix=0.4))
    inputs = plan.provenance.inputs | {"workload": plan.provenance.inputs["workload"] | {"sessions": {}}}
    source = plan.provenance.model_copy(update={"inputs": inputs})
    deployment = replace(
        deployment_of(plan, "dynamo"), demand=demand_of(plan.model_copy(update={"provenance": source}))
    )
    notes = " ".join(page_notes(deployment))
    assert "needs a network plug-in that enforces it" in notes
    assert "not sessions with their pauses" in notes
    assert "Turns of a session may go to different replicas" not in notes, "Dynamo's router knows their prefixes"
    counting = replace(deployment, balancing=Balancing.FEWEST_REQUESTS)
    assert "Turns of a session may go to different replicas: the router counts requests" in " ".join(
        page_notes(counting)
    )
    for target in ("vllm", "sglang"):
        hosts = replace(deployment, options=options(target), engine=target)
        assert "Turns of a session may go to different replicas" in " ".join(page_notes(hosts))
    readme = deployment_files(plan, options("llmd"))["README.md"]
    assert "| router | the prompt's prefix, then fewest tokens |" in readme
