"""Compare pdplan's simulator with others, case by case.

    python -m benchmarks.reference simdistserve DIR [--json]
    python -m benchmarks.reference vidur DIR [--json]

DIR has the layout of the reference data (results, traces, per_request, coefficients or tables).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from . import simdistserve, vidur

PEERS = {"simdistserve": simdistserve.compare_all, "vidur": vidur.compare_all}


def main() -> None:
    """Print one line per case, or a JSON list of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of lines")
    arguments = parser.parse_args()
    found = []
    for one in PEERS[arguments.peer](arguments.folder):
        found.append(dataclasses.asdict(one))
        if not arguments.json:
            equal = "equal" if one.steps_equal else f"differ ({one.steps} for {one.reference_steps})"
            print(f"{one.case}: max absolute error {one.max_abs_error_ms:.3g} ms, steps {equal}", flush=True)
    if arguments.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
