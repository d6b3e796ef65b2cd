"""Scenarios: one problem with some of its values changed, by name or over a grid.

A scenario is made from the canonical echo of a problem (`Problem.inputs`), so that whatever the file was written like,
a change is one value in one place, and what comes out is checked as a workload.yaml is.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from costmodel.errors import InputError, UnknownNameError
from costmodel.quoting import name_list, shortened, shown

from .levers import LEVERS, Inputs, below, number_of, place_in
from .loader import problem_of_values
from .problem import Problem
from .quantities import QuantityError
from .yaml_source import parse_value

MOST_SCENARIOS = 1_000_000
"""More than that is a mistake in a range."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that varies, such as `price.H200`, and the values that it takes."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named set of changes: key -> value, applied in order."""

    name: str
    changes: Mapping[str, Any]


def parse_axis(text: str) -> Axis:
    """Read KEY=LOW:HIGH:COUNT (evenly spaced), KEY=LOW:HIGH:COUNT:log, or KEY=VALUE,VALUE,… as on a command line.

    >>> parse_axis("price.H200=1:2:3").values, parse_axis("model.weight_dtype=bf16,fp8").values
    ((1.0, 1.5, 2.0), ('bf16', 'fp8'))

    Raises InputError when it is none of these.
    """
    key, equals, spec = (item.strip() for item in text.partition("="))
    if not equals or not key or not spec:
        raise InputError(f"--vary {shown(text)} is not KEY=LOW:HIGH:COUNT or KEY=VALUE,VALUE, such as price.H200=1:8:8")
    if ":" in spec:
        return Axis(key, _range_values(text, key, spec.split(":")))
    return Axis(key, tuple(_value(text, item.strip()) for item in spec.split(",")))


def _value(text: str, field: str) -> Any:
    if not field:
        raise InputError(f"--vary {shown(text)} has an empty value")
    return parse_value(field)


def _range_values(text: str, key: str, fields: list[str]) -> tuple[float, ...]:
    """Values from low to high, evenly spaced or evenly in their logarithms; units as the key takes them."""
    if not 3 <= len(fields) <= 4 or (len(fields) == 4 and fields[3] != "log"):
        raise InputError(f"--vary {shown(text)}: a range is LOW:HIGH:COUNT or LOW:HIGH:COUNT:log")
    try:
        low, high = (number_of(key, field) for field in fields[:2])
    except QuantityError as error:
        raise InputError(f"--vary {shown(text)}: {error}") from None
    try:
        count = int(fields[2])
    except ValueError:
        raise InputError(f"--vary {shown(text)}: COUNT is a whole number, not {shown(fields[2])}") from None
    wrong = _wrong_range(fields, low, high, count)
    if wrong:
        raise InputError(f"--vary {shown(text)}: {', and '.join(wrong)}")
    if count == 1:
        return (low,)
    if len(fields) == 4:
        if min(low, high) <= 0.0:
            raise InputError(f"--vary {shown(text)}: LOW and HIGH of a log range must be above zero")
        return tuple(low * (high / low) ** (step / (count - 1)) for step in range(count))
    return tuple(low + (high - low) * step / (count - 1) for step in range(count))


def _wrong_range(fields: list[str], low: float, high: float, count: int) -> list[str]:
    """Everything that is wrong with a range, as clauses; fields: as they were written."""
    wrong = []
    if not (math.isfinite(low) and math.isfinite(high)):
        wrong.append("LOW and HIGH must be finite")
    elif low > high:
        wrong.append(f"LOW {fields[0]} is above HIGH {fields[1]}")
    if not 1 <= count <= MOST_SCENARIOS:
        wrong.append(f"COUNT is {count:,}, but must be at least 1 and at most {MOST_SCENARIOS:,}")
    return wrong


def grid(axes: Sequence[Axis], scenarios: Sequence[Scenario] = ()) -> Iterator[Scenario]:
    """Every combination of the axes' values, the last axis fastest, for each of the named scenarios (or none).

    Raises InputError when two axes have one key, or when there are too many.
    """
    keys = [axis.key for axis in axes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise InputError(f"--vary {twice} is stated twice; list all its values in one")
    count = math.prod(len(axis.values) for axis in axes) * max(len(scenarios), 1)
    if count > MOST_SCENARIOS:
        raise InputError(f"the axes make {count:,} scenarios, but at most {MOST_SCENARIOS:,} are allowed")
    for base in scenarios or (Scenario("", {}),):
        for values in product(*(axis.values for axis in axes)):
            yield Scenario(base.name, {**base.changes, **dict(zip(keys, values, strict=True))})


def named_scenarios(problem: Problem) -> dict[str, Scenario]:
    """The scenarios that the problem's own file names, with what they extend, in the file's order.

    Raises InputError where one extends a name that there is not, or itself.
    """
    definitions = (problem.source.value if problem.source is not None else {}).get("scenarios") or {}
    return {name: Scenario(name, _with_extended(definitions, name, ())) for name in definitions}


def chosen_scenarios(problem: Problem, names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names; all of the file's for 'all'."""
    scenarios = named_scenarios(problem)
    if names and not scenarios:
        raise InputError("--scenario: the file names no scenarios; state them under `scenarios:`, or use --vary")
    if "all" in names and "all" not in scenarios:
        return list(scenarios.values())
    missing = next((name for name in names if name not in scenarios), None)
    if missing is not None:
        raise UnknownNameError("scenario", missing, scenarios)
    return [scenarios[name] for name in dict.fromkeys(names)]


