"""The simulator as judge: verdicts, blame, best-first search with repairs, and no waste."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Parallelism, Role
from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.simulator.metrics import Attainment, Overload
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan, Status, parse_plan
from optimizer.recommend.level import Brake, Level
from optimizer.recommend.optimize import optimize
from optimizer.rivals.fewer import fewer_replicas, with_replicas, without_pool
from optimizer.verification import verdict
from optimizer.verification.blame import Blame, blame
from optimizer.verification.judge import ClassJudgement, Judgement, judge, simulated_fleet
from optimizer.verification.simulated_headroom import POOL_LIMITS
from optimizer.verification.verdict import Bench, Verdict, fleet_key, make_bench, run_length, slice_of
from optimizer.verification.verify import ROUNDS, cheapest_verified, slower
from optimizer.verification.waste import without_waste
from reports.json_text import plan_json
from reports.terminal import render_plan
from search_spaces.problem import Constraints, Goal, Objective
from tests.optimizer_cases import instance_of, offer, problem, slo, space, workload


@cache
def small(rate: float = 6.0, **changes: Any) -> Instance:
    return instance_of(problem(workload=workload(rate=rate), **changes))


def pool(instance: Instance, name: str, role: Role, replicas: int, route: float = 1.0) -> FleetPool:
    shape = next(k for k, one in enumerate(instance.tables.shapes) if one.parallelism == Parallelism())
    seqs = 1 if role is not Role.PREFILL else 0
    return FleetPool(name, role, shape, seqs, 0, replicas, 0, np.full(instance.flows.isl.size, route))


def apart(instance: Instance, prefill: int, decode: int) -> Fleet:
    return Fleet((pool(instance, "prefill-1", Role.PREFILL, prefill), pool(instance, "decode-1", Role.DECODE, decode)))


def replicas(fleet: Fleet) -> tuple[int, ...]:
    return tuple(one.replicas for one in fleet.pools)


# --- with a judge who knows the answer ------------------------------------------------------------------------------


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


# --- with the simulator ---------------------------------------------------------------------------------------------


def bench_of(instance: Instance, requests: int = 2000) -> Bench:
    return Bench(instance, seed=3, requests=requests)


def test_a_fleet_that_idles_holds_and_one_that_drowns_does_not() -> None:
    instance = small()
    bench = bench_of(instance)
    idle, drowned = bench.verdict(apart(instance, 3, 1)), bench.verdict(with_replicas(apart(small(60.0), 1, 1), 0, 1))
    assert idle.held
    assert idle.judgement.proven
    assert len(idle.judgement.runs) == 2
    assert idle.blame is None
    assert bench.verdict(apart(instance, 3, 1)) is idle
    busy = bench_of(small(60.0))
    drowned = busy.verdict(apart(small(60.0), 1, 1))
    assert not drowned.held
    assert drowned.judgement.runs == ()
    assert drowned.blame is not None
    assert drowned.blame.pools[0] == pytest.approx(1.0, abs=0.05)  # the prompts wait
    assert drowned.blame.first > 0.95


def test_slow_tokens_are_the_decode_pools_fault() -> None:
    instance = small(slos=(slo(ttft=30.0, tpot=0.005),))
    found = judge(instance, apart(instance, 3, 1), requests=600)
    fault = blame(instance, found)
    assert fault.later > 0.9
    assert fault.pools.tolist() == pytest.approx([1.0 - fault.pools[1], fault.pools[1]])
    assert fault.pools[1] > 0.9


def test_a_run_lasts_several_permitted_lifetimes() -> None:
    assert run_length(small(0.1), 1.0) == verdict.LEAST_REQUESTS
    flows = small(200.0).flows
    lifetime = float(flows.share @ (flows.ttft + flows.osl * flows.tpot) / flows.share.sum())
    assert run_length(small(200.0), 1.0) == pytest.approx(10 * lifetime * 200, abs=1)
    bursts = instance_of(problem(workload=workload(0.1, burstiness=3.0)))
    assert run_length(bursts, 1.0) == 5 * verdict.LEAST_REQUESTS
    assert run_length(small(200.0), 0.5) == pytest.approx(5 * lifetime * 200, abs=1)


def test_of_a_large_fleet_a_slice_is_simulated() -> None:
    fleet = apart(small(), 50, 21)
    part = slice_of(fleet, 10 * verdict.MOST_REQUESTS - 1, 3.0)
    assert (part.parts, replicas(part.fleet)) == (10, (5, 2))
    assert part.volume == pytest.approx(0.3)
    assert part.requests == verdict.MOST_REQUESTS
    for name, one in zip(("prefill-1", "decode-1"), part.fleet.pools, strict=True):
        whole = next(pool for pool in fleet.pools if pool.name == name)
        assert one.replicas / part.volume <= whole.replicas / 3.0 * (1 + 1e-9)
    odd = slice_of(apart(small(), 50, 19), 10 * verdict.MOST_REQUESTS, 3.0)
    assert (odd.parts, replicas(odd.fleet)) == (9, (5, 2))
    alone = slice_of(apart(small(), 50, 1), 10 * verdict.MOST_REQUESTS, 3.0)
    assert (alone.parts, alone.requests) == (1, verdict.LONGEST)


def test_a_confident_plan_is_judged_at_its_slow_steps() -> None:
    instance = instance_of(problem(confidence=0.9))
    bench = make_bench(instance)
    assert bench.probability == pytest.approx(0.95)
    fleet = apart(instance, 2, 1)
    slow, usual = (simulated_fleet(instance, fleet, p).pools[1].steps.decode(8, 8000) for p in (0.95, 0.5))
    assert slow > 1.1 * usual


# --- plans ----------------------------------------------------------------------------------------------------------

QUICK_SPACE = space(tensor_parallel=(1,), max_num_seqs=(32, 128))
RATE = 20.0
"""More than one engine carries [1/s]."""


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests as the rate asks for, and not more."""
    monkeypatch.setattr(verdict, "LEAST_REQUESTS", 1500)
    monkeypatch.setattr(verdict, "LEAST_SHORT", 800)
    monkeypatch.setattr(verdict, "RELAXATIONS", 0.0)


