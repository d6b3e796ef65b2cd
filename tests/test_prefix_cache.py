"""What prefix caches find: Che's law by hand, sessions as requests, and the formula against simulated blocks."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.reference.lone_steps import CoefficientSteps
from benchmarks.reference.policies import VLLM_V1
from costmodel.engine import Role
from costmodel.prefix_cache import (
    FARTHEST,
    CacheTier,
    Reuse,
    TimeDistribution,
    cached,
    characteristic_time,
    exponential,
    fixed,
    uniform_reuse,
)
from costmodel.simulator.run import simulate
from costmodel.units import GIB
from costmodel.workload import Lengths, Sessions, Trace, Workload, draw_turns, requests_of
from optimizer.fleets.build_plan import plan_prefix_cache
from optimizer.fleets.error_bars import assumptions
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, gpu_cost
from optimizer.loads.effort import never
from optimizer.loads.instance import Instance, make_flows, make_instance
from optimizer.plans.plan import parse_plan
from optimizer.plans.records import ALIKE
from optimizer.recommend.changed_problem import tier_warnings
from optimizer.recommend.optimize import UNSIMULATED_SESSIONS
from optimizer.verification.demand import simulated_trace
from optimizer.verification.judge import hit_share
from optimizer.verification.simulated_plan import judge
from search_spaces.problem import Balancing, Problem
from tests.optimizer_cases import instance_of, problem, space
from tests.running import QUICK, tiny, within
from tests.simulator_cases import colocated
from tests.small_fleets import each_of
from tests.workload_texts import load

AGENTS = Sessions(Lengths.fixed(8), exponential(30.0), 2000.0, Lengths.fixed(2500), Lengths.fixed(300))


@pytest.mark.parametrize(("next_share", "stay"), [(1.0, 3.75), (0.5, 4.375), (0.0, 5.0)])
def test_between_two_knots_the_time_is_the_root_of_what_fills_the_cache(next_share: float, stay: float) -> None:
    """Uses spread evenly over 10 s: E[min(X, 5)] = 5 - 25 / 20; what nobody uses again stays for capacity / inflow."""
    even = TimeDistribution(np.array([0.0, 10.0]), np.array([0.0, 1.0]))
    assert characteristic_time(2.0, next_share, even, 2.0 * stay) == pytest.approx(5.0)


def test_no_memory_finds_nothing_and_endless_memory_all() -> None:
    _, reuse = requests_of(AGENTS)
    weight, kept = np.full(reuse.history.size, 0.1), np.full(reuse.history.size, 10_000.0)
    for capacity, chance in ((0.0, 0.0), (1e15, 1.0)):
        found = cached(reuse, weight, kept, capacity, service=5.0, replicas=1.0).chance[reuse.history > 0.0]
        assert found == pytest.approx(np.full(found.size, chance), abs=1e-6)
    assert characteristic_time(100.0, 1.0, exponential(30.0), 1e15) == FARTHEST


def test_spread_over_replicas_a_session_finds_what_its_last_visit_left() -> None:
    """With memory without end, half of the turns were here the last time, a quarter the time before, and so on."""
    reuse = Reuse(0.0, np.array([4000.0]), 1000.0, np.array([0.9, 0.8, 0.7, 0.6]), fixed(1.0))
    found = cached(reuse, np.ones(1), np.array([4000.0]), 1e15, service=1.0, replicas=2.0)
    assert found.chance[0] * 4000.0 == pytest.approx(4000 / 2 + 3000 / 4 + 2000 / 8 + 1000 / 16)


@settings(max_examples=40)
@given(
    capacity=st.floats(0.0, 3e6),
    more=st.floats(1.0, 10.0),
    think=st.floats(1.0, 1000.0),
    replicas=st.sampled_from([1.0, 2.0, 7.0]),
)
def test_more_memory_finds_more_and_longer_pauses_less(
    capacity: float, more: float, think: float, replicas: float
) -> None:
    def found(capacity: float, think: float) -> float:
        _, reuse = requests_of(replace(AGENTS, pause=exponential(think)))
        weight, kept = np.full(reuse.history.size, 0.1), reuse.history + 2500.0
        return float(cached(reuse, weight, kept, capacity, service=5.0, replicas=replicas).chance @ reuse.history)

    now = found(capacity, think)
    assert found(capacity * more, think) >= now - 1.0
    assert found(capacity, think * more) <= now + 1.0


def test_drawn_turns_are_those_of_the_histogram() -> None:
    starts = np.arange(3000) * 2.0
    turns, session = draw_turns(AGENTS, starts, 10_000, begin=600.0, service=5.0, most=1e9)
    buckets, _ = requests_of(AGENTS)
    assert turns.isl.mean() == pytest.approx(buckets.share @ buckets.isl, rel=0.02)
    later = turns.after >= 0
    before = turns.after[later]
    assert (session[later] == session[before]).all()
    assert (turns.isl[later] - turns.isl[before] == turns.osl[before] + 2500).all()
    assert turns.pause[later].mean() == pytest.approx(30.0, rel=0.05)
    instance = instance_of(agents(30.0, Balancing.LEAST_TOKENS, rate=40.0))
    assert simulated_trace(instance, each_of(instance, ALONE, 6), 4000, seed=1).trace.size == 4000


def test_the_next_turn_comes_a_pause_after_the_end_of_the_one_before() -> None:
    steps = CoefficientSteps((0.0, 1e-3, 0.0), (0.01, 0.0, 0.0))
    times, lengths = np.array([0.0, 1.0, 2.0]), np.array([100, 50, 200])
    trace = Trace(times, lengths, np.full(3, 3), after=np.array([-1, -1, 0]), pause=np.array([0.0, 0.0, 7.0]))
    result = simulate(trace, colocated(VLLM_V1, steps))
    assert result.arrival[2] == pytest.approx(result.finish[0] + 7.0)
    assert result.arrival[:2].tolist() == [0.0, 1.0]


def agents(think: float, balancing: Balancing, rate: float = 4.0) -> Problem:
    sessions = replace(AGENTS, pause=exponential(think))
    buckets, reuse = requests_of(sessions)
    found = float(buckets.share @ (reuse.shared + reuse.history)) / float(buckets.share @ buckets.isl)
    load = Workload(buckets.isl, buckets.osl, buckets.share, rate, 1.0, found, 25_000, reuse, sessions)
    made = problem(workload=load, space=space(tensor_parallel=(1,), max_num_seqs=(64,), max_num_batched_tokens=(8192,)))
    return replace(made, constraints=replace(made.constraints, balancing=balancing))


@cache
def instance_for(think: float, balancing: Balancing) -> Instance:
    return instance_of(agents(think, balancing))


ALONE, APART = (Role.COLOCATED,), (Role.PREFILL, Role.DECODE)


@pytest.mark.parametrize("roles", [ALONE, APART], ids=["colocated", "apart"])
@pytest.mark.parametrize("balancing", list(Balancing))
@pytest.mark.parametrize("think", [10.0, 300.0], ids=["memory is enough", "memory is too small"])
def test_the_formula_finds_what_simulated_blocks_do(
    think: float, balancing: Balancing, roles: tuple[Role, ...]
) -> None:
    """81 % of the input tokens are shared: six replicas keep nearly all for 10 s, and little of it for 5 minutes."""
    instance = instance_for(think, balancing)
    fleet = each_of(instance, roles, 6)
    use = plan_prefix_cache(instance, fleet)
    assert use.at_best == pytest.approx(0.81, abs=0.02)
    simulated = hit_share(instance, judge(instance, fleet, requests=6000))
    assert use.sustained == pytest.approx(simulated, abs=0.04)
    if balancing is Balancing.LEAST_TOKENS:
        assert (use.at_best - use.sustained < 0.02) == (think == 10.0)


def test_a_stated_share_is_one_case_of_the_law() -> None:
    """A share of every prompt that is used again at once: the same tokens, and no flows for misses."""
    load = agents(10.0, Balancing.LEAST_TOKENS).workload
    stated = replace(load, sessions=None, reuse=None, prefix_hit_share=0.6)
    plain = make_flows(replace(problem(), workload=stated))
    law = make_flows(replace(problem(), workload=replace(stated, reuse=uniform_reuse(load.isl, 0.6, fixed(0.0)))))
    assert plain.isl.size == law.asked == law.isl.size // 2
    np.testing.assert_allclose(law.new_tokens[: law.asked], plain.new_tokens)
    np.testing.assert_allclose(law.new_tokens[law.asked :], plain.isl)


@cache
def with_interval(seconds: float) -> Instance:
    """80 % of every prompt is used again after such a time on average."""
    asked = agents(10.0, Balancing.LEAST_TOKENS)
    reuse = uniform_reuse(asked.workload.isl, 0.8, exponential(seconds))
    load = replace(asked.workload, sessions=None, reuse=reuse, prefix_hit_share=0.8)
    return instance_of(replace(asked, workload=load))


def test_a_stated_reuse_interval_beyond_the_memory_is_not_believed() -> None:
    shares = []
    for interval in (5.0, 3600.0):
        instance = with_interval(interval)
        fleet = each_of(instance, ALONE, 8)
        simulated = hit_share(instance, judge(instance, fleet, requests=3000))
        shares.append((plan_prefix_cache(instance, fleet).sustained, simulated))
    assert shares[0] == pytest.approx((0.8, 0.8), abs=0.03)
    assert shares[1][0] < 0.3
    assert shares[1][0] == pytest.approx(shares[1][1], abs=0.03)


def with_tier(instance: Instance, tier: CacheTier | None) -> Instance:
    return replace(instance, problem=replace(instance.problem, kv_cache_tier=tier))


def shares(instance: Instance, fleet: Fleet) -> tuple[float, float]:
    """Shares of the input tokens that are found, and that are read of the tier."""
    use = plan_prefix_cache(instance, fleet)
    return use.sustained, use.read


@pytest.mark.parametrize("balancing", list(Balancing))
@pytest.mark.parametrize(("shared", "roles"), [(False, ALONE), (True, ALONE), (True, APART)])
def test_a_tier_finds_what_simulated_blocks_do(shared: bool, roles: tuple[Role, ...], balancing: Balancing) -> None:
    """After five minutes memory has lost most; host memory has some or most of it, and the router decides whose."""
    instance = instance_for(300.0, balancing)
    fleet, before = each_of(instance, roles, 6), -1.0
    for capacity in (100.0, 200.0, 400.0):
        tiered = with_tier(instance, CacheTier(capacity * GIB, 50e9, 0.001, shared))
        hit, read = shares(tiered, fleet)
        judged = judge(tiered, fleet, requests=20_000)
        tokens = [(run.result.tier.sum(), run.demand.trace.isl.sum()) for run in judged.runs]
        assert hit == pytest.approx(hit_share(tiered, judged), abs=0.04)
        assert read == pytest.approx(np.divide(*np.sum(tokens, axis=0)), abs=0.07)
        assert hit > before
        before = hit


def test_a_slow_tier_is_read_by_those_who_need_not_wait() -> None:
    """At 5 GB/s a read takes half of the time that computing does; who meets another one at it computes."""
    instance = instance_for(300.0, Balancing.LEAST_TOKENS)
    for replicas in (3, 6):
        fleet = each_of(instance, ALONE, replicas)
        tiered = with_tier(instance, CacheTier(400 * GIB, 5e9))
        hit, _ = shares(tiered, fleet)
        judged = judge(tiered, fleet, requests=20_000)
        assert hit == pytest.approx(hit_share(tiered, judged), abs=0.04)
        quick, _ = shares(with_tier(instance, CacheTier(400 * GIB, 50e9)), fleet)
        assert hit < quick - 0.03


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_no_room_and_no_bandwidth_are_no_tier(shared: bool) -> None:
    instance = instance_for(300.0, Balancing.LEAST_TOKENS)
    fleet = each_of(instance, ALONE, 6)
    plain = evaluate(instance, fleet)
    for tier in (CacheTier(0.0, 50e9, 0.0, shared), CacheTier(400 * GIB, 1e6, 0.0, shared)):
        tiered = evaluate(with_tier(instance, tier), fleet)
        np.testing.assert_array_equal(tiered.ttft, plain.ttft)
        np.testing.assert_array_equal(tiered.attainment, plain.attainment)


@settings(max_examples=20)
@given(
    capacity=st.floats(1.0, 500.0),
    more=st.floats(1.0, 4.0),
    bandwidth=st.floats(1e8, 1e11),
    quicker=st.floats(1.0, 10.0),
    shared=st.booleans(),
    balancing=st.sampled_from(list(Balancing)),
)
def test_more_of_a_tier_is_never_worse(
    capacity: float, more: float, bandwidth: float, quicker: float, shared: bool, balancing: Balancing
) -> None:
    instance = instance_for(300.0, balancing)
    fleet = each_of(instance, ALONE, 6)

    def hit(capacity: float, bandwidth: float) -> float:
        return shares(with_tier(instance, CacheTier(capacity * GIB, bandwidth, 0.0, shared)), fleet)[0]

    now = hit(capacity, bandwidth)
    assert hit(capacity * more, bandwidth) >= now - 2 * ALIKE
    assert hit(capacity, bandwidth * quicker) >= now - 2 * ALIKE


def test_where_only_the_interval_is_known_reads_take_time_too() -> None:
    """A reuse interval beyond the memory: what the tier has is drawn by the formula's chance and read in simulation."""
    plain = with_interval(120.0)
    fleet = each_of(plain, ALONE, 8)
    tiered = with_tier(plain, CacheTier(400 * GIB, 5e9))
    hit, read = shares(tiered, fleet)
    judged = judge(tiered, fleet, requests=3000)
    assert hit == pytest.approx(hit_share(tiered, judged), abs=0.03)
    assert hit > shares(plain, fleet)[0] + 0.1
    result, trace = judged.runs[0].result, judged.runs[0].demand.trace
    assert result.tier.sum() / trace.isl.sum() == pytest.approx(read, abs=0.03)
    waited = result.prompt_start - result.arrival
    assert waited[result.tier > 0].min() >= 0.8 * trace.isl.min() * 131_072 / 5e9


