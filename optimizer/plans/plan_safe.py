"""The cheapest fleet that survives slow GPUs, as a plan for expected step times states it beside its own fleet."""

from __future__ import annotations

from enum import StrEnum

from .plan_fields import Amount, Record, Share
from .plan_pools import EnginePool


class SafeStatus(StrEnum):
    """Which fleet meets every SLO at the slow end of past prediction errors."""

    OWN = "own"
    """The plan's own fleet does."""
    OTHER = "other"
    """The plan's own is not shown to; the fleet of this record does."""
    NONE = "none"
    """The plan's own is not shown to, and no fleet was found that does; that there is none is not proven."""


class SafeFleet(Record):
    """The cheapest fleet found that meets every SLO with all steps at the slow end of their interval, simulated."""

    confidence: Share
    """Probability of the interval of step times at whose slow end the fleet is judged."""
    status: SafeStatus
    cost_usd_per_hour: Amount | None
    """Price of the fleet; null where none was found."""
    pools: list[EnginePool]
    attainment: Share | None
    """Share of all its requests within all their SLOs there."""
    own_attainment: Share
    """The same of the plan's own fleet."""
    sentence: str
