"""Plans for sessions (benchmarks/sessions) by formula, as planned, by `evaluate` and by `simulate` on fresh requests.

    python benchmarks/sessions_agree.py [--effort quick|standard] [--seed 11] [FILE ...]

A row of Markdown for each workload: the share of requests of its tightest class that meet the SLO, the share of input
tokens that prefix caches hold, and the verdict, by each of the four. The last column names what disagrees: verdicts of
which one is "meets" and another "misses", simulated shares whose 95 % intervals do not touch, and figures by formula
that are off by more than SHARE or HITS. Exits with 1 where verdicts or intervals disagree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from optimizer.plans.plan import Plan  # noqa: E402 -- run as a script, the repository is found first
from optimizer.plans.records import ClassJudgement, Outcome  # noqa: E402
from optimizer.verification.judge import hit_share  # noqa: E402
from pdplan import evaluate, optimize, simulate  # noqa: E402
from reports.question import has_fleet  # noqa: E402
from reports.text import percent  # noqa: E402

SHARE, HITS = 0.05, 0.02
"""Differences between formula and simulation that are still alike: of the requests, and of the input tokens."""
HEAD = ("workload", "$/h", "by formula", "planned", "evaluate", "simulate", "disagree")


@dataclass(frozen=True)
class Figures:
    """What one of the four says; low, high: the 95 % interval of the share [1]."""

    share: float
    hits: float
    low: float = 0.0
    high: float = 1.0
    outcome: Outcome | None = None

    @classmethod
    def of_runs(cls, classes: Sequence[ClassJudgement], hits: float, outcome: Outcome) -> Figures:
        """Those of the tightest class of a simulation."""
        worst = min(classes, key=lambda item: item.attainment_low - item.attainment_goal)
        return cls(worst.attainment, hits, worst.attainment_low, worst.attainment_high, outcome)

    def __str__(self) -> str:
        return f"{percent(self.share)}, hits {percent(self.hits)}{f', {self.outcome}' if self.outcome else ''}"


def figures(plan: Plan, seed: int) -> tuple[Figures, list[Figures | None]]:
    """By formula; as planned (None by --effort quick), by evaluate, by simulate."""
    evaluation, fresh = evaluate(plan, effort="none"), simulate(plan, seed=seed)
    stated = evaluation.plan.simulation
    formula = Figures(min(item.by_formula.attainment for item in stated.classes), plan.prefix_cache.sustained)
    own = Outcome.MEETS if plan.simulation and plan.simulation.held else Outcome.UNDECIDED
    runs = [
        None if run is None else Figures.of_runs(run.classes, run.prefix_hit_share, outcome)
        for run, outcome in ((plan.simulation, own), (stated, evaluation.outcome))
    ]
    hits = hit_share(fresh.instance, fresh.judgement)
    return formula, [*runs, Figures.of_runs(fresh.judgement.classes, hits, fresh.outcome)]


def disagreements(formula: Figures, runs: Sequence[Figures]) -> list[str]:
    """What disagrees, in words."""
    tests = {
        "verdicts": {Outcome.MEETS, Outcome.MISSES} <= {run.outcome for run in runs},
        "intervals": max(run.low for run in runs) > min(run.high for run in runs),
        "share by formula": max(abs(run.share - formula.share) for run in runs) > SHARE,
        "hits by formula": max(abs(run.hits - formula.hits) for run in runs) > HITS,
    }
    return [words for words, is_apart in tests.items() if is_apart]


def main() -> None:
    """Print a row for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", default=sorted((ROOT / "benchmarks/sessions").glob("*.yaml")))
    parser.add_argument("--effort", default="standard", choices=["quick", "standard"])
    parser.add_argument("--seed", type=int, default=11)
    asked, faults = parser.parse_args(), set[str]()
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for path in asked.files:
        plan = optimize(path, effort=asked.effort)
        cells = [path.stem, f"{plan.cost_usd_per_hour or 0.0:,.2f}"]
        if has_fleet(plan):
            formula, runs = figures(plan, asked.seed)
            words = disagreements(formula, [run for run in runs if run is not None])
            faults |= {"verdicts", "intervals"} & set(words)
            cells += [str(formula), *(str(run or "") for run in runs), ", ".join(words)]
        print(f"| {' | '.join(cells)} |", flush=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
