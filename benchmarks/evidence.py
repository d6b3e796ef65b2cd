"""Which measurements are evidence for which efficiency, and which are set aside as suspect, by rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from kernel_tables import (
    DTYPES,
    ELEMENT,
    SYSTEMS,
    WIDE,
    Array,
    Hardware,
    Row,
    collective_samples,
    columns,
    decode_samples,
    dispatch_samples,
    gemm_samples,
    latent_samples,
    load_hardware,
    moe_samples,
    prefill_samples,
    rows_of,
)
from step_tables import Shape, all_reduce_steps, attention_steps, gemm_steps, load_shapes, moe_steps
from suspect import Finding, beats_physics, link_unused, narrower_is_slower, one_row_slower

from benchmarks.efficiency_curve import CONSTANT, Samples, fit
from costmodel.engine_arrays import DISPATCHED
from costmodel.transformer import touched_experts

SHARED = "all_reduce_shared"
"""All-reduces of more than two ranks that share one link; not a class of its own, but a figure of both others."""

GEMM_CURVE = (*CONSTANT, "compute_half", "depth_half")
"""Free parameters of a GEMM's curve."""

BY_TENSOR = "fp8_tensor"
"""FP8 experts with one scale for each matrix, where others are scaled in blocks."""
Key = tuple[str, str, str]

CACHE = {"A100-80": 40e6, "H100": 50e6, "H200": 50e6, "B200": 126e6, "L40S": 96e6}
"""VENDOR: L2 cache [byte] (white papers of Ampere, Hopper and Ada; tuning guide of Blackwell)."""
COPIES = {"gemm": 6, "moe": 1}
"""Copies of its weights that a timed kernel takes in turn (AIConfigurator's collectors for vLLM) [1]."""

SMALL = 64.5
"""Tokens up to which a GEMM reads more than it computes; dtypes are compared there."""
TABLES = "NVIDIA AIConfigurator silicon tables, Apache-2.0"
COMPOSED = "serving/engine_steps.csv"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Samples for one (accelerator, class, dtype) with their source, what was set aside, and what rules found.

    single: a rule that objects to the rows of single tokens only, which are then not among the samples.
    """

    accelerator: str
    kernel_class: str
    dtype: str
    samples: Samples
    source: str
    impossible: int
    findings: tuple[Finding, ...] = ()
    single: Finding | None = None

    @property
    def key(self) -> Key:
        """Accelerator, kernel class, dtype."""
        return self.accelerator, self.kernel_class, self.dtype

    @property
    def suspect(self) -> bool:
        """Whether any rule objects to the table as a whole."""
        return any(finding.suspect for finding in self.findings)

    @property
    def fitted(self) -> bool:
        """Whether it is fitted: not suspect, or under a name of its own, or alone in speaking of the link."""
        return not self.suspect or self.dtype == BY_TENSOR or self.kernel_class.startswith("all_reduce")


def evidence(
    name: str, kernel_class: str, dtype: str, samples: Samples, source: str, findings: Iterable[Finding] = ()
) -> Evidence:
    """Evidence without the rows that beat physics; a ring is no bound where the switch itself sums up (NVLS)."""
    samples = beyond_cache(samples, CACHE[name] / COPIES[kernel_class]) if kernel_class in COPIES else samples
    impossible = beats_physics(samples.seconds, samples.floor())
    if kernel_class.startswith("all_reduce"):
        impossible = np.zeros_like(impossible)
    return Evidence(
        name, kernel_class, dtype, samples.where(~impossible), source, int(impossible.sum()), tuple(findings)
    )


def beyond_cache(samples: Samples, reach: float) -> Samples:
    """Samples whose kernels read from memory only what a cache of so many bytes does not hold.

    A kernel timed again and again finds small weights in the cache; in an engine the other layers have been there
    since. Where rows within reach beat the memory, none within reach says anything about it: on L40S.
    """
    inside = samples.traffic <= reach
    quick = beats_physics(samples.seconds, samples.floor())
    if not (inside.all(axis=1) & quick).any():
        return samples
    return replace(samples, traffic=np.where(inside, 0.0, samples.traffic))


def match(narrow: list[Row], wide: list[Row], keys: tuple[str, ...], value: str) -> tuple[list[Row], Array, Array]:
    """Rows of `narrow` that have a twin of equal `keys` in `wide`, with the two times [s]."""
    twins = {tuple(row[key] for key in keys): float(row[value]) * 1e-3 for row in wide}
    paired = [row for row in narrow if tuple(row[key] for key in keys) in twins]
    return (
        paired,
        np.array([float(row[value]) * 1e-3 for row in paired]),
        np.array([twins[tuple(row[key] for key in keys)] for row in paired]),
    )


def compare_gemm(narrow: list[Row], wide: list[Row], hardware: Hardware) -> Finding:
    """FP8 against BF16 GEMMs of equal shape at decode size."""
    small = [row for row in narrow if float(row["m"]) <= SMALL]
    paired, t_narrow, t_wide = match(small, wide, ("m", "n", "k"), "latency_ms")
    m, n, k = columns(paired, "m", "n", "k")
    return narrower_is_slower(t_narrow, t_wide, (n * k + m * (k + WIDE * n)) / hardware.bandwidth)


def compare_moe(narrow: list[Row], wide: list[Row], hardware: Hardware) -> Finding:
    """FP8 against BF16 experts of equal shape at decode size."""
    shape = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    small = [row for row in narrow if float(row["num_tokens"]) <= SMALL and row["moe_ep_size"] == "1"]
    paired, t_narrow, t_wide = match(small, wide, (*shape, "distribution"), "latency_ms")
    tokens, hidden, inter, topk, experts, tensor, _ = columns(paired, *shape)
    floor = touched_experts(experts, topk, tokens) * 3 * hidden * inter / tensor / hardware.bandwidth
    return narrower_is_slower(t_narrow, t_wide, floor)


def compare_steps(narrow: list[Row], wide: list[Row], value: str, sol: str) -> Finding:
    """FP8 against BF16 steps of equal layout at decode size; the floor per kernel is the step's over 4 x 80 kernels."""
    keys = ("model", "tp", "moe_tp", "moe_ep", "phase", "batch", "seq")
    small = [row for row in narrow if row["phase"] == "decode" and float(row["batch"]) <= SMALL and float(row[value])]
    paired, t_narrow, t_wide = match(small, wide, keys, value)
    return narrower_is_slower(t_narrow, t_wide, np.array([float(row[sol]) * 1e-3 for row in paired]) / 320)


