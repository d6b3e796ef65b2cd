"""docs/architecture.md shows the code as it is: the picture of the imports, and where the types live."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.room_picture import PICTURE, levels, picture, reduced

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
TYPES = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.M)


def test_the_picture_shows_the_imports() -> None:
    """PDPLAN_UPDATE_GOLDEN=1 draws it anew, as `python benchmarks/room_picture.py` does."""
    drawn = picture()
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        PICTURE.write_text(drawn, "utf-8")
    assert PICTURE.read_text("utf-8") == drawn


def test_every_type_is_in_its_room() -> None:
    assert len(TYPES) > 10
    for name, room in TYPES:
        sources = (path.read_text("utf-8") for path in (ROOT / room).rglob("*.py"))
        assert any(f"\nclass {name}" in source for source in sources), f"{room} has no {name}"


def test_every_folder_of_the_page_exists() -> None:
    rooms = r"costmodel|search_spaces|optimizer|reports|templates|pdplan"
    assert [path for path in re.findall(rf"`((?:{rooms})/\w+)`", PAGE) if not (ROOT / path).is_dir()] == []


def test_arrows_that_follow_from_others_are_left_out() -> None:
    arrows = {"top": {"middle", "base"}, "middle": {"base"}, "base": set()}
    assert reduced(arrows) == {"top": {"middle"}, "middle": {"base"}, "base": set()}
    assert list(levels(arrows)) == ["base", "middle", "top"]


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        reduced({"here": {"there"}, "there": {"here"}})
