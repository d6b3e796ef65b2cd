"""Fleets that mix GPU types within a stage: never dearer than brute force finds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.evaluate import Evaluation, evaluate, goodput_volume, holds_at, still_holds
from optimizer.fleets.fleet import Fleet, bisection, can_hand_over, fleet_cost, keeps_limits
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, Instance, at_volume
from optimizer.plans.records import ALIKE
from optimizer.search.mixtures import best_serving, goodput_gap, leanest
from optimizer.search.search import (
    FleetSearch,
    Picks,
    cheapest_held,
    evaluated,
    pool_survives,
    smallest_batches,
    unmixed,
    with_near_fleets,
)
from optimizer.search.settings import keeping_up, make_settings, sending_work
from optimizer.verification.bench import make_bench
from optimizer.verification.verify import Loop
from search_spaces.problem import Constraints, Goal, Objective, Problem, Routing
from tests.optimizer_cases import instance_of, offer, problem, slo, space, workload
from tests.small_fleets import alone, apart, small

Buckets = tuple[tuple[float, float, float], ...]

LONG_AND_SHORT = ((300.0, 100.0, 0.7), (6000.0, 200.0, 0.3))
NEAR = ((1000.0, 200.0, 0.7), (4000.0, 100.0, 0.3))
HALVES = ((200.0, 20.0, 0.5), (7000.0, 400.0, 0.5))
TOGETHER, APART = (Role.COLOCATED,), (Role.PREFILL, Role.DECODE)
CHEAPER = 1.0 - 1e-6

COLOCATED_CASES = [
    (LONG_AND_SHORT, 13.0, ("H100", "L40S")),
    (LONG_AND_SHORT, 25.0, ("H100", "L40S")),
    (NEAR, 18.0, ("H100", "L40S")),
    (HALVES, 6.0, ("H100", "L40S")),
    (((741.0, 322.0, 0.66), (1369.0, 60.0, 0.34)), 39.0, ("H200", "L40S")),
    (((3542.0, 43.0, 0.66), (558.0, 65.0, 0.34)), 30.0, ("H200", "L40S")),
]
"""Lengths, requests per second and GPU types; TTFT within 1 s and TPOT within 50 ms for nine requests in ten.

