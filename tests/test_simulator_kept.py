"""The compiled loop: the same bytes as in plain Python, and kept until its sources change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from costmodel.simulator import compiled, records

SCRIPT = """
import hashlib
from tests.simulator_cases import random_fleet, random_trace
from costmodel.policy import POLICIES
from costmodel.simulator import simulate

digest = hashlib.sha256()
for seed, policy in enumerate(POLICIES.values()):
    for disaggregated in (False, True):
        paged = seed % 2 == 1 and not policy.static
        trace, fleet = random_trace(seed, 12, paged=paged), random_fleet(seed, policy, disaggregated, paged=paged)
        result = simulate(trace, fleet, log_rows=500)
        for name in ("first", "finish", "itl_max", "restarts", "engine", "hit", "steps_log"):
            digest.update(getattr(result, name).tobytes())
        digest.update(repr((result.engines, result.events)).encode())
print(digest.hexdigest())
"""


def test_compiled_and_plain_loops_give_the_same_bytes(root: Path) -> None:
    digests = set()
    for disabled in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disabled}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_numba_loads_with_the_first_run_only_and_from_one_module(root: Path) -> None:
    """It takes half a second, which commands that simulate nothing are spared."""
    script = "import sys, costmodel.simulator, optimizer.recommend.optimize; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)
    rooms = ("costmodel", "optimizer", "search_spaces", "reports", "pdplan")
    sources = [path for room in rooms for path in root.glob(f"{room}/**/*.py")]
    assert {path.name for path in sources if "import numba" in path.read_text("utf-8")} == {"compiled.py"}


def twice(world: object, number: float) -> float:
    return 2.0 * number


def test_what_is_compiled_is_kept_until_a_source_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    world = {"rules": records.records(records.Rules, 1, {})}
    entry = compiled.entry(twice)
    assert not compiled.is_kept(entry)
    assert entry(world, 4.0) == 8.0
    assert compiled.is_kept(entry)
    assert compiled.is_kept(compiled.entry(twice))
    monkeypatch.setattr(compiled, "sources_digest", lambda: "other sources")
    assert not compiled.is_kept(compiled.entry(twice))
