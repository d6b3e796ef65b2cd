"""How long requests decode beside prompts that come and go, and how long prompts wait for a seat in a full batch.

Time is counted in decode steps. A step lasts tau while no prompt is computed, and every request more in the batch adds
`slope`; a prompt adds e to the steps that carry it, P = lambda E[e] of the time in all, and they make rho of the time.
So a step lasts T = tau / (1 - P) on average, z = T - tau of it for prompts. Symbols: c engines, lambda prompts per
second of each, n steps of a request, N the batch.

docs/theory/queues.md derives the equations; there tau is t0, and `slope` a. In its order:

1. The batch, and the prompts K that a request meets: `MixedEngine.meets`, `variance`, `apart`, `dispersion`.
2. What comes to one engine, over what a Poisson stream would bring: `work_dispersion`.
3. The mean of n steps, Var z h(b n): `decode_time`. Where no step carries both prompts and decodes, all prompts that
   came since the last step, and while these are computed, come between it and the next: rho = P, a step of decodes
   lasts tau, and z has nothing to do with the next one.
4. Seats: `Seats`. c engines of S seats are one queue of C = c S servers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.metric import GAP_SHARE

from .waits import (
    ExponentialWait,
    conditional_wait,
    gamma_exceeds,
    largest_of,
    normal_exceeds,
    peakedness,
    poisson_exceeds,
    split_scv,
)

MOST_FEEDBACK = 0.9
"""Largest share D of a batch that is due to itself [1]: beyond, the equations for small fluctuations say nothing."""
FULLEST = 0.999
"""Where the load of full batches is cut off, short of an endless wait [1]."""
FAR = 3.0
"""Standard deviations that count as the most there is [1]: a normal variable exceeds them with a chance of 0.1 %."""
LEAST_PEAKED = 1e-6
"""Numbers whose variance exceeds their mean by a smaller share, or is below it, are taken for Poisson [1]."""


@dataclass(frozen=True)
class MixedEngine:
    """Prompts and decodes of one of `engines` equal engines that share arrivals.

    rate: prompts per second of one engine; weight (flows,): share of each flow [1]; extra (flows,): e, time that a
    prompt adds to steps [s], of which one more adds the share `swing` [1]; square (flows,): sum of the squares of what
    it adds to each [s^2]; steps (flows,): n of a request of each flow [1]; quiet: tau [s]; slope [s]; busy: rho [1];
    sent: share of the arrivals due to an engine that come while it is busy [1]; mixed_steps (flows,): steps of a
    request beside a prompt that carry it [1]; carried: share of the decodes in a step with prompts, 1 or 0 [1]; lanes:
    micro-batches that go on at once, whose prompts it all meets; arrival_scv: squared coefficient of variation of the
    gaps between arrivals; reads (flows,): by how much the KV reads of a request of each flow are longer than those in
    `slope`, beside the mean batch [s].
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
    def step(self) -> float:
        """T, mean step [s]."""
        return self.quiet / (1.0 - self.load)

    @cached_property
    def batch(self) -> float:
        """N, mean number of decodes [1]."""
        return self.rate * self.length * self.step

    @cached_property
    def feedback(self) -> float:
        """D, the share of the requests in a batch that came because others made its steps longer [1]."""
        return min(self.batch * self.slope / self.quiet, MOST_FEEDBACK)

    @cached_property
    def joined(self) -> float:
        """sigma, share of the prompts of an engine that come while it has another one [1]."""
        return min(self.busy, 0.999999) * min(self.sent, 1.0)

    @cached_property
    def apart(self) -> float:
        """s^2, variance of the batches of engines about their mean [1]: nothing for one engine."""
        other_share, all_busy = 1.0 - 1.0 / self.engines, min(self.busy, 1.0) * min(self.sent, 1.0)
        low = (1.0 - all_busy) * largest_of(max(self.engines * (1.0 - self.busy), 1.0))
        due = other_share * (1.0 + all_busy)
        return float((self.batch / 2.0 * (np.sqrt(low**2 + 4.0 * due / max(self.batch, 1e-12)) - low)) ** 2)

    @cached_property
    def peaked(self) -> float:
        """v, variance over mean of the number of prompts that come to all engines in many steps [1]."""
        uniform, longer = self.mean**2 / self.second, 1.0 / (1.0 - self.load)
        burst = 2.0 * float(peakedness(self.engines * self.batch, self.arrival_scv)) - 1.0
        number = burst * (1.0 + self.load) * longer
        return number + (1.0 + (self.arrival_scv - 1.0) * uniform) * self.rate**2 * self.second * longer**2

    @cached_property
    def overlap(self) -> float:
        """E[G^2] / E[G] = E[min(n, n')] / E[n] of two requests, how much of a burst is in the batch at once [1]."""
        order = np.argsort(self.steps)
        steps, weight = self.steps[order], self.weight[order]
        longer = np.cumsum(weight[::-1])[::-1]
        return float(longer**2 @ np.diff(steps, prepend=0.0)) / self.length

    @cached_property
    def dispersion(self) -> float:
        """Variance over mean of the decodes of all engines together [1]."""
        return max(1.0 + (self.peaked - 1.0) * self.overlap, 0.0) / (1.0 - self.feedback)

    @cached_property
    def variance(self) -> float:
        """Var N, of the decodes of one engine [1]."""
        return self.batch * self.dispersion / self.engines + self.apart

    @cached_property
    def meets(self) -> float:
        """K, prompts that a request meets on average, those that wait when it begins to decode among them [1]."""
        return max(self.batch + self.variance / max(self.batch, 1e-12) - 1.0, 0.0)

    @property
    def company(self) -> float:
        """Decodes that a request meets beyond the mean number, itself among them [1]: E[N^2] / E[N] - N = Var N / N.

        N is a whole number, of a variance of (1 - N) N at least.
        """
        return max(self.variance / max(self.batch, 1e-12), 1.0 - self.batch)

    @cached_property
    def none_comes(self) -> FloatArray:
        """Chance that no prompt comes in the n steps after one that leaves the engine without any, (flows,) [1].

        Prompts come in bursts of b = 1 + (ca2 - 1) / 2c at one of c engines: the last of one is followed by no other.
        """
        burst = (1.0 + split_scv(self.arrival_scv, self.engines)) / 2.0
        return np.exp(-(self.steps - 1.0) * self.rate * self.quiet / burst) / burst


