"""No waste: as long as a fleet that costs less holds when it is simulated, it takes the place of the winner.

Tried are, largest saving first, fewer replicas in one pool; then, while one replica less holds nowhere, other engine
shapes in one pool, one pool of colocated engines for several pools and smaller fleets of other kinds, as many of them
as look promising by the formulas. One that misses is tried with other settings too (`settings`), once. Every change of
the winner lowers its cost, and there are finitely many fleets of so few engines, so it ends; what is left misses with
one replica less in any pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.evaluate import promise
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.fleets.pool_state import pool_state
from optimizer.loads.instance import Instance
from optimizer.loads.settings import ROLES
from optimizer.rivals.allowed import allowed
from optimizer.rivals.fewer import Named, fewer_replicas, with_replicas
from optimizer.rivals.per_class import classes_apart

from .bench import Bench, Key, Verdict, fleet_key, with_one_life
from .settings import other_settings
from .verify import Mend, Tried

IntArray = NDArray[np.int64]

CHEAPER = 1.0 - 1e-9
"""Factor below which a cost counts as less."""
MOST_SWAPS = 6
"""Other shapes and kinds that are simulated for one winner."""
PROMISING = 0.5
"""Share of every goal that the formulas must promise of another shape for it to be simulated."""


@dataclass(frozen=True, slots=True)
class Lean:
    """A winner, the same with one replica less in each pool, and what else was tried in order."""

    winner: Verdict
    one_less: tuple[Tried, ...]
    others: tuple[Tried, ...] = ()


def without_waste(
    bench: Bench,
    winner: Verdict,
    rivals: Sequence[Fleet],
    stopped: Callable[[], bool],
    mend: Mend = other_settings,
    *,
    near: Sequence[Fleet] = (),
) -> Lean:
    """Replace the winner by what costs less and holds, until nothing does.

    rivals: other fleets whose smaller versions may hold; near: fleets that miss narrowly by formula; stopped: asked
    before each simulation; mend: finds other settings for what misses.
    """
    instance, step = bench.instance, 1
    one_less: list[Tried] = []
    others: list[Tried] = []
    while not stopped():
        tried = first_that_holds(bench, fewer_replicas(instance, winner.fleet, step), stopped, mend)
        held = bool(tried) and tried[-1][1].held
        if held:
            winner, step = tried[-1][1], 2 * step
        elif step > 1:
            step = 1
        else:
            cheaper = [
                ("near by formula", fleet) for fleet in near if fleet_cost(instance, fleet) < winner.cost * CHEAPER
            ]
            less = [*smaller(instance, winner, rivals), *cheaper]
            one_less, tried = tried, first_that_holds(bench, less, stopped, mend)
            if not tried or not tried[-1][1].held:
                others += tried
                break
            winner = tried[-1][1]
        others += tried
    known = {id(one) for _, one in one_less} | {id(winner)}
    return Lean(winner, tuple(one_less), tuple(row for row in others if id(row[1]) not in known))


def first_that_holds(
    bench: Bench, fleets: Iterable[Named], stopped: Callable[[], bool], mend: Mend = other_settings
) -> list[Tried]:
    """Simulate fleets in turn up to the first that holds: all that were tried, that one last.

    Of one that misses and has settings that look better, these are told.
    """
    tried: list[Tried] = []
    for what, fleet in fleets:
        if stopped():
            break
        if not allowed(bench.instance, fleet):
            continue
        found = bench.candidate(with_one_life(bench.instance, fleet, bench.volume))
        other = None if found.held else mend(bench, found)
        tried.append((what, found if other is None else bench.candidate(other)))
        if tried[-1][1].held:
            break
    return tried


def smaller(
    instance: Instance, winner: Verdict, rivals: Sequence[Fleet], wanted: Callable[[Fleet], bool] = lambda _: True
) -> list[Named]:
    """Fleets that cost less than the winner, other shapes of it and less of the rivals; the most promising first.

    wanted: which of them may be looked at.
    """
    ranked = []
    others = [*_swaps(instance, winner), *_plain(instance, winner), *_shrunk(instance, winner, rivals)]
    for order, (what, fleet) in enumerate(others):
        promised = promise(instance, fleet) if wanted(fleet) else 0.0
        if promised >= PROMISING:
            ranked.append((-promised, order, what, fleet))
    best: dict[str, Named] = {}  # the most promising setting of each shape
    alone: dict[Key, Named] = {}  # all of a rival is the same fleet, whichever of its pools it is named by
    for _, _, what, fleet in sorted(ranked, key=lambda row: row[:2]):
        first = best.setdefault(what, (what, fleet))
        alone.setdefault(fleet_key(first[1]), first)
    return list(alone.values())[:MOST_SWAPS]


def _swaps(instance: Instance, winner: Verdict) -> Iterator[Named]:
    """The winner with another engine shape in one pool, in as many replicas as cost less; every batch limit."""
    tables, fleet = instance.tables, winner.fleet
    for index, pool in enumerate(fleet.pools):
        for shape in _alike(instance, pool):
            if shape == pool.shape:
                continue
            seqs = [pool.seqs] if pool.role is Role.PREFILL else tables.limits.tolist()
            for limit in seqs:
                other = replace(pool, shape=int(shape), seqs=int(limit), replicas=1)
                swapped = Fleet((*fleet.pools[:index], other, *fleet.pools[index + 1 :]))
                most = _most_replicas(instance, swapped, index, winner.cost)
                if most:
                    yield f"{pool.name}: {most} x {_engine(instance, shape)}", with_replicas(swapped, index, most)


def _plain(instance: Instance, winner: Verdict) -> Iterator[Named]:
    """One pool of colocated engines in the winner's place, as many as cost less; every shape, batch limit and chunk."""
    tables, problem = instance.tables, instance.problem
    if len(winner.fleet.pools) == 1 or Role.COLOCATED not in problem.space.roles or classes_apart(problem):
        return
    everything, spares = np.ones(instance.flows.isl.size), problem.constraints.spare_replicas
    in_time = tables.decode_base < instance.flows.tpot.max()
    for shape, chunk in np.argwhere(tables.roomy & in_time.any(axis=1)[:, None]).tolist():
        limits = tables.limits[in_time[shape, tables.limits]].tolist() or tables.limits[:1].tolist()
        pool = FleetPool("colocated-1", Role.COLOCATED, shape, limits[-1], chunk, 1, spares, everything)
        most = _most_replicas(instance, Fleet((pool,)), 0, winner.cost)
        if most and pool_state(instance, replace(pool, replicas=most), 1.0).stable:
            for limit in limits:
                yield f"{most} x {_engine(instance, shape)}", Fleet((replace(pool, seqs=limit, replicas=most),))


