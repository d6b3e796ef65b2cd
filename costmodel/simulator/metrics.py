"""What a run means: percentiles, attainment with its uncertainty, load of the engines, whether the fleet keeps up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.errors import PdplanError
from costmodel.metric import GAP_SHARE, METRICS, Metric
from costmodel.workload import Trace

from .fleet import EngineUse

BATCHES = 32
"""Batches whose means give the confidence interval, of all runs together: requests that follow each other share their
fate. Skart ends with as many at least before it trusts their skewness (Tafazzoli, Steiger and Wilson 2011)."""
ALIKE = 0.8
"""Correlation of neighbouring batches beyond which no more is read off so few [1]: variances are then 9 times as large
already, and the run is far too short."""
TAIL = 0.025
"""Chance that the share lies below an interval, and as much that it lies above, where nothing else is said."""
EDGES_BELOW, EDGES_ABOVE, EDGE_STEP = 8.0, 4.0, 0.05
"""How far below and above the limits gaps are told apart, and how finely [1]; assumed: step times are off by more."""
WARM_UP = 0.1
"""Share of the first arrivals that do not count, where nothing else is said."""
GROWTH = 0.02
"""Share of the arrivals that may pile up, and seconds of delay added per second, before a fleet counts as overloaded;
assumed: less cannot be told from chance in a run of some thousand requests."""
CHANCE = 2.0
"""Of n requests of a part, more than this times sqrt(n) must pile up: about the spread of their number after n arrivals
where work comes as fast as it is done (Poisson: sqrt(2 n)). A queue that keeps up over a run of 40 of its relaxation
times, 2 rho / (1 - rho)^2 requests each, is then many times shorter."""


@dataclass(frozen=True)
class Result:
    """Times per request [s], in order of arrival; NaN where the request did not get that far.

    arrival (of a closed loop: as it came about), prompt_start: its first step begins; prompt_end: its prompt is
    computed; moved: its KV has arrived at the decode engine (NaN if it never moves); first, finish: the engine has its
    first and last token; late: by how much later clients have them, and fixed_ttft: the part of it that is no matter of
    the prompt (`SimulatedPool.fixed_ttft`); itl_max: longest gap between two tokens; gap_edges [s]: lengths at which
    gaps were counted, and gap_counts (requests, edges): gaps that exceed so many of them, one to all; restarts:
    preemptions of the request; engine, decode_engine: index into `engines` (-1: none); hit: prompt tokens found in a
    prefix cache, and tier: of these, those read from the tier below GPU memory [token]. steps_log: rows of (lane,
    start, end, prompt tokens, decodes, context, steps).
    """

    trace: Trace
    arrival: FloatArray
    prompt_start: FloatArray
    prompt_end: FloatArray
    moved: FloatArray
    first: FloatArray
    finish: FloatArray
    late: FloatArray
    fixed_ttft: FloatArray
    itl_max: FloatArray
    gap_edges: FloatArray
    gap_counts: IntArray
    restarts: IntArray
    engine: IntArray
    decode_engine: IntArray
    hit: IntArray
    tier: IntArray
    engines: tuple[EngineUse, ...]
    events: int
    steps_log: FloatArray

    @cached_property
    def finished(self) -> NDArray[np.bool_]:
        """Which requests have their last token."""
        return np.isfinite(self.finish)

    @cached_property
    def ttft(self) -> FloatArray:
        """Arrival to first token [s]."""
        return self.first - self.arrival + self.late

    @cached_property
    def e2e(self) -> FloatArray:
        """Arrival to last token [s]."""
        return self.finish - self.arrival + self.late

    @cached_property
    def normalized_latency(self) -> FloatArray:
        """e2e / OSL [s per token] (Yu et al. 2022, Orca; Kwon et al. 2023, vLLM)."""
        return self.e2e / self.trace.osl

    @cached_property
    def tpot(self) -> FloatArray:
        """(last - first token) / (OSL - 1) [s]; NaN for a single token."""
        gaps = np.where(self.trace.osl > 1, self.trace.osl - 1.0, np.nan)
        return (self.finish - self.first) / gaps

    @cached_property
    def itl_p99(self) -> FloatArray:
        """The least length that 99 % of a request's own gaps between tokens keep [s]; NaN for a single token.

        Of fewer than 100 gaps it is the longest. Else it is rounded up to the next of `gap_edges`, or to the longest.
        Raises PdplanError where a request has more and no gaps were counted.
        """
        gaps = self.trace.osl - 1
        gap_allowance = ((1.0 - GAP_SHARE) * gaps + 1e-9).astype(np.int64)
        if not self.gap_edges.size and gap_allowance.any():
            raise PdplanError("simulator: ITL p99 needs gap_edges, the lengths at which gaps are counted")
        over = np.cumsum(self.gap_counts[:, ::-1], axis=1)[:, ::-1]
        edges = np.append(self.gap_edges, np.inf)
        least = edges[(over > gap_allowance[:, None]).sum(axis=1)]
        p99 = np.where(gap_allowance > 0, np.minimum(self.itl_max, least), self.itl_max)
        return np.where((gaps > 0) & self.finished, p99, np.nan)

    @cached_property
    def queue(self) -> FloatArray:
        """Arrival to the first step of the prompt [s]."""
        return self.prompt_start - self.arrival

    @cached_property
    def prefill(self) -> FloatArray:
        """First step of the prompt to its end, and by how much longer its first token takes [s]."""
        return self.prompt_end - self.prompt_start + self.late - self.fixed_ttft

    @cached_property
    def transfer(self) -> FloatArray:
        """End of the prompt to arrival of its KV at the decode engine [s]; 0 where nothing moves."""
        return np.where(np.isnan(self.moved), 0.0, self.moved - self.prompt_end)

    @property
    def steps(self) -> int:
        """Steps of all engines."""
        return sum(engine.content.steps for engine in self.engines)


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
    where: the part of the delay that grows fastest (queue, prefill, transfer or decode), "" where none does.
    """

    overloaded: bool
    growth: float
    drift: float
    where: str


