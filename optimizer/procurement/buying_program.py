"""What to reserve and buy while the growth is not known: a two-stage stochastic integer programme.

Paths p of the demand with probabilities q_p. The commitments of the first month are the same on all of them; later
ones are made when the path is known, and so is what is rented.
n_k whole: GPUs taken under contract k now;  n_pks whole: in month s on path p;  u_pmlk >= 0: in use in month m at
level l of the rate;  y_pmlo 0 or 1: fleet o serves then
min  sum cost_k0 n_k + sum_p q_p (sum cost_ks n_pks + sum hours_pml running_k u_pmlk)
sum_o y_pmlo = 1;  sum_{k of t} u_pmlk >= sum_o gpus_ot y_pmlo;  u_pmlk <= sum n_k + n_pks in force in month m
Birge and Louveaux, Introduction to Stochastic Programming, section 1.1; with one contract, one type and linear fleets
it is the newsvendor: the n-th GPU is reserved if it is needed in a larger share of hours than its price ratio.

Spot GPUs need the least headroom of any number that a level uses here, so that the bound is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.search.program import Builder, Program, solve
from search_spaces.contracts import Contract, Terms

from .commitments import Commitment, commitment_cost
from .fleet_levels import Levels, Option
from .spot_headroom import gpus_to_rent

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GAP = 1e-3
"""Relative gap at which the choice of commitments may stop [1]."""
TIME_LIMIT = 30.0
"""Of one choice of commitments [s]."""
NODES = 20_000
"""Of the search tree of one choice at most, so that the choice is the same on a slow machine."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Commitments of the first month, those made later on each path, and the least that any would cost [$]."""

    now: tuple[Commitment, ...]
    later: tuple[tuple[Commitment, ...], ...]
    bound: float

    def on(self, path: int) -> tuple[Commitment, ...]:
        """All commitments on a path."""
        return (*self.now, *self.later[path])


def choose(
    terms: Terms,
    levels: Levels,
    paths: Sequence[FloatArray],
    probabilities: FloatArray,
    now: Sequence[Commitment] | None = None,
) -> Choice:
    """The commitments that cost least on average over the paths, by the programme above.

    paths: hours at each level in each month, (months, levels) [h]; now: what was committed to in the first month, if
    that is settled. The bound leaves out what owned GPUs cost whether or not they are used.
    """
    starts = starts_of(terms)
    program, taken = buying_program(terms, levels, paths, probabilities, now)
    solution = solve(program, time_limit=TIME_LIMIT, gap=GAP, nodes=NODES)
    bound = max(solution.bound, 0.0)
    if not solution.x.size:
        return Choice(tuple(now or ()), ((),) * len(paths), bound)
    counts = np.round(solution.x[taken]).astype(int)
    found = [
        tuple(Commitment(one, month, int(n)) for (one, month), n in zip(starts, row, strict=True) if n)
        for row in counts
    ]
    first = tuple(one for one in found[0] if one.month == 0)
    return Choice(first, tuple(tuple(one for one in path if one.month > 0) for path in found), bound)


def starts_of(terms: Terms) -> list[tuple[Contract, int]]:
    """Every contract to decide on with every month in which that can be done."""
    months = terms.forecast.months
    return [
        (contract, month)
        for contract in terms.contracts
        if contract.committed
        for month in range(0, months - contract.delay, terms.decide_every)
    ]


def buying_program(
    terms: Terms,
    levels: Levels,
    paths: Sequence[FloatArray],
    probabilities: FloatArray,
    now: Sequence[Commitment] | None = None,
) -> tuple[Program, IntArray]:
    """Write the programme of the module's docstring; returns it and its commitments, (paths, starts)."""
    builder, starts = Builder(), starts_of(terms)
    taken = _commitments(builder, terms, levels, probabilities, now)
    running = [_least_running(terms, options) for options in levels.options]
    for path, (hours, chance) in enumerate(zip(paths, probabilities.tolist(), strict=True)):
        for month, level in zip(*(found.tolist() for found in np.nonzero(hours)), strict=True):
            slot = _Slot(f"{path}_{month}_{level}", month, levels.options[level])
            cost = chance * hours[month, level] * running[level]
            _serve(builder, terms, slot, cost, list(zip(starts, taken[path].tolist(), strict=True)))
    return builder.build(), taken


