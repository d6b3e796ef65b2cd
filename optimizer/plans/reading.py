"""Read plan.json; of a file that is no plan, say what it is, or where it says what no plan says.

In plans of schema pdplan.plan/1 the pools of fleets that are not the plan's own were lines of text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from costmodel.quoting import shown
from search_spaces.bounds import ROUTER_SPELLINGS, TARGET_SPELLINGS
from search_spaces.fields import faults_of
from search_spaces.files import Keys, decoded
from search_spaces.sources import JsonText, json_kind, json_shown

from .plan import PLAN_SCHEMA, Plan

PLAN_1: Final = "pdplan.plan/1"
_PLACES: Final = ("alternatives", "simulation", "sensitivity")
"""Fields of a plan with fleets that are not its own."""
_LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
"""Of the pools of a tuned fleet of plan/1, which stood beside them."""
_LINE: Final = re.compile(
    r"(?P<replicas>\d{1,12}) x (?P<accelerator>.{1,200}?) (?P<split>(?:(?:TP|PP|EP|DP)\d{1,6} ){1,4})"
    r"(?:(?P<weights>[^ /]+)(?:/(?P<kv>[^ /]+))? )?(?P<role>prefill|decode|colocated)"
)
"""A pool of plan/1, such as "3 x H100 TP2 decode" or "1 x L40S TP1 EP2 fp8/bf16 colocated"."""
_RIVAL: Final = re.compile(r"rival \d+, (.+): (\d+) of (\d+)")
"""What a judged fleet was, such as "rival 2, decode-1: 3 of 4"; all of it is the rival itself."""


def parse_plan(data: bytes, name: str = "plan.json") -> Plan:
    """Return the plan of a plan.json, of schema pdplan.plan/2 or /1.

    name: stands for the file in messages. Raises InputError, which says what is wrong first and where.
    """
    text = JsonText(name, decoded(data, name), clause="is not a plan of this version of pdplan: ")
    record = text.value()
    if not isinstance(record, dict):
        raise text.error(f"it is {json_kind(record)}, and a plan is an object with the schema {PLAN_SCHEMA}")
    _check_schema(text, record)
    try:
        if record["schema"] == PLAN_1:  # settings that it does not state are null
            fleets = {key: _with_pools(text, record[key], (key,)) for key in _PLACES if key in record}
            record = {**record, **fleets, "schema": PLAN_SCHEMA}
        _move_e2e(record)
        _rename(record)
        return Plan.model_validate(record)
    except ValidationError as error:
        fault = faults_of(error)[0]
        raise text.error(fault.sentence, fault.path) from error
    except RecursionError as error:
        raise text.error("it is nested too deeply") from error


def _move_e2e(record: dict[str, Any]) -> None:
    """Put the end-to-end time of classes among their metrics: older plans have fields of its own for it."""
    simulation = record.get("simulation")
    simulated = _objects(simulation.get("classes")) if isinstance(simulation, dict) else []
    times: dict[str, Any] = {}
    for row in simulated:
        if (quantiles := row.pop("e2e_s", None)) is not None:
            times[str(row.get("name"))] = row.setdefault("metrics", {})["e2e"] = quantiles
    for row in _objects(record.get("classes")):
        if (limit := row.pop("e2e_limit_s", None)) is not None:
            quantiles = times.get(str(row.get("name")), dict.fromkeys(("p50", "p90", "p95", "p99")))
            row.setdefault("metrics", {})["e2e"] = {"limit_s": limit, "quantiles_s": quantiles}


def _rename(record: dict[str, Any]) -> None:
    """Name what was simulated, and targets and routers in the inputs, as today: older plans have other names."""
    simulation = record.get("simulation")
    if isinstance(simulation, dict) and "fewest_requests" in simulation:
        simulation["behind_least_requests"] = simulation.pop("fewest_requests")
    provenance = record.get("provenance")
    inputs = provenance.get("inputs") if isinstance(provenance, dict) else None
    if not isinstance(inputs, dict):
        return
    for place, key, spellings in (
        (inputs, "target", TARGET_SPELLINGS),
        (inputs.get("constraints"), "balancing", ROUTER_SPELLINGS),
    ):
        if isinstance(place, dict) and isinstance(place.get(key), str):
            place[key] = spellings.get(place[key], place[key])


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, those whose metrics are no object left out; none of another value."""
    rows = value if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("metrics", {}), dict)]


def _check_schema(text: JsonText, record: Mapping[str, Any]) -> None:
    """Raise InputError for a schema that is none of a plan's."""
    if "schema" not in record:
        raise text.error(f"it names no schema, which for a plan is {PLAN_SCHEMA}")
    schema = record["schema"]
    if isinstance(schema, str) and schema.startswith("pdplan.plan/"):
        if schema not in {PLAN_SCHEMA, PLAN_1}:
            sentence = f"is {shown(schema)}, not {PLAN_SCHEMA} or {PLAN_1}; make it again with pdplan optimize"
            raise text.error(sentence, ("schema",))
    else:
        raise text.error(f"is {json_shown(schema)}, not {PLAN_SCHEMA}", ("schema",))


def _with_pools(text: JsonText, value: Any, path: Keys) -> Any:
    """A value of a record, with every fleet in it as pools."""
    if isinstance(value, list):
        return [_with_pools(text, item, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    fields = {key: _with_pools(text, item, (*path, key)) for key, item in value.items()}
    if rival := _RIVAL.fullmatch(str(fields.get("what"))):
        fields["what"] = "a rival" if rival[2] == rival[3] else f"a rival, {rival[1]} cut to {rival[2]} of {rival[3]}"
    if isinstance(fields.get("pools"), list):
        fields["pools"] = [_pool(text, line, (*path, "pools", index)) for index, line in enumerate(fields["pools"])]
        for key in _LIMITS:
            if isinstance(fields.get(key), list):
                for pool, limit in zip(fields["pools"], fields.pop(key), strict=False):
                    pool[key] = limit
    return fields


def _pool(text: JsonText, line: Any, path: Keys) -> dict[str, Any]:
    """The pool that a line of plan/1 states."""
    match = _LINE.fullmatch(line) if isinstance(line, str) else None
    if match is None:
        raise text.error(f'{shown(line)} is not a pool such as "3 x H100 TP2 decode"', path)
    degrees = dict.fromkeys(("TP", "PP", "EP", "DP"), 1) | {item[:2]: int(item[2:]) for item in match["split"].split()}
    replicas = int(match["replicas"])
    return {
        "role": match["role"],
        "accelerator": match["accelerator"],
        "replicas": replicas,
        "tensor_parallel": degrees["TP"],
        "pipeline_parallel": degrees["PP"],
        "expert_parallel": degrees["EP"],
        "data_parallel": degrees["DP"],
        "gpus": replicas * degrees["TP"] * degrees["PP"] * degrees["DP"],
        "weight_dtype": match["weights"],
        "kv_dtype": match["kv"],
    } | dict.fromkeys((*_LIMITS, "max_model_len", "memory_fraction", "usd_per_hour"))
