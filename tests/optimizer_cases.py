"""Small problems and column sets that the tests of the optimizer share: real accelerators and models, few settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import Mock

import numpy as np

from costmodel.accelerator import Accelerator
from costmodel.engine import Role
from costmodel.metric import Metric, limits_of
from costmodel.simulator.metrics import Overload
from costmodel.transformer import Transformer
from costmodel.workload import Workload
from optimizer.loads.instance import Instance, make_instance
from optimizer.plans.records import ClassJudgement, Quantiles
from optimizer.verification.judge import Judgement
from search_spaces.catalog import load_catalog
from search_spaces.models import load_model
from search_spaces.problem import Constraints, Objective, Offer, Problem, SearchSpace, Slo

EVERY_ROLE = (Role.PREFILL, Role.DECODE, Role.COLOCATED)


@cache
def accelerator(name: str) -> Accelerator:
    """An accelerator of the catalog."""
    return load_catalog().accelerator(name)


@cache
def model(name: str = "Llama-3.1-8B") -> Transformer:
    """A model of the catalog."""
    return load_model(name)


def offer(name: str = "H100", **changes: Any) -> Offer:
    """An accelerator at its catalog price; `changes` replaces fields of the offer."""
    made = Offer(accelerator(name), accelerator(name).price.usd_per_hour)
    return replace(made, **changes)


def space(**changes: Any) -> SearchSpace:
    """One or two GPUs per engine, two batch limits, one token budget; `changes` replaces fields."""
    made = SearchSpace(
        roles=EVERY_ROLE,
        tensor_parallel=(1, 2),
        pipeline_parallel=(1,),
        expert_parallel=(1,),
        data_parallel=(1,),
        max_num_seqs=(32, 128),
        max_num_batched_tokens=(2048,),
        max_gpus_per_engine=8,
    )
    return replace(made, **changes)


def workload(
    rate: float = 8.0, buckets: Sequence[tuple[float, float, float]] = ((1000, 200, 0.7), (4000, 100, 0.3)), **more: Any
) -> Workload:
    """A mix of (isl, osl, share) at `rate` requests per second."""
    isl, osl, share = (np.array(column, dtype=np.float64) for column in zip(*buckets, strict=True))
    fields: dict[str, Any] = {"max_tokens": 8192} | more
    return Workload(isl, osl, share, request_rate=rate, **fields)


def slo(ttft: float = 2.0, tpot: float = 0.05, attainment: float = 0.9, **more: Any) -> Slo:
    """A service level that an 8B model on an H100 meets with ease."""
    limits = limits_of(ttft=ttft, tpot=tpot, **{metric: more.pop(metric) for metric in Metric if metric in more})
    return Slo(more.pop("name", "default"), limits, attainment, **more)


def problem(**changes: Any) -> Problem:
    """Llama-3.1-8B for eight requests per second on H100; `changes` replaces fields of the problem."""
    fields: dict[str, Any] = {
        "name": "small",
        "model": model(),
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "workload": workload(),
        "slos": (slo(),),
        "offers": (offer(),),
        "space": space(),
        "objective": Objective(),
        "constraints": Constraints(),
    }
    return Problem(**(fields | changes))


def limit(instance: Instance, place: int) -> int:
    """Index of the batch limit at a place among those of the space, or of the last."""
    limits = instance.tables.limits
    return int(limits[min(place, limits.size - 1)])


def instance_of(given: Problem) -> Instance:
    """The instance of a problem, with the overhead of its engine."""
    return make_instance(given)


def judged_class(share: float, low: float, high: float, goal: float = 0.9, counted: int = 1000) -> ClassJudgement:
    """A class of some requests, so many of them within the SLO."""
    none = Quantiles.of([0.0] * 4)
    times = {"ttft_s": none, "tpot_s": none, "attainment_goal": goal, "counted": counted}
    return ClassJudgement(name="default", attainment=share, attainment_low=low, attainment_high=high, **times)


def judgement(
    share: float, low: float, high: float, goal: float = 0.9, growth: float = 0.0, runs: int = 0
) -> Judgement:
    """Of one class; growth: by which the queue does."""
    overload = Overload(growth > 0.0, growth, growth, "queue")
    return Judgement(1.0, (judged_class(share, low, high, goal),), overload, (), (Mock(),) * runs)
