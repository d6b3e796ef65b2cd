"""Step models as numbers: what the event loop reads, kept in records and tables.

Three kinds: coefficients, tables and grids; `step_model` says what they mean, `step_kernel` evaluates them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import records
from .step_work import StepWork

FloatArray = NDArray[np.float64]

COEFFICIENTS, TABLES, GRIDS = 0, 1, 2
"""Kinds of step numbers."""
SCALARS = ("a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2", "share", "constant", "step", "token", "large")
OFFSETS = 11
"""Scalars and table offsets of a `StepRecord`."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step model as numbers: its kind, scalars, and tables one after another (`offsets` says where each begins).

    work: the least that a step does; without it no work is counted and no floor checked.
    """

    kind: int
    scalars: Mapping[str, float]
    offsets: tuple[int, ...] = (0,)
    data: FloatArray = field(default_factory=lambda: np.zeros(0))
    work: StepWork = field(default_factory=StepWork)


class Chosen(NamedTuple):
    """Prompt tokens of one step.

    prompts: chunks; tokens; longest: of them; first, second: sums of terms (`step_kernel.chunk_terms`); pairs, reach:
    as in `StepContent`.
    """

    prompts: int
    tokens: int
    longest: int
    first: float
    second: float
    pairs: int
    reach: int


EMPTY = Chosen(0, 0, 0, 0.0, 0.0, 0, 0)
"""A step without prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(StepWork):
    """One step model for the loop: its work, kind, scalars, and where its tables begin in `World.numbers`.

    Coefficients: see `coefficients`; tables: `tables`; grids: `grids`.
    """

    kind: int
    a0: float
    a1: float
    a2: float
    b0: float
    b1: float
    b2: float
    c0: float
    c1: float
    c2: float
    share: float
    constant: float
    step: float
    token: float
    large: float
    at0: int
    at1: int
    at2: int
    at3: int
    at4: int
    at5: int
    at6: int
    at7: int
    at8: int
    at9: int
    at10: int


def pack(models: Sequence[StepNumbers], *, compiled: bool = False) -> tuple[Sequence[StepRecord], FloatArray]:
    """Records of several models, and their tables one behind the other."""
    columns: dict[str, list[float]] = {"kind": [float(one.kind) for one in models]}
    for name in SCALARS:
        columns[name] = [one.scalars.get(name, 0.0) for one in models]
    for name in StepWork.__dataclass_fields__:
        columns[name] = [getattr(one.work, name) for one in models]
    bases = np.cumsum([0] + [one.data.size for one in models]).tolist()
    for k in range(OFFSETS):
        starts = [one.offsets[k] if k < len(one.offsets) else one.data.size for one in models]
        columns[f"at{k}"] = [float(base + start) for base, start in zip(bases, starts, strict=False)]
    return records(StepRecord, len(models), columns, compiled=compiled), np.concatenate([one.data for one in models])
