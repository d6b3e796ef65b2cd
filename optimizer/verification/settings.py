"""The same engines with other settings, which cost nothing, for a fleet that missed when it was simulated.

The formulas choose batch limits and token budgets (chunks) beside the engines, and where they erred they may have erred
in these alone. So before anything dearer is tried, a fleet that missed is looked at with other settings of the pools to
blame, each in one short run of the requests that all fleets get:

- chunks one or FURTHER places larger in the table, or as much smaller. Which way helps depends on how an engine
  schedules: to one that stops its decodes for prompts, few large chunks are a mercy; to one that mixes them, small
  ones;
- the smallest batch limit with which the formulas still promise enough at MORE of the demand, which a fleet near its
  capacity must bear; or, where a pool has that already, one FURTHER places larger. Smaller ones make steps shorter, and
  keep the KV memory from filling where requests would then preempt each other.

What comes nearer to its goals is gone on from, the change first that the formulas think most of, until one clearly
keeps them in its run. There are finitely many settings, none is looked at twice, and MOST_LOOKS end it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from costmodel.engine import Role
from optimizer.fleets.evaluate import promise
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance

from .bench import Bench, Distance, Key, Verdict, chunks_of, fleet_key, valid
from .confirm import MORE
from .goodput import OutOfTimeError, RatePoint

FURTHER = 2
"""Places in the tables by which a setting is moved at most: chunks to about four times as many tokens, batch limits to
twice as many requests."""
MOST_LOOKS = 12
"""Other settings of one fleet that are looked at."""
NEAR = 0.15
"""Share by which a class may miss of which the formulas say that it does: they erred little, and settings mend little
[1]."""
PROMISING = 0.5
"""Share of every goal that the formulas must promise of other settings."""
LESS = 0.05
"""Share of its goal that a fleet which misses by formula may lose by a smaller batch limit, by formula [1]."""
NOTABLE = 1e-3
"""Share by which a fleet must miss less to count as nearer [1]."""


def other_settings(bench: Bench, missed: Verdict) -> Fleet | None:
    """The same engines with settings that keep every goal in a short run; None where none do.

    Where the fleet was left between, at the lower end of its interval: else full runs would be made for another that is
    left so. None where its confirmation refuted it: short runs tell nothing of what longer ones had to show.
    """
    if missed.blame is None or missed.stuck or missed.confirmation or not _hopeful(bench.instance, missed):
        return None
    fleet, far = missed.fleet, missed.distance
    seen, best = {fleet_key(fleet)}, None
    while (nearer := _nearer(bench, fleet, far, missed.blame.worst, seen)) is not None:
        fleet, point = nearer
        best = fleet if point.proven or (point.held and missed.judgement.refuted) else best
        if point.proven:
            break
        far = _distance(point)
    return best


def _hopeful(instance: Instance, missed: Verdict) -> bool:
    """Whether the fleet misses narrowly, or though the formulas say that it holds."""
    near = not missed.judgement.overload.overloaded and missed.shortfall <= NEAR
    return near or promise(instance, missed.fleet) >= 1.0


def _nearer(
    bench: Bench, fleet: Fleet, far: Distance, blamed: Collection[int], seen: set[Key]
) -> tuple[Fleet, RatePoint] | None:
    """The first change of a fleet with which it misses less, and its run; None where there is none, or no time.

    seen: fleets that are not looked at again; those that are looked at join them.
    """
    for other in _changes(bench, fleet, blamed):
        if len(seen) > MOST_LOOKS:
            break
        if fleet_key(other) in seen:
            continue
        seen.add(fleet_key(other))
        try:
            point = _look(bench, other)
        except OutOfTimeError:
            return None
        if _distance(point) < (far[0], far[1] - NOTABLE):
            return other, point
    return None


def _look(bench: Bench, fleet: Fleet) -> RatePoint:
    """A short run; those made are remembered."""
    part = bench.part(fleet)
    return bench.trials_of(part, min(part.short, part.requests), bench.late).at(part.volume)


def _distance(point: RatePoint) -> Distance:
    return point.overloaded, max(one.goal - one.attainment.share for one in point.classes)


def _changes(bench: Bench, fleet: Fleet, blamed: Collection[int]) -> list[Fleet]:
    """The fleet with one setting of all the pools to blame changed; what the formulas promise most of first."""
    instance = bench.instance
    changed = [other for other in _each_change(instance, fleet, blamed) if valid(instance, other, bench.volume)]
    promised = [(promise(instance, one), one) for one in changed]
    ranked = sorted(promised, key=lambda row: -min(row[0], 1.0))
    return [one for share, one in ranked if share >= PROMISING]


def _each_change(instance: Instance, fleet: Fleet, blamed: Collection[int]) -> Iterator[Fleet]:
    """Larger chunks, other batch limits, smaller chunks; those that no pool can have are the fleet itself."""

    def changed(pools: dict[int, FleetPool]) -> Fleet:
        return Fleet(tuple(pools.get(index, pool) for index, pool in enumerate(fleet.pools)))

    prompts = [index for index in blamed if fleet.pools[index].role is not Role.DECODE]
    tokens = [index for index in blamed if fleet.pools[index].role is not Role.PREFILL]
    for places in (FURTHER, 1):
        yield changed({index: _other_chunk(instance, fleet.pools[index], places) for index in prompts})
    yield changed({index: _other_limit(instance, fleet, index) for index in tokens})
    for places in (-1, -FURTHER):
        yield changed({index: _other_chunk(instance, fleet.pools[index], places) for index in prompts})


def _other_chunk(instance: Instance, pool: FleetPool, places: int) -> FleetPool:
    """The pool with another chunk, so many places away among those that there is memory for, or the last of them."""
    chunks = chunks_of(instance, pool)
    place = chunks.index(pool.chunk) + places
    return replace(pool, chunk=chunks[min(max(place, 0), len(chunks) - 1)])


def _other_limit(instance: Instance, fleet: Fleet, index: int) -> FleetPool:
    """The pool with the smallest batch limit that the formulas think enough; where it has that, a larger one."""
    pool = fleet.pools[index]
    enough = min(1.0, promise(instance, fleet, MORE) - LESS)
    for seqs in instance.tables.limits_below(pool.seqs):
        less = replace(pool, seqs=seqs)
        if promise(instance, Fleet((*fleet.pools[:index], less, *fleet.pools[index + 1 :])), MORE) >= enough:
            return less
    return replace(pool, seqs=instance.tables.limit_above(pool.seqs, FURTHER))
