"""Demands of a simulation that do not come at one rate: over a day, or as many at once as there are users."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.simulator.trace import diurnal_arrivals
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance

from .judge import SEEDS, Demand, Judgement, simulated_trace
from .simulated_use import in_time

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a day: mean arrivals [1/s] and the share of each class within its SLO [1] (NaN: no request of it)."""

    rate: float
    attainment: tuple[float, ...]


def planned_profile(instance: Instance) -> FloatArray | None:
    """Rate of each hour as a multiple of the planned rate, where the workload has a daily profile."""
    diurnal = instance.problem.inputs.get("workload", {}).get("diurnal")
    if diurnal is None:
        return None
    return np.array(diurnal["requests_per_second_by_hour"], dtype=np.float64) / instance.problem.workload.request_rate


def diurnal_demands(
    instance: Instance,
    fleet: Fleet,
    profile: FloatArray,
    *,
    requests: int,
    seed: int = 0,
    volume: float = 1.0,
    replications: int = 1,
) -> list[Demand]:
    """Requests drawn from the demand that come over one day, made as short or as long as they last.

    profile: mean rate in each slot of the day, as a multiple of the demand's rate times `volume`. Lengths and routes
    are those of `simulated_trace` with the same seed.
    """
    load = instance.problem.workload
    rates = load.request_rate * volume * profile
    demands = []
    for number in range(replications):
        drawn = simulated_trace(instance, fleet, requests, seed + SEEDS * number)
        arrival = diurnal_arrivals(requests, rates, load.burstiness, seed + SEEDS * number)
        demands.append(replace(drawn, trace=replace(drawn.trace, arrival=arrival)))
    return demands


def closed_demand(demand: Demand, concurrency: int) -> Demand:
    """The same requests in the same order, `concurrency` of them at once: each one that ends lets the next one come."""
    arrival = np.zeros(demand.trace.size)
    return replace(demand, trace=replace(demand.trace, arrival=arrival, concurrency=concurrency))


def slots_of_day(instance: Instance, judgement: Judgement, profile: FloatArray, volume: float) -> tuple[Slot, ...]:
    """How each slot of the day went, all runs of `diurnal_demands` together; here nothing is left out as warm-up."""
    rates = instance.problem.workload.request_rate * volume * profile
    came = [_slots(run.demand.trace.arrival, rates) for run in judgement.runs]
    slot = np.concatenate(came)
    good = np.concatenate([in_time(instance, run) for run in judgement.runs])
    member = np.concatenate([instance.flows.slo[run.demand.flow] for run in judgement.runs])
    found = []
    for number, rate in enumerate(rates.tolist()):
        mine = [good[(slot == number) & (member == k)] for k in range(len(instance.problem.slos))]
        found.append(Slot(rate, tuple(float(part.mean()) if part.size else math.nan for part in mine)))
    return tuple(found)


def _slots(arrival: FloatArray, rates: FloatArray) -> NDArray[np.int64]:
    """Number of the slot in which each request comes."""
    length = arrival.size / float(rates.sum())
    return np.minimum(np.floor(arrival / length), rates.size - 1.0).astype(np.int64)
