"""Random workloads on engines with data-parallel lanes: what the formulas promise, and what the simulator finds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.evaluate import evaluate, largest_load, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.verification.judge import judge
from tests.optimizer_cases import EVERY_ROLE, instance_of, model, offer, problem, slo, space, workload

LONGEST = 12_000
"""Of the prompts [token]."""
DECODERS = 400
"""Decode engines beside a prefill pool: more than enough, so that only prompts wait."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Promised over simulated at p50, p90 and p99 [1]; overloaded: whether the simulated fleet fell behind."""

    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    overloaded: bool


Buckets = tuple[tuple[float, float, float], ...]
"""ISL [token], OSL [token] and share of each."""


def lane_instance(lanes: int, budget: int, buckets: Buckets, burstiness: float = 1.0) -> Instance:
    """DeepSeek-V3 in FP8 on eight H200, with so many lanes, a token budget for all of them, and limits never missed."""
    return instance_of(
        problem(
            model=model("DeepSeek-V3"),
            weight_dtype="fp8",
            kv_dtype="fp8",
            offers=(offer("H200"),),
            workload=workload(1.0, buckets, max_tokens=LONGEST + 1000, burstiness=burstiness),
            slos=(slo(1000.0, 10.0, 0.9),),
            space=space(
                roles=EVERY_ROLE,
                tensor_parallel=(8 // lanes, 8),
                expert_parallel=(1, 8),
                data_parallel=(1, lanes),
                max_num_seqs=(32, 64, 256),
                max_num_batched_tokens=(budget,),
            ),
        )
    )


def shape_with(instance: Instance, lanes: int) -> int:
    """Index of the first engine shape with so many lanes."""
    return next(k for k, shape in enumerate(instance.tables.shapes) if shape.parallelism.data == lanes)


def lane_fleet(instance: Instance, role: Role, lanes: int, replicas: int) -> Fleet:
    """A pool of engines with lanes that serves all there is, and decode engines without where it does not decode."""
    everything, (least, _, most) = np.ones(instance.flows.isl.size), instance.tables.limits.tolist()
    if role is Role.COLOCATED:
        return Fleet((FleetPool("c", role, shape_with(instance, lanes), most, 0, replicas, 0, everything),))
    prompts = FleetPool("p", role, shape_with(instance, lanes), least, 0, replicas, 0, everything)
    return Fleet((prompts, FleetPool("d", Role.DECODE, shape_with(instance, 1), least, 0, DECODERS, 0, everything)))


def at_rate(instance: Instance, rate: float) -> Instance:
    """The instance with another request rate [1/s]."""
    load = replace(instance.problem.workload, request_rate=rate)
    flows = replace(instance.flows, rate=instance.flows.share / instance.flows.share.sum() * rate)
    return replace(instance, problem=replace(instance.problem, workload=load), flows=flows)


def compared(seed: int, role: Role, lanes: int, requests: int) -> Latencies:
    """A random mix at a random share of what the engines can take, promised and simulated."""
    rng = np.random.default_rng([seed, lanes, 77])
    count = int(rng.integers(1, 4))
    tokens = (2, 20) if role is Role.PREFILL else (50, 300)
    isl, osl = rng.integers(200, LONGEST, count), rng.integers(*tokens, count)
    share = rng.dirichlet(np.full(count, 2.0))
    buckets = tuple((float(i), float(o), float(s)) for i, o, s in zip(isl, osl, share, strict=True))
    budget = lanes * int(rng.choice([1024, 2048, 8192]))
    whole = lane_instance(lanes, budget, buckets, float(rng.choice([1.0, 1.0, 2.0])))
    fleet = lane_fleet(whole, role, lanes, int(rng.choice([1, 1, 3])))
    most = largest_load(lambda volume: predict_misses(whole, fleet, volume).stable)
    instance = at_rate(whole, most * float(rng.uniform(0.1, 0.85)))
    promise = evaluate(instance, fleet)
    judged = judge(instance, fleet, requests=requests, seed=seed)
    simulated = judged.classes[0]
    columns = [0, 1, 3]
    return Latencies(
        promise.ttft[0][columns] / np.array(simulated.ttft)[columns],
        promise.tpot[0][columns] / np.array(simulated.tpot)[columns],
        judged.overload.overloaded,
    )
