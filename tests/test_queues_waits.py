"""Waiting times against textbook formulas, and the properties that the search relies on."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel.first_token import (
    POINTS,
    Entry,
    Ttft,
    card_wait,
    entry_steps,
    hand_over_waits,
    hidden_transfer,
    mean_hand_over,
)
from costmodel.queues.prefill import Prompts, prompt_wait
from costmodel.queues.waits import (
    MANY_SERVERS,
    ExponentialWait,
    StepsAhead,
    conditional_wait,
    erlang_c,
    gamma_wait,
    normal_exceeds,
    peakedness,
    step_in_progress,
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
    @pytest.mark.parametrize("rho", [0.9, 0.97, 0.99, 0.999])
    def test_the_series_of_many_servers_continues_that_of_few(self, rho: float) -> None:
        last, first = erlang_c([MANY_SERVERS, MANY_SERVERS + 1], rho)
        assert last * 0.999 < first < last or last < 1e-4
        assert erlang_c(10**9, rho) == pytest.approx(0.0, abs=1e-12)

    def test_an_overloaded_queue_makes_everyone_wait(self) -> None:
        np.testing.assert_array_equal(erlang_c([1, 7, 300], [1.0, 1.5, 2.0]), 1.0)

    @given(st.integers(1, 140), RHO)
    def test_it_is_the_textbook_sum(self, servers: int, rho: float) -> None:
        assert erlang_c(servers, rho) == pytest.approx(erlang_c_by_sum(servers, rho), rel=1e-9)


class TestBursts:
    @given(SERVERS, RHO, SCV, SCV)
    def test_burstier_waits_more_often(self, servers: int, rho: float, one: float, other: float) -> None:
        low, high = sorted((one, other))
        assert wait_probability(servers, rho, low) <= wait_probability(servers, rho, high) * (1 + 1e-12)

    @given(st.floats(0.01, 0.9999), st.floats(1.001, 25.0))
    def test_one_server_waits_as_its_root_says(self, rho: float, scv: float) -> None:
        """GI/M/1: P(wait) = sigma, 1 - sigma = 1 - (1 + (1 - sigma) ca2 / rho)^(-1 / ca2) and not 0."""
        idle = 1.0 - float(gamma_wait(np.array(1.0), np.array(rho), scv))
        assert idle > 0.0
        assert -math.expm1(-math.log1p(idle * scv / rho) / scv) == pytest.approx(idle, rel=1e-9, abs=1e-14)


def gamma_wait_by_sum(servers: int, rho: float, scv: float) -> float:
    """1 / P of GI/M/c, every term of it; 1 - sigma by bisection."""
    low, idle = 0.0, 1.0
    for _ in range(200):
        middle = (low + idle) / 2.0
        low, idle = (low, middle) if middle + math.expm1(-math.log1p(middle * scv / rho) / scv) > 0 else (middle, idle)
    j = np.arange(1.0, servers + 1.0)
    odds = np.expm1(np.log1p(j * scv / (rho * servers)) / scv)
    ends = odds / (1.0 + odds)
    product = np.exp(np.cumsum(np.log((servers - j + 1.0) / j * odds)))
    return 1.0 / (1.0 + idle * float(np.sum(product / ends * (servers * ends - j) / (servers * idle - j))))


class TestManyServers:
    """How near to an end of their room the servers are is told in standard deviations of the busy ones, beta."""

    @pytest.mark.parametrize("servers", [10, 1000, MANY_SERVERS, MANY_SERVERS + 1, 6000, 100_000])
    @pytest.mark.parametrize("scv", [1.21, 4.0, 16.0])
    def test_stretches_are_the_sum_of_every_term(self, servers: int, scv: float) -> None:
        beta = np.array([0.01, 0.1, 0.5, 1.0, 2.0, 3.0])
        rho = np.maximum(1.0 - beta * math.sqrt((1.0 + scv) / 2.0 / servers), 0.1)
        chance = gamma_wait(np.full(rho.size, float(servers)), rho, scv)
        exact = [gamma_wait_by_sum(servers, load, scv) for load in rho.tolist()]
        np.testing.assert_allclose(chance, exact, atol=1e-9 if servers <= MANY_SERVERS else 5e-5, rtol=0.0)

    @given(st.floats(100.0, 1e7), st.floats(-1.0, 5.0), st.floats(-1.0, 5.0), st.floats(1.001, 16.0))
    def test_busier_waits_more(self, size: float, one: float, other: float, scv: float) -> None:
        servers = float(round(size))
        low, high = sorted(1.0 - beta / math.sqrt(servers) for beta in (one, other))
        assert wait_probability(servers, low, scv) <= wait_probability(servers, high, scv) * (1 + 1e-9)

    @pytest.mark.parametrize("scv", [1.0, 1.21, 16.0])
    @pytest.mark.parametrize("rho", [0.9, 0.99, 0.9999])
    def test_a_larger_pool_as_busy_waits_less(self, rho: float, scv: float) -> None:
        servers = np.unique(np.geomspace(500, 1e7, 300).round())
        chances = wait_probability(np.append(servers, [2000.0, 2001.0, 2002.0]), rho, scv)
        assert (np.diff(chances[: servers.size]) <= 1e-12).all()
        assert chances[-3] > chances[-2] > chances[-1] or chances[-3] < 1e-12


class TestPeakedness:
    """Against arrivals drawn one by one, which stay for an exponential time."""

    @pytest.mark.parametrize(("offered", "scv"), [(0.3, 9.0), (2.0, 4.0), (20.0, 9.0), (5.0, 1.0)])
    def test_arrivals_meet_as_many_as_a_count_of_them(self, offered: float, scv: float) -> None:
        rng = np.random.default_rng(1)
        arrival = np.cumsum(rng.gamma(1.0 / scv, scv / offered, 200_000))
        ends = np.sort(arrival + rng.exponential(1.0, arrival.size))
        met = (np.arange(arrival.size) - np.searchsorted(ends, arrival))[1000:]
        assert met.mean() == pytest.approx(offered + float(peakedness(offered, scv)) - 1.0, rel=0.05)


class TestConditionalWait:
    def test_mmc_is_exact(self) -> None:
        """Wq = C m / (c (1 - rho)) in M/M/c."""
        wait = wait_probability(5, 0.85) * conditional_wait(5, 0.85, 3.0, 2 * 3.0**2)
        assert wait == pytest.approx(erlang_c_by_sum(5, 0.85) * 3.0 / (5 * 0.15))

    def test_a_clock_feeding_a_clock_never_waits(self) -> None:
        assert conditional_wait(1, 0.9, 1.0, 1.0, arrival_scv=0.0) == 0.0


@given(st.floats(-8, 8))
def test_the_normal_tail_is_within_a_ten_millionth(z: float) -> None:
    assert normal_exceeds(z) == pytest.approx(1.0 - NormalDist().cdf(z), abs=1e-7)


# --- what delays a first token: cards, the step in progress, the wait for an engine, put together


ONE = np.array([1.0])
IDLE = prompt_wait(Prompts(0.0 * ONE, ONE, ONE, 4.0, 1.0, 1.0))


def decoding(running: float, step: float = 0.02, share: float = 1.0) -> Entry:
    """A decode pool whose steps all take as long."""
    return Entry(float(step_in_progress(running)), step, share)


class TestCards:
    def test_a_card_is_a_queue_of_one_server(self) -> None:
        """M/M/1 by its moments: rho = 0.6 of mean 1, E[s2] = 2; those who wait do so for 1 / (1 - rho)."""
        wait = card_wait(np.array([0.3, 0.3]), np.array([1.0 - np.sqrt(0.999), 1.0 + np.sqrt(0.999)]), 1.0, 1.0, 1.0)
        assert wait.chance == pytest.approx(0.6)
        assert wait.mean == pytest.approx(1.0 / 0.4, rel=0.01)

    def test_prompts_of_one_step_send_one_after_the_other(self) -> None:
        """Three at once on a card that is idle otherwise: one of them is ahead on average."""
        wait = card_wait(1e-9 * ONE, ONE, 1.0, 1.0, 3.0)
        assert wait.chance * wait.mean == pytest.approx(1.0, rel=1e-6)

    def test_bursts_wait_longer_less_so_on_many_cards(self) -> None:
        cases = [card_wait(0.5 * cards * ONE, ONE, cards, scv, 1.0) for cards, scv in ((1, 1), (4, 9), (1, 9))]
        waits = [wait.chance * wait.mean for wait in cases]
        assert waits == sorted(waits)
        assert waits[0] < waits[-1]


class TestEntry:
    def test_an_engine_is_in_the_middle_of_a_step_and_loads_for_one_more_if_it_pulls_unless_empty(self) -> None:
        levels = np.array([0.0, 0.5, 1.0])
        np.testing.assert_allclose(entry_steps(decoding(500.0), levels), [0.02, 0.03, 0.04])
        np.testing.assert_allclose(entry_steps(decoding(500.0), levels[1:], 1.0), [0.05, 0.06])
        np.testing.assert_allclose(entry_steps(decoding(0.01), levels[:2], 1.0), [0.02, 0.02])
        assert hidden_transfer([decoding(500.0, share=0.75), decoding(500.0, 0.04, 0.25)], 1.0) == pytest.approx(0.025)
        assert hidden_transfer([decoding(500.0)], 0.0) == 0.0

    @pytest.mark.parametrize("loading", [0.0, 1.0])
    @pytest.mark.parametrize("transfer", [0.001, 0.1])
    def test_its_mean_is_that_of_the_closed_loop(self, loading: float, transfer: float) -> None:
        entry = decoding(1.0)
        shown = max(transfer - hidden_transfer([entry], loading), 0.0)
        mean = mean_hand_over(np.array(entry.met), np.array(entry.step), loading, np.array(transfer))
        assert shown + hand_over_waits([], [entry], loading).mean() == pytest.approx(float(mean), rel=0.01)

    def test_points_keep_the_mean_of_cards_and_steps(self) -> None:
        pools = [decoding(500.0, share=0.75), decoding(500.0, 0.04, 0.25)]
        found = hand_over_waits([ExponentialWait(0.6, 0.05)], pools)
        assert found.shape == (POINTS,)
        assert found.mean() == pytest.approx(0.6 * 0.05 + 1.5 * 0.025, rel=0.1)


class TestTtft:
    @pytest.mark.parametrize(
        ("steps", "later", "times", "late"),
        [
            ((), np.arange(1.0, 5.0), (0.5, 2.5, 5.0), [1.0, 0.5, 0.0]),  # what follows alone
            ((StepsAhead(0.5, 2.0),), np.zeros(1), (0.5, 1.0, 3.0), [0.375, 0.25, 0.0]),  # the rest of a step
            ((StepsAhead(0.5, 2.0, 2.0),), np.zeros(1), (1.0, 3.0, 4.5), [0.5, 0.25, 0.0]),  # and one formed ahead
        ],
    )
    def test_its_tail_by_hand(
        self, steps: tuple[StepsAhead, ...], later: np.ndarray, times: tuple[float, ...], late: list[float]
    ) -> None:
        ttft = Ttft(0.0 * ONE, IDLE, steps, later)
        np.testing.assert_allclose([ttft.exceeds(np.array([t]))[0] for t in times], late, atol=0.02)

    @settings(max_examples=30)
    @example(0.5, 0.0, 2.2e-309)
    @given(st.floats(0.05, 0.95), st.floats(0.0, 0.9), st.floats(0.0, 2.0))
    def test_it_is_a_distribution(self, rho: float, card: float, step: float) -> None:
        wait = prompt_wait(Prompts(rho * ONE, ONE, 0.9 * ONE, 4.0, 1.0, 1.0))
        later = hand_over_waits([ExponentialWait(card, 0.3)], [decoding(5.0)])
        ttft = Ttft(0.0 * ONE, wait, (StepsAhead(0.4, step, step),), later)
        late = ttft.exceeds(np.linspace(0.0, ttft.most, 200)[:, None])
        assert (np.diff(late[:, 0]) <= 1e-9).all()
        assert ttft.exceeds(np.array([-1e-6]))[0] == 1.0
        assert ttft.exceeds(np.array([ttft.most + 1.0]))[0] == 0.0
