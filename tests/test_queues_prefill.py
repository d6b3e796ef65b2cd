"""The wait of prompts that are computed together: against exact queues, a queue walked through, and its limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.queues.prefill import Prompts, all_busy, last_step, pipeline_idle, prompt_wait, shared_steps
from costmodel.queues.waits import ExponentialWait

ONE = np.array([1.0])


def prompts(rate: float, engines: float = 1.0, **changes: Any) -> Prompts:
    """Two kinds of prompts, short and long; a step has room for about five mean ones."""
    alone = np.array([0.5, 2.0])
    weight = np.array([2.0 / 3.0, 1.0 / 3.0])
    return replace(Prompts(rate * weight, alone, 0.95 * alone, 5.0, engines, 1.0), **changes)


def same(rate: float, engines: float = 1.0, shared: float = 1.0, stages: float = 1.0) -> Prompts:
    """Prompts that all take a second alone; a step has room for five; rate: per engine."""
    return Prompts(np.array([rate * engines]), ONE, shared * ONE, 5.0, engines, 1.0, stages)


def walked(given_: Prompts, count: int, seed: int) -> np.ndarray:
    """TTFT less the prompt's own time at one engine, arrivals one by one: each step takes all that wait, up to K.

    As many steps are in flight as the engine has stages.
    """
    rng, stages = np.random.default_rng(seed), int(given_.stages)
    shape = 1.0 / given_.arrival_scv
    arrival = np.cumsum(rng.gamma(shape, 1.0 / (shape * given_.rate.sum()), count))
    own = rng.choice(given_.alone, size=count, p=given_.weight)
    overhead = given_.mean_alone - given_.mean_shared
    free, ends, delay, first = np.zeros(stages), [0.0] * stages, np.zeros(count), 0
    while first < count:
        begin = max(arrival[first], free[0], ends[-stages])
        last, length = first, overhead
        while last < count and arrival[last] <= begin and (last == first or length < given_.full_step):
            length += own[last] - overhead
            last += 1
        end = begin
        for stage in range(stages):
            end = free[stage] = max(end, free[stage]) + length
        ends.append(end)
        delay[first:last] = end - arrival[first:last] - stages * own[first:last]
        first = last
    return delay[count // 10 :]


class TestParts:
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

    def test_sharing_steps_saves_time(self) -> None:
        assert shared_steps(same(0.5, shared=0.8))[0] < 0.5
        assert shared_steps(same(1.1, shared=0.8))[0] < 1.0
        assert shared_steps(same(1.5, shared=0.8))[0] >= 1.0

    @pytest.mark.parametrize(
        ("own", "ahead", "begins", "room"),
        [
            (1.0, 1e-6, 0.0, [1.0, 1.0, 0.0]),  # fits in a step of 4, which has room for 3 behind it
            (10.0, 1e-6, 8.0, [1.0, 0.0, 0.0]),  # ends 2 into the third, which begins 8 after the first
            (1.0, 800.0, 799.0, [1.0, 0.475, 0.225]),  # behind a long queue it ends anywhere
        ],
    )
    def test_a_prompt_has_the_rest_of_its_last_step(
        self, own: float, ahead: float, begins: float, room: list[float]
    ) -> None:
        lone = Prompts(ONE, own * ONE, own * ONE, 4.0, 1.0, 1.0)
        beginning, chances = last_step(lone, np.array([ahead]), 0.5, 4.0 - np.array([0.0, 2.1, 3.1]))
        assert beginning == pytest.approx([begins], abs=0.02)
        np.testing.assert_allclose(chances, [room], atol=0.01)


class TestWait:
    @pytest.mark.parametrize("quantile", [0.9, 0.95, 0.99])
    @pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
    def test_the_tail_of_md1_is_exact(self, rho: float, quantile: float) -> None:
        """Erlang's M/D/1: P(W > t) = 1 - (1 - rho) sum of (-u)^j exp(u) / j!, u = rho (t - j); exponential: 5 % off."""

        def late(t: float) -> float:
            terms = (math.exp(rho * (t - j)) * (-rho * (t - j)) ** j / math.factorial(j) for j in range(int(t) + 1))
            return 1.0 - (1.0 - rho) * sum(terms)

        found = prompt_wait(Prompts(np.array([rho]), ONE, ONE, 1e-6, 1.0, 1.0))
        assert found.chance == pytest.approx(rho, rel=1e-6)
        assert found.mean == pytest.approx(0.5 / (1.0 - rho), rel=0.015 * rho)  # Pollaczek-Khinchine
        at = float(np.interp(quantile - 1.0, -found.chance * found.late, found.seconds))
        assert late(1.01 * at) < 1.0 - quantile < late(0.985 * at)

    @pytest.mark.parametrize(("rate", "scv"), [(0.3, 1.0), (0.6, 1.0), (0.8, 1.0), (0.6, 4.0)])
    def test_one_engine_against_a_queue_walked_through(self, rate: float, scv: float) -> None:
        given_ = prompts(rate, arrival_scv=scv)
        found, delay = prompt_wait(given_), walked(given_, 200_000, 5)
        for quantile in (0.9, 0.97):
            at = float(np.quantile(delay, quantile))
            own = 1.0  # mean time of a prompt alone, which the wait adds to
            low = found.chance * float(found.exceeds(at + 0.08 * (at + own)))
            high = found.chance * float(found.exceeds(at - 0.08 * (at + own)))
            assert low <= 1.0 - quantile <= high

    def test_nobody_waits_where_nobody_comes_and_overload_is_seen(self) -> None:
        found = prompt_wait(prompts(0.0))
        assert (found.chance, found.utilization, found.mean) == (0.0, 0.0, 0.0)
        assert prompt_wait(prompts(2.0)).load > 1.0

    @given(st.floats(0.05, 0.95), st.integers(1, 40), st.floats(1.0, 9.0), st.floats(0.5, 20.0))
    def test_it_is_a_distribution(self, rho: float, engines: int, scv: float, step: float) -> None:
        found = prompt_wait(prompts(rho * engines, float(engines), arrival_scv=scv, full_step=step))
        assert 0.0 <= found.chance <= 1.0
        assert (np.diff(found.late) <= 1e-12).all()
        assert found.late[0] == 1.0
        assert abs(found.late[-1]) < 0.01
        assert found.behind >= 0.0

    @settings(max_examples=40)
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
        assert (np.diff(regular.late) <= 1e-12).all()
        assert regular.chance * regular.mean < poisson.chance * poisson.mean


