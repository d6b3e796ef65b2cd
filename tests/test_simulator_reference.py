"""Other simulators' cases, request by request: simdistserve to 1e-3 ms, Vidur to 1e-2 ms, steps equal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("peer", "tolerance", "cases"), [("simdistserve", 1e-3, 8), ("vidur", 1e-2, 12)])
def test_every_case_is_exact(root: Path, data: Path, peer: str, tolerance: float, cases: int) -> None:
    folder = data / "simulation" / peer
    if not folder.is_dir():
        pytest.skip(f"no cases at {folder}")
    command = [sys.executable, "-m", "benchmarks.reference", peer, str(folder), "--json"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    comparisons = json.loads(done.stdout)
    assert len(comparisons) == cases
    for comparison in comparisons:
        assert comparison["max_abs_error_ms"] <= tolerance, comparison
        assert comparison["p99_abs_error_ms"] <= comparison["max_abs_error_ms"]
        assert comparison["steps_equal"], comparison
