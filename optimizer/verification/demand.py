"""The requests of one run, routed to the pools of a fleet: random, recorded, over a day, or at fixed concurrency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel import workload
from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.metric import Metric
from costmodel.simulator.metrics import gap_edges
from optimizer.fleets.fleet import Fleet, hand_over_mix
from optimizer.fleets.pool import PACE, pool_state
from optimizer.loads.instance import Demand, Instance
from search_spaces.enumeration import block_tokens
from search_spaces.problem import Recorded

MORE_SESSIONS = 1.2, 20
"""Sessions that are drawn over those which the requests take on average, and how many more: some end early."""

SEEDS = 1_000_003
"""Distance between the seeds of two replications, so that nearby seeds share no replication."""


def simulated_trace(instance: Instance, fleet: Fleet, requests: int, seed: int, volume: float = 1.0) -> Demand:
    """Requests drawn from the demand and routed as the plan routes; the draws do not depend on the volume.

    Of a demand that was recorded they are stretches of the recording, at the rate of the demand.
    """
    flows, load, recording = instance.flows, instance.problem.workload, instance.problem.recorded
    if recording is not None:
        arrival, places = recording.drawn(requests, load.request_rate * volume, seed)
        return replayed_trace(instance, fleet, arrival, recording.isl[places], recording.osl[places], seed=seed)
    if load.sessions is not None:
        return _session_trace(instance, fleet, load.sessions, requests, seed=seed, volume=volume)
    names = np.unique([slo.name for slo in instance.problem.slos], return_inverse=True)[1]
    order = np.lexsort((flows.osl, flows.isl, names[flows.slo]))  # the draws don't depend on the order in the file
    isl, osl, place = workload.draw_lengths(flows.isl[order], flows.osl[order], flows.share[order], requests, seed)
    flow = order[place]
    arrival = workload.gamma_arrivals(requests, load.request_rate * volume, load.burstiness, seed)
    return _demand(instance, fleet, (arrival, isl, osl), flow, seed=seed, volume=volume)


def _session_trace(
    instance: Instance, fleet: Fleet, sessions: workload.Sessions, requests: int, *, seed: int, volume: float
) -> Demand:
    """Turns of sessions that are in progress, and of new ones; the class of each session is drawn by share."""
    flows, load = instance.flows, instance.problem.workload
    stated_flows = flows.share > 0.0
    service = PACE * float(flows.share[stated_flows] @ flows.longest[stated_flows] / flows.share.sum())
    mean, rate = sessions.turns.mean, load.request_rate * volume / sessions.turns.mean
    begin = float(np.ceil(sessions.turns.longest)) * (sessions.pause.mean + service)
    share, spare = MORE_SESSIONS
    starts = workload.gamma_arrivals(int(share * requests / mean + begin * rate) + spare, rate, load.burstiness, seed)
    turns, session = workload.draw_turns(
        sessions, starts, requests, begin=begin, service=service, most=load.max_tokens, seed=seed
    )
    flow = _flows_of(instance, _classes(instance, starts.size, seed)[session], turns.isl, turns.osl)
    demand = _demand(instance, fleet, (turns.arrival, turns.isl, turns.osl), flow, seed=seed, volume=volume)
    paged = replace(demand.trace, cached=None, tier=None, pages=_pages(instance, sessions, turns, session))
    return replace(demand, trace=replace(paged, after=turns.after, pause=turns.pause))


def _pages(instance: Instance, sessions: workload.Sessions, turns: workload.Trace, session: IntArray) -> workload.Pages:
    """The hash blocks of the prompts: those of the system prompt, then the session's own.

    As long as the engine's own blocks, or by powers of two longer where there would be too many.
    """
    size = block_tokens(instance.problem.engine, instance.problem.model)
    numbers, session = np.unique(session, return_inverse=True)
    longest = np.zeros(numbers.size, dtype=np.int64)
    np.maximum.at(longest, session, turns.isl)
    while float((longest // size).sum()) > workload.MOST_PAGES:
        size *= 2
    common = int(sessions.system_prompt) // size
    own = np.maximum(longest // size - common, 0)
    first = common + np.cumsum(own) - own
    counts = turns.isl // size
    starts = np.cumsum(counts) - counts
    ids = np.arange(int(counts.sum())) + np.repeat(first[session] - common - starts, counts)
    place = np.arange(common)
    is_common = place < counts[:, None]
    ids[(starts[:, None] + place)[is_common]] = np.broadcast_to(place, is_common.shape)[is_common]
    return workload.Pages(ids, counts, size, common if bool((counts >= common).any()) else 0)


def recorded_trace(instance: Instance, fleet: Fleet, recording: Recorded, volume: float = 1.0) -> Demand:
    """Recorded requests in their own order, at the rate of the demand times `volume`."""
    pace = recording.rate / (instance.problem.workload.request_rate * volume)
    return replayed_trace(instance, fleet, recording.arrival * pace, recording.isl, recording.osl)


def replayed_trace(
    instance: Instance, fleet: Fleet, arrival: FloatArray, isl: IntArray, osl: IntArray, *, seed: int = 0
) -> Demand:
    """Requests as recorded; each belongs to a class drawn by share, and is routed as the flow of the nearest length.

    Nearest by the logarithms of ISL and OSL. Raises InputError for a request beyond the engines' max_model_len.
    """
    most, longest = instance.problem.workload.max_tokens, isl + osl
    if longest.max() > most:
        worst = int(longest.argmax())
        raise InputError(
            f"trace: request {worst} has {isl[worst]} + {osl[worst]} tokens, but the plan's engines take {most} at "
            "most (workload.max_tokens)"
        )
    flow = _flows_of(instance, _classes(instance, isl.size, seed), isl, osl)
    return _demand(instance, fleet, (arrival, isl, osl), flow, seed=seed)


def _classes(instance: Instance, size: int, seed: int) -> IntArray:
    """SLO classes drawn by share, (size,)."""
    shares = np.array([slo.share for slo in instance.problem.slos])
    return np.random.default_rng([seed, 4]).choice(shares.size, size=size, p=shares / shares.sum())


def _flows_of(instance: Instance, slo: IntArray, isl: IntArray, osl: IntArray) -> IntArray:
    """The flow of the nearest length of each request, by its SLO class."""
    flows = instance.flows
    used = np.flatnonzero(flows.share > 0.0)
    return np.asarray(used[nearest((flows.slo[used], flows.isl[used], flows.osl[used]), (slo, isl, osl))])


def nearest(
    buckets: tuple[IntArray, FloatArray, FloatArray], requests: tuple[IntArray, IntArray, IntArray]
) -> IntArray:
    """Index of the bucket of its class whose lengths are nearest to those of each request.

    Both are classes, input and output lengths; one row of distances at a time keeps memory small.
    """
    classes, isl, osl = requests
    best, least = np.zeros(isl.size, dtype=np.int64), np.full(isl.size, np.inf)
    log_isl, log_osl = np.log(isl), np.log(osl)
    for number, (own, x, y) in enumerate(zip(buckets[0], *map(np.log, buckets[1:]), strict=True)):
        distance = np.where(classes == own, (log_isl - x) ** 2 + (log_osl - y) ** 2, np.inf)
        best[distance < least] = number
        least = np.minimum(least, distance)
    return best


def _demand(
    instance: Instance,
    fleet: Fleet,
    requests: tuple[FloatArray, IntArray, IntArray],
    flow: IntArray,
    *,
    seed: int,
    volume: float = 1.0,
) -> Demand:
    """Requests (arrival, ISL, OSL) with the pools that serve them."""
    arrival, isl, osl = requests
    draw = np.random.default_rng([seed, 3]).random((2, flow.size))
    first = _routed(fleet, flow, draw[0], decode=False)
    later = _decode_pools(instance, fleet, first, flow, draw[1])
    is_colocated = np.array([pool.role is Role.COLOCATED for pool in fleet.pools])[first]
    is_read = np.zeros(flow.size, dtype=np.bool_)
    found_tokens = isl * instance.problem.workload.prefix_hit_share
    if instance.flows.reuse is not None:
        luck, (hit, read) = np.random.default_rng([seed, 6]).random(flow.size), _hit_chances(instance, fleet, volume)
        found_tokens = found_tokens * (luck < hit[first, flow])
        is_read = luck < read[first, flow]
    cached_tokens = np.minimum(np.floor(found_tokens).astype(np.int64), isl - 1)
    trace = workload.make_trace(
        arrival,
        isl,
        osl,
        cached=cached_tokens,
        tier=cached_tokens * is_read,
        pool=first,
        decode_pool=np.where(is_colocated, -1, later),
    )
    limits = [slo.limits[Metric.ITL_P99] for slo in instance.problem.slos if Metric.ITL_P99 in slo.limits]
    return Demand(trace, flow[np.argsort(arrival, kind="stable")], gap_edges(limits))


def _hit_chances(instance: Instance, fleet: Fleet, volume: float) -> tuple[FloatArray, FloatArray]:
    """Chances that a pool has the history of a prompt, and that it is only below GPU memory, (pools, flows) [1]."""
    balancing = instance.problem.constraints.balancing_of([pool.role for pool in fleet.pools])
    spread = replace(instance, problem=instance.problem.behind(balancing))
    states = [pool_state(spread, pool, volume) for pool in fleet.pools]
    size = instance.flows.isl.size
    hits = np.array([np.ones(size) if state.hit_chance is None else state.hit_chance for state in states])
    return hits, np.array([np.zeros(size) if state.reads is None else state.reads.chance for state in states])


def _decode_pools(instance: Instance, fleet: Fleet, first: IntArray, flow: IntArray, draw: FloatArray) -> IntArray:
    """Pool that decodes each request whose prompt `first` computed, by the plan's shares among possible partners."""
    later = _routed(fleet, flow, draw, decode=True)
    mixes = hand_over_mix(instance, fleet)
    if (mixes == 1.0).all():
        return later
    prefills, decodes = (
        [index for index, pool in enumerate(fleet.pools) if pool.role is role] for role in (Role.PREFILL, Role.DECODE)
    )
    for index, mix in zip(prefills, mixes, strict=True):
        requests = np.flatnonzero(first == index)
        pools = list(fleet.pools)
        for at, share in zip(decodes, mix, strict=True):
            pools[at] = replace(pools[at], route=pools[at].route * share)
        later[requests] = _routed(Fleet(tuple(pools)), flow[requests], draw[requests], decode=True)
    return later


