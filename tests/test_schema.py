"""The JSON Schema of workload.yaml, and the search spaces that presets and ranges give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from search_spaces.echo import init_text
from search_spaces.schema import json_schema
from search_spaces.search_space import Span, sizes
from search_spaces.yaml_source import parse_source

EXAMPLES = Path(__file__).parent.parent / "examples"


def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def texts() -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.yaml"))} | {
        "init": init_text()
    }


@pytest.mark.parametrize("name", ["chat", "long-context", "code", "init"])
def test_the_schema_accepts_what_the_loader_accepts(name: str) -> None:
    value = parse_source(texts()[name], name)[0].value
    assert list(validator().iter_errors(value)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"nmae": "x"},
        {"slo": {"ttft": "2s", "tpot": "50ms", "x": 1}},
        {"slo": {"ttft": "2s"}},
        {"accelerators": [{"name": "H100", "inventory": -1}]},
        {"engine": "vlm"},
        {"schema": "pdplan.workload/9"},
    ],
)
def test_the_schema_rejects_unknown_keys_and_bad_values(change: dict[str, Any]) -> None:
    value = parse_source(init_text(), "init")[0].value | change
    assert list(validator().iter_errors(value)) != []


def test_every_key_is_described_and_every_section_is_closed() -> None:
    schema = json_schema()
    for name, section in {"root": schema, **schema["$defs"]}.items():
        if section.get("type") != "object":
            continue
        assert section["additionalProperties"] is False, name
        assert all(prop.get("description") for prop in section["properties"].values()), name


def test_a_span_keeps_its_ends() -> None:
    assert sizes(Span(low=5, high=100), 2**0.5)[0] == 5
    assert sizes(Span(low=5, high=100), 2**0.5)[-1] == 100
    assert sizes(Span(low=512, high=8192), 2.0) == (512, 1024, 2048, 4096, 8192)
    assert sizes(Span(low=8, high=8), 2.0) == (8,)