In the last two, a part of one length alone on the cheaper GPU holds, against the order of comparative advantage.
"""

APART_CASES = [
    (((102.0, 137.0, 0.47), (2212.0, 127.0, 0.53)), 40.0, ("H200", "L40S")),
    (((2870.0, 45.0, 0.3), (800.0, 300.0, 0.7)), 14.0, ("H100", "A100-80")),
]


def posed(
    buckets: Buckets, rate: float, cards: tuple[str, ...], roles: tuple[Role, ...] = TOGETHER, **more: object
) -> Problem:
    fields: dict[str, object] = {
        "workload": workload(rate, buckets),
        "slos": (slo(1.0, 0.05, 0.9),),
        "space": space(tensor_parallel=(1,), roles=roles),
        "offers": tuple(offer(card) for card in cards),
    }
    return problem(**(fields | more))


@cache
def known(buckets: Buckets, rate: float, cards: tuple[str, ...], roles: tuple[Role, ...] = TOGETHER) -> FleetSearch:
    return evaluated(instance_of(posed(buckets, rate, cards, roles)))


def cost_of(given: FleetSearch, fleet: Fleet) -> float:
    return fleet_cost(given.instance, fleet) if fleet.pools else np.inf


def some_parts_hold(given: FleetSearch, picks: Picks, parts: int) -> bool:
    """Whether two pools hold, with some share of each flow in equal steps, beside others that serve all of a role.

    As of any fleet, their network cards have to carry what is handed over.
    """
    need = keeping_up(given.instance, given.settings) * given.instance.flows.rate
    (i, a), (j, b), *others = picks
    rest = [given.pool(*pick) for pick in others]
    for steps in product(np.linspace(0.0, 1.0, parts), repeat=need.shape[1]):
        share = np.array(steps)
        if share.any() and (share < 1.0).any() and need[i] @ share <= a and need[j] @ (1.0 - share) <= b:
            mine = [
                replace(given.pool(*pick), route=one) for pick, one in zip(picks, (share, 1.0 - share), strict=False)
            ]
            fleet = Fleet((*mine, *rest))
            states = tuple(pool_state(given.instance, pool, 1.0) for pool in fleet.pools)
            if (
                all(one.stable for one in states)
                and Evaluation(given.instance, fleet, states).holds
                and can_hand_over(given.instance, fleet)
                and still_holds(given.instance, fleet)
            ):
                return True
    return False


def cheapest_of_any_parts(given: FleetSearch, below: float, parts: int = 9, most: int = 8) -> float:
    """Brute force: the least cost of two pools of other offers in one stage, flows parted in eighths, `below` if none.

    Every count up to `most`, beside each pool of up to two engines of the other role.
    """
    role, offers = given.settings.role, given.instance.tables.offer[given.settings.shape]
    counts, fleets = range(1, most + 1), []
    for stage in np.unique(role):
        beside = product(np.flatnonzero(role == 1 - stage).tolist(), (1, 2)) if stage != COLOCATED else ()
        others: list[Picks] = [(pick,) for pick in beside] or [()]
        pairs = [
            two for two in combinations(np.flatnonzero(role == stage).tolist(), 2) if offers[two[0]] != offers[two[1]]
        ]
        for (i, j), a, b, rest in product(pairs, counts, counts, others):
            picks: Picks = ((i, a), (j, b), *rest)
            fleets.append((fleet_cost(given.instance, given.fleet(picks)), picks))
    cheaper = (
        cost for cost, picks in sorted(fleets) if cost < below * CHEAPER and some_parts_hold(given, picks, parts)
    )
    return next(cheaper, below)


@pytest.mark.parametrize(
    "case", [*((*case, TOGETHER) for case in COLOCATED_CASES), *((*case, APART) for case in APART_CASES)]
)
def test_no_two_pools_of_one_role_are_cheaper(case: tuple[Buckets, float, tuple[str, ...], tuple[Role, ...]]) -> None:
    given = known(*case)
    fleet = leanest(given)
    assert evaluate(given.instance, fleet).holds
    assert cheapest_of_any_parts(given, cost_of(given, fleet)) == cost_of(given, fleet)


def test_long_prompts_on_the_dear_gpu_and_short_ones_on_the_cheap_one() -> None:
    """One H100 and one L40S do what takes two H100, for a third less."""
    given = known(LONG_AND_SHORT, 11.5, ("H100", "L40S"))
    single, mixed = unmixed(given), leanest(given)
    assert [pool.replicas for pool in single.pools] == [2]
    prices = {one.accelerator.name: one.usd_per_hour for one in given.instance.problem.offers}
    assert cost_of(given, mixed) == pytest.approx(prices["H100"] + prices["L40S"])
    assert cost_of(given, mixed) < 0.67 * cost_of(given, single)
    assert cheapest_of_any_parts(given, cost_of(given, single)) == cost_of(given, mixed)
    cards = [given.instance.problem.offers[given.instance.tables.offer[pool.shape]] for pool in mixed.pools]
    routes = {card.accelerator.name: pool.route.tolist() for card, pool in zip(cards, mixed.pools, strict=True)}
    assert routes == {"L40S": [1.0, 0.0], "H100": [0.0, 1.0]}


def test_a_gateway_of_thresholds_gets_each_length_whole_and_neighbours_together() -> None:
    buckets = ((250.0, 60.0, 0.3), (900.0, 200.0, 0.3), (2500.0, 80.0, 0.2), (6500.0, 250.0, 0.2))
    constraints = Constraints(routing=Routing.THRESHOLD)
    given = evaluated(instance_of(posed(buckets, 14.0, ("H100", "L40S", "A100-80"), constraints=constraints)))
    single, fleet = unmixed(given), leanest(given)
    assert cost_of(given, fleet) < cost_of(given, single) * CHEAPER
    for pool in fleet.pools:
        served = np.flatnonzero(pool.route)
        assert set(pool.route.tolist()) <= {0.0, 1.0}
        assert np.diff(served).tolist() == [1] * (served.size - 1)


# --- most goodput, or most per dollar: against every small fleet, and bounds that no fleet exceeds

SHORT_AND_LONG = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))
ENGINES = space(tensor_parallel=(1,), max_num_seqs=(32, 128))
OFFERS = (offer("H100"), offer("L40S"))


@cache
def any_limits() -> tuple[Instance, FleetSearch]:
    """One request per second on H100s and L40S."""
    instance = instance_of(
        problem(workload=workload(1.0, SHORT_AND_LONG), slos=(slo(1.0, 0.05, 0.9),), space=ENGINES, offers=OFFERS)
    )
    return instance, evaluated(instance)


def sought(goal: Objective, limits: Constraints) -> FleetSearch:
    instance, search = any_limits()
    asked = replace(instance.problem, objective=goal, constraints=limits)
    return FleetSearch.of(replace(instance, problem=asked), search.settings)


def every_picks(search: FleetSearch, most: int) -> list[Picks]:
    """One pool, or two that can talk, of up to `most` engines each: brute force."""
    counts, shapes, talks = range(1, most + 1), search.settings.shape, search.instance.tables.talks
    ends = [np.flatnonzero(search.settings.role == role).tolist() for role in (PREFILL, DECODE, COLOCATED)]
    alone = [((at, n),) for at, n in product(ends[2], counts)]
    pairs = product(*ends[:2], counts, counts)
    return [*alone, *(((p, n), (d, m)) for p, d, n, m in pairs if talks[shapes[p], shapes[d]])]


def every_fleet(search: FleetSearch, most: int = 4) -> list[Fleet]:
    """All fleets of one pool or two of up to `most` engines each, within the limits."""
    return [fleet for fleet in map(search.fleet, every_picks(search, most)) if keeps_limits(search.instance, fleet)]


@pytest.mark.parametrize("limits", [Constraints(budget=8.0), Constraints(max_gpus=3), Constraints(budget=3.0)])
def test_no_small_fleet_serves_more(limits: Constraints) -> None:
    search = sought(Objective(Goal.MAX_GOODPUT), limits)
    instance = search.instance
    fleet, most = best_serving(search)
    assert keeps_limits(instance, fleet)
    assert evaluate(instance, fleet, most * (1.0 - 5e-3)).holds
    enough = most * (1.0 + 2.0 * ALIKE)
    assert not [other for other in every_fleet(search) if evaluate(instance, other, enough).holds]
    gap = goodput_gap(search, (fleet, most), 10.0)
    assert 0.0 <= gap < 0.5


@cache
def goodputs() -> list[tuple[Fleet, float]]:
    """Of all small fleets without limits, whatever the goal."""
    search = sought(Objective(), Constraints())
    return [(fleet, goodput_volume(search.instance, fleet)) for fleet in every_fleet(search, 3)]


@pytest.mark.parametrize(("least", "most"), [(5.0, 10.0), (10.0, 40.0), (2.0, 4.0)])
def test_no_small_fleet_has_more_per_dollar(least: float, most: float) -> None:
    search = sought(Objective(Goal.MAX_GOODPUT_PER_DOLLAR, least, most), Constraints())
    instance, best = search.instance, best_serving(search)
    assert best[1] >= least
    per_dollar, *ratios = (
        min(serves, most) / fleet_cost(instance, fleet) for fleet, serves in (best, *goodputs()) if serves >= least
    )
    assert per_dollar >= max(ratios) * (1.0 - 2.0 * ALIKE)
    assert goodput_gap(search, best, 10.0) is not None


# --- fleets that hold by evaluation: the cheapest against all others, engines that keep up, and no engine too many

MIX = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))
UNLIKE = ((6000.0, 20.0, 0.5), (200.0, 600.0, 0.5))
"""Prompts that take network cards long and decode steps hardly at all, and the other way round."""
SMALL = space(tensor_parallel=(1, 2), max_num_seqs=(32, 128))


@cache
def unit(*cards: str) -> Instance:
    """Llama-3.1-8B at one request per second."""
    offers = tuple(offer(card) for card in cards)
    return instance_of(problem(workload=workload(1.0, MIX), slos=(slo(1.0, 0.05, 0.9),), space=SMALL, offers=offers))


def at(rate: float, *cards: str, **limits: float) -> Instance:
    instance = at_volume(unit(*cards), rate)
    load = replace(instance.problem.workload, request_rate=rate)
    constraints = Constraints(**limits)
    return replace(instance, problem=replace(instance.problem, workload=load, constraints=constraints))


def every_cheaper(known: FleetSearch, below: float, most: int = 6) -> list[float]:
    """Costs of all fleets of one or two pools that hold and cost less."""
    costs = {picks: fleet_cost(known.instance, known.fleet(picks)) for picks in every_picks(known, most)}
    return [cost for picks, cost in costs.items() if cost < below and known.holds(picks)]


@settings(max_examples=6)
@given(st.floats(0.5, 45.0))
def test_the_cheapest_that_holds_is_found(rate: float) -> None:
    instance = at(rate, "H100", "L40S")
    found = cheapest_held(evaluated(instance), instance.problem)
    fresh = evaluated(instance)
    fleet = fresh.fleet(found[0])
    assert evaluate(instance, fleet).holds
    assert found[1] == pytest.approx(fleet_cost(instance, fleet))
    assert every_cheaper(fresh, found[1] * (1.0 - 1e-6)) == []


@settings(max_examples=4)
@given(st.floats(300.0, 900.0))
def test_no_number_of_decode_engines_of_a_large_fleet_is_skipped(rate: float) -> None:
    """Ranges of decode engines are ruled out as a whole: every number of them, each with the fewest prefill engines."""
    instance = at(rate, "H100")
    known = evaluated(instance)
    found = cheapest_held(known, instance.problem, usable=known.settings.role != COLOCATED)
    prefills, decodes = (np.flatnonzero(known.settings.role == role).tolist() for role in (PREFILL, DECODE))
    compared = 0
    for first, second in product(prefills, decodes):
        least, most = int(known.least[second]), int(known.least[first]) * 2 + 8
        for decode in ((second, engines) for engines in range(least, least * 3 // 2)):
            misses = partial(misses_beside, known, first, decode)
            fewest = bisection(0, most + 1, misses)[1]
            if fewest <= most:
                compared += 1
                fleet = known.fleet(((first, fewest), decode))
                assert fleet_cost(instance, fleet) >= found[1] * (1.0 - 1e-6)
    assert compared


def misses_beside(known: FleetSearch, prefill: int, decode: tuple[int, int], engines: int) -> bool:
    """Whether a fleet of this many prefill engines of a setting and a decode pool does not hold."""
    return not known.holds(((prefill, engines), decode))


@settings(max_examples=10)
@given(st.floats(0.5, 60.0), st.integers(0, 99), st.integers(1, 12))
def test_a_pool_of_fewer_engines_than_keep_up_falls_behind(rate: float, index: int, engines: int) -> None:
    """The bound from which the search starts: below it no pool is stable; and one engine more never makes it miss."""
    instance = at(rate, "H100")
    every = make_settings(instance)
    known = FleetSearch.of(instance, every)
    setting = index % every.size
    if engines < keeping_up(instance, every)[setting] @ instance.flows.rate * (1.0 - 1e-9):
        assert not known.state(setting, engines).stable
    misses = [evaluate(instance, known.fleet(((setting, count),))) for count in (engines, engines + 1)]
    if every.role[setting] == 2:
        assert misses[1].attainment[0] >= misses[0].attainment[0] - 1e-6


@pytest.mark.parametrize("cards", [1.3, 2.0])
def test_steps_and_cards_are_busy_at_once(cards: float) -> None:
    """Cards so many times as busy as steps, with other flows: as few engines hold as the busier of the two takes."""
    load, limits = workload(40.0, UNLIKE), (slo(4.0, 0.1, 0.9),)
    made = instance_of(problem(workload=load, slos=limits, space=SMALL, offers=(offer("H100"),)))
    every, rate = make_settings(made), made.flows.rate
    first, later = (int(np.flatnonzero(every.role == role)[0]) for role in (0, 1))
    steps = keeping_up(made, every)[later]
    slower = (steps @ rate) / (sending_work(made, every)[later] @ rate) * cards
    instance = replace(made, tables=replace(made.tables, link=made.tables.link / slower))
    known, sent = FleetSearch.of(instance, every), sending_work(instance, every)[later]
    fewest = next(count for count in range(1, 9) if still_holds(instance, known.fleet(((first, 40), (later, count)))))
    assert fewest == known.least[later] == np.ceil(max(steps @ rate, sent @ rate))
    assert fewest < np.maximum(steps, sent) @ rate


# --- fleets that cost the same: the one with the most room is taken, then the simplest


def tied(known: FleetSearch, cost: float, most: int = 8) -> list[Fleet]:
    """All fleets of one pool or two that hold at just this cost."""
    fleets = [(picks, known.fleet(picks)) for picks in every_picks(known, most)]
    same = [(picks, fleet) for picks, fleet in fleets if abs(fleet_cost(known.instance, fleet) - cost) < 1e-4]
    return [fleet for picks, fleet in same if known.holds(picks)]


@pytest.mark.parametrize("rate", [27.0, 39.0, 52.0])
def test_of_fleets_of_the_least_cost_one_that_survives_loss_and_slow_gpus_has_most_room(rate: float) -> None:
    instance = at(rate, "H100")
    known = evaluated(instance)
    found = cheapest_held(known, instance.problem)
    rivals = tied(evaluated(instance), found[1])
    assert len(rivals) > 1
    fleet = known.fleet(found[0])
    survivors = [one for one in rivals if all(pool_survives(instance, each) for each in one.pools)]
    assert all(pool_survives(instance, each) for each in fleet.pools) is bool(survivors)
    slow = instance.on_slow_gpus
    sturdy = [one for one in survivors or rivals if holds_at(slow, one)]
    assert holds_at(slow, fleet) is bool(sturdy)
    best = max(goodput_volume(instance, one) for one in sturdy or survivors or rivals)
    assert goodput_volume(instance, fleet) >= best * (1.0 - 2.0 * ALIKE)
    assert goodput_volume(instance, smallest_batches(known.instance, fleet)) >= best * (1.0 - 4.0 * ALIKE)
    near = [fleet_cost(instance, rival) for rival in with_near_fleets(known, fleet)]
    assert near == sorted(near, reverse=True)  # others of that cost before those which only come near the goals
    assert near[:2] == pytest.approx([found[1]] * 2)


@pytest.mark.parametrize("rate", [40.0, 64.0, 94.0])
def test_the_smallest_batch_limit_still_keeps_up_with_one_replica_fewer(rate: float) -> None:
    limits = space(tensor_parallel=(1,), max_num_seqs=(16, 24, 32, 48, 64, 96, 128, 192, 256))
    load, slos = workload(rate, MIX), (slo(1.0, 0.03, 0.9),)
    instance = instance_of(problem(workload=load, slos=slos, space=limits, offers=(offer("H100"),)))
    known = evaluated(instance)
    fleet = known.fleet(cheapest_held(known, instance.problem)[0])
    pool, smallest = fleet.pools[0], smallest_batches(instance, fleet).pools[0]
    assert smallest.seqs < pool.seqs
    assert pool_survives(instance, pool)
    assert pool_survives(instance, smallest)
    assert not pool_survives(instance, replace(smallest, seqs=smallest.seqs - 1))


@pytest.mark.parametrize("load", [1.0, 1.0 + ALIKE / 4.0])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_smallest_batch_limit_of_a_fleet_at_its_capacity_misses_no_goal(replicas: int, load: float) -> None:
    """At the largest rate that it serves there is nothing to give away, not even what counts as rounding."""
    limits = space(tensor_parallel=(1,), max_num_seqs=tuple(range(16, 97)))
    slos = (slo(1.0, 0.03, 0.9),)
    instance = instance_of(problem(workload=workload(10.0, MIX), slos=slos, space=limits, offers=(offer("H100"),)))
    fleet = alone(instance, replicas, seqs=80)
    full = at_volume(instance, goodput_volume(instance, fleet) / load)
    assert holds_at(full, fleet)
    assert holds_at(full, smallest_batches(full, fleet))


def test_of_candidates_that_cost_the_same_the_one_with_most_room_is_simulated_first() -> None:
    """At 6 req/s prompts are what is short: one prefill engine more is worth more than one decode engine more."""
    instance: Instance = small()
    fleets = [apart(instance, 2, 4), apart(instance, 4, 2), apart(instance, 3, 3)]
    assert all(pool_survives(instance, one) for fleet in fleets for one in fleet.pools)
    rooms = [goodput_volume(instance, fleet) for fleet in fleets]
    first = Loop(make_bench(instance), fleets).cheapest()
    assert first.fleet is fleets[int(np.argmax(rooms))]
