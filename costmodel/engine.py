"""An engine: how it splits and runs the model, drafts tokens, fills its steps, and what it adds to its kernels.

`EngineConfig` is one way to run the model on a group of GPUs; `ServingPolicy` is the software that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from .accelerator import Accelerator, Origin
from .arrays import BoolArray, FloatArray
from .transformer import FeedForward, LayerGroup, Transformer


class Draft(StrEnum):
    """Who drafts: the model's own multi-token-prediction layer, an EAGLE-3 layer, or a look-up of n-grams (no GPU)."""

    MTP = "mtp"
    EAGLE3 = "eagle3"
    NGRAM = "ngram"


JOINED = {Draft.MTP: 2, Draft.EAGLE3: 5}
"""Hidden states that a draft layer's input projections take in [1]: MTP joins the state and the next embedding
(DeepSeek-V3 §2.2); EAGLE-3 joins the states of three layers, and then the result with the embedding (Li 2025, §3)."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one engine speculates: who drafts, how many tokens a step, and the acceptance of each position [1].

    Where more are drafted than acceptances are known, the last one holds for the rest. A drafted token counts only if
    all before it were accepted. With acceptance a_1 ... a_k of each position, given the ones before, a step makes

        E = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k       tokens, which is (1 - a^(k+1)) / (1 - a) where all are a

    (Leviathan et al. 2023, Fast inference from transformers via speculative decoding, eq. 1). Verification makes the
    step k + 1 tokens wide for each request, and reads the KV cache once. A draft layer, if there is one, runs over
    every prompt, then over the verified tokens, and k - 1 times over the batch, with an output head each time.

    Everything above a step counts tokens, so it sees *token steps*: T / E of a decode step T, and M - T (1 - 1 / E) of
    a step M that carries decodes which take T by themselves. The decodes are paid for E tokens in either, and what
    prompts add stays M - T. A first token, which waits for whole steps, comes up to T (1 - 1 / E) a chunk later than
    that says.
    """

    draft: Draft
    tokens: int
    acceptance: tuple[float, ...]

    @property
    def tokens_per_step(self) -> float:
        """E, tokens that a step makes of each request [1]."""
        return tokens_per_step(self.acceptance, self.tokens)

    @property
    def step_variance(self) -> float:
        """Variance of the steps that a request takes, for each of its tokens [1]: Var(X) / E^3 of X tokens a step.

        That of renewals (Cox 1962). With p_j = a_1 ... a_j the chance that j drafted tokens count,
        E[X^2] = 1 + sum (2 j + 1) p_j.
        """
        chances = np.cumprod([self.acceptance[min(j, len(self.acceptance) - 1)] for j in range(self.tokens)])
        square = 1.0 + float((2.0 * np.arange(self.tokens) + 3.0) @ chances)
        return (square - self.tokens_per_step**2) / self.tokens_per_step**3


def tokens_per_step(acceptance: Sequence[float], tokens: int) -> float:
    """E of so many drafted tokens a step [1].

    >>> tokens_per_step((0.5,), 2), (1 - 0.5**3) / (1 - 0.5)
    (1.75, 1.75)
    >>> tokens_per_step((0.8, 0.5), 2)
    2.2
    """
    expected, chance = 1.0, 1.0
    for position in range(tokens):
        chance *= acceptance[min(position, len(acceptance) - 1)]
        expected += chance
    return expected


def draft_layer(model: Transformer, draft: Draft) -> LayerGroup | None:
    """The layer that drafts, None where none does.

    MTP repeats the model's last layer; EAGLE-3 has that layer's attention and a dense block, as wide as the model's
    widest or, where it has none, as four hidden sizes.
    """
    if draft is Draft.NGRAM:
        return None
    last = replace(model.layers[-1], count=1, sets=0, joined=JOINED[draft], tail=0)
    if draft is Draft.MTP:
        return last
    dense = [group.feed_forward.intermediate for group in model.layers if not group.feed_forward.experts]
    widest = max(dense, default=0)
    return replace(last, feed_forward=FeedForward(model.hidden, widest or 4 * model.hidden, gated=True))


