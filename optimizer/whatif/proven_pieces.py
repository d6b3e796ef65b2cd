"""The best fleet along a price, of fleets that hold when they are simulated: a price changes nothing but the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from optimizer.verification.verify import ROUNDS
from search_spaces.problem import Problem

from .physics import Engines, physics_of
from .pieces import Piece, Pieces, paid_gpus, pieces_along
from .refuted import Engine, refuted_with
from .scenario import Missed, Pick, is_simple, unproven
from .second_look import look_at


def proven_pieces(  # noqa: PLR0917
    problem: Problem, base: Path, key: str, ends: tuple[float, float], tolerance: float, looks: int
) -> Pieces:
    """The pieces along a price between two ends, those of the widest pieces simulated: so many, `looks`.

    Where one of them misses, the pieces are found again without it, ROUNDS times at most.
    """
    missed: dict[tuple[Engine, ...], Missed] = {}
    for _ in range(1 + ROUNDS):
        found = pieces_along(problem, base, key, *ends, tolerance, refuted=frozenset(missed))
        widest = sorted(found.pieces, key=lambda one: one.low - one.high)
        picks = [one.answer.pick for one in widest if one.answer.pick is not None][:looks]
        seen = {pick.pools: look_at_pick(problem, base, pick) for pick in picks}
        new = {
            refuted_with(piece.answer.pick.pools): _missed(piece, *seen[piece.answer.pick.pools])
            for piece in found.pieces
            if piece.answer.pick is not None and seen.get(piece.answer.pick.pools, (0.0, ""))[1]
        }
        missed |= new
        if not new:
            break
    pieces = tuple(_told(piece, seen) for piece in found.pieces)
    return replace(found, pieces=pieces, refuted=tuple(missed.values()))


def by_price(problem: Problem, key: str) -> bool:
    """Whether the key is a price, and fleets of one or two pools answer the question."""
    return is_simple(problem) and paid_gpus(problem, key) is not None


def look_at_pick(problem: Problem, base: Path, pick: Pick) -> tuple[float, str]:
    """A second look at the fleet of a problem (see `look_at`)."""
    return look_at(physics_of(problem, base), problem.workload.request_rate, problem.seed, pick.way, pick.pools)


def _missed(piece: Piece, reached: float, fault: str) -> Missed:
    return Missed(piece.answer.cost or 0.0, piece.answer.pools, reached, fault)


def _told(piece: Piece, seen: Mapping[tuple[Engines, ...], tuple[float, str]]) -> Piece:
    """A piece with what was seen of its fleet; without one, if it missed."""
    pick = piece.answer.pick
    if pick is None or pick.pools not in seen:
        return piece
    reached, fault = seen[pick.pools]
    if fault:
        return replace(piece, answer=unproven([_missed(piece, reached, fault)]), cost_low=None, cost_high=None)
    return replace(piece, answer=replace(piece.answer, attainment=reached))
