"""workload.yaml written for the user: the commented example of `pdplan init`, and a measured trace as a problem."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from textwrap import wrap
from typing import Any

from .schema import WORKLOAD_SCHEMA

_SCALARS = ("request_rate", "burstiness", "prefix_hit_share", "reuse_interval", "max_tokens")
_COMMENTS: Mapping[str, str] = {
    "request_rate": "mean arrivals [1/s]",
    "burstiness": "coefficient of variation of the times between arrivals; 1 is Poisson",
    "prefix_hit_share": "share of input tokens found in a prefix cache",
    "reuse_interval": "time since their last use",
    "max_tokens": "longest ISL + OSL [token]",
}
_RECORDED = "its requests are simulated as they came; without it, state burstiness (1 is Poisson)"
COMMENT_WIDTH = 110


def init_text() -> str:
    """Return the commented example that `pdplan init` writes; it loads and solves as it stands."""
    return (resources.files("search_spaces") / "init_template.yaml").read_text(encoding="utf-8")


def fleet_text() -> str:
    """Return the commented fleet file that `pdplan init --fleet` writes; it serves the example of `pdplan init`."""
    return (resources.files("search_spaces") / "fleet_template.yaml").read_text(encoding="utf-8")


def workload_yaml_text(
    mapping: Mapping[str, Any],
    name: str,
    model: str,
    accelerators: Sequence[str] = ("A100-80", "H100", "H200"),
    notes: Sequence[str] = (),
) -> str:
    """Return a workload.yaml around a measured `workload:` block; the user then sets service level and accelerators.

    Args:
        mapping: the block as plain data, with a histogram of rows under lengths, or with sessions.
        name: name of the problem, and where its lengths came from unless the mapping says so.
        model: catalog name, Hugging Face id, or path to a config.json.
        accelerators: names to start with.
        notes: sentences that become comments above the demand.
    """
    scalars = [f"  {key}: {json.dumps(mapping[key])}  # {_COMMENTS[key]}" for key in _SCALARS if key in mapping]
    if "recorded" in mapping:
        source = json.dumps(mapping["recorded"], ensure_ascii=False)
        scalars.append(f"  recorded: {source}  # {_RECORDED}")
    model_key = "config" if model.endswith(".json") else "name"
    lines = [
        f"schema: {WORKLOAD_SCHEMA}",
        f"name: {_text(name)}",
        "",
        f"model: {{{model_key}: {_text(model)}}}",
        "",
        *(f"# {line}" for note in notes for line in wrap(f"Note: {note}", COMMENT_WIDTH)),
        "workload:",
        *scalars,
        *_lengths(mapping, name),
        "",
        "slo:  # set these to what your users need",
        "  ttft: 2s",
        "  tpot: 50ms",
        "  attainment: 0.9",
        "",
        f"accelerators: [{', '.join(_text(accelerator) for accelerator in accelerators)}]",
    ]
    return "\n".join(lines) + "\n"


def _lengths(mapping: Mapping[str, Any], name: str) -> list[str]:
    """The lines of the sessions, or of the histogram of lengths."""
    if "sessions" in mapping:
        return ["  sessions:", *(f"    {key}: {json.dumps(value)}" for key, value in mapping["sessions"].items())]
    rows = [f"      - {_flow(row)}" for row in mapping["lengths"]["histogram"]]
    source = _text(mapping["lengths"].get("source", name))
    return ["  lengths:", f"    source: {source}", "    histogram:  # ISL and OSL [token], share of requests", *rows]


def _text(text: str) -> str:
    """A JSON text is a YAML text too, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def _flow(row: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in row.items()) + "}"
