"""The wait of prompts that are computed together: against exact queues, a queue walked through, and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.cells import cells_of
from costmodel.prompt_ahead import (
    bubble_grown,
    decay_rate,
    likeness,
    overhead_ahead,
    residual_below,
    shared_steps,
    shortest_of,
)
from costmodel.prompt_company import Company, held_up, rate_behind
from costmodel.prompt_queue import Prompts, PromptWait, prompt_wait
from costmodel.queues.erlang import (
    bursty_servers,
    erlang_c,
    gamma_exceeds,
    gamma_wait,
    pipeline_cycle,
    wait_probability,
)

ONE = np.array([1.0])
SINGLE = np.ones((1, 1))
"""Of a single class."""


def prompts(rate: float, engines: float = 1.0, **changes: Any) -> Prompts:
    """Two kinds of prompts, short and long; a step has room for about five mean ones."""
    alone = np.array([0.5, 2.0])
    weight = np.array([2.0 / 3.0, 1.0 / 3.0])
    return replace(Prompts(rate * weight, alone, 0.95 * alone, 5.0, engines, 1.0), **changes)


def same(rate: float, engines: float = 1.0, shared: float = 1.0, arrival_scv: float = 1.0) -> Prompts:
    """Prompts that all take a second alone; a step has room for five; rate: per engine."""
    return Prompts(np.array([rate * engines]), ONE, shared * ONE, 5.0, engines, arrival_scv)


def late(found: PromptWait, given_: Prompts, slack: float) -> float:
    """P(wait > slack) of those who find all engines busy, whatever their length."""
    return float(given_.weight @ found.exceeds(np.full(given_.rate.size, slack)))


def walked(given_: Prompts, count: int, seed: int) -> np.ndarray:
    """TTFT less the prompt's own time at one engine, arrivals one by one: each step takes all that wait, up to K."""
    rng = np.random.default_rng(seed)
    rate = given_.rate.sum()
    shape = 1.0 / given_.arrival_scv
    arrival = np.cumsum(rng.gamma(shape, 1.0 / (shape * rate), count))
    kind = rng.choice(given_.rate.size, size=count, p=given_.rate / rate)
    overhead = float((given_.alone - given_.shared) @ given_.rate / rate)
    delay, free, first = np.zeros(count), 0.0, 0
    while first < count:
        free = max(free, arrival[first])
        last, length = first, overhead
        while last < count and arrival[last] <= free and (last == first or length < given_.full_step):
            length += given_.alone[kind[last]] - overhead
            last += 1
        free += length
        delay[first:last] = free - arrival[first:last] - given_.alone[kind[first:last]]
        first = last
    return delay[count // 10 :]


class TestGamma:
    @pytest.mark.parametrize("engines", [1, 2, 7, 30])
    @pytest.mark.parametrize("rho", [0.2, 0.5, 0.9])
    def test_poisson_arrivals_are_erlangs(self, engines: int, rho: float) -> None:
        assert gamma_wait(np.array(float(engines)), np.array(rho), 1.0) == pytest.approx(
            erlang_c(engines, rho), rel=2e-3
        )

    def test_one_server_is_the_root_of_its_transform(self) -> None:
        """GI/M/1: P(wait) = sigma with sigma = A*(1 - sigma); scv 4, rho 0.6."""
        sigma = float(gamma_wait(np.array(1.0), np.array(0.6), 4.0))
        assert sigma == pytest.approx((1.0 + (1.0 - sigma) * 4.0 / 0.6) ** -0.25, rel=1e-6)
        assert sigma == pytest.approx(0.8228, abs=1e-3)

    def test_many_servers_are_a_smaller_pool(self) -> None:
        exact = gamma_wait(np.array(64.0), np.array(0.9), 4.0)
        assert exact == pytest.approx(erlang_c(bursty_servers(64, 4.0), 0.9), rel=0.05)

    @settings(deadline=None, max_examples=60)
    @given(st.integers(1, 80), st.floats(0.05, 0.98), st.floats(0.05, 0.98), st.floats(1.0, 16.0))
    def test_busier_waits_more(self, engines: int, one: float, other: float, scv: float) -> None:
        low, high = sorted((one, other))
        assert wait_probability(engines, low, scv) <= wait_probability(engines, high, scv) * (1 + 1e-6)

    def test_it_broadcasts(self) -> None:
        assert wait_probability(np.array([[1], [4]]), np.array([0.3, 0.5, 1.0]), 2.0).shape == (2, 3)
        assert wait_probability([1, 4], 1.0, 2.0).tolist() == [1.0, 1.0]

    @pytest.mark.parametrize(("x", "share"), [(0.5, np.exp(-0.5)), (1.0, np.exp(-1.0)), (3.0, np.exp(-3.0))])
    def test_a_gamma_of_shape_one_is_exponential(self, x: float, share: float) -> None:
        assert gamma_exceeds(x, 1.0, 1.0) == pytest.approx(share, abs=0.01)

    def test_a_gamma_variable_is_positive(self) -> None:
        assert gamma_exceeds([-1.0, 0.0, 1e9], 1.0, 2.0).tolist() == pytest.approx([1.0, 1.0, 0.0])


class TestParts:
    def test_prompts_that_never_meet_are_alone(self) -> None:
        busy, together, chance = shared_steps(same(1e-6))
        assert busy == pytest.approx(1e-6)
        assert together == pytest.approx(1.0, abs=1e-4)
        assert chance == pytest.approx(1e-6, rel=1e-3)

    def test_steps_gather_what_came_during_the_last(self) -> None:
        """Rate 0.5, s = g = 1: n = x + exp(-x) with x = rho n, so rho = 0.5 whatever n is."""
        busy, together, chance = shared_steps(same(0.5))
        assert busy == pytest.approx(0.5)
        assert chance == pytest.approx(0.5, rel=1e-3)
        assert together == pytest.approx(0.5 * together + np.exp(-0.5 * together), rel=1e-3)

    def test_several_engines_gather_only_while_all_are_busy(self) -> None:
        """As busy, 16 engines find a prompt less company than one does: n (1 - P) = exp(-P n)."""
        _, one, _ = shared_steps(same(0.8))
        _, many, chance = shared_steps(same(0.8, 16.0))
        assert many * (1.0 - chance) == pytest.approx(np.exp(-chance * many), rel=1e-3)
        assert 1.0 < many < 1.1 < one

    def test_bursts_bring_prompts_together(self) -> None:
        found = [shared_steps(same(0.6, 2.0, arrival_scv=scv))[1] for scv in (1.0, 2.0, 4.0, 9.0)]
        assert found == sorted(found)

    def test_sharing_steps_saves_time(self) -> None:
        assert shared_steps(same(0.5, shared=0.8))[0] < 0.5
        assert shared_steps(same(1.1, shared=0.8))[0] < 1.0
        assert shared_steps(same(1.5, shared=0.8))[0] >= 1.0

    def test_steps_without_overheads_add_none(self) -> None:
        assert overhead_ahead(same(0.6)) == pytest.approx(0.0, abs=1e-4)
        assert overhead_ahead(same(0.6, shared=0.9)) > 0.01

    def test_a_router_leaves_long_prompts_alone(self) -> None:
        """Behind a short one an engine still has the fewest tokens, and gets the next one too; one alone gets all."""
        short, long = rate_behind(prompts(0.7 * 8.0, 8.0), 0.7, 0.3)
        assert short > 1.3 * long
        single = rate_behind(prompts(0.7), 0.7, 0.7)
        np.testing.assert_allclose(single, 0.7)

    def test_a_prompt_that_fits_has_the_rest_of_the_step(self) -> None:
        """Nothing queued before a prompt of 1 in steps of 4: its step begins after V, and has room for 3."""
        company = Company(own=SINGLE, pace=0.5 * SINGLE, kept=SINGLE, step=0.0, full=4.0, job=1.0)
        np.testing.assert_allclose(company.begins(np.array([0.5, 2.0])), [[0.5, 2.0]])
        np.testing.assert_allclose(company.room(np.array([0.5]), np.array([0.0, 2.9, 3.1])), [[[1.0, 1.0, 0.0]]])

    def test_a_prompt_of_several_steps_has_the_rest_of_its_last(self) -> None:
        """10 in steps of 4 end 2 into the third, which begins 8 after the first."""
        company = Company(own=10.0 * SINGLE, pace=0.5 * SINGLE, kept=SINGLE, step=0.0, full=4.0, job=1.0)
        np.testing.assert_allclose(company.begins(np.array([1.0])), [[9.0]])
        np.testing.assert_allclose(company.room(np.array([1.0]), np.array([1.9, 2.1])), [[[1.0, 0.0]]], atol=1e-9)

    def test_behind_a_long_queue_a_prompt_ends_anywhere(self) -> None:
        company = Company(own=SINGLE, pace=0.5 * SINGLE, kept=SINGLE, step=0.5, full=4.0, job=1.0)
        np.testing.assert_allclose(company.room(np.array([400.0]), np.array([0.0, 2.0])), [[[1.0, 0.5]]], atol=0.01)
        np.testing.assert_allclose(company.begins(np.array([400.0])), [[400.0 + 1.0 - 2.0]], atol=0.02)

    def test_the_tail_of_mm1_through_many_kinds(self) -> None:
        """Exponential jobs cut into 400 kinds: eta = (1 - rho) / m."""
        share = (np.arange(400) + 0.5) / 400
        jobs = -np.log1p(-share)
        eta = decay_rate(jobs, np.full(400, 1.0 / 400), 0.6, 1.0)
        assert eta == pytest.approx(1.0 / jobs.mean() - 0.6, rel=0.05)

    def test_bursts_slow_the_decay(self) -> None:
        decays = [decay_rate(ONE, ONE, 0.6, scv) for scv in (1.0, 2.0, 4.0, 9.0)]
        assert decays == sorted(decays, reverse=True)

    def test_the_residual_of_equal_jobs_is_uniform(self) -> None:
        np.testing.assert_allclose(
            residual_below(np.array([4.0]), ONE, np.array([0.0, 1.0, 4.0, 9.0])), [0, 0.25, 1, 1]
        )

    def test_the_shortest_of_one_is_any(self) -> None:
        jobs, weight = np.array([3.0, 1.0]), np.array([0.5, 0.5])
        length, chance = shortest_of(jobs, weight, 1.0)
        met = chance * length
        np.testing.assert_allclose(length, [1.0, 3.0])
        np.testing.assert_allclose(met, [0.25, 0.75])  # met in proportion to the length

    def test_the_shortest_of_many_is_short(self) -> None:
        length, chance = shortest_of(np.array([3.0, 1.0]), np.array([0.5, 0.5]), 8.0)
        assert (chance * length)[0] == pytest.approx(1.0 - 0.75**8)


class TestWait:
    def test_one_engine_without_sharing_is_pollaczek_khinchine(self) -> None:
        """With room for one prompt a step, V alone: mean E[s2] / (2 m (1 - rho))."""
        given_ = Prompts(np.array([0.6]), ONE, ONE, 1e-6, 1.0, 1.0)
        found = prompt_wait(given_)
        assert found.chance == pytest.approx(0.6, rel=1e-6)
        assert found.mean == pytest.approx(0.5 / 0.4, rel=0.01)

    def test_one_engine_is_exact_in_the_mean(self) -> None:
        """Steps that take all that came: E V = (o^2 + 2 o g n + n E g^2) / (2 E L (1 - rho_g)), and as much work
        comes behind as was queued before, rho_g / (1 + rho_g) V."""
        given_ = Prompts(np.array([0.6]), ONE, 0.9 * ONE, 500.0, 1.0, 1.0)
        found = prompt_wait(given_)
        length = 0.1 + 0.9 * found.together
        square = 0.01 + 0.18 * found.together + 0.81 * found.together
        ahead = square / (2.0 * length * (1.0 - 0.54))
        assert found.mean == pytest.approx(ahead * (1.0 + 0.54 / 1.54), rel=0.03)

    @pytest.mark.parametrize(("rate", "scv"), [(0.3, 1.0), (0.6, 1.0), (0.8, 1.0), (0.6, 4.0)])
    def test_one_engine_against_a_queue_walked_through(self, rate: float, scv: float) -> None:
        given_ = prompts(rate, arrival_scv=scv)
        found, delay = prompt_wait(given_), walked(given_, 200_000, 5)
        for quantile in (0.9, 0.97):
            at = float(np.quantile(delay, quantile))
            own = 1.0  # mean time of a prompt alone, which the wait adds to
            low = found.chance * late(found, given_, at + 0.08 * (at + own))
            high = found.chance * late(found, given_, at - 0.08 * (at + own))
            assert low <= 1.0 - quantile <= high

    def test_nobody_waits_where_nobody_comes(self) -> None:
        found = prompt_wait(prompts(0.0))
        assert (found.chance, found.utilization, found.mean) == (0.0, 0.0, 0.0)

    def test_no_slack_is_always_late(self) -> None:
        np.testing.assert_array_equal(prompt_wait(prompts(0.5)).exceeds(np.array([-1e-9, -3.0])), 1.0)

    def test_overload_is_seen(self) -> None:
        assert prompt_wait(prompts(2.0)).load > 1.0

    @settings(deadline=None, max_examples=50)
    @given(st.floats(0.05, 0.95), st.integers(1, 40), st.floats(1.0, 9.0), st.floats(0.5, 20.0))
    def test_it_is_a_distribution(self, rho: float, engines: int, scv: float, step: float) -> None:
        found = prompt_wait(prompts(rho * engines, float(engines), arrival_scv=scv, full_step=step))
        assert 0.0 <= found.chance <= 1.0
        assert (np.diff(found.late, axis=1) <= 1e-12).all()
        assert (found.late[:, 0] == 1.0).all()
        assert (np.abs(found.late[:, -1]) < 0.01).all()
        assert found.behind >= 0.0

    @settings(deadline=None, max_examples=40)
    @given(st.floats(0.05, 0.9), st.floats(1.02, 1.8), st.integers(1, 20))
    def test_more_prompts_wait_longer(self, rho: float, factor: float, engines: int) -> None:
        less, more = (prompt_wait(prompts(r * engines, float(engines))) for r in (rho, min(rho * factor, 0.97)))
        assert less.chance <= more.chance + 1e-9
        assert less.chance * less.mean <= more.chance * more.mean * 1.01

    @pytest.mark.parametrize("scv", [0.0, 1e-6, 0.01, 0.25])
    @pytest.mark.parametrize("rho", [0.1, 0.5, 0.95])
    def test_regular_arrivals_wait_less(self, rho: float, scv: float) -> None:
        """Down to a clock's, which never find an engine of equal prompts busy."""
        regular, poisson = (prompt_wait(prompts(rho, arrival_scv=one)) for one in (scv, 1.0))
        assert (np.diff(regular.late, axis=1) <= 1e-12).all()
        assert regular.chance * regular.mean < poisson.chance * poisson.mean

    def test_a_pipeline_carries_its_company_through_every_stage(self) -> None:
        one, two = (prompt_wait(prompts(0.6, stages=stages)) for stages in (1.0, 2.0))
        assert two.chance == one.chance
        assert two.mean > one.mean


def staged(rate: float, full: float = 5.0) -> Prompts:
    """The two kinds of prompts at one engine of two stages, without overheads."""
    bare, weight = np.array([0.5, 2.0]), np.array([2.0 / 3.0, 1.0 / 3.0])
    alone = pipeline_cycle(bare[None], weight, np.array([2.0]))[0]
    usual = Prompts(rate * weight, alone, bare, full, 1.0, 1.0)
    return replace(usual, stages=2.0, bare=bare, bubble=float(weight @ (alone - bare)))


def walked_stages(given_: Prompts, count: int, seed: int) -> np.ndarray:
    """TTFT less two stages of the prompt alone; of two steps in flight the next begins when the first has left."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / given_.rate.sum(), count))
    size = given_.shared[rng.choice(given_.rate.size, size=count, p=given_.weight)]
    delay, free, gone, leaving, first = np.zeros(count), 0.0, 0.0, 0.0, 0
    while first < count:
        start, last, length = max(free, gone, arrival[first]), first, 0.0
        while last < count and arrival[last] <= start and (last == first or length + size[last] <= given_.full_step):
            length, last = length + size[last], last + 1
        free, gone, leaving = start + length, leaving, max(start + length, leaving) + length
        delay[first:last] = leaving - arrival[first:last] - 2.0 * size[first:last]
        first = last
    return delay[count // 10 :]


class TestPipeline:
    @pytest.mark.parametrize("rate", [0.3, 0.5, 0.7])
    def test_delays_are_those_of_two_stages_walked_through(self, rate: float) -> None:
        delay, found = walked_stages(staged(rate), 60_000, 1), prompt_wait(staged(rate))
        assert found.chance * found.mean == pytest.approx(delay.mean(), rel=0.2)
        for quantile in (0.9, 0.99):
            slack = float(np.quantile(delay, quantile))
            assert late(found, staged(rate), 1.2 * slack) * found.chance < 1.0 - quantile
            assert late(found, staged(rate), 0.8 * slack) * found.chance > 1.0 - quantile

    def test_a_bubble_grows_with_the_prompts_of_a_step_until_steps_are_full(self) -> None:
        grown = bubble_grown(staged(0.5, full=1e6), np.array([1.0, 2.0, 4.0]))
        assert grown[0] == pytest.approx(0.0, abs=1e-6)
        assert (np.diff(grown) > 0.0).all()
        full = bubble_grown(staged(0.5), np.array([1.0 + 4.0 / 1.0]))
        assert full == 0.0  # what single prompts lose stays: full steps of long ones differ
        assert bubble_grown(prompts(0.5), np.array([3.0])) == pytest.approx(0.0)

    def test_a_step_waits_for_a_longer_one_before_it(self) -> None:
        edges = np.linspace(0.0, 8.0, 1025)
        short, long = cells_of(held_up(staged(0.5), np.array([0.5, 2.0]), edges)) @ edges[:-1]
        assert short == pytest.approx(1.5 / 3.0, rel=1e-6)
        assert long == pytest.approx(0.0, abs=1e-9)


def walked_in_turn(given_: Prompts, count: int, seed: int) -> np.ndarray:
    """TTFT less its own time of prompts of one length, each sent to the engine that has fewest."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / given_.rate.sum(), count))
    most, one = int(given_.full_step), int(given_.engines)
    ends, steps, delay = np.zeros(one), [0] * one, np.zeros(count)
    waiting: list[list[int]] = [[] for _ in range(one)]

    def begin(engine: int, at: float) -> None:
        taken, waiting[engine] = waiting[engine][:most], waiting[engine][most:]
        ends[engine], steps[engine] = at + len(taken), len(taken)
        delay[taken] = ends[engine] - arrival[taken] - 1.0

    for number, now in enumerate(arrival):
        for engine in range(one):
            while ends[engine] <= now and steps[engine]:
                begin(engine, ends[engine])
        chosen = min(range(one), key=lambda engine: steps[engine] + len(waiting[engine]))
        waiting[chosen].append(number)
        if not steps[chosen]:
            begin(chosen, now)
    return delay[count // 10 : -100]


class TestInTurn:
    @pytest.mark.parametrize(("engines", "rate"), [(2, 0.8), (4, 0.8), (8, 0.85)])
    def test_prompts_of_one_length_are_dealt_out(self, engines: int, rate: float) -> None:
        given_ = same(rate, float(engines))
        delay, found = walked_in_turn(given_, 20_000, 1), prompt_wait(given_)
        assert found.chance * found.mean == pytest.approx(delay.mean(), rel=0.15)

    def test_only_prompts_of_one_length_are_quite_alike(self) -> None:
        assert likeness(same(0.5, 4.0)) == 1.0
        assert likeness(same(0.5)) == 0.0  # one engine gets what comes
        few, many = (likeness(prompts(0.5, engines)) for engines in (2.0, 8.0))
        assert 1.0 > few > many >= 0.0
