"""Enumeration of engine shapes, and feasibility rules: every rule has a name and gives its reason.

No serving engine starts with a precision that is refused here. At the end is what is wrong with a search space as a
whole: it makes too many candidates, or no engine at all.

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

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from costmodel.attention import LinearAttention, Part, Sharding, SoftmaxAttention
from costmodel.engine import Draft, EngineConfig, Parallelism, Role, Speculation
from costmodel.engine_arrays import ACTIVATION_DTYPE, compute_dtype
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from costmodel.transformer import LayerGroup, Transformer, WeightScale
from costmodel.units import GIB

from .bounds import MAX_CELLS, MAX_SETTINGS, MAX_SPLITS
from .engines import SUPPORT, EngineSupport, load_engine_memory
from .files import Fault, shipped_table
from .problem import Problem, target_of


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
    """Feasible shapes, and how many were dropped by accelerator and reason."""

    shapes: tuple[Shape, ...]
    considered: int
    dropped: Mapping[tuple[str, str], int]


_TABLE = shipped_table("search_spaces", "rules.yaml")
MENDS: Mapping[str, str | None] = _TABLE["engines"]
"""What to change where a rule refuses all that is left."""
RULES = tuple(MENDS)
"""Every feasibility rule, cheap ones first; the last one is about supply, not physics."""
HAND_OVER_RULES: Sequence[str] = _TABLE["hand_overs"]


def refusals(problem: Problem, shape: Shape) -> Iterator[tuple[str, str]]:
    """The rules that refuse a shape, in the order of `RULES`, with their reasons."""
    yield from _platform_refusals(problem, shape)
    yield from _split_refusals(problem, shape)
    split, accelerator = shape.parallelism, problem.offers[shape.offer].accelerator
    space, size = problem.space, accelerator.node_size
    if split.gpus > space.max_gpus_per_engine:
        yield "gpus_make_an_engine", f"{split.gpus} GPUs exceed max_gpus_per_engine {space.max_gpus_per_engine}"
    elif split.gpus > size and split.gpus % size:
        yield "gpus_make_an_engine", f"{split.gpus} GPUs do not fill whole nodes of {size}"
    smallest = min(space.max_num_batched_tokens)  # the token budget with the least activation memory
    reason = memory_refused(problem.model, engine_config(problem, shape, Role.COLOCATED, 1, smallest))
    if reason is not None:
        yield "model_and_one_request_fit", reason
    stock, limit = problem.offers[shape.offer].stock, problem.constraints.max_gpus
    if split.gpus > stock:
        reason = f"{split.gpus} GPUs exceed the inventory of {stock:g} {accelerator.name}"
        yield "limits_allow_an_engine", reason
    elif limit is not None and split.gpus > limit:
        yield "limits_allow_an_engine", f"{split.gpus} GPUs exceed max_gpus {limit}"


def _platform_refusals(problem: Problem, shape: Shape) -> Iterator[tuple[str, str]]:
    """The engine runs on GPUs of this vendor, the target's files can start it, and kernels read the precisions."""
    accelerator, engine, model = problem.offers[shape.offer].accelerator, problem.engine, problem.model
    vendor, gpus = accelerator.vendor, shape.parallelism.gpus
    support, title = SUPPORT[engine], target_of(engine).title
    if support.only_vendor not in {"", vendor}:
        yield "engine_runs_there", f"{title} runs on {support.only_vendor.upper()} GPUs only"
    target = None if problem.target is None else target_of(problem.target)
    if target is not None and vendor not in target.vendors:
        vendors = " and ".join(sorted(target.vendors))
        yield "target_schedules_there", f"the files of {target.name} ask for devices of {vendors}, not of {vendor}"
    elif target is not None and gpus > accelerator.node_size and not target.spans:
        reason = f"the files of {target.name} cannot start an engine of {gpus} GPUs on several nodes"
        yield "target_schedules_there", reason
    dtype, formats = shape.weight_dtype, support.weight_only.get(vendor)
    has_units = dtype == ACTIVATION_DTYPE or compute_dtype(dtype, accelerator) != ACTIVATION_DTYPE
    stored_dtype = "mxfp4" if model.is_mxfp4(dtype) else dtype
    if not has_units and formats is not None and stored_dtype not in formats:
        kernels = f"{title} no kernels that expand {stored_dtype} weights there"
        yield "weights_have_kernels", f"{accelerator.name} has no {dtype} units, and {kernels}"
    cache_dtype = shape.kv_dtype
    has_units = cache_dtype == ACTIVATION_DTYPE or cache_dtype in accelerator.peak_flops
    if not has_units and model.is_latent and support.sixteen_bit_latents:
        kernels = f"{title} reads latents there in 16 bit only"
        yield "kv_cache_has_kernels", f"{accelerator.name} has no {cache_dtype} units, and {kernels}"
    narrow = " of compressed attention in fp8 only" if model.is_compressed and support.eight_bit_compressed else ""
    if support.no_wider_cache and _heeds_checkpoint(support, model, dtype):
        narrow = " in fp8 only, as the checkpoint states"
    if cache_dtype != "fp8" and narrow:
        yield "kv_cache_has_kernels", f"{title} keeps KV{narrow}"


