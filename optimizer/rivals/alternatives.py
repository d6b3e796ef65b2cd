"""The best fleet of each other kind, and why it lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.words import dearer, dollars, percentage
from optimizer.fleets.build_plan import engine_pools, fleet_cost
from optimizer.fleets.evaluate import evaluate, holds, predict_misses
from optimizer.fleets.fleet import Fleet, make_fleet, polish
from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative, Status
from optimizer.plans.proof import Proof, bound_for, gap_of
from optimizer.solver.fleet_model import COLOCATED, Aim, aim_of
from optimizer.solver.search import Effort, Found, plan_blocks, search
from optimizer.solver.simple_plans import Totals, price_space, simple_plans
from search_spaces.problem import Goal

from .by_evaluation import Evaluated
from .leanest import cost_without_promises, evaluated, or_mixed, unmixed

QUICK = Effort(rounds=3, columns=20, more=30, nodes=50, choices=6, lifted=0, provable=0, most_columns=5000, gap=2e-3)
"""Effort for an alternative: it only has to be good enough to show that it loses."""


SAME = "the same cost"

FEW_ENGINES = 6
"""Up to this many engines, fleets of more than two pools save next to nothing (assumed) and are not looked for."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of fleets: one offer only, colocated pools only (True) or none (False), own precision only."""

    kind: str
    label: str
    offer: int | None = None
    colocated: bool | None = None
    own_precision: bool = False

    def mask(self, instance: Instance, columns: Columns) -> NDArray[np.bool_]:
        """The columns that it may use."""
        mine = np.ones(columns.size, dtype=np.bool_)
        if self.offer is not None:
            mine &= instance.tables.offer[columns.shape] == self.offer
        if self.colocated is not None:
            mine &= (columns.role == COLOCATED) == self.colocated
        if self.own_precision:
            mine &= _own_precision(instance)[columns.shape]
        return mine

    def has(self, instance: Instance, fleet: Fleet) -> bool:
        """Whether a fleet is of this kind."""
        return all(
            self.offer in {None, int(instance.tables.offer[pool.shape])}
            and self.colocated in {None, pool.role is Role.COLOCATED}
            and (not self.own_precision or bool(_own_precision(instance)[pool.shape]))
            for pool in fleet.pools
        )