def _engine(instance: Instance, shape: int) -> str:
    """GPU and parallelism of an engine shape."""
    split = instance.tables.shapes[shape].parallelism
    name = instance.problem.offers[int(instance.tables.offer[shape])].accelerator.name
    experts = f" EP{split.expert}" if split.expert > 1 else ""
    ranks = f" DP{split.data}" if split.data > 1 else ""
    return f"{name} TP{split.tensor} PP{split.pipeline}{experts}{ranks}"


def _alike(instance: Instance, pool: FleetPool) -> IntArray:
    """Shapes that can talk to the same ones as a pool does in its role, with memory for the longest request."""
    tables, role = instance.tables, ROLES.index(pool.role)
    able = {Role.PREFILL: tables.talks.any(axis=1), Role.DECODE: tables.talks.any(axis=0)}
    alike = (tables.group[role] == tables.group[role, pool.shape]) & tables.roomy[:, pool.chunk]
    return np.flatnonzero(alike & able[pool.role] if pool.role in able else alike)


def _shrunk(instance: Instance, winner: Verdict, rivals: Sequence[Fleet]) -> Iterator[Named]:
    """Rivals with so few engines in one pool that they cost less than the winner."""
    for fleet in rivals:
        for index, pool in enumerate(fleet.pools):
            most = min(pool.replicas, _most_replicas(instance, fleet, index, winner.cost))
            if most:
                cut = f", {pool.name} cut to {most} of {pool.replicas}" if most < pool.replicas else ""
                yield f"a rival{cut}", with_replicas(fleet, index, most)


def _most_replicas(instance: Instance, fleet: Fleet, index: int, below: float) -> int:
    """Most engines of one pool with which a fleet costs less than `below` within the limits; 0 if not even one does."""
    price = float(instance.tables.usd_per_hour[fleet.pools[index].shape])
    rest = fleet_cost(instance, with_replicas(fleet, index, 1)) - price
    count = int(max((below * CHEAPER - rest) / price, 0.0))
    while count > 0:
        tried = with_replicas(fleet, index, count)
        if fleet_cost(instance, tried) < below * CHEAPER and allowed(instance, tried):
            return count
        count -= 1
    return 0