def _routed(fleet: Fleet, flow: IntArray, draw: FloatArray, *, decode: bool) -> IntArray:
    """Pool of each request, by the plan's shares: the one that computes its prompt, or the one that decodes."""
    share = np.array([pool.route * ((pool.role is Role.DECODE) == decode) for pool in fleet.pools], dtype=np.float64)
    upto = np.cumsum(share, axis=0)
    total = np.maximum(upto[-1], 1e-300)
    pool_index = (draw * total[flow] >= upto[:, flow]).sum(axis=0)
    return np.asarray(np.minimum(pool_index, len(fleet.pools) - 1), dtype=np.int64)


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
    rates, demands = load.request_rate * volume * profile, []
    for run_seed in range(seed, seed + SEEDS * replications, SEEDS):
        drawn = simulated_trace(instance, fleet, requests, run_seed)
        arrival = workload.diurnal_arrivals(requests, rates, load.burstiness, run_seed)
        demands.append(replace(drawn, trace=replace(drawn.trace, arrival=arrival)))
    return demands


def closed_demand(demand: Demand, concurrency: int) -> Demand:
    """The same requests in the same order, `concurrency` of them at once: each one that ends lets the next one come."""
    arrival = np.zeros(demand.trace.size)
    return replace(demand, trace=replace(demand.trace, arrival=arrival, after=None, concurrency=concurrency))
