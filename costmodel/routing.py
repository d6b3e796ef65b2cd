"""How a step's tokens fall onto routed experts, and what the most loaded expert-parallel rank gets of them.

Arrays broadcast against (engines, points).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Count = TypeVar("Count", float, FloatArray)


@dataclass(frozen=True, slots=True)
class Routed:
    """One expert-parallel rank, the busiest.

    rows: (token, expert) pairs that it computes; touched: distinct experts that they reach;
    elsewhere: pairs of the same tokens that other ranks compute.
    """

    rows: FloatArray
    touched: FloatArray
    elsewhere: FloatArray


def touched_experts(experts: Count, per_token: Count, tokens: FloatArray) -> FloatArray:
    """Distinct experts that `tokens` tokens reach when routing is uniform: E (1 - (1 - k/E)^tokens).

    >>> round(float(touched_experts(8, 2, np.float64(1))), 9)
    2.0
    """
    if np.ndim(experts) == 0 and per_token >= experts:
        return np.asarray(experts * np.sign(tokens))
    return np.asarray(-experts * np.expm1(tokens * np.log1p(-np.asarray(per_token / experts))))


@cache
def largest_of(ranks: int) -> float:
    """Expected largest of `ranks` independent standard normals: inverse normal of (n - 3/8) / (n + 1/4) (Blom 1958).

    >>> [round(largest_of(n), 2) for n in (1, 2, 8)]
    [0.0, 0.59, 1.43]
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def imbalance(experts: Count, per_token: Count, ranks: FloatArray, largest: FloatArray, skew: FloatArray) -> FloatArray:
    """Load of the busiest rank over the mean load [1].

    skew: standard deviation of the experts' popularity over its mean. A rank holds E / ep experts, so the loads of
    ranks scatter by skew / sqrt(E / ep), and the largest of ep is x = largest x skew / sqrt(E / ep) above the mean.
    A token has at most min(k, E / ep) of its k choices on one rank, so the load stays below ep min(k, E / ep) / k:
    with m = that limit - 1, imbalance = 1 + x m / (x + m).

    >>> eight, peak = np.float64(8), np.float64(1.43)
    >>> [round(float(imbalance(e, 8, eight, peak, np.float64(1.0))), 2) for e in (64, 256)]
    [1.47, 1.24]
    """
    held = experts / ranks
    room = np.maximum(ranks * np.minimum(per_token, held) / per_token - 1.0, 0.0)
    above = largest * skew / np.sqrt(held)
    return np.asarray(1.0 + above * room / np.maximum(above + room, 1e-12))


def busiest_expert_rank(
    experts: Count, per_token: Count, tokens: FloatArray, ranks: FloatArray, factor: FloatArray
) -> Routed:
    """What the rank with `factor` times the mean load computes when `tokens` tokens choose `per_token` experts each.

    It holds E / ep experts and sees rows = tokens k / ep x factor; it touches at least one expert, and no more than it
    holds or the tokens choose.
    """
    held = experts / ranks
    most = np.minimum(held, tokens * np.minimum(per_token, held))
    touched = np.minimum(np.maximum(touched_experts(experts, per_token, tokens * factor) / ranks, 1.0), most)
    rows = np.maximum(tokens * per_token / ranks * factor, touched)
    return Routed(rows, touched, np.maximum(tokens * per_token - rows, 0.0))