def usual_kv_dtype(engine: str, model: Transformer, weight_dtype: str) -> str:
    """Default precision of the KV cache: that of the published checkpoint, if the engine follows it.

    Otherwise, or if another checkpoint is served, 16 bit, unless the engine has no such kernel for the model.
    """
    support = SUPPORT[engine]
    is_narrow = model.is_compressed and support.eight_bit_compressed
    return "fp8" if is_narrow or _heeds_checkpoint(support, model, weight_dtype) else "bf16"


def _heeds_checkpoint(support: EngineSupport, model: Transformer, weight_dtype: str) -> bool:
    """Whether the published checkpoint is served, states an FP8 KV cache, and gets one from the engine."""
    return weight_dtype == model.native_weight_dtype and model.cache_quantizer in support.cache_quantizers


def _split_refusals(problem: Problem, shape: Shape) -> Iterator[tuple[str, str]]:
    """The model can be split evenly, over links that are fast enough.

    Heads and feed-forward widths are shared out evenly over tensor ranks; no block of quantised weights that shares a
    scale lies on two ranks. All-reduce runs twice a layer, so that a tensor-parallel group never leaves the GPUs that
    fast links join.
    """
    model, split = problem.model, shape.parallelism
    tensor = split.tensor
    yield from head_refusals(model, tensor)
    yield from _expert_refusals(problem, split)
    for block in (group.feed_forward for group in model.layers):
        if block.intermediate % tensor:
            reason = f"TP {tensor} does not divide the feed-forward width {block.intermediate:,}"
        elif block.experts and block.expert_intermediate % split.expert_ranks:
            width = block.expert_intermediate
            reason = f"TP {split.expert_ranks} within an expert does not divide its width {width}"
        else:
            continue
        yield "tensor_divides_widths", reason
        break
    cut = split_refused(model, split, shape.weight_dtype)
    if cut is not None:
        yield "tensor_keeps_weight_blocks", cut
    reach = problem.offers[shape.offer].accelerator.scale_up_size
    if tensor > reach:
        yield "tensor_fits_scale_up", f"TP {tensor} does not fit in one scale-up domain of {reach} GPUs"
    if split.pipeline > model.num_layers:
        yield "pipeline_has_layers", f"PP {split.pipeline} exceeds {model.num_layers} layers"
    speculation = speculation_of(problem, shape.speculative_tokens)
    undrafted = draft_refused(problem.engine, speculation.draft, split) if speculation else None
    if undrafted is not None:
        yield "drafts_run_there", undrafted


_WIDTHS = {Part.ATTENTION: "attention width", Part.FEED_FORWARD: "feed-forward width", Part.EXPERTS: "expert width"}


