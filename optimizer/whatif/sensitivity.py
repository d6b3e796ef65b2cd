"""How the least cost moves: the tornado, where another kind of fleet becomes the cheapest, and break-even prices.

Break-even prices are of the fleets that are the cheapest by formula and of the plan's own: a price changes nothing but
the cost, so the plan's fleet, whatever it took to prove it, costs a straight line along each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from costmodel.errors import ImpossibleError, InputError
from optimizer.plans.plan import Plan
from optimizer.plans.records import (
    BreakEven,
    EnginePool,
    Flip,
    LeverSensitivity,
    PricePiece,
    Sensitivity,
    engine_counts,
    unpriced,
)
from optimizer.recommend.search import Brake
from search_spaces.problem import Offer, Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .pieces import paid_gpus, pieces_along, usual_range
from .scenario import Answer, is_simple, nothing
from .tornado import SHARE, STEP_TIME, Lever, TornadoRow, answer_at, levers, tornado_of
from .whatif import CHEAP_LEVERS, Depth, solve

Progress = Callable[[str, float], None]

TOLERANCE: Final = 1e-6
"""How exactly break-even prices are found, as a share of their range; more costs nothing, as lines cross."""
TIE: Final = 1e-9
"""Share of the cost up to which two fleets cost the same; the plan's own is then taken."""
HALVINGS: Final = 3
"""Of the way to a lever's end, until the value at which the kind of fleet changes is told: to an eighth of it."""


@dataclass(frozen=True, slots=True)
class Own:
    """A fleet that stands: its pools, GPUs by type, and its cost [$/h]."""

    pools: tuple[EnginePool, ...]
    gpus: Mapping[str, int]
    cost: float


def sensitivity(
    problem: Problem,
    base: Path,
    *,
    complete: bool,
    own: Own | None = None,
    brake: Brake | None = None,
    progress: Progress | None = None,
) -> Sensitivity | None:
    """How the least cost moves with prices and limits and, if complete, with everything else.

    Prices are moved in milliseconds, other levers in a second or so each. None where no fleet of one or two pools
    holds or where such fleets do not answer the problem (another goal than the least cost, pools for each class).

    base: folder of the files that the problem names; own: the plan's fleet; brake: once it is pulled, the levers that
    are left are left out; progress: called with a label and the share of the levers that is done.
    """
    brake = Brake() if brake is None else brake
    if not is_simple(problem):
        return None
    here = solve(problem, base, Depth.COST)
    if here.cost is None:
        return None
    wanted = [one for one in levers(problem) if complete or one.key.partition(".")[0] in CHEAP_LEVERS]
    moved = [one for one in wanted if one.key == STEP_TIME or _can_be(problem, base, one.key, (one.low, one.high))]
    rows = tornado_of(problem, base, _one_by_one(moved, brake, progress), Depth.COST)
    as_cheap = own is not None and math.isclose(own.cost, here.cost, rel_tol=TIE)
    return Sensitivity(
        share=SHARE,
        complete=complete and len(rows) == len(moved),
        usd_per_hour=here.cost,
        pools=list(own.pools if own is not None and as_cheap else here.pools),
        levers=[_row(problem, base, row, here) for row in rows],
        break_even=[
            _break_even(problem, base, offer, own) for offer in problem.offers if _has_range(problem, base, offer)
        ],
    )


def _has_range(problem: Problem, base: Path, offer: Offer) -> bool:
    """Whether a quarter of a price and four times it may be stated."""
    key = f"price.{offer.accelerator.name}"
    return _can_be(problem, base, key, usual_range(problem, key))


def _can_be(problem: Problem, base: Path, key: str, values: Sequence[float]) -> bool:
    """Whether a workload file may state a lever's values; that no engine can exist there is an answer too."""
    for value in values:
        try:
            with suppress(ImpossibleError):
                scenario_problem(problem, Scenario("", {key: value}), base)
        except InputError:
            return False
    return True


def _one_by_one(moved: Sequence[Lever], brake: Brake, progress: Progress | None) -> Iterator[Lever]:
    """The levers until the brake is pulled, each announced."""
    for number, one in enumerate(moved):
        if brake.stopped():
            return
        if progress is not None:
            progress(f"moving {one.key}", number / len(moved))
        yield one


def kind_of(pools: Iterable[EnginePool]) -> frozenset[Hashable]:
    """What kind of fleet it is: its engines by GPU, split and role, however many."""
    return frozenset(pool.engine for pool in pools)


def _row(problem: Problem, base: Path, row: TornadoRow, here: Answer) -> LeverSensitivity:
    ends = ((row.low, row.pools_low, row.cost_low), (row.high, row.pools_high, row.cost_high))
    by_price = row.lever.startswith("price.")  # told exactly by the break-even prices
    flips = [
        _flip(problem, base, (row.lever, row.value, end), (list(pools), cost), here)
        for end, pools, cost in ends
        if kind_of(pools) != kind_of(here.pools) and not by_price
    ]
    return LeverSensitivity(
        lever=row.lever,
        value=row.value,
        low=row.low,
        high=row.high,
        usd_per_hour_low=row.cost_low,
        usd_per_hour_high=row.cost_high,
        flips=flips,
    )