def settled_batch(seqs: FloatArray, base: FloatArray, tokens: float) -> float:
    """The least batch R = tokens x b(R), with b (batch sizes,) linear between batch sizes, and flat beyond them [1].

    >>> settled_batch(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 2.0]), 1.5)
    1.5
    >>> settled_batch(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 2.0]), 1.9)
    1.9
    """
    excess = seqs - tokens * base
    enough = np.flatnonzero(excess >= 0.0)
    if not enough.size or enough[0] == 0:
        return float(tokens * base[-1 if not enough.size else 0])
    at = int(enough[0])
    fraction = -excess[at - 1] / (excess[at] - excess[at - 1])
    return float(seqs[at - 1] + fraction * (seqs[at] - seqs[at - 1]))


@dataclass(frozen=True, slots=True)
class MixedSteps:
    """Steps that carry prompts beside `running` requests, KV reads apart.

    base: decode step [s], of which such a step carries the share `carried` [1] (`EngineTable`); turn, count (flows,):
    mixed step [s] and how many of them a prompt needs; extra (flows,): time that a prompt adds to other steps [s];
    full: step that prompts fill [s]; room: tokens of prompts in it.
    """

    base: float
    carried: float
    turn: FloatArray
    count: FloatArray
    extra: FloatArray
    full: float
    room: float

    @property
    def ridden(self) -> float:
        """What such a step carries of the decode step [s]."""
        return self.carried * self.base

    @property
    def most(self) -> float:
        """The most that prompts add to one step of a decode; unbounded where prompts go first [s]."""
        return max(self.full - self.base, 1e-12) if self.carried else np.inf

    @property
    def spans(self) -> FloatArray:
        """Steps of a decode that a prompt makes longer, (flows,) [1]: one where all of it goes first."""
        return 1.0 + self.carried * (self.count - 1.0)

    def turns(self, reads: float, stages: float) -> tuple[FloatArray, FloatArray]:
        """Latency and service time of prompts in such steps (flows,) [s]; reads: of KV in each [s]."""
        turn = self.turn + reads
        service = self.count * turn / stages
        return service + turn * (1.0 - 1.0 / stages), service