@lru_cache(maxsize=64)
def with_draft(model: Transformer, speculation: Speculation | None) -> Transformer:
    """The model as memory holds it: the weights and the KV cache of a draft layer are those of one more layer."""
    layer = None if speculation is None else draft_layer(model, speculation.draft)
    return model if layer is None else replace(model, layers=(*model.layers, layer))


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
    whole_prompts: whether all tokens of a prompt pass every layer, also layers with a `tail` (`LayerGroup`).
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
    whole_prompts: bool = False

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

    @property
    def step_variance(self) -> float:
        """Variance of the decode steps of a request, for each of its tokens [1]."""
        return self.speculation.step_variance if self.speculation else 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """How an engine fills its next step: answers that the simulator's one scheduler reads.

    All are first come, first served, and let running requests go before waiting ones, except that an exclusive policy
    runs waiting prompts before the decodes. Recomputed requests go to the front of the queue.

    exclusive_prefill: prompts and decodes never share a step, and prompts go first.
    chunked: a prompt may be computed in parts that fill the token budget; otherwise whole (a prompt longer than the
        budget then goes alone).
    static: no admission before the whole batch has ended; ended requests go on being computed as padding.
    whole_prompt_blocks: blocks of the whole prompt are taken at admission; otherwise chunk by chunk.
    watermark: share of all blocks that admission leaves free [1].
    reserve_output: share of its output for which a newcomer is promised blocks [1]; promises of running requests never
        exceed all blocks, so with 1 nothing is ever preempted.
    admit_after_preemption: new requests may enter in the step in which one was preempted.
    pulls: a decode engine admits a handed-over request at the begin of a step, when it has a sequence and the blocks
        for it, loads its KV meanwhile, and decodes it in the first step that begins after that; until then the KV stays
        on the prefill side. Otherwise the prefill engine sends the KV as soon as it is computed.
    formed_ahead: a colocated engine forms the next step when one begins. If requests go on from one to the other, a
        prompt that comes meanwhile waits for both (`queues.waits.StepsAhead`). A pipeline, whose lanes take turns,
        does not; nor is it counted where roles are apart, as measured runs do not show it.
    random_lanes: a prefill engine deals prompts to its data-parallel ranks at random, unless it is told otherwise;
        else it keeps them even. Deployment files tell it so, so the simulator keeps them even always; measured runs
        kept the default, which `queues.steady_state` knows.
    """

    exclusive_prefill: bool = False
    chunked: bool = True
    static: bool = False
    whole_prompt_blocks: bool = True
    watermark: float = 0.0
    reserve_output: float = 0.0
    admit_after_preemption: bool = True
    pulls: bool = False
    formed_ahead: bool = False
    random_lanes: bool = False

    def forms_ahead(self, stages: FloatArray | float) -> BoolArray | bool:
        """Whether a colocated engine of so many pipeline stages, a number or an array, forms its next step ahead."""
        return self.formed_ahead & (stages == 1)


@dataclass(frozen=True, slots=True)
class EngineOverhead:
    """CPU time that the GPU waits for.

    step: per engine step, whatever is in it [s]; per_request: per request in the step, of one data-parallel rank, and
    for each of its tokens where several are verified [s]; 0 where the engine deals with its requests while the GPU
    computes.
    """

    step: float
    per_request: float
    origin: Origin
    source: str


NO_OVERHEAD = EngineOverhead(0.0, 0.0, Origin.ASSUMED, "kernels alone")
"""For comparison with measured kernels, where no scheduler runs."""


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """One serving engine's way with requests.

    scheduler: how it fills its steps; token_budget: most prompt tokens in a step [token];
    memory_fraction: share of HBM that it takes [1];
    quantized_kv_dtype: KV dtype that it chooses for 8-bit and 4-bit checkpoints;
    overhead: CPU time that a step waits for;
    launch: of a kernel of a step with prompts, which no CUDA graph replays; 0 where the engine compiles the model [s];
    arrival: HTTP, tokenizing and scheduling before a lone prompt starts [s];
    handover: what a disaggregated TTFT has beyond prefill, queue, transfer and decode step [s];
    handover_burst: share of requests after the first wave that find all others' prompts ahead of them at the prefill
    workers [1].
    """

    scheduler: Policy
    token_budget: int
    memory_fraction: float
    quantized_kv_dtype: str
    overhead: EngineOverhead
    launch: float
    arrival: float
    handover: float
    handover_burst: float

    def fixed_ttft(self, handed_over: bool) -> float:
        """Part of a TTFT that no load changes [s]: arrival, and handover of a request that another engine decodes.

        Nothing is busy or held for it, so it takes no capacity: all tokens of a request come later by as much, and in
        a closed loop so does the next request.
        """
        return self.arrival + (self.handover if handed_over else 0.0)
