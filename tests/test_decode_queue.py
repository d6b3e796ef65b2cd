"""Decodes beside prompts: queues whose answers are known, and a small engine simulated step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.beside import Beside, dispersion, feedback, free_engines
from costmodel.decode_queue import any_of, beta_exceeds, decode_time, first_of
from costmodel.queues.erlang import erlang_c


def beside(**changed: object) -> Beside:
    """Two flows at one engine, 0.4 of the time prompts."""
    usual = Beside(
        rate=4.0,
        weight=np.array([0.5, 0.5]),
        extra=np.array([0.05, 0.15]),
        swing=1.0,
        square=np.array([0.05, 0.15]) ** 2,
        steps=np.array([100.0, 300.0]),
        quiet=0.02,
        slope=0.0,
        busy=0.45,
        sent=1.0,
        mixed_steps=np.ones(2),
        carried=1.0,
        lanes=1.0,
        engines=1.0,
        arrival_scv=1.0,
    )
    return replace(usual, **changed)  # type: ignore[arg-type]


def test_one_engine_gets_what_comes() -> None:
    assert float(dispersion(beside(), np.array(100.0))) == pytest.approx(1.0)
    assert beside().step == pytest.approx(0.02 / 0.6)
    assert beside().apart == 0.0


def test_very_many_engines_vary_by_their_idle_times_and_by_their_prompts() -> None:
    """E[j^2] of E[e^2], j = (1 - P) e - P tau: 0.4 of the time prompts, each in one step of 20 ms."""
    many = beside(engines=1e6, sent=0.0, steps=np.array([1.0, 1e5]))
    jobs = 0.6 * np.array([0.05, 0.15]) - 0.4 * 0.02
    assert float(dispersion(many, np.array(1.0))) == pytest.approx((jobs**2).mean() / many.second, rel=1e-3)


def test_equal_outputs_come_back_when_they_ended() -> None:
    even = beside(engines=1e6, sent=0.0, extra=np.array([0.1, 0.1]), steps=np.array([200.0, 200.0]))
    assert even.regular == pytest.approx(1.0)
    assert [float(dispersion(even, np.array(n))) for n in (0.0, 100.0, 200.0)] == pytest.approx(
        [0.52**2, 0.52**2 / 2.0, 0.0], abs=1e-5
    )


def test_prompts_that_cost_nothing_disturb_nobody() -> None:
    free = decode_time(beside(extra=np.zeros(2), square=np.zeros(2)), np.zeros(2), 0.0)
    assert (free.mean < 1e-9).all()
    assert (free.spread < 1e-9).all()


def test_a_processor_sharing_queue_is_negative_binomial() -> None:
    shared = beside(extra=np.full(2, 1e-12), square=np.full(2, 1e-24), slope=0.0005, busy=1e-9)
    due = feedback(shared)
    assert due == pytest.approx(4.0 * 200.0 * 0.0005)
    assert shared.variance == pytest.approx(shared.batch / (1.0 - due), rel=1e-6)


def test_equal_outputs_without_slope_gather_the_prompts_of_their_last_steps() -> None:
    """Arrivals in n steps, each of which makes steps longer in which others come: n T lambda / (1 - P)^2."""
    fixed = beside(extra=np.full(2, 0.1), square=np.full(2, 0.01), steps=np.full(2, 200.0))
    assert fixed.variance == pytest.approx(fixed.batch / 0.6**2, rel=1e-6)


def test_steps_of_one_engine_vary_as_in_a_simulation() -> None:
    """A step of 20 ms, 100 ms more with each prompt that came during the last one, 0.4 of the time in prompts."""
    one = beside(extra=np.full(2, 0.1), square=np.full(2, 0.01), steps=np.array([20.0, 400.0]), busy=0.4 + 4.0 * 0.02)
    rng = np.random.default_rng(1)
    length, steps = 0.02, np.empty(200_000)
    for at in range(steps.size):
        length = 0.02 + 0.1 * rng.poisson(4.0 * length)
        steps[at] = length
    summed = np.cumsum(np.r_[0.0, steps])
    found = decode_time(one, np.full(2, 0.2), 0.1)
    mean = found.mean * (1.0 - found.undisturbed)
    second = (found.spread**2 + found.mean**2) * (1.0 - found.undisturbed)
    for index, n in enumerate((20, 400)):
        sampled = (summed[n:] - summed[:-n]) / n - 0.02
        assert float(mean[index]) == pytest.approx(sampled.mean(), rel=0.1)
        assert float(np.sqrt(second[index] - mean[index] ** 2)) == pytest.approx(sampled.std(), rel=0.15)


def stalled(n: tuple[float, float]) -> Beside:
    """A step of 20 ms, and before the next one prompts of 100 ms as long as there are any, 0.4 of the time."""
    return beside(extra=np.full(2, 0.1), square=np.full(2, 0.01), steps=np.array(n), busy=0.4, carried=0.0)


def test_prompts_that_go_first_come_in_busy_periods() -> None:
    """A step is followed by a prompt if one came in its 20 ms; the work of busy periods has E[z^2] by Takacs."""
    one = stalled((20.0, 400.0))
    assert one.step == pytest.approx(0.02 / 0.6)
    assert one.joined == pytest.approx(0.4)
    assert one.often == pytest.approx(1.0 - np.exp(-4.0 * 0.02))


def test_steps_between_which_prompts_go_first_vary_as_in_a_simulation() -> None:
    """The first step of a request that left no prompt behind comes at once."""
    one = stalled((20.0, 400.0))
    rng, steps = np.random.default_rng(2), np.empty(200_000)
    for at in range(steps.size):
        length, came = 0.02, rng.poisson(4.0 * 0.02)
        while came:
            length, came = length + 0.1 * came, rng.poisson(4.0 * 0.1 * came)
        steps[at] = length
    summed = np.cumsum(np.r_[0.0, steps])
    found = decode_time(one, np.zeros(2), 0.1)
    mean = found.mean * (1.0 - found.undisturbed)
    second = (found.spread**2 + found.mean**2) * (1.0 - found.undisturbed)
    for index, n in enumerate((20, 400)):
        sampled = (0.02 + summed[n - 1 :] - summed[: 1 - n]) / n - 0.02
        assert float(mean[index]) == pytest.approx(sampled.mean(), rel=0.05)
        assert float(np.sqrt(second[index] - mean[index] ** 2)) == pytest.approx(sampled.std(), rel=0.05)


def test_prompts_left_behind_go_before_the_first_step_with_all_that_come_meanwhile() -> None:
    """One of 100 ms left for sure, or none: 100 / (1 - 0.4) ms more at once, and one usual step in 20 less."""
    one = stalled((20.0, 20.0))
    found = decode_time(one, np.array([50.0, 0.0]), 0.1)
    left, calm = (found.mean * (1.0 - found.undisturbed) * 20.0).tolist()
    met = one.meets * 0.1
    assert (left + calm) / 2.0 == pytest.approx(met, rel=1e-6)
    usual = (met - 0.1 / 0.6 / 2.0) / (39.0 + 20.0 * float(one.after_prompt[1][1])) * 2.0
    assert left == pytest.approx(0.1 / 0.6 + 19.0 * usual, rel=1e-6)


@pytest.mark.parametrize("left", [0.0, 0.3, 5.0])
def test_requests_meet_as_many_prompts_as_prompts_find_decodes(left: float) -> None:
    """Whatever they leave behind; those who share a step do not meet each other."""
    one = beside(steps=np.array([40.0, 300.0]))
    for together in (1.0, 1.5):
        found = decode_time(one, np.full(2, left), 0.1, together)
        met = float(one.weight @ (found.mean * (1.0 - found.undisturbed) * one.steps)) / one.mean
        assert met == pytest.approx(one.meets + 1.0 - together, rel=1e-6)


def test_prompts_left_behind_are_geometric_and_fill_the_step() -> None:
    assert first_of(1.0, 0.03, 1.0) == pytest.approx(0.03)
    assert first_of(3.0, 0.03, 1e6) == pytest.approx(0.09)
    assert first_of(1e6, 0.03, 0.1) == pytest.approx(0.1, rel=1e-3)


def test_bursts_leave_prompts_behind_more_seldom() -> None:
    assert float(any_of(np.array(0.5), 1.0, 3.0)) == pytest.approx(1.0 - np.exp(-0.5))
    bursty = any_of(np.array([0.5]), 4.0, 3.0)  # negative binomial of variance over mean 2: 1 - 2^(-1/2)
    assert bursty == pytest.approx(1.0 - 2.0**-0.5)


@pytest.mark.parametrize(("engines", "busy"), [(1, 0.5), (3, 0.8), (40, 0.9)])
def test_as_many_engines_are_free_as_the_idle_ones_of_a_queue(engines: int, busy: float) -> None:
    """Of c exponential servers c (1 - rho) are idle on average, none in the share that Erlang's formula gives."""
    free, chance = free_engines(float(engines), busy)
    assert chance.sum() == pytest.approx(1.0)
    idle = engines * (1.0 - busy) / (1.0 - float(erlang_c(engines, busy)))
    assert float(free @ chance) == pytest.approx(idle, rel=1e-4)


