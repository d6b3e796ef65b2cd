"""How the cost of a plan moves with prices, limits and, if asked, with every other lever."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from optimizer.plans.records import BreakEven, EnginePool, Flip, LeverSensitivity, PricePiece, Sensitivity, unpriced
from optimizer.recommend.search import Brake
from search_spaces.problem import Offer, Problem

from .answer import TIE, Answer, answer, answer_at, answer_of_plan, is_simple
from .curves import break_even
from .sensitivity import SHARE, TornadoRow, by_swing, levers, moved

Progress = Callable[[str, float], None]

HALVINGS: Final = 3
"""Of the way to a lever's end, until the value at which the kind of fleet changes is told: to an eighth of it."""


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
    own = answer_of_plan(plan)
    moves = sensitivity(
        problem, base, complete=complete, own=own if own.pools else None, brake=brake, progress=progress
    )
    return plan.model_copy(update={"sensitivity": moves})


def sensitivity(
    problem: Problem,
    base: Path,
    *,
    complete: bool,
    own: Answer | None = None,
    brake: Brake | None = None,
    progress: Progress | None = None,
) -> Sensitivity | None:
    """How the least cost moves with prices and limits and, if complete, with everything else.

    Prices are moved in milliseconds, other levers in a second or so each; a value that no workload file may state is
    left out. None where no fleet of one or two pools holds or where such fleets do not answer the problem (another goal
    than the least cost, pools for each class).

    base: folder of the files that the problem names; own: the plan's fleet; brake: once it is pulled, the levers that
    are left are left out; progress: called with a label and the share of the levers that is done.
    """
    here, brake = answer(problem) if is_simple(problem) else None, brake or Brake()
    if here is None or here.cost is None:
        return None
    moved_levers, rows = [lever for lever in levers(problem) if complete or lever.is_cheap], list[TornadoRow]()
    for number, lever in enumerate(moved_levers):
        if brake.stopped():
            complete = False
            break
        if progress is not None:
            progress(f"varying {lever.key}", number / len(moved_levers))
        with suppress(InputError):
            rows.append(moved(problem, base, lever, here))
    break_evens = []
    for offer in problem.offers:
        with suppress(InputError):
            break_evens.append(_break_even(problem, base, offer, own))
    own_is_cheapest = own is not None and own.cost is not None and math.isclose(own.cost, here.cost, rel_tol=TIE)
    return Sensitivity(
        share=SHARE,
        complete=complete,
        usd_per_hour=here.cost,
        pools=list(own.pools if own is not None and own_is_cheapest else here.pools),
        levers=[_lever_record(problem, base, row) for row in by_swing(rows)],
        break_even=break_evens,
    )


def kind_of(pools: Iterable[EnginePool]) -> frozenset[Hashable]:
    """What kind of fleet it is: its engines by GPU, split and role, however many."""
    return frozenset(pool.engine for pool in pools)


def _lever_record(problem: Problem, base: Path, row: TornadoRow) -> LeverSensitivity:
    """One lever of a plan, with where it changes the kind of fleet; along a price break-even prices say that exactly.

    The way from the value at hand to an end with a fleet of another kind is halved.
    """
    lever, own, flips = row.lever, kind_of(row.here.pools), list[Flip]()
    for end in () if lever.key.startswith("price.") else ((lever.low, row.low), (lever.high, row.high)):
        inside, (beyond, best) = lever.value, end
        if kind_of(best.pools) == own:
            continue
        for _ in range(HALVINGS):
            middle = (inside + beyond) / 2.0
            there = answer_at(problem, base, lever.key, middle)
            if kind_of(there.pools) == own:
                inside = middle
            else:
                beyond, best = middle, there
        flips.append(Flip(same_at=inside, other_at=beyond, pools=list(best.pools), usd_per_hour=best.cost))
    return row.record(flips)


def _break_even(problem: Problem, base: Path, offer: Offer, own: Answer | None) -> BreakEven:
    """The cheapest fleet at any price of one accelerator, the plan's own among them."""
    pieces = [
        PricePiece(
            low=step.start,
            high=step.end,
            usd_per_hour_low=step.costs[0],
            usd_per_hour_high=step.costs[1],
            pools=unpriced(step.answer.pools),
        )
        for step in break_even(problem, base, f"price.{offer.accelerator.name}", own=own).steps
    ]
    return BreakEven(accelerator=offer.accelerator.name, usd_per_gpu_hour=offer.usd_per_hour, pieces=pieces)
