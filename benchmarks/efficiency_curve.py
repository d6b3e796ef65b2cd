"""Fit an efficiency curve to measured times: least mean absolute logarithmic error, every regime weighing the same.

An efficiency curve says how much of the roofline a kernel reaches at which size: it saturates, and its few parameters
are all physical. `size` is what fills the chip, and differs by kernel class (see `SIZE_OF`): a GEMM fills it by its
output tiles, a mixture of experts by the tokens that each expert gets, attention by the keys per query, a collective by
its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration import pattern_search

Array = NDArray[np.float64]
Value = TypeVar("Value", float, NDArray[np.float64])

SIZE_OF = {
    "gemm": "output elements m x n",
    "attention_prefill": "tokens of the prompt",
    "attention_decode": "bytes of KV read",
    "latent_prefill": "tokens of the prompt",
    "latent_decode": "bytes of latent KV read",
    "moe": "tokens per expert that is touched",
    "all_reduce": "bytes over the link",
    "all_reduce_large": "bytes over the link",
    "all_to_all": "bytes over the link",
}
"""Meaning of `size` by kernel class (costmodel.accelerator.KERNEL_CLASSES)."""


@dataclass(frozen=True, slots=True)
class EfficiencyCurve:
    """Efficiency of one kernel class on one accelerator in one dtype.

    compute: share of peak FLOP/s at large size [1]; compute_half: size at which half of it is reached [size].
    memory: share of peak bandwidth at large traffic [1]; memory_half: traffic at which half is reached [byte].
    launch: time of a kernel that does nothing [s].
    cast: bytes moved per input element by separate kernels, such as a conversion to the compute dtype [byte].
    depth_half: inner dimension at which half of `compute` is reached (GEMM: k; attention: width of a head) [1].
    fill_half: parallel work at which half is reached (attention: queries of all heads) [1].
    spill: as cast, per element that passes through although another expert-parallel rank computes it [byte].
    """

    compute: float
    memory: float
    launch: float
    compute_half: float = 0.0
    memory_half: float = 0.0
    cast: float = 0.0
    depth_half: float = 0.0
    fill_half: float = 0.0
    spill: float = 0.0


def saturation(size: Value, half: float) -> Value:
    """Share of the final efficiency reached at `size`: size / (size + half) [1].

    half = 0 is a constant; the curve never exceeds 1, and at large size it goes flat, it does not extrapolate.

    >>> saturation(3.0, 1.0)
    0.75
    """
    return size / (size + half)


def roofs(
    curve: EfficiencyCurve,
    flop: Value,
    traffic: Value,
    *,
    peak: float,
    bandwidth: float,
    size: Value,
    depth: Value | float = 1.0,
    fill: Value | float = 1.0,
) -> tuple[Value, Value]:
    """Time of the arithmetic and of the traffic of one kernel, of which the longer counts [s]."""
    slowed = (1.0 + curve.compute_half / size) * (1.0 + curve.depth_half / depth) * (1.0 + curve.fill_half / fill)
    arithmetic = flop * slowed / (curve.compute * peak)
    movement = (traffic + curve.memory_half * np.sign(traffic)) / (curve.memory * bandwidth)
    return arithmetic, movement


def curve_time(
    curve: EfficiencyCurve,
    flop: Value,
    traffic: Value,
    *,
    peak: float,
    bandwidth: float,
    size: Value,
    inputs: Value,
    depth: Value | float = 1.0,
    fill: Value | float = 1.0,
    elsewhere: Value | float = 0.0,
) -> Value:
    """Time of one kernel [s].

    flop [FLOP], traffic [byte], peak [FLOP/s], bandwidth [byte/s], size (see SIZE_OF), inputs: activations read [1];
    depth, fill, elsewhere: what depth_half, fill_half and spill refer to [1].

        t = max(flop / (eta_c peak), traffic / (eta_m bandwidth)) + (cast inputs + spill elsewhere) / bandwidth + launch
        eta_c = compute size / (size + compute_half) x depth / (depth + depth_half) x fill / (fill + fill_half)
        eta_m = memory traffic / (traffic + memory_half)

    Roofline after Williams 2009; a compute efficiency that saturates with size is Hockney's n_1/2 (1977). With
    all halves and conversions 0 it is `costmodel.kernels.kernel_time`. A kernel without traffic or FLOP
    takes `launch`; size, depth and fill must be positive.

    >>> curve = EfficiencyCurve(compute=0.8, memory=0.9, launch=4e-6, compute_half=100.0)
    >>> time = curve_time(curve, 8e9, 0.0, peak=1e15, bandwidth=1e12, size=100.0, inputs=0.0)
    >>> round(float(time) * 1e6, 6)  # half of 0.8 of the peak, and launch
    24.0
    """
    arithmetic, movement = roofs(
        curve, flop, traffic, peak=peak, bandwidth=bandwidth, size=size, depth=depth, fill=fill
    )
    slower: Value = np.maximum(arithmetic, movement)
    return slower + (curve.cast * inputs + curve.spill * elsewhere) / bandwidth + curve.launch


CONSTANT = ("compute", "memory", "launch")
"""Free parameters of the constant form: one efficiency per kernel class."""

CURVE = ("compute", "memory", "launch", "compute_half")
"""Free parameters of the saturating form; a memory_half was tried and the data do not ask for it."""

LAUNCH_BOUNDS = (1e-7, 1e-3)
CAST_BOUNDS = (1e-2, 64.0)
STARTS = tuple((compute, memory) for compute in (0.25, 0.7) for memory in (0.3, 0.8))


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured rows; a row is a sum of kernels (often one), each run `count` times, plus a known `offset`.

    flop [FLOP], traffic [byte], size, inputs, count: arrays of shape (rows, kernels);
    seconds, offset [s], regime (an integer label) and importance (weight within the regime): arrays of shape (rows,).
    peak [FLOP/s], bandwidth [byte/s]: the data sheet's.
    depth, fill, elsewhere: as in `curve_time`, arrays of shape (rows, kernels), or None where the class has none.
    """

    flop: Array
    traffic: Array
    size: Array
    inputs: Array
    count: Array
    seconds: Array
    offset: Array
    regime: NDArray[np.int64]
    importance: Array
    peak: float
    bandwidth: float
    depth: Array | None = None
    fill: Array | None = None
    elsewhere: Array | None = None

    def where(self, mask: NDArray[np.bool_]) -> Samples:
        """The rows that `mask` selects."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        kept: dict[str, Any] = {name: rows[mask] for name, rows in values.items() if isinstance(rows, np.ndarray)}
        return replace(self, **kept)

    def shape(self, name: str, default: float) -> Array:
        """`depth`, `fill` or `elsewhere`, or the default where the class has none."""
        found = getattr(self, name)
        return np.full_like(self.flop, default) if found is None else np.asarray(found)

    def floor(self) -> Array:
        """Least time that physics allows at the data sheet's peak and bandwidth [s], offset included."""
        kernels = np.maximum(self.flop / self.peak, self.traffic / self.bandwidth)
        return np.asarray((self.count * kernels).sum(axis=1) + self.offset)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted curve, its median absolute relative error overall and by regime, its bias, and how many rows.

    bias: median of predicted / measured - 1; compute_bound, memory_bound: share of kernels that each roof decides, on
    which the confidence in `compute` and `memory` rests (0: that parameter is not seen in the data).
    """

    curve: EfficiencyCurve
    error: float
    regime_error: Mapping[int, float]
    bias: float
    rows: int
    compute_bound: float
    memory_bound: float


def single_kernels(
    flop: Array,
    traffic: Array,
    seconds: Array,
    regime: NDArray[np.int64],
    *,
    peak: float,
    bandwidth: float,
    size: Array | None = None,
    inputs: Array | None = None,
    offset: Array | None = None,
    importance: Array | None = None,
    depth: Array | None = None,
    fill: Array | None = None,
    elsewhere: Array | None = None,
) -> Samples:
    """Samples of which each row is one kernel.

    `size` defaults to the traffic, `inputs` and `offset` to zero, `importance` to one.
    """
    zeros = np.zeros_like(seconds)
    return Samples(
        flop=flop[:, None],
        traffic=traffic[:, None],
        size=(traffic if size is None else size)[:, None],
        inputs=(zeros if inputs is None else inputs)[:, None],
        count=np.ones_like(seconds)[:, None],
        seconds=seconds,
        offset=zeros if offset is None else offset,
        regime=regime,
        importance=np.ones_like(seconds) if importance is None else importance,
        peak=peak,
        bandwidth=bandwidth,
        depth=None if depth is None else depth[:, None],
        fill=None if fill is None else fill[:, None],
        elsewhere=None if elsewhere is None else elsewhere[:, None],
    )


def predict(curve: EfficiencyCurve, samples: Samples) -> Array:
    """Seconds of each row: sum over its kernels of count x time, plus the offset."""
    kernels = curve_time(
        curve,
        samples.flop,
        samples.traffic,
        peak=samples.peak,
        bandwidth=samples.bandwidth,
        size=samples.size,
        inputs=samples.inputs,
        depth=samples.shape("depth", 1.0),
        fill=samples.shape("fill", 1.0),
        elsewhere=samples.shape("elsewhere", 0.0),
    )
    return np.asarray((samples.count * kernels).sum(axis=1) + samples.offset)


def regime_weights(regime: NDArray[np.int64], importance: Array) -> Array:
    """Weights that sum to 1 and give every regime the same share, divided by importance inside it.

    >>> regime_weights(np.array([0, 0, 1]), np.array([1.0, 3.0, 1.0])).tolist()
    [0.125, 0.375, 0.5]
    """
    _, inverse = np.unique(regime, return_inverse=True)
    totals = np.bincount(inverse, weights=importance)
    return np.asarray(importance / (totals[inverse] * totals.size))


def fit(samples: Samples, free: Sequence[str] = CONSTANT, fixed: EfficiencyCurve | None = None) -> Fit:
    """Fit the `free` parameters to `samples`, the others staying as in `fixed` (default: zero).

    Minimises sum_i w_i |ln(predicted_i / measured_i)| in the logarithms of the parameters, inside physics:
    0 < compute, memory <= 1 and launch, halves, cast >= 0. A half-saturation size or a cast that ends at the bottom of
    its range is reported as 0: the data do not ask for it.
    """
    if not samples.seconds.size or not np.all(samples.seconds > 0):
        msg = "fit: every sample needs a measured time > 0 and there must be at least one"
        raise ValueError(msg)
    bounds = _bounds(samples)
    lower, upper = (np.log([bounds[name][side] for name in free]) for side in (0, 1))
    weights = regime_weights(samples.regime, samples.importance)
    base = fixed or EfficiencyCurve(compute=1.0, memory=1.0, launch=0.0)

    def curve_at(point: Array) -> EfficiencyCurve:
        return replace(base, **dict(zip(free, np.exp(point).tolist(), strict=True)))

    def loss(point: Array) -> float:
        return float(weights @ np.abs(np.log(predict(curve_at(point), samples) / samples.seconds)))

    points = [_start(free, bounds, compute, memory) for compute, memory in STARTS]
    point, _ = min((pattern_search(loss, start, lower, upper) for start in points), key=lambda found: found[1])
    kept = np.exp(point)
    kept[(point <= lower + 0.1) & np.array([name not in ("compute", "memory") for name in free])] = 0.0
    return assess(replace(base, **dict(zip(free, kept.tolist(), strict=True))), samples)


def assess(curve: EfficiencyCurve, samples: Samples) -> Fit:
    """How well `curve` predicts `samples`."""
    ratio = predict(curve, samples) / samples.seconds
    error = np.abs(ratio - 1.0)
    arithmetic, movement = roofs(
        curve,
        samples.flop,
        samples.traffic,
        peak=samples.peak,
        bandwidth=samples.bandwidth,
        size=samples.size,
        depth=samples.shape("depth", 1.0),
        fill=samples.shape("fill", 1.0),
    )
    over = np.maximum(arithmetic, movement) > curve.launch
    return Fit(
        curve=curve,
        error=float(np.median(error)),
        regime_error={int(r): float(np.median(error[samples.regime == r])) for r in np.unique(samples.regime)},
        bias=float(np.median(ratio) - 1.0),
        rows=int(samples.seconds.size),
        compute_bound=float(np.mean(over & (arithmetic >= movement))),
        memory_bound=float(np.mean(over & (movement > arithmetic))),
    )


def _bounds(samples: Samples) -> dict[str, tuple[float, float]]:
    """Physical limits of each parameter; halves between a thousandth of the smallest and ten times the largest size."""

    def around(values: Array) -> tuple[float, float]:
        return (1e-3 * float(values.min()) + 1e-6, 10 * float(values.max()) + 1e-3)

    return {
        "compute": (1e-3, 1.0),
        "memory": (1e-3, 1.0),
        "launch": LAUNCH_BOUNDS,
        "compute_half": around(samples.size),
        "memory_half": around(samples.traffic),
        "depth_half": around(samples.shape("depth", 1.0)),
        "fill_half": around(samples.shape("fill", 1.0)),
        "cast": CAST_BOUNDS,
        "spill": CAST_BOUNDS,
    }


def _start(free: Sequence[str], bounds: Mapping[str, tuple[float, float]], compute: float, memory: float) -> Array:
    """Logarithms of a first guess: geometric middle of the bounds unless given."""
    given = {"compute": compute, "memory": memory, "launch": 4e-6}
    return np.log([given.get(name, float(np.sqrt(bounds[name][0] * bounds[name][1]))) for name in free])
