"""Other settings of the same engines for a fleet that missed: which are looked at, and what is taken of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.simulator.metrics import Attainment, Overload
from optimizer.fleets.evaluate import promise
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.verification.bench import Bench, Verdict, fleet_key, valid
from optimizer.verification.judge import Blame, ClassJudgement, Judgement, Outcome
from optimizer.verification.verify import cheapest_verified
from tests.optimizer_cases import instance_of, limit, problem, slo, space, workload
from tests.small_fleets import pool

SEQS, CHUNKS = (8, 16, 32, 64, 128, 256), (512, 1024, 2048, 4096, 8192)
GOAL = 0.9


@cache
def roomy(rate: float = 6.0) -> Instance:
    """One to four thousand tokens in, on H100s, with many settings."""
    many = space(tensor_parallel=(1,), max_num_seqs=SEQS, max_num_batched_tokens=CHUNKS)
    return instance_of(problem(workload=workload(rate), space=many))


def with_settings(fleet: Fleet, index: int, seqs: int, chunk: int) -> Fleet:
    """The fleet with one pool's batch limit and chunk, given as an engine is told them."""
    changed = replace(fleet.pools[index], seqs=limit(roomy(), SEQS.index(seqs)), chunk=CHUNKS.index(chunk))
    return Fleet((*fleet.pools[:index], changed, *fleet.pools[index + 1 :]))


def colocated(seqs: int, chunk: int) -> Fleet:
    """Two colocated engines."""
    return with_settings(Fleet((pool(roomy(), "colocated-1", Role.COLOCATED, 2),)), 0, seqs, chunk)


def told(fleet: Fleet) -> list[tuple[int, int]]:
    """Batch limit and chunk of each pool."""
    return [(int(roomy().tables.seqs[one.seqs]), CHUNKS[one.chunk]) for one in fleet.pools]


def class_at(share: float) -> ClassJudgement:
    return ClassJudgement("default", GOAL, Attainment(share, share - 0.01, share + 0.01, 1000), (0.0,) * 4, (0.0,) * 4)


def missed(fleet: Fleet, share: float, *blamed: int, behind: bool = False) -> Verdict:
    """A fleet that missed, by the pools to blame."""
    found = Judgement(1.0, (class_at(share),), Overload(behind, float(behind), 0.0, "queue"), SimulatedFleet(()), ())
    parts = np.isin(np.arange(len(fleet.pools)), blamed or (0,)) / max(len(blamed), 1)
    return Verdict(fleet, fleet_cost(roomy(), fleet), found, False, Blame(parts, 0.5, 0.5))


@contextmanager
def simulated(share_of: Callable[[Fleet], float], *blamed: int) -> Iterator[list[Fleet]]:
    """Looks that know the share; what was looked at. Fleets of other replicas hold, those looked at if they seem to."""
    looked: list[Fleet] = []

    def look(bench: Bench, fleet: Fleet) -> Verdict:
        looked.append(fleet)
        return missed(fleet, share_of(fleet), *blamed)

    def candidate(bench: Bench, fleet: Fleet) -> Verdict:
        seen = any(fleet_key(fleet) == fleet_key(other) for other in looked)
        told = replace(missed(fleet, share_of(fleet) if seen else 1.0), held=not seen or share_of(fleet) >= GOAL)
        return bench.verdicts.setdefault(fleet_key(fleet), told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "look", look)
        patch.setattr(Bench, "candidate", candidate)
        yield looked


def mended(start: Verdict, judge: Bench | None = None) -> Fleet | None:
    """The same engines with other settings that hold, where the search finds any before it tries more replicas."""
    judge = judge or bench()
    judge.verdicts[fleet_key(start.fleet)] = start
    winner = cheapest_verified(judge, [start.fleet]).winner
    return winner.fleet if winner is not None and winner.cost == start.cost else None


def bench() -> Bench:
    return Bench(roomy(), seed=0, requests=800)


def test_larger_chunks_are_found_where_they_help() -> None:
    """Four times as large holds but not clearly, and sixteen times does."""
    shares = {512: 0.8, 2048: 0.905, 8192: 0.95}
    with simulated(lambda fleet: shares[told(fleet)[0][1]]):
        found = mended(missed(colocated(256, 512), 0.8))
    assert found is not None
    assert told(found) == [(256, 8192)]
    assert fleet_cost(roomy(), found) == fleet_cost(roomy(), colocated(256, 512))


def test_a_chunk_and_a_batch_limit_are_found_together() -> None:
    def share(fleet: Fleet) -> float:
        ((seqs, chunk),) = told(fleet)
        return 0.5 + 0.2 * (chunk >= 2048) + 0.25 * (seqs <= 64)

    with simulated(share):
        found = mended(missed(colocated(256, 512), 0.5))
    assert found is not None
    ((seqs, chunk),) = told(found)
    assert chunk >= 2048
    assert seqs <= 64


