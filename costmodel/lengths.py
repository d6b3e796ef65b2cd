"""Length distributions made discrete: named ones, and fine histograms thinned to a few buckets.

Every step replaces a set of lengths by its conditional mean, so total share and mean lengths stay exact
(to rounding); only spread inside a bucket is lost, and the edges are laid where that loses least.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError

from .arrays import FloatArray

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


def fixed(tokens: float) -> Lengths:
    """Every request has `tokens` [token].

    >>> fixed(512).mean
    512.0
    """
    _positive("fixed length", tokens)
    return Lengths(np.array([float(tokens)]), np.array([1.0]), float(tokens))


def lognormal(*, median: float, p99: float, maximum: float | None = None, buckets: int = 16) -> Lengths:
    """Log-normal lengths of a median and a 99th percentile [token]: ln x = ln median + sigma z, z standard normal.

    Lengths below 1 count as 1 and, if `maximum` [token] is given, those above it as `maximum` (as a serving
    engine cuts generation off); without clipping the mean, median x exp(sigma^2 / 2), is exact.

    >>> round(lognormal(median=1000, p99=1000 * math.exp(STANDARD_NORMAL.inv_cdf(0.99))).mean, 3)
    1648.721
    """
    _positive("lognormal length: median", median)
    if not p99 >= median:
        raise InputError(f"lognormal length: p99 {p99:g} must not be below the median {median:g}")
    sigma = math.log(p99 / median) / STANDARD_NORMAL.inv_cdf(0.99)
    if sigma > MAX_TAIL_SIGMA:
        raise InputError(f"lognormal length: sigma {sigma:g} must lie between 0 and {MAX_TAIL_SIGMA:g}")
    origin, longest = np.array([math.log(median)]), math.inf if maximum is None else maximum
    return _discretise(
        np.array([]), origin=origin, slope=np.array([sigma]), shortest=1.0, longest=longest, buckets=buckets
    )


def from_quantiles(quantiles: Mapping[float, float], buckets: int = 16) -> Lengths:
    """Lengths that pass through {probability: tokens}, e.g. {0.5: 600, 0.9: 2400, 0.99: 5500}.

    Between the quantiles given, ln x is linear in the normal score of the probability (a log-normal piece);
    the outer pieces go on with the slope of their neighbours. A quantile of 0 or 1 is the shortest or longest
    length: what lies beyond it counts as it.
    """
    knots = sorted((float(p), float(x)) for p, x in quantiles.items())
    for (p, x), (_, above) in zip(knots, [*knots[1:], (1.0, math.inf)], strict=True):
        _positive(f"quantile {p:g} of the lengths", x)
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
    return _discretise(score, origin=origin, slope=slope, shortest=shortest, longest=longest, buckets=buckets)


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
    while len(queue) < target_buckets and queue[0].gain > 0:
        worst = heapq.heappop(queue)
        for half in (worst.cells[: worst.split], worst.cells[worst.split :]):
            heapq.heappush(queue, _best_cut(half, axes, features, weight, next_order))
            next_order += 1
    return _representatives([cut.cells for cut in queue], isl, osl, weight)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The best way to cut one group of cells: sorted cells, where to split, and the variance that this removes."""

    gain: float
    order: int
    cells: IndexArray
    split: int

    def __lt__(self, other: _Cut) -> bool:
        return (-self.gain, self.order) < (-other.gain, other.order)


def _features(isl: FloatArray, osl: FloatArray, weight: FloatArray) -> FloatArray:
    """Return what the cuts keep together, shape (cells, 4): lengths over their rms, ranks over their deviation."""
    columns = [values / math.sqrt(_total(weight * values**2)) for values in (isl, osl)]
    for values in (isl, osl):
        rank = _ranks(values, weight)
        rank -= _total(weight * rank)
        deviation = math.sqrt(_total(weight * rank**2))
        columns.append(rank * math.sqrt(RANK_WEIGHT) / deviation if deviation > 1e-12 else np.zeros_like(rank))
    return np.column_stack(columns)


def _ranks(values: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the share of requests [1] below each value, those at the value itself counted half."""
    distinct, place = np.unique(values, return_inverse=True)
    mass = np.bincount(place, weights=weight, minlength=distinct.size)
    return np.asarray((np.cumsum(mass) - mass / 2)[place], dtype=np.float64)


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
        if gains[place] > best.gain:
            best = _Cut(float(gains[place]), order, sorted_cells, int(cuts[place]))
    return best


def _representatives(groups: list[IndexArray], isl: FloatArray, osl: FloatArray, weight: FloatArray) -> Buckets:
    share = np.array([weight[group].sum() for group in groups])
    # Rounded, so that lengths that are equal stay equal and sort the same everywhere.
    mean_isl = np.round(np.array([_total(weight[group] * isl[group]) for group in groups]) / share, 9)
    mean_osl = np.round(np.array([_total(weight[group] * osl[group]) for group in groups]) / share, 9)
    order = np.lexsort((mean_osl, mean_isl))
    return Buckets(mean_isl[order], mean_osl[order], share[order] / share.sum())


def _discretise(
    score: FloatArray, *, origin: FloatArray, slope: FloatArray, shortest: float, longest: float, buckets: int
) -> Lengths:
    """Thin a piecewise log-normal, ln x = origin + slope z between the normal scores, to `buckets` lengths.

    The mass of a cell (a, b) is Phi(b) - Phi(a) and its partial expectation
    exp(origin + slope^2/2) (Phi(b - slope) - Phi(a - slope)), both closed forms.
    """
    shortest = max(shortest, 1.0)
    if not longest >= shortest:
        raise InputError(f"lengths: the maximum {longest:g} must not be below {shortest:g} tokens")
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
    return Lengths(thin.isl, thin.share, longest if math.isfinite(longest) else max(top, float(thin.isl[-1])))


def _normal_mass(low: FloatArray, high: FloatArray) -> FloatArray:
    """Return Phi(high) - Phi(low), taken from the nearer tail so that far cells keep their digits."""
    flip = low > 0
    near, far = np.where(flip, -high, low), np.where(flip, -low, high)
    cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), otypes=[np.float64])
    return np.asarray(cdf(far) - cdf(near), dtype=np.float64)


def _total(values: FloatArray) -> float:
    """Return the sum; unlike a dot product of the linear-algebra library it does not depend on the number of cores."""
    return float(values.sum())


def _positive(label: str, tokens: float) -> None:
    if not (math.isfinite(tokens) and tokens >= 1):
        raise InputError(f"{label} is {tokens:g}, it must be a finite number of at least 1 token")
