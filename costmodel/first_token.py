"""What delays a first token beyond the prompt's own time and the transfer of its KV cache.

A prompt waits for an engine, or for the rest of a step that began without it. A handed-over request then waits for the
network cards of both ends while they move others, and for the rest of the decode step in progress, if there is one, and
takes its first own step. An engine that pulls (`policy.Policy`) admits it at one step and loads its KV during it, so
a step more passes, which hides as much of the transfer. With rho the busy share of a card, the card is a queue of one
server: it is met busy with chance rho, and then waited for, theta on average (`erlang.conditional_wait`, taken
exponential). A step in progress is met at any time with equal chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import FloatArray
from .queues.erlang import conditional_wait
from .queues.prefill import PromptWait

POINTS = 32
"""Equally likely values that stand for the distribution of what follows a prompt."""
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it modulo 1 are spread evenly over (0, 1), in an order unlike any other."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A decode pool that takes requests in.

    met: chance that one meets a decode step in progress (`transfer.step_in_progress`) [1]; step: its length [s]; share:
    of the requests that the pool takes in [1].
    """

    met: float
    step: float
    share: float = 1.0


def card_wait(
    rate: FloatArray, seconds: FloatArray, cards: float, arrival_scv: float, together: float
) -> tuple[float, float]:
    """Chance that a transfer finds the card of its engine busy, and the mean wait if so [s].

    rate (flows,) [1/s] and seconds (flows,) of transfers over `cards` equal cards; arrivals of squared coefficient of
    variation ca2 are dealt out to them in turn, which leaves 1 + (ca2 - 1) / cards. Of `together` transfers that begin
    at once, half of the others are ahead of one.

    >>> card_wait(np.array([1.0]), np.array([0.5]), 1.0, 1.0, 1.0)
    (0.5, 0.5)
    """
    total = float(rate.sum())
    if total <= 0.0:
        return 0.0, 0.0
    mean, second = float(rate @ seconds) / total, float(rate @ seconds**2) / total
    busy = total * mean / cards
    if busy <= 0.0:
        return 0.0, 0.0
    scv = 1.0 + max(arrival_scv - 1.0, 0.0) / cards
    ahead = (together - 1.0) / 2.0
    mean_wait = min(busy, 1.0) * float(conditional_wait(1.0, busy, mean, second, scv)) + ahead * mean
    chance = min(busy + ahead / (1.0 + ahead), 1.0)
    return chance, mean_wait / chance


def waits_of(chance: float, mean: float, levels: FloatArray) -> FloatArray:
    """Quantiles of a wait that is none but with `chance`, and then exponential with this mean [s]."""
    above = np.minimum((1.0 - levels) / max(chance, 1e-300), 1.0)
    return np.asarray(-mean * np.log(above))


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


def hand_over_waits(cards: Sequence[tuple[float, float]], entries: Sequence[Entry], loading: float = 0.0) -> FloatArray:
    """Equally likely values of all that follows a prompt, but its transfer, (points,) [s].

    cards: (chance, mean wait) of every card on the way; loading: see `entry_steps`.
    """
    levels = (np.arange(POINTS) + 0.5) / POINTS
    result = np.zeros(POINTS)
    for entry in entries:
        result += entry.share * entry_steps(entry, levels, loading)
    for number, (chance, mean) in enumerate(cards, start=1):
        result += waits_of(chance, mean, (np.arange(POINTS) + 0.5) * GOLDEN**number % 1.0)
    return result


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait for an engine where all are busy, else the rest of a step, and then one of the values of `later` (points,).

    rests: (chance, length [s]) of the step that a prompt finds in progress on an engine that is free for it.
    """

    wait: PromptWait
    later: FloatArray
    rests: Sequence[tuple[float, float]]

    @property
    def most(self) -> float:
        """The longest that the delay can be [s]."""
        rest = max((length for _, length in self.rests), default=0.0)
        return float(max(self.wait.seconds[-1], rest) + self.later.max())

    def exceeds(self, slack: FloatArray) -> FloatArray:
        """P(delay > slack) of each flow, slack (..., flows) or (..., 1) [s]."""
        margin = slack[..., None, :] - self.later[:, None]
        free = sum((chance * rest_exceeds(margin, length) for chance, length in self.rests), np.zeros(margin.shape))
        late = self.wait.chance * self.wait.exceeds(margin) + (1.0 - self.wait.chance) * free
        return np.asarray(late.mean(axis=-2))


def rest_exceeds(slack: FloatArray, step: float) -> FloatArray:
    """P(rest of a step > slack), met at any time with equal chance; 1 where slack is negative [1]."""
    return 1.0 - np.clip(slack, 0.0, step) / step if step > 0.0 else np.where(slack < 0.0, 1.0, 0.0)
