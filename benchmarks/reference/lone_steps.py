"""Step times as DistServe's simulator has them, and the time of one step by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.simulator.compiled import entry, opened
from costmodel.simulator.fleet import COEFFICIENTS, StepModel, StepNumbers
from costmodel.simulator.run import pack_steps
from costmodel.simulator.step_times import add_chunk, decode_piece, mixed_time, no_prompts


@dataclass(frozen=True, slots=True)
class CoefficientSteps:
    """Fitted step times [s], as DistServe's simulator uses them.

    prefill = a + b sum(q) + c sum(q (q + 2 p)) + prefill_constant + overhead, q new tokens after p cached ones; the
    chunks of a prompt add up to its square.
    decode = a + b (sum(context) + batch) + c batch + overhead; `large` holds from `large_batch` on.
    overhead = overhead_step + overhead_token x tokens of context in the step.
    A step with both costs its prefill plus the decodes without their constant a: the weights are read once.
    """

    prefill_abc: tuple[float, float, float]
    small: tuple[float, float, float]
    large: tuple[float, float, float] = (0.0, 0.0, 0.0)
    large_batch: int = 1 << 60
    prefill_constant: float = 0.0
    overhead_step: float = 0.0
    overhead_token: float = 0.0

    def numbers(self) -> StepNumbers:
        """The coefficients for the event loop."""
        scalars = {
            "constant": self.prefill_constant,
            "step": self.overhead_step,
            "token": self.overhead_token,
            "large": float(self.large_batch),
        }
        for letter, values in (("a", self.prefill_abc), ("b", self.small), ("c", self.large)):
            scalars |= {f"{letter}{k}": value for k, value in enumerate(values)}
        return StepNumbers(COEFFICIENTS, scalars)


def step_seconds(
    steps: StepModel,
    lengths: Sequence[int] = (),
    past: Sequence[int] | None = None,
    batch: int = 0,
    total_context: int = 0,
) -> float:
    """How long the loop says that a step takes [s].

    lengths, past: new tokens of each prompt, and tokens of each already in the cache; batch, total_context: decoding
    requests and tokens of all of them together.
    """
    models, tables = pack_steps([steps.numbers()])
    new = np.array(lengths, dtype=np.int64)
    old = np.zeros_like(new) if past is None else np.array(past, dtype=np.int64)
    return float(lone_step({"models": models, "tables": tables}, new, old, batch, total_context))


@entry
def lone_step(
    world: Any,
    lengths: NDArray[np.int64],
    past: NDArray[np.int64],
    batch: int,
    total: int,
) -> float:
    """Time of a step with these prompt chunks and `batch` decodes with a context of `total` [s]."""
    w, chunks = opened(world), no_prompts()
    m, data = w.models[0], w.tables
    for k in range(lengths.size):
        chunks = add_chunk(m, data, chunks, lengths[k], past[k])
    if lengths.size == 0:
        return decode_piece(m, data, batch, total)[0]
    return mixed_time(m, data, chunks, batch, total)
