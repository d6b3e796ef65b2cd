"""The plan file: fleet, predicted metrics, proof and provenance, as written to and read from plan.json.

The field names at the top level are a promise to other programs: units are part of the name.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PLAN_SCHEMA: Literal["pdplan.plan/1"] = "pdplan.plan/1"


class Status(StrEnum):
    """How the search ended."""

    OPTIMAL = "optimal"
    """The fleet meets every SLO and no fleet of the search space is cheaper (within the stated gap of 1e-4)."""
    FEASIBLE = "feasible"
    """The fleet meets every SLO; `gap` bounds how much cheaper another could be."""
    INFEASIBLE = "infeasible"
    """No fleet of the search space meets the SLOs within the constraints; `binding` says what is in the way."""
    TIME_LIMIT = "time_limit"
    """Time ran out before any fleet was found."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=True)

    @model_validator(mode="before")
    @classmethod
    def _read_null_as_nan(cls, data: Any) -> Any:
        """Read null as NaN where a number must stand: JSON has no NaN, so plan.json holds null for it."""
        if not isinstance(data, dict):
            return data
        numbers = {field.alias or name for name, field in cls.model_fields.items() if field.annotation is float}
        return {key: math.nan if value is None and key in numbers else value for key, value in data.items()}


class Quantiles(_Record):
    """Predicted quantiles of a latency over all requests [s]."""

    p50: float
    p90: float
    p95: float
    p99: float


class TimeSplit(_Record):
    """Where one engine step spends its time; parts sum to 1."""

    gemm: float
    attention: float
    experts: float
    communication: float
    host: float


class OperatingPoint(_Record):
    """How one pool runs at the stated demand."""

    request_rate_rps: float
    """Requests per second that the whole pool handles."""
    utilization: dict[str, float]
    """Mean use of what the pool has: time (prompt servers), slots (max_num_seqs), kv_memory, link (network cards)."""
    binding: str
    """What gives out first when load grows: time, slots, kv_memory or attention_time."""
    step_s: float
    """Time of a typical engine step (decode step, or prefill of the mean prompt) [s]."""
    batch: float
    """Requests in that step."""
    mfu: float
    """Share of peak FLOP/s used in that step."""
    mbu: float
    """Share of peak memory bandwidth used in that step."""
    arithmetic_intensity: float
    """FLOP per byte of HBM traffic in that step."""
    ridge_point: float
    """FLOP per byte at which the accelerator's compute and bandwidth balance."""
    bound_by: str
    """compute, bandwidth, network or host: the largest part of that step."""
    time_split: TimeSplit


class Pool(_Record):
    """Equal engines in one role."""

    id: str
    role: Literal["prefill", "decode", "colocated"]
    accelerator: str
    replicas: int
    spare_replicas: int
    """Replicas among `replicas` that the demand does not need (N+k)."""
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    data_parallel: int
    gpus: int
    """GPUs of all replicas together."""
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_fraction: float
    usd_per_hour: float
    """Price of the whole pool."""
    operating_point: OperatingPoint


class Transfer(_Record):
    """KV hand-over between two pools."""

    source: str
    target: str
    requests_per_second: float
    bytes_per_second: float
    seconds_per_request: float
    """Time to move the KV cache of a mean request."""
    link_utilization: float


class Route(_Record):
    """One bucket of one SLO class and the pools that serve it; fractions of each stage sum to 1."""

    slo_class: str
    isl: float
    osl: float
    share: float
    """Share of all requests."""
    prefill: dict[str, float]
    """Pool id -> fraction of the bucket whose prompt runs there."""
    decode: dict[str, float]
    """Pool id -> fraction of the bucket whose tokens are generated there (the same pool when colocated)."""
    attainment: float
    """Predicted share of this bucket's requests within all its SLOs."""


class ClassResult(_Record):
    """What one SLO class asked for and gets."""

    name: str
    share: float
    ttft_limit_s: float
    tpot_limit_s: float
    e2e_limit_s: float | None
    attainment_goal: float
    attainment: float
    ttft_s: Quantiles
    tpot_s: Quantiles


class Binding(_Record):
    """A limit and how close the plan is to it, tightest first."""

    constraint: str
    """Short name: slots, time, kv_memory, attention_time, link, attainment, inventory, budget, power, max_gpus."""
    where: str
    """Pool id, accelerator, SLO class or "fleet"."""
    used: float
    limit: float
    unit: str
    slack: float
    """1 - used / limit."""
    sentence: str


class Alternative(_Record):
    """The best fleet of another kind, and why it lost."""

    kind: str
    """recommended, single_type, colocated_only, disaggregated_only, one_pool_pair ..."""
    label: str
    status: Status
    cost_usd_per_hour: float | None
    bound_usd_per_hour: float | None
    gap: float | None
    pools: list[str]
    """One line per pool, such as "3 x H100 TP2 decode"."""
    attainment: float | None
    why_not: str


class RunInfo(_Record):
    """What may differ between two runs of the same problem."""

    created: str
    command: str
    timings_s: dict[str, float]


class Provenance(_Record):
    """Everything needed to reproduce the plan."""

    pdplan_version: str
    versions: dict[str, str]
    seed: int
    inputs_sha256: str
    inputs: dict[str, Any]
    """The workload file with every default filled in."""
    accelerators: list[dict[str, Any]]
    """Catalog entries used, with source and date."""
    model: dict[str, Any]
    search: dict[str, Any]
    """Size of the search: configs enumerated, priced, kept; why configs were dropped."""
    assumptions: list[str]
    run: RunInfo


class WorkloadSummary(_Record):
    """The demand as the plan saw it."""

    request_rate_rps: float
    burstiness: float
    prefix_hit_share: float
    mean_isl: float
    mean_osl: float
    max_tokens: int
    isl: list[float]
    osl: list[float]
    share: list[float]


class Plan(_Record):
    """The recommendation."""

    schema_: Literal["pdplan.plan/1"] = Field(default=PLAN_SCHEMA, alias="schema")
    name: str
    model: str
    engine: str
    objective: str
    status: Status
    simulated: bool
    cost_usd_per_hour: float | None
    bound_usd_per_hour: float | None
    gap: float | None
    demand_rps: float
    goodput_rps: float
    """Highest arrival rate, same mix and routing, at which every class still holds its attainment."""
    goodput_per_dollar: float
    """Requests within SLO per dollar."""
    usd_per_million_output_tokens: float | None
    attainment: float
    """Share of all requests within all their SLOs at the stated demand."""
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    gpus: dict[str, int]
    """GPUs by accelerator."""
    pools: list[Pool]
    transfers: list[Transfer]
    classes: list[ClassResult]
    routing: list[Route]
    binding: list[Binding]
    alternatives: list[Alternative]
    workload: WorkloadSummary
    provenance: Provenance

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)
