"""Plans for bursts under a tight TPOT limit: whether the search knows that fewer seats can be what keeps it.

    python benchmarks/few_seats.py [--bursts 1 3] [--limits 17 19 25] [--gpu H200] [--effort quick]

Where requests come in bursts, all that an engine runs at once make each other's steps longer. With few seats some wait
instead, which a TTFT limit may have room for. For each burstiness (CV of the times between arrivals) and TPOT limit
[ms], DeepSeek-V3 with prompts of 4,000 tokens and answers of 120 at 0.3 requests per second, TTFT within 9.4 s: the
plan, and the cheapest of one or two equal colocated engines of four batch limits and three token budgets that holds
when simulated, whatever formulas say of it [$/h]. Exit code 1 where the plan is dearer than that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.problems import Posed, equal_engines, instance_of, problem_of  # noqa: E402 -- found first
from optimizer.loads.effort import Level  # noqa: E402
from optimizer.loads.instance import Instance  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402
from optimizer.verification.simulated_plan import judge  # noqa: E402

SEATS, BUDGETS = (4, 8, 16, 64), (512, 2048, 8192)
"""Batch limits [request] and token budgets [token] of the fleets that are tried."""
ENGINES = 2
"""Equal engines of a fleet that is tried, at most."""
REQUESTS = 8_000
"""Of each run of those."""


def posed(burst: float, limit: float, gpu: str) -> Posed:
    """The problem of a burstiness [1] and a TPOT limit [ms]."""
    return "chat", {
        "model.name": "DeepSeek-V3",
        "model.weight_dtype": "fp8",
        "workload.request_rate": "0.3",
        "workload.burstiness": f"{burst:g}",
        "workload.lengths": "{isl: 4000, osl: 120}",
        "slo": f"{{ttft: 9.4s, tpot: {limit:g}ms, percentile: p90}}",
        "accelerators": f"[{gpu}]",
        "search.pipeline_parallel": "[1]",
    }


def tried(instance: Instance) -> Iterator[tuple[float, int]]:
    """Costs of the simple colocated fleets that hold when simulated [$/h], and their batch limits [request]."""
    tables = instance.tables
    for shape, seats, budget in product(range(len(tables.shapes)), SEATS, BUDGETS):
        for engines in range(1, ENGINES + 1):
            fleet = equal_engines(instance, shape, seats, budget, engines)
            found = judge(instance, fleet, requests=REQUESTS, seed=7)
            if found.proven:
                yield float(tables.usd_per_hour[shape]) * engines, seats
                break


def main() -> int:
    """Plan every problem, and print what it costs beside what had to be found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bursts", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--limits", type=float, nargs="+", default=[17.0, 19.0, 25.0])
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--effort", choices=[level.value for level in Level], default=Level.STANDARD.value)
    asked = parser.parse_args()
    dearer = 0
    print(f"{'CV':>4} {'TPOT ms':>8} {'plan':>8} {'seats':>6} {'tried':>8} {'seats':>6}")
    for burst, limit in product(asked.bursts, asked.limits):
        one = posed(burst, limit, asked.gpu)
        plan = optimize(problem_of(one), level=Level(asked.effort))
        cost = np.inf if plan.cost_usd_per_hour is None else plan.cost_usd_per_hour
        seats = plan.pools[-1].max_num_seqs if plan.pools else 0
        least = min(tried(instance_of(one)), default=(np.inf, 0))
        dearer += cost > least[0] * 1.001
        print(f"{burst:>4g} {limit:>8g} {cost:>8.2f} {seats:>6} {least[0]:>8.2f} {least[1]:>6}", flush=True)
    return int(dearer > 0)


if __name__ == "__main__":
    sys.exit(main())