def select(rows: list[Row], **wanted: str) -> list[Row]:
    """Rows whose columns have the wanted values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


NEWER = "l40s"
"""System whose matrices and experts are in the tables of 2026 alone."""


def matrix_rows(folder: Path, table: str) -> list[Row]:
    """Rows of a table of matrices or experts, vLLM's."""
    newer = rows_of(folder / "kernels" / f"{table}_2026.csv.gz")
    return rows_of(folder / "kernels" / f"{table}.csv.gz") + select(newer, system=NEWER, backend="vllm")


def source_of(table: str, rows: list[Row]) -> str:
    """Where a table's rows come from."""
    newer = "_2026" if rows[0]["system"] == NEWER else ""
    return f"kernels/{table}{newer}.csv ({TABLES}), {rows[0]['backend']} {rows[0]['version']}"


def gemm_evidence(folder: Path, hardware: dict[str, Hardware]) -> list[Evidence]:
    """GEMM tables; FP8 ones are compared with BF16."""
    rows = matrix_rows(folder, "gemm")
    records = []
    for system, name in SYSTEMS.items():
        wide = select(rows, system=system, dtype="bfloat16")
        for kind in ("bfloat16", "fp8", "fp8_block"):
            system_rows = select(rows, system=system, dtype=kind)
            if not system_rows:
                continue
            rules = [] if kind == "bfloat16" else [compare_gemm(system_rows, wide, hardware[name])]
            dtype = DTYPES[kind]
            kept = "fp8_block" if kind == "fp8_block" and any(rule.suspect for rule in rules) else dtype
            samples = gemm_samples(system_rows, hardware[name], dtype)
            records.append(evidence(name, "gemm", kept, samples, source_of("gemm", system_rows) + f" {kind}", rules))
    return records


