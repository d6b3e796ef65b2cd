"""The last word on a fleet that was chosen: its requests drawn anew, which no choice was made by.

The search looks at many fleets with the same requests. Of fleets that miss a goal narrowly, what it likes best is one
that these requests flatter, so the winner is simulated once more, with seeds that were never used and as many full runs
as it took to choose it. Where the lower end of every class's interval reaches its goal, the fleet comes out of a crowd
and, near its capacity, keeps up with more (`gives_way`), it is confirmed, and these runs are what the plan tells. Else
it is refuted, and the search goes on as if it had missed: the next that it chooses gets the next confirmation.

The k-th confirmation has intervals beyond whose lower end the true share lies with a chance of LEVEL / 2^k. A fleet
that misses a goal passes the k-th with that chance at most, so that the chance that any is ever printed is at most
LEVEL (1/2 + 1/4 + ...) = LEVEL, whatever the search does in between: no test is repeated until it succeeds.

Near its capacity: a queue at a share rho of it remembers of the order of 1 / (1 - rho)^2 requests, and one beyond it
grows by rho - 1 of each: at rho = 1.01 a run of 50,000 requests ends before most of them are late. So of a fleet that
the formulas say to be this busy more is asked: not to fall behind at a somewhat higher rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist

from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.simulator import Router
from optimizer.fleets.build_plan import utilization
from optimizer.fleets.fleet import Fleet
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import Instance

from .bench import Bench, Slice, Verdict, fleet_key
from .judge import MOST_JUDGED, MOST_RUNS, Judgement, Outcome, Run, judge_runs

LEVEL = 0.025
"""Chance at most that a fleet which misses a goal is said to hold [1]."""
POWER = 0.9
"""Chance at least that a fleet is confirmed which is as good as the runs showed by which it was chosen [1]."""
MOST_CONFIRMED = 8
"""Confirmations of one search; fleets that are refuted so often are no chance."""
MOST_BETWEEN = 2 * MOST_JUDGED
"""Requests of the second confirmation of a fleet that the first left between."""
APART = MOST_RUNS + 1
"""Distance of the numbers of two confirmations' first runs: each has up to 32 runs, and one with a crowd."""
BUSY = 0.95
"""Busy share of a resource, by formula, from which a fleet is near its capacity: 1 / (1 - rho)^2 is 400 there [1]."""
MORE = 1.05
"""Rate at which it must keep up, over the planned one; 2 % of the requests piling up is what counts as falling behind,
so that what passes has 3 % or so left."""


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
    return found if number is None else confirmed_once(bench, chosen, number, MOST_RUNS, MOST_BETWEEN)


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
    engines = bench.engines_of(part.fleet)
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
    engines = bench.engines_of(part.fleet)
    first, count = APART * number, enough(bench, part, engines, chosen, tail_of(number), runs, most)
    made = bench.runs(part, engines, bench.full(part), first, first + count)
    told, last = judge_runs(instance, engines, made), first + MOST_RUNS
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
        classes = [(item.attainment, item.goal) for item in judge_runs(bench.instance, engines, had, tail=tail).classes]
        short = max((seen.share - seen.low) / max(seen.share - goal, 1e-9) for seen, goal in classes)
        wanted = max(wanted, (wider * short) ** 2 * sum(run.demand.trace.size for run in had) / full)
    return min(max(least, math.ceil(wanted)), max(least, min(most // full, MOST_RUNS)))


def near_capacity(instance: Instance, fleet: Fleet, volume: float) -> bool:
    """Whether the formulas say that some resource of a fleet is busy for more than BUSY of the time."""
    states = ((pool, pool_state(instance, pool, volume)) for pool in fleet.pools)
    return any(busy > BUSY for pool, state in states for busy in utilization(instance, pool, state).values())


def gives_way(bench: Bench, part: Slice, engines: SimulatedFleet, number: int) -> Judgement | None:
    """What a run of requests `number` at MORE times the rate says of a fleet that falls behind in it; else None."""
    if not near_capacity(bench.instance, part.fleet, part.volume):
        return None
    found = at_more(bench, part, engines, number)
    return found if found.overload.overloaded else None


def at_more(bench: Bench, part: Slice, engines: SimulatedFleet, number: int, more: float = MORE) -> Judgement:
    """What a full run of requests `number` at `more` times the rate says of a fleet."""
    run = Run.of(bench.drawn(part, bench.full(part), number, more), engines)
    return judge_runs(bench.instance, engines, [run])


def by_requests(bench: Bench, winner: Verdict) -> Verdict | None:
    """What the requests that proved the winner say of it there; None where the routers choose alike.

    They do for one engine, and for those of a problem with `fewest_requests`. It holds by the interval that decided of
    the winner.
    """
    engines = winner.judgement.engines
    if not any(pool.router is Router.LENGTH_AWARE and pool.replicas > 1 for pool in engines.pools):
        return None
    counting = replace(engines, pools=tuple(replace(pool, router=Router.LEAST_LOADED) for pool in engines.pools))
    runs = [Run.of(proof.demand, counting) for proof in winner.judgement.runs]
    held = judge_runs(bench.instance, counting, runs, tail=tail_of(max(winner.confirmation, 1))).proven
    return bench.settled(winner.fleet, judge_runs(bench.instance, counting, runs), held=held)
