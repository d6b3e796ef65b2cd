"""The workload: how long requests are, how often they come, how bursty, how much prefix they share; and traces of it.

Distributions of lengths are made discrete, and fine histograms thinned to a few buckets. Every step replaces a set of
lengths by its conditional mean, so total share and mean lengths stay exact (to rounding); only spread inside a bucket
is lost, and the edges are laid where that loses least.

Of sessions, whose turns have prompts that grow as those of agents and chats do, the requests follow. The prompt of turn
k is the system prompt, all user tokens so far, and the answers to all turns before. A prefix cache can find what the
prompt of turn k - 1 was; answers count as new, as their KV is made elsewhere where roles are apart, and chat templates
write them anew.

A trace is the requests of one run, as recorded or drawn. Draws do not depend on the rate: times at rate r are the times
at rate 1 divided by r. So a bisection over rates compares like with like, and attainment falls with the rate almost
without noise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray, IntArray
from .errors import InputError
from .prefix_cache import Reuse, TimeDistribution

STANDARD_NORMAL = NormalDist()
FINE_CELLS = 1024
"""Cells of a continuous distribution before it is thinned; each has an exact mass and mean."""
TAIL = 0.99
"""Requests beyond this quantile of ISL or OSL get buckets of their own."""
RANK_WEIGHT = 0.25
"""Weight of the spread of ranks against that of lengths when buckets are cut: the lengths keep the second
moments, the ranks keep P(length > t). Assumed; benchmarks/make_examples.py prints what it gives."""
MAX_TAIL_SIGMA = 3.0
"""Steepest log-normal tail that may be extrapolated: beyond it the mean is ruled by lengths nobody stated."""
LONGEST_QUANTILE = 0.9999
"""Quantile that stands for the longest request of a distribution without a maximum; what lies beyond is one cell,
so that no bucket holds requests that a fleet will hardly ever see."""
FINE_REACH = (-6.5, STANDARD_NORMAL.inv_cdf(LONGEST_QUANTILE))
"""Normal scores of the outermost edges of the cells."""

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Buckets:
    """A joint ISL x OSL histogram: representative lengths [token] and share [1] of each bucket, shares sum to 1."""

    isl: FloatArray
    osl: FloatArray
    share: FloatArray


def whole_parts(parts: FloatArray) -> NDArray[np.int64]:
    """Whole numbers near parts of a whole, with the same sum: the largest remainders are rounded up.

    >>> whole_parts(np.array([2.5, 1.5, 1.0])).tolist()
    [3, 1, 1]
    """
    whole = np.floor(parts + 1e-9).astype(np.int64)
    short = round(float(parts.sum())) - int(whole.sum())
    whole[np.argsort(whole - parts, kind="stable")[:short]] += 1
    return whole


@dataclass(frozen=True, slots=True)
class Lengths:
    """A discrete distribution of one length: value [token], ascending, share [1], and the longest length [token]."""

    value: FloatArray
    share: FloatArray
    longest: float

    @property
    def mean(self) -> float:
        """Mean length [token]."""
        return float(self.share @ self.value)

    @classmethod
    def fixed(cls, tokens: float) -> Self:
        """Every request has `tokens` [token].

        >>> Lengths.fixed(512).mean
        512.0
        """
        return cls(np.array([float(tokens)]), np.array([1.0]), float(tokens))

    @classmethod
    def lognormal(cls, *, median: float, p99: float, maximum: float | None = None, buckets: int = 16) -> Self:
        """Log-normal lengths of a median and a 99th percentile [token]: ln x = ln median + sigma z, z standard normal.

        Lengths below 1 count as 1 and, if `maximum` [token] is given, those above it as `maximum` (as a serving
        engine cuts generation off); without clipping the mean, median x exp(sigma^2 / 2), is exact.

        >>> round(Lengths.lognormal(median=1000, p99=1000 * math.exp(STANDARD_NORMAL.inv_cdf(0.99))).mean, 3)
        1648.721
        """
        sigma = math.log(p99 / median) / STANDARD_NORMAL.inv_cdf(0.99)
        if sigma > MAX_TAIL_SIGMA:
            raise InputError(f"lognormal length: sigma {sigma:g} must lie between 0 and {MAX_TAIL_SIGMA:g}")
        origin, longest = np.array([math.log(median)]), math.inf if maximum is None else maximum
        return cls._discretised(
            np.array([]), origin=origin, slope=np.array([sigma]), shortest=1.0, longest=longest, buckets=buckets
        )

    @classmethod
    def from_quantiles(cls, quantiles: Mapping[float, float], buckets: int = 16) -> Self:
        """Lengths that pass through {probability: tokens}, e.g. {0.5: 600, 0.9: 2400, 0.99: 5500}.

        Between the quantiles given, ln x is linear in the normal score of the probability (a log-normal piece);
        the outer pieces go on with the slope of their neighbours. A quantile of 0 or 1 is the shortest or longest
        length: what lies beyond it counts as it.
        """
        knots = sorted((float(p), float(x)) for p, x in quantiles.items())
        for (p, x), (_, above) in zip(knots, [*knots[1:], (1.0, math.inf)], strict=True):
            if not 0 <= p <= 1:
                raise InputError(f"quantile {p:g} of the lengths must lie between 0 and 1 (0.99, not 99)")
            if above < x:
                raise InputError(f"quantile {p:g} of the lengths is {x:g}, above that of a larger quantile, {above:g}")
        inner = [(p, x) for p, x in knots if 0 < p < 1]
        if len(inner) < 2:
            raise InputError("quantiles of the lengths: at least two between 0 and 1 are needed, e.g. 0.5 and 0.99")
        score = np.array([STANDARD_NORMAL.inv_cdf(p) for p, _ in inner])
        log_length = np.log([x for _, x in inner])
        slope = np.diff(log_length) / np.diff(score)
        has_longest = knots[-1][0] == 1
        if not has_longest and slope[-1] > MAX_TAIL_SIGMA:
            raise InputError("quantiles of the lengths rise too steeply to extrapolate; give the longest as quantile 1")
        slope = slope[np.r_[0, np.arange(len(slope)), len(slope) - 1]]
        origin = log_length[np.r_[0, np.arange(len(score))]] - slope * score[np.r_[0, np.arange(len(score))]]
        shortest = knots[0][1] if knots[0][0] == 0 else 1.0
        longest = knots[-1][1] if has_longest else math.inf
        return cls._discretised(score, origin=origin, slope=slope, shortest=shortest, longest=longest, buckets=buckets)

    @classmethod
    def _discretised(
        cls, score: FloatArray, *, origin: FloatArray, slope: FloatArray, shortest: float, longest: float, buckets: int
    ) -> Self:
        """Thin a piecewise log-normal, ln x = origin + slope z between the normal scores, to `buckets` lengths.

        The mass of a cell (a, b) is Phi(b) - Phi(a) and its partial expectation
        exp(origin + slope^2/2) (Phi(b - slope) - Phi(a - slope)), both closed forms.
        """
        rising = slope > 0
        limits = [x for x in (shortest, longest) if math.isfinite(x)]
        bounds = np.ravel([(math.log(x) - origin[rising]) / slope[rising] for x in limits])
        bounds = bounds[(bounds >= FINE_REACH[0]) & (bounds <= FINE_REACH[1])]
        edges = np.unique(np.concatenate([[-np.inf, np.inf], np.linspace(*FINE_REACH, FINE_CELLS), score, bounds]))
        low, high = edges[:-1], edges[1:]
        piece = np.searchsorted(score, low, side="right")
        mass = _normal_mass(low, high)
        partial = np.exp(origin[piece] + slope[piece] ** 2 / 2) * _normal_mass(low - slope[piece], high - slope[piece])
        used = mass > 0
        value: FloatArray = np.clip(partial[used] / mass[used], shortest, longest)
        value = np.round(value, 9)  # so that equal lengths become one bucket
        thin = coarsen(value, np.ones_like(value), mass[used], buckets)
        top = math.exp(origin[-1] + slope[-1] * FINE_REACH[1])
        return cls(thin.isl, thin.share, longest if math.isfinite(longest) else max(top, float(thin.isl[-1])))


def joint(isl: Lengths, osl: Lengths, target_buckets: int = 48) -> Buckets:
    """Independent product of two length distributions, thinned to at most `target_buckets` buckets."""
    grid_isl = np.repeat(isl.value, osl.value.size)
    grid_osl = np.tile(osl.value, isl.value.size)
    return coarsen(grid_isl, grid_osl, np.outer(isl.share, osl.share).ravel(), target_buckets)


def coarsen(isl: FloatArray, osl: FloatArray, weight: FloatArray, target_buckets: int = 48) -> Buckets:
    """Merge the cells of a fine histogram into at most `target_buckets` rectangular buckets.

    isl, osl: exact mean lengths of each cell [token]; weight: requests in it, any positive scale.
    Buckets are cut in two again and again, always where the cut removes most of the weighted variance (of
    lengths, scaled by their second moments, and of ranks); the tails beyond the 99th percentiles are cut
    off first. Total share, mean ISL and mean OSL are kept exactly; the result is sorted and deterministic.
    """
    keep = weight > 0
    isl, osl, weight = isl[keep], osl[keep], weight[keep] / weight[keep].sum()
    features = _features(isl, osl, weight)
    axes = np.column_stack([isl, osl])
    groups = _tail_groups(axes, weight) if target_buckets >= 8 else [np.arange(isl.size)]
    queue = [_best_cut(group, axes, features, weight, order) for order, group in enumerate(groups)]
    heapq.heapify(queue)
    next_order = len(queue)
    while len(queue) < target_buckets and queue[0].loss < 0:
        worst = heapq.heappop(queue)
        for half in (worst.cells[: worst.split], worst.cells[worst.split :]):
            heapq.heappush(queue, _best_cut(half, axes, features, weight, next_order))
            next_order += 1
    return _representatives([cut.cells for cut in queue], isl, osl, weight)


class _Cut(NamedTuple):
    """The best way to cut one group of cells: less the variance that this removes, sorted cells, and where to split."""

    loss: float
    order: int
    cells: IndexArray
    split: int


def _features(isl: FloatArray, osl: FloatArray, weight: FloatArray) -> FloatArray:
    """Return what the cuts keep together, shape (cells, 4): lengths over their rms, ranks over their deviation."""
    columns = [values / math.sqrt(_total(weight * values**2)) for values in (isl, osl)]
    for values in (isl, osl):
        distinct, place = np.unique(values, return_inverse=True)
        mass = np.bincount(place, weights=weight, minlength=distinct.size)
        rank = (np.cumsum(mass) - mass / 2)[place]  # share below each value, those at the value itself counted half
        rank -= _total(weight * rank)
        deviation = math.sqrt(_total(weight * rank**2))
        columns.append(rank * math.sqrt(RANK_WEIGHT) / deviation if deviation > 1e-12 else np.zeros_like(rank))
    return np.column_stack(columns)


def _tail_groups(axes: FloatArray, weight: FloatArray) -> list[IndexArray]:
    """Part the cells into the body and the tails of ISL and of OSL; empty parts are left out."""
    beyond = []
    for values in axes.T:
        order = np.argsort(values, kind="stable")
        edge = int(np.searchsorted(np.cumsum(weight[order]), TAIL))
        beyond.append(values > values[order[min(edge, order.size - 1)]])
    regions = (~beyond[0] & ~beyond[1], ~beyond[0] & beyond[1], beyond[0])
    return [np.flatnonzero(region) for region in regions if region.any()]


def _best_cut(cells: IndexArray, axes: FloatArray, features: FloatArray, weight: FloatArray, order: int) -> _Cut:
    """Return the cut, along ISL or OSL, that removes most weighted variance of the features from `cells`."""
    best = _Cut(0.0, order, cells, cells.size)
    for values in axes.T:
        sorted_cells = cells[np.argsort(values[cells], kind="stable")]
        cuts = np.flatnonzero(np.diff(values[sorted_cells]) > 0) + 1
        if not cuts.size:
            continue
        mass = weight[sorted_cells]
        centre = (mass[:, None] * features[sorted_cells]).sum(axis=0) / mass.sum()
        moment = np.cumsum(mass[:, None] * (features[sorted_cells] - centre), axis=0)[cuts - 1]
        lower_mass, upper_mass = np.cumsum(mass)[cuts - 1], np.cumsum(mass[::-1])[::-1][cuts]
        # With the mean at 0 both halves carry the same moment, of opposite sign.
        gains = (moment**2).sum(axis=1) * (1 / lower_mass + 1 / upper_mass)
        place = int(np.argmax(gains))
        if gains[place] > -best.loss:
            best = _Cut(-float(gains[place]), order, sorted_cells, int(cuts[place]))
    return best


def _representatives(groups: list[IndexArray], isl: FloatArray, osl: FloatArray, weight: FloatArray) -> Buckets:
    share = np.array([weight[group].sum() for group in groups])
    # Rounded, so that lengths that are equal stay equal and sort the same everywhere.
    mean_isl = np.round(np.array([_total(weight[group] * isl[group]) for group in groups]) / share, 9)
    mean_osl = np.round(np.array([_total(weight[group] * osl[group]) for group in groups]) / share, 9)
    order = np.lexsort((mean_osl, mean_isl))
    return Buckets(mean_isl[order], mean_osl[order], share[order] / share.sum())


def _normal_mass(low: FloatArray, high: FloatArray) -> FloatArray:
    """Return Phi(high) - Phi(low), taken from the nearer tail so that far cells keep their digits."""
    flip = low > 0
    near, far = np.where(flip, -high, low), np.where(flip, -low, high)
    cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), otypes=[np.float64])
    return np.asarray(cdf(far) - cdf(near), dtype=np.float64)


def _total(values: FloatArray) -> float:
    """Return the sum; unlike a dot product of the linear-algebra library it does not depend on the number of cores."""
    return float(values.sum())


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
    >>> agents = Sessions(Lengths.fixed(2), fixed(5.0), 1000.0, Lengths.fixed(300), Lengths.fixed(100))
    >>> buckets, reuse = requests_of(agents)
    >>> buckets.isl.tolist(), reuse.history.tolist(), reuse.followed.tolist()
    ([1300.0, 1700.0], [0.0, 300.0], [0.5])
    """
    reach = sessions.reach()
    turn, mean = np.arange(reach.size), float(reach.sum())
    before = reach[1:].cumsum() / max(float(reach[1:].sum()), 1e-300) * (TURN_GROUPS - 1)
    group = np.concatenate([[0], 1 + np.minimum(np.ceil(before - 1e-9), TURN_GROUPS - 1)]).astype(np.int64)
    new = joint(sessions.user, sessions.answer, TURN_BUCKETS)
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