def steady(result: Result, warm_up: float = WARM_UP) -> BoolArray:
    """Which requests count: all but the first `warm_up` share of arrivals.

    Turns whose turn before is not in the run do not count either: they find nothing because the run begins there.
    """
    trace = result.trace
    counts = np.arange(trace.size) / trace.size >= warm_up
    if trace.after is not None and trace.pause is not None:
        counts &= (trace.after >= 0) | (trace.pause == 0.0)
    return np.asarray(counts)


def percentiles(values: FloatArray, shares: tuple[float, ...]) -> tuple[float, ...]:
    """Percentiles, linear between order statistics; infinity where a request never got that far (NaN)."""
    sorted_values = np.sort(np.where(np.isnan(values), np.inf, values))
    if not sorted_values.size:
        return tuple(math.nan for _ in shares)
    values_at = []
    for share in shares:
        place = share * (sorted_values.size - 1)
        low, high = sorted_values[math.floor(place)], sorted_values[math.ceil(place)]
        values_at.append(float(low if low == high else low + (high - low) * (place - math.floor(place))))
    return tuple(values_at)


def gap_edges(limits: Iterable[float]) -> tuple[float, ...]:
    """Lengths at which gaps are counted so that ITL p99 is judged by these limits [s]; none without any.

    The limits themselves, so that the verdict is exact, and between an eighth of the least and four times the greatest
    as many as make them 5 % apart, for what is shown.

    >>> len(gap_edges([0.1])), len(gap_edges([])), 0.1 in gap_edges([0.1])
    (74, 0, True)
    """
    exact = sorted(set(limits))
    if not exact:
        return ()
    low, high = exact[0] / EDGES_BELOW, exact[-1] * EDGES_ABOVE
    number = math.ceil(math.log(high / low) / math.log1p(EDGE_STEP)) + 1
    return tuple(sorted({*exact, *np.geomspace(low, high, number).tolist()}))


def measured(result: Result, metric: Metric) -> FloatArray:
    """A metric of each request [s]; NaN where it never got that far, and 0 where it has too few tokens for one."""
    values: FloatArray = getattr(result, metric)
    return np.where(result.finished & np.isnan(values), 0.0, values)


def within(result: Result, limits: Mapping[Metric, float]) -> BoolArray:
    """Which requests keep all limits; one that never ended or was rejected keeps none. A single token has no TPOT."""
    good = result.finished.copy()
    for metric, limit in limits.items():
        good &= measured(result, metric) <= limit * (1.0 + METRICS[metric].rounding)
    return good


