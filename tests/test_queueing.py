"""Waiting times against textbook formulas, and the properties that the search relies on."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.queues.erlang import (
    MANY_SERVERS,
    bursty_servers,
    conditional_wait,
    erlang_c,
    gamma_wait,
    normal_exceeds,
    pipeline_cycle,
    wait_probability,
)

RHO = st.floats(0.01, 0.99)
SERVERS = st.integers(1, 200)
SCV = st.floats(0.0, 16.0)


def erlang_c_by_sum(servers: int, rho: float) -> float:
    """The textbook sum: a^c/c! / (1-rho) over sum_k<c a^k/k! + a^c/c! / (1-rho)."""
    offered = rho * servers
    last = offered**servers / math.factorial(servers) / (1.0 - rho)
    return last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)


class TestErlangC:
    def test_one_server_is_busy_with_probability_rho(self) -> None:
        assert erlang_c(1, 0.37) == pytest.approx(0.37, rel=1e-12)

    def test_two_servers_half_busy_make_a_third_wait(self) -> None:
        # M/M/2, a = 1: C = (1/2 / 0.5) / (1 + 1 + 1/2 / 0.5) = 1/3
        assert erlang_c(2, 0.5) == pytest.approx(1.0 / 3.0, rel=1e-12)

    def test_a_hundred_servers_of_a_call_centre(self) -> None:
        assert erlang_c(100, 0.9) == pytest.approx(erlang_c_by_sum(100, 0.9), rel=1e-9)

    @pytest.mark.parametrize("rho", [0.9, 0.97, 0.99, 0.999])
    def test_the_limit_of_many_servers_continues_the_recursion(self, rho: float) -> None:
        last, first = erlang_c([MANY_SERVERS, MANY_SERVERS + 1], rho)
        assert first == pytest.approx(last, rel=0.05, abs=1e-4)
        assert erlang_c(10**9, rho) == pytest.approx(0.0, abs=1e-12)

    def test_an_overloaded_queue_makes_everyone_wait(self) -> None:
        np.testing.assert_array_equal(erlang_c([1, 7, 300], [1.0, 1.5, 2.0]), 1.0)

    def test_an_idle_queue_makes_nobody_wait(self) -> None:
        np.testing.assert_allclose(erlang_c([1, 4], [0.0, 0.0]), 0.0, atol=1e-12)

    def test_thousands_of_servers_do_not_overflow(self) -> None:
        value = float(erlang_c(5000, 0.99))
        assert 0.0 < value < 1.0

    def test_it_broadcasts(self) -> None:
        table = erlang_c(np.array([1, 2, 8])[:, None], np.array([0.3, 0.9]))
        assert table.shape == (3, 2)
        assert table[1, 0] == pytest.approx(erlang_c_by_sum(2, 0.3))

    @settings(deadline=None, max_examples=60)
    @given(SERVERS, RHO)
    def test_it_is_the_textbook_sum(self, servers: int, rho: float) -> None:
        if servers <= 100:
            assert erlang_c(servers, rho) == pytest.approx(erlang_c_by_sum(servers, rho), rel=1e-9)

    @settings(deadline=None, max_examples=60)
    @given(SERVERS, RHO, RHO)
    def test_busier_waits_more(self, servers: int, one: float, other: float) -> None:
        low, high = sorted((one, other))
        assert erlang_c(servers, low) <= erlang_c(servers, high) * (1 + 1e-12)

    @settings(deadline=None, max_examples=60)
    @given(SERVERS, RHO)
    def test_a_larger_pool_as_busy_waits_less(self, servers: int, rho: float) -> None:
        assert erlang_c(servers + 1, rho) <= erlang_c(servers, rho) * (1 + 1e-12)


class TestBursts:
    def test_poisson_and_smoother_arrivals_need_no_correction(self) -> None:
        np.testing.assert_array_equal(bursty_servers([1, 5, 64], 1.0), [1, 5, 64])
        np.testing.assert_array_equal(bursty_servers([1, 5, 64], 0.25), [1, 5, 64])

    def test_bursts_shrink_the_pool(self) -> None:
        assert bursty_servers(16, 4.0) == 6  # peakedness (4 + 1) / 2 = 2.5; 16 / 2.5 = 6.4
        assert bursty_servers(1, 9.0) == 1

    @settings(deadline=None, max_examples=80)
    @given(SERVERS, RHO, SCV, SCV)
    def test_burstier_waits_more_often(self, servers: int, rho: float, one: float, other: float) -> None:
        low, high = sorted((one, other))
        assert wait_probability(servers, rho, low) <= wait_probability(servers, rho, high) * (1 + 1e-12)

    @settings(deadline=None, max_examples=80)
    @given(st.floats(0.01, 0.9999), st.floats(1.001, 25.0))
    def test_one_server_waits_as_its_root_says(self, rho: float, scv: float) -> None:
        """GI/M/1: P(wait) = sigma, 1 - sigma = 1 - (1 + (1 - sigma) ca2 / rho)^(-1 / ca2) and not 0."""
        idle = 1.0 - float(gamma_wait(np.array(1.0), np.array(rho), scv))
        assert idle > 0.0
        assert -math.expm1(-math.log1p(idle * scv / rho) / scv) == pytest.approx(idle, rel=1e-9, abs=1e-14)


class TestConditionalWait:
    def test_mm1_waits_the_mean_service_over_the_idle_share(self) -> None:
        # W of those who wait in M/M/1 = m / (1 - rho); E[s2] = 2 m^2
        assert conditional_wait(1, 0.8, 0.5, 2 * 0.5**2) == pytest.approx(0.5 / 0.2)

    def test_md1_waits_half_of_mm1(self) -> None:
        exponential = conditional_wait(1, 0.7, 2.0, 2 * 2.0**2)
        constant = conditional_wait(1, 0.7, 2.0, 2.0**2)
        assert constant == pytest.approx(exponential / 2.0)

    def test_mg1_is_pollaczek_khinchine(self) -> None:
        """Wq = lambda E[s2] / (2 (1 - rho)); a mix of 0.1 s and 2 s prompts."""
        share, service = np.array([0.9, 0.1]), np.array([0.1, 2.0])
        mean, second = float(share @ service), float(share @ service**2)
        rate = 0.6 / mean
        exact = rate * second / (2.0 * (1.0 - 0.6))
        wait = wait_probability(1, 0.6) * conditional_wait(1, 0.6, mean, second)
        assert wait == pytest.approx(exact, rel=1e-12)

    def test_mmc_is_exact(self) -> None:
        """Wq = C m / (c (1 - rho)) in M/M/c."""
        wait = wait_probability(5, 0.85) * conditional_wait(5, 0.85, 3.0, 2 * 3.0**2)
        assert wait == pytest.approx(erlang_c_by_sum(5, 0.85) * 3.0 / (5 * 0.15))

    def test_a_clock_feeding_a_clock_never_waits(self) -> None:
        assert conditional_wait(1, 0.9, 1.0, 1.0, arrival_scv=0.0) == 0.0

    @settings(deadline=None, max_examples=60)
    @given(SERVERS, RHO, SCV, SCV, st.floats(1.0, 20.0))
    def test_burstier_waits_longer(self, servers: int, rho: float, one: float, other: float, spread: float) -> None:
        low, high = sorted((one, other))
        assert conditional_wait(servers, rho, 1.0, spread, low) <= conditional_wait(servers, rho, 1.0, spread, high)

    @settings(deadline=None, max_examples=60)
    @given(SERVERS, RHO, RHO, SCV)
    def test_busier_waits_longer(self, servers: int, one: float, other: float, scv: float) -> None:
        low, high = sorted((one, other))
        assert conditional_wait(servers, low, 1.0, 3.0, scv) <= conditional_wait(servers, high, 1.0, 3.0, scv)


class TestNormal:
    @settings(deadline=None, max_examples=100)
    @given(st.floats(-8, 8))
    def test_the_tail_is_within_a_ten_millionth(self, z: float) -> None:
        assert normal_exceeds(z) == pytest.approx(1.0 - NormalDist().cdf(z), abs=1e-7)

    def test_far_tails_stay_finite(self) -> None:
        np.testing.assert_allclose(normal_exceeds([np.inf, -np.inf]), [0.0, 1.0], atol=1e-300)


class TestPipelineCycle:
    """Against a pipeline that is walked through step by step."""

    @pytest.mark.parametrize("stages", [1, 2, 4])
    def test_a_busy_pipeline(self, stages: int) -> None:
        kinds, share = np.array([1.0, 2.0, 7.0]), np.array([0.5, 0.3, 0.2])
        steps = np.random.default_rng(3).choice(kinds, size=40_000, p=share)
        free, ended = np.zeros(stages), np.zeros(steps.size)
        for number, step in enumerate(steps):
            at = ended[number - stages] if number >= stages else 0.0  # as many in flight as stages
            for stage in range(stages):
                at = max(at, free[stage]) + step
                free[stage] = at
            ended[number] = at
        cycle = pipeline_cycle(kinds[None], share, np.array([float(stages)]))[0]
        promised, measured = float(cycle @ share), ended[-1] / steps.size
        assert measured * 0.98 <= promised <= measured * (1.02 if stages <= 2 else 1.08)
