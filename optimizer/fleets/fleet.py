"""A fleet: pools of equal engines, and the share of each flow that they serve; what it buys, and its limits.

Its engine configs, its GPUs and their price, the limits on the whole fleet, and whether its pools can hand over to one
another. Also where an answer changes between two loads or numbers of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.engine import EngineConfig, Role
from optimizer.loads.instance import ROLES, Instance
from optimizer.plans.records import ALIKE, MOST_ROUNDS, NOTABLE, ROUNDING, TOLERANCE
from search_spaces.enumeration import engine_config
from search_spaces.problem import Billing, Pools, Problem, Routing, any_target

MOST_MIX = 1e12
"""Factor beyond which shares of hand-overs cannot be reached [1]."""

UNMATCHED = TOLERANCE / 2.0
"""A routing is impossible if a larger share of what a pool sends or takes in finds no partner [1]."""


SHORT_PROMPTS = 2.0 * NOTABLE
"""Share of the prompts that may be so short that a prefill step runs out of seats before its budget is full [1]."""

INVENTORY = "inventory "
"""Prefix of the name of an inventory limit; the GPU type follows."""


@dataclass(frozen=True, slots=True)
class FleetPool:
    """Equal engines in one role.

    shape, seqs, chunk: indices into the tables; replicas: engines that the demand needs; spares: idle ones;
    route (flows,): share of each flow served here.
    """

    name: str
    role: Role
    shape: int
    seqs: int
    chunk: int
    replicas: int
    spares: int
    route: FloatArray


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pools in the order prefill, decode, colocated; larger shares first."""

    pools: tuple[FleetPool, ...] = ()

    def of(self, role: Role) -> tuple[FleetPool, ...]:
        """The pools in one role."""
        return tuple(pool for pool in self.pools if pool.role is role)

    def resized(self, replicas: Sequence[int] | IntArray) -> Fleet:
        """The same pools with other numbers of replicas."""
        sizes = zip(self.pools, replicas, strict=True)
        return Fleet(tuple(replace(pool, replicas=int(count)) for pool, count in sizes))


Named = tuple[str, Fleet]


def even_mix(talks: BoolArray, sent: FloatArray, intake: FloatArray) -> FloatArray:
    """How much more of a flow goes from one pool to another than sent x intake / all intake, (P, D, F).

    1 everywhere where all can talk; else 0 where two cannot, and the rest as even as the pools' shares allow (iterative
    proportional fitting, Deming and Stephan 1940). talks (P, D); sent (P, F) by prefill pools, intake (D, F) by decode
    pools, of each flow as much as is sent.
    """
    factor = np.broadcast_to(talks[:, :, None], (*talks.shape, sent.shape[1])).astype(np.float64)
    if talks.all():
        return factor
    all_sent, all_intake = (np.maximum(share.sum(axis=0), 1e-300) for share in (sent, intake))
    for _ in range(MOST_ROUNDS):
        came = np.einsum("pdf,pf->df", factor, sent) / all_sent
        factor = np.minimum(factor / np.where(intake > 0.0, np.maximum(came, 1.0 / MOST_MIX), 1.0), MOST_MIX)
        went = np.einsum("pdf,df->pf", factor, intake) / all_intake
        factor = np.minimum(factor / np.where(sent > 0.0, np.maximum(went, 1.0 / MOST_MIX), 1.0)[:, None], MOST_MIX)
        if np.abs(np.where(sent > 0.0, went - 1.0, 0.0)).max(initial=0.0) <= 1e-12:
            break
    return factor


def gets_whole(fleet: Fleet) -> bool:
    """Whether no flow is split between pools of one stage."""
    return all(np.all(np.minimum(pool.route, np.abs(1.0 - pool.route)) < ROUNDING) for pool in fleet.pools)


def with_pools(fleet: Fleet, changed: Mapping[int, FleetPool]) -> Fleet:
    """The fleet with other pools at some places."""
    return Fleet(tuple(changed.get(index, pool) for index, pool in enumerate(fleet.pools)))


def with_replicas(fleet: Fleet, index: int, replicas: int) -> Fleet:
    """The fleet with another number of engines in one pool; its routing is unchanged."""
    return with_pools(fleet, {index: replace(fleet.pools[index], replicas=replicas)})


