"""How long requests decode beside prompts that come and go: the batch of an engine and its steps.

Time is counted in decode steps. A step lasts tau while no prompt is computed, and every request more in the batch adds
`slope`; a prompt adds e to the steps that carry it, P = lambda E[e] of the time in all, and they make rho of the time.
So a step lasts T = tau / (1 - P) on average, z = T - tau of it for prompts, and carries one with chance
p = 1 - (1 - rho) / (1 - P). Symbols: c engines, lambda prompts per second of each, n steps of a request.

1. What comes to one engine. The router sends a prompt to an engine that has none while there is one, so an engine is
   busy for the busy periods of the arrivals that it gets while busy, the share sigma of rho, and then idle for a while.
   The work done in a long time is that of an alternating renewal process, whose variance is

       d = (1 - rho)^2 (1 - sigma) E[X^2] / E[e^2],   E[X^2] = E[e^2 / (1 - sigma')^3]

   of that of a compound Poisson one: all of it for one engine (sigma = rho), (1 - rho)^2 for very many. X is a busy
   period; behind a prompt that is longer than those of the other engines fewer come, sigma' < sigma, as the router
   chooses the engine with fewest tokens (`_extended`). Of free engines it takes the one with fewest decodes, so that
   idle times end as requests end, and are as regular as their lengths in a window as long as these. Arrivals of all
   engines together vary as they do, and each has 1 / c of that.
2. The batch. More requests make longer steps, in which more prompts come: of the requests in a batch of N the share
   D = N slope / tau is due to others there. N is the number of arrivals in the last steps, weighted with the share G of
   outputs that are longer: Var N = N (1 + (v - 1) E[G^2] / E[G]) / (1 - D), v the variance over mean of the arrivals in
   many steps. (A processor-sharing queue with Poisson arrivals and no prompts, v = 1, is negative binomial: exact.)
3. The time of n steps. Work in prompts has variance s2 n for many steps, and n^2 Var z for few; between them it is
   taken to forget exponentially. The batch adds its own slow variation, and both together, as what comes stays:

       Var = n^2 Var z h(b n) + g^2 Var N n^2 k(n) + g q n^2 j(n),   g = slope / (1 - P)

   s2 = lambda tau E[e^2] d / (1 - P)^3; h(y) = 2 (y - 1 + exp(-y)) / y^2, b = 2 Var z / s2; k and j the means over the
   window of the correlations of the batch, and of the chance to be there still (`_remembered`). A request sees its own
   prompt's company: Var N / N requests more in the batch than there are on average, and first of all the prompts that
   it leaves behind, or the early next one where it leaves none (`after_prompt`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .queueing import held_at, normal_exceeds

FloatArray = NDArray[np.float64]

HORIZON = 256
"""Steps after a prompt that are looked at one by one [1]: later ones are like any."""
MOST_FEEDBACK = 0.9
"""Largest share D of a batch that is due to itself [1]: beyond, the equations for small fluctuations say nothing."""


@dataclass(frozen=True)
class Beside:
    """Prompts and decodes of one of `engines` equal engines that share arrivals.

    rate: prompts per second of one engine; weight (flows,): share of each flow [1]; extra (flows,): e, time that a
    prompt adds to steps [s], of which one more adds the share `swing` [1]; square (flows,): sum of the squares of what
    it adds to each [s^2]; steps (flows,): n of a request of each flow [1]; quiet: tau [s]; slope [s]; busy: rho [1];
    sent: share of the arrivals due to an engine that come while it is busy [1]; mixed_steps (flows,): steps of a
    request beside a prompt that carry it [1]; lanes: micro-batches that go on at once, whose prompts it all meets;
    arrival_scv: squared coefficient of variation of the gaps between arrivals; seats: requests in a batch at most [1];
    full_step: step of such a batch without prompts [s].
    """

    rate: float
    weight: FloatArray
    extra: FloatArray
    swing: float
    square: FloatArray
    steps: FloatArray
    quiet: float
    slope: float
    busy: float
    sent: float
    mixed_steps: FloatArray
    lanes: float
    engines: float
    arrival_scv: float
    seats: float
    full_step: float

    @cached_property
    def mean(self) -> float:
        """E[e], of which there is always a little [s]."""
        return max(float(self.weight @ self.extra), 1e-15)

    @cached_property
    def second(self) -> float:
        """E[e^2] [s^2]."""
        return max(float(self.weight @ self.extra**2), self.mean**2)

    @cached_property
    def length(self) -> float:
        """E[n], mean steps of a request [1]."""
        return float(self.weight @ self.steps)

    @cached_property
    def load(self) -> float:
        """P, share of the time that prompts take [1]."""
        return min(self.rate * self.mean, 0.999999)

    @cached_property
    def evened(self) -> float:
        """Chance that another engine is free when one is [1]: then prompts go to the one with fewest decodes."""
        return float(1.0 - min(self.busy, 1.0) ** (self.engines - 1.0))

    @cached_property
    def regular(self) -> float:
        """1 - c^2 of the idle times of an engine that is kept even: it idles until one of its requests ends [1]."""
        return self.evened * max(2.0 - float(self.weight @ self.steps**2) / self.length**2, 0.0)

    @cached_property
    def numbers(self) -> float:
        """Variance over mean of the number of prompts that come to one engine [1].

        Those that come while it is busy are Poisson; the others begin busy periods, whose cycles vary by their idle
        time and by their prompt.
        """
        busy, sent = min(self.busy, 1.0), min(self.sent, 1.0)
        jobs = self.second / self.mean**2 - 1.0
        local = sent + (1.0 - sent) * ((1.0 - busy) ** 2 * (1.0 - self.regular) + busy**2 * jobs)
        return local + (self.arrival_scv - local) / self.engines

    @cached_property
    def met(self) -> float:
        """Prompts per second that the decodes of an engine meet on average.

        A prompt finds N - b of them, b = (1 - numbers) / 2: as many as there are on average where prompts come at
        random, less where they keep apart; of few N / (N + b). (More where they come in bursts: a request meets those
        as the prompts that it leaves behind.) N = rate E[n] tau / (1 - met E[e]), a quadratic equation.
        """
        half = max(1.0 - self.numbers, 0.0) / 2.0
        alone = self.rate * self.length * self.quiet
        both = alone + half
        root = float(np.sqrt(max(both**2 - 4.0 * half * self.load * alone, 0.0)))
        return self.rate * 2.0 * alone / max(both + root, 1e-300)

    @cached_property
    def taken(self) -> float:
        """P q, share of their time that prompts take from the decodes [1]."""
        return min(self.met * self.mean, 0.999999)

    @cached_property
    def step(self) -> float:
        """T, mean step [s]."""
        return self.quiet / (1.0 - self.taken)

    @cached_property
    def batch(self) -> float:
        """N, mean number of decodes [1]."""
        return self.rate * self.length * self.step

    @cached_property
    def overlap(self) -> float:
        """E[G^2] / E[G], the share of a burst that is there at once, as requests of it end at other times [1]."""
        order = np.argsort(self.steps, kind="stable")
        longer = 1.0 - np.r_[0.0, np.cumsum(self.weight[order])[:-1]]
        return float(np.diff(self.steps[order], prepend=0.0) @ longer**2) / self.length

    @cached_property
    def variance(self) -> float:
        """Var N, of the decodes of one engine [1]."""
        count, work = (float(found) for found in dispersion(self, np.array(self.length)))
        arrivals = count * (1.0 + self.taken) / (1.0 - self.taken)
        arrivals += work * self.met**2 * self.second / (1.0 - self.taken) ** 2
        return self.batch * max(1.0 + (arrivals - 1.0) * self.overlap, 0.0) / (1.0 - feedback(self))


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """Time of the steps of a request of each flow, each (flows,).

    mean, spread: of the mean step above `quiet` [s]; undisturbed: share of requests that meet no prompt [1].
    """

    mean: FloatArray
    spread: FloatArray
    undisturbed: FloatArray


def dispersion(beside: Beside, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variance over that of a Poisson stream, of the number of prompts that come to one engine and of their work [1].

    steps: decode steps in which they come, of any shape; both have it.

    >>> one = np.ones(1)
    >>> beside = Beside(1.0, one, 0.4 * one, 1.0, one, one, 0.1, 0.0, 0.5, 1.0, one, 1.0, 1.0, 1.0, 9.0, 0.1)
    >>> [float(found) for found in dispersion(beside, np.array(5.0))]
    [1.0, 1.0]
    """
    busy = min(beside.busy, 0.999999)
    often = busy * min(beside.sent, 1.0)
    alone = min((1.0 - busy) ** 2 * (1.0 - often) * _extended(beside, often), 1.0)
    uniform = beside.mean**2 / beside.second
    local = alone * (1.0 - uniform * beside.regular * np.minimum(steps / beside.length, 1.0))
    burst = beside.arrival_scv - 1.0
    return local + (1.0 + burst - local) / beside.engines, local + (1.0 + burst * uniform - local) / beside.engines