@cache
def planned(level: Level = Level.STANDARD) -> Plan:
    return optimize(problem(space=QUICK_SPACE, workload=workload(RATE)), level=level)


def test_a_standard_plan_is_proven_and_wastes_nothing() -> None:
    plan, found = planned(), planned().simulation
    assert plan.simulated
    assert found is not None
    assert found.held
    assert plan.status in {Status.OPTIMAL, Status.FEASIBLE}
    (one,) = found.classes
    assert one.attainment_goal <= one.attainment_low <= one.attainment <= one.attainment_high <= 1.0
    assert plan.classes[0].attainment == one.attainment == pytest.approx(found.attainment)
    assert plan.classes[0].ttft_s == one.ttft_s
    assert one.ttft_s.p90 <= plan.classes[0].ttft_limit_s
    assert plan.goodput_rps == found.goodput_rps
    assert found.goodput_rps is not None
    assert found.goodput_fails_rps is not None
    assert plan.demand_rps <= found.goodput_rps < found.goodput_fails_rps
    assert found.one_replica_less
    assert not any(row.held for row in found.one_replica_less)
    assert all(row.cost_usd_per_hour < (plan.cost_usd_per_hour or 0.0) for row in found.one_replica_less)
    assert found.requests == found.replications * run_length(small(RATE), 1.0)


def test_the_record_has_distributions_and_a_rising_curve() -> None:
    found = planned().simulation
    assert found is not None
    (one,) = found.classes
    assert len(found.cdf_shares) == len(one.ttft_cdf_s) == len(one.tpot_cdf_s) == 64
    assert found.cdf_shares == sorted(set(found.cdf_shares))
    assert one.ttft_cdf_s == sorted(one.ttft_cdf_s)
    assert np.interp(0.5, found.cdf_shares, one.ttft_cdf_s) == pytest.approx(one.ttft_s.p50, rel=0.02)
    rates = [point.rate_rps for point in found.curve]
    assert len(rates) >= 5
    assert rates == sorted(rates)
    assert [point.held for point in found.curve] == [True] * (len(rates) - 1) + [False]
    ttft = [point.classes[0].ttft_s.p90 for point in found.curve]
    assert ttft == sorted(ttft)
    (planned_rate,) = [point for point in found.curve if point.rate_rps == RATE]
    assert planned_rate.classes[0].ttft_s == one.ttft_s  # the runs that prove the fleet


def test_headroom_and_goodput_are_one_figure() -> None:
    plan, found = planned(), planned().simulation
    assert found is not None
    assert found.goodput_rps is not None
    assert found.goodput_fails_rps is not None
    can = [1.0 / row.used for row in plan.binding if row.constraint in POOL_LIMITS]
    assert len(can) == len(plan.pools)
    reached, fails = found.goodput_rps / RATE, found.goodput_fails_rps / RATE
    assert reached * (1.0 - 1e-9) <= min(can) <= fails * (1.0 + 1e-9)


