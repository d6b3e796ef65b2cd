"""An engine config: one way to run the model on a group of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from costmodel.accelerator import Accelerator
from costmodel.speculation import Speculation


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

    @property
    def words(self) -> str:
        """The split in words, without what is not split; tensor parallelism is always named.

        >>> Parallelism(4, 1, 8, 2).words, Parallelism().words
        ('TP4 EP8 DP2', 'TP1')
        """
        degrees = {"PP": self.pipeline, "EP": self.expert, "DP": self.data}
        return " ".join([f"TP{self.tensor}", *(f"{name}{degree}" for name, degree in degrees.items() if degree > 1)])


class FractionOf(StrEnum):
    """What an engine's memory fraction is a share of.

    TOTAL: all of the GPU's memory, of which weights, KV cache, activations and runtime take it together (vLLM's
    gpu_memory_utilization). STARTUP: what is free once the runtime has started; weights and KV cache take it,
    activations lie outside (SGLang's mem_fraction_static). FREE: what weights, activations and runtime leave; the KV
    cache takes it (TensorRT-LLM's free_gpu_memory_fraction).
    """

    TOTAL = "total"
    STARTUP = "startup"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What a serving engine needs of each GPU beside weights and KV cache (`costmodel.memory`).

    fraction_of: meaning of `EngineConfig.memory_fraction`.
    runtime: what the process takes that no setting changes [byte per GPU]; collectives: communication buffers where an
    engine has several GPUs [byte per GPU], however many.
    logit_copies: 32-bit numbers per vocabulary entry and request while tokens are drawn [1]; gathered_copies: those
    that tensor ranks add while they gather the vocabulary's parts [1].
    expert_copies: hidden-sized 16-bit rows per token and chosen expert in routed experts [1].
    sparse_latent: bytes that a token adds to one layer's FP8 latent with sparse attention, beyond its elements [byte].
    """

    fraction_of: FractionOf
    runtime: float
    collectives: float
    logit_copies: float
    gathered_copies: float
    expert_copies: float
    sparse_latent: float


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine: hardware, split, precision and scheduler limits.

    weight_dtype: "bf16", "fp8", "int8", "int4", "fp4"; kv_dtype: "bf16", "fp8".
    max_num_seqs: most requests that run at once in one engine.
    max_num_batched_tokens: most tokens (prefill chunk + one per decode) in one step.
    max_model_len: longest ISL + OSL that the engine accepts [token].
    memory: what the serving engine needs beside weights and KV cache.
    memory_fraction: the engine's own setting, a share of what `memory.fraction_of` says [1].
    speculation: None where no tokens are drafted.
    """

    accelerator: Accelerator
    role: Role
    parallelism: Parallelism
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory: EngineMemory
    memory_fraction: float = 0.9
    speculation: Speculation | None = None

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.parallelism.gpus

    @property
    def drafted(self) -> int:
        """Tokens drafted for each request and step [token]."""
        return self.speculation.tokens if self.speculation else 0

    @property
    def verified(self) -> int:
        """Tokens of a decoding request in a step, drafted ones among them [token]."""
        return 1 + self.drafted

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decode step makes of each request [token]."""
        return self.speculation.tokens_per_step if self.speculation else 1.0