def _extended(beside: Beside, often: float) -> float:
    """E[X^2] / E[e^2] of the busy periods X that begin with a prompt, sigma = often [1].

    An engine gets arrivals while all are busy if it has the fewest tokens. In service a prompt is met in proportion to
    its length, and 1 / (1 - sigma) prompts are there; with S the share of engines with more, c S^(c - 1) of an engine's
    part comes to it, but at most its part.
    """
    order = np.argsort(beside.extra, kind="stable")
    job, weight = beside.extra[order], beside.weight[order]
    met = weight * job / beside.mean
    longer = 1.0 - np.interp(job * (1.0 - often), job, np.cumsum(met) - 0.5 * met, left=0.0)
    extended = 1.0 - often * np.minimum(beside.engines * longer ** (beside.engines - 1.0), 1.0)
    return float(weight @ (job**2 / extended**3)) / beside.second


def _seated(beside: Beside) -> float:
    """Var N where no more than the seats are taken [1]: others wait for one."""
    variance = beside.variance
    above = (beside.seats - beside.batch) / np.sqrt(max(variance, 1e-12))
    return variance * float(held_at(above)[1])


def feedback(beside: Beside) -> float:
    """D, the share of the requests in a batch that came because others made its steps longer [1]."""
    return min(beside.batch * beside.slope / beside.quiet, MOST_FEEDBACK)


