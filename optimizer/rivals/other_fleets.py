"""The next best fleets of other engines, for buyers who cannot get what is recommended, and what they cost more."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from costmodel.words import join_words
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet, make_fleet, polish
from optimizer.loads.columns import ROLES, Columns
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative
from optimizer.plans.plan_pools import engine_counts
from optimizer.solver.fleet_model import aim_of
from optimizer.solver.kindred import Kindred, different_fleets, engine_kinds
from optimizer.solver.search import Effort, Found, plan_blocks, search
from optimizer.solver.simple_plans import SimplePlan, Totals, simple_plans

from .alternatives import QUICK, Rival, proven_bound, rival_row
from .by_evaluation import Evaluated
from .leanest import unmixed

OTHERS = 2
"""Fleets of other engines that a plan shows."""

LOOKED_AT = 6
"""Fleets of other engines that are looked for: some are shown already, as the best of their kind."""


def other_fleets(
    known: Evaluated, priced: tuple[Columns, Totals], shown: Sequence[Rival], *, effort: Effort = QUICK
) -> list[Rival]:
    """The cheapest fleets that each buy other engines than the best, than one another and than those shown already.

    shown: the best fleet first, as in the comparison.

    They have one pool, or one of each stage, wherever such a fleet is possible. Only those that hold every goal by
    formula at their real loads, and are no cheaper than the best, count.
    """
    instance = known.instance
    aim = aim_of(instance.problem)

    def solve(columns: Columns, totals: Totals) -> Found:
        simple = simple_plans(instance, columns, totals)
        if simple:
            return plan_blocks(instance, columns, simple[0])
        return search(instance, columns, totals, aim, effort)

    best = shown[0].row
    found = different_fleets(instance, priced, _as_found(instance, shown[0].fleet), solve, LOOKED_AT)
    rivals = (_rival(known, priced[0], one, best, aim.cost_weight) for one in found)
    return list(islice(_unlike(rivals, {engine_counts(rival.row.pools) for rival in shown}), OTHERS))


def _unlike(rivals: Iterable[Rival | None], seen: set[Hashable]) -> Iterator[Rival]:
    """Rivals of other pools than those seen, and than one another."""
    for rival in rivals:
        if rival is not None and (pools := engine_counts(rival.row.pools)) not in seen:
            seen.add(pools)
            yield rival


def _as_found(instance: Instance, fleet: Fleet) -> Found:
    """The engines of a fleet in the form of a search result."""
    size = len(fleet.pools)
    one = np.ones(size)
    columns = Columns(
        role=np.array([ROLES.index(pool.role) for pool in fleet.pools]),
        shape=np.array([pool.shape for pool in fleet.pools]),
        replicas=np.ones(size, dtype=np.int64),
        seqs=np.array([pool.seqs for pool in fleet.pools]),
        chunk=np.array([pool.chunk for pool in fleet.pools]),
        utilization=one,
        moment=one,
        chance=one,
        attention=one,
        tpot=np.full(size, np.inf),
    )
    blocks = tuple(pool.replicas for pool in fleet.pools)
    return plan_blocks(instance, columns, SimplePlan(tuple(range(size)), blocks, fleet_cost(instance, fleet)))


def _engines(kind: str) -> str:
    """The name of a kind of engine as part of a sentence.

    >>> _engines("2 H100 prefill")
    'prefill engines of 2 × H100'
    """
    bought, _, role = kind.rpartition(" ")
    gpus, _, name = bought.partition(" ")
    return f"{role} engines of {gpus} × {name}"


def _rival(known: Evaluated, columns: Columns, one: Kindred, best: Alternative, scale: float) -> Rival | None:
    """The row of a fleet of other engines; None where it misses a goal or costs less than the one it lost to.

    Its bound is that of all promised fleets without these engines, where one is proven; scale: of the search's
    objective to $/h.
    """
    instance = known.instance
    promised = make_fleet(instance, polish(instance, columns, one.found))
    held = holds(instance, predict_misses(instance, promised))
    others = ~np.isin(engine_kinds(instance, known.settings), one.without)
    fleet = unmixed(known, promised if held else Fleet(()), others)
    least = best.cost_usd_per_hour or 0.0
    if not fleet.pools or fleet_cost(instance, fleet) < least * (1.0 - 1e-6):
        return None
    label = f"without {join_words([_engines(name) for name in one.without])}"
    row = rival_row(instance, "other_engines", label, fleet, proven_bound(one.found, scale), least)
    return Rival(row, fleet, promised if held else Fleet(()))
