"""Event-driven simulation of serving fleets: every request of a trace through queues, steps, KV blocks and links.

`simulate(trace, fleet) -> Result` is the one entry (`expect` says how much more is to come); the rest describes its
arguments and reads its result.
"""

from __future__ import annotations

from .backend import expect
from .coefficients import CoefficientSteps
from .engine_work import EngineWork, PrefixUse
from .fleet import FirstToken, Fleet, HandOver, KvStore, Limits, Pool, Router
from .policy import POLICIES, SARATHI, SCHEDULERS, SGLANG, STATIC, TRTLLM, VLLM_V0, VLLM_V1, Policy
from .result import EngineUse, Result
from .run import simulate
from .step_model import StepModel
from .step_numbers import StepNumbers
from .step_work import StepWork
from .tables import TableSteps
from .trace import Pages, Trace, make_trace

__all__ = [
    "POLICIES",
    "SARATHI",
    "SCHEDULERS",
    "SGLANG",
    "STATIC",
    "TRTLLM",
    "VLLM_V0",
    "VLLM_V1",
    "CoefficientSteps",
    "EngineUse",
    "EngineWork",
    "FirstToken",
    "Fleet",
    "HandOver",
    "KvStore",
    "Limits",
    "Pages",
    "Policy",
    "Pool",
    "PrefixUse",
    "Result",
    "Router",
    "StepModel",
    "StepNumbers",
    "StepWork",
    "TableSteps",
    "Trace",
    "expect",
    "make_trace",
    "simulate",
]
