"""The narrow interface between the scheduler and whatever knows how long a step takes.

A step model answers three questions in seconds: `prefill`, `decode` and `mixed`. For the event loop it hands over its
numbers as `StepNumbers`, of one of three kinds, which `step_kernel` evaluates:

- coefficients: prefill = a + b sum(p) + c sum(p^2), decode = a + b sum(context + 1) + c batch (`CoefficientSteps`);
- tables: dense[tokens] + prefill[chunk][past] + decode[batch][context], looked up (`TableSteps`);
- grids: the same three, interpolated linearly, which is how pdplan's own cost model arrives (`cost_steps`).

Between two events the batch stays, and all three kinds are affine in the total context over a known range; that is
what makes a run of decode steps a closed form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .compiled import Floats, floats, records

FloatArray = NDArray[np.float64]

COEFFICIENTS, TABLES, GRIDS = 0, 1, 2
"""Kinds of step numbers."""
SCALARS = ("a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2", "share", "constant", "step", "token", "large")
OFFSETS = 9
"""Scalars and table offsets of a `StepRecord`."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step model as numbers: its kind, scalars, and tables one after another (`offsets` says where each begins)."""

    kind: int
    scalars: Mapping[str, float]
    offsets: tuple[int, ...] = (0,)
    data: FloatArray = field(default_factory=lambda: np.zeros(0))


class Chosen(NamedTuple):
    """Prompt tokens of one step: chunks, their tokens, the longest, two sums of terms (`step_kernel.chunk_terms`)."""

    prompts: int
    tokens: int
    longest: int
    first: float
    second: float


class StepModel(Protocol):
    """How long an engine step takes [s]."""

    def prefill(self, lengths: Sequence[int], past: Sequence[int] | None = None) -> float:
        """A step with prompts only: new tokens of each, and tokens of each already in the cache."""

    def decode(self, batch: int, total_context: int) -> float:
        """A step with decoding requests only."""

    def mixed(
        self, lengths: Sequence[int], past: Sequence[int] | None = None, batch: int = 0, total_context: int = 0
    ) -> float:
        """A step with both."""

    def numbers(self) -> StepNumbers:
        """The model for the event loop."""


@dataclass(slots=True)
class StepRecord:
    """One step model for the loop: kind, eleven scalars, and where its tables begin in `World.numbers`.

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


def pack(models: Sequence[StepNumbers]) -> tuple[Sequence[StepRecord], FloatArray]:
    """Records of several models, and their tables one behind the other."""
    columns: dict[str, list[float]] = {"kind": [float(one.kind) for one in models]}
    for name in SCALARS:
        columns[name] = [one.scalars.get(name, 0.0) for one in models]
    bases = np.cumsum([0] + [one.data.size for one in models]).tolist()
    for k in range(OFFSETS):
        starts = [one.offsets[k] if k < len(one.offsets) else one.data.size for one in models]
        columns[f"at{k}"] = [float(base + start) for base, start in zip(bases, starts, strict=False)]
    return records(StepRecord, len(models), columns), np.concatenate([one.data for one in models])


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """Answers `prefill`, `decode` and `mixed` from the same numbers, and by the same code, as the loop."""

    model: StepRecord
    tables: Floats

    @classmethod
    def of(cls, numbers: StepNumbers) -> PackedSteps:
        """Pack one model."""
        models, tables = pack([numbers])
        return cls(models[0], floats(tables))

    def prefill(self, lengths: Sequence[int], past: Sequence[int] | None = None) -> float:
        """A step with prompts only [s]."""
        return self.mixed(lengths, past)

    def decode(self, batch: int, total_context: int) -> float:
        """A step with decoding requests only [s]."""
        from .step_kernel import decode_piece

        return float(decode_piece(self.model, self.tables, batch, total_context)[0])

    def mixed(
        self, lengths: Sequence[int], past: Sequence[int] | None = None, batch: int = 0, total_context: int = 0
    ) -> float:
        """A step with both [s]."""
        from .step_kernel import add_chunk, mixed_time

        chosen = Chosen(0, 0, 0, 0.0, 0.0)
        for new, old in zip(lengths, past or [0] * len(lengths), strict=True):
            chosen = add_chunk(self.model, self.tables, chosen, new, old)
        return float(mixed_time(self.model, self.tables, chosen, batch, total_context))


class NumberedSteps:
    """Base of step models that answer from their numbers."""

    __slots__ = ()

    def numbers(self) -> StepNumbers:
        """The model for the event loop."""
        raise NotImplementedError

    def prefill(self, lengths: Sequence[int], past: Sequence[int] | None = None) -> float:
        """A step with prompts only [s]."""
        return PackedSteps.of(self.numbers()).prefill(lengths, past)

    def decode(self, batch: int, total_context: int) -> float:
        """A step with decoding requests only [s]."""
        return PackedSteps.of(self.numbers()).decode(batch, total_context)

    def mixed(
        self, lengths: Sequence[int], past: Sequence[int] | None = None, batch: int = 0, total_context: int = 0
    ) -> float:
        """A step with both [s]."""
        return PackedSteps.of(self.numbers()).mixed(lengths, past, batch, total_context)
