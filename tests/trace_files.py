"""Traces as tests write them to files, and what is said of a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodel.errors import InputError
from search_spaces.trace_summary import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
CONV, CODE = "AzureLLMInferenceTrace_conv_2023.csv", "AzureLLMInferenceTrace_code_2023.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl.gz"

Write = Callable[..., Path]
"""The fixture `write`: content and name to the path of the file."""


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path, **options)
    return str(caught.value).removeprefix(str(path))


def jsonl(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def mooncake(timestamp: int, isl: int, osl: int, ids: list[int]) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": isl, "output_length": osl, "hash_ids": ids}
