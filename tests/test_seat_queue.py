"""Prompts that wait for a seat, against queues with closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.beside import Beside
from costmodel.decode_queue import DecodeTime
from costmodel.queues.erlang import erlang_c
from costmodel.seat_queue import FAR, Seats, at_once, seat_wait, taken_chance, within_seats


def seats(number: float, busy: float, engines: float = 1.0) -> Seats:
    """Poisson arrivals to so many seats of each engine, which keep their requests for a second."""
    present = engines * number * busy
    each = np.array([1.0 / number])
    return Seats(engines, number, present, present, present, 1.0, each, np.ones(1), 1.0)


def exponential(of: Seats) -> Seats:
    """The same with as spread a service as exponential ones: cs2 = 1 (0.5 and 5 times the mean)."""
    return replace(of, turn=of.mean_turn * np.array([0.5, 3.0]), weight=np.array([0.8, 0.2]))


@pytest.mark.parametrize(("number", "busy"), [(4.0, 0.5), (10.0, 0.8), (32.0, 0.9), (200.0, 0.95)])
def test_poisson_arrivals_wait_as_erlang_has_it(number: float, busy: float) -> None:
    assert taken_chance(seats(number, busy)) == pytest.approx(float(erlang_c(number, busy)), rel=0.04)


def test_the_wait_of_exponential_seats() -> None:
    """M/M/c: those who wait do so for m / (c (1 - rho)) on average: 1 / 10 / 0.2."""
    assert seat_wait(exponential(seats(10.0, 0.8))) == pytest.approx(0.5)


def test_engines_are_one_queue() -> None:
    """Four engines of 8 seats are full as often as one of 32; those who wait have a seat at theirs to wait for.

    Of a mean excess of 5 over 32 exponential seats at 0.8: 1 / 8 / (1 - 0.8^4) s.
    """
    four, one = exponential(seats(8.0, 0.8, engines=4.0)), exponential(seats(32.0, 0.8))
    assert taken_chance(four) == pytest.approx(taken_chance(one))
    assert seat_wait(four) == pytest.approx(0.125 / (1.0 - 0.8**4))
    assert seat_wait(one) == pytest.approx(5.0 / 32.0)


def test_bursts_find_seats_taken_more_often_and_for_longer() -> None:
    smooth = seats(32.0, 0.7)
    bursty = replace(smooth, arrival_scv=4.0, variance=2.5 * smooth.variance, peaked=2.5)
    assert 1.5 * taken_chance(smooth) < taken_chance(bursty) < 1.0
    assert seat_wait(bursty) == pytest.approx(4.0 * seat_wait(smooth))  # ca2 + cs2 of equal requests: 4 for 1
    chances = [taken_chance(replace(bursty, seats=more)) for more in (32.0, 40.0, 48.0, 300.0)]
    assert sorted(chances, reverse=True) == chances
    assert chances[-1] < 1e-9


def test_a_load_beyond_the_seats_finds_all_taken() -> None:
    assert taken_chance(seats(16.0, 1.5)) == pytest.approx(1.0, abs=0.01)
    assert np.isfinite(seat_wait(seats(16.0, 1.5)))


def test_ends_of_equal_requests_are_as_bursty_as_their_arrivals() -> None:
    many = np.arange(1.0, 101.0)
    assert at_once(np.full(3, 50.0), np.full(3, 1.0 / 3.0), 9.0, 1.0) == pytest.approx(1.0)
    assert at_once(many, np.full(100, 0.01), 9.0, 0.5) == pytest.approx((1.0 + 8.0 * 0.505) / 5.0)
    assert at_once(many, np.full(100, 0.01), 1.0, 0.5) == 1.0


FULL = (10.0, 0.02)
"""Seats, and the step of a full batch [s]."""


def crowded(steps: float) -> Beside:
    """Equal requests at an engine of 10 seats, half of which are taken: prompts of 0.1 s, full batches of 20 ms."""
    one = np.ones(1)
    each = np.full(1, 0.1)
    return Beside(1.0, one, each, 1.0, each**2, steps * one, 0.02, 0.0, 0.1, 1.0, one, 1.0, 1.0, 1.0, 1.0)


def test_tokens_are_as_slow_as_ends_of_others_let_prompts_in() -> None:
    """In the 100 steps of one, each of the 9 other seats changes hands once: 9 prompts of 0.1 s, 9 ms a step."""
    far, near = (DecodeTime(np.array([mean]), np.array([0.001]), np.zeros(1)) for mean in (0.1, 0.005))
    slow, longest = within_seats(crowded(100.0), far, *FULL)
    assert longest[0] == pytest.approx(0.029)
    assert 0.02 + slow.mean[0] == pytest.approx(0.029)
    assert slow.spread[0] == pytest.approx(0.0, abs=1e-6)
    quick, _ = within_seats(crowded(100.0), near, *FULL)
    assert quick.mean[0] == pytest.approx(0.005, rel=1e-5)
    assert quick.spread[0] == pytest.approx(0.001, rel=1e-3)


def test_half_of_those_at_the_limit_are_held_there() -> None:
    """min(Z, 0) has mean -1 / sqrt(2 pi) and variance 1 / 2 - 1 / (2 pi); equal requests do not vary beyond."""
    held, _ = within_seats(crowded(100.0), DecodeTime(np.array([0.009]), np.array([0.001]), np.zeros(1)), *FULL)
    assert held.mean[0] == pytest.approx(0.009 - 0.001 / np.sqrt(2.0 * np.pi))
    assert held.spread[0] == pytest.approx(0.001 * np.sqrt(0.5 - 0.5 / np.pi), rel=1e-4)


def test_unequal_requests_let_in_more_prompts_by_chance() -> None:
    """Of 50 and 150 steps, cs2 = 1/4: in 150 steps 13.5 come of 9 others, of variance 13.5 / 4 times 0.1 s squared."""
    half = np.full(2, 0.5)
    mixed = replace(
        crowded(1.0), weight=half, extra=np.full(2, 0.1), square=np.full(2, 0.01), steps=np.array([50.0, 150.0])
    )
    longest = within_seats(mixed, DecodeTime(np.full(2, 0.01), np.full(2, 0.001), np.zeros(2)), *FULL)[1]
    assert longest[1] == pytest.approx(0.02 + (1.35 + FAR * 0.1 * np.sqrt(13.5 / 4.0)) / 150.0)
