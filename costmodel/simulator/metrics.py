"""What a run means: percentiles, attainment with its uncertainty, load of the engines, whether the fleet keeps up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError

from .fleet import Fleet
from .result import Result

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

BATCHES = 20
"""Batches whose means give the confidence interval: requests that follow each other share their fate."""
STUDENT = 2.093
"""97.5 % quantile of Student's t with BATCHES - 1 degrees of freedom."""
NORMAL = 1.96
"""97.5 % quantile of the normal distribution."""
TAIL = 0.025
"""Chance that the share lies below an interval, and as much that it lies above, where nothing else is said."""
WARM_UP = 0.1
"""Share of the first arrivals that do not count, where nothing else is said."""
GROWTH = 0.02
"""Share of the arrivals that may pile up, and seconds of delay added per second, before a fleet counts as overloaded;
assumed: less cannot be told from chance in a run of some thousand requests."""
CHANCE = 2.0
"""Of n requests of a part, more than this times sqrt(n) must pile up: about the spread of their number after n arrivals
where work comes as fast as it is done (Poisson: sqrt(2 n)). A queue that keeps up over a run of 40 of its relaxation
times, 2 rho / (1 - rho)^2 requests each, is then many times shorter."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits of one class [s]; infinity where there is none."""

    ttft: float = math.inf
    tpot: float = math.inf
    e2e: float = math.inf


@dataclass(frozen=True, slots=True)
class Attainment:
    """Share of requests within their SLO [1], its 95 % confidence interval, and how many requests it counts."""

    share: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Overload:
    """Whether the fleet falls behind its arrivals.

    growth: requests in the system that piled up, as a share of arrivals [1]; drift: seconds of delay added per second;
    where: the part of the delay that grows fastest (queue, prefill, transfer or decode).
    """

    overloaded: bool
    growth: float
    drift: float
    where: str


@dataclass(frozen=True, slots=True)
class Load:
    """Of one engine over the run.

    utilization: busy share of its lanes' time [1]; kv_occupancy: share of KV blocks in use (0 if unlimited) [1];
    mfu, mbu: arithmetic and HBM traffic that its steps need at least, as shares of the peaks of its GPUs over all of
    the time (0 for step models without a roofline) [1].
    """

    utilization: float
    kv_occupancy: float
    mfu: float
    mbu: float


def steady(result: Result, warm_up: float = WARM_UP, cool_down: float = 0.0) -> BoolArray:
    """Which requests count: all but the first `warm_up` and the last `cool_down` shares of arrivals."""
    if not 0 <= warm_up + cool_down < 1:
        raise InputError(f"warm-up {warm_up} and cool-down {cool_down} must leave some requests: their sum is below 1")
    place = np.arange(result.trace.size) / result.trace.size
    return np.asarray((place >= warm_up) & (place < 1.0 - cool_down))


def percentiles(values: FloatArray, shares: tuple[float, ...] = (0.5, 0.9, 0.99)) -> tuple[float, ...]:
    """Percentiles, linear between order statistics; infinity where a request never got that far (NaN)."""
    known = np.sort(np.where(np.isnan(values), np.inf, values))
    if not known.size:
        return tuple(math.nan for _ in shares)
    found = []
    for share in shares:
        place = share * (known.size - 1)
        low, high = known[math.floor(place)], known[math.ceil(place)]
        found.append(float(low if low == high else low + (high - low) * (place - math.floor(place))))
    return tuple(found)


def within(result: Result, slo: Slo) -> BoolArray:
    """Which requests meet all limits; one that never ended or was rejected meets none. A single token has no TPOT."""
    tpot = np.where(result.trace.osl > 1, result.tpot, 0.0)
    return np.asarray(
        result.finished & (result.ttft <= slo.ttft) & (tpot <= slo.tpot * (1.0 + 1e-12)) & (result.e2e <= slo.e2e)
    )


def attainment(result: Result, slo: Slo, counted: BoolArray | None = None) -> Attainment:
    """Share of the counted requests within the SLO, with the wider of two 95 % intervals: batch means and Wilson's.

    Batch means see that neighbours share a queue; Wilson's sees that a share of exactly 1 was not proven.
    """
    good = within(result, slo)[steady(result) if counted is None else counted].astype(np.float64)
    return share_of(good)


def share_of(good: FloatArray, tail: float = TAIL) -> Attainment:
    """Mean of 0/1 outcomes in order of time, with its interval; tail: chance that it lies beyond either end.

    >>> share_of(np.ones(1000)).high, round(share_of(np.ones(1000)).low, 3)
    (1.0, 0.996)
    """
    count = good.size
    if not count:
        return Attainment(math.nan, 0.0, 1.0, 0)
    share = float(good.mean())
    normal, student = widths(tail)
    wide = normal**2 / count
    middle = (share + wide / 2.0) / (1.0 + wide)
    half = math.sqrt(share * (1.0 - share) * wide + wide**2 / 4.0) / (1.0 + wide)
    low, high = middle - half, middle + half
    if count >= 2 * BATCHES:
        means = [float(batch.mean()) for batch in np.array_split(good, BATCHES)]
        spread = student * float(np.std(means, ddof=1)) / math.sqrt(BATCHES)
        low, high = min(low, share - spread), max(high, share + spread)
    return Attainment(share, max(0.0, low), min(1.0, high), count)


