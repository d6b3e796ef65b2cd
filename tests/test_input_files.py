"""The edge of the input: paths that are no files, and odd traces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from search_spaces.traces import read_trace
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

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            AZURE + "0001-01-01 00:00:00,1,2\n",
            "t.csv:2: TIMESTAMP is '0001-01-01 00:00:00', but must be a time between",
        ),
        ("arrival,isl,osl\n-4.4e9,1,1\n4.4e9,1,1\n", "t.csv: the trace spans 279 years"),
        ("arrival,isl,osl\n1,2,3\r2,3,4\n", "t.csv:2: the line is not valid CSV"),
        ('{"timestamp": 1, "input_length": ' + "9" * 400 + ', "output_length": 1}', "t.csv:1: input_length is '999"),
    ],
    ids=["year-1", "span", "cr-within", "digits"],
)
def test_an_odd_trace_is_refused_with_its_line(text: str, words: str) -> None:
    Path("t.csv").write_bytes(text.encode())
    with pytest.raises(InputError) as caught:
        read_trace("t.csv")
    assert str(caught.value).startswith(words)
    assert len(str(caught.value)) < 300
