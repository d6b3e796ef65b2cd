"""The search for the cheapest fleet that holds, and what can go from it, with a judge who knows the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.simulator.metrics import Attainment, Overload
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.rivals.fewer import fewer_replicas, without_pool
from optimizer.verification.blame import Blame
from optimizer.verification.judge import ClassJudgement, Judgement
from optimizer.verification.verdict import Verdict, fleet_key
from optimizer.verification.verify import ROUNDS, cheapest_verified, slower
from optimizer.verification.waste import without_waste
from search_spaces.problem import Constraints
from tests.small_fleets import apart, pool, replicas, small


@dataclass
class Oracle:
    """A bench whose fleets hold where every pool has as many engines as it needs."""

    instance: Instance
    needed: tuple[int, ...]
    verdicts: dict[object, Verdict] = field(default_factory=dict)

    def judged(self, fleet: Fleet) -> bool:
        return fleet_key(fleet) in self.verdicts

    def verdict(self, fleet: Fleet, most: int = 8) -> Verdict:
        short = np.maximum(np.array(self.needed) - replicas(fleet), 0.0)
        held = not short.any()
        share = 1.0 if held else 0.5 / (1.0 + short.sum())
        one = ClassJudgement("default", 0.9, Attainment(share, share, share, 1000), (0.0,) * 4, (0.0,) * 4)
        found = Judgement(1.0, (one,), Overload(False, 0.0, 0.0, "queue"), SimulatedFleet(()), ())
        fault = None if held else Blame(short / short.sum(), 1.0, 0.0)
        said = Verdict(fleet, fleet_cost(self.instance, fleet), found, held, fault)
        return self.verdicts.setdefault(fleet_key(fleet), said)


counts = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(deadline=None, max_examples=60)
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
        assert len(found.missed) > ROUNDS
    else:
        assert held == [found.winner]
        assert all(cost <= found.winner.cost * (1 + 1e-9) for cost in [one.cost for one in bench.verdicts.values()])


@settings(deadline=None, max_examples=60)
@given(counts, counts)
def test_nothing_can_go_from_what_is_left(needed: tuple[int, int], extra: tuple[int, int]) -> None:
    instance = small()
    bench: Any = Oracle(instance, needed)
    start = apart(instance, *(n + more for n, more in zip(needed, extra, strict=True)))
    lean = without_waste(bench, bench.verdict(start), [], lambda: False)
    assert replicas(lean.winner.fleet) == needed
    assert [what for what, _ in lean.one_less] == [
        f"{name}: one replica less" for name, count in zip(("prefill-1", "decode-1"), needed, strict=True) if count > 1
    ] or {what for what, _ in lean.one_less} == {"prefill-1: one replica less", "decode-1: one replica less"}
    assert not any(one.held for _, one in lean.one_less)


def test_a_stopped_search_keeps_what_it_has() -> None:
    instance = small()
    bench: Any = Oracle(instance, (1, 1))
    start = bench.verdict(apart(instance, 3, 3))
    lean = without_waste(bench, start, [], lambda: True)
    assert lean.winner is start
    assert lean.one_less == ()


def test_repairs_keep_the_limits() -> None:
    instance = small(constraints=Constraints(max_gpus=4))
    bench: Any = Oracle(instance, (4, 1))
    found = cheapest_verified(bench, [apart(instance, 1, 1)])
    assert found.winner is None
    assert found.nearest is not None
    assert replicas(found.nearest.fleet) == (3, 1)
    assert max(sum(replicas(one.fleet)) for one in bench.verdicts.values()) <= 4


def test_a_repair_by_search_is_tried_once_and_judged_like_any_other() -> None:
    instance = small()
    bench: Any = Oracle(instance, (5, 1))
    asked: list[Instance] = []

    def resolve(stricter: Instance) -> Fleet:
        asked.append(stricter)
        return apart(instance, 5, 1)

    found = cheapest_verified(bench, [apart(instance, 1, 1)], resolve)
    assert found.winner is not None
    assert replicas(found.winner.fleet) == (5, 1)
    assert found.repairs == len(found.missed) - 1 + found.by_repair
    (stricter,) = asked
    np.testing.assert_allclose(stricter.tables.prefill_time, 1.1 * instance.tables.prefill_time)
    np.testing.assert_array_equal(stricter.tables.decode_base, instance.tables.decode_base)
    later = slower(instance, prompts=False).tables
    np.testing.assert_allclose(later.decode_base, 1.1 * instance.tables.decode_base)


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
    assert sorted(names) == [f"{name}: one replica less" for name in ("colocated-1", "decode-1", "decode-2")]
