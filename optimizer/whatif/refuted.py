"""Fleets that a simulation refuted: the search goes on as if the formulas, too, said that they miss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from optimizer.search.search import FleetSearch, Picks

from .physics import Engines, Physics, known_at

Engine = tuple[int, int, int, int]
"""Role, shape and token budget of an engine (as indices), and how many of it."""
Refuted = frozenset[tuple[Engine, ...]]
"""The pools of each fleet that did not hold."""
NONE: Refuted = frozenset()


def refuted_with(pools: Iterable[Engines]) -> tuple[Engine, ...]:
    """What is refuted with a fleet: so many of its engines, whatever their batch limit.

    >>> refuted_with([(0, 7, 0, 2, 3), (1, 4, 5, 0, 1)])
    ((0, 7, 2, 3), (1, 4, 0, 1))
    """
    return tuple((role, shape, chunk, replicas) for role, shape, _seqs, chunk, replicas in pools)


def refuted_of(rows: Iterable[Iterable[Iterable[int]]]) -> Refuted:
    """What is refuted, as it was read from JSON."""
    return frozenset(tuple((role, shape, chunk, count) for role, shape, chunk, count in row) for row in rows)


@dataclass(frozen=True, slots=True, eq=False)
class Remaining(FleetSearch):
    """The same, less the fleets that were refuted, and those that have no more of the same engines in any pool."""

    refuted: Refuted = NONE

    @classmethod
    def after(cls, known: FleetSearch, refuted: Refuted) -> FleetSearch:
        """What is left of what is known; the states of pools stay known."""
        if not refuted:
            return known
        told = {one.name: getattr(known, one.name) for one in fields(known)}
        return cls(**told | {"known": {}, "held": {}, "refuted": refuted})

    def carries(self, picks: Picks, volume: float) -> bool:
        """Whether a fleet keeps every goal at `volume` times the demand as evaluated, and is not refuted there."""
        one = self.settings
        engines = [
            (int(one.role[setting]), int(one.shape[setting]), int(one.chunk[setting]), count)
            for setting, count in picks
        ]
        lost = volume >= 1.0 and any(_no_more(engines, other) for other in self.refuted)
        return not lost and FleetSearch.carries(self, picks, volume)


def _no_more(engines: Sequence[Engine], than: Sequence[Engine]) -> bool:
    """Whether two fleets have the same kinds of engines, and the first no more of any.

    >>> [_no_more([one], [(2, 7, 0, 3)]) for one in ((2, 7, 0, 3), (2, 7, 0, 4), (2, 6, 0, 1))]
    [True, False, False]
    """
    if [one[:3] for one in engines] != [one[:3] for one in than]:
        return False
    return all(one[3] <= other[3] for one, other in zip(engines, than, strict=True))


@lru_cache(maxsize=48)
def remaining_at(physics: Physics, rate: float, refuted: Refuted) -> tuple[FleetSearch, ...]:
    """What the evaluation says of any pools at a rate [1/s], for each way, less the fleets that were refuted there."""
    return tuple(Remaining.after(known, refuted) for known in known_at(physics, rate))
