"""What a simulated fleet's engines did: how busy, how near their peaks, how full, and what they drew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.power import mean_power, watt_hours_per_1000
from costmodel.simulator.metrics import loads, percentiles, run_span, steady, within
from optimizer.fleets.evaluate import QUANTILES
from optimizer.fleets.fleet import Fleet, FleetPool, pool_config
from optimizer.loads.instance import Instance

from .judge import Judgement, Run

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

TINY = 1e-12
"""Least time that power is meant over [s]."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One pool over the runs, without its spare replicas.

    engines, gpus: of the pool; utilization: share of its engines' time in steps [1]; mfu, mbu: shares of the vendor's
    peak FLOP/s and HBM bandwidth that the steps need at least, over all of the time [1]; kv_occupancy, kv_peak: share
    of KV blocks in use, mean over time and most of any engine [1]; peak_running: most requests at once in one engine;
    preemption_rate: preemptions per request of the pool [1]; rejection_rate: share of its requests that no engine of it
    could ever hold (out of memory) [1]; power: mean of all its boards [W]; tdp: the most they may draw [W]; energy:
    over the runs [J].
    """

    name: str
    engines: int
    gpus: int
    utilization: float
    mfu: float
    mbu: float
    kv_occupancy: float
    kv_peak: float
    peak_running: int
    preemptions: int
    preemption_rate: float
    rejected: int
    rejection_rate: float
    power: float
    tdp: float
    energy: float


@dataclass(frozen=True, slots=True)
class FleetUse:
    """Pools of a fleet, and of all of it: energy [J], its mean power [W], energy per 1,000 output tokens [Wh]."""

    pools: tuple[PoolUse, ...]
    energy: float
    power: float
    wh_per_1000_tokens: float


@dataclass(frozen=True, slots=True)
class ClassGaps:
    """Longest gap between two tokens of a request [s], over a class: p50, p90, p95 and p99, and the longest of all."""

    quantiles: tuple[float, ...]
    longest: float


def fleet_use(instance: Instance, fleet: Fleet, judgement: Judgement) -> FleetUse:
    """Counters of all engines over all runs, from the first arrival to the last token."""
    pools = tuple(_pool_use(instance, pool, number, judgement) for number, pool in enumerate(fleet.pools))
    energy = sum(pool.energy for pool in pools)
    tokens = sum(float(run.result.trace.osl[run.result.finished].sum()) for run in judgement.runs)
    return FleetUse(pools, energy, sum(pool.power for pool in pools), watt_hours_per_1000(energy, tokens))


def _pool_use(instance: Instance, pool: FleetPool, number: int, judgement: Judgement) -> PoolUse:
    config, simulated = pool_config(instance, pool), judgement.engines.pools[number]
    uses = [use for run in judgement.runs for use in run.result.engines if use.pool == number]
    work = [_work(run, number, judgement) for run in judgement.runs]
    spans = np.array([run_span(run.result) for run in judgement.runs])
    drawn = np.array([sum(mean_power(config.accelerator.tdp, *engine[:3]) for engine in run) for run in work])
    energy = float(config.gpus * drawn @ spans)
    busy, mfu, mbu, occupancy = np.mean(np.concatenate(work), axis=0).tolist()
    requests = max(1, sum(_sent(run, number) for run in judgement.runs))
    preemptions, rejected = (sum(getattr(use, name) for use in uses) for name in ("preemptions", "rejected"))
    return PoolUse(
        name=pool.name,
        engines=simulated.replicas,
        gpus=simulated.replicas * config.gpus,
        utilization=busy,
        mfu=mfu,
        mbu=mbu,
        kv_occupancy=occupancy,
        kv_peak=max(use.peak_blocks for use in uses) / simulated.limits.kv_blocks,
        peak_running=max(use.peak_running for use in uses),
        preemptions=preemptions,
        preemption_rate=preemptions / requests,
        rejected=rejected,
        rejection_rate=rejected / requests,
        power=energy / max(float(spans.sum()), TINY),
        tdp=simulated.replicas * config.gpus * config.accelerator.tdp,
        energy=energy,
    )


def _work(run: Run, number: int, judgement: Judgement) -> FloatArray:
    """Of each engine of a pool: utilization, MFU, MBU and KV occupancy [1], over the run."""
    return np.array(
        [
            (load.utilization, load.mfu, load.mbu, load.kv_occupancy)
            for use, load in zip(run.result.engines, loads(run.result, judgement.engines), strict=True)
            if use.pool == number
        ]
    )


def _sent(run: Run, number: int) -> int:
    """Requests that are routed to a pool, for their prompt or for their tokens."""
    columns = (run.demand.trace.pool, run.demand.trace.decode_pool)
    return sum(int((column == number).sum()) for column in columns if column is not None)


def class_gaps(instance: Instance, judgement: Judgement) -> tuple[ClassGaps, ...]:
    """Longest gaps of each class, warm-up left out; a request that never ended counts as an infinite one."""
    longest = [np.where(run.result.finished, run.result.itl_max, np.inf) for run in judgement.runs]
    counted = [steady(run.result) & (run.demand.trace.osl > 1) for run in judgement.runs]
    return tuple(
        ClassGaps(percentiles(gaps, QUANTILES), float(gaps.max(initial=0.0)))
        for gaps in _by_class(instance, judgement, longest, counted)
    )


def class_e2e(instance: Instance, judgement: Judgement) -> tuple[tuple[float, ...], ...]:
    """End-to-end times of each class at p50, p90, p95 and p99 [s], warm-up left out; NaN where it never ended."""
    times, counted = [run.result.e2e for run in judgement.runs], [steady(run.result) for run in judgement.runs]
    return tuple(percentiles(mine, QUANTILES) for mine in _by_class(instance, judgement, times, counted))


def _by_class(
    instance: Instance, judgement: Judgement, values: list[FloatArray], counted: list[BoolArray]
) -> list[FloatArray]:
    """Values of the requests that count, of all runs together, for each class."""
    runs = list(zip(judgement.runs, values, counted, strict=True))
    return [
        np.concatenate([value[part & (instance.flows.slo[run.demand.flow] == k)] for run, value, part in runs])
        for k in range(len(instance.problem.slos))
    ]


def in_time(instance: Instance, run: Run) -> BoolArray:
    """Which requests of a run are within the SLO of their own class."""
    member = instance.flows.slo[run.demand.flow]
    good = np.zeros(member.size, dtype=bool)
    for k, slo in enumerate(instance.problem.slos):
        good |= within(run.result, slo.limits) & (member == k)
    return good