def widths(tail: float) -> tuple[float, float]:
    """Quantiles at 1 - tail of the normal distribution and of Student's t with BATCHES - 1 degrees of freedom.

    Of t by the expansion in 1 / degrees of freedom (Abramowitz and Stegun 26.7.5), to 0.5 % down to tails of 1e-4.

    >>> [round(value, 2) for value in widths(0.0125)]
    [2.24, 2.43]
    """
    if tail == TAIL:
        return NORMAL, STUDENT
    z, n = NormalDist().inv_cdf(1.0 - tail), BATCHES - 1.0
    terms = (
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
    )
    return z, z + sum(term / n**k for k, term in enumerate(terms, start=1))


def overload(result: Result, part: BoolArray | None = None) -> Overload:
    """Whether requests pile up: both their number in the system and their delay grow over the time of arrivals.

    growth = (in system at the last arrival - at a quarter of the time) / arrivals in between; drift: least-squares
    slope of the end-to-end time over the arrival time. part: only of these requests, which must pile up by more than
    CHANCE too.
    """
    arrival = result.arrival
    end = float(arrival.max())
    quarter = float(arrival.min()) + 0.25 * (end - float(arrival.min()))
    finish = np.where(result.finished, result.finish, np.inf)
    mine = np.ones(arrival.size, dtype=np.bool_) if part is None else part
    inside = [int((mine & (arrival <= t)).sum() - (mine & (finish <= t)).sum()) for t in (quarter, end)]
    came = max(1, int((mine & (arrival > quarter)).sum()))
    growth = (inside[1] - inside[0]) / came
    permitted = GROWTH if part is None else max(GROWTH, CHANCE / math.sqrt(came))
    late = mine & (arrival >= quarter) & result.finished
    decode = result.e2e - result.queue - result.prefill - result.transfer
    parts = {"queue": result.queue, "prefill": result.prefill, "transfer": result.transfer, "decode": decode}
    slopes = {name: _slope(arrival[late], part[late]) for name, part in parts.items()}
    drift = _slope(arrival[late], result.e2e[late])
    where = max(slopes, key=lambda name: slopes[name])
    return Overload(growth > permitted and drift > GROWTH, growth, drift, where)


def _slope(x: FloatArray, y: FloatArray) -> float:
    spread = x - x.mean() if x.size else x
    square = float(spread @ spread)
    return float(spread @ (y - y.mean())) / square if square > 0 else 0.0


def run_span(result: Result) -> float:
    """Time from the first arrival to the last token [s]; 0 where no request ended."""
    return max(0.0, result.makespan - float(result.arrival.min()))


def loads(result: Result, fleet: Fleet) -> tuple[Load, ...]:
    """How busy each engine was from the first arrival to the last token."""
    span, work = run_span(result), result.work
    pools = [fleet.pools[engine.pool] for engine in result.engines]
    parts = (
        (work.busy_seconds, np.array([pool.pipeline for pool in pools])),
        (work.kv_block_seconds, np.array([pool.limits.kv_blocks for pool in pools])),
        (work.flop, work.peak_flops),
        (work.hbm_bytes, work.hbm_bandwidth),
    )
    shares = [np.divide(used, room * span, out=np.zeros(len(pools)), where=room * span > 0.0) for used, room in parts]
    return tuple(Load(*(float(value) for value in row)) for row in zip(*shares, strict=True))


def throughput(result: Result) -> tuple[float, float]:
    """Requests and output tokens ended per second, from the first arrival to the last token [1/s]."""
    span = run_span(result)
    done = result.finished
    return (float(done.sum()) / span, float(result.trace.osl[done].sum()) / span) if span > 0 else (0.0, 0.0)


def steady_throughput(result: Result, ends: float = 0.1) -> tuple[float, float]:
    """Requests and output tokens ended per second [1/s] between the first and the last `ends` share of those that end.

    So neither the filling of the fleet nor its emptying counts; beyond saturation it is what the fleet can do.
    """
    done = np.flatnonzero(result.finished)
    order = done[np.argsort(result.finish[done], kind="stable")]
    low, high = int(ends * order.size), order.size - 1 - int(ends * order.size)
    span = float(result.finish[order[high]] - result.finish[order[low]]) if high > low else 0.0
    if span <= 0.0:
        return throughput(result)
    return (high - low) / span, float(result.trace.osl[order[low + 1 : high + 1]].sum()) / span