def attention_evidence(folder: Path, hardware: dict[str, Hardware]) -> list[Evidence]:
    """Prefill and decode attention by dtype of the cache."""
    records = []
    readers: tuple[tuple[str, str, Callable[[list[Row], Hardware, str], Samples]], ...] = (
        ("ctx_attn", "attention_prefill", prefill_samples),
        ("gen_attn", "attention_decode", decode_samples),
    )
    for table, kernel_class, reader in readers:
        rows = rows_of(folder / "kernels" / f"{table}.csv.gz")
        for system, name in SYSTEMS.items():
            for kind in ("bfloat16", "fp8"):
                system_rows = select(rows, system=system, kv_cache_dtype=kind)
                if system_rows:
                    samples = reader(system_rows, hardware[name], DTYPES[kind])
                    records.append(evidence(name, kernel_class, DTYPES[kind], samples, source_of(table, system_rows)))
    return records


def latent_evidence(folder: Path, hardware: dict[str, Hardware], gemms: list[Evidence]) -> list[Evidence]:
    """MLA modules, less their projections as the BF16 GEMM fit of the same GPU prices them."""
    rows = rows_of(folder / "kernels" / "mla.csv.gz")
    records = []
    for gemm in gemms:
        system = next(system for system, name in SYSTEMS.items() if name == gemm.accelerator)
        if gemm.dtype != "bf16" or not select(rows, system=system):
            continue
        curve = fit(gemm.samples, GEMM_CURVE).curve
        for phase, kernel_class in (("context", "latent_prefill"), ("generation", "latent_decode")):
            for kind in ("bfloat16", "fp8"):
                system_rows = select(rows, system=system, kv_cache_dtype=kind, gemm_type="bfloat16", phase=phase)
                samples = latent_samples(system_rows, hardware[gemm.accelerator], DTYPES[kind], kernel_class, curve)
                source = source_of("mla", system_rows) + " module less its GEMMs"
                records.append(evidence(gemm.accelerator, kernel_class, DTYPES[kind], samples, source))
    return records


def moe_evidence(folder: Path, hardware: dict[str, Hardware]) -> list[Evidence]:
    """Fused experts; FP8 ones are compared with BF16."""
    rows = matrix_rows(folder, "moe")
    records = []
    for system, name in SYSTEMS.items():
        wide = select(rows, system=system, dtype="bfloat16")
        for kind in ("bfloat16", "fp8", "fp8_block"):
            system_rows = select(rows, system=system, dtype=kind)
            if not system_rows:
                continue
            rules = [] if kind == "bfloat16" else [compare_moe(system_rows, wide, hardware[name])]
            samples = moe_samples(system_rows, hardware[name], DTYPES[kind])
            kept = BY_TENSOR if kind == "fp8" else DTYPES[kind]
            records.append(evidence(name, "moe", kept, samples, source_of("moe", system_rows) + f" {kind}", rules))
    return records


EXPANDING_VERSIONS = {"0.24.0": "vllm 0.24.0", "1.3.0rc20": "trtllm 1.3.0rc20"}
"""Newest tables of engines that have a kernel for MXFP4 experts on Hopper."""


def newer_moe_evidence(folder: Path, hardware: dict[str, Hardware]) -> list[Evidence]:
    """Experts of B200: the common kernel of SGLang and vLLM in newer tables, and DeepGEMM after a dispatch.

    FP8 ones of the former on one group of ranks: what several groups add is as composed steps show (`BY_TENSOR`), for
    served rows ask for more than those tables have.
    """
    rows = select(rows_of(folder / "kernels" / "moe_2026.csv.gz"), system="b200_sxm")
    own = [row for row in rows if "flashinfer_trtllm" in row["kernel_source"]]
    source = "flashinfer_trtllm of sglang 0.5.14 and vllm 0.24.0"
    tables = (
        ("bf16", select(own, dtype="bfloat16"), f"{source} bfloat16"),
        ("fp8", select(own, dtype="fp8_block", moe_ep_size="1"), f"{source} fp8_block"),
        (DISPATCHED, select(rows, kernel_source="deepgemm"), "DeepGEMM of trtllm 1.3.0rc20 fp8_block"),
    )
    return [
        evidence(
            "B200",
            "moe",
            dtype,
            moe_samples(system_rows, hardware["B200"], dtype.partition("_")[0]),
            f"kernels/moe_2026.csv ({TABLES}), {name}",
        )
        for dtype, system_rows, name in tables
    ]