def share_of(runs: Sequence[BoolArray | FloatArray], tail: float = TAIL) -> Attainment:
    """Share of 0/1 outcomes, of one or more runs in order of time each, with the wider of two intervals.

    tail: chance that the share lies beyond either end [1]. Wilson's interval sees that a share of exactly 1 was not
    proven; that of batch means (`batch_ends`) that neighbours share a queue, and that runs may differ. Of no outcome at
    all the share is 1, for none is bad, and the interval is everything.

    >>> share_of([np.ones(1000)]).high, round(share_of([np.ones(1000)]).low, 3)
    (1.0, 0.996)
    """
    outcomes = [np.asarray(run, dtype=np.float64) for run in runs if len(run)]
    count = sum(run.size for run in outcomes)
    if not count:
        return Attainment(1.0, 0.0, 1.0, 0)
    share = math.fsum(float(run.sum()) for run in outcomes) / count
    wide = NormalDist().inv_cdf(1.0 - tail) ** 2 / count
    middle = (share + wide / 2.0) / (1.0 + wide)
    half = math.sqrt(share * (1.0 - share) * wide + wide**2 / 4.0) / (1.0 + wide)
    low, high = batch_ends(outcomes, share, tail)
    return Attainment(share, max(0.0, min(low, middle - half)), min(1.0, max(high, middle + half)), count)


