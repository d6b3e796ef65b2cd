"""What a plan takes for granted of the figures that nobody measured, and of how requests come."""

from __future__ import annotations

from collections.abc import Iterable

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


def price_remarks(problem: Problem, bought: Iterable[int] | None = None) -> list[str]:
    """What a buyer has to know of prices that are no quotes on demand; bought: the offers that matter, default: all."""
    numbers = range(len(problem.offers)) if bought is None else bought
    offers = [problem.offers[number] for number in numbers]
    remarks = [offer.quote.remark(offer.gpu) for offer in offers if offer.quote is not None]
    return [remark for remark in remarks if remark]


def assumed_figures(problem: Problem) -> list[str]:
    """Prices and efficiencies of the offers that nobody measured or quoted."""
    stated = price_remarks(problem)
    for offer in problem.offers:
        name = offer.accelerator.name
        if offer.accelerator.efficiency["gemm", "bf16"].origin is Origin.ASSUMED:
            stated.append(f"The kernel efficiencies of {name} are assumed from other accelerators, not measured.")
    return stated
