"""search_spaces.traces: one clear sentence, with path and line, for every file that is no trace."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from costmodel.errors import UnknownNameError
from search_spaces.traces import parsing, read_trace
from tests.trace_files import AZURE, Write, jsonl, mooncake, refusal

ROW = "2023-11-16 18:00:00,1,2\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", ": the trace is empty: the file has no lines"),
        ("\n\n", ": the trace is empty: the file has no lines"),
        (AZURE, ": the trace is empty: it has no requests"),
        (
            "arrival,isl,osl\n0,5,0\n",
            ":2: osl is 0, but must be a whole number of tokens from 1 to 16777216; 1 of 1 row",
        ),
        (
            AZURE + ROW + "2023-11-16 18:00:01,5\n",
            ":3: the row has 2 fields, the header has 3: '2023-11-16 18:00:01,5'",
        ),
        (
            AZURE + ROW + "2023-11-16 18:00:01,abc,2\n",
            ":3: ContextTokens is 'abc', but must be a whole number of tokens from 1 to 16777216",
        ),
        (AZURE + ROW + "\n" + ROW.replace(",2", ",nan"), ":4: GeneratedTokens is 'nan', but must be a whole number"),
        (
            AZURE + ROW.replace(",1,", ",-7,"),
            ":2: ContextTokens is -7, but must be a whole number of tokens from 1 to 16777216",
        ),
        (AZURE + ROW.replace(",1,", ",0,"), ":2: ContextTokens is 0, but must be a whole number of tokens from 1"),
        (AZURE + ROW.replace(",1,", ",99999999,"), ":2: ContextTokens is 99999999, but must be a whole"),
        (AZURE + ROW.replace(",1,", ",1.5,"), ":2: ContextTokens is '1.5', but must be a whole number"),
        (
            AZURE + ROW + ROW.replace("11-16", "11-31"),
            ":3: TIMESTAMP is '2023-11-31 18:00:00', but must be a date and time such as",
        ),
        ("arrival,isl,osl\nnan,1,2\n", ":2: arrival is 'nan', but must be a finite number of s"),
        ("arrival,isl,osl\n1700000000000,1,2\n", "is it in ms (arrival_unit: ms)?"),
        ("a,b,c\n1,2,3\n", ":1: no column was recognized as arrival among 'a', 'b', 'c'; name it, e.g. columns"),
        ("1,2,3\n4,5,6\n", ":1: the CSV header needs columns for arrival, ISL and OSL, but is '1,2,3'"),
        ("just some text\n", ":1: the CSV header needs columns for arrival, ISL and OSL, but is"),
        ("isl,osl,isl\n1,2,3\n", ":1: the header has the column 'isl' twice"),
        ('[{"isl": 1}]\n', ":1: the file is a JSON array, but must have one JSON object per line (JSONL)"),
        ('arrival,isl,osl\n0,"1\n', ":2: the line is not valid CSV"),
        (b"arrival,isl,osl\n0,1,\xff\n" + b"0,1,1\n" * 20, ": the file is not UTF-8 text (offset 20)"),
        (b"\x00\x01\x02weights", ": the file is binary (byte 0x00 at offset 0), a trace must be plain or gzip"),
        (
            b"PK\x03\x04....",
            ": the file is a zip archive, as .xlsx files are, a trace must be plain or gzip-compressed CSV",
        ),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16"), ": the file is UTF-16 text, a trace must be"),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16-le"), ": the file is UTF-16 text, a trace must be"),
        (("arrival,isl,osl\n0,1,1\n").encode("utf-16-be"), ": the file is UTF-16 text, a trace must be"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), ": the file is an old Office file (.xls), a trace must be"),
        (b"PAR1\x15\x04", ": the file is a Parquet file"),
        (b"GGUF\x03\x00", ": the file is a file of model weights (GGUF)"),
        ("arrival,isl,osl\n0,1,1\n400000000,1,1\n", "the trace spans 13 years; check the unit of the arrivals"),
    ],
)
def test_bad_files_get_one_sentence(write: Write, content: str | bytes, sentence: str) -> None:
    message = refusal(write(content))
    assert sentence in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{nonsense", ":2: the line is not valid JSON"),
        ("[1, 2]", ":2: the line is an array, but must be one object per line"),
        ("null", ":2: the line is null, but must be one object per line"),
        ("true", ":2: the line is true, but must be one object per line"),
        ("5", ":2: the line is a number, but must be one object per line"),
        ('"5"', ":2: the line is a string, but must be one object per line"),
        (
            '{"timestamp": 0, "input_length": null, "output_length": 1}',
            ":2: input_length is missing, but must be a whole number",
        ),
        (
            '{"timestamp": 0, "input_length": {}, "output_length": 1}',
            ":2: input_length is an object, but must be a num",
        ),
        ('{"timestamp": 0, "input_length": 5}', ":2: output_length is missing, but must be a whole number of tokens"),
        ('{"timestamp": 0, "input_length": NaN, "output_length": 1}', ":2: the line is not valid JSON (NaN is not"),
        (
            '{"timestamp": 0, "input_length": true, "output_length": 1}',
            ":2: input_length is true, but must be a number",
        ),
        (
            '{"timestamp": 0, "input_length": 1e999, "output_length": 1}',
            ":2: input_length is 'inf', but must be a whole number",
        ),
        ('{"timestamp": 0, "input_length": ' + "9" * 5000 + "}", ":2: the line is not valid JSON"),
        ('{"timestamp": 0, "input_length": -2, "output_length": 1, "hash_ids": []}', ":2: input_length is -2"),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [[1]]}',
            ":2: hash_ids must be an array of whole numbers or strings",
        ),
        ("[" * 200_000, ":2: the JSON is nested too deeply for a request"),
    ],
)
def test_bad_json_lines_get_one_sentence(write: Write, line: str, sentence: str) -> None:
    message = refusal(write(jsonl(mooncake(0, 10, 1, [1])) + line + "\n", "m.jsonl"))
    assert sentence in message
    assert "\n" not in message


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
    monkeypatch.setattr(parsing, "MAX_LINE_BYTES", 2**21)
    path = write(AZURE + ROW + "1" * (5 * 2**20))
    assert ":3: the line is longer than 2 MiB, a trace has one request per line" in refusal(path)
