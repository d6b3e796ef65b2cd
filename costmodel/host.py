"""What a serving engine adds to the kernels of a step: its CPU work, and prompts that get in the way of decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .accelerator import Origin

Seconds = TypeVar("Seconds", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class EngineOverhead:
    """CPU time that the GPU waits for.

    step: per engine step, whatever is in it [s]; per_request: per request in the step, of one data-parallel rank [s].
    """

    step: float
    per_request: float
    origin: Origin
    source: str


NO_OVERHEAD = EngineOverhead(0.0, 0.0, Origin.ASSUMED, "kernels alone")
"""For comparison with measured kernels, where no scheduler runs."""


def with_prompts(decodes: Seconds, together: Seconds, slowdown: Seconds) -> Seconds:
    """Time of a step with prompts = decodes + slowdown x (together - decodes) [s].

    decodes: the step without its prompts, 0 where none decodes [s]; together: the whole step by kernels and host work,
    weights read once for both [s]; slowdown: what prompts take in an engine over what they take alone [1].

    >>> with_prompts(1.0, 3.0, 1.25)
    3.5
    """
    return decodes + slowdown * (together - decodes)


def host_time(overhead: EngineOverhead, requests: float) -> float:
    """Host time of a step = step + per_request x requests [s].

    Every data-parallel rank has a host process of its own, and the step ends with the busiest one.
    requests: prompts and decoding requests of the busiest rank in the step [1].

    >>> host_time(EngineOverhead(0.5e-3, 5e-6, Origin.ASSUMED, ""), 100)
    0.001
    """
    return overhead.step + overhead.per_request * requests
