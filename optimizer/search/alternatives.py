"""The best fleets of the same search under each restriction: what a plan is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost
from optimizer.loads.instance import COLOCATED, ROLES, Instance, Settings

from .mixtures import or_mixed
from .search import SAME_COST, FleetSearch, at_best_split, near_fleets, unmixed

BoolArray = NDArray[np.bool_]

OTHERS = 2
"""Fleets of other engines that a plan shows."""

OTHER_ENGINES = "other_engines"
"""Kind of a row without some engine of the best fleet."""
MOST_NEAR = 24
"""Cheaper fleets that miss narrowly by formula which a plan simulates all the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Restriction:
    """Fleets of some engines only; kind, label: of its row; usable: engines allowed in each role, (roles, shapes)."""

    kind: str
    label: str
    usable: BoolArray

    def allows(self, fleet: Fleet) -> bool:
        """Whether all pools of a fleet are of these engines."""
        return all(bool(self.usable[ROLES.index(pool.role), pool.shape]) for pool in fleet.pools)


@dataclass(frozen=True, slots=True, eq=False)
class Rival:
    """The best fleet under a restriction, None for the best of all; no fleets where none is found.

    fleets: the best first, then that which mixes no engines within a stage; near: cheaper ones that miss by formula,
    the nearest first; why_none: why there is none; impossible: whether no engine is allowed or fits.
    """

    fleets: tuple[Fleet, ...] = ()
    near: tuple[Fleet, ...] = ()
    restriction: Restriction | None = None
    why_none: str = ""
    impossible: bool = False

    def cost(self, instance: Instance) -> float:
        """Price of the best fleet, infinite where there is none [$/h]."""
        return fleet_cost(instance, self.fleets[0]) if self.fleets else math.inf


def restrictions(instance: Instance, settings: Settings) -> Iterator[Restriction]:
    """One accelerator type, one kind of role, one precision, no speculation: where the whole space has more."""
    offers, tables, problem = instance.problem.offers, instance.tables, instance.problem
    roles, shapes = np.arange(len(ROLES))[:, None], tables.offer[None, :]
    if len(offers) > 1:
        for index, bought in enumerate(offers):
            yield Restriction("single_type", f"{bought.accelerator.name} only", (roles >= 0) & (shapes == index))
    together = settings.role == COLOCATED
    if together.any() and not together.all():
        yield Restriction("colocated_only", "colocated only", (roles == COLOCATED) & (shapes >= 0))
        yield Restriction("disaggregated_only", "disaggregated only", (roles != COLOCATED) & (shapes >= 0))
    precision = problem.weight_dtype, problem.kv_dtype
    own = np.array([(shape.weight_dtype, shape.kv_dtype) == precision for shape in tables.shapes], dtype=np.bool_)
    if own.any() and not own.all():
        label = f"{problem.weight_dtype} weights and {problem.kv_dtype} KV cache only"
        yield Restriction("own_precision", label, (roles >= 0) & own)
    plain = tables.verified == 1
    if plain.any() and not plain.all():
        yield Restriction("no_speculation", "no speculative decoding", (roles >= 0) & plain)


def compare(search: FleetSearch, best: Rival) -> list[Rival]:
    """The best fleet first, then the best of the same search under every restriction.

    Where a restriction allows the best fleet, it is the best there too.
    """
    return [
        best,
        *(
            replace(best, restriction=restriction)
            if restriction.allows(best.fleets[0])
            else _best_rival(search, restriction)
            for restriction in restrictions(search.instance, search.settings)
        ),
    ]


def _best_rival(search: FleetSearch, restriction: Restriction) -> Rival:
    """The best fleet under a restriction."""
    late = "the time was up before it was looked for"
    if search.late():
        return Rival(restriction=restriction, why_none=late)
    space = at_best_split(search.instance, search.late, restriction.usable)
    simple = unmixed(space)
    fleet = or_mixed(space, simple)
    if fleet.pools:
        return Rival(*candidates(space, fleet, simple), restriction)
    if not space.settings.size:
        return Rival((), (), restriction, _why_none(search.instance, restriction.label), impossible=True)
    none = "no fleet of this kind was found that meets the SLOs within the limits; none is ruled out"
    return Rival((), (), restriction, late if search.late() else none)


