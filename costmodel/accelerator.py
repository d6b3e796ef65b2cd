"""Accelerators as numbers: what one GPU computes, moves, holds, draws and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .words import listed


class Origin(StrEnum):
    """Where a number comes from; shown wherever the number is."""

    VENDOR = "vendor"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"
    STATED = "stated"
    """By the user, in a file of their own."""


class PriceBasis(StrEnum):
    """What is paid for the hour of a GPU that a price is of; what `--prices` takes."""

    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    SPOT = "spot"
    TCO = "tco"
    """What owning it costs, all in: capital, power and hosting."""


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
    """Price of one GPU [$/h] with the spread over providers that its median hides.

    term_years: how long a reservation binds [year]; borrowed_from: the GPU whose quotes these are, if not its own.
    """

    usd_per_hour: float
    low: float
    high: float
    quotes: int
    origin: Origin
    source: str
    date: str
    basis: PriceBasis = PriceBasis.ON_DEMAND
    term_years: int | None = None
    borrowed_from: str | None = None

    @property
    def guessed(self) -> bool:
        """Whether nobody quotes it for this GPU: it is another one's, or an on-demand price that no provider lists."""
        return self.borrowed_from is not None or (self.basis is PriceBasis.ON_DEMAND and self.origin is Origin.ASSUMED)

    @property
    def basis_words(self) -> str:
        """The basis in words, such as "3-year reserved"."""
        return str(self.basis) if self.term_years is None else f"{self.term_years}-year {self.basis}"

    def remark(self, name: str) -> str:
        """What a buyer of the GPU `name` has to know of its price; empty for several on-demand quotes and an own price.

        >>> quote = Price(1.8, 1.8, 1.8, 1, Origin.VENDOR, "A", "2026-04-03", PriceBasis.RESERVED, 3)
        >>> quote.remark("MI325X")
        'The price of MI325X ($1.80/h) is a 3-year reserved quote.'
        >>> Price(1.6, 1.05, 3.0, 13, Origin.VENDOR, "A, B", "2026-04-03", PriceBasis.SPOT).remark("H100")
        'The price of H100 ($1.60/h) is the median over providers of 13 spot quotes.'
        >>> Price(16.0, 16.0, 16.0, 1, Origin.VENDOR, "list price: OCI", "2026-11-09").remark("GB200")
        'The price of GB200 ($16.00/h) is the only on-demand quote at hand, of OCI.'
        """
        if self.origin is Origin.STATED:
            own = f"The price of {name} ({listed(self.usd_per_hour)}) is of your own {self.basis_words} quotes."
            return "" if self.basis is PriceBasis.ON_DEMAND else own
        if self.borrowed_from is not None:
            origin_words = f"borrowed from {self.borrowed_from}: nobody quotes one for {name}"
        elif self.guessed:
            origin_words = f"assumed: nobody quotes one for {name}"
        elif self.basis is PriceBasis.ON_DEMAND:
            if self.quotes > 1:
                return ""
            origin_words = f"the only on-demand quote at hand, of {self.source.rpartition(': ')[2]}"
        elif self.basis is PriceBasis.TCO:
            origin_words = "a modeled cost of ownership, not a quote"
        else:
            origin_words = (
                f"{'a' if self.quotes == 1 else f'the median over providers of {self.quotes}'} {self.basis_words} quote"
            )
            origin_words += "s" if self.quotes > 1 else ""
        return f"The price of {name} ({listed(self.usd_per_hour)}) is {origin_words}."


ATTENTION_CLASSES = ("attention_prefill", "attention_decode", "latent_prefill", "latent_decode")
COLLECTIVES = ("all_reduce", "all_reduce_large", "all_to_all")
"""Of these `memory` is the share of the link's bandwidth, on which HBM and FLOP/s say nothing. all_reduce is the
algorithm of one stage, all_reduce_large that of two; the quicker one runs."""
KERNEL_CLASSES = ("gemm", *ATTENTION_CLASSES, "moe", *COLLECTIVES)
"""Classes with an efficiency of their own."""