def test_bound_and_gap_agree_and_alternatives_were_simulated() -> None:
    plan = planned()
    cost = plan.cost_usd_per_hour or 0.0
    if plan.bound_usd_per_hour is None:
        assert plan.gap is None
    else:
        assert plan.bound_usd_per_hour <= cost * (1 + 1e-9)
        assert plan.gap == pytest.approx(1 - plan.bound_usd_per_hour / cost)
    best, *others = plan.alternatives
    assert best.kind == "recommended"
    assert best.cost_usd_per_hour == cost
    assert all((row.cost_usd_per_hour or cost) >= cost * (1 - 1e-9) for row in others)
    assert all(row.simulated for row in plan.alternatives if row.cost_usd_per_hour is not None)


def test_the_same_problem_gives_the_same_bytes() -> None:
    again = optimize(problem(space=QUICK_SPACE, workload=workload(RATE)))
    first, second = (one.model_dump(exclude={"provenance": {"run"}}) for one in (planned(), again))
    assert repr(first) == repr(second)


def test_a_plan_with_a_simulation_can_be_read_again_and_told() -> None:
    text = plan_json(planned())
    assert plan_json(parse_plan(text.encode())) == text
    shown = render_plan(planned())
    assert "\nSimulated: " in shown
    assert "95 % interval" in " ".join(shown.split())
    assert "One replica less misses a goal:" in shown
    assert "not simulated" not in shown
    assert "not simulated" in render_plan(planned(Level.QUICK))


def test_a_quick_plan_is_not_simulated() -> None:
    plan = planned(Level.QUICK)
    assert not plan.simulated
    assert plan.simulation is None
    assert "has not been simulated" in plan.provenance.assumptions[0]


def test_where_nothing_is_proven_there_is_no_plan_but_the_nearest_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Bench, fleet: Fleet, most: int) -> tuple[Judgement, bool]:
        found = judge(self.instance, fleet, requests=300)
        low = tuple(replace(one, attainment=Attainment(0.8, 0.7, 0.85, 300)) for one in found.classes)
        return replace(found, classes=low), False

    monkeypatch.setattr(Bench, "_runs_until_clear", never)
    plan = optimize(problem(space=QUICK_SPACE, constraints=Constraints(max_gpus=3)))
    assert plan.status is Status.TIME_LIMIT
    assert plan.pools == []
    assert plan.simulation is None
    (miss,) = plan.alternatives
    assert (miss.kind, miss.attainment, miss.simulated) == ("nearest_miss", 0.8, True)
    assert "80.0% of default (70.0% to 85.0%) where 90.0% should when simulated" in miss.why_not
    assert plan.binding[0].constraint == "attainment"
    assert "Nearest miss" in render_plan(plan)


def test_the_most_goodput_is_what_the_simulation_proves() -> None:
    given_ = problem(
        space=QUICK_SPACE, objective=Objective(Goal.MAX_GOODPUT), constraints=Constraints(max_gpus=1), offers=(offer(),)
    )
    plan = optimize(given_)
    found = plan.simulation
    assert found is not None
    assert found.held
    assert plan.goodput_rps == pytest.approx(found.rate_rps, rel=0.05)
    assert sum(plan.gpus.values()) == 1


def test_a_pulled_brake_gives_the_first_proven_fleet() -> None:
    brake = Brake(pulled=True)
    plan = optimize(problem(space=QUICK_SPACE, workload=workload(RATE)), brake=brake)
    assert brake.armed
    assert plan.simulated
    assert plan.simulation is not None
    assert plan.simulation.interrupted
    assert plan.simulation.goodput_rps is None
    assert parse_plan(plan_json(plan).encode()).simulation == plan.simulation
    assert "Simulated" in render_plan(plan)


def test_a_thorough_plan_was_tuned_and_run_four_times() -> None:
    few = space(tensor_parallel=(1,), max_num_seqs=(128,), roles=(Role.COLOCATED,))
    plan = optimize(problem(space=few, workload=workload(RATE)), level=Level.THOROUGH)
    found = plan.simulation
    assert found is not None
    assert found.held
    assert found.replications >= 4
    tuning = found.tuning
    assert tuning is not None
    (pool_,) = plan.pools
    assert tuning.looks == min(pool_.replicas, 2) + 1
    assert not tuning.improved
    assert [row.tail for row in tuning.front] == sorted([row.tail for row in tuning.front], reverse=True)
    assert found.one_replica_less or pool_.replicas == 1