def split_refused(model: Transformer, split: Parallelism, weight_dtype: str) -> str | None:
    """Why tensor ranks cannot share the checkpoint's blocks; None if they can, or if weights are in another dtype."""
    scale = model.weight_scale
    if scale is None or weight_dtype != model.native_weight_dtype:
        return None
    for group in model.layers:
        for piece, width, ranks, block in _split_dimensions(group, split, scale):
            if ranks > 1 and model.part_dtype(piece, weight_dtype) == weight_dtype and width % (ranks * block):
                return (
                    f"TP {ranks} cuts the {_WIDTHS[piece]} {width:,} into {width // ranks:,}, no multiple of the "
                    f"{block} weights that share a scale"
                )
    return None


def _split_dimensions(
    group: LayerGroup, split: Parallelism, scale: WeightScale
) -> Iterator[tuple[Part, int, int, int]]:
    """For every matrix that is split: its part, the width that is split, the ranks, and the block along it."""
    for matrix in group.matrices:
        if matrix.sharding is Sharding.ROW:
            yield matrix.part, matrix.k, split.tensor, scale.inputs
        elif matrix.sharding is Sharding.COLUMN and not matrix.merged:
            yield matrix.part, matrix.n, split.tensor, scale.outputs
    block = group.feed_forward
    if block.experts and scale.outputs > 1:
        yield Part.EXPERTS, block.expert_intermediate, split.expert_ranks, scale.outputs
        yield Part.EXPERTS, block.expert_intermediate, split.expert_ranks, scale.inputs


def head_refusals(model: Transformer, tensor: int) -> Iterator[tuple[str, str]]:
    """Why tensor parallelism does not split the heads evenly; KV heads are replicated where they are fewer."""
    mixers = [group.attention for group in model.layers]
    heads = [mixer.value_heads if isinstance(mixer, LinearAttention) else mixer.heads for mixer in mixers]
    if any(count % tensor for count in heads):
        yield "tensor_divides_heads", f"TP {tensor} does not divide {max(heads)} attention heads"
    kv_heads = (mixer.kv_heads for mixer in mixers if isinstance(mixer, SoftmaxAttention))
    odd = next((count for count in kv_heads if count % tensor and tensor % count), None)
    if odd is not None:
        yield "tensor_matches_kv_heads", f"TP {tensor} and {odd} KV heads do not divide each other"


def draft_refused(engine: str, draft: Draft, split: Parallelism) -> str | None:
    """Why no version of an engine drafts tokens by a method with a split; None if one does (`staged_drafts_since`).

    >>> draft_refused("trtllm", Draft.MTP, Parallelism(pipeline=2))
    'TensorRT-LLM does not draft tokens with PP 2'
    """
    support = SUPPORT[engine]
    if split.pipeline > 1 and not support.staged_drafts_since:
        return f"{target_of(engine).title} does not draft tokens with PP {split.pipeline}"
    if split.data > 1 and draft in support.unshared_drafts:
        return f"{target_of(engine).title} does not draft tokens by {draft} with DP {split.data}"
    return None


def _expert_refusals(problem: Problem, split: Parallelism) -> Iterator[tuple[str, str]]:
    """Expert parallelism spans all tensor x data ranks, as engines run it, and data parallelism needs it.

    Where it does not divide the experts, engines hold second copies of some, which not all files can ask for. Attention
    data-parallelism pays only where ranks share experts; elsewhere it is just more replicas. Some engines have it over
    all ranks or none.
    """
    model, ranks, support = problem.model, split.tensor * split.data, SUPPORT[problem.engine]
    title = target_of(problem.engine).title
    copies = model.redundant_experts(split.expert) if model.is_moe else 0
    if split.expert > 1 and not model.is_moe:
        yield "experts_spread_evenly", "EP needs a mixture of experts"
    elif split.expert not in {1, ranks}:
        yield "experts_spread_evenly", f"EP {split.expert} does not span all TP x DP = {ranks} ranks"
    elif copies and problem.target is not None and not support.expert_copies:
        needs = f"needs redundant experts ({copies}), which the files for {title} cannot ask for"
        yield "experts_spread_evenly", f"EP {split.expert} {needs}"
    if split.data > 1 and not model.is_moe:
        yield "data_parallel_shares_experts", "DP inside an engine needs a mixture of experts"
    elif split.data > 1 and split.expert == 1:
        yield "data_parallel_shares_experts", f"DP {split.data} needs EP over all {ranks} ranks"
    if not support.data_parallel_parts and split.tensor > 1 and split.data > 1:
        ranks_alike = f"{title} runs attention data-parallel over all ranks or none"
        yield "data_parallel_is_the_engines", f"TP {split.tensor} x DP {split.data}: {ranks_alike}"


