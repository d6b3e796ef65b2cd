"""How a pool runs at the demand: a typical step, where its time goes, and what bounds it."""

from __future__ import annotations

import numpy as np

from costmodel.engine import Role
from costmodel.step import StepLoad, StepTime, engine_arrays, step_time
from optimizer.loads.engine_table import Resource
from optimizer.loads.instance import Instance
from optimizer.plans.plan import OperatingPoint, TimeSplit

from .error_bars import factor_at, slow_end, step_intervals
from .evaluate import PoolState
from .fleet import FleetPool, pool_config


def typical_load(instance: Instance, pool: FleetPool, state: PoolState) -> tuple[StepLoad, float]:
    """The mean step of a pool and the requests in it: a mean prompt, a running batch, or both mixed.

    The batch of a pool that gets more than it can serve is as large as its limit allows.
    """
    flows, tables = instance.flows, instance.tables
    total = max(float(state.rate.sum()), 1e-12)
    new_tokens = float(state.rate @ flows.new_tokens) / total
    past = float(state.rate @ flows.past_tokens) / total
    ranks, stages = float(tables.ranks[pool.shape]), float(tables.pipeline[pool.shape])
    if pool.role is Role.PREFILL:
        chunk = min(new_tokens, float(tables.rank_chunks[pool.shape, pool.chunk]))
        return StepLoad.of(ranks, chunk, past + (new_tokens - chunk) / 2.0, 0.0, 0.0), 1.0
    work = state.rate * flows.osl
    context = float(work @ flows.mean_context) / max(float(work.sum()), 1e-12)
    running = min(state.running, float(tables.seqs[pool.seqs]))
    batch = running / stages
    if pool.role is Role.DECODE:
        return StepLoad.of(0.0, 0.0, 0.0, batch, context), running
    per_step = float(state.rate @ flows.new_tokens) / pool.replicas * state.step / stages / ranks
    chunk = min(per_step, float(tables.rank_chunks[pool.shape, pool.chunk]))
    return StepLoad.of(ranks, max(chunk, 1.0), past + new_tokens / 2.0, batch, context), running


def utilization(instance: Instance, pool: FleetPool, state: PoolState) -> dict[str, float]:
    """Busy share of what a pool has: prompt servers, request slots, KV memory, network cards [1]."""
    tables = instance.tables
    used: dict[str, float] = {}
    if pool.role is not Role.DECODE:
        used[Resource.TIME] = state.utilization
    if pool.role is not Role.PREFILL:
        used[Resource.SLOTS] = state.running / float(tables.seqs[pool.seqs])
        used[Resource.KV_MEMORY] = state.memory
    if pool.role is not Role.COLOCATED:
        moved = float(state.rate @ tables.kv_transferred[pool.shape])
        used[Resource.LINK] = moved / (pool.replicas * float(tables.links[pool.shape]))
    return {str(resource): float(use) for resource, use in used.items()}


def operating_point(instance: Instance, pool: FleetPool, state: PoolState, binding: Resource) -> OperatingPoint:
    """Describe the typical step of a pool; binding is the resource that gives out first."""
    config = pool_config(instance, pool)
    engines = engine_arrays(instance.problem.model, [config], instance.overhead)
    load, batch = typical_load(instance, pool, state)
    time = step_time(instance.problem.model, engines, load)
    slower = _slower(instance, pool)
    split = _time_split(time)
    intensity, ridge = _value(time.arithmetic_intensity), _value(engines.peak / engines.bandwidth)
    return OperatingPoint(
        request_rate_rps=float(state.rate.sum()),
        utilization=utilization(instance, pool, state),
        binding=str(binding),
        step_s=_value(time.total) * slower,
        batch=batch,
        mfu=_value(time.mfu(engines)) / slower,
        mbu=_value(time.mbu(engines)) / slower,
        arithmetic_intensity=intensity,
        ridge_point=ridge,
        bound_by=_bound_by(split, compute=intensity >= ridge),
        time_split=split,
    )


def _slower(instance: Instance, pool: FleetPool) -> float:
    """By how much the steps that are planned on are slower than the expected ones [1]."""
    problem = instance.problem
    offer = problem.offers[int(instance.tables.offer[pool.shape])]
    intervals = step_intervals(problem.model, offer.accelerator)
    interval = intervals.prefill if pool.role is Role.PREFILL else intervals.decode
    return factor_at(interval, slow_end(problem.confidence))


def _value(array: object) -> float:
    return float(np.asarray(array).reshape(-1)[0])


def _time_split(time: StepTime) -> TimeSplit:
    total = _value(time.total)
    return TimeSplit(
        gemm=_value(time.gemm) / total,
        attention=_value(time.attention) / total,
        experts=_value(time.experts) / total,
        communication=_value(time.communication) / total,
        host=_value(time.host) / total,
    )


def _bound_by(split: TimeSplit, *, compute: bool) -> str:
    """The largest part of the step: kernels (compute or bandwidth, by the ridge point), network, or host."""
    kernels = split.gemm + split.attention + split.experts
    parts = {"kernels": kernels, "network": split.communication, "host": split.host}
    largest = max(parts, key=lambda part: parts[part])
    if largest != "kernels":
        return largest
    return "compute" if compute else "bandwidth"
