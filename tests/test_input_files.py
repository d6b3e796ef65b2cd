"""The edge of the input: paths that are no files, and odd traces."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from search_spaces import loader
from search_spaces.loader import load_problem
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
        ("x" * 300, ("file name too long", "is not known")),
        ("x" * 5000, "5,000 characters"),
        ("/dev/zero", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("w.yaml/x", ("not a directory", "is not known")),
    ],
    ids=["nul", "long", "very-long", "device", "pipe", "below-a-file"],
)
def test_a_path_that_is_no_file_is_refused_at_its_key(key: str, path: str, words: str | tuple[str, ...]) -> None:
    os.mkfifo("pipe")
    said = refusal(PLACES[key](path))
    assert said.startswith("w.yaml (overridden by ")
    assert f"): {key}: " in said
    assert any(word in said for word in ([words] if isinstance(words, str) else words))


def test_an_unsearchable_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    for read in (load_problem, read_trace, lambda path: loader.load_model(str(path))):
        with pytest.raises(InputError, match=r"secret/file\S* cannot be read \(permission denied\)"):
            read(Path("secret/file"))


# --- traces ---------------------------------------------------------------------------------------------------------

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            AZURE + "0001-01-01 00:00:00,1,2\n",
            "t.csv:2: TIMESTAMP is '0001-01-01 00:00:00', but must be a time between",
        ),
        (AZURE + "9999-12-31 23:59:59-23:00,1,2\n", "t.csv:2: TIMESTAMP is '9999-12-31"),
        (AZURE + "1830-01-01 00:00:00,1,2\n2100-01-01 00:00:00,1,2\n", "t.csv: the trace spans 270 years"),
        ("arrival,isl,osl\n-4.4e9,1,1\n4.4e9,1,1\n", "t.csv: the trace spans 279 years"),
        ("arrival,isl,osl\r1,2,3\r2,3,4\r", "t.csv:1: lines end with a carriage return alone"),
        ("arrival,isl,osl\n1,2,3\r2,3,4\n", "t.csv:2: the line is not valid CSV"),
        ("arrival,isl,osl," + "x" * 200_000 + "\n1,2,3,4\n", "t.csv:1: the header is not valid CSV"),
        ("arrival,isl,osl\n1,2," + "3" * 200_000 + "\n", "t.csv:2: osl is '333"),
        ('{"timestamp": 1, "input_length": ' + "9" * 400 + ', "output_length": 1}', "t.csv:1: input_length is '999"),
    ],
    ids=["year-1", "year-9999", "span-of-dates", "span", "cr", "cr-within", "long-header", "long-field", "digits"],
)
def test_an_odd_trace_is_refused_with_its_line(text: str, words: str) -> None:
    Path("t.csv").write_bytes(text.encode())
    with pytest.raises(InputError) as caught:
        read_trace("t.csv")
    assert str(caught.value).startswith(words)
    assert len(str(caught.value)) < 300


def test_a_compressed_file_of_blank_lines_is_refused_soon() -> None:
    with gzip.open("t.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"arrival,isl,osl\n1,2,3\n")
        for _ in range(40):
            file.write(b"\n" * 2**20)
    started = time.process_time()
    with pytest.raises(InputError, match=r"t\.csv\.gz:\d+: 4 MiB of blank lines end here"):
        read_trace("t.csv.gz")
    assert time.process_time() - started < 5
