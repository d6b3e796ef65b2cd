"""Event-driven simulation of serving fleets: every request of a trace through queues, steps, KV blocks and links.

`simulate(trace, fleet) -> Result` is the one entry (`prepare` compiles it beforehand); the rest describes its arguments
and reads its result.
"""

from __future__ import annotations

from costmodel.workload import Pages, Trace, make_trace

from .fleet import (
    UNLIMITED,
    EngineUse,
    Limits,
    Router,
    SimulatedFleet,
    SimulatedPool,
    SimulatedTier,
    StepModel,
    StepNumbers,
    StepWork,
)
from .metrics import Result
from .run import prepare, simulate

__all__ = [
    "UNLIMITED",
    "EngineUse",
    "Limits",
    "Pages",
    "Result",
    "Router",
    "SimulatedFleet",
    "SimulatedPool",
    "SimulatedTier",
    "StepModel",
    "StepNumbers",
    "StepWork",
    "Trace",
    "make_trace",
    "prepare",
    "simulate",
]
