"""Fleets that earlier rules took for proven, in runs long enough to tell, and what today's rules say of them.

    python benchmarks/former_plans.py [--runs 4] [--requests 200000]

Each fleet in runs of `--requests` requests: the share in time of all and of each run. Then the same rules step by step:
the share in time in two runs as long as the search makes them, with its 95 % interval; whether the fleet comes out of a
crowd; whether it keeps up with 5 % more, where a resource is busy for over 95 % of the time by formula; the outcome;
and where it would be chosen, what the confirmation on fresh requests says.
Two minutes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.problems import PROBLEMS, Posed, by_formula, instance_of  # noqa: E402 -- the repository is found first
from optimizer.fleets.evaluate import utilization  # noqa: E402
from optimizer.fleets.fleet import Fleet, fleet_cost, pool_config  # noqa: E402
from optimizer.fleets.pool import pool_state  # noqa: E402
from optimizer.loads.instance import Instance  # noqa: E402
from optimizer.plans.records import ClassJudgement  # noqa: E402
from optimizer.verification.bench import Bench, confirmed, make_bench  # noqa: E402
from optimizer.verification.judge import judge_runs  # noqa: E402
from reports.text import money  # noqa: E402

FORMER: dict[str, tuple[Posed, str, tuple[int, ...] | None]] = {
    "200 req/s of chat": (PROBLEMS["huge rate"], "chat", (26, 8)),
    "chat in bursts, CV 3": (PROBLEMS["bursty, CV 3"], "chat", None),
    "long context": (PROBLEMS["long context"], "long context", None),
}
"""The problem, the one whose fleet by formula it gets, and the replicas of its pools where they are others."""


def former_fleet(instance: Instance, like: str, replicas: tuple[int, ...] | None) -> Fleet:
    """The fleet that the formulas choose for another problem, here."""
    own, fleet = by_formula(PROBLEMS[like])
    assert all(pool_config(own, pool) == pool_config(instance, pool) for pool in fleet.pools)
    counts = replicas or [pool.replicas for pool in fleet.pools]
    return Fleet(tuple(replace(pool, replicas=count) for pool, count in zip(fleet.pools, counts, strict=True)))


def share_words(item: ClassJudgement) -> str:
    """Share of a class in time, and its interval."""
    return f"{item.attainment:.1%} ({item.attainment_low:.1%} to {item.attainment_high:.1%})"


def long_runs(bench: Bench, fleet: Fleet, requests: int, runs: int) -> str:
    """Share in time in all of so many runs, and in each."""
    part = bench.part(fleet)
    made = part.runs(requests, 0, runs)
    each = [judge_runs(bench.instance, part.engines, [run]).classes[0].attainment for run in made]
    share = judge_runs(bench.instance, part.engines, made).classes[0]
    told = ", ".join(f"{one:.1%}" for one in each)
    return f"{share_words(share)} in time in {runs} runs of {requests:,}: {told}"


def rules(bench: Bench, fleet: Fleet) -> str:
    """What two runs of the search's length say, and the rules after them."""
    part = bench.part(fleet)
    requests = part.full
    made = part.runs(requests, 0, 2)
    share = judge_runs(bench.instance, part.engines, made).classes[0]
    stuck = part.stays_behind(made, 0) is not None
    behind = part.gives_way(0) is not None
    chosen = bench.verdict(fleet)
    then = ""
    if chosen.held:
        last = confirmed(bench, chosen, 1)[0]
        fresh = last.judgement.classes[0]
        then = f"; its confirmation {last.outcome}, {share_words(fresh)}"
    return (
        f"two runs of the search, {requests:,} requests each: {share_words(share)};"
        f" {'does not come' if stuck else 'comes'} out of a crowd; {'falls' if behind else 'does not fall'} behind with"
        f" 5 % more; {chosen.outcome}{then}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--requests", type=int, default=200_000)
    arguments = parser.parse_args()
    for name, (posed, like, replicas) in FORMER.items():
        instance = instance_of(posed)
        fleet, bench = former_fleet(instance, like, replicas), make_bench(instance)
        uses = [utilization(instance, pool, pool_state(instance, pool, 1.0)) for pool in fleet.pools]
        key, busy = max((item for use in uses for item in use.items()), key=lambda item: item[1])
        print(f"{name}, {money(fleet_cost(instance, fleet))}/h, {key} busy for {busy:.0%} by formula")
        print(f"  {long_runs(bench, fleet, arguments.requests, arguments.runs)}")
        print(f"  {rules(bench, fleet)}", flush=True)


if __name__ == "__main__":
    main()
