"""Prompts that come to an engine and the batch that decodes there, as each is due to the other.

Time is counted in decode steps. A step lasts tau while no prompt is computed, and every request more in the batch adds
`slope`; a prompt adds e to the steps that carry it, P = lambda E[e] of the time in all, and they make rho of the time.
So a step lasts T = tau / (1 - P) on average, z = T - tau of it for prompts, and carries one with chance
p = 1 - (1 - rho) / (1 - P). Symbols: c engines, lambda prompts per second of each, n steps of a request, N the batch.

1. What comes to one engine. The router sends a prompt to an engine that has none while there is one, so an engine is
   busy for the busy periods of the arrivals that it gets while busy, the share sigma of rho, and then idle for a while.
   The work done in many steps is that of an alternating renewal process, whose variance is

       d = (1 - sigma) E[j^2 / (1 - sigma')^3] / E[e^2],   j = (1 - P) e - P m tau

   of that of a compound Poisson one, m steps that carry a prompt: all of it for one engine (sigma = rho). E[j] is
   (1 - rho) E[e]. Behind a prompt that is longer than those of the other engines fewer come, sigma' < sigma, as the
   router chooses the engine with fewest tokens (`_extended`). Of free engines it takes the one with fewest decodes, so
   that idle times end as requests end, and are as regular as their lengths in a window as long as these. Arrivals of
   all engines together vary as they do, and each has 1 / c of that.
2. The batch. Every request that comes makes the sum of N^2 over the engines 2 N + 1 larger, and one that ends 2 N - 1
   smaller, itself in N. Both are equal in the long run, and who ends sees on average what all see, E[N^2] / E[N]. So a
   prompt finds, whatever sends it there,

       K = N + Var N / N - 1   decodes: as many prompts as a request meets.

   Var N is that of all engines together, which one engine would have by itself, over c; and s^2 about their mean.
   Those who find free engines go to the one with fewest, s l below the mean (l the largest of as many normals as
   engines are free on average), the share C that finds none to one whose prompt will be a decode more by then:

       s^2 / N = (1 - 1 / c) (1 + C) - (1 - C) s l,   and 1 / 12 more as N is a whole number (Sheppard)

   Of batches below one, 1 / 12 holds only for the share N^2: their numbers are 0 or 1 anyway, of variance N.

   Alone, an engine gets the more prompts in a step, the longer it is: of the requests in a batch of N the share
   D = N slope / tau is due to others there. N is the number of arrivals in the last steps, weighted with the share G of
   outputs that are longer: Var N = N (1 + (v - 1) E[G^2] / E[G]) / (1 - D), v the variance over mean of the arrivals in
   many steps. Half of what comes together comes before a prompt, so that K takes 1 / 2 for E[G^2] / E[G], as it is for
   exponential lengths. (A processor-sharing queue with Poisson arrivals and no prompts, v = 1, is negative binomial:
   exact.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .queues.erlang import held_at
from .routing import largest_of

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
    request beside a prompt that carry it [1]; carried: share of the decodes in a step with prompts, 1 or 0 [1]; lanes:
    micro-batches that go on at once, whose prompts it all meets; arrival_scv: squared coefficient of variation of the
    gaps between arrivals; reads, alone (flows,): by how much the KV reads of a request of each flow are longer than
    those in `slope`, beside the mean batch and by itself [s]; saved: by how much the step of one request is shorter
    than that of the smallest batch in `quiet`, KV reads apart [s].
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
    carried: float
    lanes: float
    engines: float
    arrival_scv: float
    reads: FloatArray | float = 0.0
    alone: FloatArray | float = 0.0
    saved: float = 0.0

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
    def found(self) -> float:
        """C, chance that a prompt finds all engines busy [1]."""
        return min(self.busy, 1.0) * min(self.sent, 1.0)

    @cached_property
    def regular(self) -> float:
        """1 - c^2 of the idle times of an engine that is kept even: it idles until one of its requests ends [1].

        Kept even it is as far as another engine is free when one is.
        """
        evened = 1.0 - min(self.busy, 1.0) ** (self.engines - 1.0)
        return float(evened * max(2.0 - float(self.weight @ self.steps**2) / self.length**2, 0.0))

    @cached_property
    def apart(self) -> float:
        """s^2 and 1 / 12, variance of the batches of engines about their mean [1]: nothing for one engine."""
        others = 1.0 - 1.0 / self.engines
        low = (1.0 - self.found) * largest_of(max(self.engines * (1.0 - self.busy), 1.0))
        due = others * (1.0 + self.found)
        spread = self.batch / 2.0 * (np.sqrt(low**2 + 4.0 * due / max(self.batch, 1e-12)) - low)
        return float(spread**2) + others / 12.0 * min(self.batch, 1.0) ** 2

    @cached_property
    def peaked(self) -> float:
        """v, variance over mean of the number of prompts that come to all engines in many steps [1]."""
        uniform, longer = self.mean**2 / self.second, 1.0 / (1.0 - self.load)
        number = self.arrival_scv * (1.0 + self.load) * longer
        return number + (1.0 + (self.arrival_scv - 1.0) * uniform) * self.rate**2 * self.second * longer**2

    @cached_property
    def step(self) -> float:
        """T, mean step [s]."""
        return self.quiet / (1.0 - self.load)

    @cached_property
    def batch(self) -> float:
        """N, mean number of decodes [1]."""
        return self.rate * self.length * self.step

    @cached_property
    def joined(self) -> float:
        """sigma, share of the prompts of an engine that come while it has another one [1]."""
        return min(self.busy, 0.999999) * min(self.sent, 1.0)

    @cached_property
    def often(self) -> float:
        """Share of the steps that prompts make longer [1].

        Prompts that go first are computed between two steps, with all that come meanwhile: only those that find none
        make another step longer.
        """
        came = self.rate * self.step
        if not self.carried:
            return float(-np.expm1(-came * (1.0 - self.joined)))
        return min(came * float(self.weight @ self.mixed_steps), 0.99)

    @cached_property
    def overlap(self) -> float:
        """E[G^2] / E[G], the share of a burst that is there at once, as requests of it end at other times [1]."""
        order = np.argsort(self.steps, kind="stable")
        longer = 1.0 - np.r_[0.0, np.cumsum(self.weight[order])[:-1]]
        return float(np.diff(self.steps[order], prepend=0.0) @ longer**2) / self.length

    @cached_property
    def variance(self) -> float:
        """Var N, of the decodes of one engine [1]."""
        return self._varied(self.overlap)

    @cached_property
    def meets(self) -> float:
        """K, prompts that a request meets on average, those that wait when it begins to decode among them [1]."""
        return max(self.batch + self._varied(0.5) / max(self.batch, 1e-12) - 1.0, 0.0)

    @cached_property
    def after_prompt(self) -> tuple[FloatArray, FloatArray]:
        """What comes to an engine that a prompt has left without any, in the n steps from there on, both (flows,).

        The chance that no prompt comes before the last of them, and by how much the mean share of these steps that
        carry prompts exceeds the usual one, over that [1]. While m engines are free (`free_engines`) the router sends
        prompts here at rate c lambda / m, early where few are. So the engine idles for a mixture I of geometric times,
        carries prompts for a geometric time B, and so on: an alternating renewal process. The share u that carries
        prompts obeys u = f_I * (P(B > k) + f_B * u), solved by transforms; B is as long as the usual share demands.
        """
        free, chance = free_engines(self.engines, self.busy)
        hazard = self.rate * self.engines * self.quiet / free
        usual = self.often
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
        early = np.interp(self.steps - 1.0, steps, np.cumsum(share / settled - 1.0)) / self.steps
        return np.exp(-np.outer(self.steps - 1.0, hazard)) @ chance, early

    def _varied(self, overlap: float) -> float:
        """Var N where this share of what comes together is there at once [1]."""
        alone = self.batch * max(1.0 + (self.peaked - 1.0) * overlap, 0.0) / (1.0 - feedback(self))
        return alone / self.engines + self.apart


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


def dispersion(beside: Beside, steps: FloatArray) -> FloatArray:
    """Variance of the work that comes to one engine in so many of its steps, over that of a Poisson stream [1].

    steps: of any shape, which the result has too.

    >>> one = np.ones(1)
    >>> beside = Beside(1.0, one, 0.4 * one, 1.0, one, one, 0.1, 0.0, 0.5, 1.0, one, 1.0, 1.0, 1.0, 1.0)
    >>> float(dispersion(beside, np.array(5.0)))
    1.0
    """
    carried = beside.carried * beside.quiet * beside.mixed_steps
    jobs = beside.extra * (1.0 - beside.load) - beside.load * carried
    square = max(float(beside.weight @ (jobs**2 * _extended(beside))), 1e-30)
    idle = min(float(beside.weight @ jobs) ** 2 / square, 1.0) * beside.regular
    alone = min((1.0 - beside.joined) * square / beside.second, 1.0)
    local = alone * (1.0 - idle * np.minimum(steps / beside.length, 1.0))
    together = 1.0 + (beside.arrival_scv - 1.0) * beside.mean**2 / beside.second
    return np.asarray(local + (together - local) / beside.engines)


def _extended(beside: Beside) -> FloatArray:
    """1 / (1 - sigma')^3 of the busy periods that begin with a prompt of each flow, sigma = `joined`, (flows,) [1].

    An engine gets arrivals while all are busy if it has the fewest tokens. In service a prompt is met in proportion to
    its length, and 1 / (1 - sigma) prompts are there; with S the share of engines with more, c S^(c - 1) of an engine's
    part comes to it, but at most its part.
    """
    often, order = beside.joined, np.argsort(beside.extra, kind="stable")
    job, weight = beside.extra[order], beside.weight[order]
    met = weight * job / beside.mean
    longer = np.empty_like(job)
    longer[order] = 1.0 - np.interp(job * (1.0 - often), job, np.cumsum(met) - 0.5 * met, left=0.0)
    return (1.0 - often * np.minimum(beside.engines * longer ** (beside.engines - 1.0), 1.0)) ** -3.0


def seated_variance(beside: Beside, seats: float) -> float:
    """Var N where no more than the seats are taken [1]: others wait for one."""
    variance = beside.variance
    above = (seats - beside.batch) / np.sqrt(max(variance, 1e-12))
    return variance * float(held_at(above)[1])


def feedback(beside: Beside) -> float:
    """D, the share of the requests in a batch that came because others made its steps longer [1]."""
    return min(beside.batch * beside.slope / beside.quiet, MOST_FEEDBACK)
