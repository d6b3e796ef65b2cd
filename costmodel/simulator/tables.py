"""Step times looked up in tables, as Vidur uses them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .step_model import NumberedSteps
from .step_numbers import TABLES, StepNumbers

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TableSteps(NumberedSteps):
    """Step time [s] = dense[tokens] + prefill[chunk][past] + decode[batch][context].

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
