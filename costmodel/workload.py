"""The workload: how long requests are, how often they come, how bursty, how much prefix they share; and traces of it.

Of sessions, whose turns have prompts that grow as those of agents and chats do, the requests follow. The prompt of turn
k is the system prompt, all user tokens so far, and the answers to all turns before. A prefix cache can find what the
prompt of turn k - 1 was; answers count as new, as their KV is made elsewhere where roles are apart, and chat templates
write them anew.

A trace is the requests of one run, as recorded or drawn. Draws do not depend on the rate: times at rate r are the times
at rate 1 divided by r. So a bisection over rates compares like with like, and attainment falls with the rate almost
without noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel import lengths

from .arrays import FloatArray, IntArray
from .lengths import Buckets, Lengths
from .prefix_cache import Reuse, TimeDistribution

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


MOST_PAGES = 500_000
"""Distinct hash blocks of a run, which each engine has an entry for: 12 MB."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Hash blocks of the prompts, as prefix caches see them.

    ids: numbers from 0 on of all requests one after another, equal where the block and all before it are equal; counts
    (requests,): how many each has; tokens of one block [token]. A last block that a prompt does not fill is ignored.
    common: the first so many ids, of the system prompt, are in every cache from the start, as they soon are.
    """

    ids: NDArray[np.integer]
    counts: IntArray
    tokens: int
    common: int = 0

    def merged(self, times: int) -> Pages:
        """Hash blocks that are so many times as long: the last one of each group stands for all of it.

        >>> Pages(np.array([1, 2, 3, 1, 2, 7, 8]), np.array([3, 4]), 16).merged(2)
        Pages(ids=array([2, 2, 8]), counts=array([1, 2]), tokens=32, common=0)
        """
        starts = np.cumsum(self.counts) - self.counts
        place = np.arange(self.ids.size) - np.repeat(starts, self.counts)
        last = self.ids[place % times == times - 1]
        return Pages(last, self.counts // times, self.tokens * times, self.common // times)

    def in_blocks(self, block: int) -> Pages:
        """Hash blocks of whole KV blocks of so many tokens, few enough for every engine to have an entry for each."""
        pages = self.merged(math.lcm(self.tokens, block) // self.tokens)
        while np.unique(pages.ids).size > MOST_PAGES:
            pages = pages.merged(2)
        return replace(pages, ids=np.unique(pages.ids, return_inverse=True)[1])


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival; arrays of shape (requests,).

    arrival [s]; isl, osl [token]; cached: tokens of the prompt whose KV is found in a cache, and tier: of these, those
    that are read from the tier below GPU memory, unless computing is quicker [token]; pool, decode_pool: index of the
    pool that computes the prompt and of the one that decodes, None in a fleet of one or two pools; pages: hash blocks
    of the prompts, for engines that cache prefixes (then `cached` comes about and cannot be given); concurrency: of a
    closed loop, 0 for an open one. In a closed loop the first `concurrency` requests come at their arrival, every other
    one when a client has the last token of one. after, pause: of the turns of sessions: the request whose end they wait
    for (-1: none), and how long they come after it [s]; their arrival is when that is expected, and only orders them.
    """

    arrival: FloatArray
    isl: IntArray
    osl: IntArray
    cached: IntArray | None = None
    tier: IntArray | None = None
    pool: IntArray | None = None
    decode_pool: IntArray | None = None
    concurrency: int = 0
    pages: Pages | None = None
    after: IntArray | None = None
    pause: FloatArray | None = None

    @property
    def size(self) -> int:
        """Number of requests."""
        return int(self.arrival.size)

    @property
    def opened(self) -> int:
        """Requests that come by themselves."""
        return min(self.concurrency, self.size) if self.concurrency else self.size


def make_trace(arrival: FloatArray, isl: IntArray, osl: IntArray, **columns: IntArray) -> Trace:
    """A trace of requests in any order, sorted by arrival (stable); columns: cached, tier, pool and decode_pool."""
    order = np.argsort(arrival, kind="stable")
    return Trace(
        arrival=np.asarray(arrival, dtype=np.float64)[order],
        isl=np.asarray(isl, dtype=np.int64)[order],
        osl=np.asarray(osl, dtype=np.int64)[order],
        **{name: column[order] for name, column in columns.items()},  # type: ignore[arg-type]
    )


def gamma_arrivals(count: int, rate: float, cv: float = 1.0, seed: int = 0) -> FloatArray:
    """Arrival times [s] whose gaps are gamma distributed with mean 1 / rate and coefficient of variation cv.

    cv 1 is Poisson, 0 a fixed beat. Gamma with shape 1 / cv^2 and scale cv^2 / rate.

    >>> gamma_arrivals(3, rate=2.0, cv=0.0).tolist()
    [0.5, 1.0, 1.5]
    """
    if cv == 0.0:
        return np.arange(1.0, count + 1.0) / rate
    gaps = np.random.default_rng([seed, 1]).gamma(1.0 / cv**2, cv**2, count)
    return np.asarray(np.cumsum(gaps) / rate)


