"""How wrong serving predictions were where measurements exist, as plan.json holds it."""

from __future__ import annotations

from typing import Literal

from .plan_fields import Amount, Count, Number, Record


class AccuracyRecord(Record):
    """Errors of predicted TTFT and TPOT against measurements of models that the fit never saw.

    Relative to the measured value [1]; null where there is no measurement.
    """

    accelerator: str
    """Empty: any."""
    mode: Literal["colocated", "disaggregated"]
    engine: str
    """Empty: any."""
    model: str
    """Empty: any."""
    rows: Count
    """Measurements; 0: none of this very kind is on record."""
    ttft_median_abs: Amount | None = None
    """Median of |predicted - measured| / measured."""
    ttft_bias: Number | None = None
    """Median of (predicted - measured) / measured."""
    tpot_median_abs: Amount | None = None
    tpot_bias: Number | None = None
