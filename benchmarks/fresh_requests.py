"""Proven plans on requests that no plan was made by, and tables of them; what several benchmarks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.problems import EXAMPLES
from costmodel.simulator.fleet import SimulatedFleet
from optimizer.fleets.build_plan import fleet_of_plan, planned_volume
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan
from optimizer.plans.records import ClassJudgement, Simulation
from optimizer.verification.judge import Judgement, simulated_fleet
from optimizer.verification.simulated_plan import judge
from reports.text import money

FRESH_SEED = 77_003
"""No plan is made with it."""
LONGER, MOST = 5, 200_000
"""Length of a fresh run over that of the plan's, and requests of one at most."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """What fresh requests say of a plan's fleet."""

    instance: Instance
    engines: SimulatedFleet
    judgement: Judgement

    @property
    def tightest(self) -> ClassJudgement:
        """The class with the least room."""
        return min(self.judgement.classes, key=lambda one: one.attainment - one.attainment_goal)

    @property
    def miss(self) -> float:
        """By how much it misses its goal, negative where it holds; 1 for a fleet that falls behind [1]."""
        return 1.0 if self.judgement.overload.overloaded else self.tightest.attainment_goal - self.tightest.attainment

    @property
    def words(self) -> tuple[str, str]:
        """Its attainment with the interval, and its goal."""
        judgement, share = self.judgement, self.tightest
        mark = "" if judgement.proven else " UNSURE" if judgement.held else " MISSED"
        mark = " OVERLOADED" if judgement.overload.overloaded else mark
        return (
            f"{share.attainment:.2%} ({share.attainment_low:.2%} to {share.attainment_high:.2%}){mark}",
            f"{share.attainment_goal:.0%}",
        )


def on_fresh_requests(plan: Plan, simulation: Simulation, runs: int) -> Fresh:
    """Simulate the fleet of a proven plan in so many runs, LONGER times as long as the plan's."""
    instance, fleet = fleet_of_plan(plan, EXAMPLES)
    requests = min(LONGER * simulation.parts * simulation.requests // simulation.replications, MOST)
    engines, volume = simulated_fleet(instance, fleet), planned_volume(plan)
    judgement = judge(instance, fleet, requests=requests, seed=FRESH_SEED, volume=volume, replications=runs)
    return Fresh(instance, engines, judgement)


def dollars(value: float | None) -> str:
    """A price, `none` where there is none."""
    return "none" if value is None else money(value)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell, the head first."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