def _with_extended(definitions: Mapping[str, Mapping[str, Any]], name: str, below: tuple[str, ...]) -> dict[str, Any]:
    """Changes of a scenario laid over those that it extends, in the order in which it names them."""
    if name in below:
        raise InputError(f"scenarios.{name}: extends itself ({' -> '.join([*below, name])})")
    if name not in definitions:
        raise UnknownNameError("scenario", name, definitions)
    own = dict(definitions[name])
    above = own.pop("extends", [])
    changes: dict[str, Any] = {}
    for parent in [above] if isinstance(above, str) else above:
        changes |= _with_extended(definitions, str(parent), (*below, name))
    return changes | own


def scenario_problem(problem: Problem, scenario: Scenario, base: Path) -> Problem:
    """The problem with the scenario's changes made and everything checked again.

    base: folder from which files that the problem names are looked up. Raises InputError as `load_problem` does.
    """
    inputs = changed(problem.inputs, scenario.changes)
    return problem_of_values(inputs, f"scenario {shortened(scenario.name or told(scenario.changes))}", base)


def told(changes: Mapping[str, Any]) -> str:
    """Changes in words.

    >>> told({"price.H200": 2.5, "rate": 20})
    'price.H200=2.5, rate=20'
    """
    return ", ".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in changes.items()
    )


def changed(inputs: Mapping[str, Any], changes: Mapping[str, Any]) -> Inputs:
    """A copy of a problem's inputs with the changes made one after the other.

    Raises InputError for a key that is neither a lever nor a place of the inputs.
    """
    result = deepcopy(dict(inputs))
    for key, value in _flat(inputs, changes):
        head = key.partition(".")[0]
        lever = LEVERS.get(head)
        if lever is not None and head not in result:
            lever.apply(result, key, value)
        else:
            _set(result, key, value)
    return result


def _flat(inputs: Mapping[str, Any], changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Changes value by value: a mapping is laid over what stands there; limits of `slo` without a class go to all."""
    for key, value in changes.items():
        if not isinstance(value, Mapping):
            yield key, value
            continue
        classes = {str(slo["name"]) for slo in inputs["slo"]}
        for inner_key, inner_value in value.items():
            for_all = key == "slo" and inner_key not in classes
            yield from _flat(inputs, {inner_key if for_all else f"{key}.{inner_key}": inner_value})


def _set(inputs: Inputs, key_path: str, value: Any) -> None:
    """Set the value at a dotted path that is there already; items of lists are told by their name or number."""
    *path, last = key_path.split(".")
    here: Any = inputs
    for key in path:
        here = below(here, key, key_path)
    if isinstance(here, list):
        here[place_in(here, last, key_path)] = value
    elif isinstance(here, dict) and last in here:
        here[last] = value
    else:
        raise _unknown(inputs, key_path)


def _unknown(inputs: Inputs, key_path: str) -> InputError:
    near = difflib.get_close_matches(key_path, [*LEVERS, *_paths(inputs)], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return InputError(f"{shortened(key_path)} is not a value of the workload file{hint}; levers: {name_list(LEVERS)}")


def _paths(inputs: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in inputs.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"
