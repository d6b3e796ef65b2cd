"""What GPUs draw while they serve: a stated model, assumed from published measurements, for energy per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .accelerator import Origin


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Power of one board as shares of its TDP [1].

    idle: loaded, nothing to do; active: added while any step runs; compute, memory: added at the vendor's peak FLOP/s
    and at its peak HBM bandwidth.
    """

    idle: float
    active: float
    compute: float
    memory: float
    origin: Origin
    source: str


POWER: Final = PowerModel(
    idle=0.12,
    active=0.10,
    compute=1.10,
    memory=0.30,
    origin=Origin.ASSUMED,
    source=(
        "set by hand between published figures: idle 80 W and 517 W at batch 128 of an H200 (700 W; ALICE GPU energy "
        "benchmark, 2026); 300 W at batch 1 and 600 W at batch 128 of an H100 (700 W; ML.ENERGY v3 as used by vLLM's "
        "fleet-sim); decode 137-300 W of an H200 (Ma et al. 2026, arXiv:2605.11999); prompts near TDP (Patel et al. "
        "2023, POLCA, and 2024, Splitwise)"
    ),
)
"""H200 and H100; other GPUs are taken to behave alike in shares of their TDP."""


def mean_power(tdp: float, busy: float, mfu: float, mbu: float) -> float:
    """Mean power of one board [W]: P / TDP = idle + min((1 - idle) u, active u + compute MFU + memory MBU).

    So a GPU never draws less than it does idle, never more than its TDP while a step runs, and idle power otherwise.
    tdp [W]; busy: u, share of the time in which a step runs [1]; mfu, mbu: shares of peak over the whole time [1].

    A decode of one request that streams weights at 65 % of the bandwidth, a full decode batch, and long prompts:

    >>> [round(mean_power(700.0, 1.0, mfu, mbu)) for mfu, mbu in ((0.0, 0.65), (0.3, 0.7), (0.6, 0.3))]
    [290, 532, 679]
    >>> mean_power(700.0, 0.0, 0.0, 0.0), mean_power(700.0, 1.0, 1.0, 1.0)
    (84.0, 700.0)
    """
    above = POWER.active * busy + POWER.compute * mfu + POWER.memory * mbu
    return tdp * (POWER.idle + min((1.0 - POWER.idle) * busy, above))
