"""What the wait for prompts is worked out from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

BUSIEST = 0.999999
"""Utilisation at which queues of overloaded pools are evaluated [1]."""


@dataclass(frozen=True)
class Prompts:
    """Prompts at a pool of `engines` equal engines that share arrivals.

    rate (flows,) [1/s]; alone (flows,): s, time of each prompt in steps of its own [s]; shared (flows,): g, its time in
    full steps [s]; full_step: K [s]; arrival_scv: squared coefficient of variation of the gaps between arrivals;
    stages: of an engine's pipeline, in which case all times are those that a step keeps one stage; bare (flows,): the
    longest step of each if none were held up by longer ones [s], None without stages; bubble: what that adds to `alone`
    on average [s].
    """

    rate: FloatArray
    alone: FloatArray
    shared: FloatArray
    full_step: float
    engines: float
    arrival_scv: float
    stages: float = 1.0
    bare: FloatArray | None = None
    bubble: float = 0.0

    @cached_property
    def weight(self) -> FloatArray:
        """Share of each flow in the prompts [1]."""
        return np.asarray(self.rate / max(float(self.rate.sum()), 1e-300))

    @cached_property
    def per_engine(self) -> float:
        """Arrivals per engine [1/s]."""
        return float(self.rate.sum()) / self.engines
