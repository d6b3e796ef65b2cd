"""Hits of prefix caches by formula against the simulator's real blocks: agents whose turns repeat what was before them.

    python benchmarks/agent_sessions.py [WORKLOAD] [--requests N]

Colocated pools of the sessions of WORKLOAD (default: examples/agents.yaml), of as many replicas as keep up and of two
and four times as many, for several think times, behind a router that sends a turn to the replica that has the turn
before and a least-requests one; then the same pools of the longest think time with KV cache tiers below GPU memory.
Prints the share of input tokens that the traffic could give, that the formula says, and that simulated requests found;
then the largest difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.engine import Role
from costmodel.prefix_cache import CacheTier, exponential
from costmodel.units import GIB
from optimizer.fleets.build_plan import plan_prefix_cache
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance, make_instance
from optimizer.search.search import evaluated, unmixed
from optimizer.verification.judge import hit_share
from optimizer.verification.simulated_plan import judge
from search_spaces.loader import load_problem
from search_spaces.problem import Balancing, Problem

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "agents.yaml"
THINK_TIMES = (10.0, 60.0, 300.0)
TIMES = (1, 2, 4)
TIERS = tuple(CacheTier(size * GIB, 50e9, shared=shared) for shared in (False, True) for size in (150, 250, 500))
"""Host memory of each GPU, of each replica and shared; a GPU has some 100 GiB of KV memory itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """One pool; think [s]; shares of the input tokens found [1]."""

    think: float
    balancing: Balancing
    tier: CacheTier | None
    replicas: int
    at_best: float
    formula: float
    simulated: float

    @property
    def tier_words(self) -> str:
        """The tier of each GPU."""
        kind = "shared" if self.tier is not None and self.tier.shared else "own"
        return "none" if self.tier is None else f"{self.tier.capacity / GIB:.0f} GiB {kind}"


def problem_of(stated: Problem, think: float, balancing: Balancing) -> Problem:
    """The problem with another think time and router, for colocated pools."""
    load = stated.workload
    assert load.sessions is not None and load.reuse is not None  # noqa: PT018 - a file without has no think time
    pause = exponential(think)
    sessions, reuse = replace(load.sessions, pause=pause), replace(load.reuse, pause=pause)
    return replace(
        stated,
        workload=replace(load, sessions=sessions, reuse=reuse),
        constraints=replace(stated.constraints, balancing=balancing),
        space=replace(stated.space, roles=(Role.COLOCATED,)),
    )


def rows_of(instance: Instance, think: float, requests: int) -> Iterator[Row]:
    """The cheapest fleet by formula, and more replicas of it, without tiers; with the longest think time, with each."""
    cheapest = unmixed(evaluated(instance))
    for tier in (None, *(TIERS if think == THINK_TIMES[-1] else ())):
        tiered = replace(instance, problem=replace(instance.problem, kv_cache_tier=tier))
        for times in TIMES:
            fleet = Fleet(tuple(replace(pool, replicas=times * pool.replicas) for pool in cheapest.pools))
            cache = plan_prefix_cache(tiered, fleet)
            if cache is None:
                continue
            simulated = hit_share(tiered, judge(tiered, fleet, requests=requests))
            replicas = sum(pool.replicas for pool in fleet.pools)
            router = instance.problem.constraints.balancing
            yield Row(think, router, tier, replicas, cache.at_best, cache.sustained, simulated)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", type=Path, default=EXAMPLE)
    parser.add_argument("--requests", type=int, default=10_000)
    asked = parser.parse_args()
    stated, worst = load_problem(asked.workload), 0.0
    print("think time  router           tier per GPU    replicas  at best  formula  simulated")
    for think in THINK_TIMES:
        for balancing in Balancing:
            instance = make_instance(problem_of(stated, think, balancing))
            for row in rows_of(instance, think, asked.requests):
                shares = "  ".join(f"{100.0 * share:6.1f} %" for share in (row.at_best, row.formula, row.simulated))
                where = f"{row.think:8.0f} s  {row.balancing:15}  {row.tier_words:14}  {row.replicas:8}"
                print(f"{where}  {shares}", flush=True)
                worst = max(worst, abs(row.formula - row.simulated))
    print(f"largest difference: {100.0 * worst:.1f} points")


if __name__ == "__main__":
    main()
