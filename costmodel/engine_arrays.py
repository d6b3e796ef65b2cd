"""Engine configs as a struct of arrays, so that one numpy expression covers all of them.

Every array has shape (engines, 1) and broadcasts against operating points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.queues.waits import largest_of

from .accelerator import ATTENTION_CLASSES, COLLECTIVES, Accelerator, InEngine, KernelEfficiency
from .arrays import FloatArray
from .attention import Part
from .engine import EngineConfig, EngineOverhead, Role, draft_layer
from .transformer import DTYPE_BYTES, LayerGroup, Transformer

ACTIVATION_DTYPE = "bf16"
"""Activations, attention and collectives run in 16 bit; FP8 KV halves the bytes, not the FLOP."""

MARLIN = 0.35
"""Share of the 16-bit peak left to Marlin's grouped kernel, which expands 8-bit or 4-bit weights of routed experts on
the way (W8A16, W4A16) [1]; fitted: TTFT of gpt-oss on H100 and H200 in serving/closed_loop.csv under vLLM, whose
scripts ask for it; kernels/moe_2026.csv has 0.36 there (INT4, even routing, 2,048 tokens and more). Kernels made for
MXFP4 have figures of their own. Dense matrices keep the whole peak: on A100 those of INT8 take 1.01 and of INT4 1.05
times as long as 16-bit ones (kernels/gemm_2026.csv, 2,048 rows and more)."""
MARLIN_MXFP4 = "w4a16"
"""Stored dtype of MXFP4 experts that an engine was told to run by Marlin."""
DISPATCHED = "fp8_dispatched"
"""FP8 experts of tokens that DeepEP brings: SGLang and vLLM then run DeepGEMM, on Blackwell in place of the kernel that
chooses the experts itself (`--moe-a2a-backend`, `--all2all-backend`). Counted where an NVLink domain spans servers, and
elsewhere where ranks reach beyond one: within, no script of the measured runs asks for DeepEP, and no row shows it."""

_UNITS = {"fp8": ("fp8", "fp8"), "int8": ("int8", "int8"), "fp4": ("fp4", "fp4"), "mxfp4": ("fp4", "fp8")}
"""VENDOR: units that a GPU must have for a stored dtype, and those whose rate its products run at. FP4 weights with FP8
inputs need the mixed products that came with FP4 units, at the rate of FP8 (PTX ISA, tcgen05.mma kind::mxf8f6f4; AMD
CDNA4 ISA, V_MFMA_SCALE_F32_F8F6F4)."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Circumstances in which kernels run, other than the engine's own layout.

    expert_skew: standard deviation of the experts' popularity over its mean [1], which says how much more than its
    share the busiest rank gets; 0 is uniform routing;
    expert_spread: the same among ordinary experts, without the few hottest, which says how many stay idle [1]; None:
    as the tables draw it (`costmodel.transformer.sampled_spread`);
    graphs: decode steps replay a CUDA graph, so that no kernel waits for the host;
    in_engine: kernels run inside an engine, where they take longer (`Accelerator.in_engine`);
    latent_reductions: all-reduces of a layer with latent attention over the two that tensor parallelism needs [1];
    fp8_kernels: which FP8 kernels run: "fp8" (those that plans assume), "fp8_block" or "fp8_tensor" (by scale).
    """

    expert_skew: float = 1.75
    expert_spread: float | None = 0.875
    graphs: bool = True
    in_engine: bool = True
    latent_reductions: float = 1.0
    fp8_kernels: str = "fp8"


SERVING = Conditions()
"""An engine that serves. Models are trained to balance their experts, traffic unbalances them. The skew is fitted to
TPOT of all measured mixtures, the spread is half of it (docs/appendix/calibration.md)."""

TABLE_SKEW = 3.0
"""Skew of the routing that the kernel tables simulate (power laws with exponents 1.01 and 1.2 over four decades)."""

TABLES = Conditions(TABLE_SKEW, expert_spread=None, graphs=False, in_engine=False, latent_reductions=1.5)
"""Kernels as they were timed for the tables: launched one by one, with experts drawn from a power law.

