"""What is known of cheaper fleets, in words that claim no more: of fleets of one or two pools, and of any."""

from __future__ import annotations

from optimizer.plans.plan import Plan, Status
from optimizer.plans.proof import OPTIMAL_GAP, is_below

from .numbers import hourly, is_number
from .words import search_words


def largest_saving(plan: Plan) -> float | None:
    """What any fleet at all could save at most by formula, as a share of the cost [1]; None where that is not known."""
    if plan.objective != "min_cost" or not plan.cost_usd_per_hour or beats_the_floor(plan):
        return None
    if plan.floor_usd_per_hour is None:
        return None
    return max(0.0, 1.0 - plan.floor_usd_per_hour / plan.cost_usd_per_hour)


def gap_of_any_fleet(plan: Plan) -> float | None:
    """How far a plan is from what no fleet of any shape can beat, in its cost or its goodput [1]; None: not known."""
    return largest_saving(plan) if plan.objective == "min_cost" else plan.gap


def beats_the_floor(plan: Plan) -> bool:
    """Tell whether the fleet costs less than any that the formulas accept: they were too careful."""
    return plan.cost_usd_per_hour is not None and is_below(plan.floor_usd_per_hour, plan.cost_usd_per_hour)


def outcome_words(plan: Plan) -> str:
    """Say how the search ended."""
    if plan.status is not Status.OPTIMAL:
        return search_words(plan.status.value)
    if plan.objective != "min_cost":
        return "best found"
    return "cheapest possible" if is_cheapest_possible(plan) else "cheapest found"


def is_cheapest_possible(plan: Plan) -> bool:
    """Tell whether no fleet at all is cheaper by formula."""
    share = largest_saving(plan)
    return share is not None and share <= OPTIMAL_GAP


def cost_proof(plan: Plan) -> str:
    """Say what is known of fleets of one or two pools, and of fleets of any shape, that cost less.

    Where a price of the fleet needs a remark, all of it is so at these prices.
    """
    floor, given = hourly(plan.floor_usd_per_hour), " at these prices" if plan.price_remarks else ""
    if beats_the_floor(plan):
        known = "No lower bound on the price is known"
        return f"{known}: by formula no fleet below {floor} meets the SLO, but this one does in simulation."
    any_shape = f"o fleet of any shape can cost less than {floor}{given} under this model."
    if is_cheapest_possible(plan):
        return f"Cheapest fleet possible: n{any_shape}"
    sentences = [_few_pools(plan, given), f"N{any_shape}" if plan.floor_usd_per_hour is not None else ""]
    return " ".join(filter(None, sentences)) or "No lower bound on the price is known."


def _few_pools(plan: Plan, given: str) -> str:
    """What is known of fleets of one or two pools; empty where nothing is, or the fleet has more pools than these."""
    bound = plan.bound_usd_per_hour
    if not is_number(plan.gap) or bound is None or bound == plan.floor_usd_per_hour:
        return ""
    if plan.gap <= OPTIMAL_GAP:
        return f"Cheapest fleet found: no fleet of one or two pools is cheaper{given}."
    return f"By formula a fleet for {hourly(bound)} meets the SLO; in simulation no cheaper fleet than this one does."
