"""The same engines with larger batch limits, wherever they then serve more when they are simulated.

The search takes the smallest batch limits with which a fleet serves all that it can by formula. Simulated engines can
bear more at times, and then it would be the limit that binds, which costs nothing to raise.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late

from .bench import Bench, Verdict, valid
from .goodput import OutOfTimeError
from .record import goodput_of

HIGHER = 2
"""Places in the table of batch limits by which they are raised in a step: it doubles them."""


def with_larger_batches(bench: Bench, winner: Verdict, late: Late) -> Verdict:
    """A fleet that holds, with its batch limits raised for as long as it then holds at a rate at which it did not."""
    try:
        fleet = _raised_while_better(bench, winner.fleet, late)
    except OutOfTimeError:
        return winner
    found = winner if fleet is winner.fleet else bench.candidate(fleet)
    return found if found.held else winner


def _raised_while_better(bench: Bench, fleet: Fleet, late: Late) -> Fleet:
    demand = bench.instance.problem.workload.request_rate
    larger = raised(bench.instance, fleet, bench.volume)
    while larger is not None:
        found = goodput_of(bench, fleet, demand * goodput_volume(bench.instance, fleet), late)
        fails, part = found.fails, bench.part(larger)
        if not any(point.full for point in found.points if point.rate == fails):
            break  # with larger limits the same requests would run at the same time
        if not bench.trials_of(part, part.requests, late).at(fails / demand).held:
            break
        fleet, larger = larger, raised(bench.instance, larger, bench.volume)
    return fleet


def raised(instance: Instance, fleet: Fleet, volume: float = 1.0) -> Fleet | None:
    """The fleet with the batch limits of all its pools raised, of each by HIGHER places; None where none can be.

    volume: multiple of the demand at which its memory must not stay full once it is (`second_life`).
    """
    pools = tuple(
        pool if pool.role is Role.PREFILL else replace(pool, seqs=instance.tables.limit_above(pool.seqs, HIGHER))
        for pool in fleet.pools
    )
    larger = Fleet(pools)
    same = all(one.seqs == other.seqs for one, other in zip(pools, fleet.pools, strict=True))
    return larger if not same and valid(instance, larger, volume) else None
