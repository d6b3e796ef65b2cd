"""Fit a few scales of the physical parameters to measured serving times, held near 1 by a prior.

The catalog's parameters are right for the machines on which they were fitted. Another machine (power cap, clocks, a
virtualised PCIe, an older engine) differs in few ways: how much of the FLOP/s and of the bandwidth it reaches, how long
its CPU takes per step, and what lies between the client and the engine. Each is a factor on the catalog's figure:

    minimise  sum_i rho((ln predicted_i - ln measured_i) / sigma_i) + sum_k (ln scale_k / tau_k)^2

rho is Huber's loss, sigma the error that the model has anyway, tau the spread that a scale is expected to have.

Scales are laid over an accelerator's efficiencies and an engine's host times, and checked against what no engine can
beat: every weight is read once per step, every FLOP done at the data sheet's peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from .accelerator import COLLECTIVES, Accelerator, KernelEfficiency
from .arrays import FloatArray
from .attention import Part
from .engine import NO_OVERHEAD, EngineConfig, ServingPolicy
from .engine_arrays import vendor_peak
from .estimate import used_efficiencies
from .step import StepLoad, step_time_one
from .transformer import Transformer

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors on the catalog's figures; all 1: the catalog as it is.

    compute, memory: on the efficiencies of kernels; host: on the engine's CPU time per step and per request;
    arrival: on its TTFT overhead.
    """

    compute: float = 1.0
    memory: float = 1.0
    host: float = 1.0
    arrival: float = 1.0


SPREAD: Mapping[str, float] = {"memory": 0.15, "compute": 0.2, "host": 0.5, "arrival": 0.7}
"""Standard deviation of the logarithm of each scale before any data; assumed: kernels of kindred GPUs differ by 10 to
20 % (docs/appendix/calibration.md, relative's error), host times of machines by half, front ends by a factor of two."""
LIMITS: Mapping[str, tuple[float, float]] = {
    "memory": (0.2, 3.0),
    "compute": (0.2, 3.0),
    "host": (0.05, 20.0),
    "arrival": (0.02, 50.0),
}
"""Least and greatest scale that is looked at."""
HUBER = 1.5
"""Residual, in sigma, from which its weight falls."""
MACHINE: tuple[str, ...] = ("memory", "compute", "host")
"""Scales on which the precision, the GPU and the layout act; a front end far away is a matter of `arrival` alone."""
FARTHEST = 2.0
"""Standard deviations of SPREAD beyond which lies one machine of the same model in twenty."""
NEAR_LIMIT = 1.02
"""Factor within which a scale stands at the end of LIMITS."""


class Quantity(StrEnum):
    """What was measured."""

    TTFT = "ttft"
    TPOT = "tpot"
    PREFILL_STEP = "prefill_step"
    DECODE_STEP = "decode_step"


SIGMA: Mapping[Quantity, float] = {
    Quantity.TTFT: 0.25,
    Quantity.TPOT: 0.12,
    Quantity.PREFILL_STEP: 0.08,
    Quantity.DECODE_STEP: 0.08,
}
"""Standard error of the model's logarithm, whatever the scales; assumed: the goals that docs/accuracy.md checks."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time [s]; row: the run that it belongs to; point: the operating point, equal for repetitions."""

    quantity: Quantity
    seconds: float
    row: int
    point: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScaleFit:
    """The scales, how sure they are, and the errors ln(predicted / measured) of every observation.

    free: parameters that were fitted; spread: standard deviation of each one's logarithm after the data [1];
    before: with the catalog as it is; after: with the scales; held: with scales fitted without the row in question,
    to first order; strain: median of |after| over the error that the model has anyway [1], above HUBER where the fit
    takes most rows for outliers.
    """

    scales: Scales
    free: tuple[str, ...]
    spread: Mapping[str, float]
    before: FloatArray
    after: FloatArray
    held: FloatArray
    strain: float

    @property
    def at_limit(self) -> tuple[str, ...]:
        """Scales that stand at the end of what is looked at."""
        values = ((name, getattr(self.scales, name), *LIMITS[name]) for name in self.free)
        return tuple(name for name, value, low, high in values if not NEAR_LIMIT * low < value < high / NEAR_LIMIT)

    @property
    def far(self) -> tuple[str, ...]:
        """Scales that no other machine of the same model explains: at a limit, or beyond FARTHEST spreads."""
        beyond = (n for n in MACHINE if abs(np.log(getattr(self.scales, n))) > FARTHEST * SPREAD[n])
        return tuple(dict.fromkeys((*self.at_limit, *beyond)))

    @property
    def explains(self) -> bool:
        """Whether the scaled model explains the data: most rows are no outliers to it, and no scale is far from 1.

        Of 35 groups of serving/closed_loop.csv fitted with their true flags (8 rows each, one model, GPU, engine,
        precision and layout) 32 pass, with a median error of 3 to 19 % and a strain up to 1.2. The other three are
        mispredicted by the catalog as well: Qwen3-32B on GB200 (strain 1.9, host x 15), DeepSeek-V3 in FP4 on B200
        under SGLang (1.7, arrival x 50) and Qwen3-235B on H200 under vLLM (memory x 0.52).
        """
        return self.strain <= HUBER and not self.far


