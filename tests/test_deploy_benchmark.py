"""The benchmark beside a deployment: it replays the planned workload, and its job's log is the result."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from reports.deploy.deployment import Demand
from reports.deploy.describe import demand_of
from reports.deploy.files import deployment_files
from reports.deploy.measurement import bucket_counts, drawn_rows, job_script, shared_blocks
from tests.deploy_cases import options, plan_of, two_classes


@pytest.mark.parametrize("works", [True, False])
def test_the_log_of_the_benchmark_job_is_its_result(works: bool, tmp_path: Path) -> None:
    """The job's script in a shell where aiperf is a stub that says a lot."""
    make = "mkdir -p results; echo '{}' > results/profile_export_aiperf.json" if works else "exit 7"
    (tmp_path / "aiperf").write_text(f"#!/bin/sh\necho progress; echo warning >&2\n{make}\n", "utf-8")
    (tmp_path / "aiperf").chmod(0o755)
    script = job_script("aiperf profile").replace("cd /tmp", f"cd {tmp_path}")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if works else 1)
    assert done.stdout == ("{}\n" if works else "progress\nwarning\n")


def test_the_trace_is_the_planned_workload() -> None:
    demand = Demand(10.0, 1.0, 0.0, (100.0, 3000.0), (10.0, 200.0), (0.25, 0.75), seed=1)
    drawn = drawn_rows(demand)
    rows = [row for _, row in drawn]
    assert len(rows) == 3000
    assert sum(row["input_length"] == 100 for row in rows) == 750
    span = (rows[-1]["timestamp"] - rows[0]["timestamp"]) / 1e3
    assert len(rows) / span == pytest.approx(10.0, rel=0.05)
    assert drawn == drawn_rows(demand)
    assert drawn != drawn_rows(Demand(10.0, 1.0, 0.0, (100.0, 3000.0), (10.0, 200.0), (0.25, 0.75), seed=2))


@settings(deadline=None, max_examples=30)
@given(share=st.floats(0.05, 0.8), seed=st.integers(0, 50))
def test_prefixes_are_shared_as_planned(share: float, seed: int) -> None:
    rows = [row for _, row in drawn_rows(Demand(5.0, 1.0, share, (4000.0, 9000.0), (10.0, 20.0), (0.5, 0.5), seed))]
    seen: set[int] = set()
    hits = 0
    for row in rows:
        blocks = row["hash_ids"]
        assert len(blocks) == -(-row["input_length"] // 128)
        hits += 128 * sum(block in seen for block in blocks)
        seen |= set(blocks)
    assert hits / sum(row["input_length"] for row in rows) == pytest.approx(share, abs=0.01)


def test_counts_add_up() -> None:
    assert bucket_counts((0.1, 0.2, 0.7), 10).tolist() == [1, 2, 7]
    assert int(bucket_counts((1 / 3, 1 / 3, 1 / 3), 10).sum()) == 10
    assert shared_blocks(np.array([128, 256, 1280]), 0.5).tolist() == [0, 1, 5]


@pytest.mark.parametrize("target", ["vllm", "dynamo"])
def test_every_class_has_its_own_trace_limits_and_result(target: str) -> None:
    files = deployment_files(two_classes(), options(target))
    names = ("benchmark/workload-interactive.jsonl", "benchmark/workload-class-2.jsonl")
    traces = [[json.loads(line) for line in files[name].splitlines()] for name in names]
    assert [{row["input_length"] for row in rows} for rows in traces] == [{512}, {2048}]
    both = sorted(row["timestamp"] for rows in traces for row in rows)
    assert both == [row["timestamp"] for _, row in drawn_rows(demand_of(two_classes()))]
    runs = [shlex.split(line) for line in files["benchmark/run.sh"].splitlines() if line.startswith("aiperf")]
    goals = [words[words.index("--goodput") + 1] for words in runs]
    assert goals == ["time_to_first_token:600 inter_token_latency:30", "request_latency:60000"]
    folders = [words[words.index("--output-artifact-dir") + 1] for words in runs]
    assert folders == ["results-interactive", "results-class-2"]
    page = files["README.md"]
    assert "- interactive: TTFT within 600 ms and TPOT within 30 ms for 95 % of its requests; predicted: " in page
    assert "--slo-class 'Day & night'" in page


@pytest.mark.parametrize("mode", ["replay", "sweep"])
def test_the_script_replays_or_sweeps_with_the_tokenizer_of_a_folder(mode: str, tmp_path: Path) -> None:
    """aiperf is a stub that writes down its words and whether it may look for a tokenizer itself."""
    script = tmp_path / "run.sh"
    script.write_text(deployment_files(plan_of(), options("vllm"))["benchmark/run.sh"], "utf-8")
    (tmp_path / "aiperf").write_text(f'#!/bin/sh\necho "${{HF_HUB_OFFLINE:-online}} $*" >> {tmp_path}/log\n', "utf-8")
    (tmp_path / "aiperf").chmod(0o755)
    (tmp_path / "model").mkdir()
    variables = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "TOKENIZER": "model"}
    words = ["bash", str(script), *["sweep"] * (mode == "sweep")]
    subprocess.run(words, env=os.environ | variables | {"URL": "http://there:1"}, cwd=tmp_path, check=True)
    calls = (tmp_path / "log").read_text("utf-8").splitlines()
    assert len(calls) == (8 if mode == "sweep" else 1)
    for call in calls:
        assert call.startswith("online ")
        assert f"--tokenizer {tmp_path}/model --url http://there:1 " in call
        assert "--use-server-token-count" in call
    if mode == "sweep":
        loads = [int(call.split("--concurrency ")[1].split()[0]) for call in calls]
        assert loads[:4] == loads[4:]
        assert loads[0] == 1
        counts = [int(call.split("--request-count ")[1].split()[0]) for call in calls]
        assert all(count >= 5 * load for count, load in zip(counts, loads, strict=True))
        assert len({call.split("--output-artifact-dir ")[1] for call in calls}) == 8