def shared_out(pools: Sequence[FleetPool], weights: Sequence[FloatArray]) -> Fleet:
    """Pools that serve every flow in proportion to their weights (flows,), with hand-overs balanced."""
    pairs = list(zip(pools, weights, strict=True))
    nothing = np.zeros_like(weights[0])
    first = sum((weight for pool, weight in pairs if pool.role is not Role.DECODE), nothing)
    transfer_share = sum((weight / first for pool, weight in pairs if pool.role is Role.PREFILL), nothing)
    later = np.maximum(sum((weight for pool, weight in pairs if pool.role is Role.DECODE), nothing), 1e-300)

    def share(pool: FleetPool, weight: FloatArray) -> FloatArray:
        return weight / later * transfer_share if pool.role is Role.DECODE else weight / first

    return Fleet(tuple(replace(pool, route=share(pool, weight)) for pool, weight in pairs))


def first_fit(engines: Iterable[tuple[int, int, int]]) -> list[tuple[range, int]]:
    """The nodes of each engine, by their numbers among those of its GPU type, and its first GPU there.

    It stands on the first node with enough free GPUs; one larger than a node on new ones, with as many GPUs on each.
    engines: GPU type, GPUs of the engine, GPUs of a node.

    >>> first_fit([(0, 4, 8), (0, 4, 8), (1, 8, 8), (0, 16, 8)])
    [(range(0, 1), 0), (range(0, 1), 4), (range(0, 1), 0), (range(1, 3), 0)]
    """
    used_gpus: dict[int, list[int]] = {}
    places = []
    for offer, gpus, size in engines:
        used, nodes = used_gpus.setdefault(offer, []), -(-gpus // size)
        roomy = (number for number, taken in enumerate(used) if nodes == 1 and taken + gpus <= size)
        first = next(roomy, len(used))
        used += [0] * (first + nodes - len(used))
        places.append((range(first, first + nodes), used[first]))
        for number in places[-1][0]:
            used[number] += -(-gpus // nodes)
    return places


# --- what a fleet buys --------------------------------------------------------------------------------------------


def pool_config(instance: Instance, pool: FleetPool) -> EngineConfig:
    """The engine config of a pool with its scheduler limits; a decode step has room for the tokens of every request."""
    tables = instance.tables
    seqs, budget = int(tables.seqs[pool.seqs]), int(tables.chunks[pool.chunk])
    budget = max(budget, int(tables.verified[pool.shape]) * seqs) if pool.role is Role.DECODE else budget
    return engine_config(instance.problem, tables.shapes[pool.shape], pool.role, seqs, budget)


def prefill_seqs(instance: Instance, shape: int, chunk: int) -> int:
    """Index of the batch limit of a prefill engine: seats for the prompts that fill a step in every stage and rank.

    The formulas assume that the token budget alone limits a step. An unused seat costs only the memory that engines
    reserve for it; enough must be left for the longest request.
    """
    flows, tables = instance.flows, instance.tables
    order = np.argsort(flows.new_tokens)
    below = np.cumsum(flows.share[order]) / flows.share.sum()
    short = flows.new_tokens[order][min(int(np.searchsorted(below, SHORT_PROMPTS)), order.size - 1)]
    steps = float(tables.pipeline[shape] * tables.ranks[shape])
    limits = tables.limits_of(shape)
    place = int(np.searchsorted(tables.seqs[limits], steps * np.ceil(tables.rank_chunks[shape, -1] / short)))
    fitting = np.flatnonzero(tables.roomy[shape, limits, chunk])
    return int(limits[min(place, fitting.max(initial=0))])


def hand_over_mix(instance: Instance, fleet: Fleet) -> FloatArray:
    """See `even_mix`: for each prefill, decode pool and flow, as the routing has it."""
    shapes = ([pool.shape for pool in fleet.of(role)] for role in (Role.PREFILL, Role.DECODE))
    return even_mix(instance.tables.talks[np.ix_(*shapes)], *_handed_over(instance, fleet))


def can_hand_over(instance: Instance, fleet: Fleet) -> bool:
    """Whether the pools can hand over all that the routing makes them send and take in."""
    mix = hand_over_mix(instance, fleet)
    if (mix == 1.0).all():
        return True
    sent, intake = _handed_over(instance, fleet)
    pairs = mix * intake / np.maximum(intake.sum(axis=0), 1e-300)
    out = np.where(sent > 0.0, pairs.sum(axis=1), 1.0)
    into = np.where(intake > 0.0, (mix * sent[:, None] / np.maximum(sent.sum(axis=0), 1e-300)).sum(axis=0), 1.0)
    return bool(max(np.abs(out - 1.0).max(), np.abs(into - 1.0).max()) <= UNMATCHED)


def _handed_over(instance: Instance, fleet: Fleet) -> list[FloatArray]:
    """Share of each flow that each prefill pool sends and each decode pool takes in, each (pools, flows)."""
    flows = instance.flows.isl.size
    ends = (fleet.of(role) for role in (Role.PREFILL, Role.DECODE))
    return [np.array([pool.route for pool in pools]).reshape(len(pools), flows) for pools in ends]


def with_names(instance: Instance, pools: list[FleetPool]) -> tuple[FleetPool, ...]:
    """Sort the pools and give each a stable name such as decode-1."""
    share = instance.flows.share
    sorted_pools = sorted(pools, key=lambda pool: (ROLES.index(pool.role), -float(pool.route @ share), pool.shape))
    numbers = {role: count(1) for role in ROLES}
    return tuple(replace(pool, name=f"{pool.role.value}-{next(numbers[pool.role])}") for pool in sorted_pools)


def owned_and_rented(problem: Problem, gpus: FloatArray | IntArray) -> tuple[FloatArray, FloatArray]:
    """How many of the GPUs in use are owned and how many are rented beyond these, each (..., offers).

    Where whole nodes are rented, their GPUs are used before the owned ones.
    """
    rented_gpus = np.maximum(gpus - np.array([float(offer.owned) for offer in problem.offers]), 0.0)
    for index, offer in enumerate(problem.offers):
        if offer.billing is Billing.NODE:
            size = offer.accelerator.node_size
            rented_gpus[..., index] = np.ceil(rented_gpus[..., index] / size) * size
    return np.maximum(gpus - rented_gpus, 0.0), rented_gpus


def paid_gpus(problem: Problem, gpus: FloatArray | IntArray) -> FloatArray:
    """GPUs of each offer that are paid for when so many are in use (whole nodes where billed), (..., offers)."""
    return np.asarray(sum(owned_and_rented(problem, gpus)))


def offer_prices(problem: Problem, gpus: FloatArray | IntArray) -> FloatArray:
    """Price of so many GPUs of each offer in use [$/h], (..., offers)."""
    owned_gpus, rented_gpus = owned_and_rented(problem, gpus)
    owned, rented = (np.array(prices) for prices in zip(*(offer.in_use for offer in problem.offers), strict=True))
    return np.asarray(owned_gpus * owned + rented_gpus * rented)


def gpu_cost(problem: Problem, gpus: FloatArray | IntArray) -> FloatArray:
    """Price of all GPUs together [$/h]; gpus (..., offers)."""
    return np.asarray(offer_prices(problem, gpus).sum(axis=-1))


def gpu_limits(problem: Problem) -> list[tuple[str, float, FloatArray]]:
    """Limits on the GPUs of a fleet: name, the limit, and what one GPU of each offer uses of it, (offers,).

    Inventory [GPU], power [W] and max_gpus [GPU]. The budget is not among them, as whole nodes may be billed.
    """
    offers, limits, one_each = problem.offers, problem.constraints, np.eye(len(problem.offers))
    rows = [
        (f"{INVENTORY}{offer.accelerator.name}", offer.stock, row)
        for offer, row in zip(offers, one_each, strict=True)
        if offer.inventory is not None
    ]
    if limits.power is not None:
        rows.append(("power", limits.power, np.array([offer.accelerator.tdp for offer in offers])))
    if limits.max_gpus is not None:
        rows.append(("max_gpus", float(limits.max_gpus), np.ones(len(offers))))
    return rows


def within_limits(problem: Problem, gpus: FloatArray | IntArray) -> BoolArray:
    """Whether so many GPUs of each offer, (..., offers), are within the inventory, budget, power and max_gpus."""
    good, budget = np.ones(gpus.shape[:-1], dtype=np.bool_), problem.constraints.budget
    for _, most, weight in gpu_limits(problem):
        good &= gpus @ weight <= most * (1.0 + 1e-9)
    return good if budget is None else good & (gpu_cost(problem, gpus) <= budget * (1.0 + 1e-9))


def pool_gpus(instance: Instance, pool: FleetPool) -> int:
    """GPUs of one pool, spares included."""
    return (pool.replicas + pool.spares) * int(instance.tables.gpus[pool.shape])


def fleet_gpus(instance: Instance, fleet: Fleet) -> IntArray:
    """GPUs of each offer, spares included, shape (offers,)."""
    gpus = np.zeros(len(instance.problem.offers), dtype=np.int64)
    for pool in fleet.pools:
        gpus[instance.tables.offer[pool.shape]] += pool_gpus(instance, pool)
    return gpus


def offer_costs(instance: Instance, fleet: Fleet) -> FloatArray:
    """Price of the GPUs of each offer, spares and whole nodes included [$/h], shape (offers,)."""
    return offer_prices(instance.problem, fleet_gpus(instance, fleet))


def fleet_cost(instance: Instance, fleet: Fleet) -> float:
    """Price of a fleet, spares and whole nodes included [$/h]."""
    return float(offer_costs(instance, fleet).sum())


def keeps_limits(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet is within every limit on its GPUs and on the number of its pools."""
    fits = instance.problem.constraints.fits(pool.role for pool in fleet.pools)
    return fits and bool(within_limits(instance.problem, fleet_gpus(instance, fleet)))


def classes_apart(problem: Problem) -> bool:
    """Whether there are several SLO classes, and each must have pools of its own."""
    return problem.constraints.pools is Pools.PER_CLASS and len(problem.slos) > 1


def no_staged_prefill(problem: Problem) -> bool:
    """Whether no target supports hand-overs from pipelines behind a router that knows several pools of a role.

    For a stated target, the rules on pairs (`hand_over`) cover this.
    """
    is_free = problem.constraints.gateway is None
    return not is_free and problem.target is None and problem.engine not in any_target(problem.engine).stage_by_stage


def takes_whole_lengths(problem: Problem, role: Role) -> bool:
    """Whether each length goes to one pool of a role: no target's router splits it between prefill or decode pools."""
    limits = problem.constraints
    return limits.routing is Routing.THRESHOLD or (limits.gateway is not None and role is not Role.COLOCATED)


def allowed(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet is within every limit on the whole fleet, and its gateway can route as it does.

    SLO classes stay apart where they must; a router must be able to share a length among pools, and to hand over from
    pipelines.
    """
    problem, slo = instance.problem, instance.flows.slo
    apart = not classes_apart(problem) or all(np.unique(slo[pool.route > ROUNDING]).size <= 1 for pool in fleet.pools)
    whole = gets_whole(Fleet(tuple(pool for pool in fleet.pools if takes_whole_lengths(problem, pool.role))))
    prefill = [pool for pool in fleet.pools if pool.role is Role.PREFILL]
    has_pipelines = len(prefill) > 1 and any(instance.tables.pipeline[pool.shape] > 1 for pool in prefill)
    hands_over = not has_pipelines or not no_staged_prefill(problem)
    return whole and apart and hands_over and keeps_limits(instance, fleet)


def fewer_replicas(instance: Instance, fleet: Fleet, step: int) -> list[Named]:
    """Fleets with `step` replicas fewer in one pool, which keeps one at least, cheapest first."""
    label = "one replica fewer" if step == 1 else f"{step} replicas fewer"
    fleets = [
        (f"{pool.name}: {label}", with_replicas(fleet, index, pool.replicas - step))
        for index, pool in enumerate(fleet.pools)
        if pool.replicas > step
    ]
    return sorted(fleets, key=lambda row: fleet_cost(instance, row[1]))


# --- where an answer changes between two loads or numbers of replicas -----------------------------------------------


def fewest_replicas(
    replicas: Sequence[int], prices: Sequence[float], holds: Callable[[tuple[int, ...]], bool], least: int = 1
) -> tuple[int, ...]:
    """Fewest replicas of each pool, at least `least`, with which a fleet holds; it must hold as it is.

    The pools give up replicas one after the other, the dearest by `prices` first.
    """
    counts = tuple(replicas)

    def resized(index: int, count: int) -> tuple[int, ...]:
        return (*counts[:index], count, *counts[index + 1 :])

    def too_few(index: int, count: int) -> bool:
        return not holds(resized(index, count))

    for index in sorted(range(len(counts)), key=lambda number: -prices[number]):
        fewest = bisection(min(least, counts[index]) - 1, counts[index], partial(too_few, index))[1]
        counts = resized(index, fewest)
    return counts


def bisection(low: int, high: int, good: Callable[[int], bool]) -> tuple[int, int]:
    """The last good and the first bad whole number between `low`, which is good, and `high`, which is bad."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, high


def boundary(
    good: Callable[[float], bool],
    tolerance: float,
    start: float = 1.0,
    step: float = 2.0,
    *,
    ends: tuple[float, float] = (ROUNDING, 1e9),
) -> tuple[float, float]:
    """A good multiple of a load (0: none is good) and a bad one above it, at most `tolerance` apart (relative).

    start: the multiple tried first; step: factor to the second one, squared from step to step, up to 2; ends: the least
    and the largest multiple that are tried.
    """
    low, high = start, start * step
    if good(start):
        while low < ends[1] and good(high):
            low, step = high, min(step**2, 2.0)
            high = low * step
    else:
        low, high, step = start / step, start, min(step**2, 2.0)
        while not good(low):
            if low <= ends[0]:
                return 0.0, low
            low, high, step = low / step, low, min(step**2, 2.0)
    while high - low > tolerance * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, high


def largest_load(good: Callable[[float], bool], most: float = 1e9) -> float:
    """Largest good multiple of a load, up to `most`; 0 if none is good."""
    return min(boundary(good, ALIKE / 2.0, ends=(ROUNDING, most))[0], most)