def free_parameters(observations: Sequence[Observation]) -> tuple[str, ...]:
    """The scales that these observations can tell apart, the most telling first.

    Decodes read bytes and prompts compute: one operating point of each shows one scale, two also what is constant, the
    CPU time per step and the TTFT overhead.

    >>> one = Observation(Quantity.TPOT, 0.01, 0, (1.0,))
    >>> free_parameters([one]), free_parameters([one, Observation(Quantity.TPOT, 0.02, 1, (64.0,))])
    (('memory',), ('memory', 'host'))
    """
    decodes = _points(observations, Quantity.TPOT, Quantity.DECODE_STEP)
    prompts = _points(observations, Quantity.TTFT, Quantity.PREFILL_STEP)
    arrivals = _points(observations, Quantity.TTFT)
    evidence = {"memory": decodes >= 1, "compute": prompts >= 1, "host": decodes >= 2, "arrival": arrivals >= 2}
    return tuple(name for name, is_shown in evidence.items() if is_shown)


def _points(observations: Sequence[Observation], *quantities: Quantity) -> int:
    return len({observation.point for observation in observations if observation.quantity in quantities})


def fit_scales(predict: Callable[[Scales], FloatArray], observations: Sequence[Observation]) -> ScaleFit:
    """Fit the scales that the observations show; `predict` gives the seconds of every observation [s]."""
    names = free_parameters(observations)
    log_seconds = np.log([observation.seconds for observation in observations])
    sigma = np.array([SIGMA[observation.quantity] for observation in observations])
    spread = np.array([SPREAD[name] for name in names])

    def residual(point: FloatArray) -> FloatArray:
        return np.asarray(np.log(predict(_scales(names, point * spread))) - log_seconds)

    def loss(point: FloatArray) -> float:
        return float(huber(residual(point) / sigma).sum() + point @ point)

    lower, upper = (np.log([LIMITS[name][side] for name in names]) / spread for side in (0, 1))
    start = np.zeros(len(names))
    before = residual(start)
    best, _ = pattern_search(loss, start, lower, upper, step=1.0, tolerance=0.02) if names else (start, 0.0)
    after = residual(best)
    deviation, jackknife = _uncertainty(residual, best, after, sigma, [observation.row for observation in observations])
    return ScaleFit(
        scales=_scales(names, best * spread),
        free=names,
        spread=dict(zip(names, (deviation * spread).tolist(), strict=True)),
        before=before,
        after=after,
        held=jackknife,
        strain=strain_of(after, observations),
    )


def strain_of(logs: FloatArray, observations: Sequence[Observation]) -> float:
    """Median of |ln(predicted / measured)| over the error that the model has anyway [1]."""
    return float(np.median(np.abs(logs) / np.array([SIGMA[observation.quantity] for observation in observations])))


def huber(value: FloatArray) -> FloatArray:
    """Huber's loss: the square up to HUBER, from there linear.

    >>> huber(np.array([1.0, 3.0])).tolist()
    [1.0, 6.75]
    """
    size = np.abs(value)
    return np.asarray(np.where(size <= HUBER, size**2, 2.0 * HUBER * size - HUBER**2))


def _scales(names: Sequence[str], logarithms: FloatArray) -> Scales:
    return replace(Scales(), **dict(zip(names, np.exp(logarithms).tolist(), strict=True)))


