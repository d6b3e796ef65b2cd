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
from dataclasses import replace
from tests.simulator_cases import on_lanes, random_fleet, random_trace
from tests.simulator_paged import random_paged, random_paged_fleet
from costmodel.simulator import POLICIES, simulate
from costmodel.simulator.compiled import COMPILED
digest = hashlib.sha256()
for policy in POLICIES.values():
    for seed in range(12):
        for disaggregated in (False, True):
            trace, fleet = random_trace(seed), random_fleet(seed, policy, disaggregated)
            if seed % 2 and not policy.static:
                trace, fleet = random_paged(seed), random_paged_fleet(seed, policy, disaggregated)
            fleet = on_lanes(fleet) if seed % 4 == 0 and not disaggregated else fleet
            hand_over = replace(fleet.hand_over, pull=seed % 3 == 0, max_coming=seed % 4)
            result = simulate(trace, replace(fleet, hand_over=hand_over), log_rows=500)
            for name in ("first", "finish", "itl_max", "restarts", "engine", "hit", "steps_log"):
                digest.update(getattr(result, name).tobytes())
            digest.update(repr((result.engines, result.work, result.prefix)).encode())
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
