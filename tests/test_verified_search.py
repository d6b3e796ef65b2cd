"""The search for the cheapest fleet that holds, and what can go from it, with a judge who knows the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.simulator.metrics import Attainment, Overload
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.search.limits import allowed, fewer_replicas, without_pool
from optimizer.verification import verify
from optimizer.verification.bench import Bench, Verdict, fleet_key
from optimizer.verification.judge import Blame, ClassJudgement, Judgement
from optimizer.verification.verify import (
    ROUNDS,
    SearchResult,
    Waiting,
    cheapest_verified,
    more_replicas,
    without_waste,
)
from search_spaces.problem import Constraints, Routing
from tests.optimizer_cases import instance_of, limit, problem, workload
from tests.small_fleets import apart, pool, replicas, small


@dataclass
class Oracle:
    """A bench whose fleets hold where every pool has as many engines as it needs, and those of other pools if told."""

    instance: Instance
    needed: tuple[int, ...]
    others: bool = False
    volume: float = 1.0
    verdicts: dict[object, Verdict] = field(default_factory=dict)

    def late(self) -> bool:
        return False

    def judged(self, fleet: Fleet) -> bool:
        return fleet_key(fleet) in self.verdicts

    def verdict(self, fleet: Fleet) -> Verdict:
        short = np.full(len(fleet.pools), 0.0 if self.others else 1.0)
        if len(fleet.pools) == len(self.needed):
            short = np.maximum(np.array(self.needed) - replicas(fleet), 0.0)
        held = not short.any()
        share = 1.0 if held else 0.5 / (1.0 + short.sum())
        one = ClassJudgement("default", 0.9, Attainment(share, share, share, 1000), (0.0,) * 4, (0.0,) * 4)
        found = Judgement(1.0, (one,), Overload(False, 0.0, 0.0, "queue"), SimulatedFleet(()), ())
        fault = None if held else Blame(short / short.sum(), 1.0, 0.0)
        said = Verdict(fleet, fleet_cost(self.instance, fleet), found, held, fault)
        return self.verdicts.setdefault(fleet_key(fleet), said)

    def candidate(self, fleet: Fleet) -> Verdict:
        return self.verdict(fleet)

    def look(self, fleet: Fleet) -> Verdict:
        """What a judgement would say, which is not made by that."""
        judged, made = self.judged(fleet), self.verdict(fleet)
        if not judged:
            del self.verdicts[fleet_key(fleet)]
        return made


@contextmanager
def mending(settings_of: Callable[[Bench, Verdict], list[Fleet]]) -> Iterator[None]:
    """Searches that find these other settings for a fleet that missed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "other_settings", settings_of)
        yield


counts = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(deadline=None, max_examples=30)
@given(counts, st.lists(counts, min_size=1, max_size=4))
def test_the_winner_is_the_cheapest_that_was_tried_and_held(
    needed: tuple[int, int], starts: list[tuple[int, int]]
) -> None:
    instance = small()
    bench: Any = Oracle(instance, needed)
    found = cheapest_verified(bench, [apart(instance, *start) for start in starts])
    assert len(bench.verdicts) <= len(starts) * (ROUNDS + 1)
    held = [one for one in bench.verdicts.values() if one.held]
    if found.winner is None:
        assert not held
        assert found.nearest is not None
        assert len(found.others) > ROUNDS
    else:
        assert held == [found.winner]
        assert all(cost <= found.winner.cost * (1 + 1e-9) for cost in [one.cost for one in bench.verdicts.values()])


@settings(deadline=None, max_examples=12)
@given(counts, counts)
def test_nothing_can_go_from_what_is_left(needed: tuple[int, int], extra: tuple[int, int]) -> None:
    instance = small()
    bench: Any = Oracle(instance, needed)
    start = apart(instance, *(n + more for n, more in zip(needed, extra, strict=True)))
    lean = without_waste(bench, SearchResult(bench.verdict(start)), [], lambda: False)
    assert replicas(lean.winner.fleet) == needed
    assert [what for what, _ in lean.one_less] == [
        f"{name}: one replica fewer" for name, count in zip(("prefill-1", "decode-1"), needed, strict=True) if count > 1
    ] or {what for what, _ in lean.one_less} == {"prefill-1: one replica fewer", "decode-1: one replica fewer"}
    assert not any(one.held for _, one in lean.one_less)


