"""The last word on a fleet that was chosen: its requests drawn anew, which no choice was made by.

The search looks at many fleets, and at some of them several times, always with the same requests. Of fleets that miss a
goal narrowly, what it likes best is one that these requests flatter: the interval of a winner is no longer one that
holds it 19 times in 20. So the winner is simulated once more, with seeds that were never used and as many full runs as
it took to choose it, a number that the new runs have no part in. Where the lower end of every class's interval reaches
its goal and the fleet comes out of a crowd (`crowd`), it is confirmed, and these runs are what the plan tells; one near
its capacity must keep up with more, too (`pressed`). Else it is refuted, and the search goes on as if it had missed:
the next that it chooses gets the next confirmation.

The k-th confirmation has intervals beyond whose lower end the true share lies with a chance of LEVEL / 2^k. A fleet
that misses a goal passes the k-th with that chance at most, so that the chance that any is ever printed is at most
LEVEL (1/2 + 1/4 + ...) = LEVEL, whatever the search does in between: no test is repeated until it succeeds.
"""

from __future__ import annotations

from .judge import judge_runs, simulated_fleet
from .pressed import gives_way
from .verdict import REPLICATIONS, Bench, Verdict, fleet_key

LEVEL = 0.025
"""Chance at most that a fleet which misses a goal is said to hold [1]."""
MOST_CONFIRMED = 8
"""Confirmations of one search; fleets that are refuted so often are no chance."""
APART = REPLICATIONS[-1] + 1
"""Distance of the numbers of two confirmations' first runs: each has up to eight runs, and one with a crowd."""


def tail_of(number: int) -> float:
    """Chance of the k-th confirmation that a share lies below its interval [1].

    >>> tail_of(1), tail_of(2)
    (0.0125, 0.00625)
    """
    return LEVEL / 2.0**number


def confirmed(bench: Bench, chosen: Verdict, number: int) -> Verdict:
    """The fleet on fresh requests, held where they confirm it; it takes the place of what the bench knew.

    number: of the confirmation, from 1. The plan's interval is the usual one of 95 %; what decides is the wider.
    """
    part, instance = bench.part(chosen.fleet), bench.instance
    engines = simulated_fleet(instance, part.fleet, bench.probability)
    first, count = APART * number, max(len(chosen.judgement.runs), bench.least)
    made = bench.runs(part, engines, bench.full(part), first, first + count)
    told, last = judge_runs(instance, engines, made), first + REPLICATIONS[-1]
    held = judge_runs(instance, engines, made, tail=tail_of(number)).proven
    stuck = bench.stays_behind(part, engines, made, last) if held else None
    behind = gives_way(bench, part, engines, last) if held and stuck is None else None
    found = bench.settled(chosen.fleet, behind or told, stuck=stuck, held=held and behind is None, number=number)
    bench.verdicts[fleet_key(chosen.fleet)] = found
    return found
