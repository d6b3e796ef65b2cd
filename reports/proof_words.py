"""What is proven of a plan's price, in words that claim no more: of the fleets that formulas promise, and of any."""

from __future__ import annotations

from optimizer.plans.plan import Plan, Status
from optimizer.plans.proof import OPTIMAL_GAP, is_below

from .numbers import hourly, is_number, percent
from .words import search_words


def certified(plan: Plan) -> float | None:
    """What any fleet at all could save at most by formula, as a share of the cost [1]; None where that is not known."""
    if plan.objective != "min_cost" or not plan.cost_usd_per_hour or beats_the_floor(plan):
        return None
    if plan.floor_usd_per_hour is None:
        return None
    return max(0.0, 1.0 - plan.floor_usd_per_hour / plan.cost_usd_per_hour)


def beats_the_floor(plan: Plan) -> bool:
    """Tell whether the fleet costs less than any that the formulas accept: they were too careful."""
    return plan.cost_usd_per_hour is not None and is_below(plan.floor_usd_per_hour, plan.cost_usd_per_hour)


def outcome_words(plan: Plan) -> str:
    """Say how the search ended; optimal only with those among which the fleet is."""
    if plan.status is not Status.OPTIMAL:
        return search_words(plan.status.value)
    if plan.objective != "min_cost":
        return "optimal by formula"
    return "optimal among all fleets" if holds_for_all(plan) else "optimal among promised fleets"


def holds_for_all(plan: Plan) -> bool:
    """Tell whether no fleet at all is cheaper by formula."""
    share = certified(plan)
    return share is not None and share <= OPTIMAL_GAP


def cost_proof(plan: Plan) -> str:
    """Say how far the plan could be from the cheapest promised fleet, and from the cheapest of all.

    Where a price of the fleet needs a remark, all that is proven is so at these prices.
    """
    if beats_the_floor(plan):
        floor = hourly(plan.floor_usd_per_hour)
        return f"No lower bound on the price is known: by formula no fleet below {floor} would hold, but this one did."
    if holds_for_all(plan):
        proved = f"Proved by formula{' at these prices' if plan.price_remarks else ''}"
        return f"{proved}: no fleet at all costs less than {hourly(plan.floor_usd_per_hour)} (gap 0 %)."
    share, least = certified(plan), ""
    if share is not None:
        at_most = f"none below {hourly(plan.floor_usd_per_hour)} (at most {percent(share)} cheaper)"
        least = f"certified against every fleet: {at_most}"
    if not is_number(plan.gap):
        return _sentence(least, plan) if least else "No lower bound on the price is known."
    if share is not None and plan.bound_usd_per_hour == plan.floor_usd_per_hour:
        return _sentence(least, plan)
    bound, gap = hourly(plan.bound_usd_per_hour), percent(max(0.0, plan.gap))
    if plan.gap <= OPTIMAL_GAP:
        cheaper = f"none is cheaper (bound {bound}, gap {gap})"
    else:
        cheaper = f"one may be cheaper, by at most {gap} (bound {bound})"
    return _sentence(f"of fleets whose engines promise the demand {cheaper}{f'; {least}' if least else ''}", plan)


def _sentence(words: str, plan: Plan) -> str:
    if plan.price_remarks:
        return f"At these prices, {words}."
    return f"{words[:1].upper()}{words[1:]}."
