"""What is written where: a directory of one's own, whole, never over something else; and no input is ever code."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from costmodel.memory import kv_capacity_bytes
from costmodel.units import GIB
from optimizer.fleets.build_plan import fleet_of_plan
from optimizer.fleets.evaluate import evaluate, replicas_at
from optimizer.plans.plan import Plan, Status
from reports.deploy.deployment import Options
from reports.deploy.files import MARKER, RECORD, deployment_files, read_record, refusal, write_deployment
from reports.deploy.formats import shell_text
from search_spaces.bounds import TARGET_NAMES
from search_spaces.files import shipped_table
from tests.deploy_cases import (
    ENGINES,
    EXAMPLES,
    PAIR,
    RANKS,
    Ask,
    Case,
    by_day,
    deployment_of,
    example,
    lengths_plan,
    options,
    parted_plan,
    plan_of,
    started,
    with_inputs,
)
from tests.golden_files import assert_golden
from tests.test_balancing import judged, simulated

NASTY = (
    "$(touch /tmp/pdplan-owned)", "`touch /tmp/pdplan-owned`", "a; touch /tmp/pdplan-owned",
    "x' && touch /tmp/pdplan-owned #", 'x" && touch /tmp/pdplan-owned #', "{{ 7 * 7 }}", "{% for x in y %}",
    "{{ .Values.secret }}", "a: b", "- a", "&a *a !!python/object/apply:os.system [id]", "x # y", "true", "1e3",
    "${HOME}", "$(HOME)", "$$(HOME)", "a|b", "../../etc/passwd", "é日本\U0001f600",
)  # fmt: skip
STRINGS = st.sampled_from(NASTY) | st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20
)


def hostile_plan(text: str, engine: str) -> Any:
    pools = tuple(replace(case, name=f"{text}{case.role}") for case in PAIR)
    return plan_of(pools, Ask(engine=engine, title=text))


LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def refused(target: str, text: str, label: str, image: str) -> bool:
    """Strings that no file could hold to any use."""
    pods = target in {"dynamo", "llm-d"}
    place = text[0] in ".~" or (text[0] == "/" and (":" in text or ".." in text.split("/") or not text.strip("/")))
    return "-" in (text[0], label[0], image[0]) or place or (pods and not LABEL.fullmatch(label))


@pytest.mark.parametrize("target", TARGET_NAMES)
@settings(max_examples=6)
@given(text=STRINGS, label=STRINGS | st.just("MY-H100"), image=STRINGS)
def test_no_string_is_code(target: str, text: str, label: str, image: str) -> None:
    asked = Options(target, options(target).version, model=text, image=image, labels={"H100": label})
    if refused(target, text, label, image):
        with pytest.raises(InputError, match=r"dash|folder|label"):
            deployment_files(hostile_plan(text, ENGINES[target]), asked)
        label = "MY-H100"
    if refused(target, text, label, image):
        return
    asked = replace(asked, labels={"H100": label})
    files = deployment_files(hostile_plan(text, ENGINES[target]), asked)
    assert not [path for path in files if not re.fullmatch(r"[a-zA-Z0-9_./-]+", path) or ".." in path]
    for path, content in files.items():
        if path.endswith((".yaml", ".yml")):
            list(yaml.safe_load_all(content))
        elif path.endswith(".sh") and path != "slurm.sh":
            commands = [line for line in content.splitlines() if not line.startswith("#")]
            assert len(commands) <= 30
            assert shlex.split(commands[-1])[0] == "exec"
    for *_, flags, pod in started(files):
        assert text in {flags.get("--model"), flags.get("--model-path"), flags.get("")}
        if pod is not None:
            assert pod["spec"]["containers"][0]["image"] == image
            assert pod["spec"]["nodeSelector"]["nvidia.com/gpu.product"] in {label, "NVIDIA-H200"}


def test_a_shell_reads_back_one_word_each() -> None:
    line = " ".join(map(shell_text, NASTY))
    done = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert tuple(done.stdout.splitlines()) == NASTY
    assert not Path("/tmp/pdplan-owned").exists()


LABELS = ("MY H100", "-H100", "H" * 64, "H100/80")
FOLDERS = ("./mine", "../mine", "~/mine", "/a:b", "/a/../b", "/", "//")
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("dynamo", {"namespace": "a b"}),
    ("dynamo", {"namespace": "x;id"}),
    ("dynamo", {"rdma": "rdma"}),
    ("dynamo", {"image": "a\nb"}),
    ("dynamo", {"labels": {"H10O": "X"}}),
    ("dynamo", {"labels": {"B200": "X"}}),
    ("dynamo", {"labels": {"H100": ""}}),
    ("dynamo", {"claim": "my models"}),
    ("dynamo", {"claim": "models", "model": "/models/mine"}),
    ("vllm", {"claim": "models"}),
    ("vllm", {"bytes_per_token": 3.0}),
    *((target, {"labels": {"H100": label}}) for target in ("dynamo", "llm-d") for label in LABELS),
    *(("vllm", {"model": text}) for text in ("", "  ", "-model", "a\nb", "a\0b", "\x1b[31m", *FOLDERS)),
]
"""Options of no use, and their target."""


def test_golden_refusals_of_options() -> None:
    text = ""
    for target, more in WRONG:
        with pytest.raises(InputError) as refused:
            deployment_files(plan_of(), options(target, **more))
        text += f"{target}: {refused.value}\n"
    assert_golden("deploy/options.txt", text)


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_files_are_written_whole_and_the_same_again(target: str, tmp_path: Path) -> None:
    plan, asked = plan_of(ask=Ask(engine=ENGINES[target])), options(target)
    written = write_deployment(plan, asked, tmp_path / "one")
    write_deployment(plan, asked, tmp_path / "two")
    assert {path.relative_to(tmp_path / "one") for path in written} == {
        path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()
    }
    for path in written:
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
        assert bool(path.stat().st_mode & 0o100) == (path.suffix == ".sh")
    assert (tmp_path / "one" / "README.md").read_text("utf-8").startswith(MARKER)


def test_a_directory_with_something_in_it_is_kept(tmp_path: Path) -> None:
    plan, asked = plan_of(), options("vllm")
    (tmp_path / "mine.txt").write_text("keep", "utf-8")
    with pytest.raises(InputError, match="is not empty; choose another directory"):
        write_deployment(plan, asked, tmp_path)
    with pytest.raises(InputError, match="holds something else than a deployment"):
        write_deployment(plan, asked, tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("last", [0, 3, 9])
def test_a_failure_leaves_no_half_of_a_deployment(last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up, or a rename that fails, after so many files."""
    small = plan_of((Case("colocated", tokens=8192),))
    write_deployment(small, options("vllm"), tmp_path / "old")
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()}

    def failing(real: Any) -> Any:
        calls = iter(range(100))

        def call(*arguments: Any) -> Any:
            if next(calls) >= last:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        return call

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing(getattr(os, name)))
            with pytest.raises(InputError, match="cannot be written: No space left on device"):
                write_deployment(plan_of(), options("vllm"), tmp_path / "new")
            assert not (tmp_path / "new").exists()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync))
        with pytest.raises(InputError, match="cannot be written: No space left on device"):
            write_deployment(plan_of(), options("vllm"), tmp_path / "old", force=True)
    assert {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()} == before


