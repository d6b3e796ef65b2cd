"""Arrivals over a day: the rates of its hours, the one planned for, and what a token costs over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from optimizer.plans.plan import Plan

from .numbers import is_number, money, rate

HOURS: Final = 24


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Mean rate of each hour [1/s], and the one that the fleet carries."""

    hourly: tuple[float, ...]
    planned: float

    @property
    def use(self) -> float:
        """Mean rate over the planned one: what the fleet is used over the day, were it never more than planned [1]."""
        return sum(min(value, self.planned) for value in self.hourly) / (len(self.hourly) * self.planned)


def arrivals(plan: Plan) -> Arrivals | None:
    """The stated profile; None where one mean rate was stated."""
    workload: Any = plan.provenance.inputs.get("workload")
    profile = workload.get("diurnal") if isinstance(workload, Mapping) else None
    rates = profile.get("requests_per_second_by_hour") if isinstance(profile, Mapping) else None
    if not isinstance(rates, list) or len(rates) != HOURS or plan.demand_rps <= 0:
        return None
    if not all(isinstance(value, int | float) and is_number(value) and value >= 0 for value in rates):
        return None
    return Arrivals(tuple(float(value) for value in rates), plan.demand_rps)


def day_price_words(plan: Plan) -> str:
    """The price of a million output tokens over a day on which the fleet stays as it is; empty without a profile.

    The plan's own is for the rate planned for, its peak; the same dollars over the day's mean give
    p_day = p_peak / use.
    """
    day, peak = arrivals(plan), plan.usd_per_million_output_tokens
    if day is None or not peak or day.use <= 0.0 or plan.objective != "min_cost":
        return ""
    return f"{money(peak / day.use)} over the day's mean of {rate(day.use * day.planned)}"