def batch_ends(runs: Sequence[FloatArray], share: float, tail: float) -> tuple[float, float]:
    """Ends of an interval about the mean of all outcomes from the means of B = BATCHES batches in order of time.

    share -+ G(t) s sqrt(A / B), with s the standard deviation of the means about the share of all runs, t Student's
    quantile with B - 1 degrees of freedom, and two corrections of Skart (Tafazzoli, Steiger and Wilson 2011):
    A = (1 + r) / (1 - r) for neighbours in a run that are still correlated by r, as in an autoregressive process; and
    G(t) = ((1 + 6 b (t - b))^(1/3) - 1) / (2 b), b = skewness / (6 sqrt(B)), for means that are skewed (Willink 2005),
    as those of a share near 1 with a few bad spells are; no end comes nearer for a skewness that few batches happen to
    have. Runs that differ make all their batches lie on one side of the
    share, which is correlation too. Both ends are the share where outcomes are too few for batches or all alike.

    >>> spells = np.repeat([1.0, 0.0, 1.0], [900, 20, 80])
    >>> [round(end, 3) for end in batch_ends([spells], 0.98, 0.025)]
    [0.798, 1.029]
    """
    number = max(BATCHES // len(runs), 1)
    if number * len(runs) < 2 or min(run.size for run in runs) < 2 * number:
        return share, share
    means = np.array([[float(batch.mean()) for batch in np.array_split(run, number)] for run in runs])
    off, count = means - share, means.size
    square = float((off**2).sum())
    if square <= 0.0:
        return share, share
    error = math.sqrt(square / (count - 1) * _correlation_factor(off) / count)
    bent = float((off**3).sum()) / count / (square / count) ** 1.5 / (6.0 * math.sqrt(count))
    student = student_quantile(1.0 - tail, count - 1)
    down, up = max(student, _bent(student, bent)), max(student, -_bent(-student, bent))
    return share - down * error, share + up * error


def _correlation_factor(off: FloatArray) -> float:
    """Factor on the variance of the mean for batches (runs, batches) that are correlated with the next of their run.

    The estimate of r is low by (1 + 3 r) / B on average (Marriott and Pope 1954).
    """
    if off.shape[1] < 2:
        return 1.0
    neighbours = float((off[:, :-1] * off[:, 1:]).mean()) / float((off**2).mean())
    alike = min(max(neighbours + (1.0 + 3.0 * max(neighbours, 0.0)) / off.size, 0.0), ALIKE)
    return (1.0 + alike) / (1.0 - alike)


def _bent(quantile: float, bent: float) -> float:
    """Willink's G: the quantile of a skewed Student's t; bent: skewness / (6 sqrt(B))."""
    if abs(bent) < 1e-6:
        return quantile
    return float(np.cbrt(1.0 + 6.0 * bent * (quantile - bent)) - 1.0) / (2.0 * bent)


def student_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t, by the expansion in 1 / degrees of freedom (Abramowitz and Stegun 26.7.5).

    To 0.5 % from 19 degrees of freedom and tails of 1e-4 on.

    >>> [round(student_quantile(share, 19), 2) for share in (0.975, 0.9875)]
    [2.09, 2.43]
    """
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
    )
    return z + sum(term / freedom**k for k, term in enumerate(terms, start=1))


def overload(results: Sequence[Result], subsets: Sequence[BoolArray] | None = None) -> Overload:
    """Whether requests pile up over all runs: both their number in the system and their delay grow while they come.

    growth = (in system at the last arrival - at a quarter of the time) / arrivals in between, each summed over the
    runs; drift: least-squares slope of the end-to-end time over the arrival time, one for all runs. So chance matters
    less in several runs than in one. subsets: only these requests of each run count, and they must also pile up by more
    than CHANCE.
    """
    masks = subsets or [np.ones(result.arrival.size, dtype=np.bool_) for result in results]
    pairs = list(zip(results, masks, strict=True))
    backlogs = [piled_up(result, result.arrival[mask], result.finish[mask]) for result, mask in pairs]
    backlog, came = np.sum(backlogs, axis=0).tolist()
    growth = backlog / max(came, 1)
    growth_limit = GROWTH if subsets is None else max(GROWTH, CHANCE / math.sqrt(max(came, 1)))
    piling = growth > growth_limit
    drift = _slope(results, masks, lambda result: result.e2e) if piling or subsets is None else 0.0
    if not (piling and drift > GROWTH):
        return Overload(overloaded=False, growth=growth, drift=drift, where="")
    where = max(STAGES, key=lambda name: _slope(results, masks, STAGES[name]))
    return Overload(overloaded=True, growth=growth, drift=drift, where=where)


def _quarter(result: Result) -> float:
    """When a quarter of the time of arrivals is over [s]."""
    return 0.75 * float(result.arrival.min()) + 0.25 * last_start(result)


def last_start(result: Result) -> float:
    """When the last request came by itself [s]; turns of sessions that come later are only the rest of them."""
    after = result.trace.after
    return float((result.arrival if after is None else result.arrival[after < 0]).max())


def piled_up(result: Result, came: FloatArray, left: FloatArray) -> tuple[int, int]:
    """Requests that piled up after the first quarter of the time, and those that came then.

    came, left: when requests came to what is looked at, and when they left it [s]; NaN: never.
    """
    times = _quarter(result), last_start(result)
    inside = [int((came <= t).sum() - (left <= t).sum()) for t in times]
    return inside[1] - inside[0], int(((came > times[0]) & (came <= times[1])).sum())


def _slope(results: Sequence[Result], masks: Sequence[BoolArray], delay: Callable[[Result], FloatArray]) -> float:
    """Least-squares slope of a delay over the arrival time, one for all runs."""
    rise, square = 0.0, 0.0
    for result, mask in zip(results, masks, strict=True):
        late = mask & (result.arrival >= _quarter(result)) & result.finished
        arrival = result.arrival[late]
        spread = arrival - arrival.mean() if arrival.size else arrival
        rise, square = rise + float(spread @ delay(result)[late]), square + float(spread @ spread)
    return rise / square if square > 0.0 else 0.0


STAGES: Final[Mapping[str, Callable[[Result], FloatArray]]] = {
    "queue": lambda result: result.queue,
    "prefill": lambda result: result.prefill,
    "transfer": lambda result: result.transfer,
    "decode": lambda result: result.e2e - result.fixed_ttft - result.queue - result.prefill - result.transfer,
}
"""Delays of the stages of a request [s]."""


def run_span(result: Result) -> float:
    """Time from the first arrival to the last token [s]; 0 where no request ended."""
    return max(0.0, float(result.finish[result.finished].max(initial=0.0)) - float(result.arrival.min()))


def throughput(result: Result) -> tuple[float, float]:
    """Requests and output tokens ended per second, from the first arrival to the last token [1/s]."""
    span = run_span(result)
    mask = result.finished
    return (float(mask.sum()) / span, float(result.trace.osl[mask].sum()) / span) if span > 0 else (0.0, 0.0)


def steady_throughput(result: Result) -> tuple[float, float]:
    """Requests and output tokens ended per second [1/s] between the first and the last tenth of those that end.

    So neither the filling of the fleet nor its emptying counts; beyond saturation it is what the fleet can do.
    """
    indices = np.flatnonzero(result.finished)
    order = indices[np.argsort(result.finish[indices], kind="stable")]
    low, high = int(0.1 * order.size), order.size - 1 - int(0.1 * order.size)
    span = float(result.finish[order[high]] - result.finish[order[low]]) if high > low else 0.0
    if span <= 0.0:
        return throughput(result)
    return (high - low) / span, float(result.trace.osl[order[low + 1 : high + 1]].sum()) / span
