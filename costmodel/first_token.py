"""Time to first token (TTFT): one equation, term by term, and what delays a first token beyond its prompt.

    TTFT = R + a + f s + D             colocated
    TTFT = R + a + f s + x + D + Y     where roles are apart

    R    read of a history that only the KV tier has; else 0                     `prefix_cache.TierReads`
    a    what no load changes: HTTP, tokenizing, scheduling, a hand-over         `engine.ServingPolicy.fixed_ttft`
    f s  the prompt's steps once started; a first token may come later than they `engine_arrays.first_token_factor`
    x    transfer of the KV cache that no step hides                             `hidden_transfer`
    D    wait for an engine where all are busy or have no free slot              `queues.prefill.prompt_wait`
         else the rest of a step in progress; for both, the step formed already  `queues.waits.StepsAhead`
    Y    waits for network cards, which move other requests                      `card_wait`
         the rest of a decode step in progress, and the first own one            `entry_steps`

The terms are those of DistServe (Zhong et al. 2024, section 3): queue, prefill, transfer, first decode step. `Ttft` is
the distribution of their sum without R. `optimizer.fleets.evaluate` takes the terms from the pools of a fleet, adds R,
and mixes requests that find their history with those that do not. At fixed concurrency,
`queues.steady_state.closed_loop` has the mean: a, f s and Y are the same there, and only the queue differs, for those
who wait are those who are served.

An engine that pulls (`engine.Policy`) admits a handed-over request at one step and loads its KV during it, so a step
more passes, which hides as much of the transfer. With rho the busy share of a card, the card is a queue of one server:
it is met busy with chance rho, and then waited for, theta on average (`waits.conditional_wait`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.queues.waits import ExponentialWait, StepsAhead, Wait

from .arrays import FloatArray
from .engine import ServingPolicy
from .queues.waits import conditional_wait, split_scv

POINTS = 32
"""Equally likely values that stand for the distribution of what follows a prompt."""
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it modulo 1 are spread evenly over (0, 1), in an order unlike any other."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A decode pool that takes requests in.

    met: chance that one meets a decode step in progress (`waits.step_in_progress`) [1]; step: its length [s]; share:
    of the requests that the pool takes in [1].
    """

    met: float
    step: float
    share: float = 1.0


def card_wait(
    rate: FloatArray, seconds: FloatArray, cards: float, arrival_scv: float, together: float
) -> ExponentialWait:
    """The wait of a transfer for the card of its engine.

    rate (flows,) [1/s] and seconds (flows,) of transfers over `cards` equal cards; arrivals of squared coefficient of
    variation ca2 go to any of them (`waits.split_scv`). Of `together` transfers that begin at once, half of the others
    are ahead of one.

    >>> card_wait(np.array([1.0]), np.array([0.5]), 1.0, 1.0, 1.0)
    ExponentialWait(chance=0.5, mean=0.5)
    """
    total = float(rate.sum())
    if total <= 0.0:
        return ExponentialWait(0.0, 0.0)
    mean, second = float(rate @ seconds) / total, float(rate @ seconds**2) / total
    busy = total * mean / cards
    if busy <= 0.0:
        return ExponentialWait(0.0, 0.0)
    ahead = (together - 1.0) / 2.0
    scv = split_scv(arrival_scv, cards)
    mean_wait = min(busy, 1.0) * float(conditional_wait(1.0, busy, mean, second, scv)) + ahead * mean
    chance = min(busy + ahead / (1.0 + ahead), 1.0)
    return ExponentialWait(chance, mean_wait / chance)


def entry_steps(entry: Entry, levels: FloatArray, loading: float = 0.0) -> FloatArray:
    """Quantiles of the time from the arrival of a request to the end of the first step that has it [s].

    If a step is in progress, the rest of it and those during which the KV is loaded, `loading`
    [1]; then a step of its own.
    """
    into = np.maximum(levels - (1.0 - entry.met), 0.0) / entry.met
    return np.asarray(entry.step * (1.0 + into + loading * (into > 0.0)))


def mean_hand_over(met: FloatArray, step: FloatArray, loading: float, transfer: FloatArray) -> FloatArray:
    """Mean time from the end of a prompt to that of the first step with its request, cards free [s].

    max(transfer, loading met step) + (1 + met / 2) step: the means of `entry_steps` and of the transfer that no loading
    hides, of one decode pool (`Entry`).

    >>> mean_hand_over(np.ones(2), np.full(2, 0.02), 1.0, np.array([0.005, 0.05])).round(3).tolist()
    [0.05, 0.08]
    """
    return np.asarray(np.maximum(transfer, loading * met * step) + (1.0 + 0.5 * met) * step)


def hidden_transfer(entries: Sequence[Entry], loading: float) -> float:
    """Transfer that the steps hide during which a decode engine loads KV, on average [s]."""
    return sum((entry.share * loading * entry.met * entry.step for entry in entries), 0.0)


def hand_over_waits(cards: Sequence[ExponentialWait], entries: Sequence[Entry], loading: float = 0.0) -> FloatArray:
    """Equally likely values of all that follows a prompt, but its transfer: Y, (points,) [s].

    cards: waits for every card on the way; loading: see `entry_steps`.
    """
    levels = (np.arange(POINTS) + 0.5) / POINTS
    result = np.zeros(POINTS)
    for entry in entries:
        result += entry.share * entry_steps(entry, levels, loading)
    for number, card in enumerate(cards, start=1):
        result += card.quantiles((np.arange(POINTS) + 0.5) * GOLDEN**number % 1.0)
    return result


def idle_ttft(policy: ServingPolicy, prompt: FloatArray, transfer: FloatArray | None = None) -> FloatArray:
    """TTFT where nothing is in the way: a + f s + x [s].

    prompt (...,): f s [s]; transfer (...,): x of a request that is handed over, None of one that is not [s].
    """
    fixed = policy.fixed_ttft(transfer is not None) + prompt
    return fixed if transfer is None else fixed + transfer


@dataclass(frozen=True, slots=True)
class Ttft:
    """TTFT of requests of each flow at a pool that computes their prompts.

    idle (flows,): a + f s + x (`idle_ttft`) [s]; wait: for an engine, of those who find none free; ahead: steps that
    the others find, one of these or none; later (points,): equally likely values of Y [s].
    """

    idle: FloatArray
    wait: Wait
    ahead: Sequence[StepsAhead] = ()
    later: FloatArray = field(default_factory=lambda: np.zeros(1))

    @property
    def most(self) -> float:
        """The longest that it can be [s]."""
        rest = max((float(steps.step + steps.formed) for steps in self.ahead), default=0.0)
        return float(self.idle.max()) + float(max(self.wait.seconds[-1] + self.formed, rest) + self.later.max())

    @property
    def formed(self) -> float:
        """Mean of the steps formed already, which those who wait for an engine wait for as well [s]."""
        return float(sum(steps.chance * steps.formed for steps in self.ahead))

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TTFT > limit) of each flow, limit (..., flows) or (..., 1) [s]."""
        margin = (limit - self.idle)[..., None, :] - self.later[:, None]
        met = sum((steps.chance * steps.exceeds(margin) for steps in self.ahead), np.zeros(margin.shape))
        free = np.where(margin < 0.0, 1.0, met)
        late = self.wait.chance * self.wait.exceeds(margin - self.formed) + (1.0 - self.wait.chance) * free
        return np.asarray(late.mean(axis=-2))
