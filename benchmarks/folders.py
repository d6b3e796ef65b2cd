"""Where benchmarks find the measurements that are no part of the repository."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """PDPLAN_DATA, else ../shared/data beside the repository."""
    return Path(os.environ.get("PDPLAN_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
