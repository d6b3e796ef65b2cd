"""Fits one efficiency curve per (accelerator, kernel class, dtype) to measured kernels and writes the catalog's file.

    python benchmarks/fit_efficiency.py [--write]    print; also write catalog/efficiency.yaml and its tables in docs

Data: PDPLAN_DATA, else ../shared/data. Accelerators without measurements are rows of that file, written by hand
(`like`, `links_like`), which it keeps.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from evidence import BY_TENSOR, GEMM_CURVE, SHARED, Evidence, collect  # noqa: E402
from kernel_tables import SYSTEMS  # noqa: E402

from benchmarks.efficiency_curve import CONSTANT, EfficiencyCurve, Fit, assess, fit, predict  # noqa: E402
from benchmarks.folders import data_folder  # noqa: E402
from costmodel.accelerator import KERNEL_CLASSES  # noqa: E402
from costmodel.engine_arrays import DISPATCHED  # noqa: E402

Key = tuple[str, str]

EFFICIENCIES = ROOT / "costmodel" / "catalog" / "efficiency.yaml"
RELATIVE = {"A100-80": "H100", "H100": "H200", "H200": "H100", "B200": "H200", "L40S": "H100"}
"""Measured GPU that stands in where another measured one lacks a table."""
MATRIX_DTYPES = ("bf16", "fp8", "int8", "fp4")
KV_DTYPES = ("bf16", "fp8")
NAMED = ("fp8_block", BY_TENSOR, DISPATCHED, "mxfp4")
"""Particular kernels, of FP8 and of MXFP4 experts expanded to 16 bit, which have an entry where a table has them."""
DTYPES_OF = {
    name: MATRIX_DTYPES if name in ("gemm", "moe") else ("bf16",) if name.startswith("all_") else KV_DTYPES
    for name in KERNEL_CLASSES
}
"""Dtypes by class: what matrices compute in; what the KV cache is stored in; collectives carry 16 bit."""

COLLECTIVE = ("memory", "launch")
CURVES = {
    "gemm": GEMM_CURVE,
    "attention_prefill": (*CONSTANT, "compute_half", "depth_half", "fill_half"),
    "attention_decode": CONSTANT,
    "latent_prefill": (*CONSTANT, "compute_half"),
    "latent_decode": CONSTANT,
    "moe": (*CONSTANT, "compute_half", "cast", "spill"),
    "all_reduce": COLLECTIVE,
    "all_reduce_large": COLLECTIVE,
    "all_to_all": COLLECTIVE,
    SHARED: COLLECTIVE,
}
"""Free parameters of each class; collectives compute nothing that counts. FP8 GEMMs also convert their inputs."""

WIDTH_HALF = 50.0
"""Head width of half efficiency where a table has one width only; H100 and H200, which have two, show 50 to 60."""

HALVES = ("compute_half", "depth_half", "fill_half", "cast", "spill")
"""Figures of an entry that are written where they are not zero."""

SAME_ROOF = {
    "attention_prefill": "attention_decode",
    "attention_decode": "attention_prefill",
    "latent_prefill": "latent_decode",
    "latent_decode": "latent_prefill",
}
EAGER = {"latent_prefill": "attention_prefill", "latent_decode": "attention_decode"}
"""Modules with a flat floor of 60 to 90 us, which looks like the host launching a dozen kernels one by one; measured
serving does not show it. The launch of the one-kernel class is taken instead; the difference is what the host adds
without a CUDA graph."""

FP4_UNITS = ("B200",)
"""Fitted accelerators with FP4 units, whose kernels are not those of their FP8 tables (docs/theory/calibration.md)."""

LEAST_SEEN = 0.005
"""A roof that decides fewer of the kernels is not in the data; its efficiency is then taken from the kindred class."""

REGIMES = {
    "gemm": ((0, 1), (3, 4)),
    "moe": ((0, 1), (3, 4)),
    "attention_prefill": ((0, 1), (2, 3)),
    "latent_prefill": ((0, 1), (2, 3)),
    "attention_decode": ((0, 1), (2, 3, 4)),
    "latent_decode": ((0, 1), (2, 3, 4)),
    "all_reduce": ((0,), (1,)),
    "all_reduce_large": ((1,), (2, 3)),
    "all_to_all": ((0, 1), (2, 3)),
    SHARED: ((), (2, 3)),
}
"""Small and large regime of each class: the indices of its bins."""

FLOOR_ROWS = 64
"""Rows up to which the median time of a suspect GEMM table is its launch floor."""


@dataclass(frozen=True, slots=True)
class Result:
    """One fitted table: the curve that the catalog gets and the constant that it is compared with."""

    evidence: Evidence
    constant: Fit
    curve: Fit

    @property
    def key(self) -> tuple[str, str, str]:
        """Accelerator, kernel class, dtype."""
        return self.evidence.accelerator, self.evidence.kernel_class, self.evidence.dtype

    def error(self, curve: EfficiencyCurve, bins: tuple[int, ...]) -> float:
        """Median absolute relative error of `curve` over the rows in `bins`; NaN without rows."""
        rows = self.evidence.samples.where(np.isin(self.evidence.samples.regime, bins))
        if not rows.seconds.size:
            return math.nan
        return float(np.median(np.abs(predict(curve, rows) / rows.seconds - 1.0)))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the catalog; eager, floor, single [s] and shared [1] as in `KernelEfficiency`."""

    curve: EfficiencyCurve
    origin: str
    source: str
    error: float
    eager: float = 0.0
    floor: float = 0.0
    shared: float = 0.0
    single: float = 0.0

    def figures(self) -> dict[str, float]:
        """Figures as they stand in the file."""
        shapes = {name: float(f"{getattr(self.curve, name):.4g}") for name in HALVES if getattr(self.curve, name)}
        times = {f"{name}_us": round(getattr(self, name) * 1e6, 2) for name in ("eager", "floor", "single")}
        return {
            "compute": round(self.curve.compute, 4),
            "memory": round(self.curve.memory, 4),
            "launch_us": round(self.curve.launch * 1e6, 2),
            **shapes,
            **({"shared": round(self.shared, 4)} if self.shared else {}),
            **{name: value for name, value in times.items() if value},
        }

    def yaml(self) -> str:
        """As a YAML flow mapping."""
        figures = ", ".join(f"{name}: {value:.12g}" for name, value in self.figures().items())
        error = ".nan" if math.isnan(self.error) else f"{self.error:.3f}"
        return f"{{{figures}, origin: {self.origin}, source: {json.dumps(self.source)}, error: {error}}}"


