"""Which engine shapes can exist at all: every rule is a named predicate that says why it refuses.

A precision that is refused here, no engine of that name starts with.

Matrix units of the weights' own kind are always used (`costmodel.engine_arrays.compute_dtype`). Without them an engine
needs kernels that expand narrow weights to 16 bit on the way (W8A16, W4A16):

vLLM, SGLang   on NVIDIA from Ampere on Marlin's, for FP8, INT8, INT4 and FP4 (vLLM pull requests 5975 and 17687); on
               AMD for INT4 and FP4 only, as Marlin is CUDA (vLLM, Supported hardware, 0.14)
TensorRT-LLM   for INT4 (AWQ, GPTQ) and for the experts of MXFP4 checkpoints; FP8 starts with Ada, FP4 with Blackwell
               (Model Optimizer, Support matrix); there is no build but NVIDIA's

A KV cache in FP8 is expanded while attention reads it, so ordinary attention needs no FP8 units for it (vLLM issues
3965 and 24577). Without them vLLM has a single kernel for latents, Triton's, which reads 16 bit (vLLM, Attention
backends).

Which prefill and decode engines can hand KV blocks to each other is said by rules too. Those on degrees are NIXL's as
engines apply them; source: the guards in vLLM's distributed/kv_transfer/kv_connector (utils.py and v1/nixl), the same
from 0.20.1 to 0.33.0. A fleet whose pools break one of them starts, and fails with the first request. Besides the KV
dtype, the handshake compares the names of the two models (another precision of the weights is another checkpoint) and
their attention kernels. Block sizes need no rule: an engine has one for a model on every accelerator, and a fleet has
one engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Final

from costmodel.engine import EngineConfig, Parallelism, Role
from costmodel.engine_arrays import ACTIVATION_DTYPE, compute_dtype
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from costmodel.speculation import Speculation
from costmodel.transformer import LinearAttention, SoftmaxAttention, Transformer

from .engines import load_engine_memory
from .hf_quantization import split_refused
from .problem import Problem, target_of

NVIDIA = "nvidia"
AMD = "amd"

WEIGHT_ONLY: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "vllm": {NVIDIA: frozenset({"fp8", "int8", "int4", "fp4", "mxfp4"}), AMD: frozenset({"int4", "fp4", "mxfp4"})},
        "sglang": {
            NVIDIA: frozenset({"fp8", "int8", "int4", "fp4", "mxfp4"}),
            AMD: frozenset({"int4", "fp4", "mxfp4"}),
        },
        "trtllm": {NVIDIA: frozenset({"int4", "mxfp4"})},
    }
)
"""Formats that an engine runs on a vendor's GPUs without units of their kind; a vendor not named is not judged."""

ONE_VENDOR: Mapping[str, str] = MappingProxyType({"trtllm": NVIDIA})
"""Engines that run on the GPUs of one vendor alone."""

