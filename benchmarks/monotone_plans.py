"""Plans that must not get dearer: what is asked is made easier, and the cost should fall or stay.

    python benchmarks/monotone_plans.py [--problems 20] [--first 0] [--seed SEED] [--few] [--effort quick|standard]

Plans each problem (`drawn_problems`; with --few one of FEW_ENGINES, where a last engine costs much, so that how well
engines fit the demand decides), then the same with less to use or more to do: a GPU type less, one way to serve only, a
tenth more demand, a fifth less of every latency limit. What serves the harder problem serves the easier one too, so
that should cost no more; where it does, the search has overlooked what it found for the other. Prints every such pair,
then how many of all pairs they are, and the mean and the most by which they are dearer. Exit code 1 where more than one
pair in twenty is dearer by 2 % or more.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.drawn_problems import SEED, drawn  # noqa: E402 -- the repository is found first
from benchmarks.problems import Posed, problem_of  # noqa: E402
from costmodel.errors import InputError  # noqa: E402
from optimizer.loads.effort import Level  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402

NOTABLE = 0.02
"""Share by which a plan is dearer that counts [1]."""
FEW = 0.05
"""Share of the pairs in which that may be so [1]."""
FEW_GPUS = ("MI300X", "H100", "MI300X, L40S")
FEW_ENGINES = {
    "model.name": "Qwen3-30B-A3B",
    "workload.burstiness": "1.2",
    "workload.prefix_hit_share": "0",
    "workload.lengths": "{histogram: [{isl: 400, osl: 200, share: 0.5}, {isl: 2500, osl: 300, share: 0.3}, "
    "{isl: 9000, osl: 700, share: 0.2}]}",
    "slo": "[{name: interactive, share: 0.6, ttft: 1s, tpot: 0.03s}, {name: batch, share: 0.4, e2e: 90s}]",
    "search": "quick",
}
TIGHTER, BUSIER = 0.8, 1.1
"""Factors on latency limits, and on the demand."""


def harder(posed: Posed) -> Iterator[tuple[str, Posed]]:
    """The problem with less to use or more to do, and what that is."""
    example, changes = posed
    gpus = changes["accelerators"].strip("[]").split(", ")
    for gpu in gpus if len(gpus) > 1 else []:
        yield (
            f"without {gpu}",
            (example, changes | {"accelerators": f"[{', '.join(one for one in gpus if one != gpu)}]"}),
        )
    preset = changes.get("search", "standard")
    for what, roles in (("colocated only", "colocated"), ("disaggregated only", "prefill, decode")):
        yield what, (example, changes | {"search": f"{{preset: {preset}, roles: [{roles}]}}"})
    yield "10 % more demand", busier(posed, BUSIER)
    tighter = re.sub(r"([\d.]+)s\b", lambda found: f"{TIGHTER * float(found[1]):.6g}s", changes["slo"])
    yield "tighter limits", (example, changes | {"slo": tighter})


def few_engines(number: int) -> Posed:
    """A problem of FEW_ENGINES: of each number another demand, and by turns on one GPU type or two."""
    changes = {"accelerators": f"[{FEW_GPUS[number % len(FEW_GPUS)]}]", "workload.request_rate": f"{30 + 5 * number}"}
    return "chat", FEW_ENGINES | changes


def busier(posed: Posed, times: float) -> Posed:
    """The problem at so many times its demand."""
    rate = times * float(posed[1]["workload.request_rate"])
    return posed[0], posed[1] | {"workload.request_rate": f"{rate:.6g}"}


def cost_of(posed: Posed, level: Level) -> float | None:
    """Cost of the plan [$/h]; None where there is none."""
    try:
        return optimize(problem_of(posed), level=level).cost_usd_per_hour
    except InputError:  # the model fits nowhere, or no engine keeps a limit however idle it is
        return None


def main() -> int:
    """Plan every pair and print those that are the wrong way round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--effort", choices=["quick", "standard"], default="quick")
    asked = parser.parse_args()
    excess: list[float] = []
    for number in range(asked.first, asked.first + asked.problems):
        posed, level = few_engines(number) if asked.few else drawn(number, asked.seed), Level(asked.effort)
        easy = cost_of(posed, level)
        for what, other in harder(posed):
            hard = cost_of(other, level)
            if hard is None:
                continue
            excess.append(float("inf") if easy is None else max(easy / hard - 1.0, 0.0))
            if excess[-1] > 1e-6:
                shown = "none" if easy is None else f"${easy:.2f}"
                print(f"{number}: {shown}, {what} ${hard:.2f} ({excess[-1]:+.1%})", flush=True)
    wrong = [one for one in excess if one > 1e-6]
    notable = sum(one >= NOTABLE for one in wrong)
    mean, most = sum(wrong) / max(len(excess), 1), max(wrong, default=0.0)
    print(f"{len(wrong)} of {len(excess)} pairs are the wrong way round, {notable} by {NOTABLE:.0%} or more")
    print(f"mean over all pairs {mean:.2%}, at most {most:.1%}")
    return int(notable > FEW * len(excess))


if __name__ == "__main__":
    sys.exit(main())
