"""Serving engines of the catalog: what their CPU work adds to a step, how they treat requests, and how they draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from costmodel.accelerator import Origin
from costmodel.engine import Draft, EngineMemory, EngineOverhead, Policy, ServingPolicy
from costmodel.errors import UnknownNameError
from costmodel.units import MICRO

from .files import shipped_table
from .quantities import in_base_units

EngineChanges = Mapping[str, Mapping[str, Any]]
"""Figures of a user's catalog file by the catalog's name of the engine, with the keys of engines.yaml."""

NO_CHANGES: EngineChanges = {}


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


@dataclass(frozen=True, slots=True)
class EngineSupport:
    """The abilities of a serving engine.

    scheduler: how it fills its steps; weight_only: formats that it runs on a vendor's GPUs without units of their kind,
    a vendor not named is not judged; only_vendor: whose GPUs it runs on, empty: any; sixteen_bit_latents: whether its
    only kernel for latent attention on every GPU reads a 16-bit cache; eight_bit_compressed: whether its kernel for
    compressed attention keeps an 8-bit cache alone; staged_drafts_since: first version that drafts tokens with pipeline
    stages, empty: none does; unshared_drafts: methods by which it does not draft with data-parallel attention;
    cache_quantizers: tools whose checkpoints, where they state an FP8 KV cache, get one unless the command line states
    another; no_wider_cache: whether it cannot even then; block_tokens: of a KV block, also of latent and of compressed
    attention, 0: as of any other [token]; tails, shared_tails: whether it computes only the end of a prompt where
    nothing reads the rest (`LayerGroup.tail`), without and with data-parallel attention; state_bits: of an element of
    linear attention's state where no config states it [bit]; expert_copies: whether files can ask it for second copies
    of experts; data_parallel_parts: whether attention may be data-parallel over a part of the ranks, each of several
    GPUs.
    """

    scheduler: Policy
    weight_only: Mapping[str, frozenset[str]]
    block_tokens: int
    state_bits: int
    latent_block: int = 0
    compressed_block: int = 0
    only_vendor: str = ""
    sixteen_bit_latents: bool = False
    eight_bit_compressed: bool = False
    staged_drafts_since: str = ""
    unshared_drafts: frozenset[Draft] = frozenset()
    tails: bool = False
    shared_tails: bool = False
    cache_quantizers: frozenset[str] = frozenset()
    no_wider_cache: bool = False
    expert_copies: bool = True
    data_parallel_parts: bool = True


SUPPORT = TypeAdapter(dict[str, EngineSupport]).validate_python(shipped_table("search_spaces", "engine_support.yaml"))
"""The abilities of each engine."""
ENGINES = tuple(SUPPORT)
"""Engines that a user can name."""


@cache
def load_engine_memory(name: str) -> EngineMemory:
    """What a serving engine needs beside weights and KV cache.

    >>> load_engine_memory("sglang").fraction_of.value
    'startup'
    """
    return TypeAdapter(EngineMemory).validate_python(in_base_units(_entries("engine_memory.yaml")[name]))


def load_serving_policy(name: str, changes: EngineChanges = NO_CHANGES) -> ServingPolicy:
    """How a serving engine treats requests, with the user's changes.

    >>> load_serving_policy("sglang").scheduler.exclusive_prefill
    True
    """
    entry = {**_entries("engines.yaml")[name], **changes.get(name, {})}
    fitted = entry["serving"]["fitted"]
    step, request = entry["step_overhead_us"] * MICRO, entry["per_request_overhead_us"] * MICRO
    overhead = EngineOverhead(step, request, Origin(entry["origin"]), entry["source"])
    return serving_policy(name, overhead, fitted | {key: entry[key] for key in fitted.keys() & entry.keys()})


def serving_policy(name: str, overhead: EngineOverhead, fitted: Mapping[str, float]) -> ServingPolicy:
    """The policy of a known engine with other fitted figures, by their keys in engines.yaml."""
    serving = _entries("engines.yaml")[name]["serving"]
    return ServingPolicy(
        scheduler=SUPPORT[name].scheduler,
        **{key: serving[key] for key in ("token_budget", "memory_fraction", "quantized_kv_dtype")},
        **in_base_units(fitted),
        overhead=overhead,
    )


@cache
def _entries(file: str) -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = shipped_table("costmodel.catalog", file)
    return table


DRAFTED = (0, 1, 2, 3)
"""Drafted tokens that are tried where a workload states none; 0: no speculation."""


@cache
def shipped_acceptance() -> dict[Draft, tuple[float, ...]]:
    """Acceptance by position of methods that the catalog has figures for [1].

    >>> Draft.NGRAM in shipped_acceptance()
    False
    """
    entries = shipped_table("costmodel.catalog", "acceptance.yaml")
    return {Draft(name): tuple(entry["acceptance"]) for name, entry in entries.items()}