Composed steps of DeepSeek-V3 hold three all-reduces a layer: dispatch and combine count as one of their own."""


@dataclass(frozen=True, slots=True)
class KernelRates:
    """What a kernel class reaches: peak [FLOP/s], bandwidth [byte/s], launch [s]; each of shape (engines, 1).

    compute_half, depth_half, fill_half: where half the peak is reached, as in `KernelEfficiency`;
    cast, spill: time per element of separate kernels [s]; floor: least time of one kernel [s], None without one;
    single: what a product of one row takes beyond that [s], None without it.
    """

    peak: FloatArray
    bandwidth: FloatArray
    launch: FloatArray
    compute_half: FloatArray
    depth_half: FloatArray
    fill_half: FloatArray
    cast: FloatArray
    spill: FloatArray
    floor: FloatArray | None
    single: FloatArray | None


@dataclass(frozen=True, slots=True)
class LinkRates:
    """A collective's reach: inside and across scale-up domains [byte/s], latency of one operation in each [s]."""

    inside: FloatArray
    across: FloatArray
    launch: FloatArray
    hop: FloatArray


@dataclass(frozen=True, slots=True)
class EngineArrays:
    """Everything about engines that a step's time depends on; each array has shape (engines, 1).

    tensor, pipeline, data, expert: ranks of each kind; domain: GPUs joined by the scale-up link;
    gemm: rates by model part (a checkpoint quantises some parts and not others); experts: of the grouped GEMM;
    attention: by kernel class; all_reduce, all_reduce_large, all_to_all: links with their efficiency; send: bare links;
    weight_bytes: byte per weight by part; input_bytes: byte per activation that enters a GEMM of that part;
    kv_bytes: byte per KV element; first_token: time until a first token over that of the steps of its prompt, slower:
    time of a step over that of its kernels and collectives (`Accelerator.in_engine`) [1];
    peak, bandwidth: the vendor's figures, for MFU and MBU [FLOP/s, byte/s]; overhead, conditions: of all engines;
    expert_largest: expected largest of as many standard normals as there are expert-parallel ranks [1];
    drafted: tokens drafted for each request and step [1]; tokens_per_step: tokens that a step makes of each [1];
    tails: 1 where layers with a `tail` pass only the end of a prompt, 0 where all of it (`EngineConfig.whole_prompts`);
    draft: the layer that drafts, of those engines that have one (`costmodel.engine.Speculation`).
    """

    tensor: FloatArray
    pipeline: FloatArray
    data: FloatArray
    expert: FloatArray
    domain: FloatArray
    gemm: Mapping[Part, KernelRates]
    experts: KernelRates
    attention: Mapping[str, KernelRates]
    all_reduce: LinkRates
    all_reduce_large: LinkRates
    all_to_all: LinkRates
    send: LinkRates
    weight_bytes: Mapping[Part, FloatArray]
    input_bytes: Mapping[Part, FloatArray]
    kv_bytes: FloatArray
    first_token: FloatArray
    slower: FloatArray
    peak: FloatArray
    bandwidth: FloatArray
    expert_largest: FloatArray
    drafted: FloatArray
    tokens_per_step: FloatArray
    tails: FloatArray
    overhead: EngineOverhead
    conditions: Conditions
    draft: LayerGroup | None = None

    @property
    def verified(self) -> FloatArray:
        """Tokens of a decoding request in a step, drafted ones among them [token]."""
        return 1.0 + self.drafted


def compute_dtype(weight_dtype: str, accelerator: Accelerator) -> str:
    """Dtype that the matrix units work in for weights of `weight_dtype`.

    FP8, INT8 and FP4 weights use units of that kind where the GPU has them, and MXFP4 experts of an FP8 checkpoint the
    mixed ones; otherwise, and for INT4 always, weights are expanded to 16 bit on the way (W8A16, W4A16): bytes shrink,
    FLOP/s do not grow.
    """
    needed, unit = _UNITS.get(weight_dtype, (ACTIVATION_DTYPE, ACTIVATION_DTYPE))
    return unit if needed in accelerator.peak_flops else ACTIVATION_DTYPE


