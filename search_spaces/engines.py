"""Serving engines of the catalog: what their CPU work adds to a step, and how they treat requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from costmodel.accelerator import Origin
from costmodel.engine import EngineMemory, FractionOf
from costmodel.errors import UnknownNameError
from costmodel.host import EngineOverhead, Scheduler, ServingPolicy
from costmodel.policy import SCHEDULERS
from costmodel.units import MICRO

from .bounds import NOT_NEGATIVE
from .fields import Section, Text, member, number
from .quantities import in_base_units
from .yaml_source import shipped_table


class EngineChange(Section):
    """Host times of an engine in a user's catalog file, laid over the shipped ones; None leaves one as it was."""

    step_overhead_us: Annotated[float, number(NOT_NEGATIVE)] | None = None
    per_request_overhead_us: Annotated[float, number(NOT_NEGATIVE)] | None = None
    arrival_ms: Annotated[float, number(NOT_NEGATIVE)] | None = None
    origin: Annotated[Origin, member(Origin)] = Origin.ASSUMED
    source: Text = "the user's catalog file"


EngineChanges = Mapping[str, EngineChange]
"""By the catalog's name of the engine."""

NO_CHANGES: EngineChanges = {}


def engine_names() -> tuple[str, ...]:
    """Serving engines that the catalog knows."""
    return tuple(sorted(_entries("engines.yaml")))


def engine_name(word: str) -> str:
    """The catalog's name of an engine or of one of its aliases, in any case; an unknown name offers the nearest.

    >>> engine_name("TensorRT-LLM")
    'trtllm'
    """
    entries, plain = _entries("engines.yaml"), word.strip().lower()
    for name, entry in entries.items():
        if plain == name or plain in entry.get("aliases", ()):
            return name
    raise UnknownNameError("engine", word, entries)


def load_engine_overhead(name: str, changes: EngineChanges = NO_CHANGES) -> EngineOverhead:
    """Host overhead of a serving engine, with the user's changes; an unknown name is an error that offers the nearest.

    >>> load_engine_overhead("vllm").step > 0
    True
    """
    entry = _entry("engines.yaml", name, changes)
    step, request = entry["step_overhead_us"] * MICRO, entry["per_request_overhead_us"] * MICRO
    return EngineOverhead(step, request, Origin(entry["origin"]), entry["source"])


@cache
def load_engine_memory(name: str) -> EngineMemory:
    """What a serving engine needs beside weights and KV cache; an unknown name is an error that offers the nearest.

    >>> load_engine_memory("sglang").fraction_of.value
    'startup'
    """
    figures = dict(_entry("engine_memory.yaml", name))
    base = FractionOf(figures.pop("fraction_of"))
    return EngineMemory(base, **_numbers({key: figures[key] for key in figures.keys() - {"origin", "source"}}))


def load_serving_policy(name: str, changes: EngineChanges = NO_CHANGES) -> ServingPolicy:
    """How a serving engine treats requests; an unknown name is an error that offers the nearest.

    >>> load_serving_policy("sglang").scheduler.value
    'prefill_first'
    """
    entry = _entry("engines.yaml", name, changes)
    fitted = entry["serving"]["fitted"]
    return serving_policy(
        name, load_engine_overhead(name, changes), fitted | {key: entry[key] for key in fitted.keys() & entry.keys()}
    )


def serving_policy(name: str, overhead: EngineOverhead, fitted: Mapping[str, float]) -> ServingPolicy:
    """The policy of a known engine with other fitted figures, by their keys in engines.yaml."""
    serving = _entry("engines.yaml", name)["serving"]
    return ServingPolicy(
        scheduler=Scheduler(serving["scheduler"]),
        **{key: serving[key] for key in ("token_budget", "memory_fraction", "quantized_kv_dtype")},
        **_numbers(fitted),
        overhead=overhead,
        hand_over_steps=float(SCHEDULERS[name].pulls),
    )


def _numbers(figures: Mapping[str, float]) -> dict[str, Any]:
    return {key: float(value) for key, value in in_base_units(figures).items()}


def _entry(file: str, name: str, changes: EngineChanges = NO_CHANGES) -> Mapping[str, Any]:
    """The entry of an engine, with the user's figures laid over it."""
    entries = _entries(file)
    if name not in entries:
        raise UnknownNameError("engine", name, entries)
    return {**entries[name], **(changes[name].model_dump(exclude_none=True) if name in changes else {})}


@cache
def _entries(file: str) -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = shipped_table("costmodel.catalog", file)
    return table
