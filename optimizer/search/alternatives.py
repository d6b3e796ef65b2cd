"""The best fleet of each other kind, and why it lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.words import dearer
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost
from optimizer.loads.instance import COLOCATED, ROLES, Instance, Settings
from optimizer.plans.plan import Alternative, Status
from optimizer.plans.proof import Proof

from .search import SAME_COST, FleetSearch, unmixed

SAME = "the same cost"

OTHERS = 2
"""Fleets of other engines that a plan shows."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of fleets: one offer only, colocated pools only (True) or none (False), own precision only."""

    kind: str
    label: str
    offer: int | None = None
    colocated: bool | None = None
    own_precision: bool = False

    def mask(self, instance: Instance, settings: Settings) -> NDArray[np.bool_]:
        """The settings that it may use."""
        usable = np.ones(settings.size, dtype=np.bool_)
        if self.offer is not None:
            usable &= instance.tables.offer[settings.shape] == self.offer
        if self.colocated is not None:
            usable &= (settings.role == COLOCATED) == self.colocated
        if self.own_precision:
            usable &= _own_precision(instance)[settings.shape]
        return usable

    def has(self, instance: Instance, fleet: Fleet) -> bool:
        """Whether a fleet is of this kind."""
        rows = [(ROLES.index(pool.role), pool.shape, pool.seqs, pool.chunk) for pool in fleet.pools]
        return bool(self.mask(instance, Settings(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)).all())


def _own_precision(instance: Instance) -> NDArray[np.bool_]:
    """Shapes in the precision of the model section, (S,)."""
    problem, shapes = instance.problem, instance.tables.shapes
    own = (problem.weight_dtype, problem.kv_dtype)
    return np.array([(shape.weight_dtype, shape.kv_dtype) == own for shape in shapes], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Rival:
    """The best fleet of a kind and its row of the comparison; an empty fleet where none is search.

    unmixed: the best that mixes no engines within a stage, where the fleet does.
    """

    row: Alternative
    fleet: Fleet
    unmixed: Fleet = field(default_factory=lambda: Fleet(()))

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        """The fleet, and the one to fall back on where it misses when it is simulated."""
        return tuple(fleet for fleet in (self.fleet, self.unmixed) if fleet.pools)


def kinds(instance: Instance, settings: Settings) -> Iterator[Kind]:
    """Single accelerator types, colocated only, disaggregated only, one precision only: what the whole space has."""
    offers = instance.problem.offers
    if len(offers) > 1:
        for index, bought in enumerate(offers):
            yield Kind("single_type", f"{bought.accelerator.name} only", offer=index)
    together = settings.role == COLOCATED
    if together.any() and not together.all():
        yield Kind("colocated_only", "colocated only", colocated=True)
        yield Kind("disaggregated_only", "disaggregated only", colocated=False)
    own = _own_precision(instance)
    if own.any() and not own.all():
        stated = f"{instance.problem.weight_dtype} weights and {instance.problem.kv_dtype} KV cache only"
        yield Kind("own_precision", stated, own_precision=True)


def compare(search: FleetSearch, best: Rival) -> list[Rival]:
    """The recommended fleet first, then the cheapest of one pool or two of every other kind, by price.

    Those without a fleet come last. Of the kinds that the recommended fleet is of, it is the best itself.
    """
    instance, rivals = search.instance, list[Rival]()
    for kind in kinds(instance, search.settings):
        if kind.has(instance, best.fleet):
            same = best.row.model_copy(update={"kind": kind.kind, "label": kind.label, "why_not": SAME})
            rivals.append(Rival(same, best.fleet))
            continue
        late = search.late()
        fleet = Fleet(()) if late else unmixed(search, kind.mask(instance, search.settings))
        if fleet.pools:
            row = rival_row(instance, kind.kind, kind.label, fleet, best.row.cost_usd_per_hour)
        else:
            row = _without(search, kind, late=late)
        rivals.append(Rival(row, fleet))
    return [best, *cheapest_first(rivals)]


def other_fleets(search: FleetSearch, shown: Sequence[Rival]) -> list[Rival]:
    """The cheapest fleets of one pool or two that lack an engine of the best one, and are not shown already.

    For buyers who cannot get what is recommended. shown: the best fleet first, as in the comparison.
    """
    instance, settings, best = search.instance, search.settings, shown[0]
    tables, cost = instance.tables, best.row.cost_usd_per_hour or 0.0
    seen = {_bought(instance, rival.fleet) for rival in shown}
    others: list[Rival] = []
    for pool in best.fleet.pools:
        alike = (settings.role == ROLES.index(pool.role)) & (tables.offer[settings.shape] == tables.offer[pool.shape])
        alike &= tables.gpus[settings.shape] == tables.gpus[pool.shape]
        fleet = Fleet(()) if search.late() else unmixed(search, ~alike)
        if not fleet.pools or _bought(instance, fleet) in seen:
            continue
        seen.add(_bought(instance, fleet))
        if fleet_cost(instance, fleet) >= cost * (1.0 - SAME_COST):
            label = f"without {_engine_words(instance, pool)}"
            others.append(Rival(rival_row(instance, "other_engines", label, fleet, cost), fleet))
    return cheapest_first(others)[:OTHERS]


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
        "attainment": evaluate(instance, fleet, volume).overall,
    }


def recommended(instance: Instance, fleet: Fleet, proof: Proof, volume: float) -> Alternative:
    """The plan's own fleet, serving `volume` times the demand, as a row of the comparison."""
    values = _fleet_values(instance, fleet, volume) | {"bound_usd_per_hour": proof.bound, "gap": proof.gap}
    return _row("recommended", "recommended", proof.status, "", **values)


def rival_row(instance: Instance, kind: str, label: str, fleet: Fleet, best: float | None) -> Alternative:
    """The row of a fleet that holds; best: cost of the recommended one [$/h]."""
    cost = fleet_cost(instance, fleet)
    return _row(kind, label, Status.FEASIBLE, why_not(cost, best or cost), **_fleet_values(instance, fleet))


def _without(search: FleetSearch, kind: Kind, *, late: bool) -> Alternative:
    """The row of a kind of which no fleet is known."""
    status = Status.TIME_LIMIT
    if not kind.mask(search.instance, search.settings).any():
        status, why = Status.INFEASIBLE, _why_none(search.instance, kind)
    elif late:
        why = "the time was up before it was looked for"
    else:
        why = "no fleet of this kind was found that meets the SLOs within the limits; none is ruled out"
    return _row(kind.kind, kind.label, status, why)


def _why_none(instance: Instance, kind: Kind) -> str:
    start = f"{kind.label.removesuffix(' only')}: "
    reasons = [key for key in instance.enumeration.dropped if key.startswith(start)]
    return reasons[0].partition(": ")[2] if reasons else "no engine of this kind is allowed or fits"


def why_not(cost: float, best: float) -> str:
    """Why a fleet that holds lost: its cost against the best one's [$/h]."""
    if cost <= best * (1.0 + 1e-6):
        return SAME
    return f"costs {dearer(cost, best)}"