SESSIONS = """\
model: Llama-3.1-8B
workload:
  sessions: {rate: 0.5/s, turns: 4, think_time: 20s, system_prompt: 1000, user_tokens: 500, answer_tokens: 100}
slo: {ttft: 2s, tpot: 50ms}
accelerators: H100
"""


def test_sessions_of_a_file_become_requests_and_are_repeated(folder: Path) -> None:
    """Four turns every other second are two requests per second; the repeated inputs state the same problem."""
    stated = load(SESSIONS)
    load_of = stated.workload
    assert (load_of.request_rate, load_of.max_tokens) == (2.0, 1000 + 3 * 600 + 600)
    assert load_of.isl.tolist() == [1500.0, 2100.0, 2700.0, 3300.0]
    assert load_of.prefix_hit_share == pytest.approx((1000 + 1500 + 2100 + 2700) / (1500 + 2100 + 2700 + 3300))
    assert load(json.dumps(stated.inputs)).inputs == stated.inputs
    assert "lengths" not in stated.inputs["workload"]


TIER = "kv_cache_tier: {capacity_per_gpu: 100GiB, bandwidth: 50GB/s}\n"


def test_a_tier_of_a_file_is_repeated(folder: Path) -> None:
    stated = load(SESSIONS + TIER)
    assert stated.kv_cache_tier == CacheTier(100 * GIB, 50e9, 0.0, shared=False)
    assert load(json.dumps(stated.inputs)).kv_cache_tier == stated.kv_cache_tier
    assert load(SESSIONS + TIER.replace("100GiB", "0")).kv_cache_tier is None