def expanding_evidence(folder: Path, hardware: dict[str, Hardware]) -> list[Evidence]:
    """MXFP4 experts that a kernel expands to 16 bit, on GPUs without FP4 units: those of vLLM and TensorRT-LLM."""
    rows = select(rows_of(folder / "kernels" / "moe_2026.csv.gz"), dtype="w4a16_mxfp4")
    records = []
    for system in ("h100_sxm", "h200_sxm", "l40s"):
        system_rows = [row for row in select(rows, system=system) if row["version"] in EXPANDING_VERSIONS]
        system_rows = [row for row in system_rows if "situ" not in row["kernel_source"]]  # of Kimi-K3's activation
        source = f"kernels/moe_2026.csv ({TABLES}), {' and '.join(EXPANDING_VERSIONS.values())} w4a16_mxfp4"
        samples = moe_samples(system_rows, hardware[SYSTEMS[system]], "mxfp4")
        records.append(evidence(SYSTEMS[system], "moe", "mxfp4", samples, source))
    return records


DISPATCH = "moe_a2a_trtllm"
"""Table of the kernels that bring tokens to their experts and back; others in it do not move 16 bit both ways."""
ONE_SIDED = Path(__file__).parent / "measured" / "dispatch_gb200.csv"
"""The same by kernels that write and read the memory of other GPUs over NVLink, on 8 to 64 GPUs of a GB200 NVL72. B200
has the same GPUs, links and kernels."""
ONE_SIDED_SOURCE = (
    "NVLinkOneSided of TensorRT-LLM on GB200 NVL72 (docs/source/blogs/tech_blog/blog18, 22de8b34, Apache-2.0)"
)


def collective_evidence(folder: Path, hardware: dict[str, Hardware]) -> list[Evidence]:
    """vLLM's all-reduce inside a CUDA graph, newest version; dispatch and combine of experts in 16 bit (`DISPATCH`)."""
    rows = rows_of(folder / "kernels" / "comm.csv.gz")
    records = []
    for system, name in SYSTEMS.items():
        for kernel_class, wanted in (
            ("all_reduce", {"kernel": "vLLM_custom_graph", "op": "all_reduce"}),
            ("all_reduce_large", {"kernel": "vLLM_custom_graph", "op": "all_reduce"}),
        ):
            system_rows = select(rows, system=system, **wanted)
            if not system_rows:
                continue
            newest = max(
                {row["version"] for row in system_rows}, key=lambda text: [int(part) for part in text.split(".")]
            )
            system_rows = select(system_rows, version=newest)
            samples = collective_samples(system_rows, hardware[name], kernel_class)
            source = f"kernels/comm.csv ({TABLES}), {wanted['kernel']} {newest}"
            records.append(evidence(name, kernel_class, "bf16", samples, source, [link_rule(samples)]))
        system_rows = select(rows, system=system, source=DISPATCH, dtype="bfloat16")
        if system_rows:
            version = system_rows[0]["version"]
            source = f"kernels/comm.csv ({TABLES}), DeepEP of trtllm {version}, the quicker of both kernels"
            records.append(evidence(name, "all_to_all", "bf16", dispatch_samples(system_rows, hardware[name]), source))
    one_sided = dispatch_samples(rows_of(ONE_SIDED), hardware["B200"], spread=True)
    return [*records, evidence("B200", "all_to_all", "bf16", one_sided, ONE_SIDED_SOURCE)]


def link_rule(samples: Samples) -> Finding:
    """`link_unused` on messages whose ideal time is over 50 us."""
    ideal = samples.traffic[:, 0] / samples.bandwidth
    large = ideal > 50e-6
    if not large.any():
        return Finding("link unused", False, float("nan"), 0)
    return link_unused(samples.seconds[large] / samples.count[large, 0], ideal[large])


