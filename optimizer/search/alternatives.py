"""The best fleet of the same search under each restriction, and why it lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.words import dearer
from optimizer.fleets.build_plan import engine_pools, pool_routes
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost
from optimizer.loads.instance import COLOCATED, ROLES, Instance, Settings
from optimizer.plans.plan import Alternative, Status
from optimizer.plans.proof import Proof

from .mixtures import or_mixed
from .search import SAME_COST, FleetSearch, at_best_split, near_fleets, unmixed

BoolArray = NDArray[np.bool_]

SAME = "the same cost"

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
    """The best fleet under a restriction and its row of the comparison; no fleets where none is found.

    fleets: the best first, then that which mixes no engines within a stage; near: cheaper ones that miss by formula,
    the nearest first; restriction: None for the best of all.
    """

    row: Alternative
    fleets: tuple[Fleet, ...] = ()
    near: tuple[Fleet, ...] = ()
    restriction: Restriction | None = None


def restrictions(instance: Instance, settings: Settings) -> Iterator[Restriction]:
    """Single accelerator types, colocated only, disaggregated only, one precision only: what the whole space has."""
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


def compare(search: FleetSearch, best: Rival) -> list[Rival]:
    """The best fleet first, then the best of the same search under every restriction, by price.

    Restrictions without a fleet come last. Where a restriction allows the best fleet, it is the best there too.
    """
    rivals = [
        _same(best, restriction)
        if restriction.allows(best.fleets[0])
        else _restricted(search, restriction, best.row.cost_usd_per_hour)
        for restriction in restrictions(search.instance, search.settings)
    ]
    return [best, *cheapest_first(rivals)]


def against(instance: Instance, rival: Rival, best: Rival) -> Rival:
    """A rival compared with another best fleet than before, which it is itself where its restriction allows that."""
    if rival.restriction is not None and rival.restriction.allows(best.fleets[0]):
        return _same(best, rival.restriction)
    if not rival.fleets:
        return rival
    lost = why_not(fleet_cost(instance, rival.fleets[0]), fleet_cost(instance, best.fleets[0]))
    return replace(rival, row=rival.row.model_copy(update={"why_not": lost}))


def _same(best: Rival, restriction: Restriction) -> Rival:
    """The best fleet as that under a restriction."""
    return replace(best, row=same_row(best.row, restriction.kind, restriction.label), restriction=restriction)


def same_row(best: Alternative, kind: str, label: str) -> Alternative:
    """The row of a kind of fleet whose best is the recommended one."""
    return best.model_copy(update={"kind": kind, "label": label, "why_not": SAME})


def _restricted(search: FleetSearch, restriction: Restriction, best: float | None) -> Rival:
    """The best fleet under a restriction; best: cost of the best of all [$/h]."""
    if search.late():
        return Rival(_without(search, restriction, late=True), restriction=restriction)
    space = at_best_split(search.instance, search.late, restriction.usable)
    simple = unmixed(space)
    fleet = or_mixed(space, simple)
    if not fleet.pools:
        return Rival(_without(space, restriction, late=search.late()), restriction=restriction)
    row = rival_row(space.instance, restriction, fleet, best)
    return Rival(row, *candidates(space, fleet, simple), restriction)


def candidates(space: FleetSearch, fleet: Fleet, simple: Fleet) -> tuple[tuple[Fleet, ...], tuple[Fleet, ...]]:
    """The fleets of a search to simulate: its best, the best that is not mixed, and cheaper ones that narrowly miss."""
    fleets = (fleet,) if fleet is simple or not simple.pools else (fleet, simple)
    return fleets, tuple(near_fleets(space, fleet_cost(space.instance, fleet))[:MOST_NEAR])


def other_fleets(search: FleetSearch, shown: Sequence[Rival]) -> list[Rival]:
    """The cheapest fleets that lack an engine of the best one, and are not shown already.

    For buyers who cannot get what is recommended. shown: the best fleet first, as in the comparison.
    """
    instance, best = search.instance, shown[0]
    cost = best.row.cost_usd_per_hour or 0.0
    seen = {_bought(instance, fleet) for rival in shown for fleet in rival.fleets[:1]}
    others: list[Rival] = []
    for pool in best.fleets[0].pools:
        rival = _restricted(search, _without_engines(instance, pool), cost)
        bought = [_bought(instance, fleet) for fleet in rival.fleets[:1]]
        if not bought or bought[0] in seen:
            continue
        seen.update(bought)
        if fleet_cost(instance, rival.fleets[0]) >= cost * (1.0 - SAME_COST):
            others.append(rival)
    return cheapest_first(others)[:OTHERS]


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


def cheapest_first(rivals: Iterable[Rival]) -> list[Rival]:
    """Rivals by price, those without one last."""
    costs = ((math.inf if (cost := rival.row.cost_usd_per_hour) is None else cost, rival) for rival in rivals)
    return [rival for _, rival in sorted(costs, key=lambda pair: (pair[0], pair[1].row.label))]


def _row(kind: str, label: str, status: Status, why_not: str, **values: Any) -> Alternative:
    """A row of the comparison, empty but for some values."""
    empty: dict[str, Any] = {
        "cost_usd_per_hour": None,
        "bound_usd_per_hour": None,
        "gap": None,
        "pools": [],
        "attainment": None,
    }
    return Alternative(kind=kind, label=label, status=status, why_not=why_not, **(empty | values))


def _fleet_values(instance: Instance, fleet: Fleet, volume: float = 1.0) -> dict[str, Any]:
    """What a row says of a fleet that serves `volume` times the demand."""
    return {
        "cost_usd_per_hour": fleet_cost(instance, fleet),
        "pools": engine_pools(instance, fleet),
        "routes": pool_routes(fleet),
        "attainment": evaluate(instance, fleet, volume).overall,
    }


def recommended(instance: Instance, fleet: Fleet, proof: Proof, volume: float) -> Alternative:
    """The plan's own fleet, serving `volume` times the demand, as a row of the comparison."""
    values = _fleet_values(instance, fleet, volume) | {"bound_usd_per_hour": proof.bound, "gap": proof.gap}
    return _row("recommended", "recommended", proof.status, "", **values)


def rival_row(instance: Instance, restriction: Restriction, fleet: Fleet, best: float | None) -> Alternative:
    """The row of the best fleet under a restriction; best: cost of the recommended one [$/h]."""
    cost, values = fleet_cost(instance, fleet), _fleet_values(instance, fleet)
    return _row(restriction.kind, restriction.label, Status.FEASIBLE, why_not(cost, best or cost), **values)


def _without(search: FleetSearch, restriction: Restriction, *, late: bool) -> Alternative:
    """The row of a restriction under which no fleet is known."""
    status, settings = Status.TIME_LIMIT, search.settings
    if not restriction.usable[settings.role, settings.shape].any():
        status, why = Status.INFEASIBLE, _why_none(search.instance, restriction.label)
    elif late:
        why = "the time was up before it was looked for"
    else:
        why = "no fleet of this kind was found that meets the SLOs within the limits; none is ruled out"
    return _row(restriction.kind, restriction.label, status, why)


def _why_none(instance: Instance, label: str) -> str:
    start = f"{label.removesuffix(' only')}: "
    reasons = [key for key in instance.enumeration.dropped if key.startswith(start)]
    return reasons[0].partition(": ")[2] if reasons else "no engine of this kind is allowed or fits"


def why_not(cost: float, best: float) -> str:
    """Why a fleet that holds lost: its cost against the best one's [$/h]."""
    if cost <= best * (1.0 + 1e-6):
        return SAME
    return f"costs {dearer(cost, best)}"
