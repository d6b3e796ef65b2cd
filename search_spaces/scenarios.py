"""Scenarios: one problem with some of its values changed, by name or over a grid.

A scenario is made from the canonical echo of a problem (`Problem.inputs`), so that whatever the file was written like,
a change is one value in one place, and what comes out is checked as a workload.yaml is.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from costmodel.errors import InputError, UnknownNameError

from .catalog import normalized_name
from .loader import problem_of_values
from .problem import Problem
from .yaml_source import parse_value

Inputs = dict[str, Any]
Setter = Callable[[Inputs, tuple[str, ...], Any], None]

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
    key, equals, spec = (part.strip() for part in text.partition("="))
    if not equals or not key or not spec:
        raise InputError(f"--vary {text!r} is not KEY=LOW:HIGH:COUNT or KEY=VALUE,VALUE, such as price.H200=1:8:8")
    if ":" in spec:
        return Axis(key, _spaced(text, spec.split(":")))
    return Axis(key, tuple(_value(text, part.strip()) for part in spec.split(",")))


def _value(text: str, part: str) -> Any:
    if not part:
        raise InputError(f"--vary {text!r} has an empty value")
    return parse_value(part)


def _spaced(text: str, parts: list[str]) -> tuple[float, ...]:
    """Values from low to high, evenly spaced or evenly in their logarithms."""
    if not 3 <= len(parts) <= 4 or (len(parts) == 4 and parts[3] != "log"):
        raise InputError(f"--vary {text!r}: a range is LOW:HIGH:COUNT or LOW:HIGH:COUNT:log")
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    except ValueError:
        raise InputError(f"--vary {text!r}: LOW and HIGH are plain numbers and COUNT a whole one") from None
    if not (math.isfinite(low) and math.isfinite(high) and 1 <= count <= MOST_SCENARIOS):
        raise InputError(
            f"--vary {text!r}: LOW and HIGH must be finite, COUNT at least 1 and at most {MOST_SCENARIOS:,}"
        )
    if count == 1:
        return (low,)
    if len(parts) == 4:
        if min(low, high) <= 0.0:
            raise InputError(f"--vary {text!r}: LOW and HIGH of a log range must be above zero")
        return tuple(low * (high / low) ** (step / (count - 1)) for step in range(count))
    return tuple(low + (high - low) * step / (count - 1) for step in range(count))


def grid(axes: Sequence[Axis], named: Sequence[Scenario] = ()) -> Iterator[Scenario]:
    """Every combination of the axes' values, the last axis fastest, for each of the named scenarios (or none).

    Raises InputError when two axes have one key, or when there are too many.
    """
    keys = [axis.key for axis in axes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise InputError(f"--vary {twice} is stated twice; list all its values in one")
    count = math.prod(len(axis.values) for axis in axes) * max(len(named), 1)
    if count > MOST_SCENARIOS:
        raise InputError(f"the axes make {count:,} scenarios, but at most {MOST_SCENARIOS:,} are looked at")
    for base in named or (Scenario("", {}),):
        for values in product(*(axis.values for axis in axes)):
            yield Scenario(base.name, {**base.changes, **dict(zip(keys, values, strict=True))})


def named_scenarios(problem: Problem) -> dict[str, Scenario]:
    """The scenarios that the problem's own file names, with what they extend, in the file's order.

    Raises InputError where one extends a name that there is not, or itself.
    """
    stated = (problem.source.value if problem.source is not None else {}).get("scenarios") or {}
    return {name: Scenario(name, _with_extended(stated, name, ())) for name in stated}


def _with_extended(stated: Mapping[str, Mapping[str, Any]], name: str, below: tuple[str, ...]) -> dict[str, Any]:
    """Changes of a scenario laid over those that it extends, in the order in which it names them."""
    if name in below:
        raise InputError(f"scenarios.{name}: extends itself ({' -> '.join([*below, name])})")
    if name not in stated:
        raise UnknownNameError("scenario", name, stated)
    own = dict(stated[name])
    above = own.pop("extends", [])
    changes: dict[str, Any] = {}
    for other in [above] if isinstance(above, str) else above:
        changes |= _with_extended(stated, str(other), (*below, name))
    return changes | own


def scenario_problem(problem: Problem, scenario: Scenario, base: Path) -> Problem:
    """The problem with the scenario's changes made and everything checked again.

    base: folder from which files that the problem names are looked up. Raises InputError as `load_problem` does.
    """
    inputs = changed(problem.inputs, scenario.changes)
    return problem_of_values(inputs, f"scenario {scenario.name or told(scenario.changes)}", base)


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
        head, *rest = key.split(".")
        lever = LEVERS.get(head)
        if lever is not None and head not in result:
            lever(result, tuple(rest), value)
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
        for below, each in value.items():
            every = key == "slo" and below not in classes
            yield from _flat(inputs, {below if every else f"{key}.{below}": each})


def _set(inputs: Inputs, dotted: str, value: Any) -> None:
    """Set the value at a dotted path that is there already; items of lists are told by their name or number."""
    *path, last = dotted.split(".")
    here: Any = inputs
    for part in path:
        here = _below(here, part, dotted)
    if isinstance(here, list):
        here[here.index(_below(here, last, dotted))] = value
    elif isinstance(here, dict) and last in here:
        here[last] = value
    else:
        raise _unknown(inputs, dotted)


def _below(here: Any, part: str, dotted: str) -> Any:
    if isinstance(here, dict) and part in here:
        return here[part]
    if isinstance(here, list):
        if part.isdigit() and int(part) < len(here):
            return here[int(part)]
        named = [
            item
            for item in here
            if isinstance(item, dict) and normalized_name(str(item.get("name"))) == normalized_name(part)
        ]
        if named:
            return named[0]
        names = ", ".join(str(item.get("name")) for item in here if isinstance(item, dict))
        raise InputError(f"{dotted}: {part!r} is not one of {names}")
    raise InputError(f"{dotted}: there is no {part!r}; levers: {', '.join(LEVERS)}")


def _unknown(inputs: Inputs, dotted: str) -> InputError:
    near = difflib.get_close_matches(dotted, [*LEVERS, *_paths(inputs)], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return InputError(f"{dotted} is no value of the workload file{hint}; levers: {', '.join(LEVERS)}")


def _paths(inputs: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in inputs.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _offer_value(*keys: str) -> Setter:
    """A lever on one accelerator: NAME.GPU = value."""

    def apply(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
        name = ".".join(rest)
        if not name:
            raise InputError(f"name the accelerator, such as price.H200={value}")
        entry = _below(inputs["accelerators"], name, f"accelerators.{name}")
        for key in keys[:-1]:
            entry = entry[key]
        entry[keys[-1]] = value

    return apply


def _value_at(*path: str) -> Setter:
    """A lever that is one value of the inputs."""

    def apply(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
        _no_more(path[-1], rest)
        here = inputs
        for part in path[:-1]:
            here = here[part]
        here[path[-1]] = value

    return apply


def _one_dtype(key: str) -> Setter:
    """A precision that the model is served in, whatever the search might choose from."""
    set_model = _value_at("model", key)

    def apply(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
        set_model(inputs, rest, value)
        inputs["search"].pop(key, None)

    return apply


def _of_classes(key: str) -> Setter:
    """A lever on a limit of every SLO class, or of the class named: ttft = value, ttft.CLASS = value."""

    def apply(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
        name = ".".join(rest)
        for slo in [_below(inputs["slo"], name, f"slo.{name}")] if name else inputs["slo"]:
            slo[key] = f"{value!r}s" if isinstance(value, float) and key != "attainment" else value

    return apply


def _scaled_lengths(key: str) -> Setter:
    """A lever that multiplies all prompts or all outputs; the longest request grows in step."""

    def apply(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
        _no_more(f"{key}_scale", rest)
        factor, load = _factor(f"{key}_scale", value), inputs["workload"]
        rows = load["lengths"]["histogram"]
        longest = max(row["isl"] + row["osl"] for row in rows)
        for row in rows:
            row[key] = max(row[key] * factor, 1.0)
        grown = max(row["isl"] + row["osl"] for row in rows) / longest
        load["max_tokens"] = max(math.ceil(load["max_tokens"] * grown), 1)

    return apply


def _scaled_rate(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
    """The demand times a factor."""
    _no_more("rate_scale", rest)
    load, factor = inputs["workload"], _factor("rate_scale", value)
    if load["request_rate"] is None:
        raise InputError("rate_scale: the rate follows a daily profile; change workload.diurnal instead")
    load["request_rate"] *= factor


def _scaled_limits(name: str, *keys: str) -> Setter:
    """A lever that multiplies latency limits of every class."""

    def apply(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
        _no_more(name, rest)
        factor = _factor(name, value)
        for slo in inputs["slo"]:
            for key in keys:
                if slo[key] is not None:
                    slo[key] = f"{float(str(slo[key]).removesuffix('s')) * factor!r}s"

    return apply


def _without(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
    """Leave an accelerator out."""
    name = ".".join(rest)
    entry = _below(inputs["accelerators"], name, f"accelerators.{name}")
    if value not in {True, False}:
        raise InputError(f"without.{name}={value} is neither true nor false")
    if value:
        inputs["accelerators"].remove(entry)


def _added(inputs: Inputs, rest: tuple[str, ...], value: Any) -> None:
    """Offer one more accelerator of the catalog at a price [$/h]."""
    inputs["accelerators"].append({"name": ".".join(rest), "price": value})


def _factor(key: str, value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf:
        return float(value)
    raise InputError(f"{key}={value} is not a factor above zero")


def _no_more(key: str, rest: tuple[str, ...]) -> None:
    if rest:
        raise InputError(f"{key} stands alone, but {'.'.join(rest)!r} follows it")


LEVERS: Mapping[str, Setter] = MappingProxyType(
    {
        "price": _offer_value("price"),
        "inventory": _offer_value("inventory"),
        "link": _offer_value("scale_out", "bandwidth"),
        "without": _without,
        "with": _added,
        "rate": _value_at("workload", "request_rate"),
        "rate_scale": _scaled_rate,
        "burstiness": _value_at("workload", "burstiness"),
        "prefix_hit_share": _value_at("workload", "prefix_hit_share"),
        "isl_scale": _scaled_lengths("isl"),
        "osl_scale": _scaled_lengths("osl"),
        "ttft": _of_classes("ttft"),
        "tpot": _of_classes("tpot"),
        "e2e": _of_classes("e2e"),
        "attainment": _of_classes("attainment"),
        "ttft_scale": _scaled_limits("ttft_scale", "ttft"),
        "tpot_scale": _scaled_limits("tpot_scale", "tpot"),
        "slo_scale": _scaled_limits("slo_scale", "ttft", "tpot", "e2e"),
        "weight_dtype": _one_dtype("weight_dtype"),
        "kv_dtype": _one_dtype("kv_dtype"),
        "budget": _value_at("constraints", "budget"),
        "power": _value_at("constraints", "power"),
        "max_gpus": _value_at("constraints", "max_gpus"),
        "max_pools": _value_at("constraints", "max_pools"),
        "spares": _value_at("constraints", "headroom", "replicas"),
    }
)
"""Short names of what is asked about most; any other value of the inputs goes by its dotted path."""
