"""Which prefill and decode engines can hand KV blocks to each other: named predicates with a reason each.

The rules on degrees are those of NIXL as engines apply them; source: the guards in vLLM's
distributed/kv_transfer/kv_connector (utils.py and v1/nixl), the same from 0.20.1 to 0.33.0. A fleet whose pools break
one of them starts, and fails with the first request. Besides the KV dtype, the handshake compares the names of the two
models (another precision of the weights is another checkpoint) and their attention kernels. Block sizes need no
predicate: an engine has one for a model on every accelerator, and a fleet has one engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from costmodel.engine import Parallelism
from costmodel.transformer import LinearAttention, SoftmaxAttention, Transformer

from .enumeration import SIXTEEN_BIT_LATENTS, Shape
from .problem import Problem
from .targets import target_of

BLOCK_TOKENS: Final[Mapping[str, int]] = MappingProxyType({"vllm": 16, "sglang": 64, "trtllm": 32})
"""VENDOR: what every attention kernel takes on vLLM; what SGLang's latent kernels need and its others allow;
TensorRT-LLM's own default."""
VLLM_LATENT: Final = 64
"""VENDOR: what vLLM's kernels for latent attention need on Hopper."""


def block_tokens(engine: str, model: Transformer) -> int:
    """Tokens of a KV block of an engine that serves a model [token]."""
    return VLLM_LATENT if engine == "vllm" and model.is_latent else BLOCK_TOKENS[engine]


PairRule = Callable[[Transformer, Parallelism, Parallelism], str | None]
"""A rule on a prefill and a decode engine: None, or the sentence that says why they cannot talk."""


def kv_heads(model: Transformer) -> int | None:
    """Fewest KV heads of any layer [1]; None where every layer caches latents or a state, which have no heads."""
    heads = [layer.attention.kv_heads for layer in model.layers if isinstance(layer.attention, SoftmaxAttention)]
    return min(heads, default=None)


def is_hybrid(model: Transformer) -> bool:
    """Whether some layers keep a recurrent state instead of keys and values."""
    return any(isinstance(group.attention, LinearAttention) for group in model.layers)


def tensor_degrees_divide(model: Transformer, prefill: Parallelism, decode: Parallelism) -> str | None:  # noqa: ARG001
    """Ranks map onto each other: the larger tensor degree is a multiple of the smaller."""
    low, high = sorted((prefill.tensor, decode.tensor))
    if high % low:
        return f"TP {prefill.tensor} of prefill and TP {decode.tensor} of decode do not divide each other"
    return None


def decode_ranks_find_heads(model: Transformer, prefill: Parallelism, decode: Parallelism) -> str | None:
    """A decode rank reads from one prefill rank at least as wide: no larger prefill TP over replicated KV heads."""
    heads = kv_heads(model)
    if heads is not None and prefill.tensor > decode.tensor and prefill.tensor > heads:
        return f"TP {prefill.tensor} of prefill exceeds TP {decode.tensor} of decode and the model's {heads} KV heads"
    return None


def hybrid_degrees_agree(model: Transformer, prefill: Parallelism, decode: Parallelism) -> str | None:
    """Recurrent states are handed over rank by rank: both sides have the same tensor degree."""
    if is_hybrid(model) and prefill.tensor != decode.tensor:
        return f"TP {prefill.tensor} of prefill and TP {decode.tensor} of decode differ, and states cannot be re-split"
    return None


def decode_is_one_stage(model: Transformer, prefill: Parallelism, decode: Parallelism) -> str | None:  # noqa: ARG001
    """No connector receives into a pipeline."""
    if decode.pipeline > 1:
        return f"PP {decode.pipeline} of decode: no engine receives KV blocks into several pipeline stages"
    return None


def hybrid_prefill_is_one_stage(model: Transformer, prefill: Parallelism, decode: Parallelism) -> str | None:  # noqa: ARG001
    """A pipeline that sends keeps one kind of cache."""
    if is_hybrid(model) and prefill.pipeline > 1:
        return f"PP {prefill.pipeline} of prefill: states of hybrid models are not sent from several pipeline stages"
    return None


PAIR_RULES: Mapping[str, PairRule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            tensor_degrees_divide,
            decode_ranks_find_heads,
            hybrid_degrees_agree,
            decode_is_one_stage,
            hybrid_prefill_is_one_stage,
        )
    }
)
"""Every rule by name."""


