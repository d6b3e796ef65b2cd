"""What the loss of engines does to a fleet: its requests go to what is left, and are simulated there.

Engines stand on nodes as the deployment files place them: in the plan's order, each on the first node of its type that
has room. Each pool of the same stage gets a share of its flows in proportion to the engines that it has left; an engine
hands its KV on within its own domain only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet, fleet_cost, offer_costs
from optimizer.loads.instance import Instance
from optimizer.verification.judge import Judgement, Outcome
from search_spaces.problem import Billing

from .long_runs import judge_long

FloatArray = NDArray[np.float64]
Progress = Callable[[str, float], None]
Engines = tuple[int, ...]
"""Engines of every pool of a fleet."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost at once; what: "replica" or "node"; number: of them; of: the pool or the accelerator.

    lost, left: engines of every pool; everything: whether no other replica, or node of that type, is there.
    price: of what is left [$/h]; judgement: of it; None where some requests have no engine any more.
    spare: price of what has to be added so that any such loss of the same pool or type leaves what is needed [$/h].
    """

    what: str
    number: int
    of: str
    lost: Engines
    left: Engines
    everything: bool
    price: float
    judgement: Judgement | None
    spare: float

    @property
    def outcome(self) -> Outcome:
        """Whether what is left meets every goal; it misses one where some requests have no engine any more."""
        return Outcome.MISSES if self.judgement is None else self.judgement.outcome

    @property
    def held(self) -> bool:
        """Whether every goal is shown to be met."""
        return self.outcome is Outcome.MEETS


@dataclass(frozen=True, slots=True)
class Resilience:
    """Every loss of k replicas of a pool, and of k nodes; pools: their names; cost: of the fleet [$/h]."""

    pools: tuple[str, ...]
    whole: Judgement
    cost: float
    losses: tuple[Loss, ...]

    @property
    def held(self) -> bool:
        """Whether every goal is shown to be met, without a loss and after each."""
        return self.whole.proven and all(one.held for one in self.losses)

    def spare_cost(self, what: str, *, only_where_needed: bool) -> float:
        """What N+k costs more [$/h]: for every pool or type, or for those of which a loss is not shown to be borne."""
        mine = [one for one in self.losses if one.what == what and not (only_where_needed and one.held)]
        return sum({one.of: one.spare for one in mine}.values())


def resilience(
    instance: Instance,
    fleet: Fleet,
    *,
    count: int = 1,
    needed: Sequence[int] | None = None,
    requests: int = 5_000,
    seed: int = 0,
    volume: float = 1.0,
    progress: Progress | None = None,
) -> Resilience:
    """Take `count` replicas from each pool in turn, then `count` nodes, and simulate what is left.

    needed: engines of every pool without its spares; default: all of them. requests: of each run, more where these are
    too few to tell (`judge_long`).
    """

    def judged(left: Engines) -> Judgement | None:
        fewer = without(instance, fleet, left)
        return None if fewer is None else judge_long(instance, fewer, requests=requests, seed=seed, volume=volume)

    engines = tuple(pool.replicas for pool in fleet.pools)
    least = engines if needed is None else tuple(needed)
    known = {engines: judged(engines)}
    cases = [*_replica_losses(instance, fleet, count, least), *_node_losses(instance, fleet, count, least)]
    losses = []
    for number, case in enumerate(cases):
        if progress is not None:
            progress(f"{case.of} less {case.number} {case.what}", number / len(cases))
        if case.left not in known:
            known[case.left] = judged(case.left)
        losses.append(replace(case, judgement=known[case.left]))
    whole = known[engines]
    if whole is None:
        raise ValueError("the fleet does not serve all of its requests")
    return Resilience(tuple(pool.name for pool in fleet.pools), whole, fleet_cost(instance, fleet), tuple(losses))


def with_spares(fleet: Fleet, spares: Sequence[int]) -> Fleet:
    """The fleet with its spare replicas at work like the others."""
    return with_engines(fleet, [pool.replicas + more for pool, more in zip(fleet.pools, spares, strict=True)])


def with_engines(fleet: Fleet, engines: Sequence[int]) -> Fleet:
    """The same pools with other numbers of replicas."""
    return Fleet(tuple(replace(pool, replicas=n) for pool, n in zip(fleet.pools, engines, strict=True)))


def _replica_losses(instance: Instance, fleet: Fleet, count: int, needed: Engines) -> Iterator[Loss]:
    """`count` replicas of each pool, or all that it has."""
    engines = [pool.replicas for pool in fleet.pools]
    for index, pool in enumerate(fleet.pools):
        lost = [0] * len(engines)
        lost[index] = min(count, pool.replicas)
        more = [*engines]
        more[index] = max(needed[index] + count, pool.replicas)
        price = fleet_cost(instance, with_engines(fleet, more)) - fleet_cost(instance, fleet)
        yield Loss(
            what="replica",
            number=lost[index],
            of=pool.name,
            lost=tuple(lost),
            left=_left(engines, lost),
            everything=pool.replicas <= count,
            price=fleet_cost(instance, with_engines(fleet, _left(engines, lost))),
            judgement=None,
            spare=price,
        )


def _node_losses(instance: Instance, fleet: Fleet, count: int, needed: Engines) -> Iterator[Loss]:
    """`count` nodes that stand side by side, of each type; those with the same engines once."""
    engines = [pool.replicas for pool in fleet.pools]
    for offer, nodes in nodes_of(instance, fleet).items():
        name = instance.problem.offers[offer].accelerator.name
        number, price = min(count, len(nodes)), _node_spare_cost(instance, fleet, offer, count, needed)
        windows = [nodes[start : start + number] for start in range(len(nodes) - number + 1)]
        for lost in dict.fromkeys(_engines_on(window, len(engines)) for window in windows):
            yield Loss(
                what="node",
                number=number,
                of=name,
                lost=lost,
                left=_left(engines, lost),
                everything=len(nodes) <= count,
                price=fleet_cost(instance, with_engines(fleet, _left(engines, lost))),
                judgement=None,
                spare=price,
            )


def _engines_on(nodes: Sequence[frozenset[tuple[int, int]]], pools: int) -> Engines:
    """Engines of every pool that stand on some of the nodes, wholly or in part."""
    there = frozenset[tuple[int, int]]().union(*nodes)
    return tuple(sum(pool == index for pool, _ in there) for index in range(pools))


def _left(engines: Sequence[int], lost: Sequence[int]) -> Engines:
    return tuple(n - gone for n, gone in zip(engines, lost, strict=True))


Node = tuple[frozenset[tuple[int, int]], int]
"""Engines that stand on a node, as (pool, number), and GPUs of it that are free."""


def nodes_of(instance: Instance, fleet: Fleet) -> dict[int, list[frozenset[tuple[int, int]]]]:
    """Nodes of each offer and the engines on them, as (pool, number): each on the first node that has room.

    An engine that is larger than a node takes whole nodes.
    """
    nodes: dict[int, list[Node]] = {}
    for index, pool in enumerate(fleet.pools):
        offer = int(instance.tables.offer[pool.shape])
        size, gpus = instance.problem.offers[offer].accelerator.node_size, int(instance.tables.gpus[pool.shape])
        here = nodes.setdefault(offer, [])
        for number in range(pool.replicas):
            engine = frozenset({(index, number)})
            if gpus >= size:
                here += [(engine, 0)] * -(-gpus // size)
                continue
            room = next((at for at, (_, free) in enumerate(here) if free >= gpus), len(here))
            here[room : room + 1] = [
                (here[room][0] | engine, here[room][1] - gpus) if room < len(here) else (engine, size - gpus)
            ]
    return {offer: [engines for engines, _ in here] for offer, here in nodes.items()}


def engines_of_node(instance: Instance, fleet: Fleet, index: int) -> int:
    """Most engines of a pool on one node."""
    shape = fleet.pools[index].shape
    accelerator = instance.problem.offers[int(instance.tables.offer[shape])].accelerator
    return max(accelerator.node_size // int(instance.tables.gpus[shape]), 1)


def engines_against_nodes(needed: int, each: int, count: int) -> tuple[int, int]:
    """Engines of a pool and nodes for it so that any `count` nodes less leave `needed` engines: (engines, nodes).

    each: engines that fit on a node. They are spread evenly over `count` more nodes than needed ones fill:
    least N with N - k ceil(N / M) >= n, M = ceil(n / e) + k.

    Nine engines, eight to a node, take three nodes of five, five and four:

    >>> engines_against_nodes(9, 8, 1), engines_against_nodes(2, 8, 1), engines_against_nodes(3, 1, 2)
    ((14, 3), (4, 2), (5, 5))
    """
    nodes = -(-needed // each) + count
    engines = needed + count
    while engines - count * -(-engines // nodes) < needed:
        engines += 1
    return engines, nodes


def _node_spare_cost(instance: Instance, fleet: Fleet, offer: int, count: int, needed: Engines) -> float:
    """Price of the engines more, each pool on nodes of its own, that make up for any `count` nodes of a type [$/h]."""
    stated = instance.problem.offers[offer]
    more, nodes = [pool.replicas for pool in fleet.pools], 0
    for index, pool in enumerate(fleet.pools):
        if int(instance.tables.offer[pool.shape]) == offer:
            engines, filled = engines_against_nodes(needed[index], engines_of_node(instance, fleet, index), count)
            more[index] = max(engines, pool.replicas)
            nodes += filled * -(-int(instance.tables.gpus[pool.shape]) // stated.accelerator.node_size)
    if stated.billing is Billing.NODE:
        paid = nodes * stated.accelerator.node_size * stated.usd_per_hour
        return max(paid - float(offer_costs(instance, fleet)[offer]), 0.0)
    return fleet_cost(instance, with_engines(fleet, more)) - fleet_cost(instance, fleet)


def without(instance: Instance, fleet: Fleet, left: Sequence[int]) -> Fleet | None:
    """The fleet with what is left of its engines, requests routed to them; None where some have no engine.

    route'_p = w_p route_p / sum w route over the pools of the stage, w_p: share of its engines that a pool has left.
    """
    kept = np.array([n / pool.replicas for n, pool in zip(left, fleet.pools, strict=True)])
    routes = rerouted(
        np.array([pool.route for pool in fleet.pools]),
        [pool.role for pool in fleet.pools],
        [int(instance.tables.domain[pool.shape]) for pool in fleet.pools],
        kept,
    )
    if routes is None:
        return None
    pools = [
        replace(pool, route=route, replicas=n)
        for pool, route, n in zip(fleet.pools, routes, left, strict=True)
        if n > 0
    ]
    return Fleet(tuple(pools))


def rerouted(route: FloatArray, roles: list[Role], domains: list[int], left: FloatArray) -> FloatArray | None:
    """Shares of every flow for each pool, (pools, flows), when pools keep `left` of their engines [1]; None: no way."""
    decode = np.array([role is Role.DECODE for role in roles])
    prefill = np.array([role is Role.PREFILL for role in roles])
    domain = np.array(domains)
    weight = route * left[:, None]
    for one in np.unique(domain[decode]):
        here = domain == one
        gone = (weight[decode & here].sum(axis=0) <= 0.0) & (route[decode & here].sum(axis=0) > 0.0)
        weight[np.ix_(prefill & here, gone)] = 0.0
    first = weight[~decode].sum(axis=0)
    if (first <= 0.0).any():
        return None
    shares = np.where(decode[:, None], 0.0, weight / first)
    for one in np.unique(domain[decode]):
        here = domain == one
        handed = shares[prefill & here].sum(axis=0)
        total = weight[decode & here].sum(axis=0)
        shares[decode & here] = weight[decode & here] / np.maximum(total, 1e-300) * handed
    return shares
