"""Plans for a deployment target: whether its files can run them, and what they cost above plans for any target.

    python benchmarks/target_plans.py [--problems 12] [--first 0] [--seed SEED] [--few] [--effort quick|standard]

Plans each problem (`drawn_problems`; with --few one of `monotone_plans.FEW_ENGINES`, where fleets of more pools pay)
for any target, and for each target that runs its engine; then has each plan written for the target. Prints a row per
problem and target: cost of either plan, and what refuses to deploy it; then how many of either kind can be deployed,
and how much dearer plans for a target are on average. Exit code 1 where a plan for a target is refused by it, or costs
less than the plan for any target by more than 2 %.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.drawn_problems import SEED, drawn  # noqa: E402 -- the repository is found first
from benchmarks.monotone_plans import NOTABLE, few_engines  # noqa: E402
from benchmarks.problems import Posed, problem_of  # noqa: E402
from costmodel.errors import InputError  # noqa: E402
from optimizer.loads.effort import Level  # noqa: E402
from optimizer.plans.plan import Plan  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402
from reports.deploy.deployment import default_options  # noqa: E402
from reports.deploy.files import target_files  # noqa: E402
from search_spaces.problem import TARGETS  # noqa: E402

CHECKPOINT = "an-org/a-checkpoint"
"""Weights in the planned precision: which ones are published is not asked here."""


def nvidia(posed: Posed) -> Posed:
    """The problem with GPUs that targets have files for in place of AMD's."""
    return posed[0], posed[1] | {"accelerators": posed[1]["accelerators"].replace("MI300X", "H200")}


def planned(posed: Posed, level: Level) -> Plan | None:
    """The plan, None where there is none."""
    try:
        plan = optimize(problem_of(posed), level=level)
    except InputError:  # the model fits nowhere, or no engine keeps a limit however idle it is
        return None
    return plan if plan.pools else None


def refused(plan: Plan, target: str) -> str:
    """Why a target does not run a plan; empty if it does."""
    try:
        target_files(plan, replace(default_options(target), model=CHECKPOINT))
    except InputError as error:
        return str(error)
    return ""


def main() -> int:
    """Plan every problem for any target and for each one, and print what can be deployed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--effort", choices=["quick", "standard"], default="quick")
    asked = parser.parse_args()
    free_runs, runs, dearer, nothing = 0, 0, [], 0
    for number in range(asked.first, asked.first + asked.problems):
        posed, level = nvidia(few_engines(number)) if asked.few else drawn(number, asked.seed), Level(asked.effort)
        engine = posed[1].get("engine", "vllm")
        free = planned((posed[0], posed[1] | {"target": "none"}), level)
        for target in [one.name for one in TARGETS if free is not None and engine in one.engines]:
            assert free is not None
            mine = planned((posed[0], posed[1] | {"target": target, "engine": engine}), level)
            anyway = refused(free, target)
            free_runs += not anyway
            if mine is None:
                nothing += 1
                print(f"{number} {target}: ${free.cost_usd_per_hour:.2f}, none for the target", flush=True)
                continue
            why = refused(mine, target)
            runs += not why
            dearer.append(mine.cost_usd_per_hour / free.cost_usd_per_hour - 1.0)
            told = f"refused: {why}" if why else f"runs ({dearer[-1]:+.1%})"
            shown = f"refused: {anyway[:70]}..." if anyway else "runs"
            print(
                f"{number} {target}: ${free.cost_usd_per_hour:.2f} {shown}; ${mine.cost_usd_per_hour:.2f} {told}",
                flush=True,
            )
    count = len(dearer) + nothing
    print(f"plans for any target: {free_runs} of {count} can be deployed as they are")
    print(f"plans for a target: {runs} of {len(dearer)}, and {nothing} problems have none")
    print(f"which cost {sum(dearer) / max(len(dearer), 1):+.2%} on average, at most {max(dearer, default=0.0):+.1%}")
    return int(runs < len(dearer) or min(dearer, default=0.0) < -NOTABLE)


if __name__ == "__main__":
    sys.exit(main())
