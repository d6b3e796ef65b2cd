"""The benchmark beside a deployment: it replays the planned workload, and what it measured is judged."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.prefix_cache import fixed, uniform_reuse
from optimizer.plans.plan import MetricResult, Plan
from optimizer.plans.records import Quantiles
from pdplan.api import read_plan
from pdplan.cli import run
from pdplan.commands.predictions import calibrate
from pdplan.exits import ExitCode
from reports.answers.measured import comparison_dict
from reports.deploy.deployment import PlannedWorkload
from reports.deploy.describe import describe
from reports.deploy.files import README, checked_directory, deployment_files, write_deployment
from reports.deploy.measurement import drawn_rows, job_script, watches
from search_spaces.problem import Recorded
from tests.deploy_cases import Ask, Case, deployment_of, options, plan_of, two_classes, with_inputs
from tests.golden_files import assert_golden
from tests.running import QUICK, tiny, within


def planned(share: float, seed: int) -> PlannedWorkload:
    """Two lengths of prompts, of which a share is in prefixes."""
    isl, osl, shares = np.array([4000.0, 9000.0]), np.array([10.0, 20.0]), np.array([0.5, 0.5])
    return PlannedWorkload(isl, osl, shares, request_rate=5.0, prefix_hit_share=share, seed=seed)


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


def test_a_limit_on_whole_requests_is_watched_where_every_class_has_one() -> None:
    """No alert where a class has no such limit; with e2e alone, no sentence speaks of a TTFT limit."""
    both = two_classes()
    whole = both.model_copy(update={"classes": both.classes[1:]})
    limited, unlimited = ({row["name"]: row for row in watches(deployment_of(plan, "vllm"))} for plan in (whole, both))
    assert limited["e2e"]["limit"] == 60.0
    parts = [text.partition("_bucket")[0] for text in limited["e2e"]["expression"].split("rate(")[1:]]
    assert parts == ["vllm:e2e_request_latency_seconds"] * 2  # of the prompt, then of all later tokens
    assert limited["ttft"]["limit"] is limited["tpot"]["limit"] is None
    assert "within the limit of e2e" in limited["queue"]["says"]
    assert "e2e" not in unlimited
    assert "within the limit of TTFT" in unlimited["queue"]["says"]


@settings(max_examples=30)
@given(share=st.floats(0.05, 0.8), seed=st.integers(0, 50))
def test_prefixes_are_shared_as_planned(share: float, seed: int) -> None:
    rows = [row for _, row in drawn_rows(planned(share, seed))]
    seen: set[int] = set()
    hits = 0
    for row in rows:
        blocks = row["hash_ids"]
        assert len(blocks) == -(-row["input_length"] // 128)
        hits += 128 * sum(block in seen for block in blocks)
        seen |= set(blocks)
    assert hits / sum(row["input_length"] for row in rows) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("replicas", [1, 3])
def test_who_shares_a_prefix_is_as_planned(replicas: int) -> None:
    """A router that does not know prefixes finds fewer of them in caches that keep them for 70 s, used after 60 s."""
    plain = planned(0.4, 1)
    rows = [row for _, row in drawn_rows(replace(plain, reuse=uniform_reuse(plain.isl, 0.4, fixed(60.0)), keeps=70.0))]
    generator, hits, used = np.random.default_rng(0), 0, [dict[int, float]() for _ in range(replicas)]
    late = [row for row in rows if row["timestamp"] > 60_000.0]
    for row in rows:
        cache = used[generator.integers(replicas)]
        hits += (
            128
            * sum(row["timestamp"] - cache.get(block, -math.inf) < 70_000.0 for block in row["hash_ids"])
            * (row in late)
        )
        cache |= dict.fromkeys(row["hash_ids"], row["timestamp"])
    assert hits / sum(row["input_length"] for row in late) == pytest.approx(0.4 / replicas, abs=0.04)


def test_a_benchmark_of_a_recording_has_its_requests() -> None:
    generator = np.random.default_rng(3)
    isl, osl = generator.integers(100, 9000, 400), generator.integers(1, 300, 400)
    recording = Recorded("trace", 400, 0, 100.0, np.sort(generator.uniform(0.0, 100.0, 400)), isl, osl)
    rows = [row for _, row in drawn_rows(replace(planned(0.0, 1), recorded=recording))]
    assert {(row["input_length"], row["output_length"]) for row in rows} <= set(
        zip(isl.tolist(), osl.tolist(), strict=True)
    )


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


# --- the benchmark of a deployment closes the circle: what it measures stands beside the promise, and calibrates

SAMPLE = Path(__file__).parent / "benchmark_results" / "profile_export_aiperf.json"
PLAN = plan_of((Case("colocated", tp=2, replicas=2, tokens=8192),))


def result(folder: Path, plan: Plan = PLAN, *, ttft: float = 0.2, tpot: float = 0.012) -> Path:
    """AIPerf's summary of a run of the emitted workload, with these latencies [s]."""
    lines = deployment_files(plan, options("vllm"))["benchmark/workload.jsonl"].splitlines()
    rows = [json.loads(line) for line in lines]
    seconds = rows[-1]["timestamp"] / 1e3
    found: dict[str, Any] = json.loads(SAMPLE.read_text("utf-8"))
    found["input_sequence_length"] = {"unit": "tokens", "avg": float(np.mean([row["input_length"] for row in rows]))}
    found["output_sequence_length"] = {"unit": "tokens", "avg": float(np.mean([row["output_length"] for row in rows]))}
    for name, value in (("time_to_first_token", ttft), ("inter_token_latency", tpot)):
        found[name] = {"unit": "ms", "avg": value * 1e3, "p50": value * 1e3, "p90": value * 2e3, "p99": value * 3e3}
    found["request_count"]["avg"] = len(rows)
    found["benchmark_duration"]["avg"] = seconds
    found["request_throughput"]["avg"] = len(rows) / seconds
    found["output_token_throughput"]["avg"] = found["output_sequence_length"]["avg"] * len(rows) / seconds
    found["input_config"] = {"endpoint": {"model_names": ["meta-llama/Llama-3.1-8B"]}, "loadgen": {}}
    path = folder / "profile_export_aiperf.json"
    path.write_text(json.dumps(found), "utf-8")
    return path


