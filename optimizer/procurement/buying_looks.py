"""A second look at a purchase: every fleet that it counts on is simulated at the rate that it is bought for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optimizer.search.search import settled
from optimizer.whatif.second_look import look

from .bill import Bill
from .fleet_levels import Part

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Seen:
    """A fleet that was simulated: share of its requests within their SLOs [1], and how it misses, "" where it holds."""

    part: Part
    attainment: float
    fault: str


@dataclass(frozen=True, slots=True)
class Looks:
    """What was seen: of the fleets that a purchase counts on (of which there are `every`), and such as it does without.

    A purchase that did not hold in the last round still counts on some of those that missed.
    """

    every: int = 0
    held: tuple[Seen, ...] = ()
    missed: tuple[Seen, ...] = ()
    refuted: tuple[Seen, ...] = ()


def parts_of(bills: Sequence[Bill]) -> list[Part]:
    """Fleets that serve some hour of some path, each once: those of the highest level first, then of the most hours."""
    served: dict[tuple[object, ...], tuple[int, float, Part]] = {}
    for one in (hours for bill in bills for hours in bill.hours):
        for part in one.option.parts:
            level, hours, first = served.get(part.key, (one.level, 0.0, part))
            served[part.key] = max(level, one.level), hours + one.hours, first
    return [part for _, _, part in sorted(served.values(), key=lambda one: (-one[0], -one[1]))]


def look_at_part(part: Part) -> Seen:
    """Simulate a fleet at the rate that it was found for, with the batch limits that `pdplan optimize` gives it."""
    instance = part.known.instance
    load = replace(instance.problem.workload, request_rate=part.rate)
    here = replace(instance, problem=replace(instance.problem, workload=load))
    return Seen(part, *look(here, settled(instance, part.fleet)))


@dataclass(slots=True)
class LookingAt:
    """Looks at fleets, each once, and at `most` in all."""

    most: int
    seen: dict[tuple[object, ...], Seen]

    def look(self, parts: Sequence[Part], progress: Progress | None) -> Looks:
        """What is seen of the fleets of a purchase."""
        new = [part for part in parts if part.key not in self.seen][: max(self.most - len(self.seen), 0)]
        for number, part in enumerate(new):
            if progress is not None:
                progress(f"simulating {part.gpus} at {part.rate:.3g} req/s", 0.7 + 0.3 * number / len(new))
            self.seen[part.key] = look_at_part(part)
        mine = [self.seen[part.key] for part in parts if part.key in self.seen]
        used = {part.key for part in parts}
        return Looks(
            every=len(parts),
            held=tuple(one for one in mine if not one.fault),
            missed=tuple(one for one in mine if one.fault),
            refuted=tuple(one for key, one in self.seen.items() if one.fault and key not in used),
        )

    @property
    def refuted(self) -> list[Part]:
        """All that missed."""
        return [one.part for one in self.seen.values() if one.fault]