def _commitments(
    builder: Builder,
    terms: Terms,
    levels: Levels,
    probabilities: FloatArray,
    now: Sequence[Commitment] | None,
) -> IntArray:
    """Variables of the commitments, (paths, starts): of the first month the same on every path."""
    starts, months = starts_of(terms), terms.forecast.months
    cost = np.array([commitment_cost(contract, month, months) for contract, month in starts])
    most = np.array([_most(levels, contract.offer) for contract, _ in starts])
    names = [f"n{terms.contracts.index(contract)}_{month}" for contract, month in starts]
    first = np.array([month == 0 for _, month in starts], dtype=np.bool_)
    taken = np.zeros((probabilities.size, len(starts)), dtype=np.int64)
    here = np.flatnonzero(first)
    taken[:, here] = builder.variables([names[k] for k in here], cost[here], most[here], whole=True)
    later = np.flatnonzero(~first)
    for path, chance in enumerate(probabilities.tolist()):
        told = [f"{names[k]}_{path}" for k in later]
        taken[path, later] = builder.variables(told, chance * cost[later], most[later], whole=True)
    if now is not None and here.size:
        held = {one.contract: one.count for one in now}
        counts = [float(held.get(starts[k][0], 0)) for k in here]
        builder.entries(builder.rows([f"settled{k}" for k in here], counts, counts), taken[0, here], 1.0)
    return taken


def _most(levels: Levels, offer: int) -> float:
    """GPUs of an offer that any fleet uses at most."""
    return float(max(option.gpus[offer] for options in levels.options for option in options))


@dataclass(frozen=True, slots=True)
class _Slot:
    """One level of the rate in one month of a path, and the fleets that serve it."""

    name: str
    month: int
    options: tuple[Option, ...]


def _serve(
    builder: Builder, terms: Terms, slot: _Slot, cost: FloatArray, taken: list[tuple[tuple[Contract, int], int]]
) -> None:
    """One fleet serves, from GPUs that are rented or held; cost: of one GPU of each contract in use then [$]."""
    shares = builder.variables([f"y{slot.name}_{o}" for o in range(len(slot.options))], 0.0, 1.0, whole=True)
    builder.entries(builder.rows([f"serve{slot.name}"], 1.0, 1.0), shares, 1.0)
    upper = [np.inf if one.rented or one.committed else float(one.held) for one in terms.contracts]
    used = builder.variables([f"u{slot.name}_{k}" for k in range(len(upper))], cost, upper)
    need = builder.rows([f"need{slot.name}_{t}" for t in range(len(terms.draw))], 0.0, np.inf)
    builder.entries(need[[one.offer for one in terms.contracts]], used, 1.0)
    gpus = np.array([option.gpus for option in slot.options], dtype=np.float64).T
    builder.entries(need[:, None], shares[None, :], -gpus)
    for k, contract in enumerate(terms.contracts):
        if not contract.committed:
            continue
        row = builder.rows([f"held{slot.name}_{k}"], -np.inf, 0.0)
        builder.entries(row, used[k], 1.0)
        here = [n for (one, at), n in taken if one == contract and Commitment(one, at, 1).in_force(slot.month)]
        if here:
            builder.entries(np.repeat(row, len(here)), here, -1.0)


def _least_running(terms: Terms, options: Sequence[Option]) -> FloatArray:
    """Running cost of every contract [$/h]; of spot with the least headroom that any number these fleets use needs."""
    cost = np.array([one.running for one in terms.contracts])
    for k, contract in enumerate(terms.contracts):
        most = max(option.gpus[contract.offer] for option in options)
        if contract.spot is not None and most:
            rented = gpus_to_rent(most, contract.spot.availability, contract.spot.target, contract.spot.instance)
            cost[k] *= float((rented[1:] / np.arange(1, most + 1)).min())
    return cost
