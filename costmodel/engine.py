"""An engine config: one way to run the model on a group of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from costmodel.accelerator import Accelerator


class Role(StrEnum):
    """What an engine does: prompts only, tokens only, or both with chunked prefill."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one engine splits the model over its GPUs.

    tensor: ranks that share every layer; pipeline: stages that share the layers;
    expert: ranks over which a layer's experts are spread (1 when experts are split by tensor);
    data: attention data-parallel ranks (attention is replicated, requests are split; experts are shared).
    An engine occupies tensor x pipeline x data GPUs; expert must divide tensor x data.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.rank_gpus * self.data

    @property
    def rank_gpus(self) -> int:
        """GPUs of one data-parallel rank, which hold the KV cache of its requests."""
        return self.tensor * self.pipeline

    @property
    def expert_ranks(self) -> int:
        """Tensor ranks that share an expert."""
        return max(self.tensor * self.data // self.expert, 1)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine: hardware, split, precision and scheduler limits.

    weight_dtype: "bf16", "fp8", "int8", "int4", "fp4"; kv_dtype: "bf16", "fp8".
    max_num_seqs: most requests that run at once in one engine.
    max_num_batched_tokens: most tokens (prefill chunk + one per decode) in one step.
    max_model_len: longest ISL + OSL that the engine accepts [token].
    memory_fraction: share of HBM that the engine may use (weights, KV, activations).
    """

    accelerator: Accelerator
    role: Role
    parallelism: Parallelism
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_fraction: float = 0.9

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.parallelism.gpus
