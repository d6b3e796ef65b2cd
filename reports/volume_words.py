"""What a plan for goodput per dollar was sought among, and what its ratio is at the stated demand."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.plans.plan import Plan
from search_spaces.problem import DEFAULT_VOLUME_RANGE

from .numbers import is_number, rate, significant


def volume_sentence(plan: Plan) -> str:
    """Say which loads were allowed, and which the ratio is for; empty where the objective is another.

    Requests per dollar are a fleet's goodput over its price. The demand of the file is served for the same dollars.
    """
    bounds, cost, demand = _bounds(plan), plan.cost_usd_per_hour, plan.demand_rps
    if plan.objective != "max_goodput_per_dollar" or not cost or bounds is None:
        return ""
    least, most = bounds
    default = " (four times min_volume, as none is stated)" if most == DEFAULT_VOLUME_RANGE * least else ""
    allowed = f"Fleets were to serve {rate(least * demand)} to {rate(most * demand)}: max_volume is {significant(most)}"
    alone = f"at the demand of {rate(demand)} the fleet serves {significant(demand * 3600.0 / cost)} requests per $"
    return f"{allowed}{default}. The ratio is for {rate(plan.goodput_rps)}; {alone}."


def _bounds(plan: Plan) -> tuple[float, float] | None:
    """Least and greatest multiple of the demand that a fleet may serve [1]; None where the plan does not say."""
    asked = plan.provenance.inputs.get("objective")
    found = [asked.get(key) for key in ("min_volume", "max_volume")] if isinstance(asked, Mapping) else []
    known = [float(one) for one in found if isinstance(one, int | float) and is_number(one)]
    return (known[0], known[1]) if len(known) == 2 else None
