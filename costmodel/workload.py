"""The workload: how long requests are, how often they come, how bursty, how much prefix they share.

Of sessions, whose turns have prompts that grow as those of agents and chats do, the requests follow. The prompt of turn
k is the system prompt, all user tokens so far, and the answers to all turns before. A prefix cache can find what the
prompt of turn k - 1 was; answers count as new, as their KV is made elsewhere where roles are apart, and chat templates
write them anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from costmodel import lengths
from costmodel.lengths import Buckets, Lengths
from costmodel.prefix_cache import Reuse, TimeDistribution

from .arrays import FloatArray

TURN_GROUPS, TURN_BUCKETS = 8, 6
"""Groups of turns, the first one by itself, and buckets of new tokens in each: as many as other histograms have."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions of independent turns.

    turns [1]; pause: from the end of an answer to the next turn; system_prompt: tokens that all sessions begin with
    [token]; user, answer: tokens of each turn [token].
    """

    turns: Lengths
    pause: TimeDistribution
    system_prompt: float
    user: Lengths
    answer: Lengths

    @property
    def growth(self) -> float:
        """Tokens by which the prompt grows from turn to turn [token]."""
        return self.user.mean + self.answer.mean

    @property
    def longest(self) -> float:
        """Longest ISL + OSL, every turn but the last of mean length [token]."""
        last = self.user.longest + self.answer.longest
        return self.system_prompt + (math.ceil(self.turns.longest) - 1.0) * self.growth + last

    def reach(self) -> FloatArray:
        """Share of the sessions that have at least 1, 2, ... turns, (turns,) [1]; part of a turn is a chance of it."""
        turn = np.arange(np.ceil(self.turns.longest))
        return np.asarray(self.turns.share @ np.clip(self.turns.value[:, None] - turn, 0.0, 1.0))


def requests_of(sessions: Sessions) -> tuple[Buckets, Reuse]:
    """The histogram of the requests of sessions, and what they have in common; turns before are of mean length.

    >>> from costmodel.prefix_cache import fixed
    >>> agents = Sessions(lengths.fixed(2), fixed(5.0), 1000.0, lengths.fixed(300), lengths.fixed(100))
    >>> buckets, reuse = requests_of(agents)
    >>> buckets.isl.tolist(), reuse.history.tolist(), reuse.followed.tolist()
    ([1300.0, 1700.0], [0.0, 300.0], [0.5])
    """
    reach = sessions.reach()
    turn, mean = np.arange(reach.size), float(reach.sum())
    before = reach[1:].cumsum() / max(float(reach[1:].sum()), 1e-300) * (TURN_GROUPS - 1)
    group = np.concatenate([[0], 1 + np.minimum(np.ceil(before - 1e-9), TURN_GROUPS - 1)]).astype(np.int64)
    new = lengths.joint(sessions.user, sessions.answer, TURN_BUCKETS)
    isl, osl, share, history = [], [], [], []
    for members in (group == number for number in np.unique(group)):
        weight = reach[members]
        grown = float(weight @ turn[members] / weight.sum()) * sessions.growth
        isl.append(sessions.system_prompt + grown + new.isl)
        osl.append(new.osl)
        share.append(float(weight.sum()) / mean * new.share)
        history.append(np.full(new.isl.size, max(grown - sessions.answer.mean, 0.0)))
    buckets = Buckets(*map(np.concatenate, (isl, osl, share)))
    later_share = reach[::-1].cumsum()[::-1][1:] / mean
    reuse = Reuse(sessions.system_prompt, np.concatenate(history), sessions.growth, later_share, sessions.pause)
    return buckets, reuse


@dataclass(frozen=True, slots=True)
class Workload:
    """A joint ISL x OSL histogram and an arrival process.

    isl, osl: representative input and output length of each bucket [token], shape (buckets,).
    share: share of requests in each bucket [1], shape (buckets,), sums to 1.
    request_rate: mean arrivals per second that the fleet must carry [1/s].
    burstiness: coefficient of variation of the inter-arrival times [1]; 1 is Poisson.
    prefix_hit_share: share of input tokens that a prefix cache could find at best [1].
    max_tokens: longest ISL + OSL of any request [token] (not of a bucket's representative).
    reuse: which of them it has to keep, and for how long (None: as large a part of each prompt, and whatever the memory
    of a replica); sessions: that the requests are turns of (None: each comes by itself).
    """

    isl: FloatArray
    osl: FloatArray
    share: FloatArray
    request_rate: float
    burstiness: float = 1.0
    prefix_hit_share: float = 0.0
    max_tokens: int = 0
    reuse: Reuse | None = None
    sessions: Sessions | None = None

    @property
    def reusable_tokens(self) -> FloatArray:
        """Tokens of each bucket's prompts that a prefix cache could find, (buckets,) [token]."""
        if self.reuse is None:
            return np.asarray(self.isl * self.prefix_hit_share)
        return self.reuse.shared + self.reuse.history

    @property
    def mean_isl(self) -> float:
        """Mean input length [token]."""
        return float(self.share @ self.isl)

    @property
    def mean_osl(self) -> float:
        """Mean output length [token]."""
        return float(self.share @ self.osl)


def scale_rate(workload: Workload, factor: float) -> Workload:
    """Return the same request mix with `factor` [1] times the arrivals; burstiness is kept.

    >>> mix = Workload(np.array([8.0]), np.array([2.0]), np.array([1.0]), request_rate=4.0)
    >>> scale_rate(mix, 1.5).request_rate
    6.0
    """
    return replace(workload, request_rate=workload.request_rate * factor)