def plan_file(folder: Path) -> Path:
    path = folder / "plan.json"
    path.write_text(PLAN.model_dump_json(by_alias=True), "utf-8")
    return path


def test_what_was_measured_stands_beside_what_was_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["validate", "--against", str(result(tmp_path)), "--plan", str(plan_file(tmp_path))]
    assert run(arguments) == ExitCode.INFEASIBLE
    text = " ".join(capsys.readouterr().out.split())
    assert "2,250 requests at 7." in text
    assert "planned 7.5 req/s" in text
    assert run([*arguments, "--json"]) == ExitCode.INFEASIBLE
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "pdplan.measured/1"
    assert value["planned_requests_per_second"] == 7.5
    (one,) = value["runs"]
    assert one["requests"] == 2250
    slower = {row["name"]: row["slower"] for row in one["latencies"]}
    promised = PLAN.ttft_s
    assert slower["TTFT p50"] == pytest.approx(0.2 / promised.p50 - 1.0)
    assert slower["TTFT p99"] == pytest.approx(0.6 / promised.p99 - 1.0)
    assert list(slower) == [f"{metric} {name}" for metric in ("TTFT", "TPOT") for name in ("p50", "p90", "p99")]


def test_whole_requests_are_compared_where_the_slo_limits_them(tmp_path: Path) -> None:
    """A measured median of 25 s is a quarter slower than the predicted 20 s."""
    whole = MetricResult(limit_s=60.0, quantiles_s=Quantiles(20.0, 40.0, 45.0, 55.0))
    limited = PLAN.classes[0].model_copy(update={"metrics": {Metric.E2E: whole}})
    path = result(tmp_path)
    measured = json.loads(path.read_text("utf-8"))
    measured["request_latency"] = {"unit": "ms", "avg": 26e3, "p50": 25e3, "p90": 40e3, "p99": 44e3}
    path.write_text(json.dumps(measured), "utf-8")
    (compared,) = comparison_dict(PLAN.model_copy(update={"classes": [limited]}), path)["runs"]
    slower = {row["name"]: row["slower"] for row in compared["latencies"] if row["name"].startswith("e2e")}
    assert slower == pytest.approx({"e2e p50": 0.25, "e2e p90": 0.0, "e2e p99": -0.2})


def test_an_alternative_is_compared_with_its_own_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", str(tiny(tmp_path)), *QUICK, "-o", str(tmp_path)]) == ExitCode.DONE
    path = tmp_path / "plan.json"
    second = read_plan(path, 2)
    assert second.ttft_s != read_plan(path).ttft_s
    capsys.readouterr()
    against = ["--against", str(result(tmp_path, read_plan(path))), "--plan", str(path), "--alternative", "2"]
    run(["validate", *against, "--json"])
    (runs,) = json.loads(capsys.readouterr().out)["runs"]
    slower = {row["name"]: row["slower"] for row in runs["latencies"]}
    assert slower["TTFT p50"] == pytest.approx(0.2 / second.ttft_s.p50 - 1.0)
    write_deployment(second, options("vllm"), tmp_path / "second")
    assert (
        "--plan <the fleet.yaml, or the plan.json with --alternative N>" in (tmp_path / "second" / README).read_text()
    )
    names = {describe(read_plan(path, number), options("vllm")).name for number in (1, 2)}
    assert names == {"tiny", "tiny-fleet-2"}, "objects of two of a plan's fleets may stand in one namespace"
    with pytest.raises(InputError, match=r"a deployment of 'tiny fleet 2', not of 'tiny'; check it .* --alternative$"):
        checked_directory(read_plan(path), tmp_path / "second")
    assert checked_directory(second, tmp_path / "second") == ([], [])


