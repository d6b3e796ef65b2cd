"""Traces: one clear sentence for every file that is none; those that are text are in bad_files.yaml."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from costmodel.errors import UnknownNameError
from search_spaces.traces import read_trace, reader
from tests.trace_files import AZURE, Write, jsonl, mooncake, refusal

FIRST = jsonl(mooncake(0, 10, 1, [1])).encode()
ROW = "2023-11-16 18:00:00,1,2\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"arrival,isl,osl\n0,1,\xff\n" + b"0,1,1\n" * 20, ": the file is not UTF-8 text (offset 20)"),
        (b"\x00\x01\x02weights", ": the file is binary (byte 0x00 at offset 0), a trace must be plain or gzip"),
        (
            b"PK\x03\x04....",
            ": the file is a zip archive, as .xlsx files are, a trace must be plain or gzip-compressed",
        ),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16"), ": the file is UTF-16 text, a trace must be"),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16-le"), ": the file is UTF-16 text, a trace must be"),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16-be"), ": the file is UTF-16 text, a trace must be"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), ": the file is an old Office file (.xls), a trace must be"),
        (b"PAR1\x15\x04", ": the file is a Parquet file"),
        (b"GGUF\x03\x00", ": the file is a file of model weights (GGUF)"),
        (FIRST + b'{"timestamp": 0, "input_length": ' + b"9" * 5000 + b"}\n", ":2: the line is not valid JSON"),
        (FIRST + b"[" * 200_000 + b"\n", ":2: the JSON is nested too deeply for a request"),
    ],
)
def test_files_that_are_no_text_and_lines_without_end(write: Write, content: bytes, sentence: str) -> None:
    assert refusal(write(content)).startswith(sentence)


def test_missing_column_offers_the_nearest(write: Write) -> None:
    path = write(AZURE.replace("ContextTokens", "ContextToken") + ROW)
    assert refusal(path, format="azure") == ":1: there is no column 'ContextTokens'; did you mean 'ContextToken'?"
    assert "did you mean 'GeneratedTokens'?" in refusal(path, columns={"isl": "ContextToken", "osl": "GenerateTokens"})


def test_unknown_names_are_named(write: Write) -> None:
    path = write(AZURE + ROW)
    with pytest.raises(UnknownNameError, match="trace format 'azur' is not known; did you mean 'azure'"):
        read_trace(path, format="azur")
    with pytest.raises(UnknownNameError, match="key of columns: 'arival' is not known; did you mean 'arrival'"):
        read_trace(path, columns={"arival": "TIMESTAMP"})
    with pytest.raises(UnknownNameError, match="arrival_unit 'hours' is not known"):
        read_trace(path, columns={"arrival": "TIMESTAMP", "arrival_unit": "hours"})
    assert "format azure has columns of its own" in refusal(path, format="azure", columns={"isl": "ContextTokens"})


def test_truncated_gzip(write: Write) -> None:
    random = np.random.default_rng(0)
    text = "arrival,isl,osl\n" + "".join(f"{i},{n},1\n" for i, n in enumerate(random.integers(1, 9999, 200_000)))
    packed = gzip.compress(text.encode())
    path = write(packed[: len(packed) - 1000], "t.csv.gz")
    assert "the gzip data is cut off or damaged after line" in refusal(path)


def test_endless_line_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 2**21)
    path = write(AZURE + ROW + "1" * (5 * 2**20))
    assert ":3: the line is longer than 2 MiB, a trace has one request per line" in refusal(path)
