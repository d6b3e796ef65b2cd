"""What makes a sound-looking problem impossible to search: too many candidates, or no engine that can exist."""

from __future__ import annotations

import math
from collections.abc import Iterator

from costmodel.engine import Role
from costmodel.units import GIB

from .bounds import MAX_CELLS, MAX_SETTINGS, MAX_SPLITS
from .enumeration import (
    RULES,
    Enumeration,
    Shape,
    candidates,
    engine_runs_there,
    enumerate_shapes,
    kv_cache_has_kernels,
    model_and_one_request_fit,
    refusal,
    target_schedules_there,
    tensor_keeps_weight_blocks,
    weights_have_kernels,
)
from .faults import Fault
from .pairs import end_of, pair_refusal, partners
from .problem import Problem

_FIT = model_and_one_request_fit.__name__
_MENDS = {
    engine_runs_there.__name__: "state another engine, or other accelerators",
    target_schedules_there.__name__: "leave the target out, or state other accelerators",
    weights_have_kernels.__name__: "state another weight_dtype, engine or accelerator",
    tensor_keeps_weight_blocks.__name__: "allow a smaller search.tensor_parallel, or search.expert_parallel",
    kv_cache_has_kernels.__name__: "state kv_dtype: bf16, another engine or another accelerator",
}
_MORE_GPUS = "more GPUs per engine (search.tensor_parallel, max_gpus_per_engine)"


def feasibility_faults(problem: Problem) -> list[Fault]:
    """What is wrong with the search space as a whole: it is too large, or no engine of it can exist."""
    space = problem.space
    degrees = (space.tensor_parallel, space.pipeline_parallel, space.expert_parallel, space.data_parallel)
    dtypes = len(problem.weight_dtypes) * len(problem.kv_dtypes)
    ways = math.prod(len(values) for values in degrees) * len(problem.offers) * dtypes
    if ways > MAX_SPLITS:
        sentence = f"has {ways:,} ways to split the model over GPUs, but at most {MAX_SPLITS:,} are tried"
        return [Fault(("search",), f"{sentence}; state fewer degrees")]
    enumeration = enumerate_shapes(problem)
    if not enumeration.shapes:
        return list(impossible_faults(problem))
    return [*_size_faults(problem, enumeration), *_pair_faults(problem, enumeration)]


def _pair_faults(problem: Problem, enumeration: Enumeration) -> Iterator[Fault]:
    """Where roles must be apart, some prefill engine can hand over to some decode engine."""
    if Role.COLOCATED in problem.space.roles:
        return
    ends = {end_of(problem, shape): shape for shape in enumeration.shapes}
    if not any(partners(problem, tuple(ends)).values()):
        first = enumeration.shapes[0]
        reason = pair_refusal(problem, first, first)
        yield Fault(("search", "roles"), f"no prefill replica can hand over to any decode replica: {reason}")


def _size_faults(problem: Problem, enumeration: Enumeration) -> Iterator[Fault]:
    """Time and memory of the search grow with the engine settings, and with these x buckets x classes."""
    space = problem.space
    settings = {
        "engine shapes": len(enumeration.shapes),
        "values of max_num_seqs": len(space.max_num_seqs),
        "values of max_num_batched_tokens": len(space.max_num_batched_tokens),
    }
    cells = settings | {"buckets of lengths": problem.workload.share.size, "SLO classes": len(problem.slos)}
    for sizes, most in ((settings, MAX_SETTINGS), (cells, MAX_CELLS)):
        made = math.prod(sizes.values())
        if made > most:
            product = " x ".join(f"{count:,} {name}" for name, count in sizes.items())
            yield Fault(
                ("search",), f"makes {made:,} candidates ({product}), but at most {most:,} are priced; state fewer"
            )
            return


def impossible_faults(problem: Problem) -> Iterator[Fault]:
    """One fault for each accelerator of which no engine can be built, however many there are: the closest it comes."""
    for index, offer in enumerate(problem.offers):
        rule, shape, reason = _closest(problem, index)
        weights = problem.model.weight_bytes(shape.weight_dtype) / GIB
        what = f"{problem.model.name} in {shape.weight_dtype} ({weights:,.0f} GiB of weights)"
        mend = _MENDS.get(rule, "widen the ranges of search")
        if rule == _FIT:
            mend = f"allow {_MORE_GPUS}, a smaller weight_dtype, shorter requests or more memory"
        yield Fault(
            ("accelerators", index),
            f"{what} runs on no engine of {offer.accelerator.name} within the search space: with {_told(shape)}, "
            f"{reason}; {mend}",
        )


def _told(shape: Shape) -> str:
    split = shape.parallelism
    degrees = {"TP": split.tensor, "PP": split.pipeline, "EP": split.expert, "DP": split.data}
    return " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one GPU"


def _closest(problem: Problem, offer: int) -> tuple[str, Shape, str]:
    """The shape that passes most rules, of these the one with most GPUs; with the rule that refuses it, and why."""
    order = list(RULES)
    refused = [
        (candidate, found)
        for candidate in candidates(problem, offer)
        if (found := refusal(problem, candidate)) is not None
    ]
    shape, (rule, reason) = max(refused, key=lambda item: (order.index(item[1][0]), item[0].parallelism.gpus))
    return rule, shape, reason
