"""Serving engines of the catalog: what their CPU work adds to a step, and how they treat requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from costmodel.accelerator import Origin
from costmodel.engine import EngineMemory, FractionOf
from costmodel.errors import UnknownNameError
from costmodel.host import EngineOverhead, Scheduler, ServingPolicy
from costmodel.policy import SCHEDULERS
from costmodel.units import MICRO

from .bounds import NOT_NEGATIVE
from .fields import Section, Text, member, number
from .quantities import in_base_units

NotNegative = Annotated[float, Field(ge=0)]


class _Shipped(BaseModel):
    """An entry of a file of the catalog."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FittedServing(_Shipped):
    """The figures of a serving policy that are fitted to measurements; times in milliseconds."""

    launch_us: NotNegative
    arrival_ms: NotNegative
    equal_wait: NotNegative
    lane_balance: Annotated[float, Field(ge=1)]
    handover_ms: NotNegative
    handover_burst: Annotated[float, Field(ge=0, le=1)]


class _Serving(_Shipped):
    """How an engine schedules."""

    scheduler: Scheduler
    token_budget: Annotated[int, Field(ge=1)]
    memory_fraction: Annotated[float, Field(gt=0, le=1)]
    quantized_kv_dtype: Literal["bf16", "fp8"]
    fitted: FittedServing


class _Entry(_Shipped):
    """One engine of engines.yaml; times in microseconds."""

    aliases: tuple[str, ...] = ()
    step_overhead_us: NotNegative
    per_request_overhead_us: NotNegative
    origin: Origin
    source: Annotated[str, Field(min_length=1)]
    serving: _Serving


class _Memory(_Shipped):
    """One engine of engine_memory.yaml."""

    fraction_of: FractionOf
    runtime_gib: NotNegative
    collectives_gib: NotNegative
    logit_copies: NotNegative
    gathered_copies: NotNegative
    expert_copies: NotNegative
    sparse_latent: NotNegative
    origin: Origin
    source: Annotated[str, Field(min_length=1)]


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
    return tuple(sorted(_entries()))


def engine_name(word: str) -> str:
    """The catalog's name of an engine or of one of its aliases, in any case; an unknown name offers the nearest.

    >>> engine_name("TensorRT-LLM")
    'trtllm'
    """
    plain = word.strip().lower()
    for name, entry in _entries().items():
        if plain == name or plain in entry.aliases:
            return name
    raise UnknownNameError("engine", word, _entries())


def load_engine_overhead(name: str, changes: EngineChanges = NO_CHANGES) -> EngineOverhead:
    """Host overhead of a serving engine, with the user's changes; an unknown name is an error that offers the nearest.

    >>> load_engine_overhead("vllm").step > 0
    True
    """
    entries = _entries()
    if name not in entries:
        raise UnknownNameError("engine", name, entries)
    entry = _with_change(entries[name], changes.get(name))
    return EngineOverhead(
        step=entry.step_overhead_us * MICRO,
        per_request=entry.per_request_overhead_us * MICRO,
        origin=entry.origin,
        source=entry.source,
    )


@cache
def load_engine_memory(name: str) -> EngineMemory:
    """What a serving engine needs beside weights and KV cache; an unknown name is an error that offers the nearest.

    >>> load_engine_memory("sglang").fraction_of.value
    'startup'
    """
    text = (resources.files("costmodel.catalog") / "engine_memory.yaml").read_text(encoding="utf-8")
    entries = yaml.safe_load(text)
    if name not in entries:
        raise UnknownNameError("engine", name, entries)
    entry = _Memory.model_validate(entries[name])
    return EngineMemory(**in_base_units(entry.model_dump(exclude={"origin", "source"})))


def load_serving_policy(name: str, changes: EngineChanges = NO_CHANGES) -> ServingPolicy:
    """How a serving engine treats requests; an unknown name is an error that offers the nearest.

    >>> load_serving_policy("sglang").scheduler.value
    'prefill_first'
    """
    overhead = load_engine_overhead(name, changes)
    return serving_policy(name, overhead, _with_change(_entries()[name], changes.get(name)).serving.fitted)


def serving_policy(name: str, overhead: EngineOverhead, serving_fit: FittedServing) -> ServingPolicy:
    """The policy of a known engine with other fitted figures."""
    serving = _entries()[name].serving
    return ServingPolicy(
        **serving.model_dump(exclude={"fitted"}),
        **in_base_units(serving_fit.model_dump()),
        overhead=overhead,
        hand_over_steps=float(SCHEDULERS[name].pulls),
    )


def _with_change(entry: _Entry, change: EngineChange | None) -> _Entry:
    """The entry with the user's figures laid over it."""
    if change is None:
        return entry
    figures = change.model_dump(exclude_none=True, exclude={"launch_us", "arrival_ms"})
    if change.arrival_ms is None:
        return entry.model_copy(update=figures)
    serving_fit = entry.serving.fitted.model_copy(update={"arrival_ms": change.arrival_ms})
    return entry.model_copy(update={**figures, "serving": entry.serving.model_copy(update={"fitted": serving_fit})})


@cache
def _entries() -> dict[str, _Entry]:
    text = (resources.files("costmodel.catalog") / "engines.yaml").read_text(encoding="utf-8")
    return {name: _Entry.model_validate(entry) for name, entry in yaml.safe_load(text).items()}
