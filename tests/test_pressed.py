"""A fleet near its capacity is confirmed only if it does not fall behind at a somewhat higher rate either."""

from __future__ import annotations

from functools import cache

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import Instance
from optimizer.verification.bench import MORE, Bench, gives_way
from tests.optimizer_cases import instance_of, problem, slo, workload
from tests.small_fleets import pool

BUCKETS = ((1000, 2, 0.7), (4000, 2, 0.3))


@cache
def busy(share: float) -> tuple[Instance, Fleet]:
    """One engine that answers with two tokens, its prompts busy for a share of the time; limits do not matter."""

    def at(rate: float) -> tuple[Instance, Fleet]:
        limits = slo(ttft=100.0, tpot=100.0, attainment=0.5)
        instance = instance_of(problem(workload=workload(rate=rate, buckets=BUCKETS), slos=(limits,)))
        return instance, Fleet((pool(instance, "colocated-1", Role.COLOCATED, 1),))

    instance, fleet = at(1.0)
    return at(share / pool_state(instance, fleet.pools[0], 1.0).utilization)


def test_a_fleet_that_would_fall_behind_gives_way_and_others_are_let_off() -> None:
    """Overload shows in one run at MORE times the rate; what is not near its capacity is not even run."""
    for share, volume, behind in ((0.97, MORE, True), (0.5, 1.0, False)):
        instance, fleet = busy(share)
        bench = Bench(instance, 0, 20_000, volume=volume)
        found = gives_way(bench, bench.part(fleet), 1)
        assert (found is not None) is behind
        if found is not None:
            assert found.overload.overloaded