def _flip(
    problem: Problem,
    base: Path,
    way: tuple[str, float, float],
    at_end: tuple[list[EnginePool], float | None],
    here: Answer,
) -> Flip:
    """Halve the way from a lever's value, where the fleet is `here`, to an end where it is of another kind.

    way: key, value and end.
    """
    key, same, other = way
    pools, cost = at_end
    for _ in range(HALVINGS):
        middle = (same + other) / 2.0
        found = answer_at(problem, base, key, middle, Depth.COST)
        if kind_of(found.pools) == kind_of(here.pools):
            same = middle
        else:
            other, pools, cost = middle, list(found.pools), found.cost
    return Flip(same_at=same, other_at=other, pools=pools, usd_per_hour=cost)


def _break_even(problem: Problem, base: Path, offer: Offer, own: Own | None) -> BreakEven:
    key, price = f"price.{offer.accelerator.name}", offer.usd_per_hour
    found = pieces_along(problem, base, key, *usual_range(problem, key), TOLERANCE, Depth.COST)
    pieces = [
        PricePiece(
            low=one.low,
            high=one.high,
            usd_per_hour_low=one.cost_low,
            usd_per_hour_high=one.cost_high,
            pools=unpriced(one.answer.pools),
        )
        for one in found.pieces
    ]
    if own is not None:
        bought = paid_gpus(problem, key)
        paid = 0.0 if bought is None else bought(replace(nothing(""), gpus=own.gpus))
        budget = problem.constraints.budget
        most = price + (budget - own.cost) / paid if budget is not None and paid else math.inf
        pieces = with_line(pieces, unpriced(own.pools), own.cost - paid * price, paid, most)
    return BreakEven(accelerator=offer.accelerator.name, usd_per_gpu_hour=price, pieces=pieces)


def with_line(
    pieces: Sequence[PricePiece], pools: Sequence[EnginePool], rest: float, paid: float, most: float = math.inf
) -> list[PricePiece]:
    """The pieces with one more fleet, which costs `rest` + `paid` x price [$/h] and is taken where none is cheaper.

    most: price up to which the budget allows it [$/h of one GPU].
    """
    merged: list[PricePiece] = []
    cut = itertools.chain.from_iterable(_cut(piece, most) for piece in pieces)
    split = (_split(piece, list(pools), rest, paid) if piece.high <= most else [piece] for piece in cut)
    for piece in itertools.chain.from_iterable(split):
        if merged and engine_counts(merged[-1].pools) == engine_counts(piece.pools):
            ends = {"high": piece.high, "usd_per_hour_high": piece.usd_per_hour_high}
            merged[-1] = merged[-1].model_copy(update=ends)
        else:
            merged.append(piece)
    return merged


def _cut(piece: PricePiece, price: float) -> list[PricePiece]:
    """One piece in two at a price, if that lies within."""
    if not piece.low < price < piece.high:
        return [piece]
    share, cost = (price - piece.low) / (piece.high - piece.low), None
    if piece.usd_per_hour_low is not None and piece.usd_per_hour_high is not None:
        cost = piece.usd_per_hour_low + share * (piece.usd_per_hour_high - piece.usd_per_hour_low)
    below = piece.model_copy(update={"high": price, "usd_per_hour_high": cost})
    return [below, piece.model_copy(update={"low": price, "usd_per_hour_low": cost})]


def _split(piece: PricePiece, pools: list[EnginePool], rest: float, paid: float) -> list[PricePiece]:
    """One piece cut where the line crosses it: each part with the cheaper of the two fleets."""
    line = [rest + paid * price for price in (piece.low, piece.high)]
    costs = (piece.usd_per_hour_low, piece.usd_per_hour_high)
    dearer = [math.inf if cost is None else cost - own for cost, own in zip(costs, line, strict=True)]
    least = -TIE * max(map(abs, line))
    taken = {"pools": pools, "usd_per_hour_low": line[0], "usd_per_hour_high": line[1]}
    if min(dearer) >= least:
        return [piece.model_copy(update=taken)]
    if max(dearer) <= -least:
        return [piece]
    cross = piece.low + (piece.high - piece.low) * dearer[0] / (dearer[0] - dearer[1])
    here = rest + paid * cross
    low = piece.model_copy(update={"high": cross, "usd_per_hour_high": here})
    high = piece.model_copy(update={"low": cross, "usd_per_hour_low": here})
    if dearer[0] > 0.0:
        return [low.model_copy(update={"pools": pools, "usd_per_hour_low": line[0]}), high]
    return [low, high.model_copy(update={"pools": pools, "usd_per_hour_high": line[1]})]


def with_sensitivity(
    plan: Plan,
    problem: Problem,
    base: Path,
    *,
    complete: bool,
    brake: Brake | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The plan with how its cost moves; as it is, where it has no fleet."""
    if not plan.pools:
        return plan
    found = sensitivity(problem, base, complete=complete, own=own_fleet(plan), brake=brake, progress=progress)
    return plan.model_copy(update={"sensitivity": found})


def own_fleet(plan: Plan) -> Own | None:
    """The plan's fleet, as its comparison with others states it."""
    rows = [row for row in plan.alternatives if row.kind == "recommended" and row.pools]
    if not rows or plan.cost_usd_per_hour is None:
        return None
    return Own(tuple(rows[0].pools), plan.gpus, plan.cost_usd_per_hour)