def candidates(space: FleetSearch, fleet: Fleet, simple: Fleet) -> tuple[tuple[Fleet, ...], tuple[Fleet, ...]]:
    """The fleets of a search to simulate: its best, the best that is not mixed, and cheaper ones that narrowly miss."""
    fleets = (fleet,) if fleet is simple or not simple.pools else (fleet, simple)
    return fleets, tuple(near_fleets(space, fleet_cost(space.instance, fleet))[:MOST_NEAR])


def other_fleets(search: FleetSearch, comparison: Sequence[Rival]) -> list[Rival]:
    """The cheapest fleets that lack an engine of the best one, and are not shown already.

    For buyers who cannot get what is recommended. comparison: the best fleet first, as in the comparison.
    """
    instance, best = search.instance, comparison[0]
    purchases = {_bought(instance, fleet) for rival in comparison for fleet in rival.fleets[:1]}
    alternatives: list[Rival] = []
    for pool in best.fleets[0].pools:
        rival = _best_rival(search, _without_engines(instance, pool))
        bought = [_bought(instance, fleet) for fleet in rival.fleets[:1]]
        if not bought or bought[0] in purchases:
            continue
        purchases.update(bought)
        if rival.cost(instance) >= best.cost(instance) * (1.0 - SAME_COST):
            alternatives.append(rival)
    return sorted(alternatives, key=lambda rival: rival.cost(instance))[:OTHERS]


def with_cheapest_first(instance: Instance, rivals: Sequence[Rival]) -> list[Rival]:
    """The rivals with the cheapest of all as the best.

    A search under a restriction may find a mixture that saves enough there, and that the free search passed over.
    """
    cheapest = min(rivals, key=lambda rival: rival.cost(instance))
    if cheapest.cost(instance) >= rivals[0].cost(instance) * (1.0 - SAME_COST):
        return list(rivals)
    best = replace(cheapest, restriction=None)
    return [best, *(rival for rival in rivals[1:] if not lacks_other_engines(rival, best.fleets[0]))]


def lacks_other_engines(rival: Rival, fleet: Fleet) -> bool:
    """Whether a rival lacks engines that a fleet has none of either, so that it is no other fleet."""
    limit = rival.restriction
    return limit is not None and limit.kind == OTHER_ENGINES and limit.allows(fleet)


def _without_engines(instance: Instance, pool: FleetPool) -> Restriction:
    """Any engines but those of the GPU type, size and role of a pool."""
    tables, role = instance.tables, np.arange(len(ROLES))[:, None] == ROLES.index(pool.role)
    alike = (tables.offer == tables.offer[pool.shape]) & (tables.gpus == tables.gpus[pool.shape])
    return Restriction(OTHER_ENGINES, f"without {_engine_words(instance, pool)}", ~(role & alike))


def _bought(instance: Instance, fleet: Fleet) -> frozenset[str]:
    """The engines of a fleet, whatever their parallelism, settings and numbers."""
    return frozenset(_engine_words(instance, pool) for pool in fleet.pools)


def _engine_words(instance: Instance, pool: FleetPool) -> str:
    """The replicas of a pool as part of a sentence, such as "2 × H100 prefill"."""
    name = instance.problem.offers[int(instance.tables.offer[pool.shape])].accelerator.name
    return f"{int(instance.tables.gpus[pool.shape])} × {name} {pool.role.value}"


def _why_none(instance: Instance, label: str) -> str:
    start = f"{label.removesuffix(' only')}: "
    reasons = [key for key in instance.enumeration.dropped if key.startswith(start)]
    return reasons[0].partition(": ")[2] if reasons else "no engine of this kind is allowed or fits"
