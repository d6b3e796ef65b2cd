"""The edge of the input: paths that are no files, and odd traces."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.short_workload import refusal

pytestmark = pytest.mark.usefixtures("folder")

# --- files ----------------------------------------------------------------------------------------------------------

PLACES: dict[str, Any] = {
    "workload.lengths.histogram": lambda path: {"workload.lengths": {"histogram": path}},
    "workload.lengths.trace.path": lambda path: {"workload.lengths": {"trace": {"path": path}}},
    "catalog": lambda path: {"catalog": json_text(path)},
    "model.config": lambda path: {"model": {"config": path}},
}


def json_text(text: str) -> str:
    """A YAML text whatever is in it."""
    escaped = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return f'"{escaped}"'


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a\0b", "control character U+0000"),
        ("/dev/zero", "is not a regular file"),
    ],
    ids=[
        "nul",
        "device",
    ],
)
def test_a_path_that_is_no_file_is_refused_at_its_key(key: str, path: str, words: str | tuple[str, ...]) -> None:
    os.mkfifo("pipe")
    said = refusal(PLACES[key](path))
    assert said.startswith("w.yaml (overridden by ")
    assert f"): {key}: " in said
    assert any(word in said for word in ([words] if isinstance(words, str) else words))


# --- traces ---------------------------------------------------------------------------------------------------------