def decode_time(beside: Beside, left: FloatArray, first: float) -> DecodeTime:
    """Distribution of the mean step of requests of each flow.

    left (flows,): prompts that wait at the engine when a request begins to decode, on average [1]; first: what they add
    to its first step where there are any (`any_of`) [s].
    """
    n, taken = beside.steps, beside.taken
    work = dispersion(beside, n)[1]
    usual = beside.step - beside.quiet
    square = _square(beside, usual)
    drift = beside.quiet * beside.met * beside.second * beside.swing**2 * work / (1.0 - taken) ** 3
    forgets = np.maximum(2.0 * (square - usual**2) / np.maximum(drift, 1e-30), 1e-9)
    any_left = any_of(left, beside.arrival_scv, beside.engines)
    none_came, early = after_prompt(beside)
    above = usual + any_left * (first - usual) * _mean_left(forgets, n) + (1.0 - any_left) * usual * early
    spread_now = np.maximum(above * square / max(usual, 1e-30) - above**2, 0.0)
    gain, crowd = beside.slope / (1.0 - taken), _seated(beside)
    kept, there = _remembered(beside)
    common = beside.met * drift + work * beside.met * beside.quiet * beside.mean / (1.0 - taken) ** 2
    variance = spread_now * _smoothed(forgets * n) + gain**2 * crowd * kept + gain * common * there
    own = crowd / max(beside.batch, 1e-12) * gain * kept / max(float(_shares(beside) @ kept), 1e-12)
    mean = above + own
    undisturbed = (1.0 - any_left) * none_came
    met = np.maximum(1.0 - undisturbed, 1e-9)
    spread = np.sqrt(np.maximum((variance + mean**2) / met - (mean / met) ** 2, 0.0))
    return DecodeTime(mean / met, spread, undisturbed)


