"""The formula of ITL p99 against the simulator: shares of requests that exceed a limit, on the pools of `tail_model`.

    python benchmarks/itl_tail.py [--requests N] [--engine vllm] [--only KIND] [--held-out]

Each pool that makes tokens is simulated once, and limits are laid at its own median ITL p99 times 0.7 to 1.5. Prints
for each pool the largest share of requests that the formula rejects and the simulation accepts, and the other way
round, over those limits; then how often the verdict at a goal of 90 % is the same, and in which direction it errs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tail_cases import CASES, Case, drawn_cases
from tail_model import HELD_OUT, HELD_OUT_SEED, fleet_of, problem_of, volume_at

from costmodel.engine import Role
from costmodel.metric import Metric
from costmodel.simulator.metrics import steady
from optimizer.fleets.evaluate import evaluate
from optimizer.loads.instance import Instance, make_instance
from optimizer.verification.simulated_plan import judge
from search_spaces.engines import ENGINES
from search_spaces.problem import Problem

FACTORS = (0.7, 0.85, 0.95, 1.05, 1.2, 1.5)
"""Limits over the median ITL p99 of a pool."""
GOAL = 0.9
LOOSE = 3600.0
"""A limit that no gap exceeds [s]."""


@dataclass(frozen=True, slots=True)
class Row:
    """One pool: its limits [s], and the shares of requests that exceed each by formula and by simulation [1]."""

    name: str
    limits: tuple[float, ...]
    predicted: tuple[float, ...]
    simulated: tuple[float, ...]

    @property
    def rejects(self) -> float:
        """Largest share that the formula rejects and the simulation accepts [1]."""
        return max(0.0, *(by - share for by, share in zip(self.predicted, self.simulated, strict=True)))

    @property
    def accepts(self) -> float:
        """Largest share that the formula accepts and the simulation rejects [1]."""
        return max(0.0, *(share - by for by, share in zip(self.predicted, self.simulated, strict=True)))


def limited(problem: Problem, limit: float) -> Problem:
    """The problem with a limit on ITL p99 alone."""
    (slo,) = problem.slos
    return replace(problem, slos=(replace(slo, limits={Metric.ITL_P99: limit}),))


def share_beyond(instance: Instance, case: Case, volume: float, limit: float) -> float:
    """Share of requests whose ITL p99 exceeds a limit, by formula [1]."""
    limits = {Metric.ITL_P99: np.full(instance.flows.isl.size, limit)}
    here = replace(instance, flows=replace(instance.flows, limits=limits))
    share = here.flows.share / here.flows.share.sum()
    return float(share @ evaluate(here, fleet_of(here, case), volume).late_later)


def row_of(case: Case, requests: int) -> Row:
    """Simulate one pool and predict its shares."""
    problem = limited(problem_of(case), LOOSE)
    instance = make_instance(problem)
    fleet = fleet_of(instance, case)
    volume = volume_at(instance, next(pool for pool in fleet.pools if pool.role is case.role), case.utilization)
    first = judge(instance, fleet, requests=requests, seed=1, volume=volume).runs[0]
    longest = first.result.itl_max[steady(first.result)]
    middle = float(np.median(longest[longest > 0.0]))
    run = judge(replace(instance, problem=limited(problem, middle)), fleet, requests=requests, seed=1, volume=volume)
    result = run.runs[0].result
    values = np.nan_to_num(result.itl_p99[steady(result)], nan=0.0)
    limits = tuple(factor * float(np.median(values)) for factor in FACTORS)
    return Row(
        name=f"{case.kind}: {case.name}",
        limits=limits,
        predicted=tuple(share_beyond(instance, case, volume, limit) for limit in limits),
        simulated=tuple(float((values > limit).mean()) for limit in limits),
    )


def verdicts(rows: Sequence[Row]) -> str:
    """How often both say the same of a goal, and who is stricter where they do not."""
    pairs = [
        (by <= 1.0 - GOAL, share <= 1.0 - GOAL)
        for row in rows
        for by, share in zip(row.predicted, row.simulated, strict=True)
    ]
    same = sum(by is share for by, share in pairs)
    strict = sum(share and not by for by, share in pairs)
    return (
        f"{len(rows)} pools, {len(pairs)} limits: the same verdict at {GOAL:.0%} for {same}, the formula accepts "
        f"{len(pairs) - same - strict} that miss and rejects {strict} that hold; mean |share - share| "
        f"{np.mean([abs(a - b) for row in rows for a, b in zip(row.predicted, row.simulated, strict=True)]):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=40_000, help="of each run")
    parser.add_argument("--engine", choices=ENGINES, default="vllm", help="whose scheduler the engines have")
    parser.add_argument("--held-out", action="store_true", help="pools drawn at random instead of the chosen ones")
    parser.add_argument("--only", default="", help="cases whose kind or name contains this")
    arguments = parser.parse_args()
    chosen = drawn_cases(HELD_OUT, HELD_OUT_SEED) if arguments.held_out else CASES
    rows = []
    print("share that only the formula rejects, only the simulation rejects")
    for case in chosen:
        if case.role is Role.PREFILL or arguments.only not in f"{case.kind} {case.name}":
            continue
        row = row_of(replace(case, engine=arguments.engine), arguments.requests)
        rows.append(row)
        print(f"{row.rejects:>8.3f} {row.accepts:>8.3f}   {row.name}", flush=True)
    print(verdicts(rows))


if __name__ == "__main__":
    main()
