"""The benchmark beside a deployment: it replays the planned workload, and its job's log is the result."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.deploy.benchmark import bucket_counts, job_script, shared_blocks, trace_rows
from reports.deploy.description import Demand
from reports.deploy.files import deployment_files
from tests.deploy_cases import options, plan_of


@pytest.mark.parametrize("works", [True, False])
def test_the_log_of_the_benchmark_job_is_its_result(works: bool, tmp_path: Path) -> None:
    """The job's script in a shell where pip and aiperf are stubs that say a lot."""
    (tmp_path / "pip").write_text("#!/bin/sh\necho installing; echo warning >&2\n", "utf-8")
    make = "mkdir -p results; echo '{}' > results/profile_export_aiperf.json" if works else "exit 7"
    (tmp_path / "aiperf").write_text(f"#!/bin/sh\necho progress\n{make}\n", "utf-8")
    for name in ("pip", "aiperf"):
        (tmp_path / name).chmod(0o755)
    script = job_script("aiperf profile").replace("cd /tmp", f"cd {tmp_path}")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if works else 1)
    assert done.stdout == ("{}\n" if works else "installing\nwarning\nprogress\n")


def test_the_trace_is_the_planned_workload() -> None:
    demand = Demand(10.0, 1.0, 0.0, (100.0, 3000.0), (10.0, 200.0), (0.25, 0.75), seed=1)
    rows = trace_rows(demand)
    assert len(rows) == 3000
    assert sum(row["input_length"] == 100 for row in rows) == 750
    span = (rows[-1]["timestamp"] - rows[0]["timestamp"]) / 1e3
    assert len(rows) / span == pytest.approx(10.0, rel=0.05)
    assert rows == trace_rows(demand)
    assert rows != trace_rows(Demand(10.0, 1.0, 0.0, (100.0, 3000.0), (10.0, 200.0), (0.25, 0.75), seed=2))


@settings(deadline=None, max_examples=30)
@given(share=st.floats(0.05, 0.8), seed=st.integers(0, 50))
def test_prefixes_are_shared_as_planned(share: float, seed: int) -> None:
    rows = trace_rows(Demand(5.0, 1.0, share, (4000.0, 9000.0), (10.0, 20.0), (0.5, 0.5), seed))
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


def test_the_benchmark_aims_at_the_limits() -> None:
    files = deployment_files(plan_of(), options("vllm"))
    words = shlex.split(files["benchmark/run.sh"].splitlines()[-1])
    assert words[words.index("--goodput") + 1] == "time_to_first_token:600 inter_token_latency:30"
    first = json.loads(files["benchmark/workload.jsonl"].splitlines()[0])
    assert first["timestamp"] == 0.0