def test_a_missing_folder_is_said_at_once(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(deployment_files(plan_of(), options("vllm"))["benchmark/run.sh"], "utf-8")
    done = subprocess.run(
        ["bash", str(script)], env=os.environ | {"TOKENIZER": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "/nowhere is not a folder here; set TOKENIZER to one with the model's tokenizer\n"


def test_in_a_cluster_every_class_has_a_job() -> None:
    files = deployment_files(two_classes(), options("dynamo"))
    jobs = list(yaml.safe_load_all(files["benchmark/job.yaml"]))
    assert [job["metadata"]["name"].rpartition("benchmark")[2] for job in jobs] == ["-interactive", "-class-2"]
    for job, name in zip(jobs, ("workload-interactive.jsonl", "workload-class-2.jsonl"), strict=True):
        script = job["spec"]["template"]["spec"]["containers"][0]["command"][2]
        assert f"--input-file /workload/{name} " in script
        assert script.endswith('echo "$$(<results/profile_export_aiperf.json)"')  # Kubernetes takes $$( for $(
        assert "pip install" not in script
        assert f"--from-file=benchmark/{name}" in files["README.md"]


def test_the_demand_of_a_class_is_its_part_of_the_whole() -> None:
    plan = two_classes()
    whole, part = demand_of(plan), demand_of(plan, "interactive")
    assert part.rate == pytest.approx(whole.rate / 2)
    assert part.isl == (512.0,)
    with pytest.raises(InputError, match="--slo-class 'interactiv' is not known; did you mean 'interactive'"):
        demand_of(plan, "interactiv")


@pytest.mark.parametrize("works", [True, False])
def test_the_script_of_several_classes_fails_where_one_fails(works: bool, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(deployment_files(two_classes(), options("vllm"))["benchmark/run.sh"], "utf-8")
    fail = "" if works else "case $* in *class-2*) exit 7;; esac"
    (tmp_path / "aiperf").write_text(f"#!/bin/sh\necho run >> {tmp_path}/log\n{fail}\n", "utf-8")
    (tmp_path / "aiperf").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", str(script)], env=os.environ | {"PATH": path}, check=False)
    assert done.returncode == (0 if works else 7)
    assert (tmp_path / "log").read_text("utf-8") == "run\nrun\n"
