"""Fits one efficiency per (accelerator, kernel class, dtype) to measured kernels and writes the catalog's file.

    python benchmarks/fit_efficiency.py            print the fits and what was set aside
    python benchmarks/fit_efficiency.py --write    also write costmodel/catalog/efficiency.yaml and docs/calibration.md

Data: PDPLAN_DATA, else ../shared/data.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from evidence import Evidence, collect  # noqa: E402
from kernel_tables import SYSTEMS, data_folder  # noqa: E402

from costmodel.calibration.curves import EfficiencyCurve  # noqa: E402
from costmodel.calibration.fit import CONSTANT, CURVE, Fit, assess, fit, predict  # noqa: E402
from costmodel.roofline import KERNEL_CLASSES  # noqa: E402

Key = tuple[str, str]

MATRIX_DTYPES = ("bf16", "fp8", "int8", "fp4")
KV_DTYPES = ("bf16", "fp8")
DTYPES_OF = {
    name: MATRIX_DTYPES if name in ("gemm", "moe") else ("bf16",) if name.startswith("all_") else KV_DTYPES
    for name in KERNEL_CLASSES
}
"""Dtypes by class: what matrices compute in; what the KV cache is stored in; collectives carry 16 bit."""

RELATIVE = {"A100-80": "H100", "H100": "H200", "H200": "H100", "B200": "H200", "L40S": "H100"}
"""Measured GPU that stands in where another measured one lacks a table."""

LIKE = {
    "A100-40": "A100-80",
    "A100-40-PCIe": "A100-80",
    "A100-80-PCIe": "A100-80",
    "A10G": "A100-80",
    "H100-PCIe": "H100",
    "H100-NVL": "H100",
    "H20": "H100",
    "B300": "B200",
    "GB200": "B200",
    "GB300": "B200",
    "L4": "L40S",
    "RTX-PRO-6000": "L40S",
    "MI300X": "default",
    "MI325X": "default",
    "MI355X": "default",
}
"""Nearest measured relative of GPUs without measurements: same architecture first, same kind of memory second."""

UNUSED = dict.fromkeys(("all_reduce", "all_to_all"), ("compute", "compute_half"))
"""Parameters without meaning for a class: collectives compute nothing that counts."""
SAME_ROOF = {
    "attention_prefill": "attention_decode",
    "attention_decode": "attention_prefill",
    "latent_prefill": "latent_decode",
    "latent_decode": "latent_prefill",
}
EAGER = {"latent_prefill": "attention_prefill", "latent_decode": "attention_decode"}
"""Modules with a flat floor of 60 to 90 us, which looks like the host launching a dozen kernels one by one; measured
serving does not show it. The launch of the one-kernel class is taken instead, and `error` is that of the result."""

LEAST_SEEN = 0.005
"""A roof that decides fewer of the kernels is not in the data; its efficiency is then taken from the kindred class."""

REGIMES = {
    "gemm": ("m <= 64", (0, 1, 2), "m >= 512", (4, 5)),
    "moe": ("T <= 64", (0, 1, 2), "T >= 512", (4, 5)),
    "attention_prefill": ("128 to 1,536", (0, 1), ">= 2,048", (2, 3)),
    "latent_prefill": ("128 to 1,536", (0, 1), ">= 2,048", (2, 3)),
    "attention_decode": ("KV < 10 MB", (0, 1), "KV >= 10 MB", (2, 3, 4)),
    "latent_decode": ("KV < 10 MB", (0, 1), "KV >= 10 MB", (2, 3, 4)),
    "all_reduce": ("< 1 MB", (0, 1), ">= 1 MB", (2, 3)),
    "all_to_all": ("< 1 MB", (0, 1), ">= 1 MB", (2, 3)),
}
"""Small and large regime of each class: label and the indices of its bins."""


@dataclass(frozen=True, slots=True)
class Result:
    """One fitted table: the constant that the catalog gets and the curve that it is compared with."""

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
    """One line of the catalog."""

    compute: float
    memory: float
    launch: float
    origin: str
    source: str
    error: float

    def yaml(self) -> str:
        """As a YAML flow mapping."""
        error = ".nan" if math.isnan(self.error) else f"{self.error:.3f}"
        return (
            f"{{compute: {self.compute:.4f}, memory: {self.memory:.4f}, launch_us: {self.launch * 1e6:.2f}, "
            f"origin: {self.origin}, source: {json.dumps(self.source)}, error: {error}}}"
        )


def fit_one(evidence: Evidence) -> Result:
    """Constant and curve of one table; FP8 GEMMs get the conversion of their inputs as one more parameter."""
    unused = UNUSED.get(evidence.kernel_class, ())
    free, saturating = (tuple(name for name in form if name not in unused) for form in (CONSTANT, CURVE))
    cast = ("cast",) if (evidence.kernel_class, evidence.dtype) == ("gemm", "fp8") else ()
    return Result(evidence, fit(evidence.samples, free), fit(evidence.samples, saturating + cast))


def entries_of(results: list[Result]) -> dict[str, dict[Key, Entry]]:
    """Fitted entries by accelerator; roofs that the data do not show come from the kindred class."""
    found: dict[str, dict[Key, Entry]] = {}
    curves = {result.key: result.constant for result in results}
    for result in results:
        name, kernel_class, dtype = result.key
        curve, source = result.constant.curve, result.evidence.source
        kindred = curves.get((name, SAME_ROOF.get(kernel_class, kernel_class), dtype))
        if kindred and kindred is not result.constant:
            for roof, seen in (("compute", result.constant.compute_bound), ("memory", result.constant.memory_bound)):
                if seen < LEAST_SEEN:
                    curve = replace(curve, **{roof: getattr(kindred.curve, roof)})
                    source += f"; {roof} roof not reached, taken from {SAME_ROOF[kernel_class]}"
        graphed = curves.get((name, EAGER.get(kernel_class, ""), dtype))
        if graphed:
            source += f"; launch of {EAGER[kernel_class]}, not the module's {curve.launch * 1e6:.0f} us"
            curve = replace(curve, launch=graphed.curve.launch)
        found.setdefault(name, {})[kernel_class, dtype] = Entry(
            curve.compute, curve.memory, curve.launch, "fitted", source, assess(curve, result.evidence.samples).error
        )
    return found


def assume(entry: Entry, source: str) -> Entry:
    """The same figures, marked as assumed for this GPU or dtype."""
    return replace(entry, origin="assumed", source=source, error=math.nan)


def medians(entries: dict[str, dict[Key, Entry]]) -> dict[Key, Entry]:
    """Median of the fitted accelerators by class and dtype; INT8 and FP4 as FP8."""
    found: dict[Key, Entry] = {}
    for name in KERNEL_CLASSES:
        for dtype in DTYPES_OF[name]:
            key = (name, dtype if dtype in KV_DTYPES else "fp8")
            rows = [table[key] for table in entries.values() if key in table]
            compute, memory, launch = (
                float(np.median([getattr(row, field) for row in rows])) for field in ("compute", "memory", "launch")
            )
            source = "median of fitted accelerators" if key[1] == dtype else "as fp8: median of fitted accelerators"
            found[name, dtype] = Entry(compute, memory, launch, "assumed", source, math.nan)
    return found


def complete(entries: dict[str, dict[Key, Entry]], default: dict[Key, Entry]) -> dict[str, dict[Key, Entry]]:
    """Fill each measured accelerator's gaps: INT8 and FP4 as FP8, the rest as its relative, else the median."""
    filled: dict[str, dict[Key, Entry]] = {}
    for name, table in entries.items():
        filled[name] = {}
        for key, middle in default.items():
            twin = (key[0], "fp8")
            relative = entries[RELATIVE[name]]
            if key in table:
                filled[name][key] = table[key]
            elif key[1] not in KV_DTYPES and twin in table:
                filled[name][key] = assume(table[twin], "as fp8 on the same GPU")
            elif key in relative and not key[0].startswith("all_reduce"):
                filled[name][key] = assume(relative[key], f"as {RELATIVE[name]}")
            else:
                filled[name][key] = middle
    return filled