def test_a_stopped_search_keeps_what_it_has() -> None:
    instance = small()
    bench: Any = Oracle(instance, (1, 1))
    start = bench.verdict(apart(instance, 3, 3))
    lean = without_waste(bench, SearchResult(start), [], lambda: True)
    assert lean.winner is start
    assert lean.one_less == ()


def test_where_not_all_pools_to_blame_can_grow_those_do_that_may() -> None:
    """One engine more fits, two do not: each pool is tried by itself."""
    instance = small(constraints=Constraints(max_gpus=4))
    bench: Any = Oracle(instance, (1, 3))
    missed = replace(bench.verdict(apart(instance, 1, 2)), blame=Blame(np.array([0.5, 0.5]), 1.0, 0.0))
    assert [replicas(fleet) for fleet in more_replicas(instance, missed, 0)] == [(2, 2), (1, 3)]
    roomy = small()
    assert [replicas(fleet) for fleet in more_replicas(roomy, missed, 0)] == [(2, 3)]
    assert more_replicas(roomy, missed, ROUNDS) == []
    (larger,) = more_replicas(roomy, replace(missed, fleet=apart(roomy, 40, 40)), 4)
    assert replicas(larger) == (59, 59)
    tight = small(constraints=Constraints(max_gpus=81))
    many = more_replicas(tight, replace(missed, fleet=apart(tight, 40, 40)), 4)
    assert [replicas(fleet) for fleet in many] == [(41, 40), (40, 41)]  # nineteen more do not fit


@dataclass
class Limited(Oracle):
    """An oracle whose fleets of the first batch limit hold, and of others only with ten times as many engines."""

    def verdict(self, fleet: Fleet) -> Verdict:
        needed, self.needed = self.needed, tuple(10 * count for count in self.needed)
        if fleet.pools[-1].seqs == limit(small(), 0):
            self.needed = needed
        found = super().verdict(fleet)
        self.needed = needed
        return found


def first_limit(bench: Bench, missed: Verdict) -> list[Fleet]:
    """The first batch limit in the last pool."""
    *others, last = missed.fleet.pools
    return [Fleet((*others, replace(last, seqs=limit(small(), 0))))]


@settings(deadline=None, max_examples=30)
@given(counts, counts)
def test_other_settings_are_tried_before_more_engines(needed: tuple[int, int], start: tuple[int, int]) -> None:
    instance = small()
    bench: Any = Limited(instance, needed)
    with mending(first_limit):
        found = cheapest_verified(bench, [apart(instance, *start)])
    first, second, *rest = [*(tried for _, tried in found.others), *([found.winner] if found.winner else [])]
    assert (replicas(first.fleet), first.fleet.pools[-1].seqs) == (start, limit(instance, 1))
    rest = [second, *rest]
    assert all(one.fleet.pools[-1].seqs == limit(instance, 0) for one in rest)  # repairs are of what came nearer
    assert found.repairs == len(found.others) - 1 + (found.winner is not None)
    if all(np.array(start) >= needed):
        assert (replicas(second.fleet), second.cost) == (start, first.cost)
        assert found.winner is second


def test_fewer_replicas_than_those_of_a_fleet_that_was_refuted_are_not_simulated() -> None:
    waiting = Waiting(small())
    waiting.refute(apart(small(), 3, 2))
    dominated = {counts: waiting.dominated(apart(small(), *counts)) for counts in ((3, 2), (2, 2), (4, 1), (3, 3))}
    assert dominated == {(3, 2): True, (2, 2): True, (4, 1): False, (3, 3): False}
    other = Fleet(tuple(replace(one, seqs=limit(small(), 0)) for one in apart(small(), 1, 1).pools))
    assert not waiting.dominated(other)


