"""How much of a simulated goodput is chance: the same fleet with other seeds.

    python benchmarks/goodput_spread.py [--seeds 10] [--requests 4420 8840 17680]

The fleet that the formulas choose for examples/chat.yaml: mean of its goodput over the seeds, and standard deviation
over that mean, by the requests of a run. A minute.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.problems import PROBLEMS, by_formula  # noqa: E402 -- run as a script, the repository is found first
from optimizer.plans.records import TOLERANCE  # noqa: E402
from optimizer.verification.bench import Slice  # noqa: E402
from optimizer.verification.simulated_plan import seeded_trials  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, nargs="+", default=[4420, 8840, 17680])
    arguments = parser.parse_args()
    instance, fleet = by_formula(PROBLEMS["chat"])
    for requests in arguments.requests:
        wholes = (Slice.whole(instance, fleet, requests, seed) for seed in range(arguments.seeds))
        rates = [seeded_trials(whole).goodput(TOLERANCE).rate for whole in wholes]
        spread = np.std(rates, ddof=1) / np.mean(rates)
        print(f"{requests:,} requests: {np.mean(rates):.2f} req/s, standard deviation {spread:.1%}", flush=True)


if __name__ == "__main__":
    main()
