"""What each engine did over a run: its work, summed from whole-number counters, and the check of the floors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import PdplanError

from .compiled import column
from .fleet import Fleet
from .state import Group, World
from .step_work import StepContent, StepWork, least_bytes, least_flop

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Work of the engines, arrays of shape (engines,) in the order of `Result.engines`.

    flop [FLOP], hbm_bytes [byte]: of all GPUs of the engine, the least that its steps need (`StepWork`; padding of
    static batches counts, as it is computed); peak_flops [FLOP/s], hbm_bandwidth [byte/s]: the vendor's, of all its
    GPUs. These four are 0 where step times come without a roofline (coefficients, tables).
    busy_seconds: time in which steps ran, summed over micro-batches in flight [s]; prompt_tokens: computed;
    output_tokens: made, by prompts that ended and by decodes [token]; kv_block_seconds: KV blocks in use x time
    [block s].
    """

    flop: FloatArray
    hbm_bytes: FloatArray
    peak_flops: FloatArray
    hbm_bandwidth: FloatArray
    busy_seconds: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    kv_block_seconds: FloatArray


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """Prefix caches of the engines, arrays of shape (engines,); 0 where the trace has no hash blocks.

    asked: prompt tokens of admitted requests; hit: of these, found in the engine's cache or fetched; fetched: read from
    the shared store, also where a request came that no longer needed them [token]; evicted: hash blocks dropped.
    """

    asked: FloatArray
    hit: FloatArray
    fetched: FloatArray
    evicted: FloatArray

    @property
    def hit_share(self) -> FloatArray:
        """Share of the prompt tokens that were found [1]; 0 for an engine that was asked for none."""
        return self.hit / np.maximum(self.asked, 1.0)


def prefix_use(world: World) -> PrefixUse:
    """What the prefix caches did, from the counters that the loop kept."""
    names = ("asked_tokens", "hit_tokens", "fetched_tokens", "evicted_pages")
    return PrefixUse(*(column(world.groups, name).astype(np.float64) for name in names))


def engine_work(world: World, pools: list[int], fleet: Fleet) -> EngineWork:
    """Work of all engines from the counters that the loop kept; pools: the pool of each engine."""
    held = _contents(world)
    models = zip(*(column(world.models, name).tolist() for name in StepWork.__dataclass_fields__), strict=True)
    of_pool = [StepWork(*values) for values in models]
    works = [of_pool[pool] for pool in pools]
    stages = np.array([fleet.pools[pool].pipeline for pool in pools], dtype=np.float64)

    def sums(name: str) -> FloatArray:
        return column(world.groups, name).astype(np.float64)

    return EngineWork(
        flop=np.array([least_flop(work, one) for work, one in zip(works, held, strict=True)]),
        hbm_bytes=np.array([least_bytes(work, one) for work, one in zip(works, held, strict=True)]),
        peak_flops=stages * column(world.models, "peak")[pools],
        hbm_bandwidth=stages * column(world.models, "bandwidth")[pools],
        busy_seconds=sums("busy"),
        prompt_tokens=sums("computed_prompts"),
        output_tokens=sums("computed_decodes") + sums("yielded"),
        kv_block_seconds=sums("kv_time"),
    )


def _contents(world: World) -> list[StepContent]:
    """All steps of each engine together."""
    one = {name: column(world.groups, name) for name in Group.__dataclass_fields__}
    rows = zip(
        one["all_steps"],
        one["computed_prompts"] + one["decode_rows"],
        one["capped"],
        one["chunks"] + one["decode_rows"],
        one["pairs"],
        one["reach"],
        one["decode_rows"],
        one["decode_context"],
        strict=True,
    )
    return [StepContent(*(int(value) for value in row)) for row in rows]


def check_floors(world: World, engines: NDArray[np.int64]) -> None:
    """Raise PdplanError if a step took less than its FLOP or its bytes need; engines: the engine of each lane."""
    count, lane, start, took, least = (
        column(world.rules, name)[0] for name in ("too_fast", "fast_lane", "fast_start", "fast_time", "fast_floor")
    )
    if count == 0:
        return
    raise PdplanError(
        f"simulator: {count} steps are faster than their FLOP or HBM traffic allow; the first, on engine "
        f"{engines[int(lane)]} at {start:.6f} s, takes {took:.6g} s where {least:.6g} s is the least"
    )
