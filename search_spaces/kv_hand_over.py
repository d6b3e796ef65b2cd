"""Which prefill and decode engines can hand KV blocks to each other, by the rules of NIXL as engines apply them.

Source: the guards in vLLM's distributed/kv_transfer/kv_connector (utils.py and v1/nixl), the same from 0.20.1 to
0.33.0. A fleet whose pools break one of them starts, and fails with the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from costmodel.engine import Parallelism
from costmodel.transformer import LinearAttention, SoftmaxAttention, Transformer

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
