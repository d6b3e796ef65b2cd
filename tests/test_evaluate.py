"""The fleet that the search finds is evaluated anew, at the loads that it really has: it must hold its goals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Parallelism, Role
from costmodel.queues.prefill import Prompts, prompt_wait
from costmodel.queues.steady_state import ClosedLoad, EngineTimes, Prompt, WorkerPools, closed_loop
from costmodel.step import StepLoad, step_time_one
from optimizer.fleets.evaluate import RATE_MARGIN, Evaluation, evaluate, goodput_volume
from optimizer.fleets.fleet import Fleet, prefill_seqs
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import COLOCATED, PREFILL, Instance, make_instance
from optimizer.search.mixtures import leanest
from optimizer.search.search import evaluated
from optimizer.search.settings import LATE_BY_STEPS, late_first_tokens, make_settings
from optimizer.verification.simulated_plan import judge
from search_spaces.engines import ENGINES, load_serving_policy
from search_spaces.enumeration import engine_config
from search_spaces.problem import Constraints
from tests.optimizer_cases import instance_of, model, offer, problem, slo, space, workload
from tests.small_fleets import alone, apart, each_of, pool

CHAT = ((200.0, 300.0, 0.5), (2000.0, 200.0, 0.4), (12000.0, 400.0, 0.1))
CODE = ((4000.0, 20.0, 0.7), (8000.0, 100.0, 0.3))
ONE_TOKEN = ((1000.0, 1.0, 0.6), (3000.0, 50.0, 0.4))
LARGE = space(tensor_parallel=(1, 2, 4, 8), max_num_seqs=(16, 64, 256), max_num_batched_tokens=(512, 2048, 8192))
EXPERTS = replace(LARGE, expert_parallel=(1, 8), data_parallel=(1, 8))
STAGES = (Role.PREFILL, Role.DECODE)
APART = replace(LARGE, roles=STAGES)
TWO = (slo(0.8, 0.04, 0.95, name="chat", share=0.7), slo(5.0, 0.15, 0.9, name="batch", share=0.3))
LLAMA_70B, MIXTRAL, DEEPSEEK = model("Llama-3.1-70B"), model("Mixtral-8x7B"), model("DeepSeek-V3")
BOTH = (offer("H100"), offer("L40S"))

PROBLEMS = {
    "trickle": problem(workload=workload(0.5, CHAT, max_tokens=16000), space=LARGE),
    "flood": problem(workload=workload(200.0, CODE), offers=BOTH, space=LARGE),
    "tight": problem(workload=workload(20.0, CHAT, max_tokens=16000), slos=(slo(1.0, 0.02, 0.99),), space=LARGE),
    "loose": problem(workload=workload(60.0, CHAT, max_tokens=16000), slos=(slo(10.0, 0.2, 0.9),), space=LARGE),
    "bursty": problem(workload=workload(30.0, CODE, burstiness=3.0), offers=BOTH, space=LARGE),
    "mildly bursty, apart": problem(workload=workload(80.0, CHAT, burstiness=1.5, max_tokens=16000), space=APART),
    "clockwork": problem(workload=workload(20.0, CODE, burstiness=0.5), space=LARGE),
    "prefix cache": problem(workload=workload(40.0, CODE, prefix_hit_share=0.6), space=APART),
    "two classes": problem(workload=workload(50.0, CODE), slos=TWO, offers=BOTH, space=LARGE),
    "end to end": problem(workload=workload(20.0, CHAT, max_tokens=16000), slos=(slo(2.0, e2e=12.0),), space=LARGE),
    "one token": problem(workload=workload(30.0, ONE_TOKEN), space=LARGE),
    "one bucket": problem(workload=workload(25.0, ((1000.0, 100.0, 1.0),)), space=APART),
    "70B": problem(model=LLAMA_70B, workload=workload(15.0, CODE), slos=TWO, offers=(offer("H200"),), space=LARGE),
    "mixtral": problem(model=MIXTRAL, workload=workload(25.0, CODE, burstiness=2.0), offers=BOTH, space=LARGE),
    "deepseek": replace(
        problem(workload=workload(10.0, CHAT, max_tokens=16000), slos=(slo(3.0, 0.1, 0.9),), offers=(offer("H200"),)),
        model=DEEPSEEK,
        weight_dtype="fp8",
        space=EXPERTS,
    ),
    "two makers": problem(workload=workload(30.0, CHAT, max_tokens=16000), offers=(offer("MI300X"), offer("L40S"))),
    "spares": problem(workload=workload(40.0, CODE), constraints=Constraints(spare_replicas=2), space=LARGE),
}


@cache
def fleet_of(name: str) -> tuple[Instance, Fleet, Evaluation]:
    """The cheapest fleet and its evaluation."""
    instance = instance_of(PROBLEMS[name])
    fleet = leanest(evaluated(instance))
    assert fleet.pools
    return instance, fleet, evaluate(instance, fleet)


@pytest.mark.parametrize("name", PROBLEMS)
class TestTheFleetFound:
    def test_requests_in_are_requests_out(self, name: str) -> None:
        instance, fleet, result = fleet_of(name)
        for other_stage in STAGES:
            routed = sum(pool.route for pool in fleet.pools if pool.role is not other_stage)
            np.testing.assert_allclose(routed, 1.0, atol=1e-6)
        rate = sum(state.rate for pool, state in zip(fleet.pools, result.states, strict=True) if pool.role != "decode")
        np.testing.assert_allclose(rate, instance.flows.rate, rtol=1e-6)

    def test_attainment_is_the_mean_over_the_flows_of_a_class(self, name: str) -> None:
        instance, _, result = fleet_of(name)
        flows, classes = instance.flows, instance.problem.slos
        for k in range(len(classes)):
            mine = flows.slo == k
            mean = np.average(result.flow_attainment[mine], weights=flows.share[mine])
            assert result.attainment[k] == pytest.approx(mean)
        shares = [one.share for one in classes]
        assert result.overall == pytest.approx(np.average(result.attainment, weights=shares))
        assert ((result.flow_attainment >= 0.0) & (result.flow_attainment <= 1.0)).all()

    def test_goodput_is_at_least_the_demand_and_marks_the_edge(self, name: str) -> None:
        instance, fleet, _ = fleet_of(name)
        volume = goodput_volume(instance, fleet)
        assert volume >= 1.0
        assert evaluate(instance, fleet, volume).holds
        assert not evaluate(instance, fleet, volume * 1.01).holds

    def test_it_keeps_up_with_a_few_more_requests(self, name: str) -> None:
        instance, fleet, result = fleet_of(name)
        assert result.busiest * RATE_MARGIN <= 1.0 + 1e-9
        assert all(state.stable for state in evaluate(instance, fleet, 1.0 + (RATE_MARGIN - 1.0) / 2.0).states)

    def test_more_load_is_never_better(self, name: str) -> None:
        instance, fleet, _ = fleet_of(name)
        attained = [evaluate(instance, fleet, volume).overall for volume in (0.25, 0.5, 1.0, 1.5, 2.5, 5.0)]
        assert (np.diff(attained) <= 1e-5).all()  # one request in 100,000


def one_flow(rate: float, **changes: float) -> Instance:
    """Prompts of 1000 tokens and 100 to generate, on single H100."""
    load = workload(rate, ((1000.0, 100.0, 1.0),), **changes)
    return instance_of(problem(workload=load, space=space(tensor_parallel=(1,), max_num_seqs=(256,))))


class TestByHand:
    def test_one_prefill_engine_waits_as_its_prompts_do(self) -> None:
        """The pool's wait is that of `prompt_wait` for its prompts, alone and in full steps."""
        instance = one_flow(8.0)
        tables = instance.tables
        state = evaluate(instance, apart(instance, 1, 1)).states[0]
        own, shared = tables.prefill_time[0, -1], tables.prefill_shared[0, -1]
        assert 0.1 < 8.0 * float(own[0]) < 0.9
        assert float(shared[0]) < float(own[0])
        full = float(shared[0]) * tables.chunks[-1] / 1000.0
        expected = prompt_wait(Prompts(np.array([8.0]), own, shared, full, 1.0, 1.0))
        assert state.wait.chance == pytest.approx(expected.chance)
        np.testing.assert_allclose(state.wait.late, expected.late)
        np.testing.assert_allclose(state.latency, own)

    def test_the_first_token_also_waits_for_the_hand_over_and_a_step(self) -> None:
        """The rest of the decode step in progress, one that loads the KV, and the first own one.

        The step in progress is met at any time; the cards hardly hold up, and loading hides the transfer.
        """
        instance = one_flow(2.0)
        tables = instance.tables
        result = evaluate(instance, apart(instance, 1, 1))
        queue, decode = result.states
        moved = float(tables.kv_transferred[0, 0]) / float(tables.link[0])
        kv = 1000 * 2 * 32 * 8 * 128 * 2  # of Llama-3.1-8B
        assert moved == pytest.approx(kv / (0.92 * 50e9))  # over a 400 Gbit/s card
        running = 1.0 - math.exp(-decode.running)
        loading = decode.steps.quiet
        fixed = 0.0228 + 0.0882  # of vLLM: arrival and hand-over
        lone = fixed + float(queue.latency[0]) + max(moved - running * loading, 0.0) + decode.steps.quiet
        assert running > 0.7
        # those who find the engine busy come last: the median is that of 0.5 / (1 - rho) of those who do not
        rest = decode.steps.quiet * max(0.5 / (1.0 - queue.utilization) - (1.0 - running), 0.0) / running
        assert result.ttft[-1, 0] == pytest.approx(lone + loading + rest, abs=0.1 * decode.steps.quiet)

    def test_a_decode_engine_obeys_littles_law(self) -> None:
        """running = rate x osl x step, and step = base(running) + running x slope."""
        instance = one_flow(8.0)
        tables = instance.tables
        fleet = apart(instance, 1, 2)
        state, pool = evaluate(instance, fleet).states[1], fleet.pools[1]
        assert state.running == pytest.approx(4.0 * 100.0 * state.step, rel=1e-6)
        base = float(np.interp(state.running, tables.seqs, tables.decode_base[0]))
        assert state.step == pytest.approx(base + state.running * float(tables.attention_slope[0, 0]), rel=1e-6)
        capacity = tables.kv_capacity[0, pool.seqs, pool.chunk]
        assert state.memory == pytest.approx(state.running * tables.kv_held[0, 0] / capacity, rel=1e-6)

    def test_a_request_meets_steps_that_hold_it_too(self) -> None:
        """Its tokens come at the step of a batch of one more than the mean; for whole bursts, of more."""
        instance = one_flow(8.0)
        result = evaluate(instance, apart(instance, 1, 1))
        base = instance.tables.decode_base[0]  # in which each request more is one token more to compute
        one = float(instance.tables.attention_slope[0, 0] + base[1] - base[0])
        assert result.tpot[-1, 0] == pytest.approx(result.states[1].step + one, rel=1e-5)
        bursty = instance_of(replace(instance.problem, workload=replace(instance.problem.workload, burstiness=3.0)))
        slow = evaluate(bursty, apart(instance, 1, 1)).tpot[-1, 0]
        assert slow == pytest.approx(result.states[1].step + 5.0 * one, rel=1e-5)

    def test_slots_of_all_engines_are_one_pool(self) -> None:
        """As busy, eight engines run out of slots far less often than one."""
        few = space(tensor_parallel=(1,), max_num_seqs=(8,))
        instance = instance_of(problem(workload=workload(1.0, ((1000.0, 100.0, 1.0),)), space=few))
        single, together = (evaluate(instance, apart(instance, n, n), 8.0 * n).states[1] for n in (1, 8))
        assert together.running == pytest.approx(single.running)
        assert 1e-3 < single.full < 1.0
        assert together.full < single.full / 10.0

    def test_an_answer_of_one_token_is_late_by_its_first_alone(self) -> None:
        """However tight the limits of later tokens, which the other requests all miss."""
        goals = (slo(60.0, 1e-6, itl_p99=1e-6),)
        instance = instance_of(problem(workload=workload(1.0, ONE_TOKEN), slos=goals, space=LARGE))
        result = evaluate(instance, each_of(instance, (Role.COLOCATED,), 4))
        np.testing.assert_allclose(result.flow_attainment, instance.flows.osl == 1.0, atol=1e-9)


