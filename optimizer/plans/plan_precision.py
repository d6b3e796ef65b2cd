"""What narrower weights or a narrower KV cache would save, as a plan states it where the user named no precisions."""

from __future__ import annotations

from .plan_fields import Amount, Record
from .plan_pools import EnginePool


class PrecisionSaving(Record):
    """The cheapest fleet by formula in another precision, which costs notably less; nothing of it is simulated."""

    weight_dtype: str
    kv_dtype: str
    cost_usd_per_hour: Amount
    base_usd_per_hour: Amount
    """Cost of the cheapest fleet by formula in the precision of the plan."""
    pools: list[EnginePool]