def kernels_of(model: Transformer, config: EngineConfig, part: Part, conditions: Conditions = SERVING) -> str:
    """Compute dtype of a part's matrices, or the name of particular kernels, by which their efficiency is listed.

    A rank with a single expert has nothing to group: kernels for grouped experts that `conditions` name do not run
    there. Units that take MXFP4 apply its scales themselves (PTX ISA, block scaling of tcgen05.mma), so its experts run
    as those with one scale for each matrix do. FP8 blocks of 128 are rescaled in software.
    """
    weight_dtype, split = model.part_dtype(part, config.weight_dtype), config.parallelism
    unit_dtype = compute_dtype(weight_dtype, config.accelerator)
    if unit_dtype != "fp8":
        return unit_dtype
    if weight_dtype == "mxfp4":
        return "fp8_tensor"
    if part is not Part.EXPERTS:
        return conditions.fp8_kernels
    if conditions.fp8_kernels == "fp8":
        domain = config.accelerator.scale_up_size
        beyond_server = domain > config.accelerator.node_size or split.tensor * split.data > domain
        return DISPATCHED if split.data > 1 and split.expert > 1 and beyond_server else "fp8"
    experts = max(group.feed_forward.experts for group in model.layers)
    return "fp8" if split.expert >= experts else conditions.fp8_kernels


def engine_arrays(
    model: Transformer, configs: Sequence[EngineConfig], overhead: EngineOverhead, conditions: Conditions = SERVING
) -> EngineArrays:
    """Gather configs, all of which draft alike or not at all, into arrays of shape (engines, 1)."""
    accelerators = [config.accelerator for config in configs]
    splits = [config.parallelism for config in configs]
    draft = next((config.speculation.draft for config in configs if config.speculation is not None), None)
    return EngineArrays(
        tensor=_column([split.tensor for split in splits]),
        pipeline=_column([split.pipeline for split in splits]),
        data=_column([split.data for split in splits]),
        expert=_column([split.expert for split in splits]),
        domain=_column([accelerator.scale_up_size for accelerator in accelerators]),
        gemm={component: _matrix_rates(model, configs, component, "gemm", conditions) for component in Part},
        experts=_matrix_rates(model, configs, Part.EXPERTS, "moe", conditions),
        attention={name: _attention_rates(configs, name, conditions) for name in ATTENTION_CLASSES},
        send=_link_rates(configs, None),
        **{name: _link_rates(configs, name) for name in COLLECTIVES},
        weight_bytes={
            component: _column([model.bytes_per_element(component, config.weight_dtype) for config in configs])
            for component in Part
        },
        input_bytes={
            component: _column([_input_bytes(model, config, component) for config in configs]) for component in Part
        },
        kv_bytes=_column([DTYPE_BYTES[config.kv_dtype] for config in configs]),
        first_token=_column([first_token_factor(model, config.accelerator, config.role) for config in configs]),
        slower=_column([_slower(model, config) if conditions.in_engine else 1.0 for config in configs]),
        peak=_column([vendor_peak(config) for config in configs]),
        bandwidth=_column([accelerator.bandwidth for accelerator in accelerators]),
        expert_largest=_column([largest_of(split.expert) for split in splits]),
        drafted=_column([config.drafted for config in configs]),
        tokens_per_step=_column([config.tokens_per_step for config in configs]),
        tails=_column([not config.whole_prompts for config in configs]),
        overhead=overhead,
        conditions=conditions,
        draft=None if draft is None else draft_layer(model, draft),
    )


def first_token_factor(model: Transformer, accelerator: Accelerator, role: Role) -> float:
    """Time until a first token over that of its prompt's steps [1]; 1 for dense models and where only prompts run."""
    return accelerator.in_engine.first_token if model.is_moe and role is not Role.PREFILL else 1.0


