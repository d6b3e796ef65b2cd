"""The prefill/decode reference cases at other demands, so that no figure of the search rests on the two alone.

    python benchmarks/fleet_demands.py [../shared/data/fleet_pd] [--only NAME]

Prints cost, bound, gap and CPU seconds of each case and demand, with the work that
`python -m benchmarks.reference fleet_pd` grants, without its clock. A minute of CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- run as a script, the repository is found first
from benchmarks.reference.fleet_cases import files_of, fleet_pd_matrices  # noqa: E402
from benchmarks.reference.fleet_schemas import PairCase, read_case  # noqa: E402
from benchmarks.reference.fleets import IN_TEN_SECONDS  # noqa: E402
from optimizer.search.program import Aim, Matrices, cheapest  # noqa: E402

RATES: dict[str, tuple[float, ...]] = {"gpu": (5.0, 10.0, 20.0, 40.0, 80.0), "node": (10.0, 30.0, 60.0, 100.0)}
"""Requests per second, by what is billed."""
WORK = {**IN_TEN_SECONDS, "time_limit": 600.0}


def row(matrices: Matrices) -> str:
    """What the search finds and proves, and its CPU seconds."""
    start = time.process_time()
    found = cheapest(matrices, Aim(), **WORK)
    cpu = time.process_time() - start
    gap = 1.0 - found.bound / found.objective
    return f"${found.objective:.1f}, bound ${found.bound:.1f}, gap {gap:.2%}, {cpu:.1f} s"


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
