"""Plans for few requests on routed experts: whether the search knows how short the steps of small batches are.

    python benchmarks/small_batches.py [--rates 0.3 1 3] [--limits 9 11 13] [--gpu A100-80]

A step of one request reads only the experts of its token, one of eight requests several times as many. So where a few
requests decode at a time, what a search that begins at batches of eight takes for their steps is far too long. For each
rate [1/s] and TPOT limit [ms], Qwen3-30B-A3B with prompts of 800 tokens and answers of 300: the plan of the standard
search space, of one whose batch limits begin at 8, and the cheapest of up to three equal colocated engines without
pipelines that holds when simulated, whatever formulas say of it [$/h]. Exit code 1 where the plan is dearer than that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.problems import Posed, equal_engines, instance_of, problem_of  # noqa: E402 -- found first
from optimizer.loads.instance import Instance  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402
from optimizer.verification.simulated_plan import judge  # noqa: E402

LATER = {"search.max_num_seqs": "{from: 8, to: 512}"}
"""What the other space has in place of the preset's batch limits."""
REQUESTS = 8_000
"""Of each run of the fleets that are tried."""
ENGINES = 3
"""Equal engines of a fleet that is tried, at most."""
SEATS, BUDGET = 64, 1024
"""Batch limit [request] and token budget [token] of those."""


def posed(rate: float, limit: float, gpu: str) -> Posed:
    """The problem of a rate [1/s] and a TPOT limit [ms]."""
    return "chat", {
        "model.name": "Qwen3-30B-A3B",
        "workload.request_rate": f"{rate:g}",
        "workload.burstiness": "1",
        "workload.lengths": "{isl: 800, osl: 300}",
        "slo": f"{{ttft: 1s, tpot: {limit:g}ms}}",
        "accelerators": f"[{gpu}]",
    }


def tried(instance: Instance) -> Iterator[float]:
    """Costs of the simple colocated fleets that hold when simulated [$/h]."""
    tables = instance.tables
    for shape, one in enumerate(tables.shapes):
        split = one.parallelism
        if max(split.pipeline, split.expert, split.data) > 1:
            continue
        for engines in range(1, ENGINES + 1):
            fleet = equal_engines(instance, shape, SEATS, BUDGET, engines)
            found = judge(instance, fleet, requests=REQUESTS, seed=7)
            if found.classes[0].attainment_low >= instance.problem.slos[0].attainment:
                yield float(tables.usd_per_hour[shape]) * engines


def main() -> int:
    """Plan every problem, and print what it costs beside what had to be found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--limits", type=float, nargs="+", default=[9.0, 11.0, 13.0])
    parser.add_argument("--gpu", default="A100-80")
    asked = parser.parse_args()
    dearer = 0
    print(f"{'req/s':>6} {'TPOT ms':>8} {'plan':>8} {'from 8':>8} {'tried':>8}")
    for rate, limit in ((rate, limit) for rate in asked.rates for limit in asked.limits):
        one = posed(rate, limit, asked.gpu)
        other = one[0], one[1] | LATER
        plan, later = (optimize(problem_of(each)).cost_usd_per_hour for each in (one, other))
        least = min(tried(instance_of(one)), default=np.inf)
        dearer += plan > least * 1.001
        print(f"{rate:>6g} {limit:>8g} {plan:>8.2f} {later:>8.2f} {least:>8.2f}", flush=True)
    return int(dearer > 0)


if __name__ == "__main__":
    sys.exit(main())
