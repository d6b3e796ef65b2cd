"""Which scenarios of a sweep are proven, a few at a time where the gap is widest, and what that says of every row.

The choice depends on the rows and on the proofs so far alone, so that it is the same whoever does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.plans.proof import status_of

from .bound import Place
from .implied import Family, Proven, families, raised
from .sweep import Row, Task

FloatArray = NDArray[np.float64]

MOST_PROOFS = 16
"""Proofs of a sweep, a second or more each, that nobody has to ask for."""
ROUNDING = 1e-7
"""A bound that is so near to the cost is the cost [1]."""
A_ROUND = 4
"""Proofs that are chosen at a time."""
CLOSE = 5e-3
"""A gap that is not worth a proof [1]."""
MOST_TRIED = 400
"""Rows of a family that are considered for the next proof, evenly over the sweep."""


@dataclass(frozen=True, slots=True)
class Proofs:
    """The proofs that a sweep gets: of every row with a fleet, or where they tell most."""

    every: bool

    def more(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Task]:
        """The tasks of the next round; none where it is enough.

        tasks: all so far, whose rows are known; those of proofs name the row that they are `of`.
        """
        done = [number for number, task in enumerate(tasks) if "proof" in task]
        standing = Standing.of(tasks, rows)
        if self.every:
            chosen = [] if done else standing.open()
        else:
            chosen = standing.widest(min(A_ROUND, MOST_PROOFS - len(done)))
        return [{**tasks[number], "shown": [], "of": number, "proof": True} for number in chosen]

    def finish(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Row]:
        """The rows of the scenarios, each with the best bound that is known of it."""
        bounds = Standing.of(tasks, rows).bounds
        found = []
        for number, task in enumerate(tasks):
            if "of" in task:
                continue
            row = {key: value for key, value in rows[number].items() if key != "place"}
            found.append(with_bound(row, bounds.get(number)))
        return found


def with_bound(row: Row, bound: float | None) -> Row:
    """A row with its gap to a bound on its cost [$/h]; as it is, where none is known."""
    if bound is None:
        return row
    cost = row["cost_usd_per_hour"]
    bound = bound if bound < cost * (1.0 - ROUNDING) else cost
    gap = 1.0 - bound / cost if cost else 0.0
    return row | {"status": status_of(gap).value, "bound_usd_per_hour": bound, "gap": gap}


@dataclass(slots=True)
class Standing:
    """What is known of the rows that share proofs.

    costs: of each row; proven: rows that have a proof; parts: families, with the proofs and bounds of each.
    """

    costs: dict[int, float]
    proven: set[int]
    parts: list[tuple[Family, list[Proven], FloatArray]]

    @classmethod
    def of(cls, tasks: Sequence[Task], rows: Mapping[int, Row]) -> Standing:
        """Where things stand after the proofs so far."""
        mine = {number: rows[number] for number, task in enumerate(tasks) if "of" not in task}
        places = [(number, _place(row["place"])) for number, row in mine.items() if row.get("place")]
        costs = {number: mine[number]["cost_usd_per_hour"] for number, _ in places}
        floors = {number: mine[number]["bound_usd_per_hour"] or 0.0 for number, _ in places}
        proofs = {task["of"]: rows[number]["bound"] for number, task in enumerate(tasks) if "proof" in task}
        standing = cls(costs, set(proofs), [])
        for family in families(places):
            part: tuple[Family, list[Proven], FloatArray] = family, [], np.array([floors[one] for one in family.rows])
            for at, number in enumerate(family.rows):
                if proofs.get(number) is not None:
                    part = standing.with_proof(part, Proven(at, proofs[number]))
            standing.parts.append(part)
        return standing

    def with_proof(
        self, part: tuple[Family, list[Proven], FloatArray], new: Proven
    ) -> tuple[Family, list[Proven], FloatArray]:
        """A family with one more proof."""
        family, before, bounds = part
        most = np.array([self.costs[number] for number in family.rows])
        return family, [*before, new], np.minimum(raised(family, bounds, before, new), most)

    @property
    def bounds(self) -> dict[int, float]:
        """The best bound of each row [$/h]."""
        return {
            number: float(bound)
            for family, _, bounds in self.parts
            for number, bound in zip(family.rows, bounds, strict=True)
        }

    def open(self) -> list[int]:
        """Rows without a proof."""
        return sorted(set(self.costs) - self.proven)

    def widest(self, count: int) -> list[int]:
        """Rows to prove next: those that close the most of all gaps first, each as if those before it were proven."""
        parts, chosen = list(self.parts), list[int]()
        for _ in range(count):
            gains = [self._most_closed(part) for part in parts]
            gain, at = max(gains, key=lambda one: one[0], default=(0.0, 0))
            if gain <= CLOSE:
                break
            index = next(index for index, one in enumerate(gains) if one[0] == gain)
            number = parts[index][0].rows[at]
            chosen.append(number)
            parts[index] = self.with_proof(parts[index], Proven(at, self.costs[number]))
        return sorted(chosen)

    def _most_closed(self, part: tuple[Family, list[Proven], FloatArray]) -> tuple[float, int]:
        """By how much the gaps of a family close at most with one more proof, and at which place among its rows."""
        family, before, bounds = part
        costs = np.maximum([self.costs[number] for number in family.rows], 1e-12)
        gaps = 1.0 - bounds / costs
        gaps[gaps <= CLOSE] = 0.0
        tried = np.setdiff1d(np.flatnonzero(gaps), [proof.at for proof in before])
        best = 0.0, 0
        for at in tried[:: -(-tried.size // MOST_TRIED) or 1]:
            implied = np.minimum(family.multiple(int(at)) * costs[at] / costs, 1.0)
            gain = float(np.minimum(np.maximum(implied - 1.0 + gaps, 0.0), gaps).sum())
            best = max(best, (gain, -int(at)))
        return best[0], -best[1]


def _place(value: Mapping[str, Any]) -> Place:
    return Place(value["family"], tuple(value["prices"]), tuple(value["hard"]))
