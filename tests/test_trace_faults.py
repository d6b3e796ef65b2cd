"""Traces: one clear sentence for every file that is none; those that are text are in bad_files.yaml."""

from __future__ import annotations

import pytest

from tests.trace_files import AZURE, Write, jsonl, mooncake, refusal

FIRST = jsonl(mooncake(0, 10, 1, [1])).encode()
ROW = "2023-11-16 18:00:00,1,2\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"arrival,isl,osl\n0,1,\xff\n" + b"0,1,1\n" * 20, ": the file is not UTF-8 text (offset 20)"),
        (b"\x00\x01\x02weights", ": the file is binary (byte 0x00 at offset 0), a trace must be plain or gzip"),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16"), ": the file is UTF-16 text, a trace must be"),
        (b"PAR1\x15\x04", ": the file is a Parquet file"),
        (FIRST + b'{"timestamp": 0, "input_length": ' + b"9" * 5000 + b"}\n", ":2: the line is not valid JSON"),
    ],
)
def test_files_that_are_no_text_and_lines_without_end(write: Write, content: bytes, sentence: str) -> None:
    assert refusal(write(content)).startswith(sentence)


def test_missing_column_offers_the_nearest(write: Write) -> None:
    path = write(AZURE.replace("ContextTokens", "ContextToken") + ROW)
    assert refusal(path, format="azure") == ":1: there is no column 'ContextTokens'; did you mean 'ContextToken'?"
    assert "did you mean 'GeneratedTokens'?" in refusal(path, columns={"isl": "ContextToken", "osl": "GenerateTokens"})
