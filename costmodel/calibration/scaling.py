"""Scales laid over an accelerator's efficiencies and an engine's host times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from costmodel.accelerator import Accelerator, KernelEfficiency
from costmodel.engine import EngineConfig
from costmodel.engine_arrays import part_dtype
from costmodel.estimate import used_efficiencies
from costmodel.host import EngineOverhead
from costmodel.serving.policy import ServingPolicy
from costmodel.transformer import Part, Transformer

from .limits import DENSE_SLACK, slack
from .scales import Scales

Pair = tuple[str, str]

COLLECTIVES = frozenset({"all_reduce", "all_reduce_large", "all_to_all"})
"""Their `memory` is a share of a link, on which HBM and FLOP/s say nothing."""
CARRIERS = frozenset({"gemm", "moe"})
"""Kernels that read the weights and do most of the arithmetic."""
MOST_EFFICIENCY = 1.05
"""Efficiency from which a fit contradicts physics; up to here it is the noise of the runs [1]. With routed experts more
is allowed, by the share of them that skewed traffic may leave untouched (`limits.slack`)."""
SHORTEST_ARRIVAL = 1e-3
"""A TTFT overhead has to be something for a factor to act on [s]."""


def calibrated_pairs(model: Transformer, configs: Iterable[EngineConfig]) -> tuple[Pair, ...]:
    """(kernel class, dtype) of the efficiencies that these engines' kernels use, collectives apart.

    Weights that the GPU expands before computing are read at the efficiency of their own dtype.
    """
    pairs: dict[Pair, None] = {}
    for config in configs:
        used = [*used_efficiencies(model, config)]
        for part in Part:
            stored = part_dtype(model, part, config.weight_dtype)
            used += [(kind, stored) for kind in ("gemm", "moe") if kind == "gemm" or model.is_moe]
        known = config.accelerator.efficiency
        pairs.update(dict.fromkeys(pair for pair in used if pair in known and pair[0] not in COLLECTIVES))
    return tuple(pairs)


def scaled_figures(accelerator: Accelerator, pairs: Iterable[Pair], scales: Scales) -> dict[Pair, KernelEfficiency]:
    """The efficiencies of `pairs`, scaled, never above the physical limit of 1."""
    return _scaled(accelerator, pairs, scales, frozenset())


def scaled_accelerator(
    accelerator: Accelerator, pairs: Iterable[Pair], scales: Scales, *, limited: bool = True
) -> Accelerator:
    """The accelerator with those efficiencies scaled.

    limited: none above 1. Without, the kernels that carry the weights may be: so data that asks for more than there is
    shows (`above_physics`) instead of piling up at the limit.
    """
    figures = _scaled(accelerator, pairs, scales, frozenset() if limited else CARRIERS)
    return replace(accelerator, efficiency={**accelerator.efficiency, **figures})


def _scaled(
    accelerator: Accelerator, pairs: Iterable[Pair], scales: Scales, unlimited: frozenset[str]
) -> dict[Pair, KernelEfficiency]:
    known = accelerator.efficiency

    def limit(pair: Pair, share: float) -> float:
        return share if pair[0] in unlimited else min(share, 1.0)

    return {
        pair: replace(
            known[pair],
            compute=limit(pair, known[pair].compute * scales.compute),
            memory=limit(pair, known[pair].memory * scales.memory),
        )
        for pair in pairs
    }


def scaled_overhead(overhead: EngineOverhead, scales: Scales) -> EngineOverhead:
    """The CPU time per step and per request, scaled."""
    return replace(overhead, step=overhead.step * scales.host, per_request=overhead.per_request * scales.host)


def scaled_policy(policy: ServingPolicy, scales: Scales) -> ServingPolicy:
    """The policy with host times and TTFT overhead scaled."""
    arrival = policy.arrival if scales.arrival == 1.0 else max(policy.arrival, SHORTEST_ARRIVAL) * scales.arrival
    return replace(policy, overhead=scaled_overhead(policy.overhead, scales), arrival=arrival)


def above_physics(
    accelerator: Accelerator, model: Transformer, pairs: Iterable[Pair], scales: Scales
) -> Mapping[str, float]:
    """Efficiencies of the kernels that carry the weights that the scales would push beyond the limit, by parameter.

    Kernels that the catalog has near 1 already are merely capped; these are what the times rest on.
    """
    carrier = "moe" if model.is_moe else "gemm"
    carrying = [accelerator.efficiency[pair] for pair in pairs if pair[0] == carrier]
    reached = {
        "compute": min((each.compute for each in carrying), default=0.0) * scales.compute,
        "memory": min((each.memory for each in carrying), default=0.0) * scales.memory,
    }
    most = MOST_EFFICIENCY * DENSE_SLACK / slack(model)
    return {name: share for name, share in reached.items() if share > most and getattr(scales, name) > 1.0}
