"""Texts kept in tests/golden, as they must come out.

To accept a change: PDPLAN_UPDATE_GOLDEN=1 pytest tests/...; the difference is to be read.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")
