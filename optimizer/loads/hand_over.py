"""Who hands over to whom, as rows of a linear programme.

What each prefill engine hands over must be taken in by decode engines that it can talk to. With x_p the share of a
flow on prefill engines of a domain p, z_d that on decode engines of d, and N(S) the domains that any of S can talk to,
shares of each pair exist exactly if (Gale 1957, the supply-demand theorem)

    sum_{p in S} x_p <= sum_{d in N(S)} z_d     every set S of prefill domains, with equality for all of them

Domains that are linked by no chain of pairs have rows of their own. Where everyone of such a group can talk to
everyone, which is the rule, its equality says it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Pairing:
    """R rows over D domains, which are numbered apart for prefill and for decode.

    prefill, decode (R, D): whether a row counts the columns of a domain in that role; equal (R,): what is handed over
    is all that is taken in, not at most as much.
    """

    prefill: BoolArray
    decode: BoolArray
    equal: BoolArray

    @classmethod
    def within(cls, domains: int) -> Pairing:
        """Everyone of a domain can talk to everyone of it, and to nobody else."""
        own = np.eye(domains, dtype=np.bool_)
        return cls(own, own, np.ones(domains, dtype=np.bool_))

    @classmethod
    def of(cls, talks: BoolArray, domains: int = 0) -> Pairing:
        """The rows for `talks` (prefill domains, decode domains): who can talk to whom; room for `domains` at least."""
        rows: list[tuple[BoolArray, BoolArray, bool]] = []
        for group in _groups(talks):
            partners_of_all = np.asarray(talks[group].any(axis=0))
            rows.append((group, partners_of_all, True))
            smaller = [union for union in _unions(talks[group]) if (union != partners_of_all).any()]
            rows += [(np.asarray(group & ~(talks & ~union).any(axis=1)), union, False) for union in smaller]
        prefill, decode = np.zeros((2, len(rows), max(*talks.shape, domains)), dtype=np.bool_)
        for row, (senders, takers, _) in enumerate(rows):
            prefill[row, : senders.size], decode[row, : takers.size] = senders, takers
        return cls(prefill, decode, np.array([equal for _, _, equal in rows], dtype=np.bool_))

    def worth(self, duals: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What is paid for a flow handed over and one taken in at the rows' duals (R, F), each (D, F)."""
        return np.asarray(self.prefill.T @ duals), -np.asarray(self.decode.T @ duals, dtype=np.float64)


def _groups(talks: BoolArray) -> list[BoolArray]:
    """Prefill domains linked by chains of pairs, as masks, the group of the first domain first."""
    groups: list[BoolArray] = []
    for start in range(talks.shape[0]):
        if any(group[start] for group in groups):
            continue
        group, wider = np.zeros(talks.shape[0], dtype=np.bool_), np.arange(talks.shape[0]) == start
        while (wider != group).any():
            group, wider = wider, (talks & talks[wider].any(axis=0)).any(axis=1) | wider
        groups.append(group)
    return groups


def _unions(rows: BoolArray) -> list[BoolArray]:
    """Every union of some of the rows, once, the smallest first."""
    unions: dict[bytes, BoolArray] = {}
    for row in rows:
        for other in [row & False, *unions.values()]:
            unions.setdefault((row | other).tobytes(), row | other)
    return sorted(unions.values(), key=lambda union: (int(union.sum()), union.tobytes()))


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


def hand_over(problem: Problem, shapes: Sequence[Shape]) -> tuple[BoolArray, IntArray, IntArray, Pairing]:
    """Who can talk to whom among S shapes: talks, domain, group, pairing.

    talks (S, S): whether a prefill engine of the row's shape can hand over to a decode engine of the column's;
    domain (S,): accelerators with one layout of KV blocks, in one precision;
    group (3, S): by role, shapes of one domain that can talk to the same ones; colocated ones talk to nobody;
    pairing: the rows for the groups of prefill and of decode shapes.
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
    return between[np.ix_(index, index)], domain, group, Pairing.of(linked, int(family.max(initial=-1)) + 1)


def _labels(between: BoolArray, family: IntArray) -> IntArray:
    """One number for rows that are alike, in the order of families; -1 for those that can talk to nobody."""
    patterns = [row.tobytes() for row in between]
    able = [place for place in np.argsort(family, kind="stable").tolist() if between[place].any()]
    numbers = {pattern: number for number, pattern in enumerate(dict.fromkeys(patterns[place] for place in able))}
    return np.array([numbers.get(pattern, -1) for pattern in patterns], dtype=np.int64)
