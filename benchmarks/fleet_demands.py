"""The prefill/decode reference cases at other demands, so that no figure of the search rests on the two alone.

    python benchmarks/fleet_demands.py [../shared/data/fleet_pd] [--only NAME]

Prints of each case and demand what the first looks find, each by itself (HiGHS at LOOK_NODES nodes among the columns
nearest to the cuts, and among those nearest to the relaxation), with their CPU seconds; what a look at every kind of
engine finds below that, if anything; and cost, bound and CPU seconds of the whole search with the work that
`python -m benchmarks.reference fleet_pd` grants, without its clock. Four minutes of CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- run as a script, the repository is found first
from benchmarks.reference.fleet_cases import files_of, fleet_pd_matrices  # noqa: E402
from benchmarks.reference.fleet_schemas import PairCase, read_case  # noqa: E402
from benchmarks.reference.fleets import IN_TEN_SECONDS  # noqa: E402
from optimizer.solver.blocks import Work, nearest, relax  # noqa: E402
from optimizer.solver.choices import EVERY_KIND, FIRST, LOOK_NODES, among, diverse  # noqa: E402
from optimizer.solver.dominance import undominated  # noqa: E402
from optimizer.solver.fleet_model import Aim  # noqa: E402
from optimizer.solver.matrices import Matrices  # noqa: E402
from optimizer.solver.projection import Projection, lift  # noqa: E402
from optimizer.solver.whole import LIFTS, STARTERS, cheapest  # noqa: E402

RATES: dict[str, tuple[float, ...]] = {"gpu": (5.0, 10.0, 20.0, 40.0, 80.0), "node": (10.0, 30.0, 60.0, 100.0)}
"""Requests per second, by what is billed."""
LOOK = Work(gap=IN_TEN_SECONDS.gap, nodes=LOOK_NODES)
WHOLE = replace(IN_TEN_SECONDS, time_limit=600.0)
AIM = Aim()


def looked(matrices: Matrices, columns: np.ndarray, limit: float = np.inf) -> tuple[float, float]:
    """What a look among some columns finds [$/h], inf if nothing within the limit, and its CPU seconds."""
    start = time.process_time()
    found = among(matrices, AIM, LOOK, columns, limit)
    return found.objective if found.index.size else np.inf, time.process_time() - start


def row(matrices: Matrices) -> str:
    """The looks one by one, then the whole search."""
    some = matrices.take(undominated(matrices))
    prices = relax(some, AIM, LOOK.time_limit)
    assert prices is not None
    projection = Projection.of(some, prices, nearest(prices, STARTERS))
    tight = lift(projection, AIM, LIFTS, LOOK.time_limit)
    first = [looked(some, diverse(some, of, *counts)) for of, counts in zip((tight, prices), FIRST, strict=True)]
    least = min(cost for cost, _ in first)
    more, more_cpu = looked(some, diverse(some, prices, *EVERY_KIND), least * (1.0 - LOOK.gap))
    start = time.process_time()
    found = cheapest(matrices, AIM, WHOLE)
    cpu = time.process_time() - start
    costs, seconds = (", ".join(f"{one:.1f}" for one in column) for column in zip(*first, strict=True))
    below = f"${more:.1f}" if np.isfinite(more) else "nothing"
    return (
        f"first looks ${costs} in {seconds} s; every kind {below} in {more_cpu:.1f} s; search ${found.objective:.1f},"
        f" bound ${found.bound:.1f}, gap {1.0 - found.bound / found.objective:.2%}, {cpu:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder() / "fleet_pd")
    parser.add_argument("--only", default="", help="part of a case's name")
    arguments = parser.parse_args()
    for path in files_of(arguments.folder, ".json", ".json.gz"):
        if arguments.only not in path.name:
            continue
        case = read_case(path, PairCase)
        for rate in RATES[case.unit]:
            demand = [rate / sum(case.demand) * one for one in case.demand]
            matrices = fleet_pd_matrices(case.model_copy(update={"demand": demand}))
            print(f"by {case.unit}, {rate:g} requests/s: {row(matrices)}", flush=True)


if __name__ == "__main__":
    main()