def _uncertainty(
    residual: Callable[[FloatArray], FloatArray],
    point: FloatArray,
    after: FloatArray,
    sigma: FloatArray,
    rows: Sequence[int],
) -> tuple[FloatArray, FloatArray]:
    """Standard deviations of the point after the data, and residuals of each row had it been left out.

    With J the derivative of the residuals and W their weights, A = J'WJ + 1: deviations are the roots of the diagonal
    of A^-1; leaving out block b, r_b -> (1 - H_b)^-1 r_b with H_b = J_b A^-1 J_b' W_b (exact if J were constant).
    """
    if not point.size:
        return np.zeros(0), after
    step = 0.02
    jacobian = np.stack([(residual(point + step * axis) - after) / step for axis in np.eye(point.size)], axis=1)
    size = np.abs(after) / sigma
    weight = np.minimum(1.0, HUBER / np.maximum(size, 1e-12)) / sigma**2
    inverse = np.linalg.inv(jacobian.T @ (weight[:, None] * jacobian) + np.eye(point.size))
    jackknife = after.copy()
    for row in dict.fromkeys(rows):
        block = np.flatnonzero(np.asarray(rows) == row)
        influence = jacobian[block] @ inverse @ jacobian[block].T * weight[block]
        jackknife[block] = np.linalg.solve(np.eye(block.size) - influence, after[block])
    return np.sqrt(np.diag(inverse)), jackknife


def pattern_search(
    loss: Callable[[FloatArray], float],
    start: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    *,
    step: float = 0.5,
    tolerance: float = 1e-3,
) -> tuple[FloatArray, float]:
    """Minimise `loss` in a box by Hooke and Jeeves' pattern search (1961); returns the point and its loss.

    Tries +-step on each coordinate, keeps what helps, repeats a successful move as a whole, and halves the step when
    nothing helps, until it is below `tolerance`. Deterministic; finds a local minimum.

    >>> point, value = pattern_search(lambda x: abs(x[0] - 1) + abs(x[1]), np.zeros(2), -np.ones(2), 3 * np.ones(2))
    >>> [round(float(x), 2) for x in point]
    [1.0, 0.0]
    """
    best = np.clip(np.asarray(start, dtype=np.float64), lower, upper)
    value = loss(best)
    while step > tolerance:
        trial, trial_value = _explore(loss, best, value, (lower, upper), step)
        if trial_value >= value:
            step /= 2
            continue
        leap = np.clip(2 * trial - best, lower, upper)
        best, value = trial, trial_value
        leap_value = loss(leap)
        if leap_value < value:
            best, value = leap, leap_value
    return best, value


def _explore(
    loss: Callable[[FloatArray], float],
    point: FloatArray,
    value: float,
    box: tuple[FloatArray, FloatArray],
    step: float,
) -> tuple[FloatArray, float]:
    """Move along each coordinate in turn where that lowers the loss."""
    lower, upper = box
    point = point.copy()
    for index in range(point.size):
        for delta in (step, -step):
            trial = point.copy()
            trial[index] = min(max(trial[index] + delta, lower[index]), upper[index])
            trial_value = loss(trial)
            if trial_value < value * (1 - 1e-9):
                point, value = trial, trial_value
                break
    return point, value


CARRIERS = frozenset({"gemm", "moe"})
"""Kernels that read the weights and do most of the arithmetic."""
MOST_EFFICIENCY = 1.05
"""Efficiency from which a fit contradicts physics; up to here it is the noise of the runs [1]. With routed experts more
is allowed, by the share of them that skewed traffic may leave untouched (`slack`)."""
SHORTEST_ARRIVAL = 1e-3
"""A TTFT overhead has to be something for a factor to act on [s]."""


def calibrated_pairs(model: Transformer, configs: Iterable[EngineConfig]) -> tuple[Pair, ...]:
    """(kernel class, dtype) of the efficiencies that these engines' kernels use, collectives apart.

    Weights that the GPU expands before computing are read at the efficiency of their own dtype.
    """
    pairs: dict[Pair, None] = {}
    for config in configs:
        used = [*used_efficiencies(model, config)]
        for component in Part:
            weight_dtype = model.part_dtype(component, config.weight_dtype)
            used += [(kind, weight_dtype) for kind in ("gemm", "moe") if kind == "gemm" or model.is_moe]
        efficiencies = config.accelerator.efficiency
        pairs.update(dict.fromkeys(pair for pair in used if pair in efficiencies and pair[0] not in COLLECTIVES))
    return tuple(pairs)


