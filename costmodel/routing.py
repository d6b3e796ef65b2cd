"""How a step's tokens fall onto routed experts, and what the most loaded expert-parallel rank gets of them.

Arrays broadcast against (engines, points).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from .arrays import FloatArray

Count = float | FloatArray
Ranks = TypeVar("Ranks", int, FloatArray)


@dataclass(frozen=True, slots=True)
class Routed:
    """One expert-parallel rank, the busiest.

    rows: (token, expert) pairs that it computes; touched: distinct experts that they reach;
    elsewhere: pairs of the same tokens that other ranks compute.
    """

    rows: FloatArray
    touched: FloatArray
    elsewhere: FloatArray


def expert_slots(experts: int, ranks: Ranks) -> Ranks:
    """Places for the experts of a layer on `ranks` expert-parallel ranks, ep ceil(E / ep) [1].

    Every rank holds as many. Where ep does not divide E, the places beyond E hold second copies of experts (redundant
    experts), which take their share of the tokens.

    >>> [expert_slots(256, ranks) for ranks in (1, 8, 72, 320)]
    [256, 256, 288, 320]
    """
    slots: Ranks = -(-experts // ranks) * ranks
    return slots


def touched_experts(
    experts: Count, per_token: Count, tokens: FloatArray, spread: float | FloatArray | None = None
) -> FloatArray:
    """Distinct experts that `tokens` tokens reach: k + (E - k) (1 - (1 + s^2 x)^(-1 / s^2)), x = -(t - 1) ln(1 - k/E).

    The first token reaches k; each of the others is reached by x more on average. Experts whose popularity is gamma
    distributed with standard deviation s over its mean stay idle with the probability (1 + s^2 x)^(-1 / s^2) (negative
    binomial, Greenwood and Yule 1920); s = 0, uniform routing, leaves E (1 - (1 - k/E)^t).

    >>> round(float(touched_experts(8, 2, np.float64(1), 0.8)), 9)
    2.0
    >>> [round(float(touched_experts(256, 8, np.float64(64), s)), 1) for s in (0.0, 0.5, 1.0)]
    [222.4, 207.0, 173.3]
    """
    choice_share = np.minimum(per_token / experts, 1.0 - 1e-15)
    further = -np.maximum(tokens - 1.0, 0.0) * np.log1p(-choice_share)
    if spread is not None and np.any(spread):
        variance = np.maximum(np.square(spread), 1e-9)
        further = np.log1p(variance * further) / variance
    return np.asarray(per_token * np.minimum(tokens, 1.0) - (experts - per_token) * np.expm1(-further))


SAMPLED_RANGE = 0.8
"""Hottest over coldest expert in the kernel tables' routing, per token of the batch (NVIDIA AIConfigurator) [1]."""
SAMPLED_SPREAD = 0.75
"""Share of that routing's standard deviation that the experts short of the hottest have; fitted to the tables [1]."""


def sampled_spread(tokens: FloatArray) -> FloatArray:
    """Spread among the ordinary experts of the routing that the kernel tables draw [1].

    Popularity follows a power law of exponent about 1 between 1 and M = 0.8 tokens. Its mean is (M - 1) / ln M, its
    squared relative deviation (M + 1) ln M / (2 (M - 1)) - 1.

    >>> [round(float(sampled_spread(np.float64(t))), 2) for t in (1, 32, 1024)]
    [0.0, 0.65, 1.15]
    """
    most = np.maximum(SAMPLED_RANGE * tokens, 1.0 + 1e-6)
    variance = (most + 1.0) * np.log(most) / (2.0 * (most - 1.0)) - 1.0
    return np.asarray(SAMPLED_SPREAD * np.sqrt(np.maximum(variance, 0.0)))


def largest_of(ranks: float) -> float:
    """Expected largest of `ranks` independent standard normals: inverse normal of (n - 3/8) / (n + 1/4) (Blom 1958).

    >>> [round(largest_of(n), 2) for n in (1, 2, 8)]
    [0.0, 0.59, 1.43]
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def imbalance(experts: Count, per_token: Count, ranks: FloatArray, largest: FloatArray, skew: float) -> FloatArray:
    """Load of the busiest rank over the mean load [1].

    skew: standard deviation of the experts' popularity over its mean. A rank holds E / ep experts, so the loads of
    ranks scatter by skew / sqrt(E / ep), and the largest of ep is x = largest x skew / sqrt(E / ep) above the mean.
    A token has at most min(k, E / ep) of its k choices on one rank, so the load stays below ep min(k, E / ep) / k:
    with m = that limit - 1, imbalance = 1 + x m / (x + m).

    >>> eight, peak = np.float64(8), np.float64(1.43)
    >>> [round(float(imbalance(e, 8, eight, peak, 1.0)), 2) for e in (64, 256)]
    [1.47, 1.24]
    """
    rank_experts = experts / ranks
    room = np.maximum(ranks * np.minimum(per_token, rank_experts) / per_token - 1.0, 0.0)
    above = largest * skew / np.sqrt(rank_experts)
    return np.asarray(1.0 + above * room / np.maximum(above + room, 1e-12))


def busiest_expert_rank(
    experts: Count,
    per_token: Count,
    tokens: FloatArray,
    ranks: FloatArray,
    factor: FloatArray,
    *,
    spread: float | FloatArray | None = None,
) -> Routed:
    """What the rank with `factor` times the mean load computes when `tokens` tokens choose `per_token` experts each.

    spread: of the popularity of experts within a rank, as in `touched_experts`. The rank holds E / ep experts and sees
    rows = tokens k / ep x factor; it touches at least one expert, and no more than it holds or the tokens choose.
    """
    rank_experts = experts / ranks
    most = np.minimum(rank_experts, tokens * np.minimum(per_token, rank_experts))
    busy_count = np.minimum(np.maximum(touched_experts(experts, per_token, tokens * factor, spread) / ranks, 1.0), most)
    rows = np.maximum(tokens * per_token / ranks * factor, busy_count)
    return Routed(rows, busy_count, np.maximum(tokens * per_token - rows, 0.0))