def shows_one_group(evidence: Evidence) -> bool:
    """Whether a table of experts has no rows with several groups of them, which alone show `spill`."""
    elsewhere = evidence.samples.elsewhere
    return elsewhere is not None and not elsewhere.any()


def fit_one(evidence: Evidence, *, compare: bool = True) -> Result:
    """Curve of one table and, to compare it with, the constant (else the curve again)."""
    free = CURVES[evidence.kernel_class]
    base = EfficiencyCurve(compute=1.0, memory=1.0, launch=0.0)
    if evidence.kernel_class == "gemm" and evidence.dtype != "bf16":
        free = (*free, "cast")
    if shows_one_group(evidence):
        free = tuple(name for name in free if name != "spill")
    depth = evidence.samples.depth
    if evidence.kernel_class == "attention_prefill" and depth is not None and np.ptp(depth) == 0:
        free = tuple(name for name in free if name != "depth_half")
        base = replace(base, depth_half=WIDTH_HALF)
    curve = fit(evidence.samples, free, base)
    constant = tuple(name for name in CONSTANT if name in free)
    return Result(evidence, fit(evidence.samples, constant) if compare else curve, curve)


def entries_of(results: list[Result]) -> dict[str, dict[Key, Entry]]:
    """Fitted entries by accelerator; roofs that the data do not show come from the kindred class."""
    found: dict[str, dict[Key, Entry]] = {}
    curves = {result.key: result.curve for result in results}
    for result in results:
        name, kernel_class, dtype = result.key
        curve, source, eager = result.curve.curve, result.evidence.source, 0.0
        kindred = curves.get((name, SAME_ROOF.get(kernel_class, kernel_class), dtype))
        if kindred and kindred is not result.curve:
            for roof, seen in (("compute", result.curve.compute_bound), ("memory", result.curve.memory_bound)):
                if seen < LEAST_SEEN:
                    curve = replace(curve, **{roof: getattr(kindred.curve, roof)})
                    source += f"; {roof} roof not reached, taken from {SAME_ROOF[kernel_class]}"
        graphed = curves.get((name, EAGER.get(kernel_class, ""), dtype))
        if graphed:
            source += f"; launch of {EAGER[kernel_class]}, the rest of the module's {curve.launch * 1e6:.0f} us eager"
            eager = max(curve.launch - graphed.curve.launch, 0.0)
            curve = replace(curve, launch=graphed.curve.launch)
        source += "".join(
            f"; suspect: {finding.rule}, {finding.figure:.2f}"
            for finding in result.evidence.findings
            if finding.suspect
        )
        if shows_one_group(result.evidence):
            curve = replace(curve, spill=curves[name, kernel_class, BY_TENSOR].curve.spill)
            source += "; spill of composed steps"
        error = assess(replace(curve, launch=curve.launch + eager), result.evidence.samples).error
        if kernel_class == SHARED:
            continue
        shared = curves.get((name, SHARED, dtype)) if kernel_class.startswith("all_reduce") else None
        single = result.evidence.single
        found.setdefault(name, {})[kernel_class, dtype] = Entry(
            curve,
            "fitted",
            source,
            error,
            eager,
            shared=shared.curve.memory if shared else 0.0,
            single=single.figure if single else 0.0,
        )
    return found