def test_a_tier_has_a_price_for_the_capacity_beside_every_gpu(folder: Path) -> None:
    """100 GiB at $0.01/h: a dollar for each GPU, owned or rented, in whole nodes too; not in the GPU's own price."""
    text = SESSIONS.replace("accelerators: H100", "accelerators: [{name: H100, price: 2, owned: 3, billing: node}]")
    assert text != SESSIONS
    plain, stated = load(text + TIER), load(text + TIER.replace("}", ", price_per_gib: $0.01/h}"))
    gpus = np.array([[2], [3], [4]])
    np.testing.assert_allclose(gpu_cost(stated, gpus) - gpu_cost(plain, gpus), [2.0, 3.0, 8.0])
    assert stated.offers[0].usd_per_hour == plain.offers[0].usd_per_hour == 2.0
    assert [make_instance(problem).tables.usd_per_hour[0] for problem in (plain, stated)] == pytest.approx(
        [plain.offers[0].owned_usd_per_hour, plain.offers[0].owned_usd_per_hour + 1.0]
    )
    assert "It costs $1.00/h per GPU." in " ".join(assumptions(make_instance(stated)))
    assert "No price is counted for it" in " ".join(assumptions(make_instance(plain)))
    assert load(json.dumps(stated.inputs)).offers == stated.offers


