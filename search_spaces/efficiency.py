"""Efficiencies of the catalog: from the fitted figures of some accelerators to a complete table for each one.

An accelerator lacks figures for most (kernel class, dtype) pairs. The order of substitution is: its own figure; its own
in a wider dtype; the same two of its relative (`like`), and of the relative's relative; the same two of `default`. A
substituted figure is `assumed`, says from where it was taken, and has no fit error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.accelerator import InEngine, KernelEfficiency, Origin
from costmodel.errors import InputError
from costmodel.roofline import KERNEL_CLASSES
from costmodel.units import MICRO

DEFAULT = "default"
LIKE = "like"

WIDER: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "fp4": ("fp4", "fp8", "bf16"),
    "fp8_block": ("fp8_block", "fp8", "bf16"),
    "fp8_tensor": ("fp8_tensor", "fp8", "bf16"),
}
"""By compute dtype: itself, then the dtypes whose efficiency stands in for it. fp8_block and fp8_tensor are particular
FP8 kernels, asked for by name (`costmodel.engine_arrays.Conditions`)."""

_REQUIRED = {"compute", "memory", "launch_us", "origin", "source"}
_SHAPES = ("compute_half", "depth_half", "fill_half", "cast", "spill", "shared")
_TIMES = {"eager_us": "eager", "floor_us": "floor", "single_us": "single"}
_ALLOWED = _REQUIRED | {"error", *_SHAPES, *_TIMES}

_STANDS_IN: Mapping[str, str] = {"all_reduce_large": "all_reduce"}
"""Kernel class whose figures serve where a table leaves the class out altogether."""

Pair = tuple[str, str]
Peaks = Mapping[str, Mapping[str, float]]
NO_PEAKS: Peaks = {}
USUAL = "H100"
"""The GPU whose size the medians of `default` are about."""


@dataclass(frozen=True, slots=True)
class EfficiencyTable:
    """Known efficiencies by accelerator (and `default`) and (kernel class, compute dtype); relatives by name.

    engines: by accelerator (and `default`) what kernels take longer inside an engine.
    """

    known: Mapping[str, Mapping[Pair, KernelEfficiency]]
    relatives: Mapping[str, str]
    engines: Mapping[str, InEngine]

    def with_relative(self, name: str, relative: str) -> EfficiencyTable:
        """The same table, where the figures of `relative` serve for `name` (a user's `like:`)."""
        return replace(self, relatives={**self.relatives, name: relative})

    def complete(self, name: str, peaks: Peaks = NO_PEAKS) -> dict[Pair, KernelEfficiency]:
        """Efficiency of accelerator `name` for every kernel class and compute dtype.

        peaks: by accelerator and compute dtype, in any unit; without them borrowed figures are not sized (`_sized`).
        """
        owners = tuple(self._owners(name))
        return {
            (kernel_class, dtype): self._find(owners, kernel_class, dtype, peaks)
            for kernel_class in KERNEL_CLASSES
            for dtype in WIDER
        }

    def in_engine(self, name: str) -> InEngine:
        """What kernels of accelerator `name` take longer inside an engine: its own figures, else its relative's."""
        return next(self.engines[owner] for owner in self._owners(name) if owner in self.engines)

    def _owners(self, name: str) -> Iterator[str]:
        seen: set[str] = set()
        owner: str | None = name
        while owner is not None and owner not in seen:
            seen.add(owner)
            yield owner
            owner = self.relatives.get(owner)
        yield DEFAULT

    def _find(self, owners: tuple[str, ...], kernel_class: str, dtype: str, peaks: Peaks) -> KernelEfficiency:
        for owner in owners:
            for candidate in WIDER[dtype]:
                efficiency = self.known.get(owner, {}).get((kernel_class, candidate))
                if efficiency is None:
                    continue
                efficiency = _sized(efficiency, kernel_class, _share(peaks, owners[0], owner, candidate))
                if candidate == dtype and owner in {owners[0], DEFAULT}:
                    return efficiency
                source = f"as {owner} {kernel_class} in {candidate} ({efficiency.source})"
                return replace(efficiency, origin=Origin.ASSUMED, source=source, error=math.nan)
        if kernel_class in _STANDS_IN:
            return self._find(owners, _STANDS_IN[kernel_class], dtype, peaks)
        raise InputError(f"efficiency.yaml: {DEFAULT}.{kernel_class} must have figures for 'bf16'")


def _share(peaks: Peaks, name: str, owner: str, dtype: str) -> float:
    """Peak of an accelerator over that of the one whose figures it borrows [1]; 1 where either is not known."""
    own, other = peaks.get(name, {}), peaks.get(USUAL if owner == DEFAULT else owner, {})
    return own[dtype] / other[dtype] if dtype in own and dtype in other else 1.0


def _sized(figures: KernelEfficiency, kernel_class: str, share: float) -> KernelEfficiency:
    """Figures of a GPU with `share` of the peak: it has as much fewer units to fill, so half fills it in equal time."""
    if kernel_class == "gemm":
        return replace(figures, compute_half=figures.compute_half * share)
    return replace(figures, fill_half=figures.fill_half * share) if figures.fill_half else figures


def parse_efficiency(
    raw: Mapping[str, Mapping[str, Any]], engines: Mapping[str, Mapping[str, float]]
) -> EfficiencyTable:
    """Turn efficiency.yaml (accelerator -> kernel class -> dtype -> figures, and `like`) into a table in SI units.

    engines: in_engine.yaml (accelerator -> figures of `InEngine`); all that it leaves out is as in its `default`.
    """
    table = {
        name: {
            (kernel_class, dtype): _figures(figures, f"{name}.{kernel_class}.{dtype}")
            for kernel_class, by_dtype in _classes(name, entry)
            for dtype, figures in by_dtype.items()
        }
        for name, entry in raw.items()
    }
    relatives = {name: str(entry[LIKE]) for name, entry in raw.items() if LIKE in entry}
    within = {DEFAULT: InEngine()} | {name: InEngine(**figures) for name, figures in engines.items()}
    return EfficiencyTable(table, relatives, within)


def _classes(name: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kernel_class, by_dtype in entry.items():
        if kernel_class == LIKE:
            continue
        unknown = {kernel_class} - set(KERNEL_CLASSES) or set(by_dtype) - set(WIDER)
        if unknown:
            raise InputError(
                f"efficiency.yaml: {name}: {min(unknown)!r} is neither a kernel class ({', '.join(KERNEL_CLASSES)}) "
                f"nor a dtype ({', '.join(WIDER)})"
            )
        yield kernel_class, by_dtype


def _figures(figures: Mapping[str, Any], where: str) -> KernelEfficiency:
    wrong = (_REQUIRED - set(figures)) | (set(figures) - _ALLOWED)
    if wrong:
        raise InputError(f"efficiency.yaml: {where}: {min(wrong)!r} is missing or unknown; known: {sorted(_ALLOWED)}")
    error = figures.get("error")
    return KernelEfficiency(
        compute=float(figures["compute"]),
        memory=float(figures["memory"]),
        launch=float(figures["launch_us"]) * MICRO,
        origin=Origin(figures["origin"]),
        source=str(figures["source"]),
        error=math.nan if error is None else float(error),
        **{name: float(figures.get(name, 0.0)) for name in _SHAPES},
        **{field: float(figures.get(key, 0.0)) * MICRO for key, field in _TIMES.items()},
    )