class TestPipeline:
    @pytest.mark.parametrize(("stages", "rate"), [(2.0, 0.3), (2.0, 0.5), (2.0, 0.7), (4.0, 0.3)])
    def test_against_a_pipeline_walked_through(self, stages: float, rate: float) -> None:
        given_ = prompts(rate, alone=np.array([0.5, 2.0]), shared=np.array([0.5, 2.0]), stages=stages)
        found, delay = prompt_wait(given_), walked(given_, 100_000, 5)
        assert found.chance * found.mean == pytest.approx(delay.mean(), rel=0.25)

    def test_equal_full_steps_leave_no_stage_idle(self) -> None:
        assert float(pipeline_idle(same(0.5, stages=2.0), 1.0)) == 0.0
        assert float(pipeline_idle(same(0.5, stages=2.0), 5.0)) == 0.0
        assert float(pipeline_idle(same(0.5), 3.0)) == 0.0
        assert 0.0 < float(pipeline_idle(same(0.5, stages=2.0), 3.0)) < float(pipeline_idle(same(0.5, stages=4.0), 3.0))

    def test_a_router_that_sees_no_stages_finds_engines_busy_more_often(self) -> None:
        """One pipeline has no choice; of 16 at 0.8 a prompt meets its first stage busy for more than Erlang says."""
        busy = np.array(0.8)
        assert float(all_busy(same(0.8, stages=2.0), busy)) == pytest.approx(0.8)
        one, two = (float(all_busy(same(0.8, 16.0, stages=stages), busy)) for stages in (1.0, 2.0))
        assert one < two < 0.8


class TestRouter:
    def test_equal_prompts_go_round_and_different_ones_at_random(self) -> None:
        assert same(0.5, 4.0).engine_scv == pytest.approx(0.25)  # Erlang gaps of four
        assert same(0.5).engine_scv == 1.0
        assert 0.125 < prompts(4.0, 8.0).engine_scv < 1.0
        extreme = replace(prompts(4.0, 8.0), rate=np.array([1e3, 1e-3]), shared=np.array([1e-6, 1e3]))
        assert extreme.engine_scv == pytest.approx(1.0, abs=1e-3)


class TestSeats:
    def test_a_seat_is_waited_for_beside_everything_else(self) -> None:
        alone = prompt_wait(prompts(0.4))
        full = alone.with_slot(ExponentialWait(0.3, 5.0))
        assert full.seconds[-1] >= 50.0
        for slack in (0.05, 2.0):
            before = alone.chance * float(alone.exceeds(slack))
            late = full.chance * float(full.exceeds(slack))
            assert late == pytest.approx(before + 0.3 * (1.0 - before) * np.exp(-slack / 5.0), abs=0.02)
        assert alone.with_slot(ExponentialWait(0.0, 5.0)) is alone
