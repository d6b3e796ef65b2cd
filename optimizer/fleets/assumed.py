"""What a plan takes for granted of the figures that nobody measured, and of how requests come."""

from __future__ import annotations

from costmodel.accelerator import Origin
from search_spaces.problem import Problem


def assumed_arrivals(problem: Problem) -> list[str]:
    """How requests come, unless they are Poisson."""
    recorded, variation = problem.recorded, problem.workload.burstiness
    if recorded is None:
        return [f"Arrivals are independent with a coefficient of variation of {variation:g}."] * (variation != 1.0)
    left_out = f", less {recorded.too_long:,} of too many tokens" if recorded.too_long else ""
    pace = problem.workload.request_rate / recorded.rate
    return [
        f"Requests are simulated as {recorded.source} recorded them{left_out}, {pace:.3g} times as fast; by "
        f"formula they come each by itself, with a coefficient of variation of {variation:.3g}."
    ]


def assumed_figures(problem: Problem) -> list[str]:
    """Prices and efficiencies of the offers that nobody measured or quoted."""
    stated = []
    for offer in problem.offers:
        name, price = offer.accelerator.name, offer.accelerator.price
        if price.origin is Origin.ASSUMED and offer.usd_per_hour == price.usd_per_hour:
            stated.append(f"The price of {name}, ${price.usd_per_hour:g}/h, is assumed: {price.source}.")
        if offer.accelerator.efficiency["gemm", "bf16"].origin is Origin.ASSUMED:
            stated.append(f"The kernel efficiencies of {name} are assumed from other accelerators, not measured.")
    return stated
