"""numba's loop and plain Python give the same bytes; without numba there is nothing to compare."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, os
from dataclasses import replace
from tests.simulator_cases import on_lanes, random_fleet, random_trace
from tests.simulator_paged import random_paged, random_paged_fleet
from costmodel.simulator import POLICIES, backend, simulate

def digest():
    found = hashlib.sha256()
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
                    found.update(getattr(result, name).tobytes())
                found.update(repr((result.engines, result.work, result.prefix, result.events)).encode())
    return found.hexdigest()

backend.LOAD_FROM = 2000  # reached half-way through: the first runs are plain, the later ones compiled
for mode in ("python", "numba", ""):
    os.environ["PDPLAN_SIMULATOR"] = mode
    backend._served.requests = 0
    begun = backend.chosen_loop(1) is not None
    found = digest()
    print(mode or "automatic", begun, backend.chosen_loop(1) is not None, found)
"""


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba (extra `fast`) is not installed")
def test_compiled_and_plain_loops_give_the_same_bytes(root: Path) -> None:
    """Asked for, and chosen in the middle of the runs of one process."""
    environment = {name: value for name, value in os.environ.items() if name != "PDPLAN_SIMULATOR"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    chosen = [("python", "False", "False"), ("numba", "True", "True"), ("automatic", "False", "True")]
    assert [(mode, begun, ended) for mode, begun, ended, _ in rows] == chosen
    assert len({digest for *_, digest in rows}) == 1