def cannot_talk(model: Transformer, prefill: Parallelism, decode: Parallelism) -> str | None:
    """Why a prefill engine cannot hand over to a decode engine; None if it can.

    >>> from search_spaces.models import load_model
    >>> cannot_talk(load_model("Llama-3.1-70B"), Parallelism(tensor=2), Parallelism(tensor=4)) is None
    True
    """
    return next((reason for rule in PAIR_RULES.values() if (reason := rule(model, prefill, decode))), None)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a hand-over: all of an engine that the rules look at.

    attention: accelerator whose attention kernels it runs where no kernel serves all accelerators; else "".
    """

    kv_domain: str
    weight_dtype: str
    kv_dtype: str
    attention: str
    tensor: int
    pipeline: int
    speculative_tokens: int = 0

    @property
    def parallelism(self) -> Parallelism:
        """The degrees that matter."""
        return Parallelism(self.tensor, self.pipeline)


EndRule = Callable[[Problem, End, End], str | None]
"""A rule on a prefill and a decode end: None, or the reason why they cannot talk."""


def end_of(problem: Problem, shape: Shape) -> End:
    """The end that an engine shape is."""
    offer, split = problem.offers[shape.offer], shape.parallelism
    accelerator = offer.accelerator
    own_kernel = problem.model.is_latent and shape.kv_dtype != "bf16" and problem.engine in SIXTEEN_BIT_LATENTS
    return End(
        kv_domain=accelerator.kv_domain,
        weight_dtype=shape.weight_dtype,
        kv_dtype=shape.kv_dtype,
        attention=offer.accelerator.name if own_kernel else "",
        tensor=split.tensor,
        pipeline=split.pipeline,
        speculative_tokens=shape.speculative_tokens,
    )


def kv_domains_agree(problem: Problem, prefill: End, decode: End) -> str | None:  # noqa: ARG001
    """KV blocks have one layout within a family of accelerators."""
    if prefill.kv_domain != decode.kv_domain:
        return f"KV blocks of {prefill.kv_domain} and {decode.kv_domain} GPUs differ in layout"
    return None


def kv_dtypes_agree(problem: Problem, prefill: End, decode: End) -> str | None:  # noqa: ARG001
    """KV blocks are handed over as they are."""
    if prefill.kv_dtype != decode.kv_dtype:
        return f"KV dtype {prefill.kv_dtype} of prefill and {decode.kv_dtype} of decode differ"
    return None


def drafts_agree(problem: Problem, prefill: End, decode: End) -> str | None:  # noqa: ARG001
    """Both ends draft alike: the KV cache of a draft layer is handed over too."""
    if prefill.speculative_tokens != decode.speculative_tokens:
        pair = f"{prefill.speculative_tokens} of prefill and {decode.speculative_tokens} of decode"
        return f"speculative tokens {pair} differ, and with them the KV blocks"
    return None


def weights_agree(problem: Problem, prefill: End, decode: End) -> str | None:  # noqa: ARG001
    """Both ends serve one checkpoint."""
    if prefill.weight_dtype != decode.weight_dtype:
        return f"{prefill.weight_dtype} weights of prefill and {decode.weight_dtype} of decode are two checkpoints"
    return None


def attention_kernels_agree(problem: Problem, prefill: End, decode: End) -> str | None:
    """Both ends run one attention kernel, whose layout the blocks have."""
    if prefill.attention != decode.attention:
        pair = f"{prefill.attention or 'any GPU'} and {decode.attention or 'any GPU'}"
        return f"{problem.engine} has no one latent attention kernel for {pair} with KV in {decode.kv_dtype}"
    return None


def target_takes_stages(problem: Problem, prefill: End, decode: End) -> str | None:  # noqa: ARG001
    """The target has a connector that hands over from several pipeline stages."""
    if problem.target is None or prefill.pipeline == 1:
        return None
    target = target_of(problem.target)
    if problem.engine in target.stage_by_stage:
        return None
    return f"PP {prefill.pipeline} of prefill: {target.title} does not hand over from several pipeline stages"


def _by_degrees(rule: PairRule) -> EndRule:
    return lambda problem, prefill, decode: rule(problem.model, prefill.parallelism, decode.parallelism)


END_RULES: Mapping[str, EndRule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            kv_domains_agree,
            kv_dtypes_agree,
            weights_agree,
            drafts_agree,
            attention_kernels_agree,
            target_takes_stages,
        )
    }
    | {name: _by_degrees(rule) for name, rule in PAIR_RULES.items()}
)
"""Every rule by name."""


def pair_refusal(problem: Problem, prefill: Shape, decode: Shape) -> str | None:
    """Why a prefill engine cannot hand over to a decode engine; None if it can."""
    ruling = refused_pair(problem, end_of(problem, prefill), end_of(problem, decode))
    return None if ruling is None else ruling[1]


def refused_pair(problem: Problem, prefill: End, decode: End) -> tuple[str, str] | None:
    """First rule by which the two cannot talk, as (rule name, reason); None if they can."""
    rules = END_RULES.items()
    return next(((name, reason) for name, rule in rules if (reason := rule(problem, prefill, decode))), None)


def partners(problem: Problem, ends: Sequence[End]) -> dict[End, frozenset[End]]:
    """Of each end, those that it can hand over to."""
    return {end: frozenset(partner for partner in ends if refused_pair(problem, end, partner) is None) for end in ends}