@pytest.mark.parametrize("balancing", ["least-requests", "least-tokens"])
def test_a_page_says_whether_the_plan_counts_on_prefixes_of_other_replicas(balancing: str) -> None:
    """Where a reuse interval is stated, a plan for a least-requests router counts what that finds: nothing is amiss."""
    plan = plan_of((Case("colocated", replicas=3, tokens=8192),), Ask(prefix=0.25))
    reused = plan.provenance.inputs["workload"] | {"reuse_interval": "60s"}
    page = deployment_files(with_inputs(plan, workload=reused, constraints={"balancing": balancing}), options("vllm"))[
        README
    ]
    scattered = balancing == "least-tokens"
    assert ("computed again: up to 33 % more prompt tokens than planned" in page) == scattered
    assert ("gets the next prompt; the plan assumed the prompt's prefix, then least-tokens" in page) == scattered
    assert ("gets the next prompt; the predictions on this page assume it" in page) != scattered


GOALS = {"time_to_first_token": 600.0, "inter_token_latency": 30.0}
ALL = {"good_request_fraction": 0.97}
"""What AIPerf counts itself, given the plan's limits."""
SEEN: tuple[tuple[float, float, dict[str, float]], ...] = (
    (0.2, 0.009, {}),
    (0.2, 0.031, {}),
    (0.4, 0.009, {}),
    (0.2, 0.012, {}),
    (0.2, 0.012, ALL),
    (0.2, 0.031, {"good_request_fraction": 0.4}),
    (0.2, 0.012, {**ALL, "request_count": 40.0}),
    (0.2, 0.009, {"completed_request_count": 3000.0}),
    (0.2, 0.009, {"completed_request_count": 2368.0}),
    (0.2, 0.009, {"request_throughput": 5.0}),
    (0.2, 0.031, {"request_throughput": 9.0}),
    (0.2, 0.009, {"request_throughput": 9.0}),
    (0.2, 0.009, {"concurrency": 40.0}),
    (0.2, 0.031, {"concurrency": 40.0}),
)
"""TTFT and TPOT [s], and what else AIPerf counted, or the concurrency that it was told to keep."""


def test_golden_verdicts(tmp_path: Path) -> None:
    """Of quantiles p50, p90 = 2 p50, p99 = 3 p50, or of AIPerf's own count where it had the plan's limits."""
    text, plan = "", plan_file(tmp_path)
    for ttft, tpot, counted in SEEN:
        path = result(tmp_path, ttft=ttft, tpot=tpot)
        measured = json.loads(path.read_text("utf-8")) | {name: {"avg": value} for name, value in counted.items()}
        measured["input_config"]["endpoint"]["use_server_token_count"] = True
        measured["input_config"] |= {"slos": GOALS, "loadgen": {"concurrency": counted.get("concurrency")}}
        path.write_text(json.dumps(measured), "utf-8")
        done = within("validate", "--against", path, "--plan", plan)
        text += f"### {ttft} s, {tpot} s, {counted}: {done.returncode}\n"
        text += " ".join(done.stdout.rstrip().split("\n\n")[-1].split()) + "\n"
    assert_golden("measured.txt", text)


def test_a_run_of_another_model_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = result(tmp_path)
    path.write_text(path.read_text("utf-8").replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"), "utf-8")
    assert run(["validate", "--against", str(path), "--plan", str(plan_file(tmp_path))]) == ExitCode.BAD_INPUT
    assert "it ran Qwen3-8B, not Llama-3.1-8B, so it did not measure the plan's fleet" in capsys.readouterr().err


def test_seconds_called_milliseconds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = result(tmp_path, ttft=0.2e-3, tpot=0.009e-3)
    assert run(["validate", "--against", str(path), "--plan", str(plan_file(tmp_path))]) == ExitCode.BAD_INPUT
    error = capsys.readouterr().err
    assert "most latencies are over 20 times shorter than planned, such as 200 µs in place of" in error
    assert "check their unit (milliseconds, seconds)" in error


@pytest.mark.parametrize("apart", [False, True])
def test_the_calibration_of_the_sweep_is_of_what_was_swept(apart: bool) -> None:
    """Equal replicas share the sweep; where prefill and decode are apart it goes to one decode replica."""
    cases = (
        (Case("prefill", tp=2, replicas=3), Case("decode", tp=4, replicas=2))
        if apart
        else (Case("colocated", tp=2, replicas=2),)
    )
    plan = plan_of(cases)
    page = deployment_files(plan, options("vllm"))["README.md"]
    (line,) = (line for line in page.splitlines() if line.startswith("    pdplan calibrate "))
    words = dict(calibrate.make_context("calibrate", shlex.split(line)[2:]).params)
    pool = plan.pools[-1]
    assert (words["model"], words["gpu"], words["engine"]) == (plan.model, pool.accelerator, "vllm")
    assert (words["tp"], words["replicas"]) == ((4, 1) if apart else (2, 2))
    assert (words["weight_dtype"], words["kv_dtype"]) == (pool.weight_dtype, pool.kv_dtype)
    assert words["max_num_seqs"] == pool.max_num_seqs
