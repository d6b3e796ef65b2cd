"""What GPUs of each offer cost together, and whether the limits on the fleet allow them; for many fleets at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.problem import Billing, Problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def with_rented(problem: Problem, gpus: FloatArray | IntArray) -> FloatArray | IntArray:
    """The same GPUs, (..., offers), those beyond the ones that are owned rented as more of their type."""
    for index, offer in enumerate(problem.offers):
        if not offer.owned:
            continue
        more = next(number for number, other in enumerate(problem.offers) if other.gpu == offer.gpu and not other.owned)
        beyond = np.maximum(gpus[..., index] - (offer.inventory or 0), 0)
        gpus = gpus.copy()
        gpus[..., index] -= beyond
        gpus[..., more] += beyond
    return gpus


def pools_apart(problem: Problem) -> Problem:
    """The same problem for fleets that state each pool: of owned GPUs it has no more than there are."""
    return replace(problem, offers=tuple(replace(offer, owned=False) for offer in problem.offers))


def paid_gpus(problem: Problem, gpus: FloatArray | IntArray) -> FloatArray:
    """GPUs of each offer that so many are paid for, (..., offers): those of whole nodes where they are billed."""
    sizes = np.array([offer.accelerator.node_size for offer in problem.offers])
    by_node = np.array([offer.billing is Billing.NODE for offer in problem.offers])
    return np.asarray(np.where(by_node, np.ceil(gpus / sizes) * sizes, gpus))


def offer_prices(problem: Problem, gpus: FloatArray | IntArray) -> list[FloatArray]:
    """Price of so many GPUs of each offer, whole nodes where they are billed [$/h]; gpus (..., offers)."""
    paid = paid_gpus(problem, gpus)
    return [np.asarray(paid[..., index] * offer.usd_per_hour) for index, offer in enumerate(problem.offers)]


def billed_gpus(problem: Problem, gpus: IntArray) -> dict[str, int]:
    """GPUs of the whole nodes that are billed, by accelerator, where some of them are not used."""
    rows = zip(problem.offers, gpus.tolist(), paid_gpus(problem, gpus).tolist(), strict=True)
    return {offer.accelerator.name: round(paid) for offer, used, paid in rows if paid > used}


def gpu_cost(problem: Problem, gpus: FloatArray | IntArray) -> FloatArray:
    """Price of all GPUs together [$/h]; gpus (..., offers). A pool may have more than are owned; those cost in full."""
    each = offer_prices(problem, with_rented(problem, gpus))
    return np.asarray(sum(each[1:], each[0]))


def within_limits(problem: Problem, gpus: FloatArray | IntArray) -> NDArray[np.bool_]:
    """Whether so many GPUs of each offer, (..., offers), keep inventory, budget, power and the limit on all GPUs."""
    limits, gpus = problem.constraints, with_rented(problem, gpus)
    stock = np.array([np.inf if offer.inventory is None else offer.inventory for offer in problem.offers])
    good = (gpus <= stock).all(axis=-1)
    if limits.budget is not None:
        good &= gpu_cost(problem, gpus) <= limits.budget * (1.0 + 1e-9)
    if limits.power is not None:
        tdp = np.array([offer.accelerator.tdp for offer in problem.offers])
        good &= gpus @ tdp <= limits.power * (1.0 + 1e-9)
    if limits.max_gpus is not None:
        good &= gpus.sum(axis=-1) <= limits.max_gpus
    return np.asarray(good)