def test_a_plan_says_when_a_tier_costs_more_than_it_saves(folder: Path) -> None:
    plain, dear = load(SESSIONS + TIER), load(SESSIONS + TIER.replace("}", ", price_per_gib: $1/h}"))
    (warning,) = tier_warnings(make_instance(dear), 110.0, never)
    assert re.search(r"a fleet without it costs \$[0-9.]+/h in place of \$110.00/h\. Plan again without", warning)
    assert tier_warnings(make_instance(dear), 1.0, never) == tier_warnings(make_instance(plain), 110.0, never) == []


LONG = yaml.safe_load("""\
workload:
  request_rate: 2/s
  sessions: {turns: 8, think_time: 5min, system_prompt: 1000, user_tokens: 4000, answer_tokens: 200}
slo: {ttft: 2s, tpot: 50ms}
search: {roles: [colocated], tensor_parallel: [1], pipeline_parallel: [1], max_num_seqs: [64],
  max_num_batched_tokens: [8192]}
target: llm-d
""")


def test_a_tier_is_planned_proven_explained_and_deployed(short_runs: None, folder: Path) -> None:
    """Sessions that come back after five minutes: 800 GiB of host memory for each GPU save a third of the GPUs."""
    plans = {}
    for name, capacity, effort in (("without", "0", QUICK), ("with", "800GiB", ())):
        path = tiny(folder, **LONG, kv_cache_tier={"capacity_per_gpu": capacity, "bandwidth": "50GB/s"})
        done = within("optimize", path, "-o", folder / name, *effort)
        assert done.returncode == 0, done.stderr
        assert ("in the KV cache tier" in " ".join(done.stdout.split())) == (name == "with")
        plans[name] = parse_plan((folder / name / "plan.json").read_bytes())
    costs = [plan.cost_usd_per_hour or math.inf for plan in plans.values()]
    assert costs[1] < 0.8 * costs[0]
    plan = plans["with"]
    assert plan.simulation.held
    assert plan.prefix_cache.sustained == pytest.approx(plan.simulation.prefix_hit_share, abs=0.06)
    assert plan.prefix_cache.read > 0.3
    done = within("deploy", folder / "with" / "plan.json", "-o", folder / "files")
    assert done.returncode == 0, done.stderr
    assert any("--kv-offloading-size" in path.read_text("utf-8") for path in (folder / "files" / "pools").iterdir())


def test_the_warning_of_sessions_says_in_both_directions_what_was_measured() -> None:
    """Share within the SLO by formula less that in simulation, over the plans of the table [percentage points]."""
    page = (Path(__file__).resolve().parent.parent / "docs/appendix/verification.md").read_text("utf-8")
    table = page.partition("## Plans for sessions")[2].partition("## ")[0]
    cells = [line.split("|")[3:6] for line in table.splitlines() if "%, hits" in line]
    shares = [[float(cell.strip(" >").partition(" %")[0]) for cell in row] for row in cells]
    errors = [formula - simulated for formula, *runs in shares for simulated in runs]
    assert len(shares) == 6
    assert f"up to {max(errors):.0f} points too high or up to {-min(errors):.0f} points" in UNSIMULATED_SESSIONS