SIXTEEN_BIT_LATENTS = frozenset({"vllm"})
"""Engines whose only kernel for latent attention on every GPU reads a 16-bit cache."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An offer, a split of the model over its GPUs and the precision; batch and chunk are chosen later.

    offer: index into `Problem.offers`; speculative_tokens: drafted for each request and step [1].
    """

    offer: int
    parallelism: Parallelism
    weight_dtype: str
    kv_dtype: str
    speculative_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Feasible shapes, and how many were dropped for which reason."""

    shapes: tuple[Shape, ...]
    considered: int
    dropped: Mapping[str, int]


Rule = Callable[[Problem, Shape], str | None]
"""A feasibility rule: None, or the reason why the shape cannot be."""


def engine_runs_there(problem: Problem, shape: Shape) -> str | None:
    """The serving engine runs on GPUs of this vendor."""
    vendor = problem.offers[shape.offer].accelerator.vendor
    only = ONE_VENDOR.get(problem.engine, vendor)
    return None if only == vendor else f"{problem.engine} runs on {only} GPUs only"


def target_schedules_there(problem: Problem, shape: Shape) -> str | None:
    """The files of a target ask for devices of some vendors, and not all start engines of several nodes."""
    accelerator = problem.offers[shape.offer].accelerator
    if problem.target is None:
        return None
    target = target_of(problem.target)
    if accelerator.vendor not in target.vendors:
        vendors = " and ".join(sorted(target.vendors))
        return f"the files of {problem.target} ask for devices of {vendors}, not of {accelerator.vendor}"
    if shape.parallelism.gpus > accelerator.node_size and not target.spans:
        return f"the files of {problem.target} start no engine of {shape.parallelism.gpus} GPUs on several nodes"
    return None


def weights_have_kernels(problem: Problem, shape: Shape) -> str | None:
    """Weights of this precision have units, or the engine has kernels that expand them."""
    accelerator, dtype, engine = problem.offers[shape.offer].accelerator, shape.weight_dtype, problem.engine
    formats = WEIGHT_ONLY[engine].get(accelerator.vendor)
    if dtype == ACTIVATION_DTYPE or compute_dtype(dtype, accelerator) != ACTIVATION_DTYPE or formats is None:
        return None
    stored_dtype = "mxfp4" if problem.model.is_mxfp4(dtype) else dtype
    if stored_dtype in formats:
        return None
    return f"{accelerator.name} has no {dtype} units, and {engine} no kernels that expand {stored_dtype} weights there"


def kv_cache_has_kernels(problem: Problem, shape: Shape) -> str | None:
    """Attention of the engine reads a KV cache of this precision."""
    accelerator, dtype, engine = problem.offers[shape.offer].accelerator, shape.kv_dtype, problem.engine
    if dtype == ACTIVATION_DTYPE or dtype in accelerator.peak_flops:
        return None
    if problem.model.is_latent and engine in SIXTEEN_BIT_LATENTS:
        return f"{accelerator.name} has no {dtype} units, and {engine} reads latents there in 16 bit only"
    return None


def tensor_divides_heads(problem: Problem, shape: Shape) -> str | None:
    """Query heads (and value heads of linear attention) are shared out evenly over tensor ranks."""
    split = shape.parallelism
    heads = attention_heads(problem.model)
    if any(count % split.tensor for count in heads):
        return f"TP {split.tensor} does not divide {max(heads)} attention heads"
    return None


def tensor_matches_kv_heads(problem: Problem, shape: Shape) -> str | None:
    """KV heads are split evenly, or replicated evenly where there are fewer of them than ranks."""
    split = shape.parallelism
    for group in problem.model.layers:
        if isinstance(group.attention, SoftmaxAttention):
            kv_heads = group.attention.kv_heads
            if kv_heads % split.tensor and split.tensor % kv_heads:
                return f"TP {split.tensor} and {kv_heads} KV heads do not divide each other"
    return None


def tensor_divides_widths(problem: Problem, shape: Shape) -> str | None:
    """Feed-forward widths are shared out evenly; experts are split by tensor when not spread."""
    split = shape.parallelism
    for group in problem.model.layers:
        block = group.feed_forward
        if block.intermediate % split.tensor:
            return f"TP {split.tensor} does not divide the feed-forward width {block.intermediate:,}"
        if block.experts and block.expert_intermediate % split.expert_ranks:
            return f"TP {split.expert_ranks} within an expert does not divide its width {block.expert_intermediate}"
    return None


def tensor_keeps_weight_blocks(problem: Problem, shape: Shape) -> str | None:
    """No block of quantised weights that shares a scale lies on two ranks."""
    return split_refused(problem.model, shape.parallelism, shape.weight_dtype)


def tensor_fits_scale_up(problem: Problem, shape: Shape) -> str | None:
    """All-reduce runs twice a layer: a tensor-parallel group never leaves the GPUs that fast links join."""
    split, reach = shape.parallelism, problem.offers[shape.offer].accelerator.scale_up_size
    if split.tensor > reach:
        return f"TP {split.tensor} does not fit in one scale-up domain of {reach} GPUs"
    return None


def pipeline_has_layers(problem: Problem, shape: Shape) -> str | None:
    """Every pipeline stage has a layer at least."""
    split = shape.parallelism
    if split.pipeline > problem.model.num_layers:
        return f"PP {split.pipeline} exceeds {problem.model.num_layers} layers"
    return None


def experts_spread_evenly(problem: Problem, shape: Shape) -> str | None:
    """Expert parallelism needs experts, and spans all tensor x data ranks, as engines run it.

    Where it does not divide the experts, engines hold second copies of some, which not all files can ask for.
    """
    split = shape.parallelism
    if split.expert == 1:
        return None
    if not problem.model.is_moe:
        return "EP needs a mixture of experts"
    if split.expert != split.tensor * split.data:
        return f"EP {split.expert} does not span all TP x DP = {split.tensor * split.data} ranks"
    copies = problem.model.redundant_experts(split.expert)
    if copies and problem.target is not None and problem.engine == "trtllm":
        return f"EP {split.expert} needs redundant experts ({copies}), which the files for TensorRT-LLM cannot ask for"
    return None


def data_parallel_shares_experts(problem: Problem, shape: Shape) -> str | None:
    """Attention data-parallelism pays only where ranks share experts; elsewhere it is just more replicas."""
    split = shape.parallelism
    if split.data > 1 and not problem.model.is_moe:
        return "DP inside an engine needs a mixture of experts"
    if split.data > 1 and split.expert == 1:
        return f"DP {split.data} needs EP over all {split.tensor * split.data} ranks"
    return None


def data_parallel_is_the_engines(problem: Problem, shape: Shape) -> str | None:
    """TensorRT-LLM runs attention data-parallel over all ranks or none (`enable_attention_dp`)."""
    split = shape.parallelism
    if problem.engine == "trtllm" and split.tensor > 1 and split.data > 1:
        return f"TP {split.tensor} x DP {split.data}: TensorRT-LLM runs attention data-parallel over all ranks or none"
    return None


def gpus_make_an_engine(problem: Problem, shape: Shape) -> str | None:
    """An engine is no larger than the space allows and whole nodes can give."""
    split = shape.parallelism
    if split.gpus > problem.space.max_gpus_per_engine:
        return f"{split.gpus} GPUs exceed max_gpus_per_engine {problem.space.max_gpus_per_engine}"
    size = problem.offers[shape.offer].accelerator.node_size
    if split.gpus > size and split.gpus % size:
        return f"{split.gpus} GPUs do not fill whole nodes of {size}"
    return None


def limits_allow_an_engine(problem: Problem, shape: Shape) -> str | None:
    """One engine at least fits into the inventory and into the limit on all GPUs."""
    offer, split = problem.offers[shape.offer], shape.parallelism
    if split.gpus > offer.stock:
        return f"{split.gpus} GPUs exceed the inventory of {offer.stock:g} {offer.accelerator.name}"
    limit = problem.constraints.max_gpus
    if limit is not None and split.gpus > limit:
        return f"{split.gpus} GPUs exceed max_gpus {limit}"
    return None


def model_and_one_request_fit(problem: Problem, shape: Shape) -> str | None:
    """Weights, activations and the KV cache of the longest request fit in the memory that the engine may use."""
    return memory_refused(problem.model, engine_config(problem, shape, Role.COLOCATED, 1, min_chunk(problem)))


def memory_refused(model: Transformer, config: EngineConfig) -> str | None:
    """Why weights, activations and the KV cache of the longest request do not fit in an engine; None if they do."""
    capacity = kv_capacity_bytes(model, config)
    if capacity <= 0:
        return "weights do not fit in memory"
    if capacity < kv_bytes_peak_per_gpu(model, config, float(config.max_model_len)):
        return f"KV cache of one request of {config.max_model_len} tokens does not fit in memory"
    return None


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            engine_runs_there,
            target_schedules_there,
            weights_have_kernels,
            kv_cache_has_kernels,
            tensor_divides_heads,
            tensor_matches_kv_heads,
            experts_spread_evenly,
            data_parallel_shares_experts,
            data_parallel_is_the_engines,
            tensor_divides_widths,
            tensor_keeps_weight_blocks,
            tensor_fits_scale_up,
            pipeline_has_layers,
            gpus_make_an_engine,
            model_and_one_request_fit,
            limits_allow_an_engine,
        )
    }
)
"""Every feasibility rule by name, cheap ones first, and last the one that is no matter of physics but of supply."""


def attention_heads(model: Transformer) -> tuple[int, ...]:
    """Head counts that tensor parallelism must divide, one per layer group."""
    return tuple(
        group.attention.value_heads if isinstance(group.attention, LinearAttention) else group.attention.heads
        for group in model.layers
    )


def min_chunk(problem: Problem) -> int:
    """Smallest token budget of the space [token]: the one with the least activation memory."""
    return min(problem.space.max_num_batched_tokens)


def speculation_of(problem: Problem, tokens: int) -> Speculation | None:
    """How an engine drafts so many tokens; None where it drafts none."""
    return replace(problem.speculation, tokens=tokens) if problem.speculation and tokens else None


def engine_config(problem: Problem, shape: Shape, role: Role, seqs: int, chunk: int) -> EngineConfig:
    """The engine config of a shape with its scheduler limits filled in."""
    return EngineConfig(
        accelerator=problem.offers[shape.offer].accelerator,
        role=role,
        parallelism=shape.parallelism,
        weight_dtype=shape.weight_dtype,
        kv_dtype=shape.kv_dtype,
        max_num_seqs=seqs,
        max_num_batched_tokens=chunk,
        max_model_len=problem.workload.max_tokens,
        memory=load_engine_memory(problem.engine),
        memory_fraction=problem.memory_fraction,
        speculation=speculation_of(problem, shape.speculative_tokens),
    )


def refusal(problem: Problem, shape: Shape) -> tuple[str, str] | None:
    """First rule that refuses the shape, as (rule name, reason), or None if it can be."""
    for name, rule in RULES.items():
        reason = rule(problem, shape)
        if reason is not None:
            return name, reason
    return None


def splits(problem: Problem) -> Iterator[Parallelism]:
    """Every combination of parallel degrees in the space."""
    space = problem.space
    for tensor, pipeline, expert, data in product(
        space.tensor_parallel, space.pipeline_parallel, space.expert_parallel, space.data_parallel
    ):
        yield Parallelism(tensor, pipeline, expert, data)


def candidates(problem: Problem, offer: int) -> Iterator[Shape]:
    """Every shape of one offer, whether or not it can be: precisions in the order of their lists, then degrees."""
    space = problem.full_space
    choices = product(space.weight_dtype, space.kv_dtype, space.speculative_tokens, tuple(splits(problem)))
    for weight_dtype, kv_dtype, drafted, split in choices:
        yield Shape(offer, split, weight_dtype, kv_dtype, drafted)


def enumerate_shapes(problem: Problem) -> Enumeration:
    """All feasible shapes in the order of offers and degrees, with a count of refusals by reason.

    Where nothing but the supply of GPUs forbids every shape, the question is sound and its answer is that no fleet
    exists: the shapes are kept, for the search to find which limit stands in the way.
    """
    shapes: list[Shape] = []
    supply_refusals: list[Shape] = []
    reasons: Counter[str] = Counter()
    count = 0
    for index, offer in enumerate(problem.offers):
        for shape in candidates(problem, index):
            count += 1
            ruling = refusal(problem, shape)
            if ruling is None:
                shapes.append(shape)
            else:
                reasons[f"{offer.accelerator.name}: {ruling[1]}"] += 1
                if ruling[0] == limits_allow_an_engine.__name__:
                    supply_refusals.append(shape)
    return Enumeration(tuple(shapes or supply_refusals), count, dict(sorted(reasons.items())))


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