def _slower(model: Transformer, config: EngineConfig) -> float:
    """Time of a step in the engine's role over that of its kernels [1]."""
    inside = config.accelerator.in_engine
    worker = inside.prefill_worker if config.role is Role.PREFILL else 1.0
    return inside.expert_step * worker if model.is_moe else 1.0


def vendor_peak(config: EngineConfig) -> float:
    """Data-sheet FLOP/s of the dtype that the engine's GEMMs run in [FLOP/s]; the denominator of MFU."""
    return config.accelerator.peak_flops[compute_dtype(config.weight_dtype, config.accelerator)]


def _column(values: Sequence[float]) -> FloatArray:
    return np.asarray(values, dtype=np.float64).reshape(-1, 1)


def _input_bytes(model: Transformer, config: EngineConfig, part: Part) -> float:
    return DTYPE_BYTES[compute_dtype(model.part_dtype(part, config.weight_dtype), config.accelerator)]


def _matrix_rates(
    model: Transformer, configs: Sequence[EngineConfig], part: Part, kernel_class: str, conditions: Conditions
) -> KernelRates:
    """Rates of GEMMs over one part: FLOP/s by the dtype computed in, byte/s by the dtype stored.

    A module of latent attention was timed as a whole, so its own launch stands in for the floor of its projections.
    """
    module = part is Part.ATTENTION and model.is_latent
    apart = part is Part.EXPERTS or module  # whose conversions their own curves have
    eager = not conditions.graphs and not module
    pairs: list[tuple[KernelEfficiency, KernelEfficiency]] = []
    shares: list[float] = []
    peaks: list[float] = []
    for config in configs:
        weight_dtype = model.part_dtype(part, config.weight_dtype)
        unit_dtype = compute_dtype(weight_dtype, config.accelerator)
        kernels = kernels_of(model, config, part, conditions)
        compute = config.accelerator.efficiency[kernel_class, kernels]
        if conditions.in_engine and unit_dtype != ACTIVATION_DTYPE and not apart:
            wide = config.accelerator.efficiency[kernel_class, ACTIVATION_DTYPE]
            compute = _with_fused_cast(compute, wide, known_scales=has_known_scales(model, weight_dtype))
        traffic = compute
        if weight_dtype not in (unit_dtype, "mxfp4"):
            traffic = config.accelerator.efficiency.get((kernel_class, weight_dtype), compute)
        share = 1.0
        if part is Part.EXPERTS and weight_dtype != ACTIVATION_DTYPE == unit_dtype:
            compute, traffic, share = _expanding(config.accelerator, model, weight_dtype)
        pairs.append((compute, traffic))
        shares.append(share)
        peaks.append(config.accelerator.peak_flops[unit_dtype] * share)
    rates = _kernel_rates([config.accelerator for config in configs], peaks, pairs, conditions, eager=eager)
    if part is not Part.EXPERTS:
        return rates
    # what half fills the GPU takes as long where weights are expanded
    return replace(rates, compute_half=rates.compute_half * _column(shares))


def _expanding(
    accelerator: Accelerator, model: Transformer, weight_dtype: str
) -> tuple[KernelEfficiency, KernelEfficiency, float]:
    """Grouped kernels that expand weights on the way: their arithmetic, their traffic, and a share of the peak [1]."""
    wide = accelerator.efficiency["moe", ACTIVATION_DTYPE]
    if not model.is_mxfp4(weight_dtype):
        return wide, accelerator.efficiency.get(("moe", weight_dtype), wide), MARLIN
    narrow, own = (accelerator.efficiency.get(("moe", dtype)) for dtype in ("fp4", "mxfp4"))
    if own is None or weight_dtype == MARLIN_MXFP4:
        return wide, narrow or wide, MARLIN
    return own, narrow or wide, 1.0


