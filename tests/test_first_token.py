"""What delays a first token beyond its prompt: cards, the step in progress, the wait for an engine, put together."""

from __future__ import annotations

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
from costmodel.queues.waits import ExponentialWait, step_in_progress

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
    def test_a_busy_engine_is_in_the_middle_of_a_step(self) -> None:
        np.testing.assert_allclose(entry_steps(decoding(500.0), np.array([0.0, 0.5, 1.0])), [0.02, 0.03, 0.04])

    def test_an_engine_that_pulls_loads_for_a_step_more_unless_it_is_empty(self) -> None:
        levels = np.array([0.0, 0.5, 1.0])
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
        found = hand_over_waits(
            [ExponentialWait(0.6, 0.05)], [decoding(500.0, share=0.75), decoding(500.0, 0.04, 0.25)]
        )
        assert found.shape == (POINTS,)
        assert found.mean() == pytest.approx(0.6 * 0.05 + 1.5 * 0.025, rel=0.1)


class TestTtft:
    def test_an_idle_pool_waits_for_what_follows_alone(self) -> None:
        later = np.array([1.0, 2.0, 3.0, 4.0])
        ttft = Ttft(0.0 * ONE, IDLE, later=later)
        np.testing.assert_allclose(
            [ttft.exceeds(np.array([t]))[0] for t in (0.5, 2.5, 5.0)], [1.0, 0.5, 0.0], atol=0.02
        )

    def test_the_rest_of_a_step_is_met_at_any_time(self) -> None:
        ttft = Ttft(0.0 * ONE, IDLE, ((0.5, 0.0), (0.5, 2.0)))
        np.testing.assert_allclose(
            [ttft.exceeds(np.array([t]))[0] for t in (0.5, 1.0, 3.0)], [0.375, 0.25, 0.0], atol=0.01
        )

    @settings(max_examples=30)
    @example(0.5, 0.0, 2.2e-309)
    @given(st.floats(0.05, 0.95), st.floats(0.0, 0.9), st.floats(0.0, 2.0))
    def test_it_is_a_distribution(self, rho: float, card: float, step: float) -> None:
        wait = prompt_wait(Prompts(rho * ONE, ONE, 0.9 * ONE, 4.0, 1.0, 1.0))
        later = hand_over_waits([ExponentialWait(card, 0.3)], [decoding(5.0)])
        ttft = Ttft(0.0 * ONE, wait, ((0.4, step), (0.6, 0.0)), later)
        late = ttft.exceeds(np.linspace(0.0, ttft.most, 200)[:, None])
        assert (np.diff(late[:, 0]) <= 1e-9).all()
        assert ttft.exceeds(np.array([-1e-6]))[0] == 1.0
        assert ttft.exceeds(np.array([ttft.most + 1.0]))[0] == 0.0
