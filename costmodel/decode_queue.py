"""How long requests decode beside prompts that come and go; symbols as in `beside`.

1. The time of n steps. Work in prompts has variance s2 n for many steps, and n^2 Var z for few; between them it is
   taken to forget exponentially. The batch adds its own slow variation, and both together, as what comes stays:

       Var = n^2 Var z h(b n) + g^2 Var N n^2 k(n) + g q n^2 j(n),   g = slope / (1 - P)

   s2 = lambda tau E[e^2] d / (1 - P)^3; h(y) = 2 (y - 1 + exp(-y)) / y^2, b = 2 Var z / s2; k and j the means over the
   window of the correlations of the batch, and of the chance to be there still (`_remembered`). A request sees its own
   prompt's company: Var N / N requests more in the batch than there are on average, itself among them (`_own`; where no
   prompt comes none join it, `calm_company`). It meets K prompts (`Beside.meets`) less those that share their step:
   first of all those that it leaves behind, or an early one where it leaves none (`after_prompt`), the rest at any
   time. As far as it varies by prompts TPOT is beta distributed above quiet steps; the batch makes it shorter, too
   (`_below`).
2. Prompts that go first. Where no step carries both, all prompts that came since the last step, and while these are
   computed, come between it and the next: rho = P, a step of decodes lasts tau, and z is a sum of busy periods X, of
   the prompts that came during it. So z has nothing to do with the next one, Var z = s2, and p = 1 - exp(-lambda T
   (1 - sigma)), as of the lambda T prompts of a step sigma find another one there. Prompts left behind, and all that
   come while they are computed, 1 / (1 - sigma) times as much, go before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .beside import Beside, dispersion, feedback, seated_variance
from .metric import GAP_SHARE
from .queues.erlang import normal_exceeds, poisson_exceeds

FloatArray = NDArray[np.float64]

LEAST_BETA = 0.5
"""Sum a + b of the parameters of a beta variable down to which Paulson's approximation is within 0.07 [1]."""
MOST_BELOW = 100.0
"""Where `_below` is cut off, over the mean [1]: a gamma variable is nearly normal there."""


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """Time of the steps of a request of each flow, each (flows,).

    mean, spread: of the mean step of those who meet prompts, above `quiet` and `own` [s]; undisturbed: share of
    requests that meet none [1]; own: what a request adds to its steps then, with those that it finds there [s]; alone:
    the chance that it finds nobody [1], and lone: what it adds then, less what the mean batch does [s]; below: where
    the distribution of the mean step begins, below `quiet` and `own` [s].
    """

    mean: FloatArray
    spread: FloatArray
    undisturbed: FloatArray
    own: FloatArray | float = 0.0
    lone: FloatArray | float = 0.0
    alone: float = 0.0
    below: FloatArray | float = 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the requests that run at a pool, and what they make of the latencies of its tokens.

    step: mean decode step [s]; quiet: mean step without prompts [s]; time: by how much the steps of a request are
    longer; jitter: spread of a step that comes from the batch [s]; ceiling (flows,): TPOT at most [s]; prompt_step
    (any,): lengths of the steps that carry prompts [s], prompt_rate (any,): how many of each there are per second at an
    engine, and in_a_row: how many of them one prompt makes on average [1].
    """

    step: float
    quiet: float
    time: DecodeTime
    jitter: float
    ceiling: FloatArray
    prompt_step: FloatArray | float = 0.0
    prompt_rate: FloatArray | float = 0.0
    in_a_row: float = 1.0

    def met(self, rate: FloatArray) -> float:
        """Mean step without prompts that requests at `rate` (flows,) [1/s] meet [s]."""
        own = np.broadcast_to(self.time.own, rate.shape)
        return self.quiet + float(np.average(own, weights=np.maximum(rate, 1e-300)))

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TPOT > limit) of requests of each flow, limit (..., flows) or (..., 1) [1].

        Calm, or above calm steps and up to full ones a beta distribution.
        """
        time = self.time
        usually = self.quiet + time.own
        above, most = limit - usually + time.below, np.maximum(self.ceiling - usually, 1e-9) + time.below
        held_up = beta_exceeds(above, time.mean + time.below, time.spread, most)
        usual = time.undisturbed * self.calm_exceeds(limit) + (1.0 - time.undisturbed) * held_up
        return np.minimum(usual, normal_exceeds((limit - self.ceiling) / max(self.jitter, 1e-12)))

    def calm_exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TPOT > limit) of requests of each flow that meet no prompt, limit (..., flows) or (..., 1) [1].

        Others than those who decode alone meet a batch that is normally distributed, of such a mean and variance that
        both together have `own` and `jitter`.
        """
        own, lone, alone = self.time.own, self.time.lone, self.time.alone
        beside = max(1.0 - alone, 1e-12)
        more = np.maximum(own - alone * lone, 0.0) / beside
        between = alone * (lone - own) ** 2 + beside * (more - own) ** 2
        jitter = np.sqrt(np.maximum(self.jitter**2 - between, 0.0) / beside)
        others = normal_exceeds((limit - self.quiet - more) / np.maximum(jitter, 1e-12))
        return np.asarray(alone * (limit < self.quiet + lone) + (1.0 - alone) * others)

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
        held_up = poisson_exceeds(mean, np.floor((1.0 - GAP_SHARE) * gaps + 1e-9) / self.in_a_row)
        return np.maximum(self.calm_exceeds(limit), np.minimum(held_up, 1.0 - self.time.undisturbed))


def decode_time(
    beside: Beside, left: FloatArray, first: float, together: float = 1.0, seats: float = np.inf
) -> DecodeTime:
    """Distribution of the mean step of requests of each flow.

    left (flows,): prompts that wait at the engine when a request begins to decode, on average [1]; first: what they add
    to its first step where there are any (`any_of`) [s]; together: prompts of a step, who do not meet each other [1];
    seats: of a batch [1].
    """
    n, load = beside.steps, beside.load
    work = dispersion(beside, n)
    usual = beside.step - beside.quiet
    drift = beside.quiet * beside.rate * beside.second * beside.swing**2 * work / (1.0 - load) ** 3
    square, smoothed, first_left = _memory(beside, usual, drift)
    first = first if beside.carried else first / (1.0 - beside.joined)
    any_left = any_of(left, beside.arrival_scv, beside.engines)
    none_came, early = beside.after_prompt
    behind, others = any_left * first * first_left, 1.0 - any_left * first_left + (1.0 - any_left) * early
    meets = max(beside.meets + 1.0 - together, 0.0) * beside.mean
    tokens = beside.weight * n
    above = behind + others * max(meets - float(tokens @ behind), 0.0) / max(float(tokens @ others), 1e-12)
    spread_now = np.maximum(above * square / max(usual, 1e-30) - above**2, 0.0)
    gain, crowd = beside.slope / (1.0 - load), seated_variance(beside, seats)
    kept, there = _remembered(beside)
    common = beside.rate * drift + work * beside.rate * beside.quiet * beside.mean / (1.0 - load) ** 2
    by_prompts, by_batch = spread_now * smoothed + gain * common * there, gain**2 * crowd * kept
    usually = _own(beside, crowd, kept)
    own, lone, alone = calm_company(beside, usually)
    mean = above + np.maximum(usually - own, 0.0)
    undisturbed = (1.0 - any_left) * none_came
    met = np.maximum(1.0 - undisturbed, 1e-9)
    both = by_prompts + by_batch
    spread = np.sqrt(np.maximum((both + mean**2) / met - (mean / met) ** 2, 0.0))
    return DecodeTime(mean / met, spread, undisturbed, own, lone, alone, _below(mean / met, by_prompts, by_batch))


def _below(mean: FloatArray, by_prompts: FloatArray, by_batch: FloatArray) -> FloatArray:
    """How far below its mean, less `mean`, a variable may fall that varies by prompts and by the batch, (flows,) [s].

    Gamma variables of mean m and variance v have the third moment 2 v^2 / m. What the batch adds to v has none (it is
    normal), so that m (V / v)^2 is the mean of one of variance V with the same third moment.
    """
    all_of_it = np.maximum(by_prompts + by_batch, 1e-30)
    return np.asarray(mean * np.minimum((all_of_it / np.maximum(by_prompts, 1e-3 * all_of_it)) ** 2 - 1.0, MOST_BELOW))


def _own(beside: Beside, crowd: float, kept: FloatArray) -> FloatArray:
    """What a request of each flow adds to quiet steps on average, with those that come with it, (flows,) [s].

    Requests meet batches of E[N^2] / E[N] = N + Var N / N, themselves among them. N is a whole number, of a variance of
    (1 - N) N at least.
    crowd: Var N of seated requests [1]; kept: see `_remembered`.
    """
    company = max(crowd / max(beside.batch, 1e-12), 1.0 - beside.batch)
    longer = company * beside.slope * kept / max(float(_shares(beside) @ kept), 1e-12)
    return np.asarray(np.maximum(longer + beside.reads, 0.0))


def calm_company(beside: Beside, own: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """The same where no prompt comes: on average and alone, both (flows,) [s], and the chance to be alone [1].

    Nobody joins a request there, which so only meets those that it found, until they end. Of the engines without a
    prompt, c (1 - rho) or its own, it got one with fewest decodes: with others only where all have some, each with
    chance 1 - exp(-N). By itself it still has its own KV cache to read. No step is taken for shorter than the mean
    quiet one, as the bounds on fleets have it.
    own (flows,): see `_own` [s].
    """
    some = float(-np.expm1(-beside.batch))
    chance = some ** max(beside.engines * (1.0 - beside.busy), 1.0)
    n, until = beside.steps[:, None], np.minimum(beside.steps[:, None], beside.steps)
    left = ((beside.steps - until / 2.0) * until / n) @ beside.weight / beside.length
    lone = np.maximum((1.0 - beside.batch) * beside.slope + beside.alone, 0.0)
    saved = np.minimum(beside.saved, lone)
    gone = beside.batch * beside.slope * (1.0 - chance / max(some, 1e-12) * left)
    return np.maximum(own - gone, lone) - (1.0 - chance) * saved, lone - saved, 1.0 - chance


def _memory(beside: Beside, usual: float, drift: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """E z^2 of a step [s^2]; of a mean of n its variance over that of one, what is left of the first [1], (flows,).

    Steps that carry prompts are like their neighbours; between two steps prompts come that have to do with no other.
    """
    if not beside.carried:
        return usual**2 + drift, 1.0 / beside.steps, 1.0 / beside.steps
    square = np.full_like(drift, _square(beside, usual))
    forgets = np.maximum(2.0 * (square - usual**2) / np.maximum(drift, 1e-30), 1e-9)
    return square, _smoothed(forgets * beside.steps), _mean_left(forgets, beside.steps)


def any_of(number: FloatArray, arrival_scv: float, engines: float) -> FloatArray:
    """Chance of any of so many prompts on average, which bursts bring together (negative binomial, `prompt_ahead`) [1].

    >>> any_of(np.array(1.0), 1.0, 4.0).round(3).item()  # Poisson: 1 - exp(-1)
    0.632
    """
    bunches = max(arrival_scv - 1.0, 0.0) / engines
    return np.asarray(-np.expm1(-number * (np.log1p(bunches) / bunches if bunches > 0.0 else 1.0)))


def _square(beside: Beside, usual: float) -> float:
    """E z^2 of a step [s^2]: of the prompts in it, one at a time in each lane; no less than their number leaves."""
    often = beside.rate * beside.step
    chance = (1.0 - (1.0 - beside.busy) / (1.0 - beside.load)) * usual * (1.0 / beside.load - 1.0) / beside.quiet
    if beside.lanes > 1.0:
        chance = float(-np.expm1(-often * float(beside.weight @ beside.mixed_steps)))
    each = often * float(beside.weight @ beside.square) - usual**2 / beside.lanes
    return usual**2 + max(each, usual**2 * (1.0 / max(chance, 1e-9) - 1.0), 1e-30)


def first_of(several: float, one: float, most: float) -> float:
    """What prompts that wait add to the next step where there are any, which has room for `most` [s].

    several: their mean number where there are any, which is taken geometric [1]; each adds `one` [s].

    >>> first_of(2.0, 1.0, np.inf), first_of(2.0, 1.0, 1.0)
    (2.0, 1.0)
    """
    if np.isinf(most):
        return one * several
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
    nearly a quotient of normals (Paulson 1942). That fails for a + b below LEAST_BETA; from there to a + b = 0, where X
    is 0 or `most`, the chance is taken linear. Without a limit it is `queueing.gamma_exceeds`.

    >>> round(float(beta_exceeds(np.array(0.75), np.array(0.5), np.array(12**-0.5), 1.0)), 2)  # uniform: 0.25
    0.25
    >>> round(float(beta_exceeds(np.array(0.75), np.array(0.5), np.array(9.0), 1.0)), 2)  # no beta varies more: 0 or 1
    0.5
    """
    share = np.clip(mean / most, 1e-12, 1.0 - 1e-9)
    parameters = np.maximum(share * (1.0 - share) / np.maximum(spread / most, 1e-15) ** 2 - 1.0, 0.0)
    both = np.maximum(parameters, LEAST_BETA)
    first, second = 1.0 / (9.0 * share * both), 1.0 / (9.0 * (1.0 - share) * both)
    part = np.clip(x / most, 0.0, 1.0 - 1e-12)
    root = np.cbrt(part / share / ((1.0 - part) / (1.0 - share)))
    exceeds = normal_exceeds(((1.0 - second) * root - 1.0 + first) / np.sqrt(second * root**2 + first))
    between = share + np.minimum(parameters / LEAST_BETA, 1.0) * (exceeds - share)
    return np.where(x <= 0.0, 1.0, np.where(x >= most, 0.0, between))