def work_dispersion(engine: MixedEngine) -> float:
    """Variance of the work that comes to one engine in many steps, over that of a Poisson stream [1].

    >>> one = np.ones(1)
    >>> engine = MixedEngine(1.0, one, 0.4 * one, 1.0, one, one, 0.1, 0.0, 0.5, 1.0, one, 1.0, 1.0, 1.0, 1.0)
    >>> work_dispersion(engine)
    1.0
    """
    carried_time = engine.carried * engine.quiet * engine.mixed_steps
    jobs = engine.extra * (1.0 - engine.load) - engine.load * carried_time
    square = max(float(engine.weight @ (jobs**2 / (1.0 - _joined_behind(engine)) ** 3)), 1e-30)
    alone = min((1.0 - engine.joined) * square / engine.second, 1.0)
    together = 1.0 + (engine.arrival_scv - 1.0) * engine.mean**2 / engine.second
    return alone + (together - alone) / engine.engines


def _joined_behind(engine: MixedEngine) -> FloatArray:
    """Share sigma' of the busy periods that begin with a prompt of each flow, sigma = `joined`, (flows,) [1].

    An engine gets arrivals while all are busy if it has the fewest tokens. In service a prompt is met in proportion to
    its length, and 1 / (1 - sigma) prompts are there; with S the share of engines with more, c S^(c - 1) of an engine's
    part comes to it, but at most its part.
    """
    often, order = engine.joined, np.argsort(engine.extra, kind="stable")
    job, weight = engine.extra[order], engine.weight[order]
    met = weight * job / engine.mean
    longer = np.empty_like(job)
    longer[order] = 1.0 - np.interp(job * (1.0 - often), job, np.cumsum(met) - 0.5 * met, left=0.0)
    return np.asarray(often * np.minimum(engine.engines * longer ** (engine.engines - 1.0), 1.0))


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """Time of the steps of a request of each flow, each (flows,).

    mean, spread: of the mean step of those who meet prompts, above the quiet step and `own` [s]; undisturbed: share of
    requests that meet none [1]; own: what a request adds to its steps, with those that it finds there [s].
    """

    mean: FloatArray
    spread: FloatArray
    undisturbed: FloatArray
    own: FloatArray | float = 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the requests that run at a pool, and what they make of the latencies of its tokens.

    step: mean decode step [s]; quiet: mean step without prompts [s]; time: by how much the steps of a request are
    longer; jitter: spread of a step that comes from the batch [s]; ceiling (flows,): TPOT at most [s]; others: chance
    that a request decodes beside others [1]; prompt_step (any,): lengths of the steps that carry prompts [s],
    prompt_rate (any,): how many of each there are per second at an engine, and in_a_row: how many of them one prompt
    makes on average [1].
    """

    step: float
    quiet: float
    time: DecodeTime
    jitter: float
    ceiling: FloatArray
    others: float = 1.0
    prompt_step: FloatArray | float = 0.0
    prompt_rate: FloatArray | float = 0.0
    in_a_row: float = 1.0

    @property
    def most(self) -> float:
        """The longest that a step can be [s]."""
        return max(float(self.ceiling.max()) + 8.0 * self.jitter, float(np.max(self.prompt_step)))

    def met(self, rate: FloatArray) -> float:
        """Mean step without prompts that requests at `rate` (flows,) [1/s] meet [s]."""
        own = np.broadcast_to(self.time.own, rate.shape)
        return self.quiet + float(np.average(own, weights=np.maximum(rate, 1e-300)))

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TPOT > limit) of requests of each flow, limit (..., flows) or (..., 1) [1].

        Calm, or above calm steps and up to the ceiling a gamma distribution.
        """
        time = self.time
        above = gamma_exceeds(limit - self.quiet - time.own, time.mean, time.spread)
        late_chance = np.where(limit >= self.ceiling, 0.0, above)
        usual = time.undisturbed * self.calm_exceeds(limit) + (1.0 - time.undisturbed) * late_chance
        return np.minimum(usual, normal_exceeds((limit - self.ceiling) / max(self.jitter, 1e-12)))

    def calm_exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TPOT > limit) of requests of each flow that meet no prompt, limit (..., flows) or (..., 1) [1].

        Without others in the batch none has a longer step than usual.
        """
        above = limit - self.quiet - self.time.own
        late = normal_exceeds(above / max(self.jitter, 1e-12))
        return np.where(above >= 0.0, np.minimum(late, self.others), late)

    def tail_exceeds(self, limit: FloatArray, gaps: FloatArray) -> FloatArray:
        """P(ITL p99 > limit) of requests with so many gaps (flows,), limit (..., flows) or (..., 1) [1].

        Of n gaps m = 0.01 n, rounded down, may be longer. Quiet steps of a request are about alike, so that all of them
        are or none. Of those with prompts M = n t sum prompt_rate [prompt_step > limit] are on average, in rows of c:
        P(Poisson(M / c) > m / c), and no more than meet a prompt. That counts each prompt as if it had its steps for
        itself, so it rather accepts.
        """
        length, rate = np.atleast_1d(self.prompt_step), np.atleast_1d(self.prompt_rate)
        order = np.argsort(length)
        longer = np.append(np.cumsum(rate[order][::-1])[::-1], 0.0)
        mean = gaps * self.step * longer[np.searchsorted(length[order], limit, side="right")] / self.in_a_row
        late = poisson_exceeds(mean, np.floor((1.0 - GAP_SHARE) * gaps + 1e-9) / self.in_a_row)
        return np.maximum(self.calm_exceeds(limit), np.minimum(late, 1.0 - self.time.undisturbed))


def decode_time(engine: MixedEngine, line: FloatArray, first: float, together: float = 1.0) -> DecodeTime:
    """Distribution of the mean step of requests of each flow.

    line (flows,): prompts that wait at the engine when a request begins to decode, on average [1]; first: what they add
    to its first step where there are any [s]; together: prompts of a step, who do not meet each other
    [1].
    """
    n, load = engine.steps, engine.load
    work = work_dispersion(engine)
    usual = engine.step - engine.quiet
    drift = engine.quiet * engine.rate * engine.second * engine.swing**2 * work / (1.0 - load) ** 3
    square, smoothing, first_left = _memory(engine, usual, drift)
    first = first if engine.carried else first / (1.0 - engine.joined)
    any_left = -np.expm1(-line)
    behind, rest_share = any_left * first * first_left, 1.0 - any_left * first_left
    meets = max(engine.meets + 1.0 - together, 0.0) * engine.mean
    tokens = engine.weight * n
    mean = behind + rest_share * max(meets - float(tokens @ behind), 0.0) / max(float(tokens @ rest_share), 1e-12)
    spread_now = np.maximum(mean * square / max(usual, 1e-30) - mean**2, 0.0)
    variance = spread_now * smoothing + (engine.slope / (1.0 - load)) ** 2 * engine.variance
    calm_share = (1.0 - any_left) * engine.none_comes
    met = np.maximum(1.0 - calm_share, 1e-9)
    spread = np.sqrt(np.maximum((variance + mean**2) / met - (mean / met) ** 2, 0.0))
    return DecodeTime(mean / met, spread, calm_share, np.maximum(engine.company * engine.slope + engine.reads, 0.0))


def _memory(engine: MixedEngine, usual: float, drift: float) -> tuple[float, FloatArray, FloatArray]:
    """E z^2 of a step [s^2]; of a mean of n its variance over that of one, what is left of the first, (flows,) [1].

    Steps that carry prompts are like their neighbours; between two steps prompts come that have to do with no other.
    """
    if not engine.carried:
        return usual**2 + drift, 1.0 / engine.steps, 1.0 / engine.steps
    alone = engine.rate * engine.step * float(engine.weight @ engine.square) - usual**2 / engine.lanes
    forgets = max(2.0 * max(alone, 1e-30) / max(drift, 1e-30), 1e-9)
    first_left = np.expm1(-forgets * engine.steps) / (engine.steps * np.expm1(-forgets))
    return usual**2 + max(alone, 1e-30), _smoothing(forgets * engine.steps), first_left


def _smoothing(y: FloatArray) -> FloatArray:
    """Variance of a mean over y memories, over that of one value: h(y) = 2 (y - 1 + exp(-y)) / y^2 [1].

    >>> _smoothing(np.array([0.0, 0.0003, 0.003, 1.0, 1e6])).round(6).tolist()
    [1.0, 0.9999, 0.999001, 0.735759, 2e-06]
    """
    long = np.maximum(y, 1e-3)
    return np.where(y < 1e-3, 1.0 - y / 3.0, 2.0 * (long - 1.0 + np.exp(-long)) / long**2)


@dataclass(frozen=True, slots=True)
class Seats:
    """The seats of a pool and those who want them.

    engines: c [1]; seats: S of each [1]; rate: lambda [1/s]; present, variance: M and V of the requests at the pool if
    it had seats without end [1]; peaked: z [1]; turn (flows,): time that an engine with a full batch takes for one
    request of each flow [s], of weight (flows,) [1]; arrival_scv: ca2 of the gaps between arrivals [1].
    """

    engines: float
    seats: float
    rate: float
    present: float
    variance: float
    peaked: float
    turn: FloatArray
    weight: FloatArray
    arrival_scv: float

    @property
    def mean_turn(self) -> float:
        """Mean turn, h [s]."""
        return float(self.weight @ self.turn)

    @property
    def busy(self) -> float:
        """Load of full batches, rho [1]."""
        return min(self.rate * self.mean_turn / self.engines, FULLEST)

    def taken_chance(self) -> float:
        """Chance that an arrival finds all seats taken, f theta / (F + f theta) with theta = z / (1 - rho) [1].

        f = P(X = C), and F = P(X < C), which is that of a gamma variable here: it differs little.

        >>> turn = np.array([0.1])  # of Poisson arrivals: M/M/10 at 0.8, Erlang's 0.409
        >>> round(Seats(1.0, 10.0, 8.0, 8.0, 8.0, 1.0, turn, np.ones(1), 1.0).taken_chance(), 2)
        0.4
        """
        number = self.engines * self.seats
        present = self.present + float(peakedness(self.present, self.arrival_scv)) - 1.0
        variance = self.variance * present / self.present
        above = self.peaked / (1.0 - self.busy) * pascal(number, present, variance)
        below = 1.0 - float(gamma_exceeds(number - 0.5, present, math.sqrt(variance)))
        return min(above / max(below + above, 1e-300), 1.0)

    def wait(self) -> ExponentialWait:
        """The wait for a seat.

        >>> turn = np.array([0.1])  # M/D/10 at 0.8, that is 0.1 / 2 / 0.2
        >>> round(Seats(1.0, 10.0, 8.0, 8.0, 8.0, 1.0, turn, np.ones(1), 1.0).wait().mean, 6)
        0.25
        """
        second = float(self.weight @ self.turn**2)
        burst = 2.0 * float(peakedness(self.present, self.arrival_scv)) - 1.0
        mean = float(conditional_wait(self.engines, self.busy, self.mean_turn, second, burst))
        return ExponentialWait(self.taken_chance(), mean)


def pascal(number: float, mean: float, variance: float) -> float:
    """P(X = number) of a negative binomial variable of this mean and variance [1].

    >>> round(pascal(2.0, 1.0, 2.0), 6)  # geometric: 1 / 2^3
    0.125
    """
    overdispersion = max(variance / mean - 1.0, LEAST_PEAKED)
    size = mean / overdispersion
    least = number * math.log(overdispersion) - (size + number) * math.log1p(overdispersion)
    return math.exp(least + math.lgamma(number + size) - math.lgamma(size) - math.lgamma(number + 1.0))


def ceiling(engine: MixedEngine, seats: float, full_step: float) -> FloatArray:
    """The largest mean step of a request of each flow in batches of no more than S seats, (flows,) [s].

    A full batch takes in a prompt when one of the S - 1 others ends: (S - 1) n / E[n] in n steps, of a variance like
    that of n. What would take a request longer waits for a seat. full_step: of a full batch without prompts [s].
    """
    came = (seats - 1.0) * engine.steps / engine.length
    length_scv = min(float(engine.weight @ engine.steps**2) / engine.length**2 - 1.0, 1.0)
    square = max(engine.second - engine.mean**2 + length_scv * engine.mean**2, 0.0)
    return np.asarray(full_step + (came * engine.mean + FAR * np.sqrt(came * square)) / engine.steps)
