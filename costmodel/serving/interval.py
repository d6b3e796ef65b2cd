"""How wrong a prediction may be: factors that hold the measured value nine times in ten, by quantity and regime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

PREFILL_BOUND = 0.5
"""Share of engine time that prompts take, from which a steady state counts as prefill-bound [1]."""
ASSUMED_WIDENING = 1.5
"""An accelerator without measured kernels: the interval's width in logarithms times this; assumed."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Where a prediction stands: what it was made for and what rules it there.

    mode: colocated, disaggregated, prefill or decode (the last two are single steps); bound: prefill or decode (of
    steps: dense, moe or mla); memory: roomy or limited; measured: the accelerator has fitted kernels of its own;
    engine: the serving engine, empty for steps.
    """

    mode: str
    bound: str
    memory: str
    measured: bool
    engine: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names under which factors may be filed, the narrowest first."""
        own = (f"{self.mode}/{self.bound}/{self.engine}", f"{self.mode}/{self.engine}") if self.engine else ()
        return (*own, f"{self.mode}/{self.bound}/{self.memory}", f"{self.mode}/{self.bound}", self.mode, "all")


@dataclass(frozen=True, slots=True)
class Factors:
    """Measured lies between low x and high x the prediction with 90 % probability; rows: residuals behind it."""

    low: float
    high: float
    rows: int


def interval_of(half_width: float) -> tuple[float, float]:
    """(low, high) factors of an interval that is even in logarithms: exp(-+half_width) [1].

    >>> low, high = interval_of(0.1)
    >>> round(low * high, 12)
    1.0
    """
    return math.exp(-half_width), math.exp(half_width)


ErrorTable = Mapping[str, Mapping[str, Factors]]
"""Quantity (ttft, tpot) -> regime key -> factors."""


def interval_factors(table: ErrorTable, quantity: str, regime: Regime) -> tuple[float, float]:
    """(low, high) factors on a prediction that hold the measured value with 90 % probability [1].

    The narrowest regime that the table has decides; where kernels were never measured the interval is widened, in
    logarithms, by ASSUMED_WIDENING.

    >>> table = {"ttft": {"all": Factors(0.5, 2.0, 100)}}
    >>> interval_factors(table, "ttft", Regime("colocated", "decode", "roomy", measured=True))
    (0.5, 2.0)
    >>> interval_factors(table, "ttft", Regime("colocated", "decode", "roomy", measured=False))[1] > 2.8
    True
    """
    known = table[quantity]
    found = next(known[key] for key in regime.keys if key in known)
    if regime.measured:
        return found.low, found.high
    return math.exp(ASSUMED_WIDENING * math.log(found.low)), math.exp(ASSUMED_WIDENING * math.log(found.high))