# --- a request that decodes by itself takes the cost model's step of one request at its context, however long

OUTPUT = 200.0
SPLITS = (Parallelism(), Parallelism(tensor=2), Parallelism(pipeline=2))


def contexts(*isl: float, burstiness: float = 1.0, seqs: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> Instance:
    """Prompts of these lengths, equally often, on H100 by one, two, and two in a pipeline."""
    lengths = tuple((length, OUTPUT, 1.0 / len(isl)) for length in isl)
    load = workload(1e-4, lengths, burstiness=burstiness, max_tokens=130_000)
    return instance_of(problem(workload=load, space=space(pipeline_parallel=(1, 2), max_num_seqs=seqs)))


def lone_step(instance: Instance, split: Parallelism) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The cost model's step of one request of each flow at its mean context [s]."""
    given_ = instance.problem
    shape = next(one for one in instance.tables.shapes if one.parallelism == split)
    config = engine_config(given_, shape, Role.COLOCATED, 32, 8192)
    load = StepLoad.decode(np.ones(instance.flows.isl.size), instance.flows.mean_context)
    return np.asarray(step_time_one(given_.model, config, load_serving_policy(given_.engine).overhead, load).total[0])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("isl", [1000.0, 8000.0, 38_000.0, 120_000.0])
def test_a_lone_request_reads_its_own_cache(isl: float, split: Parallelism) -> None:
    instance = contexts(isl)
    expected = float(lone_step(instance, split)[0])
    for replicas in (1, 4):
        found = evaluate(instance, alone(instance, replicas, split=split, seqs=5)).tpot[-1]
        assert found[:2] == pytest.approx([expected, expected], rel=0.002)


@pytest.mark.parametrize("split", SPLITS)
def test_each_request_reads_its_own_cache_and_not_the_mean_one(split: Parallelism) -> None:
    """Half of the requests have short prompts, half long ones: the median is one, the slowest tenth the other."""
    instance = contexts(1000.0, 100_000.0)
    short, long = lone_step(instance, split)
    assert long > 1.15 * short
    engine = alone(instance, 1, split=split, seqs=5)
    steps = pool_state(instance, engine.pools[0], 1.0).steps
    np.testing.assert_allclose(steps.quiet + steps.time.own, [short, long], rtol=0.002)
    assert float(evaluate(instance, engine).tpot[-1, 1]) == pytest.approx(float(long), rel=0.002)
    if split == Parallelism():
        decode = pool_state(instance, pool(instance, "decode", Role.DECODE, 1, seqs=5), 1.0).steps
        np.testing.assert_allclose(decode.quiet + decode.time.own, [short, long], rtol=0.002)


@settings(max_examples=40)
@given(
    log_rate=st.floats(-4.0, 0.5),
    isl=st.lists(st.sampled_from([200.0, 2000.0, 20_000.0]), min_size=1, max_size=3, unique=True),
    burstiness=st.sampled_from([1.0, 3.0]),
    replicas=st.sampled_from([1, 3, 20]),
    split=st.sampled_from(SPLITS),
    least=st.sampled_from([1, 16]),
)
def test_half_are_late_where_the_mean_quiet_step_is(
    log_rate: float, isl: list[float], burstiness: float, replicas: int, split: Parallelism, least: int
) -> None:
    """What the certified floor takes for granted (`search.bound`)."""
    instance = contexts(*isl, burstiness=burstiness, seqs=tuple(least * 2**k for k in range(6)))
    colocated = alone(instance, replicas, split=split, seqs=5).pools[0]
    for engines in (colocated, pool(instance, "decode", Role.DECODE, replicas, seqs=5)):
        steps = pool_state(instance, engines, 10.0 ** (log_rate + 4.0)).steps
        assert (np.broadcast_to(steps.time.own, len(isl)) >= 0.0).all()
        assert (steps.calm_exceeds(np.full(len(isl), steps.quiet * (1.0 - 1e-9))) >= LATE_BY_STEPS).all()


# --- engines whose prompts go first and alone (SGLang) beside those that mix them with decodes


@cache
def served_by(engine: str, rate: float = 8.0) -> Instance:
    """Prompts of 800 or 3000 tokens on single H100, in chunks of 1024."""
    load = workload(rate, ((800.0, 150.0, 0.7), (3000.0, 250.0, 0.3)))
    choice = space(tensor_parallel=(1,), max_num_seqs=(2, 8, 32, 256), max_num_batched_tokens=(1024,))
    return instance_of(problem(workload=load, space=choice, engine=engine))


def test_a_step_of_prompts_carries_no_decodes() -> None:
    """Whatever runs, 800 tokens take one step and 3000 take three, as on a prefill engine."""
    tables = served_by("sglang").tables
    assert tables.chunk_count[0, :, 0].tolist() == [[1.0, 3.0]] * tables.seqs.size
    assert tables.mixed_base[0, 0] == pytest.approx(tables.mixed_base[0, -1])
    assert (tables.mixed_base * tables.chunk_count)[0, 0, 0] == pytest.approx(tables.prefill_alone[0, 0], rel=1e-2)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("rate", [6.0, 11.0])
def test_the_evaluation_agrees_with_the_simulation(engine: str, rate: float) -> None:
    instance = served_by(engine, rate)
    engines = alone(instance, 2, seqs=3)
    found, seen = evaluate(instance, engines), judge(instance, engines, requests=6000, seed=3)
    one = seen.classes[0]
    assert not seen.overload.overloaded
    assert found.ttft[0][:2] == pytest.approx((one.ttft_s.p50, one.ttft_s.p90), rel=0.12)
    assert found.tpot[0][:2] == pytest.approx((one.tpot_s.p50, one.tpot_s.p90), rel=0.08)


# --- seats of prefill engines: as many as fill a step, in every stage of a pipeline

SEQS = (1, 2, 4, 8, 16, 32, 64, 128)
SPACE = space(roles=STAGES, tensor_parallel=(1,), pipeline_parallel=(1, 4), max_num_seqs=SEQS)


@pytest.mark.parametrize(
    ("buckets", "seats"),
    [
        (((512.0, 100.0, 1.0),), [4, 16]),  # 4 prompts fill 2,048 tokens
        (((300.0, 100.0, 1.0),), [8, 32]),  # 7 do
        (((128.0, 100.0, 0.5), (6000.0, 100.0, 0.5)), [16, 64]),  # as many as if all were short
        (((16.0, 100.0, 0.05), (512.0, 100.0, 0.95)), [4, 16]),  # but for one in ten
        (((8.0, 100.0, 1.0),), [128, 128]),  # 256 do, for whom there are no seats
        (((6000.0, 100.0, 1.0),), [1, 4]),
    ],
)
def test_prompts_that_fill_a_step_have_seats(buckets: tuple[tuple[float, float, float], ...], seats: list[int]) -> None:
    """Without a pipeline, and in one of four stages."""
    instance = instance_of(problem(workload=workload(10.0, buckets), space=SPACE))
    shapes = {shape.parallelism.pipeline: number for number, shape in enumerate(instance.tables.shapes)}
    assert [SEQS[prefill_seqs(instance, shapes[stages], -1)] for stages in (1, 4)] == seats


# --- what no load changes of a TTFT is one law: of fleets by formula, of the simulator, and of the closed loop

MODES = (STAGES, (Role.COLOCATED,))
QUICK = {"arrival_ms": 0.0, "handover_ms": 0.0}
"""An engine whose clients and hand-overs take no time."""


def timed_instance(engine: str, changes: Mapping[str, float], ttft: float = 2.0) -> Instance:
    """One request of a thousand tokens per second on H100."""
    load, choice = workload(1.0, ((1000.0, 100.0, 1.0),)), space(tensor_parallel=(1,))
    served = {"engine": engine, "engine_changes": {engine: changes}}
    return make_instance(problem(**served, workload=load, slos=(slo(ttft=ttft),), space=choice))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("roles", MODES)
def test_formula_simulation_and_closed_loop_shift_by_the_same(engine: str, roles: tuple[Role, ...]) -> None:
    """By what the user's file says: 7 ms until the queue, and 40 ms for a hand-over."""
    shift = 0.047 if roles == STAGES else 0.007
    there, here = (timed_instance(engine, change) for change in ({"arrival_ms": 7, "handover_ms": 40}, QUICK))
    fleet = each_of(here, roles)
    formula = [evaluate(instance, fleet) for instance in (there, here)]
    np.testing.assert_allclose(formula[0].ttft, formula[1].ttft + shift, atol=1e-6)
    np.testing.assert_allclose(formula[0].tpot, formula[1].tpot)
    runs = [judge(instance, fleet, requests=300).runs[0].result for instance in (there, here)]
    np.testing.assert_allclose(runs[0].ttft, runs[1].ttft + shift)
    np.testing.assert_allclose(runs[0].e2e, runs[1].e2e + shift)
    cell = np.ones((1, 1))
    times = EngineTimes(
        Prompt(0.1 * cell, 0.1 * cell, 0.1 * cell, cell, cell), lambda running: np.full_like(running, 0.01)
    )
    load = ClosedLoad(cell, 1000.0 * cell, 101.0 * cell, 0.0 * cell, 10.0 * cell)
    pools = WorkerPools(cell, cell, 0.0 * cell, 100.0 * cell, apart=roles == STAGES)
    pushes = replace(there.policy.scheduler, pulls=False)
    lone = [closed_loop(times, replace(case.policy, scheduler=pushes), load, pools) for case in (there, here)]
    assert lone[0].ttft - lone[1].ttft == pytest.approx(shift)
    residence = [1.0 / steady.rate for steady in lone]
    change = (lone[0].tpot - lone[1].tpot) * 100.0  # of colocated prompts, the fewer per second the less a token waits
    assert residence[0] - residence[1] == pytest.approx(shift + change)


def test_no_engine_is_faster_than_what_no_load_changes() -> None:
    """A limit of 80 ms leaves time for a prompt of 1000 tokens, about 30 ms, but not for a hand-over of 88 ms."""
    usual, quick = (timed_instance("vllm", changes, ttft=0.08) for changes in ({}, QUICK))
    settings = make_settings(usual)
    late = late_first_tokens(usual, settings)
    assert late[settings.role == PREFILL].all()
    assert not late[settings.role == COLOCATED].any()
    assert not late_first_tokens(quick, settings).any()


@pytest.mark.parametrize(("rate", "chunk"), [(6.0 * 0.92, 512), (6.0 * 1.3, 1024)])
def test_a_batch_on_the_edge_of_one_more_step(rate: float, chunk: int) -> None:
    """Where a larger batch makes prompts need a step more and that makes it smaller again, the pool still keeps up."""
    states, limits = [], {"max_num_seqs": (256,), "max_num_batched_tokens": (chunk,)}
    choice = space(roles=(Role.COLOCATED,), tensor_parallel=(4,), pipeline_parallel=(2,), **limits)
    for factor in (0.8, 1.0, 1.05):
        load = workload(rate * factor, ((1000.0, 200.0, 1.0),))
        instance = instance_of(problem(model=model("Llama-3.1-70B"), workload=load, space=choice))
        states.append(pool_state(instance, alone(instance, 1, split=Parallelism(4, 2), seqs=0).pools[0], 1.0))
    assert all(state.stable for state in states)
    assert states[0].running < states[1].running < states[2].running
