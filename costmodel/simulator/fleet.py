"""What is simulated: pools of engines, each with its policy, limits, step times (`steps`) and links."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from costmodel.engine import Policy, Role

from .steps import UNLIMITED, StepModel

AFFINE: Final = 0.5
"""Share of a prompt that an engine must have to get it for that [1]: `affinityThreshold` of llm-d's router, which the
deployment files state; assumed."""


class Router(StrEnum):
    """How a pool's router chooses an engine; see `loop`."""

    LEAST_LOADED = "least_loaded"
    LENGTH_AWARE = "length_aware"
    PREFIX_AFFINE = "prefix_affine"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine.

    max_num_seqs: requests running at once; max_num_batched_tokens: tokens in a step; long_prefill_threshold: most
    tokens of one prompt in a step; kv_blocks of block_size tokens; decode_tokens: tokens that a decoding request takes
    of a step (`costmodel.engine.Speculation`).
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_threshold: int = UNLIMITED
    kv_blocks: int = UNLIMITED
    block_size: int = 16
    decode_tokens: int = 1


@dataclass(frozen=True, slots=True)
class SimulatedTier:
    """KV below the memory of GPUs (`costmodel.prefix_cache.CacheTier`).

    tokens: that each engine's own keeps, or the one that all engines of the pool share [token]; seconds_per_token: of
    a read by one of an engine's `nics`; latency: of one read [s].
    """

    tokens: float = 0.0
    seconds_per_token: float = 0.0
    latency: float = 0.0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """Equal engines with one role.

    pipeline: stages, each with an equal share of the step's time; as many micro-batches are in flight.
    kv_seconds_per_token: time that the KV of one token needs on the engine's links (all its NICs) [s/token].
    nics: links each way; one hand-over uses one of them, and several go side by side.
    first_token: time until the first token of a prompt over that of its steps (`Accelerator.in_engine`) [1].
    fixed_ttft: of prompts computed here, by how much clients have all tokens later than the engines
    (`ServingPolicy.fixed_ttft`) [s].
    tier: where engines that compute prompts read what their memory no longer has.
    """

    role: Role
    steps: StepModel
    policy: Policy
    limits: Limits = field(default_factory=Limits)
    replicas: int = 1
    pipeline: int = 1
    router: Router = Router.LEAST_LOADED
    kv_seconds_per_token: float = 0.0
    nics: int = 1
    first_token: float = 1.0
    fixed_ttft: float = 0.0
    tier: SimulatedTier = field(default_factory=SimulatedTier)


SimulatedFleet = tuple[SimulatedPool, ...]
"""Pools; the trace says which of them serve a request."""