def with_floors(entries: dict[str, dict[Key, Entry]], found: Iterable[Evidence]) -> dict[str, dict[Key, Entry]]:
    """Entries with one more per suspect block-scaled GEMM table: the FP8 curve above the table's launch floor."""
    more = {name: dict(table) for name, table in entries.items()}
    for item in found:
        if (item.kernel_class, item.dtype) == ("gemm", "fp8_block"):
            samples = item.samples
            tokens = samples.inputs[:, 0] / samples.shape("depth", 1.0)[:, 0]
            floor = float(np.median(samples.seconds[tokens <= FLOOR_ROWS]))
            curve = more[item.accelerator]["gemm", "fp8"]
            source = f"as fp8 above the floor of the suspect table {item.source}; only where asked for"
            more[item.accelerator]["gemm", "fp8_block"] = replace(
                curve, origin="assumed", source=source, error=math.nan, floor=floor
            )
    return more


def assume(entry: Entry, source: str) -> Entry:
    """The same figures, marked as assumed for this GPU or dtype; a slow kernel for single rows is not passed on."""
    return replace(entry, origin="assumed", source=source, error=math.nan, single=0.0)


def moving_as(own: Entry, other: Entry, name: str) -> Entry:
    """The arithmetic of `own`, with bytes moved as well as by `other` of the accelerator `name`."""
    curve = replace(own.curve, memory=other.curve.memory, spill=other.curve.spill)
    return assume(replace(own, curve=curve), f"arithmetic as fp8 of composed steps; traffic as fp8 on {name}")


def middle(entries: list[Entry]) -> tuple[EfficiencyCurve, float]:
    """Median of every figure of the curves, and of what the host adds."""
    names = [field.name for field in fields(EfficiencyCurve)]
    figures = {name: float(np.median([getattr(entry.curve, name) for entry in entries])) for name in names}
    return EfficiencyCurve(**figures), float(np.median([entry.eager for entry in entries]))


def medians(entries: Mapping[str, Mapping[Key, Entry]]) -> dict[Key, Entry]:
    """Median of the fitted accelerators by class and dtype, suspect tables apart; INT8 and FP4 as FP8."""
    found: dict[Key, Entry] = {}
    for name in KERNEL_CLASSES:
        for dtype in DTYPES_OF[name]:
            key = (name, dtype if dtype in KV_DTYPES else "fp8")
            rows = [table[key] for table in entries.values() if key in table]
            curve, eager = middle([row for row in rows if "suspect" not in row.source])
            source = "median of fitted accelerators" if key[1] == dtype else "as fp8: median of fitted accelerators"
            found[name, dtype] = Entry(curve, "assumed", source, math.nan, eager)
    return found


def complete(entries: dict[str, dict[Key, Entry]], default: dict[Key, Entry]) -> dict[str, dict[Key, Entry]]:
    """Fill each measured accelerator's gaps: INT8 and FP4 as FP8, the rest as its relative, else the median."""
    filled: dict[str, dict[Key, Entry]] = {}
    for name, table in entries.items():
        filled[name] = dict(table)
        for key, usual in default.items():
            twin = (key[0], "fp8")
            relative = entries.get(RELATIVE[name], {})
            if key in table:
                continue
            if key[1] == "fp4" and name in FP4_UNITS and twin in table and twin in relative:
                own = table.get((key[0], BY_TENSOR), table[twin])
                filled[name][key] = moving_as(own, relative[twin], RELATIVE[name])
            elif key[1] not in KV_DTYPES and twin in table:
                filled[name][key] = assume(table[twin], "as fp8 on the same GPU")
            elif key in relative and not key[0].startswith("all_reduce"):
                filled[name][key] = assume(relative[key], f"as {RELATIVE[name]}")
            else:
                filled[name][key] = usual
        links, dispatch = filled[name]["all_reduce", "bf16"], ("all_to_all", "bf16")
        filled[name][dispatch] = replace(filled[name][dispatch], shared=links.shared)
    return filled