@settings(deadline=None, max_examples=15)
@given(counts, st.lists(counts, min_size=1, max_size=4), st.integers(2, 12))
def test_repairs_end_and_keep_the_limits(needed: tuple[int, int], starts: list[tuple[int, int]], gpus: int) -> None:
    instance = small(constraints=Constraints(max_gpus=gpus))
    bench: Any = Oracle(instance, needed)
    fleets = [fleet for fleet in (apart(instance, *start) for start in starts) if allowed(instance, fleet)]
    found = cheapest_verified(bench, fleets)
    tried = [one.fleet for one in bench.verdicts.values()]
    assert all(allowed(instance, fleet) for fleet in tried)
    assert found.winner is None or found.winner.held


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_no_waste_that_the_gateway_cannot_route(sizes: list[int]) -> None:
    """A threshold router gives each length to one pool: a pool that would hand its own to two others stays."""
    lengths = ((500, 100, 0.4), (1500, 100, 0.3), (4000, 100, 0.3))
    instance = by_threshold(lengths)
    parts = (pool(instance, f"colocated-{k + 1}", Role.COLOCATED, sizes[k]) for k in range(3))
    fleet = Fleet(tuple(replace(one, route=np.eye(3)[k]) for k, one in enumerate(parts)))
    bench: Any = Oracle(instance, (0, 0, 0))
    lean = without_waste(bench, SearchResult(bench.verdict(fleet)), [], lambda: False)
    assert all(allowed(instance, one.fleet) for one in (lean.winner, *(tried for _, tried in lean.others)))
    assert replicas(lean.winner.fleet) == (1, 1, 1)


@cache
def by_threshold(lengths: tuple[tuple[float, float, float], ...]) -> Instance:
    limits = Constraints(routing=Routing.THRESHOLD)
    return instance_of(problem(workload=workload(3.0, lengths), constraints=limits))


def test_one_colocated_pool_takes_the_place_of_two_where_it_costs_less_and_holds() -> None:
    """Whatever the formulas say of it, if they think it likely: each shape once, at most as dear as the winner."""
    instance = small()
    start = apart(instance, 6, 6)
    refusing: Any = Oracle(instance, (6, 6))
    kept = without_waste(refusing, SearchResult(refusing.verdict(start)), [], lambda: False)
    assert fleet_key(kept.winner.fleet) == fleet_key(start)
    looked = [one for _, one in kept.others if len(one.fleet.pools) == 1]
    assert looked
    assert all(one.cost < kept.winner.cost for one in looked)
    assert all([pool.role for pool in one.fleet.pools] == [Role.COLOCATED] for one in looked)
    assert len({one.fleet.pools[0].shape for one in looked}) == len(looked)
    taking: Any = Oracle(instance, (6, 6), others=True)
    found = without_waste(taking, SearchResult(taking.verdict(start)), [], lambda: False).winner
    assert len(found.fleet.pools) == 1
    assert found.cost < kept.winner.cost


def test_a_pool_that_goes_leaves_its_flows_to_the_others() -> None:
    instance = small()
    parts = (
        pool(instance, "prefill-1", Role.PREFILL, 1, 0.6),
        pool(instance, "decode-1", Role.DECODE, 1, 0.45),
        pool(instance, "decode-2", Role.DECODE, 1, 0.15),
        pool(instance, "colocated-1", Role.COLOCATED, 1, 0.4),
    )
    fleet = Fleet(parts)
    less = without_pool(fleet, 2)
    assert less is not None
    np.testing.assert_allclose([one.route[0] for one in less.pools], [0.6, 0.6, 0.4], rtol=1e-9)
    less = without_pool(fleet, 3)
    assert less is not None
    np.testing.assert_allclose([one.route[0] for one in less.pools], [1.0, 0.75, 0.25], rtol=1e-9)
    assert without_pool(fleet, 0) is None
    assert without_pool(Fleet(parts[:2]), 0) is None
    names = [what for what, _ in fewer_replicas(instance, fleet, 1)]
    assert sorted(names) == [f"{name}: one replica fewer" for name in ("colocated-1", "decode-1", "decode-2")]