def memory_refused(model: Transformer, config: EngineConfig) -> str | None:
    """Why weights, activations and the KV cache of the longest request do not fit in an engine; None if they do."""
    capacity = kv_capacity_bytes(model, config)
    if capacity <= 0:
        return "weights do not fit in memory"
    if capacity < kv_bytes_peak_per_gpu(model, config, float(config.max_model_len)):
        return f"KV cache of one request of {config.max_model_len} tokens does not fit in memory"
    return None


def speculation_of(problem: Problem, tokens: int) -> Speculation | None:
    """How an engine drafts this many tokens; None if it drafts none."""
    return replace(problem.speculation, tokens=tokens) if problem.speculation and tokens else None


def engine_config(problem: Problem, shape: Shape, role: Role, seqs: int, chunk: int) -> EngineConfig:
    """The engine config of a shape with its scheduler limits filled in."""
    support = SUPPORT[problem.engine]
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
        whole_prompts=not (support.shared_tails if shape.parallelism.data > 1 else support.tails),
    )


def refusal(problem: Problem, shape: Shape) -> tuple[str, str] | None:
    """The first rule that refuses the shape, as (rule name, reason); None if it is feasible."""
    return next(refusals(problem, shape), None)


def candidates(problem: Problem, offer: int) -> Iterator[Shape]:
    """Every shape of one offer, feasible or not: precisions in the order of their lists, then degrees."""
    space = problem.full_space
    splits = [Parallelism(*split) for split in product(*space.degrees)]
    for weight_dtype, kv_dtype, drafted, split in product(*space.precisions, splits):
        yield Shape(offer, split, weight_dtype, kv_dtype, drafted)


def enumerate_shapes(problem: Problem) -> Enumeration:
    """All feasible shapes in the order of offers and degrees, with a count of refusals by reason.

    If only the supply of GPUs forbids every shape, the input is valid and the answer is that no fleet exists. Then the
    shapes are kept, so that the search finds which limit is the reason.
    """
    shapes: list[Shape] = []
    supply_refusals: list[Shape] = []
    reasons: Counter[tuple[str, str]] = Counter()
    count = 0
    for index, offer in enumerate(problem.offers):
        for shape in candidates(problem, index):
            count += 1
            ruling = refusal(problem, shape)
            if ruling is None:
                shapes.append(shape)
            else:
                reasons[offer.accelerator.name, ruling[1]] += 1
                if ruling[0] == RULES[-1]:
                    supply_refusals.append(shape)
    return Enumeration(tuple(shapes or supply_refusals), count, dict(sorted(reasons.items())))


def block_tokens(engine: str, model: Transformer) -> int:
    """Tokens of a KV block of an engine that serves a model [token]."""
    support = SUPPORT[engine]
    own = support.compressed_block if model.is_compressed else support.latent_block if model.is_latent else 0
    return own or support.block_tokens


