"""What a user's catalog file may say of speed: efficiencies of an accelerator's kernels, host times of an engine.

    accelerators:
      H100:
        efficiency:
          gemm:
            bf16: {compute: 0.78, memory: 0.85, origin: fitted, source: "our runs of 1 May", error: 0.05}
    engines:
      vllm: {step_overhead_us: 410, arrival_ms: 7.5, origin: fitted, source: "our runs of 1 May"}

What is left out stays as it was. `pdplan calibrate` and `benchmarks/measure_gpu.py` write such files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from costmodel.accelerator import KernelEfficiency, Origin
from costmodel.errors import UnknownNameError, name_hint
from costmodel.quoting import shown
from costmodel.roofline import KERNEL_CLASSES
from costmodel.units import MICRO

from . import bounds
from .efficiency import WIDER, EfficiencyTable, Pair, Peaks
from .engines import EngineChange, EngineChanges, engine_name
from .faults import Fault, Path
from .fields import refusal_of, share

EFFICIENCY = "efficiency"
"""Key of an accelerator's entry in an overlay: kernel class -> dtype -> figures."""

ENGINES = "engines"
"""Key of an overlay beside `accelerators`: engine -> host times."""

Share = Annotated[float, share(bounds.EFFICIENCY)]
NotNegative = Annotated[float, Field(ge=0)]
Changes = Mapping[Pair, "EfficiencyChange"]
Change = TypeVar("Change", bound=BaseModel)


class EfficiencyChange(BaseModel):
    """Figures of one kernel class in one dtype, as in efficiency.yaml; what is left out stays as it was."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    compute: Share | None = None
    memory: Share | None = None
    launch_us: NotNegative | None = None
    compute_half: NotNegative | None = None
    depth_half: NotNegative | None = None
    fill_half: NotNegative | None = None
    cast: NotNegative | None = None
    spill: NotNegative | None = None
    shared: NotNegative | None = None
    eager_us: NotNegative | None = None
    floor_us: NotNegative | None = None
    single_us: NotNegative | None = None
    origin: Origin = Origin.ASSUMED
    source: Annotated[str, Field(min_length=1)] | None = None
    error: Annotated[float, share(bounds.RELATIVE_ERROR)] | None = None

    def over(self, known: KernelEfficiency, file: str) -> KernelEfficiency:
        """`known` with these figures laid over it; times in SI units."""
        given = self.model_dump(exclude_none=True, exclude={"origin", "source", "error"})
        figures = {
            key.removesuffix("_us"): value * (MICRO if key.endswith("_us") else 1.0) for key, value in given.items()
        }
        source = self.source or f"{', '.join(given) or 'nothing'} from {file}; else {known.source}"
        error = math.nan if self.error is None else self.error
        return replace(known, **figures, origin=self.origin, source=source, error=error)


def efficiency_changes(value: object, path: Path) -> tuple[dict[Pair, EfficiencyChange], list[Fault]]:
    """The changes below `path` by (kernel class, dtype), and what is wrong with them."""
    changes: dict[Pair, EfficiencyChange] = {}
    faults: list[Fault] = []
    for kernel_class, by_dtype in _named(value, path, KERNEL_CLASSES, "kernel class", faults):
        for dtype, figures in _named(by_dtype, (*path, kernel_class), tuple(WIDER), "dtype", faults):
            place = (*path, kernel_class, dtype)
            found = _validated(EfficiencyChange, figures, place, faults)
            if found is not None:
                changes[kernel_class, dtype] = found
    return changes, faults


def engine_changes(value: object) -> tuple[dict[str, EngineChange], list[Fault]]:
    """The changes of an overlay's `engines` by the catalog's names, and what is wrong with them."""
    changes: dict[str, EngineChange] = {}
    faults: list[Fault] = []
    if not isinstance(value, Mapping):
        return {}, [Fault((ENGINES,), f"must be engines by name, but is {shown(value)}")]
    for written, figures in value.items():
        try:
            name = engine_name(str(written))
        except UnknownNameError as error:
            faults.append(Fault((ENGINES, written), str(error), on_key=True))
            continue
        found = _validated(EngineChange, figures, (ENGINES, written), faults)
        if found is not None:
            changes[name] = found
    return changes, faults


def changed_efficiency(table: EfficiencyTable, name: str, changes: Changes, file: str, peaks: Peaks) -> EfficiencyTable:
    """The table in which accelerator `name` has all figures of its own, the changed ones among them.

    Its relatives take over the changed figures too, as they would have taken the old ones.
    """
    if not changes:
        return table
    complete = table.complete(name, peaks)
    changed = {pair: change.over(complete[pair], file) for pair, change in changes.items()}
    return replace(table, known={**table.known, name: {**complete, **changed}})


def _named(value: object, path: Path, known: tuple[str, ...], kind: str, faults: list[Fault]) -> list[tuple[str, Any]]:
    """The items of a mapping whose keys are known names; faults are added to `faults`."""
    if not isinstance(value, Mapping):
        faults.append(Fault(path, f"must be figures by {kind}, but is {shown(value)}"))
        return []
    faults += [
        Fault((*path, str(key)), f"is not a {kind}; {name_hint(str(key), known)}", on_key=True)
        for key in value
        if key not in known
    ]
    return [(key, item) for key, item in value.items() if key in known]


def _validated(kind: type[Change], value: object, path: Path, faults: list[Fault]) -> Change | None:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            place = (*path, *fault["loc"])
            if fault["type"] == "extra_forbidden":
                hint = name_hint(str(fault["loc"][-1]), tuple(kind.model_fields))
                faults.append(Fault(place, f"is not a known key; {hint}", on_key=True))
            else:
                faults.append(Fault(place, refusal_of(fault)))
        return None


__all__ = [
    "EFFICIENCY",
    "ENGINES",
    "EfficiencyChange",
    "EngineChange",
    "EngineChanges",
    "changed_efficiency",
    "efficiency_changes",
    "engine_changes",
]
