"""Compare pdplan's simulator and its fleet solver with others, case by case.

    python -m benchmarks.reference simdistserve DIR [--json]
    python -m benchmarks.reference vidur DIR [--json]
    python -m benchmarks.reference melange DIR [--json]
    python -m benchmarks.reference fleet_pd DIR [--json]

DIR has the layout of the reference data: results, traces, per_request, coefficients or tables of a simulator; files
NAME.input.json in Mélange's format, with or without NAME.expected.json; prefill/decode fleets as .json or .json.gz.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from costmodel.errors import InputError

from . import fleets, simdistserve, vidur
from .files import Comparison

PEERS: dict[str, Callable[[Path], Iterable[Comparison | fleets.FleetComparison]]] = {
    "simdistserve": simdistserve.compare_all,
    "vidur": vidur.compare_all,
    "melange": fleets.compare_melange,
    "fleet_pd": fleets.compare_fleet_pd,
}


def line_of(one: Comparison | fleets.FleetComparison) -> str:
    """One comparison in words."""
    if isinstance(one, fleets.FleetComparison):
        return one.line()
    equal = "equal" if one.steps_equal else f"differ ({one.steps} for {one.reference_steps})"
    return f"{one.case}: max absolute error {one.max_abs_error_ms:.3g} ms, steps {equal}"


def main() -> None:
    """Print one line per case, or a JSON list of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of lines")
    arguments = parser.parse_args()
    found = []
    try:
        for one in PEERS[arguments.peer](arguments.folder):
            found.append(dataclasses.asdict(one))
            if not arguments.json:
                print(line_of(one), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if arguments.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