def test_the_batch_limit_is_the_smallest_that_the_formulas_think_enough() -> None:
    instance, start = roomy(), colocated(256, 2048)
    with simulated(lambda _: 0.0) as looked:
        mended(missed(start, 0.8))
    (limit,) = {told(fleet)[0][0] for fleet in looked} - {256}
    promised = {seqs: promise(instance, colocated(seqs, 2048), 1.05) for seqs in SEQS}
    assert promised[limit] >= 1.0
    assert all(promised[seqs] < 1.0 for seqs in SEQS if seqs < limit)
    with simulated(lambda _: 0.0) as looked:
        mended(missed(colocated(limit, 2048), 0.8))
    assert {told(fleet)[0][0] for fleet in looked} == {limit, SEQS[SEQS.index(limit) + 2]}


def test_only_pools_to_blame_are_changed() -> None:
    instance = roomy()
    pair = Fleet((pool(instance, "prefill-1", Role.PREFILL, 2), pool(instance, "decode-1", Role.DECODE, 1)))
    pair = with_settings(with_settings(pair, 0, 32, 2048), 1, 256, 512)
    for blamed in (0, 1):
        with simulated(lambda _: 0.0, blamed) as looked:
            assert mended(missed(pair, 0.8, blamed)) is None
        assert looked
        assert all(fleet.pools[1 - blamed] == pair.pools[1 - blamed] for fleet in looked)
        assert all(fleet.pools[blamed] != pair.pools[blamed] for fleet in looked)
    with simulated(lambda _: 0.0) as looked:
        mended(missed(pair, 0.8, 0))
    assert sorted(told(fleet)[0] for fleet in looked) == [
        (32, 512),
        (32, 1024),
        (32, 4096),
        (32, 8192),
    ]  # and no other limit


def test_a_fleet_that_does_not_come_out_of_a_crowd_gets_fewer_batch_slots_and_nothing_else() -> None:
    stuck = replace(missed(colocated(256, 512), 0.85), stuck=True)
    fewer = SEQS[SEQS.index(256) - 1]
    with simulated(lambda _: 1.0) as looked:
        better = mended(stuck)
    assert better is looked[-1]
    assert [told(fleet)[0] for fleet in looked[:1]] == [(fewer, 512)]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(SEQS),
    st.sampled_from(CHUNKS),
    st.lists(st.floats(0.0, 1.0), min_size=len(SEQS) * len(CHUNKS), max_size=len(SEQS) * len(CHUNKS)),
)
def test_whatever_is_simulated_it_ends_with_what_held_or_nothing(seqs: int, chunk: int, shares: list[float]) -> None:
    known = np.array(shares).reshape(len(SEQS), len(CHUNKS))
    start = colocated(seqs, max(chunk, 512))

    def share(fleet: Fleet) -> float:
        return float(known[SEQS.index(told(fleet)[0][0]), fleet.pools[0].chunk])

    with simulated(share) as looked:
        found = mended(missed(start, 0.6))
    assert len({(fleet.pools[0].seqs, fleet.pools[0].chunk) for fleet in [start, *looked]}) == len(looked) + 1
    assert all(valid(roomy(), fleet) for fleet in looked)
    if found is not None:
        assert any(found is fleet for fleet in looked)
        assert share(found) >= GOAL
        assert (found.pools[0].shape, found.pools[0].replicas) == (start.pools[0].shape, 2)


@pytest.mark.usefixtures("short_runs")
def test_an_engine_that_stops_its_decodes_for_prompts_gets_larger_chunks_by_simulation() -> None:
    """Two thousand tokens in chunks of 512 stop the decodes of others four times, in one of 2048 once."""
    many = space(tensor_parallel=(1,), max_num_seqs=(64,), max_num_batched_tokens=(512, 2048), roles=(Role.COLOCATED,))
    instance = instance_of(
        problem(
            workload=workload(8.0, ((2000.0, 100.0, 1.0),)), slos=(slo(3.0, 0.024, GOAL),), space=many, engine="sglang"
        )
    )
    start = Fleet((replace(pool(instance, "colocated-1", Role.COLOCATED, 1), seqs=limit(instance, 0), chunk=0),))
    judge = Bench(instance, seed=0, requests=2000)
    found = judge.verdict(start)
    assert found.outcome is Outcome.MISSES
    better = mended(found, judge)
    assert better is not None
    assert better.pools[0].chunk == 1
    assert judge.verdict(better).held
