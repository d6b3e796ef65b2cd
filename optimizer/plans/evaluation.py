"""What a stated fleet does, as `pdplan evaluate` writes it: its plan record, what it lacks, the cheapest."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from .plan import Plan
from .plan_fields import Amount, Count, Degree, Number, Record
from .plan_simulation import Judged, JudgedFleet

EVALUATION_SCHEMA: Literal["pdplan.evaluation/1"] = "pdplan.evaluation/1"


class PoolNeed(Record):
    """Replicas of a pool that run, and those that are needed."""

    pool: str
    replicas: Degree
    needed: Degree


class Provisioning(Record):
    """The fewest replicas of the same engines with which the fleet was found to meet every SLO."""

    rate_rps: Amount
    stated: JudgedFleet
    """The fleet as it is, at this rate."""
    pools: list[PoolNeed]
    """Empty where no number of replicas that was tried meets the SLOs."""
    cost_usd_per_hour: Amount | None
    """None where no number of replicas that was tried meets the SLOs."""
    one_replica_fewer: list[JudgedFleet]
    """These with one replica fewer in one pool: none is shown to meet every SLO."""
    judged: Count
    """Fleets that were simulated for it."""
    most: Amount
    """Multiple of the stated replicas up to which fleets were tried [1]."""

    @property
    def missing(self) -> int:
        """Replicas that are needed and do not run."""
        return sum(max(pool.needed - pool.replicas, 0) for pool in self.pools)

    @property
    def spare(self) -> int:
        """Replicas that run and are not needed."""
        return sum(max(pool.replicas - pool.needed, 0) for pool in self.pools)


class FleetEvaluation(Record):
    """A fleet that was stated, evaluated as a plan is."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)

    schema_: Literal["pdplan.evaluation/1"] = Field(default=EVALUATION_SCHEMA, alias="schema")
    outcome: Judged
    """meets, misses, or undecided where a goal lies within its interval."""
    stuck: bool
    """Whether it keeps its goals until a crowd fills its KV memory, and not any more after that."""
    replayed: bool
    """Whether it keeps its goals for stretches of the recorded requests, and not for all of them in their order."""
    plan: Plan
    """The fleet as a plan states one, its status `stated`: settings, price, latencies, headroom, what binds."""
    usd_per_month: Amount
    provisioning: Provisioning
    twice: Provisioning
    """The same at twice the rate."""
    cheapest: Plan | None
    """The cheapest fleet that the search found for the same workload at the same prices; null where none was sought."""
    saving_usd_per_hour: Number | None
    """What that one costs less; negative where it costs more; null where there is none."""
    no_cheapest: str = ""
    """Why there is no cheapest fleet, where it was sought and physics forbids one."""