def test_after_a_prompt_one_engine_is_a_chain_of_two_states() -> None:
    """It begins with chance g in each step and ends with chance e: the share p (1 - (1 - g - e)^k) carries prompts."""
    one = beside(steps=np.array([5.0, 60.0]), mixed_steps=np.full(2, 2.0))
    none_came, early = one.after_prompt
    g = 1.0 - np.exp(-one.rate * one.quiet)
    assert none_came == pytest.approx((1.0 - g) ** (one.steps - 1.0))
    carrying = 2.0 * (one.step - one.quiet) / one.mean
    left = 1.0 - g - (1.0 - carrying) / carrying * one.rate * one.quiet
    assert early == pytest.approx(-(1.0 - left**one.steps) / (1.0 - left) / one.steps, rel=1e-3)


def test_the_next_prompt_comes_early_where_few_engines_are_free() -> None:
    alone, many = (beside(engines=engines, busy=0.8).after_prompt[1] for engines in (1.0, 12.0))
    assert (many > alone).all()


@settings(deadline=None, max_examples=50)
@given(
    busy=st.floats(0.05, 0.95),
    sent=st.floats(0.0, 1.0),
    engines=st.integers(1, 64),
    scv=st.floats(0.1, 9.0),
    slope=st.floats(0.0, 1e-4),
)
def test_times_are_those_of_a_distribution(busy: float, sent: float, engines: int, scv: float, slope: float) -> None:
    found = decode_time(
        beside(busy=busy, sent=sent, engines=float(engines), arrival_scv=scv, slope=slope, rate=8.0 * busy),
        np.array([0.1, 0.5]),
        0.1,
    )
    assert (found.mean > 0.0).all()
    assert np.isfinite(found.spread).all()
    assert ((found.undisturbed >= 0.0) & (found.undisturbed <= 1.0)).all()
    assert found.undisturbed[1] <= found.undisturbed[0]


@pytest.mark.parametrize(("x", "share"), [(0.1, 0.81), (0.5, 0.25), (0.9, 0.01)])
def test_beta_tail(x: float, share: float) -> None:
    """With parameters 1 and 2 the tail is (1 - x)^2."""
    assert float(beta_exceeds(np.array(x), np.array(1 / 3), np.array(18**-0.5), 1.0)) == pytest.approx(share, abs=0.005)


def test_a_beta_far_below_its_limit_is_a_gamma() -> None:
    assert float(beta_exceeds(np.array(2.0), np.array(1.0), np.array(0.5), 1e6)) == pytest.approx(0.0424, abs=0.001)


def test_a_burst_overlaps_as_long_as_its_requests_stay() -> None:
    """E[G^2] / E[G] of 100 and 300 steps, a half each: (100 + 200 / 4) / 200; of equal ones all of it."""
    assert beside().overlap == pytest.approx(0.75)
    assert beside(steps=np.full(2, 80.0)).overlap == pytest.approx(1.0)