@dataclass(frozen=True, slots=True)
class KernelEfficiency:
    """Share of the roofline that one kernel class reaches on one accelerator (`benchmarks.efficiency_curve`).

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
class InEngine:
    """How much longer things take inside a serving engine than kernels timed alone say [1].

    first_token: time until the first token of a prompt over that of the steps that compute it, of models with routed
    experts on engines that decode too; the engine is busy with it no longer than its steps last. expert_step: time of a
    step over that of its kernels, of the same models; prefill_worker: a further factor on the same steps, on workers
    that only prefill. traffic: factor on memory-bound kernels; arithmetic: on compute-bound ones, whose clock
    falls at the power limit.
    """

    first_token: float = 1.0
    expert_step: float = 1.0
    prefill_worker: float = 1.0
    traffic: float = 1.0
    arithmetic: float = 1.0


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU type.

    memory: HBM capacity [byte]; bandwidth: HBM bandwidth [byte/s].
    peak_flops: dense FLOP/s by compute dtype ("bf16", "fp8", "int8", "fp4"); no sparsity.
    scale_up: NVLink, Infinity Fabric or PCIe inside a node; scale_up_size: GPUs that it joins.
    scale_out: network card share of one GPU.
    node_size: GPUs per server; tdp: board power [W].
    node_label: value of the Kubernetes product label (nvidia.com/gpu.product or amd.com/gpu.product-name).
    kv_domain: the same for all GPUs that can hand KV blocks to each other ("nvidia", "amd").
    price: the usual one, on demand where that is quoted; other_prices: those on another basis.
    efficiency: KernelEfficiency by (kernel class, compute dtype); see `costmodel.kernels`.
    generation: GPUs of one generation share their error bars (hopper, blackwell, cdna3 ...); empty: not known.
    assumed: which of these figures no data sheet states, in words; empty: none.
    mxfp4_multiples: what kernels for MXFP4 experts round the hidden size and a rank's width of an expert up to [1];
    in_engine: what its kernels take inside an engine over those efficiencies; generation_measured: whether kernels, or
    a whole engine, of its generation were measured; arm: whether the CPUs beside it are Arm's.
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
    in_engine: InEngine = InEngine()
    other_prices: tuple[Price, ...] = ()
    generation: str = ""
    assumed: str = ""
    generation_measured: bool = False
    arm: bool = False

    @property
    def quotes(self) -> tuple[Price, ...]:
        """Every price that is quoted for this very GPU."""
        return tuple(price for price in (self.price, *self.other_prices) if not price.guessed)

    def price_on(self, basis: PriceBasis | None) -> Price | None:
        """Its price on a basis; the usual one for None, and the user's own on any; None where nobody quotes one."""
        if basis is None:
            return self.price
        quote = next((price for price in self.quotes if price.basis is basis), None)
        return self.price if quote is None and self.price.origin is Origin.STATED else quote

    @property
    def measured(self) -> bool:
        """Whether any matrix kernel of this very accelerator was fitted to measurements, not taken from a relative."""
        origins = (Origin.FITTED, Origin.MEASURED)
        return any(figures.origin in origins for (kernel, _), figures in self.efficiency.items() if kernel == "gemm")

    def ridge_point(self, dtype: str) -> float:
        """Arithmetic intensity at which compute and bandwidth balance [FLOP/byte] (Williams 2009).

        ridge = peak FLOP/s / memory bandwidth
        """
        return self.peak_flops[dtype] / self.bandwidth


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Power of one board as shares of its TDP [1]: assumed from published measurements, for energy per token.

    idle: loaded, nothing to do; active: added while any step runs; compute, memory: added at the vendor's peak FLOP/s
    and at its peak HBM bandwidth.
    """

    idle: float
    active: float
    compute: float
    memory: float
    origin: Origin
    source: str


POWER: Final = PowerModel(
    idle=0.12,
    active=0.10,
    compute=1.10,
    memory=0.30,
    origin=Origin.ASSUMED,
    source=(
        "set by hand between published figures: idle 80 W and 517 W at batch 128 of an H200 (700 W; ALICE GPU energy "
        "benchmark, 2026); 300 W at batch 1 and 600 W at batch 128 of an H100 (700 W; ML.ENERGY v3 as used by vLLM's "
        "fleet-sim); decode 137-300 W of an H200 (Ma et al. 2026, arXiv:2605.11999); prompts near TDP (Patel et al. "
        "2023, POLCA, and 2024, Splitwise)"
    ),
)
"""H200 and H100; other GPUs are taken to behave alike in shares of their TDP."""


def mean_power(tdp: float, busy: float, mfu: float, mbu: float) -> float:
    """Mean power of one board [W]: P / TDP = idle + min((1 - idle) u, active u + compute MFU + memory MBU).

    So a GPU never draws less than it does idle, never more than its TDP while a step runs, and idle power otherwise.
    tdp [W]; busy: u, share of the time in which a step runs [1]; mfu, mbu: shares of peak over the whole time [1].

    A decode of one request that streams weights at 65 % of the bandwidth, a full decode batch, and long prompts:

    >>> [round(mean_power(700.0, 1.0, mfu, mbu)) for mfu, mbu in ((0.0, 0.65), (0.3, 0.7), (0.6, 0.3))]
    [290, 532, 679]
    >>> mean_power(700.0, 0.0, 0.0, 0.0), mean_power(700.0, 1.0, 1.0, 1.0)
    (84.0, 700.0)
    """
    above = POWER.active * busy + POWER.compute * mfu + POWER.memory * mbu
    return tdp * (POWER.idle + min((1.0 - POWER.idle) * busy, above))
