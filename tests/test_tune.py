"""Tuning by simulation: samplers, knobs, the value of a look, and that only what is proven is taken."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Parallelism, Role
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.verification import verdict
from optimizer.verification.judge import judge
from optimizer.verification.samplers import Point, Sampler, at_random, best_of, by_descent, by_tpe
from optimizer.verification.tune import MISS, WORST, Look, Tuner, distance, fleet_at, front, knobs_of, tuned, valid
from optimizer.verification.verdict import Bench
from search_spaces.problem import Constraints
from tests.optimizer_cases import instance_of, problem, space, workload

SAMPLERS = (at_random, by_descent, by_tpe)


# --- samplers -------------------------------------------------------------------------------------------------------


def bowl(point: Point) -> float:
    """Least at (3, 0, 2)."""
    return float(sum((a - b) ** 2 for a, b in zip(point, (3, 0, 2), strict=True)))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_starts_where_it_should_and_looks_once_at_each_point(sampler: Sampler) -> None:
    asked: list[Point] = []

    def value(point: Point) -> float:
        asked.append(point)
        return bowl(point)

    looks = sampler((4, 3, 5), value, (1, 1, 1), 25, 7)
    assert asked[0] == (1, 1, 1)
    assert asked == list(looks)
    assert len(set(asked)) == len(asked) == 25
    assert all(0 <= index < size for point in asked for index, size in zip(point, (4, 3, 5), strict=True))
    assert sampler((4, 3, 5), bowl, (1, 1, 1), 25, 7) == looks


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_grid_is_seen_whole(sampler: Sampler) -> None:
    looks = sampler((2, 3), lambda point: float(sum(point)), (1, 2), 100, 0)
    assert set(looks) == set(itertools.product(range(2), range(3)))
    assert best_of(looks) == (0, 0)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)))
def test_descent_finds_the_bottom_of_a_bowl(seed: int, start: Point) -> None:
    assert best_of(by_descent((4, 3, 5), bowl, start, 40, seed)) == (3, 0, 2)


def test_a_study_may_be_kept_in_a_file(tmp_path: Any) -> None:
    def storage() -> optuna.storages.JournalStorage:
        backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
        return optuna.storages.JournalStorage(backend)

    looks = by_tpe((4, 3, 5), bowl, (0, 0, 0), 12, 1, storage())
    (study,) = optuna.get_all_study_summaries(storage())
    assert study.n_trials >= len(looks) == 12
    assert study.best_trial is not None
    assert study.best_trial.value == min(looks.values())


# --- knobs ----------------------------------------------------------------------------------------------------------


@cache
def small(rate: float = 6.0, **changes: Any) -> Instance:
    wide = space(tensor_parallel=(1,), max_num_seqs=(8, 32, 128), max_num_batched_tokens=(64, 2048))
    return instance_of(problem(workload=workload(rate=rate), space=wide, **changes))


def pool(instance: Instance, name: str, role: Role, replicas: int, route: float = 1.0) -> FleetPool:
    shape = next(k for k, one in enumerate(instance.tables.shapes) if one.parallelism == Parallelism())
    return FleetPool(name, role, shape, 1, 1, replicas, 0, np.full(instance.flows.isl.size, route))


def three(instance: Instance) -> Fleet:
    parts = (("prefill-1", Role.PREFILL, 2, 0.6), ("decode-1", Role.DECODE, 1, 0.6), ("c-1", Role.COLOCATED, 1, 0.4))
    return Fleet(tuple(pool(instance, *part) for part in parts))


def test_a_fleet_at_its_start_is_itself() -> None:
    instance = small()
    fleet = three(instance)
    knobs = knobs_of(instance, fleet)
    assert fleet_at(fleet, knobs, tuple(knob.start for knob in knobs)) == fleet
    assert {(knob.pool, knob.setting) for knob in knobs} == {
        (0, "replicas"), (0, "seqs"), (0, "chunk"),
        (1, "replicas"), (1, "seqs"),
        (2, "replicas"), (2, "seqs"), (2, "chunk"), (2, "share"),
    }  # fmt: skip


def test_every_point_serves_every_flow_once() -> None:
    instance = small()
    fleet = three(instance)
    knobs = knobs_of(instance, fleet)
    draw = np.random.default_rng(0)
    for _ in range(20):
        point = tuple(int(draw.integers(len(knob.values))) for knob in knobs)
        prefill, decode, colocated = fleet_at(fleet, knobs, point).pools
        np.testing.assert_allclose(prefill.route + colocated.route, 1.0, rtol=1e-12)
        np.testing.assert_allclose(decode.route, prefill.route, rtol=1e-12)
    share = next(k for k, knob in enumerate(knobs) if knob.setting == "share")
    more = tuple(2 if k == share else knob.start for k, knob in enumerate(knobs))
    assert fleet_at(fleet, knobs, more).pools[2].route[0] == pytest.approx(0.5 / 1.1)


def test_a_step_must_have_a_token_for_each_request() -> None:
    instance = small()
    knobs = knobs_of(instance, three(instance))
    point = [knob.start for knob in knobs]
    for k, knob in enumerate(knobs):
        if knob.pool == 2 and knob.setting in {"seqs", "chunk"}:
            point[k] = 2 if knob.setting == "seqs" else 0
    assert valid(instance, three(instance))
    assert not valid(instance, fleet_at(three(instance), knobs, tuple(point)))


# --- looks ----------------------------------------------------------------------------------------------------------


def test_the_distance_is_one_where_a_goal_is_just_kept() -> None:
    instance = small()
    found = judge(instance, Fleet((pool(instance, "c-1", Role.COLOCATED, 1),)), requests=600)
    near = distance(instance, found)
    (one,) = found.classes
    assert 0.0 < near < 1.0
    assert one.held
    ratios = (one.ttft[1] / instance.problem.slos[0].ttft, one.tpot[1] / instance.problem.slos[0].tpot)
    assert near >= max(ratios) * 0.99
    drowned = small(300.0)
    found = judge(drowned, Fleet((pool(drowned, "c-1", Role.COLOCATED, 1),)), requests=600)
    assert 1.0 < distance(drowned, found) <= WORST


def test_no_look_is_better_for_missing() -> None:
    instance = small()
    fleet = Fleet((pool(instance, "c-1", Role.COLOCATED, 3),))
    bench = Bench(instance, 0, 2000)
    tuner = Tuner(bench, fleet, knobs_of(instance, fleet), 500)
    value = tuner.value(tuner.start)
    assert value == pytest.approx(1.0 + 0.02 * tuner.seen[tuner.start].distance)
    held = Tuner(bench, fleet, tuner.knobs, 500, lambda: True, dict(tuner.seen))
    assert held.value(tuner.start) > 1.0 + MISS


def test_tuning_takes_only_what_is_proven_and_not_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "LEAST_SHORT", 250)
    instance = small(constraints=Constraints(max_gpus=3))
    bench = Bench(instance, 0, 1000)
    winner = bench.verdict(Fleet((pool(instance, "c-1", Role.COLOCATED, 2),)))
    assert winner.held
    found = tuned(bench, winner, lambda: False, looks=12)
    assert found.winner.held
    assert found.winner.cost <= winner.cost
    assert len(found.looks) <= 12
    assert max(sum(one.replicas for one in look.fleet.pools) for look in found.looks) <= 3
    again = tuned(Bench(instance, 0, 1000), winner, lambda: False, looks=12)
    assert [look.distance for look in again.looks] == [look.distance for look in found.looks]


def test_the_front_has_no_look_that_another_beats() -> None:
    empty = Fleet(())
    looks = tuple(
        Look(empty, cost, tail) for cost, tail in ((3.0, 0.2), (1.0, 0.9), (2.0, 0.9), (2.0, 0.5), (4.0, 0.3))
    )
    assert [(look.cost, look.distance) for look in front(looks)] == [(1.0, 0.9), (2.0, 0.5), (3.0, 0.2)]
