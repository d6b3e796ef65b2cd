"""Fleets whose KV memory fills: how unlike their runs are, and which of them the rule of the crowd refuses.

    python benchmarks/crowds.py [--runs 6] [--seeds 20]

1. Fleets that the formulas choose, each in `--runs` runs of 40,000 requests: the share in time of the class with the
   least room, how full the memory of the fullest pool was on average and that of the fullest engine at most, how many
   runs preempted, and of how many of `--seeds` seeds the crowd refuses the fleet.
2. A small fleet whose decode engine gets fewer and fewer KV blocks (`tests/test_confirm.py`): of `--seeds` runs of
   40,000 requests those that keep the goal, and of as many seeds those of which it is refused.

Three minutes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.problems import MEMORY, PROBLEMS, Posed, by_formula  # noqa: E402 -- the repository is found first
from optimizer.fleets.fleet import fleet_cost  # noqa: E402
from optimizer.verification.bench import Bench, Slice, fullest, make_bench  # noqa: E402
from optimizer.verification.judge import Judgement, judge_runs  # noqa: E402
from optimizer.verification.simulated_plan import fleet_use  # noqa: E402
from reports.text import money  # noqa: E402

REQUESTS = 40_000
EIGHT_OF_EACH = {"accelerators": "[{name: B200, inventory: 8}, {name: H200, inventory: 8}]"}
FLEETS: dict[str, Posed] = {
    "DeepSeek-V3, FP8": ("chat", MEMORY | EIGHT_OF_EACH | {"model.weight_dtype": "fp8"}),
    "chat": PROBLEMS["chat"],
    "code": PROBLEMS["code"],
    "long context": PROBLEMS["long context"],
    "code, Qwen3-32B": ("code", {"model.name": "Qwen3-32B", "workload.request_rate": "8"}),
}
BLOCKS = (5_000, 6_000, 7_000, 8_000, 10_000)


def judged_alone(bench: Bench, part: Slice, runs: int) -> list[Judgement]:
    """What each of so many runs says by itself."""
    made = part.runs(REQUESTS, 0, runs)
    return [judge_runs(bench.instance, part.engines, [run]) for run in made]


def refusals(part: Slice, seeds: int) -> int:
    """Of how many seeds a crowd refuses the fleet, its memory looked at in a run as the search makes it."""
    refused = 0
    for number in range(seeds):
        runs = part.runs(part.full, number, number + 1)
        refused += part.stays_behind(runs, number) is not None
    return refused


def fleet_row(name: str, posed: Posed, runs: int, seeds: int) -> str:
    instance, fleet = by_formula(posed)
    bench = make_bench(instance)
    part = bench.part(fleet)
    alone = judged_alone(bench, part, runs)
    made = [run for judged in alone for run in judged.runs]
    used = max(use.kv_occupancy for use in fleet_use(instance, fleet, judge_runs(instance, part.engines, made)).pools)
    shares = ", ".join(f"{min(one.attainment for one in judged.classes):.0%}" for judged in alone)
    preempting = sum(any(use.preemptions for use in run.result.engines) for run in made)
    return (
        f"{name} ({money(fleet_cost(instance, fleet))}/h): in time {shares}; memory {used:.0%}"
        f" full on average, {fullest(part.engines, made):.0%} at most; {preempting} of {runs} runs preempt; refused of"
        f" {refusals(part, seeds)} of {seeds} seeds"
    )


def blocks_row(blocks: int, seeds: int) -> str:
    from tests.test_confirm import engines as small_engines
    from tests.test_confirm import fleet as small_fleet

    instance, fleet = small_fleet()
    bench = make_bench(instance)
    part = replace(bench.part(fleet), engines=small_engines(blocks))
    kept = sum(judged.held for judged in judged_alone(bench, part, seeds))
    refused = refusals(part, seeds)
    return f"{blocks:,} KV blocks: {kept} of {seeds} runs keep the goal, refused of {refused} of {seeds} seeds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    for name, posed in FLEETS.items():
        print(fleet_row(name, posed, arguments.runs, arguments.seeds), flush=True)
    for blocks in BLOCKS:
        print(blocks_row(blocks, arguments.seeds), flush=True)


if __name__ == "__main__":
    main()
