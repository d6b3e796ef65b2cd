"""Step times from a handful of fitted coefficients, as DistServe's simulator uses them."""

from __future__ import annotations

from dataclasses import dataclass

from .step_model import NumberedSteps
from .step_numbers import COEFFICIENTS, StepNumbers


@dataclass(frozen=True, slots=True)
class CoefficientSteps(NumberedSteps):
    """Fitted step times [s].

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
