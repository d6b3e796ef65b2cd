"""Efficiencies of the catalog: from the fitted figures of some accelerators to a complete table for each one.

An accelerator lacks figures for most (kernel class, dtype) pairs. The order of substitution is: its own figure; its own
in a wider dtype; the same two of its relative (`like`, for collectives `links_like`), and of the relative's relative;
the same two of `default`. A substituted figure is `assumed`, says from where it was taken, and has no fit error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Annotated, Any

from pydantic import create_model

from costmodel.accelerator import COLLECTIVES, KERNEL_CLASSES, InEngine, KernelEfficiency, Origin
from costmodel.units import MICRO

from . import bounds
from .fields import FileSection, Text, choice, number, share
from .quantities import in_base_units, rounded

DEFAULT = "default"
LIKE = "like"
LINKS_LIKE = "links_like"

WIDER: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "fp4": ("fp4", "fp8", "bf16"),
    "mxfp4": ("mxfp4",),
    "fp8_block": ("fp8_block", "fp8", "bf16"),
    "fp8_tensor": ("fp8_tensor", "fp8", "bf16"),
    "fp8_dispatched": ("fp8_dispatched", "fp8", "bf16"),
}
"""By compute dtype: itself, then the dtypes whose efficiency stands in for it. mxfp4 are experts expanded to 16 bit by
a kernel made for that, of GPUs that it was timed on and their relatives; fp8_block and fp8_tensor are particular FP8
kernels, asked for by name (`costmodel.engine_arrays.Conditions`); fp8_dispatched are `DISPATCHED` experts."""

_Share = Annotated[float, share(bounds.EFFICIENCY)]
_NotNegative = Annotated[float, number(bounds.NOT_NEGATIVE)]

Pair = tuple[str, str]
Peaks = Mapping[str, Mapping[str, float]]
NO_PEAKS: Peaks = {}
KernelChange = tuple[Mapping[Pair, "EfficiencyChange"], str]
"""A user's figures for the kernels of an accelerator, and its name; its relatives inherit them like the old figures."""
NO_KERNEL_CHANGE: KernelChange = ({}, "")
USUAL = "H100"
"""The GPU whose size the medians of `default` are about."""


UNITS: Mapping[str, str] = dict.fromkeys(("launch", "eager", "floor", "single"), "s") | dict.fromkeys(
    ("cast", "spill"), "bytes"
)
"""Units of the figures of `KernelEfficiency` that have one."""
ABOUT = ("origin", "source", "error")
"""Its fields that are no figures."""
FIGURES: Mapping[str, str] = {
    f"{field.name}_us" if UNITS.get(field.name) == "s" else field.name: field.name
    for field in fields(KernelEfficiency)
    if field.name not in ABOUT
}
"""Keys of its figures in efficiency.yaml, times in microseconds."""
_CHANGES: dict[str, Any] = {
    key: (_Share | None if name in {"compute", "memory"} else _NotNegative | None, None)
    for key, name in FIGURES.items()
}
FigureChanges = create_model("FigureChanges", __base__=FileSection, **_CHANGES)


class EfficiencyChange(FigureChanges):
    """Figures of one kernel class in one dtype, as in efficiency.yaml; what is left out stays as it was."""

    origin: Annotated[Origin, choice(*Origin)] = Origin.ASSUMED
    source: Text | None = None
    error: Annotated[float, share(bounds.RELATIVE_ERROR)] | None = None

    def over(self, base: KernelEfficiency, file: str) -> KernelEfficiency:
        """`base` with these figures laid over it; times in SI units."""
        figures = self.model_dump(exclude_none=True, exclude=set(ABOUT))
        source = self.source or f"{', '.join(figures) or 'nothing'} from {file}; else {base.source}"
        error = math.nan if self.error is None else self.error
        return replace(base, **in_base_units(figures), origin=self.origin, source=source, error=error)


