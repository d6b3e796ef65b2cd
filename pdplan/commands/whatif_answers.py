"""What `pdplan whatif` answers besides a sweep: break-even values, shadow prices, the tornado, near-optimal fleets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .whatif_asked import Asked, Told, bounds_of

if TYPE_CHECKING:
    from search_spaces.problem import Problem

TOLERANCE = 1e-6
"""How exactly break-even values are found, as a share of the range."""


def answers(
    problem: Problem, base: Path, asked: Asked, *, width: int, tell: Callable[[str, float], None]
) -> Iterator[Told]:
    """Each answer; base: folder of the files that the problem names."""
    second = f", {asked.looks} fleets at most simulated" if asked.looks else ""
    if asked.break_even:
        tell(f"fleets along {asked.break_even}", 0.0)
        yield _break_even(problem, base, asked, asked.break_even, width)
    if asked.shadow:
        tell("shadow prices", 0.3)
        yield _shadow_prices(problem, base, asked, width)
    if asked.swing is not None:
        tell(f"moving each lever{second}", 0.5)
        yield _tornado(problem, base, asked, asked.swing, width)
    if asked.slack is not None:
        tell(f"fleets without each GPU type{second}", 0.8)
        yield _alternatives(problem, base, asked, asked.slack, width)


def _break_even(problem: Problem, base: Path, asked: Asked, key: str, width: int) -> Told:
    """Values of a lever at which the best fleet changes."""
    from optimizer.whatif.break_even import by_price, pieces_along, usual_range
    from optimizer.whatif.scenario import Depth
    from reports.whatif_answers import break_even_record, break_even_text

    usual = None if asked.between else usual_range(problem, key)
    low, high = usual or bounds_of(asked.between or "", "--between", key)
    simulable = by_price(problem, key)
    looks = asked.looks if simulable else 0
    depth = Depth.SIMPLE if looks else asked.depth()
    pieces = pieces_along(problem, base, key, low, high, TOLERANCE, depth, looks=looks)
    any_fleet = any(one.answer.cost is not None for one in pieces.pieces)
    return Told("break_even", break_even_record(pieces), break_even_text(pieces, width, simulable=simulable), any_fleet)


def _shadow_prices(problem: Problem, base: Path, asked: Asked, width: int) -> Told:
    """What one more unit of each limit is worth."""
    from optimizer.whatif.scenario import solve
    from optimizer.whatif.sensitivity import shadow_prices
    from reports.whatif_answers import no_fleet_text, shadow_record, shadow_text

    here = solve(problem, base, asked.depth())
    prices = [] if here.cost is None else shadow_prices(problem, base)
    text = shadow_text(prices, width) if here.cost is not None else no_fleet_text(here, width)
    return Told("shadow_prices", shadow_record(prices), text, here.cost is not None)


def _tornado(problem: Problem, base: Path, asked: Asked, share: float, width: int) -> Told:
    """The cost with each lever so much lower and higher."""
    from optimizer.whatif.sensitivity import tornado
    from reports.whatif_answers import tornado_record, tornado_text

    rows = tornado(problem, base, share, asked.depth(), asked.looks)
    any_fleet = any(row.cost is not None for row in rows)
    return Told("tornado", tornado_record(rows), tornado_text(rows, width), any_fleet)


def _alternatives(problem: Problem, base: Path, asked: Asked, slack: float, width: int) -> Told:
    """Fleets so much dearer that leave a GPU type or a vendor out."""
    from optimizer.whatif.sensitivity import near_optimal
    from reports.whatif_answers import alternatives_record, alternatives_text

    others = near_optimal(problem, base, slack, asked.looks)
    any_fleet = others[0].answer.cost is not None
    return Told("alternatives", alternatives_record(others), alternatives_text(others, slack, width), any_fleet)
