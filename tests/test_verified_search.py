"""The search for the cheapest fleet that holds, with a judge who knows the answer: repairs, settings, what can go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet, allowed, fewer_replicas, fleet_cost
from optimizer.loads.effort import Brake, Effort, Level
from optimizer.loads.instance import Instance, as_planned
from optimizer.recommend.changed_problem import CONFIDENCE, solution_of
from optimizer.search.search import FleetSearch, evaluated
from optimizer.verification.bench import Bench, Verdict, fleet_key, valid
from optimizer.verification.verify import Loop, SearchResult, more_replicas, with_one_replica_less
from search_spaces.loader import load_problem
from search_spaces.problem import Constraints
from tests.optimizer_cases import instance_of, judgement, limit, problem, space, workload
from tests.running import tiny
from tests.small_fleets import apart, pool, replicas, small

GOAL = 0.9
CHAT = ((500, 200, 0.5), (2000, 400, 0.35), (6000, 600, 0.15))
"""ISL, OSL and share of the requests of a chat."""


def miss(instance: Instance, fleet: Fleet, share: float, blamed: tuple[int, ...] = (0,), **changes: Any) -> Verdict:
    """A fleet that misses, with a share of requests in time and the pools to blame."""
    judged = judgement(share, share - 0.01, share + 0.01, GOAL)
    return replace(Verdict(fleet, fleet_cost(instance, fleet), judged, False, blamed), **changes)


@dataclass
class Oracle:
    """A bench whose fleets hold where every pool has as many engines as it needs; other pools as `others` says.

    only: the batch limit of the last pool with which a fleet can hold at all, if any.
    """

    instance: Instance
    needed: tuple[int, ...]
    others: bool = False
    only: int | None = None
    volume: float = 1.0
    verdicts: dict[object, Verdict] = field(default_factory=dict)

    def late(self) -> bool:
        return False

    def judged(self, fleet: Fleet) -> bool:
        return fleet_key(fleet) in self.verdicts

    def verdict(self, fleet: Fleet) -> Verdict:
        return self.verdicts.setdefault(fleet_key(fleet), self.look(fleet))

    def look(self, fleet: Fleet) -> Verdict:
        """What a judgement would say, which is not made by that."""
        short = np.full(len(fleet.pools), 0.0 if self.others else 1.0)
        if len(fleet.pools) == len(self.needed):
            factor = 1 if self.only in {None, fleet.pools[-1].seqs} else 10
            short = np.maximum(factor * np.array(self.needed) - replicas(fleet), 0.0)
        share = 1.0 if not short.any() else 0.5 / (1.0 + short.sum())
        blamed = np.flatnonzero(short >= max(0.2 * short.sum(), 1e-9))
        verdict = miss(self.instance, fleet, share, tuple(blamed.tolist()))
        return verdict if short.any() else replace(verdict, held=True, blamed=())


def searched(bench: Any, *fleets: Fleet, search: FleetSearch | None = None) -> SearchResult:
    """What the loop comes to from some fleets, and from what a search by formula finds below them."""
    loop = Loop(bench, fleets, search)
    return with_one_replica_less(bench, loop.result(loop.run()))


counts = st.tuples(st.integers(1, 6), st.integers(1, 6))


@settings(max_examples=12)
@given(counts, st.lists(counts, min_size=1, max_size=3), st.sampled_from([None, 4, 12]))
@example((6, 6), [(1, 1), (2, 1)], 4)  # none holds
def test_the_winner_holds_keeps_the_limits_and_nothing_can_go_from_it(
    needed: tuple[int, int], starts: list[tuple[int, int]], gpus: int | None
) -> None:
    """Fleets are repaired until they hold or CANDIDATES rounds end, then reduced until no neighbor holds."""
    instance = small(constraints=Constraints(max_gpus=gpus))
    bench = Oracle(instance, needed)
    fleets = [fleet for fleet in (apart(instance, *start) for start in starts) if allowed(instance, fleet)]
    result = searched(bench, *fleets)
    assert all(allowed(instance, verdict.fleet) for verdict in bench.verdicts.values())
    if result.winner is None:
        assert not any(verdict.held for verdict in bench.verdicts.values())
        distances = [verdict.distance for verdict in bench.verdicts.values()]
        assert ([result.nearest.distance] if result.nearest else []) == sorted(distances)[:1]
        return
    assert replicas(result.winner.fleet) == needed
    assert not any(verdict.held for _, verdict in result.one_less)
    assert {what for what, _ in result.one_less} == {
        what for what, fleet in fewer_replicas(instance, result.winner.fleet, 1) if allowed(instance, fleet)
    }


def test_where_fresh_requests_refute_the_best_the_next_best_and_its_neighbors_are_tried() -> None:
    bench: Any = Oracle(small(), (2, 2))
    loop = Loop(bench, [apart(small(), 4, 4)])
    best = loop.run()
    assert replicas(best.fleet) == (2, 2)
    bench.needed = (2, 3)
    refuted = bench.verdicts[fleet_key(best.fleet)] = bench.look(best.fleet)
    loop.refute(refuted)
    winner = loop.run()
    assert replicas(winner.fleet) == (2, 3)
    assert refuted in [verdict for _, verdict in loop.trail]


def test_one_colocated_pool_takes_the_place_of_two_where_it_costs_less_and_holds() -> None:
    instance, start = small(), apart(small(), 6, 6)
    refusing, taking = Oracle(instance, (6, 6)), Oracle(instance, (6, 6), others=True)
    kept = searched(refusing, start, search=evaluated(instance)).winner
    assert fleet_key(kept.fleet) == fleet_key(start)
    others = [verdict for verdict in refusing.verdicts.values() if verdict.fleet is not kept.fleet]
    assert others
    assert all(verdict.cost < kept.cost for verdict in others)
    winner = searched(taking, start, search=evaluated(instance)).winner
    assert len(winner.fleet.pools) == 1
    assert winner.cost < kept.cost


# --- other settings -------------------------------------------------------------------------------------------------

SEQS, CHUNKS = (8, 16, 32, 64, 128, 256), (512, 1024, 2048, 4096, 8192)


@pytest.mark.parametrize(
    ("blamed", "max_gpus", "rounds", "expected"),
    [
        ((1,), None, 0, [(3, 102)]),
        ((1,), None, 2, [(3, 108)]),
        ((0, 1), None, 0, [(4, 102)]),
        ((0, 1), 105, 0, [(4, 100), (3, 102)]),  # not both, but each alone
        ((0, 1), 104, 0, [(4, 100)]),
        ((1,), 104, 0, [(3, 101)]),  # not 2 % more, but one
        ((1,), 103, 0, []),
        ((), None, 0, []),
    ],
)
def test_pools_to_blame_grow_as_far_as_the_limits_allow_and_no_others_do(
    blamed: tuple[int, ...], max_gpus: int | None, rounds: int, expected: list[tuple[int, ...]]
) -> None:
    instance = instance_of(problem(constraints=Constraints(max_gpus=max_gpus)))
    tried = more_replicas(instance, miss(instance, apart(instance, 3, 100), 0.5, blamed), rounds)
    assert [replicas(fleet) for fleet in tried] == expected


@cache
def roomy() -> Instance:
    """One to four thousand tokens in, on H100s, with many settings."""
    many = space(tensor_parallel=(1,), max_num_seqs=SEQS, max_num_batched_tokens=CHUNKS)
    return instance_of(problem(workload=workload(6.0), space=many))


def colocated(seqs: int, chunk: int) -> Fleet:
    """Two colocated engines with a batch limit and a chunk, given as an engine is told them."""
    two = pool(roomy(), "colocated-1", Role.COLOCATED, 2)
    return Fleet((replace(two, seqs=limit(roomy(), SEQS.index(seqs)), chunk=CHUNKS.index(chunk)),))


def settings_of(fleet: Fleet) -> tuple[int, int]:
    """Batch limit and chunk of the first pool."""
    return int(roomy().tables.seqs[fleet.pools[0].seqs]), CHUNKS[fleet.pools[0].chunk]


@contextmanager
def simulated(share_of: Callable[[Fleet], float]) -> Iterator[list[Fleet]]:
    """Verdicts that know the share; on which fleets of two replicas. Fleets of more hold, those if they seem to."""
    looks: list[Fleet] = []

    def verdict_of(bench: Bench, fleet: Fleet) -> Verdict:
        if fleet_key(fleet) not in bench.verdicts:
            held = replicas(fleet) != (2,) or share_of(fleet) >= GOAL
            bench.verdicts[fleet_key(fleet)] = replace(miss(roomy(), fleet, share_of(fleet)), held=held)
            looks.extend([fleet] if replicas(fleet) == (2,) else [])
        return bench.verdicts[fleet_key(fleet)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "verdict", verdict_of)
        yield looks


def mended(start: Verdict) -> Fleet | None:
    """The same engines with other settings that hold, where the search finds any before it tries more replicas."""
    bench = Bench(roomy(), seed=0, requests=800, verdicts={fleet_key(start.fleet): start})
    loop = Loop(bench, [start.fleet], on_held=lambda: setattr(bench, "late", lambda: True))
    winner = loop.run()
    return winner.fleet if winner is not None and winner.cost == start.cost else None


@pytest.mark.parametrize(
    ("seqs", "share", "ends"),
    [
        (256, lambda seqs, chunk: {512: 0.8, 2048: 0.895, 8192: 0.95}[chunk], lambda seqs, chunk: chunk == 8192),
        (8, lambda seqs, chunk: 0.95 if seqs == 16 else 0.7, lambda seqs, chunk: seqs == 16),
        (
            256,
            lambda seqs, chunk: 0.5 + 0.2 * (chunk >= 2048) + 0.25 * (seqs <= 64),
            lambda seqs, chunk: chunk >= 2048 and seqs <= 64,
        ),
    ],
    ids=["a larger chunk, and a still larger", "the next larger batch limit", "a chunk and a batch limit"],
)
def test_settings_that_help_are_gone_on_from(
    seqs: int, share: Callable[[int, int], float], ends: Callable[[int, int], bool]
) -> None:
    with simulated(lambda fleet: share(*settings_of(fleet))):
        fleet = mended(miss(roomy(), colocated(seqs, 512), share(seqs, 512)))
    assert ends(*settings_of(fleet))
    assert fleet_cost(roomy(), fleet) == fleet_cost(roomy(), colocated(256, 512))


@settings(max_examples=25)
@given(
    st.sampled_from(SEQS),
    st.sampled_from(CHUNKS),
    st.lists(st.floats(0.0, 1.0), min_size=len(SEQS) * len(CHUNKS), max_size=len(SEQS) * len(CHUNKS)),
)
def test_whatever_is_simulated_it_ends_with_what_held_or_nothing(seqs: int, chunk: int, shares: list[float]) -> None:
    table, start = np.array(shares).reshape(len(SEQS), len(CHUNKS)), colocated(seqs, chunk)

    def share(fleet: Fleet) -> float:
        return float(table[SEQS.index(settings_of(fleet)[0]), fleet.pools[0].chunk])

    with simulated(share) as looks:
        fleet = mended(miss(roomy(), start, 0.6))
    assert len({settings_of(looked) for looked in (start, *looks)}) == len(looks) + 1
    assert all(valid(roomy(), looked) for looked in looks)
    if fleet is not None:
        assert any(fleet is looked for looked in looks)
        assert share(fleet) >= GOAL


def test_a_fleet_of_other_engines_may_survive_slow_gpus_for_less_than_more_replicas(tmp_path: Path) -> None:
    """By formula one decode engine of TP4 is enough there, for $47.88/h. It misses, and a second makes $63.84/h."""
    rows = [dict(zip(("isl", "osl", "share"), row, strict=True)) for row in CHAT]
    sections = {
        "model": "Llama-3.3-70B",
        "workload": {"request_rate": "8/s", "lengths": {"histogram": rows}},
        "slo": {"ttft": "1.5s", "tpot": "40ms", "percentile": "p95"},
        "accelerators": [{"name": "H100", "price": 3.99, "inventory": 16}],
        "search": {"roles": ["prefill", "decode"], "pipeline_parallel": [1, 2]},
        "confidence": CONFIDENCE,
    }
    slow = as_planned(instance_of(load_problem(tiny(tmp_path, **sections))))
    solution = solution_of(slow, Effort(Level.STANDARD, Brake()))
    assert solution is not None
    assert solution.cost == pytest.approx(14 * 3.99)