def has_known_scales(model: Transformer, weight_dtype: str) -> bool:
    """Whether the checkpoint may state the scales of a matrix's inputs: published in `weight_dtype`, without blocks.

    Weights scaled in blocks, and those that an engine narrows itself, have inputs scaled as they come.
    """
    scale = model.weight_scale
    return weight_dtype == model.native_weight_dtype and (scale is None or scale.outputs == 1)


def _with_fused_cast(narrow: KernelEfficiency, wide: KernelEfficiency, *, known_scales: bool) -> KernelEfficiency:
    """A narrow GEMM as engines run it: the kernel before it converts the inputs, and no separate one does.

    known_scales: of the inputs. Otherwise they are found first, which takes the passes over the inputs of `cast`.
    """
    fused = replace(narrow, memory=max(narrow.memory, wide.memory), launch=min(narrow.launch, wide.launch))
    return replace(fused, cast=0.0) if known_scales else fused


def _attention_rates(configs: Sequence[EngineConfig], kernel_class: str, conditions: Conditions) -> KernelRates:
    fits = [config.accelerator.efficiency[kernel_class, config.kv_dtype] for config in configs]
    accelerators = [config.accelerator for config in configs]
    peaks = [accelerator.peak_flops[ACTIVATION_DTYPE] for accelerator in accelerators]
    return _kernel_rates(accelerators, peaks, [(fit, fit) for fit in fits], conditions, eager=not conditions.graphs)


def _kernel_rates(
    accelerators: Sequence[Accelerator],
    peaks: Sequence[float],
    pairs: Sequence[tuple[KernelEfficiency, KernelEfficiency]],
    conditions: Conditions,
    *,
    eager: bool,
) -> KernelRates:
    """Rates from (efficiency of the arithmetic, of the traffic) of each accelerator."""
    rows = []
    for accelerator, peak, (arithmetic, traffic) in zip(accelerators, peaks, pairs, strict=True):
        width, longer = accelerator.bandwidth, accelerator.in_engine if conditions.in_engine else InEngine()
        rows.append(
            {
                "peak": peak * arithmetic.compute / longer.arithmetic,
                "bandwidth": width * traffic.memory / longer.traffic,
                "launch": traffic.launch + (traffic.eager if eager else 0.0),
                "compute_half": arithmetic.compute_half,
                "depth_half": arithmetic.depth_half,
                "fill_half": arithmetic.fill_half,
                "cast": arithmetic.cast / width,
                "spill": arithmetic.spill / width,
                "floor": arithmetic.floor * eager,
                "single": arithmetic.single * eager,
            }
        )
    columns: dict[str, Any] = {name: _column([row[name] for row in rows]) for name in rows[0]}
    unused = {name: None for name in ("floor", "single") if not columns[name].any()}
    return KernelRates(**columns | unused)


PAIR = 2
"""GPUs on PCIe that reach each other without meeting others in the host."""


def _link_rates(configs: Sequence[EngineConfig], kernel_class: str | None) -> LinkRates:
    """Links with the collective's efficiency; with None, bare ones whose operation costs their own latency.

    Of an all-to-all it is that inside a domain alone: across, DeepEP fills the whole card (`all_to_all_time`).
    Where more than a pair of GPUs meet in the host, they have `shared` of one link together, so each has shared / n.
    """
    rows: list[tuple[float, float, float, float]] = []
    for config in configs:
        accelerator = config.accelerator
        inside, across = accelerator.scale_up, accelerator.scale_out
        if kernel_class is None:
            rows.append((inside.bandwidth, across.bandwidth, inside.latency, across.latency))
            continue
        efficiency = accelerator.efficiency[kernel_class, ACTIVATION_DTYPE]
        group = min(config.parallelism.tensor * config.parallelism.data, accelerator.scale_up_size)
        near = efficiency.shared / group if efficiency.shared and group > PAIR else efficiency.memory
        far = 1.0 if kernel_class == "all_to_all" else efficiency.memory
        rows.append((inside.bandwidth * near, across.bandwidth * far, efficiency.launch, across.latency))
    return LinkRates(*(_column(column) for column in zip(*rows, strict=True)))
