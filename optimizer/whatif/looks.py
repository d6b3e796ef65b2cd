"""Which fleets of a sweep get a second look (`second_look`), and what that says of every row that has them.

The fleets of the most rows are looked at first. The rows of one that did not hold are solved again without it, and what
they get instead is looked at in turn. The choice depends on the rows and on the looks so far alone, so that it is the
same whoever does the work.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.plans.records import read_pools
from optimizer.verification.verify import ROUNDS

from .proofs import with_bound
from .refuted import Engine, refuted_with
from .scenario import Missed, answer_row, refuted_rows, unproven
from .sweep import Rounds, Row, Task


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks that a sweep gets beside its proofs; most: fleets looked at, apart from those in place of others."""

    proofs: Rounds
    most: int

    def more(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Task]:
        """The tasks of the next round: proofs and looks; none at the end."""
        return [*self.proofs.more(tasks, rows), *self._more(Stand.of(tasks, rows))]

    def _more(self, stand: Stand) -> list[Task]:
        again = stand.to_solve_again()
        if again:
            return again
        left = max(self.most - stand.first_looks(), 0)
        waiting = stand.waiting()
        return [*[one for one in waiting if not one["instead"]][:left], *(one for one in waiting if one["instead"])]

    def finish(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Row]:
        """The rows of the scenarios, each with what was seen of its fleet."""
        stand = Stand.of(tasks, rows)
        return [stand.told(number, row) for number, row in enumerate(self.proofs.finish(tasks, rows))]


@dataclass(frozen=True, slots=True)
class Stand:
    """Where things stand: the rows of each scenario, the first and each time it was solved again; what was seen.

    seen: by fleet (`fleet_key`).
    """

    tasks: Sequence[Task]
    answers: Mapping[int, list[Row]]
    seen: Mapping[str, Row]

    @classmethod
    def of(cls, tasks: Sequence[Task], rows: Mapping[int, Row]) -> Stand:
        """Where things stand after the tasks so far."""
        answers: dict[int, list[Row]] = {}
        seen = {}
        for number, task in enumerate(tasks):
            if "of" not in task or "refuted" in task:
                answers.setdefault(task.get("of", number), []).append(rows[number])
            elif "fleet" in task:
                seen[fleet_key(task)] = rows[number]
        return cls(tasks, answers, seen)

    def first_looks(self) -> int:
        """Fleets that were looked at for their own sake."""
        return sum(not task["instead"] for task in self.tasks if "instead" in task)

    def missed(self, row: Row) -> bool:
        """Whether the fleet of a row was refuted."""
        found = self.seen.get(fleet_key(row)) if row.get("fleet") else None
        return found is not None and bool(found["fault"])

    def to_solve_again(self) -> list[Task]:
        """Every scenario whose fleet was refuted, ROUNDS times at most, with all that is refuted beside it."""
        return [
            {**self.tasks[number], "of": number, "refuted": self._refuted(rows[-1]["fleet"]["family"])}
            for number, rows in self.answers.items()
            if len(rows) <= ROUNDS and self.missed(rows[-1])
        ]

    def _refuted(self, family: str) -> list[tuple[Engine, ...]]:
        fleets = [json.loads(key) for key, found in self.seen.items() if found["fault"]]
        return sorted(refuted_with(pools) for other, _, pools in fleets if other == family)

    def waiting(self) -> list[Task]:
        """A look at each fleet that has had none, that of the most rows first; instead: of one that was refuted."""
        count, first, instead = Counter[str](), dict[str, int](), set[str]()
        for number, rows in self.answers.items():
            if rows[-1].get("fleet") and fleet_key(rows[-1]) not in self.seen:
                key = fleet_key(rows[-1])
                count[key] += 1
                first.setdefault(key, number)
                instead |= {key} if len(rows) > 1 else set()
        return [
            {**self.tasks[first[key]], "of": first[key], "fleet": self.answers[first[key]][-1]["fleet"]}
            | {"instead": key in instead}
            for key, _ in count.most_common()
        ]

    def told(self, number: int, row: Row) -> Row:
        """The row of a scenario, with what was seen of its fleet, or with the one that it has instead."""
        rows = self.answers[number]
        looked = [(one, self.seen[fleet_key(one)]) for one in rows if self.missed(one)]
        fallen = [
            Missed(one["cost_usd_per_hour"], read_pools(one["pools"]), found["attainment"], found["fault"])
            for one, found in looked
        ]
        shown = {key: value for key, value in row.items() if key != "fleet"}
        last = rows[-1]
        if fallen and (self.missed(last) or last["cost_usd_per_hour"] is None):
            return shown | answer_row(unproven(fallen))
        if fallen:
            answer = set(answer_row(unproven(fallen))) - {"status", "bound_usd_per_hour", "gap"}
            shown |= {key: last[key] for key in answer} | {"refuted": refuted_rows(fallen)}
            shown = with_bound(shown, shown["bound_usd_per_hour"])
        if not last.get("fleet") or fleet_key(last) not in self.seen:
            return shown
        return shown | {"simulated": True, "simulated_attainment": self.seen[fleet_key(last)]["attainment"]}


def fleet_key(row: Mapping[str, object]) -> str:
    """What tells the fleet of a row, or of a look, from every other."""
    fleet = row["fleet"]
    return json.dumps([fleet["family"], fleet["way"], fleet["pools"]])  # type: ignore[index]
