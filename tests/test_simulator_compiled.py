"""numba's loop and plain Python give the same bytes; without numba there is nothing to compare."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, sys
from tests.simulator_cases import random_fleet, random_trace
from costmodel.simulator import POLICIES, simulate
from costmodel.simulator.compiled import COMPILED
digest = hashlib.sha256()
for policy in POLICIES.values():
    for seed in range(12):
        for disaggregated in (False, True):
            result = simulate(random_trace(seed), random_fleet(seed, policy, disaggregated), log_rows=500)
            for name in ("first", "finish", "itl_max", "restarts", "engine", "steps_log"):
                digest.update(getattr(result, name).tobytes())
            digest.update(repr(result.engines).encode())
print(COMPILED, digest.hexdigest())
"""


def run(root: Path, mode: str) -> tuple[str, str]:
    environment = os.environ | {"PDPLAN_SIMULATOR": mode}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled, digest = done.stdout.split()
    return compiled, digest


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba (extra `fast`) is not installed")
def test_compiled_and_plain_loops_give_the_same_bytes(root: Path) -> None:
    compiled, plain = run(root, "numba"), run(root, "python")
    assert (compiled[0], plain[0]) == ("True", "False")
    assert compiled[1] == plain[1]
    assert len(plain[1]) == hashlib.sha256().digest_size * 2