def yaml_text(entries: dict[str, dict[Key, Entry]], default: dict[Key, Entry]) -> str:
    """The catalog file."""
    lines = [
        "# written by benchmarks/fit_efficiency.py; see docs/calibration.md",
        "# compute: share of the data sheet's peak (gemm, moe: in the compute dtype; attention: in bf16, by KV dtype)",
        "# memory: share of HBM bandwidth; for all_reduce and all_to_all, of the link (one direction)",
        "# like: as that accelerator, but assumed",
    ]
    for name, table in {"default": default, **entries}.items():
        lines.append(f"{name}:")
        for kernel_class in KERNEL_CLASSES:
            lines.append(f"  {kernel_class}:")
            lines += [f"    {dtype}: {table[kernel_class, dtype].yaml()}" for dtype in DTYPES_OF[kernel_class]]
    lines += [f"{name}: {{like: {relative}}}" for name, relative in LIKE.items()]
    return "\n".join(lines) + "\n"


def percent(value: float) -> str:
    """A share as whole percent."""
    return "" if math.isnan(value) else f"{100 * value:.0f} %"


def fit_table(results: list[Result]) -> str:
    """Markdown: parameters and errors of the constant, errors of the curve, error if the relative's were used."""
    head = (
        "| accelerator | class | dtype | rows | η compute | η memory | launch µs | error | small | large | bias "
        "| curve: error | small | large | relative's: error |\n" + "|---" * 3 + "|---:" * 12 + "|\n"
    )
    fits = {result.key: result.constant.curve for result in results}
    lines = []
    for result in results:
        name, kernel_class, dtype = result.key
        _, small, _, large = REGIMES[kernel_class]
        fitted, curve = result.constant, result.curve
        cousin = fits.get((RELATIVE[name], kernel_class, dtype))
        cells = [
            name,
            kernel_class,
            dtype,
            f"{fitted.rows:,}",
            "" if kernel_class in UNUSED else f"{fitted.curve.compute:.2f}",
            f"{fitted.curve.memory:.2f}",
            f"{fitted.curve.launch * 1e6:.1f}",
            percent(fitted.error),
            percent(result.error(fitted.curve, small)),
            percent(result.error(fitted.curve, large)),
            f"{100 * fitted.bias:+.0f} %",
            percent(curve.error),
            percent(result.error(curve.curve, small)),
            percent(result.error(curve.curve, large)),
            percent(result.error(cousin, tuple(range(8)))) if cousin else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(lines)


def curve_table(results: list[Result]) -> str:
    """Markdown: the saturating form's parameters where it lowers the error by a tenth or more."""
    head = (
        "| accelerator | class | dtype | η compute | half at | η memory | cast byte | launch µs "
        "| constant | curve |\n" + "|---" * 3 + "|---:" * 7 + "|\n"
    )
    lines = []
    for result in results:
        curve = result.curve.curve
        if result.curve.error > 0.9 * result.constant.error:
            continue
        cells = [
            *result.key,
            f"{curve.compute:.2f}",
            f"{curve.compute_half:,.0f}",
            f"{curve.memory:.2f}",
            f"{curve.cast:.1f}",
            f"{curve.launch * 1e6:.1f}",
            percent(result.constant.error),
            percent(result.curve.error),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(lines)


def suspect_table(found: list[Evidence]) -> str:
    """Markdown: what was set aside and by which rule."""
    lines = ["| table | rule | figure | shapes |\n|---|---|---:|---:|"]
    for item in found:
        for finding in (finding for finding in item.findings if finding.suspect):
            table = f"{item.accelerator} {item.kernel_class}: {item.source}"
            lines.append(f"| {table} | {finding.rule} | {finding.figure:.2f} | {finding.rows} |")
    return "\n".join(lines)


def replace_between(text: str, name: str, table: str) -> str:
    """The page with the part between the two markers of `name` replaced."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Fit, print, and write if asked."""
    found = collect(data_folder())
    results = [fit_one(item) for item in found if not item.suspect]
    order = {name: index for index, name in enumerate(SYSTEMS.values())}
    results.sort(key=lambda result: (order[result.key[0]], KERNEL_CLASSES.index(result.key[1]), result.key[2]))
    entries = entries_of(results)
    default = medians(entries)
    tables = {"fits": fit_table(results), "curves": curve_table(results), "suspect": suspect_table(found)}
    print(*tables.values(), sep="\n\n")
    if "--write" not in sys.argv[1:]:
        return
    text = yaml_text(complete(entries, default), default)
    (ROOT / "costmodel" / "catalog" / "efficiency.yaml").write_text(text, encoding="utf-8")
    page = ROOT / "docs" / "calibration.md"
    content = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        content = replace_between(content, name, table)
    page.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
