"""How long an engine step takes, and the least that it does, as numbers for the event loop.

A step model answers three questions in seconds: `prefill`, `decode` and `mixed`. For the event loop it hands over its
numbers as `StepNumbers`, of one of three kinds, which `step_times` evaluates:

- coefficients: prefill = a + b sum(p) + c sum(p^2), decode = a + b sum(context + 1) + c batch (`CoefficientSteps`);
- tables: dense[tokens] + prefill[chunk][past] + decode[batch][context], looked up (`TableSteps`);
- grids: the same three, interpolated linearly, which is how pdplan's own cost model arrives (`cost_steps`).

Between two events the batch stays, and all three kinds are affine in the total context over a known range; that is
what makes a run of decode steps a closed form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

COEFFICIENTS, TABLES, GRIDS = 0, 1, 2
"""Kinds of step numbers."""
SCALARS = ("a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2", "share", "constant", "step", "token", "large")
OFFSETS = 11
"""Table offsets of a `StepRecord`."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Least work of one engine's steps, all its GPUs together; the default, without a roofline, is no work.

    flop = token_flop x tokens + row_flop x rows + pair_flop x pairs + decode_flop x decodes + context_flop x context;
    bytes = step_bytes + capped_bytes x min(tokens, knee) + token_bytes x tokens + row_bytes x rows
    + reach_bytes x reach + decode_bytes x decodes + context_bytes x context (see `StepContent`).
    peak [FLOP/s], bandwidth [byte/s]: the vendor's, of the GPUs of one pipeline stage; 0: no floors.

    The bounds are linear, so the work of a whole run follows from sums of whole numbers, which are the same whether
    decode steps are taken one by one or in closed form; and a step's own numbers give the floors of its time.
    """

    peak: float = 0.0
    bandwidth: float = 0.0
    knee: int = 1
    token_flop: float = 0.0
    row_flop: float = 0.0
    pair_flop: float = 0.0
    decode_flop: float = 0.0
    context_flop: float = 0.0
    step_bytes: float = 0.0
    capped_bytes: float = 0.0
    token_bytes: float = 0.0
    row_bytes: float = 0.0
    reach_bytes: float = 0.0
    decode_bytes: float = 0.0
    context_bytes: float = 0.0


class StepContent(NamedTuple):
    """What one step holds, or many steps together.

    steps; tokens: new ones, of prompts and decodes; capped: sum over steps of min(tokens, knee); rows: prompts and
    decodes; pairs: query-key pairs of the prompt chunks, q p + q (q + 1) / 2; reach: sum of q + p over chunks; decodes;
    context: of all decodes together. q: tokens of a chunk, p: those before it.
    """

    steps: int
    tokens: int
    capped: int
    rows: int
    pairs: int
    reach: int
    decodes: int
    context: int


def least_flop(work: StepWork, held: StepContent) -> float:
    """FLOP that the steps need [FLOP]."""
    return (
        work.token_flop * held.tokens
        + work.row_flop * held.rows
        + work.pair_flop * held.pairs
        + work.decode_flop * held.decodes
        + work.context_flop * held.context
    )


def least_bytes(work: StepWork, held: StepContent) -> float:
    """HBM traffic that the steps need [byte]."""
    return (
        work.step_bytes * held.steps
        + work.capped_bytes * held.capped
        + work.token_bytes * held.tokens
        + work.row_bytes * held.rows
        + work.reach_bytes * held.reach
        + work.decode_bytes * held.decodes
        + work.context_bytes * held.context
    )


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


class NumberedSteps(ABC):
    """Base of step models that answer from their numbers, by the same code as the loop."""

    __slots__ = ()

    @abstractmethod
    def numbers(self) -> StepNumbers:
        """The model for the event loop."""

    def prefill(self, lengths: Sequence[int], past: Sequence[int] | None = None) -> float:
        """A step with prompts only [s]."""
        return self.mixed(lengths, past)

    def decode(self, batch: int, total_context: int) -> float:
        """A step with decoding requests only [s]."""
        return self.mixed((), (), batch, total_context)

    def mixed(
        self, lengths: Sequence[int], past: Sequence[int] | None = None, batch: int = 0, total_context: int = 0
    ) -> float:
        """A step with both [s]."""
        from .records import pack  # numba takes half a second to load, and most step models are never asked
        from .step_times import step_seconds

        models, tables = pack([self.numbers()])
        new = np.array(lengths, dtype=np.int64)
        old = np.zeros_like(new) if past is None else np.array(past, dtype=np.int64)
        if new.shape != old.shape:
            raise ValueError(f"{new.size} prompts need as many numbers of cached tokens; found {old.size}")
        return float(step_seconds({"models": models, "tables": tables}, new, old, batch, total_context))


@dataclass(frozen=True, slots=True)
class CoefficientSteps(NumberedSteps):
    """Fitted step times [s], as DistServe's simulator uses them.

    prefill = (a + b sum(q) + c sum(q (q + 2 p))) stage_share + prefill_constant + overhead, q new tokens after p
    cached ones; the chunks of a prompt add up to its square.
    decode = (a + b (sum(context) + batch) + c batch) stage_share + overhead; `large` holds from `large_batch` on.
    overhead = overhead_step + overhead_token x tokens of context in the step.
    A step with both costs its prefill plus the decodes without their constant a: the weights are read once.
    """

    prefill_abc: tuple[float, float, float]
    small: tuple[float, float, float]
    large: tuple[float, float, float] = (0.0, 0.0, 0.0)
    large_batch: int = 1 << 60
    stage_share: float = 1.0
    prefill_constant: float = 0.0
    overhead_step: float = 0.0
    overhead_token: float = 0.0

    def numbers(self) -> StepNumbers:
        """The coefficients for the event loop."""
        scalars = {
            "share": self.stage_share,
            "constant": self.prefill_constant,
            "step": self.overhead_step,
            "token": self.overhead_token,
            "large": float(self.large_batch),
        }
        for letter, values in (("a", self.prefill_abc), ("b", self.small), ("c", self.large)):
            scalars |= {f"{letter}{k}": value for k, value in enumerate(values)}
        return StepNumbers(COEFFICIENTS, scalars)


@dataclass(frozen=True, slots=True)
class TableSteps(NumberedSteps):
    """Step time [s] = dense[tokens] + prefill[chunk][past] + decode[batch][context], as Vidur looks it up.

    dense, shape (tokens + 1,): all that depends on the number of tokens in the step; chunk = round(sqrt(sum of squared
    chunks)), past = sum of tokens cached before each chunk, rounded up to 64 each; context = mean context of the
    decodes, rounded down to a token and then up to 64. prefill, decode: shape (rows, contexts / 64). The factors apply
    where a step holds more than one prompt, or more than one decode.
    """

    dense: FloatArray
    prefill_attention: FloatArray
    decode_attention: FloatArray
    prefill_factor: float = 1.0
    decode_factor: float = 1.0

    def numbers(self) -> StepNumbers:
        """The tables for the event loop."""
        rows, columns = self.prefill_attention.shape
        scalars = {
            "a0": float(columns),
            "a1": float(rows),
            "a2": float(self.decode_attention.shape[0]),
            "b0": self.prefill_factor,
            "b1": self.decode_factor,
        }
        parts = (self.dense, self.prefill_attention.ravel(), self.decode_attention.ravel())
        offsets = tuple(int(start) for start in np.cumsum([0, parts[0].size, parts[1].size]))
        return StepNumbers(TABLES, scalars, offsets, np.concatenate(parts))