def any_of(number: FloatArray, arrival_scv: float, engines: float) -> FloatArray:
    """Chance of any of so many prompts on average, which bursts bring together (negative binomial, `prompt_ahead`) [1].

    >>> any_of(np.array(1.0), 1.0, 4.0).round(3).item()  # Poisson: 1 - exp(-1)
    0.632
    """
    bunches = max(arrival_scv - 1.0, 0.0) / engines
    return np.asarray(-np.expm1(-number * (np.log1p(bunches) / bunches if bunches > 0.0 else 1.0)))


def free_engines(engines: float, busy: float) -> tuple[FloatArray, FloatArray]:
    """Numbers m of engines that are free after a prompt that leaves its own so, and their chances.

    c - m others are busy with chances a^j / j!, j = c - m < c, of c exponential servers at load a = rho c (Erlang).

    >>> [found.round(3).tolist() for found in free_engines(2.0, 0.5)]
    [[2.0, 1.0], [0.5, 0.5]]
    """
    number = np.arange(max(np.rint(engines), 1.0))
    offered = max(min(busy, 0.999999) * engines, 1e-12)
    chance = np.cumsum(np.r_[0.0, np.log(offered / number[1:])])
    chance = np.exp(chance - chance.max())
    likely = chance > 1e-6
    return engines - number[likely], chance[likely] / chance[likely].sum()


def after_prompt(beside: Beside) -> tuple[FloatArray, FloatArray]:
    """What comes to an engine that a prompt has left without any, in the n steps from there on, both (flows,).

    The chance that no prompt comes before the last of them, and by how much the mean share of these steps that carry
    prompts exceeds the usual one, over that [1]. While m engines are free (`free_engines`) the router sends prompts
    here at rate c lambda / m, early where few are. So the engine idles for a mixture I of geometric times, carries
    prompts for a geometric time B, and so on: an alternating renewal process. The share u that carries prompts
    obeys u = f_I * (P(B > k) + f_B * u), solved by transforms; B is as long as the usual share demands.
    """
    free, chance = free_engines(beside.engines, beside.busy)
    hazard = beside.met * beside.engines * beside.quiet / free
    usual = min(beside.met * beside.step * float(beside.weight @ beside.mixed_steps), 0.99)
    ends = min((1.0 - usual) / usual / float(chance @ (1.0 / hazard)), 1.0)
    steps = np.arange(float(HORIZON))
    idle, carries = np.exp(-np.outer(steps, hazard)) @ chance, (1.0 - ends) ** steps
    damped = (1.0 - 8.0 / HORIZON) ** steps
    begun, ended, carried = (
        np.fft.rfft(each * damped, 2 * HORIZON)
        for each in (-np.diff(idle, prepend=1.0), -np.diff(carries, prepend=1.0), carries)
    )
    share = np.fft.irfft(begun * carried / (1.0 - begun * ended))[:HORIZON] / damped
    settled = 1.0 / (1.0 - ends * float(chance @ (1.0 / np.expm1(-hazard))))
    early = np.interp(beside.steps - 1.0, steps, np.cumsum(share / settled - 1.0)) / beside.steps
    return np.exp(-np.outer(beside.steps - 1.0, hazard)) @ chance, early