@dataclass(frozen=True, slots=True)
class EfficiencyTable:
    """Known efficiencies by accelerator (and `default`) and (kernel class, compute dtype); relatives by name.

    linked: the relatives of those whose links are not their relative's;
    engines: by accelerator (and `default`) what kernels take longer inside an engine.
    """

    known: Mapping[str, Mapping[Pair, KernelEfficiency]]
    relatives: Mapping[str, str]
    linked: Mapping[str, str]
    engines: Mapping[str, InEngine]

    def changed(self, name: str, change: KernelChange, peaks: Peaks) -> EfficiencyTable:
        """The same table with a user's figures of an accelerator laid over its complete ones."""
        figures, file = change
        if not figures:
            return self
        complete = self.complete(name, peaks)
        own = complete | {
            (kernel_class, dtype): row.over(complete.get((kernel_class, dtype), complete[kernel_class, "bf16"]), file)
            for (kernel_class, dtype), row in figures.items()
        }
        return replace(self, known={**self.known, name: own})

    def complete(self, name: str, peaks: Peaks = NO_PEAKS) -> dict[Pair, KernelEfficiency]:
        """Efficiency of accelerator `name` for every kernel class and compute dtype that has figures.

        peaks: by accelerator and compute dtype, in any unit; without them borrowed figures stay as they are.
        """
        own = tuple(self._owners(name, self.relatives))
        linked = tuple(self._owners(name, {**self.relatives, **self.linked}))
        return {
            (kernel_class, dtype): efficiency
            for kernel_class in KERNEL_CLASSES
            for dtype in WIDER
            if (efficiency := self._find(linked if kernel_class in COLLECTIVES else own, kernel_class, dtype, peaks))
            is not None
        }

    def in_engine(self, name: str) -> InEngine:
        """What kernels of accelerator `name` take longer inside an engine: its own figures, else its relative's."""
        return next(self.engines[owner] for owner in self._owners(name, self.relatives) if owner in self.engines)

    def _owners(self, name: str, relatives: Mapping[str, str]) -> Iterator[str]:
        owners: set[str] = set()
        owner: str | None = name
        while owner is not None and owner not in owners:
            owners.add(owner)
            yield owner
            owner = relatives.get(owner)
        yield DEFAULT

    def _find(self, owners: tuple[str, ...], kernel_class: str, dtype: str, peaks: Peaks) -> KernelEfficiency | None:
        for owner in owners:
            for candidate in WIDER[dtype]:
                efficiency = self.known.get(owner, {}).get((kernel_class, candidate))
                if efficiency is None:
                    continue
                own_peak = peaks.get(owners[0], {}).get(candidate)
                peak = peaks.get(USUAL if owner == DEFAULT else owner, {}).get(candidate)
                if own_peak and peak:  # with as much fewer units to fill, half fills them in equal time
                    figure = "compute_half" if kernel_class == "gemm" else "fill_half"
                    efficiency = replace(efficiency, **{figure: getattr(efficiency, figure) * (own_peak / peak)})
                if candidate == dtype and owner in {owners[0], DEFAULT}:
                    return efficiency
                source = f"as {owner} {kernel_class} in {candidate} ({efficiency.source})"
                return replace(efficiency, origin=Origin.ASSUMED, source=source, error=math.nan)
        return None


def parse_efficiency(
    raw: Mapping[str, Mapping[str, Any]], engines: Mapping[str, Mapping[str, float]]
) -> EfficiencyTable:
    """Turn efficiency.yaml (accelerator -> kernel class -> dtype -> figures, and `like`) into a table in SI units.

    engines: in_engine.yaml (accelerator -> figures of `InEngine`); all that it leaves out is as in its `default`.
    """
    table = {
        name: {
            (kernel_class, dtype): _figures(row)
            for kernel_class, by_dtype in entry.items()
            if kernel_class in KERNEL_CLASSES
            for dtype, row in by_dtype.items()
        }
        for name, entry in raw.items()
    }
    relatives, linked = (
        {name: str(entry[key]) for name, entry in raw.items() if key in entry} for key in (LIKE, LINKS_LIKE)
    )
    usual = InEngine(**engines.get(DEFAULT, {}))
    within = {DEFAULT: usual} | {name: replace(usual, **figures) for name, figures in engines.items()}
    return EfficiencyTable(table, relatives, linked, within)


def _figures(row: Mapping[str, Any]) -> KernelEfficiency:
    """The figures of a row of efficiency.yaml; times in SI units."""
    figures = in_base_units({key: float(value) for key, value in row.items() if key not in {"origin", "source"}})
    return KernelEfficiency(**{"error": math.nan, **figures}, origin=Origin(row["origin"]), source=str(row["source"]))


def efficiency_dict(figures: Mapping[Pair, KernelEfficiency]) -> dict[str, dict[str, dict[str, Any]]]:
    """Kernel class -> dtype -> figures, all of them, in the units of the file; a missing error is left out."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for (kernel_class, dtype), efficiency in sorted(figures.items()):
        entry: dict[str, Any] = {  # zeros too: what is left out stays as the accelerator beneath has it
            key: rounded(getattr(efficiency, name) / (MICRO if key.endswith("_us") else 1.0))
            for key, name in FIGURES.items()
        }
        error = {} if math.isnan(efficiency.error) else {"error": rounded(efficiency.error)}
        about = {"origin": str(efficiency.origin), "source": efficiency.source}
        table.setdefault(kernel_class, {})[dtype] = entry | about | error
    return table


def figures_dict(efficiency: KernelEfficiency) -> dict[str, Any]:
    """The same as JSON-ready values in SI units, units in the keys; what shapes the curve only where it is not zero."""
    table = asdict(efficiency) | {"origin": str(efficiency.origin)}
    table["error"] = None if math.isnan(efficiency.error) else efficiency.error
    needed = [field.name for field in fields(efficiency) if field.default is MISSING]
    return {
        f"{name}_{UNITS[name]}" if name in UNITS else name: value
        for name, value in table.items()
        if value or name in needed
    }
