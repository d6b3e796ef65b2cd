"""Which prefill engines can hand KV blocks over to which decode engines: named predicates with a reason each.

Block sizes need no predicate: an engine has one for a model on every accelerator (`reports.deploy` writes it), and a
fleet has one engine. Source: as in `kv_hand_over`; besides the KV dtype, the handshake compares the names of the two
models (another precision of the weights is another checkpoint) and their attention kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from costmodel.engine import Parallelism

from .dtype_support import SIXTEEN_BIT_LATENTS
from .enumeration import Shape
from .kv_hand_over import PAIR_RULES, PairRule
from .problem import Problem
from .targets import target_of


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
        attention=offer.gpu if own_kernel else "",
        tensor=split.tensor,
        pipeline=split.pipeline,
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
        for rule in (kv_domains_agree, kv_dtypes_agree, weights_agree, attention_kernels_agree, target_takes_stages)
    }
    | {name: _by_degrees(rule) for name, rule in PAIR_RULES.items()}
)
"""Every rule by name."""


def pair_refusal(problem: Problem, prefill: Shape, decode: Shape) -> str | None:
    """Why a prefill engine cannot hand over to a decode engine; None if it can."""
    refused = refused_pair(problem, end_of(problem, prefill), end_of(problem, decode))
    return None if refused is None else refused[1]


def refused_pair(problem: Problem, prefill: End, decode: End) -> tuple[str, str] | None:
    """First rule by which the two cannot talk, as (rule name, reason); None if they can."""
    rules = END_RULES.items()
    return next(((name, reason) for name, rule in rules if (reason := rule(problem, prefill, decode))), None)


def partners(problem: Problem, ends: Sequence[End]) -> dict[End, frozenset[End]]:
    """Of each end, those that it can hand over to."""
    return {end: frozenset(other for other in ends if refused_pair(problem, end, other) is None) for end in ends}