def _square(beside: Beside, usual: float) -> float:
    """E z^2 of a step [s^2]: of the prompts in it, one at a time in each lane; no less than their number leaves."""
    often = beside.met * beside.step
    chance = (1.0 - (1.0 - beside.busy) / (1.0 - beside.load)) * usual * (1.0 / beside.load - 1.0) / beside.quiet
    if beside.lanes > 1.0:
        chance = float(-np.expm1(-often * float(beside.weight @ beside.mixed_steps)))
    each = often * float(beside.weight @ beside.square) - usual**2 / beside.lanes
    return usual**2 + max(each, usual**2 * (1.0 / max(chance, 1e-9) - 1.0), 1e-30)


def first_of(several: float, one: float, most: float) -> float:
    """What prompts that wait add to the next step where there are any, which has room for `most` [s].

    several: their mean number where there are any, which is taken geometric [1]; each adds `one` [s].

    >>> first_of(2.0, 1.0, 1e9), first_of(2.0, 1.0, 1.0)
    (2.0, 1.0)
    """
    more = 1.0 - 1.0 / several
    whole = np.floor(most / max(one, 1e-12))
    return float(one * (1.0 - more**whole) * several + more**whole * (most - whole * one))


def _shares(beside: Beside) -> FloatArray:
    """Share of each flow in all tokens, (flows,)."""
    tokens = beside.weight * beside.steps
    return np.asarray(tokens / tokens.sum())


def _smoothed(y: FloatArray) -> FloatArray:
    """Variance of a mean over y memories, over that of one value: h(y) = 2 (y - 1 + exp(-y)) / y^2 [1]."""
    long = np.maximum(y, 1e-3)
    return np.where(y < 1e-3, 1.0 - y / 3.0, 2.0 * (long - 1.0 + np.exp(-long)) / long**2)


def _mean_left(forgets: FloatArray, n: FloatArray) -> FloatArray:
    """Mean of exp(-y k) over the steps k = 0, 1, ... n - 1 [1]."""
    return np.asarray(np.expm1(-forgets * n) / (n * np.expm1(-forgets)))


def _remembered(beside: Beside) -> tuple[FloatArray, FloatArray]:
    """Means over a window of n steps of the correlation of the batch, and of the chance to be there still, (flows,).

    2 / n^2 times the integral of (n - u) over u of E[(m - u)+] / E[m], and of P(m > u), m the steps of the others;
    these stay 1 / (1 - D) times as long by those who come because of them.
    """
    n = beside.steps[:, None]
    others = beside.steps / (1.0 - feedback(beside))
    until = np.minimum(n, others)
    tokens = beside.weight / float(beside.weight @ others)
    both = n * others * until - (n + others) * until**2 / 2.0 + until**3 / 3.0
    there = (n - until / 2.0) * until
    return (2.0 / n**2 * both) @ tokens, (2.0 / n**2 * there) @ beside.weight


def beta_exceeds(x: FloatArray, mean: FloatArray, spread: FloatArray, most: float | FloatArray) -> FloatArray:
    """P(X > x) of a beta variable on (0, most) with this mean and standard deviation, 1 up to 0 [1].

    With X / most of parameters a and b, F = (X / a) / ((most - X) / b) has Fisher's distribution, whose cube root is
    nearly a quotient of normals (Paulson 1942). Without a limit it is `queueing.gamma_exceeds`.

    >>> round(float(beta_exceeds(np.array(0.75), np.array(0.5), np.array(12**-0.5), 1.0)), 2)  # uniform: 0.25
    0.25
    """
    share = np.clip(mean / most, 1e-12, 1.0 - 1e-9)
    both = np.maximum(share * (1.0 - share) / np.maximum(spread / most, 1e-15) ** 2 - 1.0, 1e-6)
    first, second = 1.0 / (9.0 * share * both), 1.0 / (9.0 * (1.0 - share) * both)
    part = np.clip(x / most, 0.0, 1.0 - 1e-12)
    root = np.cbrt(part / share / ((1.0 - part) / (1.0 - share)))
    found = normal_exceeds(((1.0 - second) * root - 1.0 + first) / np.sqrt(second * root**2 + first))
    return np.where(x <= 0.0, 1.0, np.where(x >= most, 0.0, found))
