"""The analytic prediction of each example's fleet beside its simulation.

    python benchmarks/judge_examples.py [--requests 20000] [--set KEY=VALUE ...] [FILE ...]

Plans each workload (default: examples/*.yaml), simulates the fleet with expected step times, and prints a row per SLO
class: share within the SLO, TTFT and TPOT p90, analytic and simulated, and the goodput by either.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
GOODPUT_REQUESTS = 10_000


def rows_of(path: Path, requests: int, overrides: dict[str, str]):
    """Cells of each class of one workload."""
    from optimizer.fleets.build_plan import fleet_of_plan, planned_volume
    from optimizer.fleets.evaluate import evaluate, goodput_volume
    from optimizer.loads.effort import Level
    from optimizer.plans.records import TOLERANCE
    from optimizer.recommend.optimize import optimize
    from optimizer.verification.bench import Slice
    from optimizer.verification.simulated_plan import judge, seeded_trials
    from reports.fleets import fleet_words
    from search_spaces.loader import load_problem

    plan = optimize(load_problem(path, overrides), level=Level.QUICK)
    instance, fleet = fleet_of_plan(plan, path.parent)
    volume = planned_volume(plan)
    predicted = evaluate(instance, fleet, volume)
    start = time.process_time()
    found = judge(instance, fleet, requests=requests, volume=volume)
    spent = time.process_time() - start
    most = seeded_trials(Slice.whole(instance, fleet, GOODPUT_REQUESTS, 0)).goodput(TOLERANCE)
    analytic = plan.demand_rps * goodput_volume(instance, fleet)
    engines = ", ".join(f"{pool.replicas}x {pool.accelerator} {pool.role}" for pool in plan.pools)
    print(f"\n{plan.name}: {fleet_words(plan)} ({engines}), {requests:,} requests in {spent:.1f} CPU-s")
    for k, one in enumerate(found.classes):
        yield [
            f"{plan.name}/{one.name}",
            f"{100 * predicted.attainment[k]:.2f} / {100 * one.attainment:.2f} %",
            f"{1e3 * predicted.ttft[k][1]:.0f} / {1e3 * one.ttft_s.p90:.0f} ms",
            f"{1e3 * predicted.tpot[k][1]:.1f} / {1e3 * one.tpot_s.p90:.1f} ms",
            f"{analytic:.2f} / {most.rate:.2f} req/s",
            "holds" if one.held and not found.overload.overloaded else "MISSED",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", default=sorted((ROOT / "examples").glob("*.yaml")))
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of pdplan optimize")
    arguments = parser.parse_args()
    overrides = dict(setting.split("=", 1) for setting in arguments.set)
    head = ["class", "in SLO", "TTFT p90", "TPOT p90", "goodput", ""]
    rows = [row for path in arguments.files for row in rows_of(path, arguments.requests, overrides)]
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    print("\nanalytic / simulated")
    for row in [head, *rows]:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