def degree_refusals(
    model: Transformer, prefill: Parallelism | End, decode: Parallelism | End
) -> Iterator[tuple[str, str]]:
    """NIXL's rules on the degrees of a prefill and a decode engine that refuse the pair, with their reasons.

    Ranks map onto each other, the larger tensor degree a multiple of the smaller. A decode rank reads from one prefill
    rank at least as wide: no larger prefill TP over replicated KV heads. Recurrent states are handed over rank by rank.
    No connector receives into a pipeline, and one that sends keeps one kind of cache.
    """
    low, high = sorted((prefill.tensor, decode.tensor))
    tensors = f"TP {prefill.tensor} of prefill and TP {decode.tensor} of decode"
    if high % low:
        yield "tensor_degrees_divide", f"{tensors} do not divide each other"
    mixers = [group.attention for group in model.layers]
    has_states = any(isinstance(mixer, LinearAttention) for mixer in mixers)
    heads = min((mixer.kv_heads for mixer in mixers if isinstance(mixer, SoftmaxAttention)), default=prefill.tensor)
    if prefill.tensor > max(decode.tensor, heads):
        beyond = f"exceeds TP {decode.tensor} of decode and the model's {heads} KV heads"
        yield "decode_ranks_find_heads", f"TP {prefill.tensor} of prefill {beyond}"
    if has_states and high > low:
        yield "hybrid_degrees_agree", f"{tensors} differ, and states cannot be re-split"
    if decode.pipeline > 1:
        sentence = f"PP {decode.pipeline} of decode: no engine receives KV blocks into several pipeline stages"
        yield "decode_is_one_stage", sentence
    if has_states and prefill.pipeline > 1:
        sentence = "states of hybrid models are not sent from several pipeline stages"
        yield "hybrid_prefill_is_one_stage", f"PP {prefill.pipeline} of prefill: {sentence}"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a hand-over: the properties of an engine that the rules depend on.

    attention: accelerator whose attention kernels it runs where no kernel serves all accelerators; else "".
    """

    kv_domain: str
    weight_dtype: str
    kv_dtype: str
    attention: str
    tensor: int
    pipeline: int
    speculative_tokens: int = 0


def end_of(problem: Problem, shape: Shape) -> End:
    """The end that an engine shape is."""
    offer, split = problem.offers[shape.offer], shape.parallelism
    accelerator = offer.accelerator
    has_own_kernel = SUPPORT[problem.engine].sixteen_bit_latents and shape.kv_dtype != "bf16"
    return End(
        kv_domain=accelerator.kv_domain,
        weight_dtype=shape.weight_dtype,
        kv_dtype=shape.kv_dtype,
        attention=accelerator.name if has_own_kernel and problem.model.is_latent else "",
        tensor=split.tensor,
        pipeline=split.pipeline,
        speculative_tokens=shape.speculative_tokens,
    )


def hand_over_refusals(problem: Problem, prefill: End, decode: End) -> Iterator[tuple[str, str]]:
    """Rules on hand-overs that refuse a prefill and a decode engine, with their reasons.

    KV blocks are handed over unchanged: both ends have one KV dtype, one family of accelerators, one attention kernel
    and one checkpoint, and the target has a connector for several pipeline stages.
    """
    if prefill.kv_domain != decode.kv_domain:
        yield "kv_domains_agree", f"KV blocks of {prefill.kv_domain} and {decode.kv_domain} GPUs differ in layout"
    if prefill.kv_dtype != decode.kv_dtype:
        yield "kv_dtypes_agree", f"KV dtype {prefill.kv_dtype} of prefill and {decode.kv_dtype} of decode differ"
    if prefill.speculative_tokens != decode.speculative_tokens:
        tokens = f"{prefill.speculative_tokens} of prefill and {decode.speculative_tokens} of decode"
        yield "drafts_agree", f"speculative tokens {tokens} differ, and with them the KV blocks"
    if prefill.weight_dtype != decode.weight_dtype:
        sentence = f"{prefill.weight_dtype} weights of prefill and {decode.weight_dtype} of decode are two checkpoints"
        yield "weights_agree", sentence
    if prefill.attention != decode.attention:
        pair = f"{prefill.attention or 'any GPU'} and {decode.attention or 'any GPU'}"
        sentence = f"has no latent attention kernel for both {pair} with {decode.kv_dtype} KV"
        yield "attention_kernels_agree", f"{target_of(problem.engine).title} {sentence}"
    if problem.target is not None and prefill.pipeline > 1:
        target = target_of(problem.target)
        if problem.engine not in target.stage_by_stage:
            sentence = f"{target.title} does not hand over from several pipeline stages"
            yield "target_takes_stages", f"PP {prefill.pipeline} of prefill: {sentence}"
    yield from degree_refusals(problem.model, prefill, decode)


def pair_refusal(problem: Problem, prefill: Shape, decode: Shape) -> str | None:
    """Why a prefill engine cannot hand over to a decode engine; None if it can."""
    ruling = refused_pair(problem, end_of(problem, prefill), end_of(problem, decode))
    return None if ruling is None else ruling[1]


def refused_pair(problem: Problem, prefill: End, decode: End) -> tuple[str, str] | None:
    """The first rule that forbids a hand-over between the two, as (rule name, reason); None if it is possible."""
    return next(hand_over_refusals(problem, prefill, decode), None)


def feasibility_faults(problem: Problem) -> list[Fault]:
    """What is wrong with the search space as a whole: it is too large, or no engine of it can exist.

    Time and memory of the search grow with the engine settings, and with these x buckets x classes.
    """
    space = problem.full_space
    ways = len(problem.offers) * math.prod(map(len, (*space.degrees, *space.precisions)))
    if ways > MAX_SPLITS:
        sentence = f"has {ways:,} ways to split the model over GPUs, but at most {MAX_SPLITS:,} are tried"
        return [Fault(("search",), f"{sentence}; state fewer degrees")]
    enumeration = enumerate_shapes(problem)
    if not enumeration.shapes:
        return list(impossible_faults(problem))
    faults, first = list[Fault](), enumeration.shapes[0]
    settings = {
        "engine shapes": len(enumeration.shapes),
        "values of max_num_seqs": len(space.max_num_seqs),
        "values of max_num_batched_tokens": len(space.max_num_batched_tokens),
    }
    cells = settings | {"buckets of lengths": problem.workload.share.size, "SLO classes": len(problem.slos)}
    for sizes, most in ((settings, MAX_SETTINGS), (cells, MAX_CELLS)):
        candidate_count = math.prod(sizes.values())
        if candidate_count > most and not faults:
            product = " x ".join(f"{count:,} {name}" for name, count in sizes.items())
            sentence = f"makes {candidate_count:,} candidates ({product}), but at most {most:,} are priced; state fewer"
            faults.append(Fault(("search",), sentence))
    ends = dict.fromkeys(end_of(problem, shape) for shape in enumeration.shapes)
    talks = (refused_pair(problem, sender, taker) is None for sender in ends for taker in ends)
    if Role.COLOCATED not in problem.space.roles and not any(talks):
        sentence = "no prefill replica can hand over to any decode replica"
        faults.append(Fault(("search", "roles"), f"{sentence}: {pair_refusal(problem, first, first)}"))
    return faults


def impossible_faults(problem: Problem) -> Iterator[Fault]:
    """One fault for each accelerator of which no engine can be built, however many there are: the closest it comes."""
    for index, offer in enumerate(problem.offers):
        rulings = [
            (ruling, candidate)
            for candidate in candidates(problem, index)
            if (ruling := refusal(problem, candidate)) is not None
        ]  # the closest shape passes most rules, and of these has most GPUs
        (rule, reason), shape = max(rulings, key=lambda row: (RULES.index(row[0][0]), row[1].parallelism.gpus))
        split = shape.parallelism
        weights = problem.model.weight_bytes(shape.weight_dtype) / GIB
        weights_words = f"{problem.model.name} in {shape.weight_dtype} ({weights:,.0f} GiB of weights)"
        mend = MENDS[rule] or "widen the ranges of search"
        yield Fault(
            ("accelerators", index),
            f"{weights_words} runs on no engine of {offer.accelerator.name} within the search space: "
            f"with {split.words if split.gpus > 1 else 'one GPU'}, {reason}; {mend}",
        )
