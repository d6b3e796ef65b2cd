"""The compiled loop: the same bytes as in plain Python, and where it is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from costmodel.simulator import compiled, records
from costmodel.simulator.run import prepare

KINDS = (
    "Request",
    "Slot",
    "Lane",
    "Engine",
    "PoolRecord",
    "StepRecord",
    "Rules",
    "Event",
    "Gap",
    "CachedPage",
    "LogRow",
)
SCRIPT = """
import hashlib
from dataclasses import replace
from tests.simulator_cases import on_lanes, random_fleet, random_trace
from tests.simulator_paged import random_paged, random_paged_fleet
from costmodel.simulator import POLICIES, simulate

digest = hashlib.sha256()
for seed, policy in enumerate(POLICIES.values()):
    for disaggregated in (False, True):
        trace, fleet = random_trace(seed, 12), random_fleet(seed, policy, disaggregated)
        if disaggregated and not policy.static:
            trace, fleet = random_paged(seed), random_paged_fleet(seed, policy, disaggregated)
        fleet = on_lanes(fleet) if seed % 2 == 0 and not disaggregated else fleet
        hand_over = replace(fleet.hand_over, pull=seed % 3 == 0, max_coming=seed % 4)
        result = simulate(trace, replace(fleet, hand_over=hand_over), log_rows=500)
        for name in ("first", "finish", "itl_max", "restarts", "engine", "hit", "steps_log"):
            digest.update(getattr(result, name).tobytes())
        digest.update(repr((result.engines, result.work, result.prefix, result.events)).encode())
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


def test_numba_loads_with_the_first_run_only(root: Path) -> None:
    """It takes half a second, which commands that simulate nothing are spared."""
    script = "import sys, costmodel.simulator, optimizer.recommend.optimize; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)


def test_only_one_module_knows_numba(root: Path) -> None:
    rooms = ("costmodel", "optimizer", "search_spaces", "reports", "pdplan")
    sources = [path for room in rooms for path in root.glob(f"{room}/**/*.py")]
    assert {path.name for path in sources if "import numba" in path.read_text("utf-8")} == {"compiled.py"}


def test_no_field_of_a_record_is_an_attribute_of_all_records() -> None:
    """`record.size`, say, is numpy's own in plain Python."""
    kinds = (getattr(records, name) for name in KINDS)
    assert not {name for kind in kinds for name in records.dtype_of(kind).names or ()} & set(dir(np.record))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty place for loops, which nothing of this process knows."""
    own = tmp_path / "own"
    monkeypatch.setattr(compiled, "places", lambda: [own, tmp_path / "home"])
    compiled.kept_folder.cache_clear()
    yield own
    compiled.kept_folder.cache_clear()


def test_a_package_that_is_read_only_is_kept_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, home = tmp_path / "file", tmp_path / "home"
    file.write_text("")
    (home / "loop-another").mkdir(parents=True)
    monkeypatch.setattr(compiled, "places", lambda: [file, home])
    compiled.kept_folder.cache_clear()
    folder = compiled.kept_folder()
    compiled.kept_folder.cache_clear()
    assert folder is not None
    assert folder.parent == home
    assert (home / "loop-another").is_dir()  # it may be that of another installation


def test_where_nothing_can_be_kept_there_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(compiled, "places", lambda: [file, file / "home"])
    compiled.kept_folder.cache_clear()
    assert compiled.kept_folder() is None
    assert not compiled.is_kept()
    compiled.kept_folder.cache_clear()


def test_loops_of_older_sources_are_dropped(fresh: Path) -> None:
    (fresh / "loop-older").mkdir(parents=True)
    folder = compiled.kept_folder()
    assert [path.name for path in fresh.iterdir()] == [getattr(folder, "name", None)]


def test_a_user_without_a_home_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert [place.name for place in compiled.places()] == ["__pycache__"]


def test_what_is_compiled_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    prepare(said.append)
    said.clear()
    prepare(said.append)
    assert said == []
    monkeypatch.setattr("costmodel.simulator.compiled.is_kept", lambda: False)
    prepare(said.append)
    assert said == ["compiling the simulator, once"]
