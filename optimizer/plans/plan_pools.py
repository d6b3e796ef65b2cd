"""Engines of a fleet as plan.json states them: those of an alternative as fully as those of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, Literal

from .plan_fields import Amount, Degree, Record, Share


class EnginePool(Record):
    """Replicas of one engine in one role; a setting is null in a fleet of a plan/1 file, which did not state it."""

    role: Literal["prefill", "decode", "colocated"]
    accelerator: str
    replicas: Degree
    """Spare ones included."""
    tensor_parallel: Degree
    pipeline_parallel: Degree
    expert_parallel: Degree
    data_parallel: Degree
    gpus: Degree
    """GPUs of all replicas together."""
    weight_dtype: str | None
    kv_dtype: str | None
    max_num_seqs: Degree | None
    max_num_batched_tokens: Degree | None
    max_model_len: Degree | None
    memory_fraction: Share | None
    usd_per_hour: Amount | None
    """Price of the whole pool; null where it has several: over a range of prices, or of owned and rented GPUs."""

    @property
    def engine(self) -> tuple[Hashable, ...]:
        """What the engine is, apart from its memory and batch limits."""
        degrees = (self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.data_parallel)
        return self.role, self.accelerator, degrees, self.weight_dtype, self.kv_dtype


def engine_counts(pools: Iterable[EnginePool]) -> frozenset[Hashable]:
    """What fleets of the same engines share, as many of each in a pool, whatever their batch limits and prices."""
    return frozenset(Counter((pool.replicas, pool.engine) for pool in pools).items())


def unpriced(pools: Iterable[EnginePool]) -> list[EnginePool]:
    """Pools that stand for a range of prices."""
    return [pool.model_copy(update={"usd_per_hour": None}) for pool in pools]


def pool_records(pools: Iterable[EnginePool]) -> list[dict[str, Any]]:
    """Pools, ready for JSON."""
    return [pool.model_dump() for pool in pools]


def read_pools(records: Iterable[Any]) -> tuple[EnginePool, ...]:
    """Pools of such records."""
    return tuple(map(EnginePool.model_validate, records))
