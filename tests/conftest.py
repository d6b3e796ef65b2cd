"""What all tests share: where the data is, the repository's root, and the installed program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("PDPLAN_SIMULATOR", "python")  # compiling takes longer than all that the tests simulate

ROOT = Path(__file__).resolve().parent.parent


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
