"""The last word on a fleet that was chosen: its requests drawn anew, which no choice was made by.

The search looks at many fleets, and at some of them several times, always with the same requests. Of fleets that miss a
goal narrowly, what it likes best is one that these requests flatter: the interval of a winner is no longer one that
holds it 19 times in 20. So the winner is simulated once more, with seeds that were never used and as many full runs as
it took to choose it, a number that the new runs have no part in. Where the lower end of every class's interval reaches
its goal and the fleet comes out of a crowd (`crowd`), it is confirmed, and these runs are what the plan tells; one near
its capacity must keep up with more, too (`pressed`). Else it is refuted, and the search goes on as if it had missed:
the next that it chooses gets the next confirmation. Few fleets that hold are to be lost to chance: the runs by which
one was chosen say how many confirm it (`enough`), and one that is left between gets a second confirmation of 32.

The k-th confirmation has intervals beyond whose lower end the true share lies with a chance of LEVEL / 2^k. A fleet
that misses a goal passes the k-th with that chance at most, so that the chance that any is ever printed is at most
LEVEL (1/2 + 1/4 + ...) = LEVEL, whatever the search does in between: no test is repeated until it succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

from costmodel.simulator import Fleet as SimulatedFleet

from .judge import Judgement, Outcome, judge_runs, simulated_fleet
from .pressed import MORE, at_more, gives_way
from .verdict import MOST_JUDGED, REPLICATIONS, Bench, Slice, Verdict, fleet_key

LEVEL = 0.025
"""Chance at most that a fleet which misses a goal is said to hold [1]."""
POWER = 0.9
"""Chance at least that a fleet is confirmed which is as good as the runs showed by which it was chosen [1]."""
MOST_CONFIRMED = 8
"""Confirmations of one search; fleets that are refuted so often are no chance."""
MOST_BETWEEN = 2 * MOST_JUDGED
"""Requests of the second confirmation of a fleet that the first left between."""
APART = REPLICATIONS[-1] + 1
"""Distance of the numbers of two confirmations' first runs: each has up to 32 runs, and one with a crowd."""


def tail_of(number: int) -> float:
    """Chance of the k-th confirmation that a share lies below its interval [1].

    >>> tail_of(1), tail_of(2)
    (0.0125, 0.00625)
    """
    return LEVEL / 2.0**number


def confirmed(bench: Bench, chosen: Verdict, numbers: Iterator[int], least: int = 0) -> Verdict:
    """The fleet on fresh requests, held where they confirm it; it takes the place of what the bench knew.

    Where its share reaches every goal but not the lower end of its interval, a second one of more runs may tell.
    numbers: of the confirmations that are left; least: full runs of each, if more than the bench has.
    """
    found = confirmed_once(bench, chosen, next(numbers), least)
    between = found.outcome is Outcome.UNDECIDED and found.judgement.held and not found.stuck
    number = next(numbers, None) if between else None
    return found if number is None else confirmed_once(bench, chosen, number, REPLICATIONS[-1], MOST_BETWEEN)


def room_for(number: int) -> float:
    """Rate at which a fleet must keep its goals to be put to the k-th confirmation, over the planned one [1].

    The second half of the confirmations is for fleets with room, ever more of it: near a capacity, or just at a goal,
    runs flatter one fleet after another, and the last is to find one that holds.

    >>> [round(room_for(number), 2) for number in (4, 5, 8)]
    [1.0, 1.05, 1.22]
    """
    return MORE ** max(number - MOST_CONFIRMED // 2, 0)


def without_room(bench: Bench, chosen: Verdict, number: int) -> Verdict | None:
    """The fleet as one that missed, where it lacks room for the confirmation of that number; None where it has it.

    Its requests are none of those that it was chosen by, which flatter it, nor of any confirmation.
    """
    part, more = bench.part(chosen.fleet), room_for(number)
    if more <= 1.0:
        return None
    engines = simulated_fleet(bench.instance, part.fleet, bench.probability)
    told = at_more(bench, part, engines, APART * (MOST_CONFIRMED + number), more)
    if told.held:
        return None
    found = bench.settled(chosen.fleet, told, held=False)
    bench.verdicts[fleet_key(chosen.fleet)] = found
    return found


def confirmed_once(bench: Bench, chosen: Verdict, number: int, runs: int = 0, most: int = MOST_JUDGED) -> Verdict:
    """The fleet on the requests of one confirmation: see `on_fresh_requests`."""
    return on_fresh_requests(bench, chosen, number, runs, most)[0]


def on_fresh_requests(
    bench: Bench, chosen: Verdict, number: int, runs: int = 0, most: int = MOST_JUDGED
) -> tuple[Verdict, Judgement]:
    """The verdict of one confirmation, and what its runs say, which are kept whether the fleet holds or not.

    number: of it, from 1; runs: full ones that it has at least, as far as `most` requests go. The plan's interval is
    the usual one of 95 %; what decides is the wider.
    """
    part, instance = bench.part(chosen.fleet), bench.instance
    engines = simulated_fleet(instance, part.fleet, bench.probability)
    first, count = APART * number, enough(bench, part, engines, chosen, tail_of(number), runs, most)
    made = bench.runs(part, engines, bench.full(part), first, first + count)
    told, last = judge_runs(instance, engines, made), first + REPLICATIONS[-1]
    held = judge_runs(instance, engines, made, tail=tail_of(number)).proven
    stuck = bench.stays_behind(part, engines, made, last) if held else None
    behind = gives_way(bench, part, engines, last) if held and stuck is None else None
    found = bench.settled(chosen.fleet, behind or told, stuck=stuck, held=held and behind is None, number=number)
    bench.verdicts[fleet_key(chosen.fleet)] = found
    return found, told


def enough(  # noqa: PLR0917
    bench: Bench,
    part: Slice,
    engines: SimulatedFleet,
    chosen: Verdict,
    tail: float,
    runs: int = 0,
    most: int = MOST_JUDGED,
) -> int:
    """Full runs of a confirmation, from those by which the fleet was chosen: as many at least (two-stage, Stein 1945).

    A share p with the lower end p - h at `tail`, z of its standard errors below, is confirmed above a goal g with a
    chance of POWER, whose normal quantile is y, by (1 + y / z)^2 h^2 / (p - g)^2 times as many requests.
    """
    had, full = chosen.judgement.runs, bench.full(part)
    least, wanted = max(len(had), bench.least), float(runs)
    if had:
        wider = 1.0 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf(1.0 - tail)
        told = [one.attainment for one in judge_runs(bench.instance, engines, had, tail=tail).classes]
        goals = [slo.attainment for slo in bench.instance.problem.slos]
        over = [max(one.share - goal, 1e-9) for one, goal in zip(told, goals, strict=True)]
        short = max((one.share - one.low) / more for one, more in zip(told, over, strict=True))
        wanted = max(wanted, (wider * short) ** 2 * sum(run.demand.trace.size for run in had) / full)
    count = next((number for number in (least, *REPLICATIONS) if number >= max(wanted, least)), REPLICATIONS[-1])
    return min(count, max(least, most // full))