def _own_precision(instance: Instance) -> NDArray[np.bool_]:
    """Shapes in the precision of the model section, (S,)."""
    problem, shapes = instance.problem, instance.tables.shapes
    own = (problem.weight_dtype, problem.kv_dtype)
    return np.array([(shape.weight_dtype, shape.kv_dtype) == own for shape in shapes], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Rival:
    """The best fleet of a kind and its row of the comparison; an empty fleet where none is known.

    promised: the best that columns promise, from which it came; empty where there is none. unmixed: the best that mixes
    no engines within a stage beyond what columns promise, where that is known to be another.
    """

    row: Alternative
    fleet: Fleet
    promised: Fleet = field(default_factory=lambda: Fleet(()))
    unmixed: Fleet = field(default_factory=lambda: Fleet(()))

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        """The fleet, and those to fall back on where it misses when it is simulated; the cheapest first."""
        return tuple(fleet for fleet in (self.fleet, self.unmixed, self.promised) if fleet.pools)


def kinds(instance: Instance, space: Columns) -> Iterator[Kind]:
    """Single accelerator types, colocated only, disaggregated only, one precision only: what the whole space has."""
    offers = instance.problem.offers
    if len(offers) > 1:
        for index, bought in enumerate(offers):
            yield Kind("single_type", f"only {bought.accelerator.name}", offer=index)
    together = space.role == COLOCATED
    if together.any() and not together.all():
        yield Kind("colocated_only", "only colocated pools", colocated=True)
        yield Kind("disaggregated_only", "only disaggregated pools", colocated=False)
    own = _own_precision(instance)
    if own.any() and not own.all():
        stated = f"only {instance.problem.weight_dtype} weights and {instance.problem.kv_dtype} KV cache"
        yield Kind("own_precision", stated, own_precision=True)


def compare(
    known: Evaluated,
    space: Columns,
    priced: tuple[Columns, Totals],
    fleet: Fleet,
    best: Alternative,
    *,
    effort: Effort = QUICK,
) -> list[Rival]:
    """The recommended fleet first, then the best of every other kind, cheapest first, infeasible ones last.

    known: what the evaluation says; space: every column; priced: those that the search looked at, with their totals;
    best: the row of `fleet`. Of the kinds that the recommended fleet is of, it is the best itself.
    """
    instance = known.instance
    if instance.problem.objective.goal is not Goal.MIN_COST:
        return [Rival(best, fleet)]
    others: list[Rival] = []
    for kind in kinds(instance, space):
        if kind.has(instance, fleet):
            same = best.model_copy(update={"kind": kind.kind, "label": kind.label, "why_not": SAME})
            others.append(Rival(same, fleet))
            continue
        if effort.late():
            others.append(
                Rival(_without(kind, Status.TIME_LIMIT, "the time was up before it was looked for"), Fleet(()))
            )
            continue
        mine = kind.mask(instance, priced[0])
        some = priced[0].take(mine), priced[1].take(mine)
        others.append(_alternative(known, kind, some, space.take(kind.mask(instance, space)), best, effort=effort))
    return [Rival(best, fleet), *cheapest_first(others)]


def little(effort: Effort) -> Effort:
    """The effort for alternatives, to be done by the same time."""
    return replace(QUICK, until=effort.until)


def cheapest_first(rivals: Iterable[Rival]) -> list[Rival]:
    """Rivals by price, those without one last."""
    return sorted(
        rivals, key=lambda one: (one.row.cost_usd_per_hour is None, one.row.cost_usd_per_hour or 0.0, one.row.label)
    )


def recommended(instance: Instance, fleet: Fleet, proof: Proof, volume: float) -> Alternative:
    """The plan's own fleet, serving `volume` times the demand, as a row of the comparison."""
    return Alternative(
        kind="recommended",
        label="recommended",
        status=proof.status,
        cost_usd_per_hour=fleet_cost(instance, fleet),
        bound_usd_per_hour=proof.bound,
        gap=proof.gap,
        pools=engine_pools(instance, fleet),
        attainment=evaluate(instance, fleet, volume).overall,
        why_not="",
    )


def _alternative(
    known: Evaluated,
    kind: Kind,
    priced: tuple[Columns, Totals],
    space: Columns,
    best: Alternative,
    *,
    effort: Effort,
) -> Rival:
    """The best fleet of one kind, found with little effort, and what it costs more."""
    instance = known.instance
    aim, columns = aim_of(instance.problem), priced[0]
    mine = kind.mask(instance, known.settings)
    found = _best_of_kind(instance, priced, aim, effort, cost_without_promises(known, priced, mine))
    if not found.columns.size and space.size > columns.size:
        columns, totals = price_space(instance, space)
        priced = columns, totals
        known, found = evaluated(instance, priced, effort.late), _best_of_kind(instance, priced, aim, effort)
        mine = kind.mask(instance, known.settings)
    promised = make_fleet(instance, polish(instance, columns, found))
    misses = predict_misses(instance, promised) if promised.pools else None
    start = promised if misses is not None and holds(instance, misses) else Fleet(())
    simple = unmixed(known, start, mine)
    fleet = or_mixed(known, simple, start, mine)
    if fleet.pools:
        bound = proven_bound(found, aim.cost_weight)
        row = rival_row(instance, kind.kind, kind.label, fleet, bound, best.cost_usd_per_hour)
        return Rival(row, fleet, start, Fleet(()) if simple is fleet else simple)
    if misses is None:
        status = Status.TIME_LIMIT if columns.size else Status.INFEASIBLE
        return Rival(_without(kind, status, _why_none(instance, kind, columns)), Fleet(()))
    cost, kept = dollars(fleet_cost(instance, promised)), percentage(float(misses.attainment.min()), 1)
    reached = f"the cheapest found ({cost}/h) keeps its SLOs for only {kept}"
    return Rival(_without(kind, Status.TIME_LIMIT, reached), promised)


def rival_row(  # noqa: PLR0917
    instance: Instance, kind: str, label: str, fleet: Fleet, promised: float | None, best: float | None
) -> Alternative:
    """The row of a fleet that holds; promised: the bound of its kind, of no use where it costs less; best: [$/h]."""
    cost = fleet_cost(instance, fleet)
    bound = bound_for(promised, cost)
    return Alternative(
        kind=kind,
        label=label,
        status=Status.FEASIBLE,
        cost_usd_per_hour=cost,
        bound_usd_per_hour=bound,
        gap=gap_of(bound, cost),
        pools=engine_pools(instance, fleet),
        attainment=evaluate(instance, fleet).overall,
        why_not=why_not(cost, best or cost),
    )


def _without(kind: Kind, status: Status, why: str) -> Alternative:
    """The row of a kind of which no fleet is known."""
    return Alternative(
        kind=kind.kind,
        label=kind.label,
        status=status,
        cost_usd_per_hour=None,
        bound_usd_per_hour=None,
        gap=None,
        pools=[],
        attainment=None,
        why_not=why,
    )


def proven_bound(found: Found, scale: float) -> float | None:
    """What a search proved that no promised fleet of its columns costs less than [$/h]; None where it proved nothing.

    scale: of the search's objective to $/h.
    """
    return found.bound / scale if found.bound > 0.0 else None


def _best_of_kind(
    instance: Instance, priced: tuple[Columns, Totals], aim: Aim, effort: Effort, rival: float = math.inf
) -> Found:
    """The best simple plan when it is small, of which nothing is proven, else the best that little effort finds.

    rival: cost of a fleet of the kind that holds whatever columns promise (see `search`) [$/h].
    """
    columns, totals = priced
    simple = simple_plans(instance, columns, totals)
    if simple and simple[0].engines(columns) <= FEW_ENGINES:
        return plan_blocks(instance, columns, simple[0])
    return search(instance, columns, totals, aim, effort, rival=rival)


def why_not(cost: float, best: float) -> str:
    """Why a fleet that holds lost: its cost against the best one's [$/h]."""
    if cost <= best * (1.0 + 1e-6):
        return SAME
    return f"costs {dearer(cost, best)}"


def _why_none(instance: Instance, kind: Kind, columns: Columns) -> str:
    if columns.size == 0:
        wanted = kind.label.removeprefix("only ")
        reasons = [key for key in instance.enumeration.dropped if key.startswith(f"{wanted}: ")]
        return reasons[0].partition(": ")[2] if reasons else "no engine of this kind is allowed or fits"
    return "no fleet of this kind was found that meets the SLOs within the limits; none is ruled out"
