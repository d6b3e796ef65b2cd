"""What the studies share: engines of the catalog as simulator pools, goodput by bisection, tables of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.accelerator import Accelerator, InEngine
from costmodel.engine import EngineConfig, Parallelism, Policy, Role
from costmodel.memory import TRANSFER_EFFICIENCY, kv_bytes_per_token_per_gpu, kv_capacity_bytes
from costmodel.metric import Metric
from costmodel.simulator.fleet import Limits, Router, SimulatedFleet, SimulatedPool, StepModel
from costmodel.simulator.metrics import Result, overload, share_of, steady, within
from costmodel.simulator.run import simulate
from costmodel.simulator.steps import cost_steps
from costmodel.transformer import Transformer
from costmodel.workload import Trace, gamma_arrivals, make_trace
from search_spaces.catalog import load_catalog
from search_spaces.engines import load_engine_memory, load_serving_policy

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Lengths = tuple[IntArray, IntArray]
"""Prompt and output length of each request [token]."""
SloLimits = Mapping[Metric, float]
"""Limits by metric [s]."""
BLOCK = 16
"""Tokens of one KV block, vLLM's default."""
GOAL = 0.9
"""Share of requests that must meet both limits for a rate to count as served."""


def a100() -> Accelerator:
    """A100-SXM4 with 80 GB."""
    return load_catalog().accelerator("A100-80")


def engine_pool(
    model: Transformer,
    role: Role,
    policy: Policy,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    replicas: int = 1,
    gpu: Accelerator | None = None,
    seqs: int = 256,
    budget: int = 8192,
    longest: int = 2048,
    memory_fraction: float = 0.9,
    link: float = 0.0,
    router: Router = Router.LEAST_LOADED,
    steps: StepModel | None = None,
) -> SimulatedPool:
    """Equal engines of a 16-bit model on A100s (or `gpu`), with step times of the cost model and vLLM's step overhead.

    seqs, budget: requests and tokens in a step; longest: ISL + OSL [token]; link: bandwidth of one GPU's link to the
    other role's engines [byte/s], each GPU sending its own part of the KV (0: KV moves in no time); steps: step times,
    if not the cost model's.
    """
    split = Parallelism(tensor, pipeline)
    alone = replace(gpu or a100(), in_engine=InEngine())  # fitted to other engines than the published ones
    memory = load_engine_memory("vllm")
    config = EngineConfig(alone, role, split, "bf16", "bf16", seqs, budget, longest, memory, memory_fraction)
    blocks = int(kv_capacity_bytes(model, config) / (kv_bytes_per_token_per_gpu(model, config) * BLOCK))
    per_token = model.kv_bytes_per_token("bf16") / (split.gpus * link * TRANSFER_EFFICIENCY) if link else 0.0
    host = load_serving_policy("vllm").overhead
    return SimulatedPool(
        role=role,
        steps=steps or cost_steps(model, config, host),
        policy=policy,
        limits=Limits(seqs, max(budget, seqs), kv_blocks=blocks, block_size=BLOCK),
        replicas=replicas,
        pipeline=pipeline,
        router=router,
        kv_seconds_per_token=per_token,
    )


def poisson_trace(lengths: Lengths, rate: float, seed: int = 0) -> Trace:
    """Poisson arrivals at `rate` [1/s]; the same draws at every rate."""
    isl, osl = lengths
    return make_trace(gamma_arrivals(isl.size, rate, seed=seed), isl, osl)


def served(trace: Trace, fleet: SimulatedFleet) -> Result:
    """A run in which the prompt makes the first token on prefill engines too, as on DistServe's."""
    if len(fleet) == 1:
        return simulate(trace, fleet)
    result = simulate(replace(trace, osl=np.maximum(trace.osl - 1, 1)), fleet)
    finish = np.where(trace.osl > 1, result.finish, result.prompt_end)
    return replace(result, trace=trace, first=result.prompt_end, finish=finish)


def holds(result: Result, limits: SloLimits) -> bool:
    """Whether enough requests meet the SLO and the fleet keeps up with its arrivals."""
    share = share_of([within(result, limits)[steady(result)]]).share
    return share >= GOAL and not overload([result]).overloaded


def goodput(fleet: SimulatedFleet, lengths: Lengths, limits: SloLimits, tolerance: float = 0.02) -> float:
    """Highest Poisson rate [1/s] at which the SLO holds, to `tolerance`; 0 if it holds at none."""
    return highest_rate(lambda rate: holds(served(poisson_trace(lengths, rate), fleet), limits), tolerance)


def short_goodput(fleet: SimulatedFleet, lengths: Lengths, limits: SloLimits, requests: int = 300) -> float:
    """The same from short runs that start empty, as benchmarks of real systems do it [1/s].

    The lengths are cut into runs of `requests` with arrivals of their own; all requests of all runs count, and an
    overload that has not lasted long enough to hurt goes unnoticed.
    """
    isl, osl = lengths
    runs = [slice(start, start + requests) for start in range(0, isl.size - requests + 1, requests)]

    def good(rate: float) -> bool:
        traces = (poisson_trace((isl[run], osl[run]), rate, seed) for seed, run in enumerate(runs))
        return float(np.mean([within(served(trace, fleet), limits).mean() for trace in traces])) >= GOAL

    return highest_rate(good)


def highest_rate(good: Callable[[float], bool], tolerance: float = 0.02, start: float = 1.0) -> float:
    """Highest rate that is good, by doubling or halving from `start` and then bisection; 0 if none above 1/1000 is.

    >>> 3.29 < highest_rate(lambda rate: rate <= 3.3, tolerance=0.001) <= 3.3
    True
    """
    low, high = start, start
    if good(start):
        while good(high := 2.0 * high):
            low = high
    else:
        while not good(low := 0.5 * low):
            high = low
            if low < 1e-3:
                return 0.0
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def gamma_lengths(count: int, mean: float, cv: float, longest: int, seed: int) -> IntArray:
    """Lengths [token] with this coefficient of variation: gamma distributed, 1 or more, cut at `longest`."""
    if cv == 0.0:
        return np.full(count, round(mean), dtype=np.int64)
    drawn = np.random.default_rng([seed, 5]).gamma(1.0 / cv**2, mean * cv**2, count)
    return np.clip(np.rint(drawn), 1, longest).astype(np.int64)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of text under a head, as Markdown with aligned columns."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
