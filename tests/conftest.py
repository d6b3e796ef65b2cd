"""What all tests share: where the data is, the repository's root, and the installed program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, print_blob=True, deadline=None, max_examples=80)
settings.register_profile("fresh", derandomize=False, print_blob=True, deadline=None, max_examples=80)
settings.load_profile(os.environ.get("PDPLAN_PROPERTIES", "same"))  # CI judges a change, not the luck of a draw

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred programs are started: let the first one compile for all
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads would only wait for each other
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs that tests interrupt inherit this

ROOT = Path(__file__).resolve().parent.parent
LONGEST = (
    "test_doc_samples",
    "test_deploy_check",
    "test_deploy_files",
    "test_deploy_engines",
    "test_cli",
    "test_prefix_cache",
    "test_calibrate",
    "test_whatif_cli",
    "test_mixed",
    "test_evaluate_fleet",
    "test_whatif_answers",
)
"""Files that take longest: they come first, so that no worker is left with one at the end.

The first two workers begin with one that simulates and one that does not: on a new machine only the former compiles.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """The measurements and traces; they are not part of the repository, so tests that need them may be skipped."""
    folder = Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set PDPLAN_DATA to run this test")
    return folder


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations of as many requests as the rate asks for, and not more: for what does not depend on their number."""
    monkeypatch.setattr("optimizer.verification.bench.LEAST_REQUESTS", 1500)
    monkeypatch.setattr("optimizer.verification.bench.full_length", lambda _instance, _fleet, least, _volume: least)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text or bytes to a file and return its path."""

    def write_file(content: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, so that messages hold bare file names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
