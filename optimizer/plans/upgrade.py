"""Plans of schema pdplan.plan/1 as pdplan.plan/2 states them: pools of alternatives were lines of text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from costmodel.quoting import shown
from search_spaces.faults import Path
from search_spaces.json_source import JsonText

PLAN_1: Final = "pdplan.plan/1"
_PLACES: Final = ("alternatives", "simulation", "sensitivity")
"""Parts of a plan with fleets that are not its own."""
_LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
"""Of the pools of a tuned fleet, which stood beside them."""
_LINE: Final = re.compile(
    r"(?P<replicas>\d{1,12}) x (?P<accelerator>.{1,200}?) (?P<split>(?:(?:TP|PP|EP|DP)\d{1,6} ){1,4})"
    r"(?:(?P<weights>[^ /]+)(?:/(?P<kv>[^ /]+))? )?(?P<role>prefill|decode|colocated)"
)
"""A pool, such as "3 x H100 TP2 decode" or "1 x L40S TP1 EP2 fp8/bf16 colocated"."""
_RIVAL: Final = re.compile(r"rival \d+, (.+): (\d+) of (\d+)")
"""What a judged fleet was, such as "rival 2, decode-1: 3 of 4"; all of it is the rival itself."""


def upgraded(text: JsonText, record: Mapping[str, Any]) -> dict[str, Any]:
    """A plan/1 record as plan/2; settings that it does not state are null. Raises InputError for a line of no pool."""
    fleets = {key: _part(text, record[key], (key,)) for key in _PLACES if key in record}
    return {**record, **fleets, "schema": "pdplan.plan/2"}


def _part(text: JsonText, value: Any, path: Path) -> Any:
    """A part of a record, with all that is in it."""
    if isinstance(value, list):
        return [_part(text, item, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    fields = {key: _part(text, item, (*path, key)) for key, item in value.items()}
    rival = _RIVAL.fullmatch(str(fields.get("what")))
    if rival is not None:
        fields["what"] = "a rival" if rival[2] == rival[3] else f"a rival, {rival[1]} cut to {rival[2]} of {rival[3]}"
    if not isinstance(fields.get("pools"), list):
        return fields
    limits = {key: fields.pop(key) for key in _LIMITS if isinstance(fields.get(key), list)}
    pools = [_pool(text, line, (*path, "pools", index)) for index, line in enumerate(fields["pools"])]
    for key, values in limits.items():
        for pool, limit in zip(pools, values, strict=False):
            pool[key] = limit
    return fields | {"pools": pools}


def _pool(text: JsonText, line: Any, path: Path) -> dict[str, Any]:
    found = _LINE.fullmatch(line) if isinstance(line, str) else None
    if found is None:
        raise text.error(f'{shown(line)} is not a pool such as "3 x H100 TP2 decode"', path)
    degrees = {word[:2]: int(word[2:]) for word in found["split"].split()}
    split = {
        "tensor_parallel": degrees.get("TP", 1),
        "pipeline_parallel": degrees.get("PP", 1),
        "expert_parallel": degrees.get("EP", 1),
        "data_parallel": degrees.get("DP", 1),
    }
    replicas = int(found["replicas"])
    each = split["tensor_parallel"] * split["pipeline_parallel"] * split["data_parallel"]
    return {
        "role": found["role"],
        "accelerator": found["accelerator"],
        "replicas": replicas,
        **split,
        "gpus": replicas * each,
        "weight_dtype": found["weights"],
        "kv_dtype": found["kv"],
    } | dict.fromkeys((*_LIMITS, "max_model_len", "memory_fraction", "usd_per_hour"))