def diurnal_arrivals(count: int, profile: FloatArray, cv: float = 1.0, seed: int = 0) -> FloatArray:
    """Arrival times [s] of `count` requests whose rate goes once through a profile, as many seconds in each slot.

    profile: mean rate in each slot [1/s]. A slot lasts count / sum(profile) seconds, so that the requests make one
    pass. Arrivals at rate 1, scaled to end with the pass, are stretched so that the expected number by time t is the
    integral of the profile (time change of a renewal process); so twice the profile is the same in half the time.

    >>> diurnal_arrivals(4, np.array([1.0, 0.0, 3.0]), cv=0.0).round(3).tolist()
    [1.0, 2.333, 2.667, 3.0]
    """
    unit = gamma_arrivals(count, 1.0, cv, seed)
    slot = count / float(profile.sum())
    expected_count = np.concatenate([[0.0], np.cumsum(profile * slot)])
    arrival_count = unit / unit[-1] * expected_count[-1]
    k = np.searchsorted(expected_count, arrival_count, side="left") - 1
    return np.asarray(slot * (k + (arrival_count - expected_count[k]) / (expected_count[k + 1] - expected_count[k])))


def draw_lengths(
    isl: FloatArray, osl: FloatArray, share: FloatArray, count: int, seed: int = 0
) -> tuple[IntArray, IntArray, IntArray]:
    """Input and output lengths [token] and bucket of each request, drawn from a histogram.

    Fractions are rounded at random, so that means are kept.
    """
    rng = np.random.default_rng([seed, 2])
    bucket = rng.choice(np.size(share), size=count, p=np.asarray(share) / np.sum(share))
    whole = [np.floor(np.asarray(values, dtype=np.float64)[bucket] + rng.random(count)) for values in (isl, osl)]
    inputs, outputs = (np.maximum(values, 1.0).astype(np.int64) for values in whole)
    return inputs, outputs, np.asarray(bucket, dtype=np.int64)


def draw_turns(
    sessions: Sessions, starts: FloatArray, count: int, *, begin: float, service: float, most: float, seed: int = 0
) -> tuple[Trace, IntArray]:
    """The first `count` turns from `begin` [s] on, and the session of each.

    Sessions that began before go on from the turn they have come to; arrivals are as if answers took `service`.
    starts: of the sessions, ascending [s]; service: expected time of a request [s]; most: tokens, ISL + OSL, that a
    session does not exceed [token].
    """

    def drawn(number: int, values: Lengths, size: int) -> FloatArray:
        rng = np.random.default_rng([seed, 5, number])
        place = np.searchsorted(np.cumsum(values.share), rng.random(size) * (1.0 - 1e-12))
        whole = np.floor(values.value[np.minimum(place, values.value.size - 1)] + rng.random(size))
        return np.maximum(whole, 1.0)

    turns = drawn(0, sessions.turns, starts.size).astype(np.int64)
    first = np.cumsum(turns) - turns
    session = np.repeat(np.arange(starts.size), turns)
    place = np.arange(session.size) - first[session]
    user, answer = drawn(1, sessions.user, session.size), drawn(2, sessions.answer, session.size)
    uniform = np.random.default_rng([seed, 5, 3]).random(session.size)
    pause = np.interp(uniform, sessions.pause.share, sessions.pause.seconds)

    def sum_before(values: FloatArray) -> FloatArray:
        upto = np.cumsum(values) - values
        return np.asarray(upto - upto[first][session])

    isl = np.floor(sessions.system_prompt) + sum_before(user + answer) + user
    gaps = np.where(place > 0, pause + service, 0.0)
    arrival = starts[session] + sum_before(gaps) + gaps
    order = np.flatnonzero((isl + answer <= most) & (arrival >= begin) & (arrival <= max(starts[-1], begin + 1e-9)))
    order = order[np.argsort(arrival[order], kind="stable")][:count]
    number = np.full(session.size, -1, dtype=np.int64)
    number[order] = np.arange(order.size)
    after = np.where(place[order] > 0, number[order - 1], -1)
    trace = Trace(
        arrival=arrival[order] - arrival[order[0]],
        isl=isl[order].astype(np.int64),
        osl=answer[order].astype(np.int64),
        after=after,
        pause=np.where(place[order] > 0, pause[order], 0.0),
    )
    return trace, session[order].astype(np.int64)
