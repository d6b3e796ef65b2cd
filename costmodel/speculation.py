"""Speculative decoding: k tokens are drafted for each request, and one step of the model verifies them all.

A drafted token counts only if all before it were accepted. With acceptance a_1 ... a_k of each position, given the ones
before, a step makes

    E = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k       tokens, which is (1 - a^(k+1)) / (1 - a) where all are a

(Leviathan et al. 2023, Fast inference from transformers via speculative decoding, eq. 1). Verification makes the step
k + 1 tokens wide for each request, and reads the KV cache once. A draft layer, if there is one, runs over every prompt
and then k times over the batch, with an output head each time.

Everything above a step counts tokens, so it sees *token steps*: T / E of a decode step T, and M - T (1 - 1 / E) of a
step M that carries decodes which take T by themselves. The decodes are paid for E tokens in either, and what prompts
add stays M - T. A first token, which waits for whole steps, comes up to T (1 - 1 / E) a chunk later than that says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

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

    Where more are drafted than acceptances are known, the last one holds for the rest.
    """

    draft: Draft
    tokens: int
    acceptance: tuple[float, ...]

    @property
    def tokens_per_step(self) -> float:
        """E, tokens that a step makes of each request [1]."""
        return tokens_per_step(self.acceptance, self.tokens)


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
    last = replace(model.layers[-1], count=1, sets=0, joined=JOINED[draft])
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
