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

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .compiled import Floats, floats
from .step_kernel import add_chunk, decode_piece, mixed_time
from .step_numbers import EMPTY, StepNumbers, StepRecord, pack


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
        return float(decode_piece(self.model, self.tables, batch, total_context)[0])

    def mixed(
        self, lengths: Sequence[int], past: Sequence[int] | None = None, batch: int = 0, total_context: int = 0
    ) -> float:
        """A step with both [s]."""
        chosen = EMPTY
        for new, old in zip(lengths, past or [0] * len(lengths), strict=True):
            chosen = add_chunk(self.model, self.tables, chosen, new, old)
        return float(mixed_time(self.model, self.tables, chosen, batch, total_context))


class NumberedSteps(ABC):
    """Base of step models that answer from their numbers."""

    __slots__ = ()

    @abstractmethod
    def numbers(self) -> StepNumbers:
        """The model for the event loop."""

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