def step_evidence(
    folder: Path, hardware: dict[str, Hardware], tables: Collection[Key], without: str | None = None
) -> list[Evidence]:
    """Steps composed from kernels, for what no table of kernels is evidence of: the same classes, summed over a step.

    Where tables have FP8 experts scaled in blocks alone, steps are evidence of those with one scale for each matrix.
    tables: what they are evidence of; without: a model whose rows are left out, to be predicted from the others.
    """
    shapes = load_shapes(folder)
    models = shapes.keys() - {without}
    rows = [row for row in rows_of(folder / "serving" / "engine_steps.csv") if row["model"] in models]
    records = []
    for system, name in SYSTEMS.items():
        if (name, "attention_prefill", "bf16") in tables:
            continue
        origin = f"{COMPOSED} ({TABLES}, composed), vllm {select(rows, system=system)[0]['backend_version']}"
        roof = hardware[name]
        wide = select(rows, system=system, dtype="bf16")
        for dtype in ELEMENT:
            system_rows = select(rows, system=system, dtype=dtype)
            slower = [compare_steps(system_rows, wide, "gemm_ms", "sol_gemm_ms")] if dtype != "bf16" else []
            records.append(gemm_of_steps(name, dtype, system_rows, slower, shapes, roof, origin))
            experts = [row for row in system_rows if row["moe_ep"]]
            if not experts:
                continue
            slower = [compare_steps(experts, wide, "moe_ms", "sol_moe_ms")] if dtype != "bf16" else []
            kept = BY_TENSOR if dtype == "fp8" and (name, "moe", dtype) in tables else dtype
            records.append(evidence(name, "moe", kept, moe_steps(experts, shapes, roof, dtype), origin, slower))
        for phase in ("prefill", "decode"):
            samples = attention_steps(select(wide, phase=phase), shapes, roof, phase)
            records.append(evidence(name, f"attention_{phase}", "bf16", samples, origin))
        records += link_evidence(name, select(rows, system=system), shapes, roof, origin)
    return [item for item in records if item.key not in tables]


def gemm_of_steps(
    name: str,
    dtype: str,
    rows: list[Row],
    findings: list[Finding],
    shapes: dict[str, Shape],
    roof: Hardware,
    origin: str,
) -> Evidence:
    """GEMMs of steps; those of single rows are set aside where they are slower than those of eight."""
    single = compare_single(rows, shapes)
    kept = [row for row in rows if not (single.suspect and row["phase"] == "decode" and row["batch"] == "1")]
    record = evidence(name, "gemm", dtype, gemm_steps(kept, shapes, roof, dtype), origin, findings)
    return replace(record, single=single if single.suspect else None)


def compare_single(rows: list[Row], shapes: dict[str, Shape]) -> Finding:
    """GEMMs of decode steps with one request against those with eight, per matrix that is split over the layers."""
    layout = ("model", "tp", "moe_tp", "moe_ep", "seq")
    decodes = [row for row in rows if row["phase"] == "decode"]
    one, t_one, t_few = match(select(decodes, batch="1"), select(decodes, batch="8"), layout, "gemm_ms")
    of = [shapes[row["model"]] for row in one]
    kernels = np.array([float(shape.layers * (2 if shape.experts else 4)) for shape in of])
    return one_row_slower(t_one, t_few, kernels)


def link_evidence(name: str, rows: list[Row], shapes: dict[str, Shape], roof: Hardware, origin: str) -> list[Evidence]:
    """All-reduces of steps. Where the link looks unused, a pair is told from larger groups, which share it."""
    joined = [row for row in rows if row["tp"] != "1"]
    large = all_reduce_steps(joined, shapes, roof, "all_reduce_large")
    rule = link_rule(large)
    own = [row for row in joined if row["tp"] == "2"] if rule.suspect else joined
    records = [
        evidence(name, operation, "bf16", all_reduce_steps(own, shapes, roof, operation), origin, [rule])
        for operation in ("all_reduce", "all_reduce_large")
    ]
    if rule.suspect:
        rest = [row for row in joined if row["tp"] != "2"]
        samples = all_reduce_steps(rest, shapes, roof, "all_reduce_large", together=True)
        records.append(evidence(name, SHARED, "bf16", samples, origin, [rule]))
    return records


def collect(folder: Path) -> list[Evidence]:
    """All evidence in the folder."""
    hardware = load_hardware()
    gemms = gemm_evidence(folder, hardware)
    records = gemms + attention_evidence(folder, hardware) + latent_evidence(folder, hardware, gemms)
    records += moe_evidence(folder, hardware) + collective_evidence(folder, hardware)
    records += newer_moe_evidence(folder, hardware) + expanding_evidence(folder, hardware)
    return records + step_evidence(folder, hardware, {item.key for item in records})