def test_force_replaces_only_what_the_old_deployment_lists(tmp_path: Path) -> None:
    small = plan_of((Case("colocated", tokens=8192),))
    write_deployment(small, options("vllm"), tmp_path)
    new = next(path for path in write_deployment(plan_of(), options("vllm"), tmp_path / "x") if "workers" in path.parts)
    mine = tmp_path / new.relative_to(tmp_path / "x")
    shutil.rmtree(tmp_path / "x")
    assert not mine.exists()
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=f"{mine.name} was not written by pdplan; choose another directory"):
        write_deployment(plan_of(), options("vllm"), tmp_path, force=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("own", [{}, {"HOST_H100_0": "10.0.0.1"}], ids=["unchanged", "changed"])
def test_force_keeps_the_addresses_of_hosts(own: dict[str, str], tmp_path: Path) -> None:
    """Also those of a plan with more hosts or fewer, but for that of a host on its own, 127.0.0.1."""
    single, pair, hosts = plan_of((Case("colocated", tokens=8192),)), plan_of(), tmp_path / "hosts.env"
    planned = {"HOST_H100_0": "h100-0", "HOST_H200_0": "h200-0"} | own
    write_deployment(pair, options("vllm"), tmp_path)
    text = f"{hosts.read_text('utf-8')}# mine\n"
    for name, address in own.items():
        text = re.sub(rf"(?m)^{name}=.*", f"{name}={address}", text)
    hosts.write_text(text)
    write_deployment(pair, options("vllm"), tmp_path, force=True)
    assert hosts.read_text("utf-8") == text, "of the same hosts, all of the file is kept"
    for plan, expected in ((pair, planned), (single, {"HOST_H100_0": "127.0.0.1"} | own), (pair, planned)):
        for _ in range(2):
            write_deployment(plan, options("vllm"), tmp_path, force=True)
            text = hosts.read_text("utf-8")
            assert dict(re.findall(r"(?m)^(\w+)=(.*)$", text)) == expected
            assert f"{sha256(text.encode()).hexdigest()}  hosts.env" in (tmp_path / "SHA256SUMS").read_text("utf-8")


@pytest.mark.parametrize("name", ["slurm.sh", "benchmark/run.sh", "workers/prefill-1-0.sh"])
def test_force_refuses_a_file_that_was_changed(name: str, tmp_path: Path) -> None:
    write_deployment(plan_of(), options("vllm"), tmp_path)
    (tmp_path / name).write_text("mine", "utf-8")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for plan in (plan_of(), plan_of((Case("colocated", tokens=8192),))):  # the latter lacks the worker
        with pytest.raises(InputError, match=f"{Path(name).name} was changed after pdplan wrote it; move it away"):
            write_deployment(plan, options("vllm"), tmp_path, force=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / name).unlink()
    assert tmp_path / name in write_deployment(plan_of(), options("vllm"), tmp_path, force=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_files(name: str) -> None:
    """The files of a plan, all in one text: a changed template is a readable diff."""
    _, files = example(name)
    shown = {path: text for path, text in files.items() if re.match(EXAMPLES[name][2], path)}
    assert_golden(f"deploy/{name}.txt", "".join(f"=== {path}\n{content}" for path, content in shown.items()))


SCHEMAS = {
    "DynamoGraphDeployment": "dynamo_dgd_v1beta1.schema.json",
    "InferencePool": "inferencepool_v1.schema.json",
    "LeaderWorkerSet": "leaderworkerset_v1.schema.json",
    "DisaggregatedSet": "disaggregatedset_v1.schema.json",
    "services": "compose-spec.json",
}
"""By the kind of a resource, or a key at the top."""


def test_manifests_pass_the_schemas_of_their_resources(data: Path) -> None:
    """Strictly: what an object of known fields does not know fails."""
    judged = Counter[str]()
    for name in EXAMPLES:
        files = example(name)[1]
        documents = [one for path, text in files.items() if path.endswith(".yaml") for one in yaml.safe_load_all(text)]
        for document in (one for one in documents if isinstance(one, dict)):
            kind = str(document.get("kind", "services" if "services" in document else ""))
            if kind in SCHEMAS:
                schema = json.loads((data / "deploy" / "schemas" / SCHEMAS[kind]).read_text("utf-8"))
                judge = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
                judge.validate(document)
                assert not judge.is_valid(document | {"unheardOf": 1}) or kind != "services"
                judged[kind] += 1
    assert set(judged) == set(SCHEMAS)


@pytest.mark.parametrize(("engine", "gpus"), [("vllm", ("H100", "H200")), ("sglang", ("MI300X", "MI300X"))])
def test_a_job_of_slurm_starts_every_replica_on_its_node(tmp_path: Path, engine: str, gpus: tuple[str, str]) -> None:
    pools = (Case("prefill", gpus[0], replicas=2, tp=8, seqs=8, tokens=8192), Case("decode", gpus[1], tp=8))
    write_deployment(plan_of(pools, Ask("Llama-3.1-70B", engine=engine)), options(engine), tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    said = 'echo "$*" >> started'
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("scancel", said), ("sleep", "exec /bin/sleep 0.2")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (programs / name).chmod(0o755)
    lists = {"SLURM_JOB_NODELIST": "n", "SLURM_JOB_NODELIST_HET_GROUP_0": "p", "SLURM_JOB_NODELIST_HET_GROUP_1": "d"}
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", **lists}
    job = subprocess.Popen(["bash", "slurm.sh"], cwd=tmp_path, env=env, start_new_session=True)
    try:
        assert job.wait(20) == 0
    finally:
        os.killpg(job.pid, signal.SIGKILL)
    started = (tmp_path / "started").read_text("utf-8").splitlines()
    addresses = dict(line.split("=") for line in (tmp_path / "hosts.env").read_text("utf-8").splitlines())
    apart = gpus[0] != gpus[1]
    first, second, last = ("p-a", "p-b", "d-a") if apart else ("n-a", "n-b", "n-c")
    assert list(addresses.values()) == [first, second, last]
    scripts = {line.split()[-1]: line for line in started if "workers/" in line}
    routers = {line for line in started if line.endswith("./router.sh")}
    assert len(routers) == 2, "those that ended start again where they were"
    assert {name.removeprefix("workers/") for name in scripts} == {"prefill-1-0.sh", "prefill-1-1.sh", "decode-2-0.sh"}
    assert f"--nodelist={second} " in scripts["workers/prefill-1-1.sh"]
    assert ("--het-group=1" in scripts["workers/decode-2-0.sh"]) == apart
    assert "--signal=TERM 7" in started, "replicas are told that the job's time is up"
    script = (tmp_path / "slurm.sh").read_text("utf-8")
    assert script.count(f"--gres=gpu:{gpus[0].lower()}:8") == 1, "the type is stated, though there be one only"
    parts = script.partition("\n# ")[0].split("#SBATCH hetjob\n")
    assert len(parts) == 1 + apart
    assert all("--signal=B:TERM@" in part for part in parts), "options are of one component each"


SRUN = """echo "$*" >> started
test $(grep -c router.sh started) -lt 4 || kill -TERM $(cut -d" " -f6 /proc/$$/stat)
"""
"""A replica that ends at once; when both routers were started twice, the job's time is up."""
SCONTROL = 'test "$1" = requeue || printf "%s\\n" "$3-a" "$3-b" "$3-c"'


def test_cores_of_a_cpu_stand_in_for_gpus() -> None:
    """golden/deploy/vllm-cpu.txt has the rest."""
    deployment, files = example("vllm-cpu")
    kv_bytes = kv_capacity_bytes(deployment.model, deployment_of(plan_of(), "vllm").pools[1].config)
    assert f"export VLLM_CPU_KVCACHE_SPACE={round(2 * kv_bytes / GIB)}\n" in files["workers/decode-2-0.sh"]
    assert not [path for path, text in files.items() if path.startswith("workers/") and "cuda" in text.lower()]
    assert read_record(files[RECORD]).options == EXAMPLES["vllm-cpu"][1]


# --- models whose rotary embedding is scaled: every engine is told what it needs to start with the planned context

YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
"""What its model card says to add for 131,072 tokens."""
PUBLIC = "Qwen/Qwen3-8B"
ABLE = ("vllm", "dynamo", "llm-d", "sglang")
"""Targets whose engines can be told."""


def scaled_plan(folder: Path, engine: str) -> Plan:
    """A plan whose model is described by a config.json of the user's."""
    published = shipped_table("costmodel", "catalog/models/Qwen3-8B.yaml")["config"]
    file = folder / "config.json"
    file.write_text(json.dumps({**published, "rope_theta": 1_000_000, "rope_scaling": YARN}), "utf-8")
    pools = (Case("prefill", seqs=8, tokens=8192, length=100_000), Case("decode", "H200", seqs=32, length=100_000))
    plan = plan_of(pools, Ask("Qwen3-8B", engine=engine))
    model = {"config": str(file), "weight_dtype": "bf16", "kv_dtype": "bf16"}
    return with_inputs(plan, model=model)


def test_golden_lines(tmp_path: Path) -> None:
    """How each target states it, in both cases."""
    lines = []
    for target in ABLE:
        plan = scaled_plan(tmp_path, ENGINES[target])
        for case, more in (("served as described", {}), ("served as published", {"model": PUBLIC})):
            if target == "llm-d" and not more:  # its chart fetches weights by their id only
                continue
            files = deployment_files(plan, options(target, **more))
            texts = {path: text for path, text in files.items() if not path.startswith(("benchmark/", "planner"))}
            for path, text in texts.items():
                found = [one for one in re.split(r"\n| (?=--)", text) if "max_position_embeddings" in one]
                lines += [f"{target}, {case}: {path}: {one.strip()}\n" for one in found]
    text = "".join(lines).replace(str(tmp_path), "/models/qwen3")
    assert_golden("deploy/context.txt", text)


# --- a refusal names another target only where that one runs the plan, and every reason why this one does not


def unproven(plan: Plan) -> Plan:
    """The plan as simulated, with a least-requests router under which it is not shown to hold."""
    return simulated(plan, judged(held=False))


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize(
    "plan",
    [parted_plan(), lengths_plan(), plan_of((Case("colocated", replicas=2),)), plan_of((Case("colocated", pp=2),))],
    ids=["by length", "prefill by length", "alike", "pipeline"],
)
@pytest.mark.parametrize("proven", [True, False], ids=["proven", "unproven"])
def test_a_target_that_is_named_runs_the_plan(plan: Plan, target: str, *, proven: bool) -> None:
    seen = plan if proven else unproven(plan)
    try:
        deployment_files(seen, options(target))
    except InputError as refused:
        named = re.search(r"; or choose --target (.*), which runs? this plan as it is$", str(refused))
        for other in re.split(", | or ", named[1]) if named else []:
            assert deployment_files(seen, options(other))


def test_a_set_has_less_room_for_names() -> None:
    long = Ask("DeepSeek-V3", "fp8", title="a-name-of-20-letters")
    plan = plan_of((replace(RANKS[0], name="b-name-of-20-letters"), RANKS[1]), long)
    assert "and 37 are allowed" in str(refusal(plan, options("llm-d")))
    assert "and 37 are allowed" not in str(refusal(by_day(plan), options("llm-d")))


BUSY = {
    40.0: (Case("colocated", replicas=5, tokens=2048),),
    75.0: (Case("colocated", replicas=5, tokens=2048),),
    110.0: (Case("prefill", replicas=4, tokens=8192, seqs=16), Case("decode", replicas=3, tokens=512, seqs=128)),
}
"""Fleets by the rate of the day, which needs three of five replicas, and all."""


@pytest.mark.parametrize("most", BUSY)
def test_keda_runs_the_replicas_that_autoscale_finds(most: float) -> None:
    """At every rate of the day that is not within 3 % of the highest from one at which the need changes."""
    plan = plan_of(BUSY[most])
    load = plan.workload.model_copy(update={"request_rate_rps": most})
    plan = by_day(plan.model_copy(update={"workload": load, "status": Status.STATED}))
    instance, fleet = fleet_of_plan(plan)
    volumes = np.arange(0.1, 1.02, 0.03).tolist()
    needs = [replicas_at(instance, fleet, volume).tolist() for volume in volumes]
    objects = yaml.safe_load_all(deployment_files(plan, options("llm-d"))["autoscale.yaml"])
    for index, spec in enumerate(scaler["spec"] for scaler in objects):
        rate, in_flight = (trigger["metadata"] for trigger in spec["triggers"])
        offset, step = map(float, re.findall(r"(?:\+|/) ([\d.]+)", rate["query"]))
        assert float(rate["threshold"]) == 1.0
        seen = set[int]()
        for number in range(1, len(needs) - 1):
            need, wanted = needs[number], math.ceil((most * volumes[number] + offset) / step)
            wanted = min(wanted, spec["maxReplicaCount"])
            if needs[number - 1][index] == needs[number + 1][index]:
                assert wanted == need[index], volumes[number]
                seen.add(wanted)
            state = evaluate(instance, fleet.resized(need), volumes[number]).states[index]
            assert state.running < 1.1 * float(in_flight["threshold"]), "requests in flight ask for no more"
        assert seen == set(range(spec["minReplicaCount"], needs[-1][index] + 1))


def test_pools_longer_than_the_models_positions_are_refused() -> None:
    plan = plan_of((Case("colocated"),))
    longer = plan.model_copy(update={"pools": [plan.pools[0].model_copy(update={"max_model_len": 131_088})]})
    said = str(refusal(longer, options("vllm")))
    assert "requests of 131,088 tokens are longer than the 131,072 positions" in said