def yaml_text(entries: dict[str, dict[Key, Entry]], default: dict[Key, Entry], old: str) -> str:
    """The catalog file; old: the one before it, whose rows of accelerators without measurements are kept."""
    lines = [
        "# written by benchmarks/fit_efficiency.py; see docs/theory/calibration.md",
        "# compute: share of the data sheet's peak (gemm, moe: in the compute dtype; attention: in bf16, by KV dtype)",
        "# memory: share of HBM bandwidth; for all_reduce and all_to_all, of the link (one direction)",
        "# compute_half, depth_half, fill_half: size, depth and parallel work at which half of `compute` is reached",
        "# cast, spill: bytes per element that separate kernels move; eager_us, floor_us, single_us: without a CUDA",
        "# graph, what the host adds, the least time of a kernel, and what a single row takes more; shared: share of",
        "# one link that more than two ranks share",
        "# fp8_block, fp8_tensor: particular kernels, only where asked for by name; fp8_dispatched: after a dispatch",
        "# like: as that accelerator, but assumed; links_like: the same of collectives, where links are another kind;",
        "# these rows are written by hand, and kept",
    ]
    for name, table in {"default": default, **entries}.items():
        lines.append(f"{name}:")
        for kernel_class in KERNEL_CLASSES:
            lines.append(f"  {kernel_class}:")
            dtypes = [*DTYPES_OF[kernel_class], *(dtype for dtype in NAMED if (kernel_class, dtype) in table)]
            lines += [f"    {dtype}: {table[kernel_class, dtype].yaml()}" for dtype in dtypes]
    alike = (line for line in old.splitlines() if ": {like: " in line)
    lines += [line for line in alike if line.split(":")[0] not in entries]
    return "\n".join(lines) + "\n"


def percent(value: float) -> str:
    """A share as whole percent."""
    return "" if math.isnan(value) else f"{100 * value:.0f} %"


def fit_table(results: list[Result]) -> str:
    """Markdown: parameters and errors of the curve, error of the constant, error if the relative's were used."""
    head = (
        "| accelerator | class | dtype | rows | η compute | half at | depth | fill | η memory | cast | spill "
        "| launch µs | error | small | large | bias | constant: error | relative's: error |\n"
        + "|---" * 3
        + "|---:" * 15
        + "|\n"
    )
    fits = {result.key: result.curve.curve for result in results}
    lines = []
    for result in results:
        name, kernel_class, dtype = result.key
        small, large = REGIMES[kernel_class]
        curve = result.curve.curve
        cousin = fits.get((RELATIVE[name], kernel_class, dtype))
        cells = [
            name,
            kernel_class,
            dtype,
            f"{result.curve.rows:,}",
            "" if CURVES[kernel_class] == COLLECTIVE else f"{curve.compute:.2f}",
            *(f"{value:,.0f}" if value else "" for value in (curve.compute_half, curve.depth_half, curve.fill_half)),
            f"{curve.memory:.2f}",
            *(f"{value:.1f}" if value else "" for value in (curve.cast, curve.spill)),
            f"{curve.launch * 1e6:.1f}",
            percent(result.curve.error),
            percent(result.error(curve, small)),
            percent(result.error(curve, large)),
            f"{100 * result.curve.bias:+.0f} %",
            percent(result.constant.error),
            percent(result.error(cousin, tuple(range(8)))) if cousin else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(lines)


def suspect_table(found: list[Evidence]) -> str:
    """Markdown: what was set aside and by which rule."""
    lines = ["| table | rule | figure | shapes |\n|---|---|---:|---:|"]
    for item in found:
        table = f"{item.accelerator} {item.kernel_class}: {item.source}"
        lines += [f"| {table} | {one.rule} | {one.figure:.2f} | {one.rows} |" for one in item.findings if one.suspect]
        if item.single:
            lines.append(f"| {table} | {item.single.rule} | {item.single.figure * 1e6:.1f} µs | {item.single.rows} |")
    return "\n".join(lines)


def replace_between(text: str, name: str, table: str) -> str:
    """The page with the part between the two markers of `name` replaced."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Fit, print, and write if asked."""
    found = collect(data_folder())
    results = [fit_one(item) for item in found if item.fitted]
    order = {name: index for index, name in enumerate(SYSTEMS.values())}
    classes = (*KERNEL_CLASSES, SHARED)
    results.sort(key=lambda result: (order[result.key[0]], classes.index(result.key[1]), result.key[2]))
    entries = with_floors(entries_of(results), found)
    default = medians(entries)
    tables = {"fits": fit_table(results), "suspect": suspect_table(found)}
    print(*tables.values(), sep="\n\n")
    if "--write" not in sys.argv[1:]:
        return
    old = EFFICIENCIES.read_text(encoding="utf-8")
    EFFICIENCIES.write_text(yaml_text(complete(entries, default), default, old), encoding="utf-8")
    page = ROOT / "docs" / "appendix" / "calibration.md"
    content = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        content = replace_between(content, name, table)
    page.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