def scaled_figures(
    accelerator: Accelerator, pairs: Iterable[Pair], scales: Scales, *, limited: bool = True
) -> dict[Pair, KernelEfficiency]:
    """The efficiencies of `pairs`, scaled.

    limited: none above 1. Without, the kernels that carry the weights may be: so data that asks for more than there is
    shows (`above_physics`) instead of piling up at the limit.
    """
    efficiencies = accelerator.efficiency

    def limit(pair: Pair, share: float) -> float:
        return min(share, 1.0) if limited or pair[0] not in CARRIERS else share

    return {
        pair: replace(
            efficiencies[pair],
            compute=limit(pair, efficiencies[pair].compute * scales.compute),
            memory=limit(pair, efficiencies[pair].memory * scales.memory),
        )
        for pair in pairs
    }


def scaled_policy(policy: ServingPolicy, scales: Scales) -> ServingPolicy:
    """The policy with host times and TTFT overhead scaled."""
    arrival = policy.arrival if scales.arrival == 1.0 else max(policy.arrival, SHORTEST_ARRIVAL) * scales.arrival
    host, factor = policy.overhead, scales.host
    overhead = replace(host, step=host.step * factor, per_request=host.per_request * factor)
    return replace(policy, overhead=overhead, arrival=arrival)


def above_physics(
    accelerator: Accelerator, model: Transformer, pairs: Iterable[Pair], scales: Scales
) -> Mapping[str, float]:
    """Efficiencies of the kernels that carry the weights that the scales would push beyond the limit, by parameter.

    Kernels that the catalog has near 1 already are merely capped; these are what the times rest on.
    """
    carrier = "moe" if model.is_moe else "gemm"
    carrying = [accelerator.efficiency[pair] for pair in pairs if pair[0] == carrier]
    shares = {
        "compute": min((efficiency.compute for efficiency in carrying), default=0.0) * scales.compute,
        "memory": min((efficiency.memory for efficiency in carrying), default=0.0) * scales.memory,
    }
    most = MOST_EFFICIENCY * DENSE_SLACK / slack(model)
    return {name: share for name, share in shares.items() if share > most and getattr(scales, name) > 1.0}


DENSE_SLACK = 0.95
"""Part of the counted work that surely must be done: kernels fuse, and a cache keeps a little [1]."""
EXPERTS_SLACK = 0.6
"""The same where routing decides which experts are read: skewed traffic reaches fewer of them [1]."""


def least_tpot(model: Transformer, config: EngineConfig, running: float, context: float) -> float:
    """Least time of a decode step of `running` requests at `context` tokens [s].

    Weights and KV once over the memory bus of one GPU: bytes / bandwidth, at the data sheet's bandwidth, less the
    slack above. Every pipeline stage holds its share of the requests.
    """
    batch = max(running / config.parallelism.pipeline, min(running, 1.0))
    return floors(model, config, StepLoad.decode(batch, context))[1]


def least_ttft(model: Transformer, config: EngineConfig, isl: float) -> float:
    """Least time of a prompt of `isl` tokens [s]: FLOP / peak of one GPU, all stages busy with chunks of it.

    An engine takes in no more than one on each of its data ranks in that time.
    """
    return floors(model, config, StepLoad.prefill(isl))[0] / config.parallelism.pipeline


def slack(model: Transformer) -> float:
    """Part of the counted work that surely must be done [1]."""
    return EXPERTS_SLACK if model.is_moe else DENSE_SLACK


def floors(model: Transformer, config: EngineConfig, load: StepLoad) -> tuple[float, float]:
    """FLOP / peak and bytes / bandwidth of what a step of a single engine surely must do [s]."""
    step = step_time_one(model, config, NO_OVERHEAD, load)
    seconds = step.flop[0, 0] / vendor_peak(config), step.traffic[0, 0] / config.accelerator.bandwidth
    return slack(model) * float(seconds[0]), slack(model) * float(seconds[1])
