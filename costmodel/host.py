"""What a serving engine adds to the kernels of a step: its CPU work."""

from __future__ import annotations

from dataclasses import dataclass

from .accelerator import Origin


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


def host_time(overhead: EngineOverhead, requests: float) -> float:
    """Host time of a step = step + per_request x requests [s].

    Every data-parallel rank has a host process of its own, and the step ends with the busiest one.
    requests: prompts and decoding requests of the busiest rank in the step [1].

    >>> host_time(EngineOverhead(0.5e-3, 5e-6, Origin.ASSUMED, ""), 100)
    0.001
    """
    return overhead.step + overhead.per_request * requests
