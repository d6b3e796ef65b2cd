"""Decodes beside prompts, and seats: queues whose answers are known, and a small engine simulated step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reference.lone_steps import CoefficientSteps
from costmodel.engine import Policy
from costmodel.queues.decode import MixedEngine, Seats, Steps, ceiling, decode_time, work_dispersion
from costmodel.queues.waits import erlang_c, wait_probability
from costmodel.simulator.fleet import Limits, Router
from costmodel.simulator.run import simulate
from costmodel.workload import gamma_arrivals, make_trace
from tests.simulator_cases import colocated


def mixed(**changed: object) -> MixedEngine:
    """Two flows at one engine, 0.4 of the time prompts."""
    usual = MixedEngine(
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
    return replace(usual, **changed)


def equal_prompts(n: tuple[float, float], **changed: object) -> MixedEngine:
    """Prompts of 100 ms."""
    return mixed(extra=np.full(2, 0.1), square=np.full(2, 0.01), steps=np.array(n), **changed)


def test_very_many_engines_vary_by_their_prompts_alone() -> None:
    """E[j^2] of E[e^2], j = (1 - P) e - P tau: 0.4 of the time prompts, each in one step of 20 ms."""
    many = mixed(engines=1e6, sent=0.0)
    jobs = 0.6 * np.array([0.05, 0.15]) - 0.4 * 0.02
    assert work_dispersion(many) == pytest.approx((jobs**2).mean() / many.second, rel=1e-3)
    assert work_dispersion(mixed(arrival_scv=4.0)) == pytest.approx(1.0 + 3.0 * 0.1**2 / 0.0125)  # bursts at one


def test_random_arrivals_bring_a_compound_poisson_count_of_prompts() -> None:
    """By hand: v = (1 + P) / (1 - P) + rate^2 E[e^2] / (1 - P)^2, P = 0.4, E[e^2] = 0.0125; min(100, 300) of 200."""
    engine = mixed()
    assert engine.peaked == pytest.approx(1.4 / 0.6 + 16.0 * 0.0125 / 0.36)
    assert engine.overlap == pytest.approx((0.75 * 100.0 + 0.25 * 300.0) / 200.0)
    assert mixed(rate=1e-9).meets == pytest.approx(0.0, abs=1e-6)


def test_a_processor_sharing_queue_is_negative_binomial() -> None:
    shared = mixed(extra=np.full(2, 1e-12), square=np.full(2, 1e-24), slope=0.0005, busy=1e-9)
    assert shared.feedback == pytest.approx(4.0 * 200.0 * 0.0005)
    assert shared.variance == pytest.approx(shared.batch / (1.0 - shared.feedback), rel=1e-6)


@pytest.mark.parametrize("carried", [1.0, 0.0])
def test_steps_of_one_engine_vary_as_in_a_simulation(carried: float) -> None:
    """A step of 20 ms, 0.4 of the time in prompts: in the next step, or before it as long as there are any."""
    rng, length, steps = np.random.default_rng(1), 0.02, np.empty(200_000)
    for at in range(steps.size):
        came = rng.poisson(4.0 * (length if carried else 0.02))
        length = 0.02 + 0.1 * came
        while came and not carried:
            came = rng.poisson(4.0 * 0.1 * came)
            length += 0.1 * came
        steps[at] = length
    summed = np.cumsum(np.r_[0.0, steps])
    engine = equal_prompts((100.0, 400.0), busy=0.48 if carried else 0.4, carried=carried)
    time = decode_time(engine, np.full(2, 0.2 * carried), 0.1)
    mean = time.mean * (1.0 - time.undisturbed)
    second = (time.spread**2 + time.mean**2) * (1.0 - time.undisturbed)
    for index, n in enumerate((100, 400)):
        sampled = (summed[n:] - summed[:-n]) / n - 0.02
        if not carried:  # the first step of a request that left no prompt behind comes at once
            sampled = (0.02 + summed[n - 1 :] - summed[: 1 - n]) / n - 0.02
        assert float(mean[index]) == pytest.approx(sampled.mean(), rel=0.1)
        assert float(np.sqrt(second[index] - mean[index] ** 2)) == pytest.approx(sampled.std(), rel=0.15)


def test_prompts_left_behind_go_before_the_first_step_with_all_that_come_meanwhile() -> None:
    """One of 100 ms left for sure, or none: 100 / (1 - 0.4) ms more at once, and one usual step in 20 less."""
    engine = equal_prompts((20.0, 20.0), busy=0.4, carried=0.0)
    time = decode_time(engine, np.array([50.0, 0.0]), 0.1)
    left, calm = (time.mean * (1.0 - time.undisturbed) * 20.0).tolist()
    met = engine.meets * 0.1
    assert (left + calm) / 2.0 == pytest.approx(met, rel=1e-6)
    assert left == pytest.approx(0.1 / 0.6 + 19.0 * (2.0 * met - 0.1 / 0.6) / 39.0, rel=1e-6)


@pytest.mark.parametrize("left", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("together", [1.0, 1.5])
def test_requests_meet_as_many_prompts_as_prompts_find_decodes(left: float, together: float) -> None:
    """Whatever they leave behind; those who share a step do not meet each other."""
    engine = mixed(steps=np.array([40.0, 300.0]))
    time = decode_time(engine, np.full(2, left), 0.1, together)
    met = float(engine.weight @ (time.mean * (1.0 - time.undisturbed) * engine.steps)) / engine.mean
    assert met == pytest.approx(engine.meets + 1.0 - together, rel=1e-6)


@given(
    busy=st.floats(0.05, 0.95),
    sent=st.floats(0.0, 1.0),
    engines=st.integers(1, 64),
    scv=st.floats(0.1, 9.0),
    slope=st.floats(0.0, 1e-4),
)
def test_times_are_those_of_a_distribution(busy: float, sent: float, engines: int, scv: float, slope: float) -> None:
    engine = mixed(busy=busy, sent=sent, engines=float(engines), arrival_scv=scv, slope=slope, rate=8.0 * busy)
    time = decode_time(engine, np.array([0.1, 0.5]), 0.1)
    assert (time.mean > 0.0).all()
    assert np.isfinite(time.spread).all()
    assert ((time.undisturbed >= 0.0) & (time.undisturbed <= 1.0)).all()
    assert time.undisturbed[1] <= time.undisturbed[0]
    steps = Steps(engine.step, engine.quiet, time, 0.001, np.full(2, 5.0))
    late = steps.exceeds(np.linspace(0.0, 6.0, 100)[:, None])
    assert (np.diff(late, axis=0) <= 1e-12).all()
    np.testing.assert_allclose(late[[0, -1]], [[1.0, 1.0], [0.0, 0.0]], atol=1e-6)


def seats(number: float, busy: float, engines: float = 1.0) -> Seats:
    """Poisson arrivals to so many seats of each engine, which keep their requests for a second."""
    present = engines * number * busy
    return Seats(engines, number, present, present, present, 1.0, np.array([1.0 / number]), np.ones(1), 1.0)


def exponential(of: Seats) -> Seats:
    """The same with as spread a service as exponential ones: cs2 = 1 (0.5 and 3 times the mean)."""
    return replace(of, turn=of.mean_turn * np.array([0.5, 3.0]), weight=np.array([0.8, 0.2]))


@pytest.mark.parametrize(("number", "busy"), [(4.0, 0.5), (10.0, 0.8), (32.0, 0.9), (200.0, 0.95)])
def test_poisson_arrivals_wait_for_a_seat_as_erlang_has_it(number: float, busy: float) -> None:
    assert seats(number, busy).taken_chance() == pytest.approx(float(erlang_c(number, busy)), rel=0.04)


def test_engines_are_one_queue() -> None:
    """M/M/c: four engines of 8 seats are full as often as one of 32, and as long: m / (c (1 - rho)) = 1 / 32 / 0.2."""
    four, one = exponential(seats(8.0, 0.8, engines=4.0)), exponential(seats(32.0, 0.8))
    assert four.taken_chance() == pytest.approx(one.taken_chance())
    assert four.wait().mean == pytest.approx(one.wait().mean) == pytest.approx(1.0 / 32.0 / 0.2)


def test_bursts_find_seats_taken_more_often_and_for_longer() -> None:
    smooth = seats(32.0, 0.7)
    bursty = replace(smooth, arrival_scv=4.0, variance=2.5 * smooth.variance, peaked=2.5)
    assert 1.5 * smooth.taken_chance() < bursty.taken_chance() < 1.0
    ratio = bursty.wait().mean / smooth.wait().mean
    assert ratio == pytest.approx(4.0, rel=0.05)  # ca2 + cs2 of equal requests: 4 for 1
    chances = [replace(bursty, seats=more).taken_chance() for more in (32.0, 40.0, 48.0, 300.0)]
    assert sorted(chances, reverse=True) == chances
    assert chances[-1] < 1e-9


def test_tokens_are_as_slow_as_ends_of_others_let_prompts_in() -> None:
    """In the 100 steps of one, each of the 9 other seats changes hands once: 9 prompts of 0.1 s, 9 ms a step."""
    engine = equal_prompts((100.0, 100.0), rate=1.0)
    assert ceiling(engine, 10.0, 0.02) == pytest.approx(0.029)
    quick = ceiling(replace(engine, steps=np.array([2.0, 198.0])), 10.0, 0.02)[0]
    assert quick > 0.029  # in a short life that begins at the mean batch others find the seats that are free


# --- how many decode on an engine, and how many of them a prompt finds, against engines simulated step by step

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
TAU, PROMPT = 0.02, 0.1
"""A decode step, and what the one step of a prompt takes longer [s]."""


def simulated(engines: int, rate: float, lengths: FloatArray, scv: float) -> tuple[float, float, float]:
    """Mean and variance of a batch over steps of 20 ms of an engine, idle ones too, and what prompts found on average.

    Equal engines with prompts of one length, of which a step takes one, behind a router that knows them; `rate` a
    second for each.
    """
    arrival = gamma_arrivals(lengths.size, rate * engines, np.sqrt(scv), seed=7)
    trace = make_trace(arrival, np.full(lengths.size, 5000), lengths.astype(np.int64) + 1)
    steps = CoefficientSteps((TAU + PROMPT, 0.0, 0.0), (TAU, 0.0, 0.0))
    limits = Limits(max_num_seqs=4000, max_num_batched_tokens=9000)
    pool = colocated(Policy(chunked=False), steps, limits, replicas=engines, router=Router.LENGTH_AWARE)
    log = simulate(trace, pool, fast_forward=False, log_rows=2_000_000).steps_log
    _, start, end, prompts, batch, *_ = log[log[:, 2] <= arrival[-1]].T
    idle = (engines * arrival[-1] - (end - start).sum()) / TAU
    mean, square = (float((batch**power).sum() / (batch.size + idle)) for power in (1, 2))
    return mean, square - mean**2, float(batch[prompts > 0].mean())


@pytest.mark.parametrize("engines", [1, 3, 12])
@pytest.mark.parametrize("scv", [1.0, 4.0])
def test_batches_and_what_prompts_find_are_as_simulated(engines: int, scv: float) -> None:
    """Of a simulation of 40,000 requests whose steps are 40 % prompts and whose lengths are as good as exponential."""
    rng, rate = np.random.default_rng(3), 4.0
    lengths = np.ceil(rng.exponential(150.0, 40_000))
    values, counts = np.unique(np.quantile(lengths, (np.arange(60) + 0.5) / 60), return_counts=True)
    busy = rate * (TAU + PROMPT)
    all_busy = float(wait_probability(float(engines), busy, scv))
    same = np.full(values.size, PROMPT)
    one = mixed(
        weight=counts / 60,
        extra=same,
        square=same**2,
        steps=values,
        busy=busy,
        sent=all_busy / busy,
        mixed_steps=np.ones(values.size),
        engines=float(engines),
        arrival_scv=scv,
    )
    batch, variance, found = simulated(engines, rate, lengths, scv)
    assert one.batch == pytest.approx(batch, rel=0.03)
    assert one.meets - one.batch == pytest.approx(found - batch, abs=0.3 + 0.15 * scv)
    assert np.sqrt(one.variance) == pytest.approx(np.sqrt(variance), rel=0.2)
