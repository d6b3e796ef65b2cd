"""Who hands over to whom, and how much of what is handed over goes where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from search_spaces.enumeration import Shape
from search_spaces.kv_hand_over import end_of, partners
from search_spaces.problem import Problem

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

ROUNDS = 2000
MOST = 1e12
"""Factor beyond which the shares cannot be had."""
CLOSE = 1e-12
"""How far shares may be from what the pools serve when the even mix is found, relative."""


def even_mix(talks: BoolArray, sent: FloatArray, taken: FloatArray) -> FloatArray:
    """How much more of a flow goes from one pool to another than sent x taken / all that is taken, (P, D, F).

    1 everywhere where all can talk; else 0 where two cannot, and the rest as even as the pools' shares allow (iterative
    proportional fitting, Deming and Stephan 1940). talks (P, D); sent (P, F) by prefill pools, taken (D, F) by decode
    pools, of each flow as much as is sent.
    """
    factor = np.broadcast_to(talks[:, :, None], (*talks.shape, sent.shape[1])).astype(np.float64)
    if talks.all():
        return factor
    all_sent, all_taken = (np.maximum(share.sum(axis=0), 1e-300) for share in (sent, taken))
    for _ in range(ROUNDS):
        came = np.einsum("pdf,pf->df", factor, sent) / all_sent
        factor = np.minimum(factor / np.where(taken > 0.0, np.maximum(came, 1.0 / MOST), 1.0), MOST)
        went = np.einsum("pdf,df->pf", factor, taken) / all_taken
        factor = np.minimum(factor / np.where(sent > 0.0, np.maximum(went, 1.0 / MOST), 1.0)[:, None], MOST)
        if np.abs(np.where(sent > 0.0, went - 1.0, 0.0)).max(initial=0.0) <= CLOSE:
            break
    return factor


def hand_over(problem: Problem, shapes: Sequence[Shape]) -> tuple[BoolArray, IntArray, IntArray, BoolArray]:
    """Who can talk to whom among S shapes: talks, domain, group, hands_over.

    talks (S, S): whether a prefill engine of the row's shape can hand over to a decode engine of the column's;
    domain (S,): accelerators with one layout of KV blocks, in one precision;
    group (3, S): by role, shapes of one domain that can talk to the same ones; colocated ones talk to nobody;
    hands_over (prefill groups, decode groups): whether those of one group can hand over to those of another.
    """
    ends = [end_of(problem, shape) for shape in shapes]
    distinct = list(dict.fromkeys(ends))
    takers = partners(problem, distinct)
    between = np.array([[taker in takers[sender] for taker in distinct] for sender in distinct], dtype=np.bool_)
    families = [(end.kv_domain, end.weight_dtype, end.kv_dtype) for end in distinct]
    family = np.array([sorted(set(families)).index(own) for own in families], dtype=np.int64)
    sends, takes = _labels(between, family), _labels(between.T, family)
    linked = np.zeros((int(sends.max(initial=-1)) + 1, int(takes.max(initial=-1)) + 1), dtype=np.bool_)
    sender, taker = np.nonzero(between)
    linked[sends[sender], takes[taker]] = True
    index = np.array([distinct.index(end) for end in ends], dtype=np.int64)
    domain = family[index]
    group = np.stack([np.maximum(sends, 0)[index], np.maximum(takes, 0)[index], domain])
    return between[np.ix_(index, index)], domain, group, linked


def _labels(between: BoolArray, family: IntArray) -> IntArray:
    """One number for rows that are alike, in the order of families; -1 for those that can talk to nobody."""
    patterns = [row.tobytes() for row in between]
    able = [place for place in np.argsort(family, kind="stable").tolist() if between[place].any()]
    numbers = {pattern: number for number, pattern in enumerate(dict.fromkeys(patterns[place] for place in able))}
    return np.array([numbers.get(pattern, -1) for pattern in patterns], dtype=np.int64)
