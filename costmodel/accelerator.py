"""Accelerators as numbers: what one GPU computes, moves, holds, draws and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Where a number comes from; shown wherever the number is."""

    VENDOR = "vendor"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Link:
    """A link as one GPU sees it.

    bandwidth: one direction, per GPU [byte/s].
    latency: time of an empty message [s].
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one GPU [$/h] with the spread over providers that its median hides."""

    usd_per_hour: float
    low: float
    high: float
    quotes: int
    origin: Origin
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class KernelEfficiency:
    """Share of the roofline that one kernel class reaches on one accelerator (`costmodel.calibration.curves`).

    compute: share of peak FLOP/s at large size [1].
    memory: share of peak bandwidth [1].
    launch: time that one kernel adds whatever its size [s].
    origin, source: measured, fitted or assumed, and on what.
    error: median absolute relative error of the fit on its data [1]; NaN when assumed.
    compute_half, depth_half, fill_half: size, inner dimension and parallel work at which half of `compute` is reached.
    cast: traffic of separate kernels per input element, such as a conversion to FP8 [byte].
    spill: the same per element that passes through although another expert-parallel rank computes it [byte].
    eager, floor, single: without a CUDA graph, time that launching from the host adds, least time of one kernel, and
    what a matrix product of one row takes beyond the curve [s].
    shared: share of one link that more than two GPUs have together, where they meet in the host; 0: each its own [1].
    """

    compute: float
    memory: float
    launch: float
    origin: Origin
    source: str
    error: float
    compute_half: float = 0.0
    depth_half: float = 0.0
    fill_half: float = 0.0
    cast: float = 0.0
    spill: float = 0.0
    eager: float = 0.0
    floor: float = 0.0
    single: float = 0.0
    shared: float = 0.0


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU type.

    memory: HBM capacity [byte]; bandwidth: HBM bandwidth [byte/s].
    peak_flops: dense FLOP/s by compute dtype ("bf16", "fp8", "int8", "fp4"); no sparsity.
    scale_up: NVLink, Infinity Fabric or PCIe inside a node; scale_up_size: GPUs that it joins.
    scale_out: network card share of one GPU.
    node_size: GPUs per server; tdp: board power [W].
    node_label: value of the Kubernetes product label (nvidia.com/gpu.product or amd.com/gpu.product-name).
    kv_domain: GPUs that can hand KV blocks to each other carry the same one ("nvidia", "amd").
    efficiency: KernelEfficiency by (kernel class, compute dtype); see `costmodel.roofline`.
    mxfp4_multiples: what kernels for MXFP4 experts round the hidden size and a rank's width of an expert up to [1].
    """

    name: str
    vendor: str
    memory: float
    bandwidth: float
    peak_flops: Mapping[str, float]
    scale_up: Link
    scale_up_size: int
    scale_out: Link
    node_size: int
    tdp: float
    node_label: str
    kv_domain: str
    price: Price
    efficiency: Mapping[tuple[str, str], KernelEfficiency]
    source: str
    date: str
    mxfp4_multiples: tuple[int, int] = (1, 1)

    @property
    def measured(self) -> bool:
        """Whether any matrix kernel of this very accelerator was fitted to measurements, not taken from a relative."""
        known = (Origin.FITTED, Origin.MEASURED)
        return any(figures.origin in known for (kernel, _), figures in self.efficiency.items() if kernel == "gemm")

    def ridge_point(self, dtype: str) -> float:
        """Arithmetic intensity at which compute and bandwidth balance [FLOP/byte] (Williams 2009).

        ridge = peak FLOP/s / memory bandwidth
        """
        return self.peak_flops[dtype] / self.bandwidth
