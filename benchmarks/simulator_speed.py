"""Speed and memory of the simulator.

    python benchmarks/simulator_speed.py [--data ../shared/data] [--runs 5]

Prints simulated requests per CPU-second on one core, with and without the compiled loop, each in a fresh process:
OPT-13B disaggregated on DistServe's reference traces, Llama-2-7B colocated with chunked prefill on Vidur's, as they are
(1,000 requests) and twenty times as long; and time and peak memory of 1,000,000 requests. Compiling is not counted:
it happens once and is kept on disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- run as a script, the repository is found first

PEERS = "simdistserve 305, Vidur 193-280, BLIS 125-262, splitwise-sim 90-214 requests per CPU-second"
LONG = 20
MILLION = 1_000_000


def longer(trace, times):
    """The trace `times` times over, one after the other."""
    from costmodel.simulator import make_trace

    span = trace.arrival[-1] * trace.size / max(1, trace.size - 1)
    arrival = np.concatenate([trace.arrival + k * span for k in range(times)])
    return make_trace(arrival, np.tile(trace.isl, times), np.tile(trace.osl, times))


def cases(data: Path) -> Iterator[tuple[str, object, object]]:
    """(name, trace, fleet) of the reference cases."""
    import json

    from benchmarks.reference import simdistserve, vidur
    from benchmarks.reference.files import rows_of, trace_of

    folder = data / "simulation" / "simdistserve"
    coefficients = json.loads((folder / "coefficients.json").read_text("utf-8"))
    for row in rows_of(folder / "results.csv"):
        if row["backend"] == "distserve":
            fleet = simdistserve.fleet_of(row, coefficients)
            yield f"disaggregated OPT-13B, {row['rate_rps']} req/s", trace_of(folder / row["trace"]), fleet
    folder = data / "simulation" / "vidur"
    for row in rows_of(folder / "results_7b.csv"):
        if row["scheduler"] == "sarathi":
            fleet = vidur.fleet_of(row, folder / "tables_7b")
            yield f"chunked colocated 7B, {row['rate_rps']} req/s", trace_of(folder / row["trace"]), fleet


def best(trace, fleet, runs: int) -> float:
    """Requests per CPU-second, the best of several runs."""
    from costmodel.simulator import simulate

    simulate(trace, fleet)
    times = []
    for _ in range(runs):
        start = time.process_time()
        simulate(trace, fleet)
        times.append(time.process_time() - start)
    return trace.size / min(times)


def child(data: Path, runs: int, memory: bool) -> None:
    from costmodel.simulator import simulate
    from costmodel.simulator.backend import chosen_loop

    kind = "plain Python" if chosen_loop(0) is None else "compiled"
    if memory:
        trace, fleet = next((trace, fleet) for name, trace, fleet in cases(data) if "OPT-13B, 4" in name)
        start = time.process_time()
        result = simulate(longer(trace, MILLION // trace.size), fleet)
        spent = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{kind}: {int(result.finished.sum()):,} requests in {spent:.1f} CPU-s, peak memory {peak:,.0f} MiB")
        return
    for name, trace, fleet in cases(data):
        short, long = best(trace, fleet, runs), best(longer(trace, LONG), fleet, max(1, runs // 3))
        print(f"{kind}, {name}: {short:,.0f} requests per CPU-s (1,000 requests), {long:,.0f} ({LONG},000)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--child", choices=("speed", "memory"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.data, arguments.runs, arguments.child == "memory")
        return
    print(f"measured elsewhere: {PEERS}")
    for mode in ("numba", "python"):
        for part in ("speed", "memory"):
            command = [sys.executable, __file__, "--data", str(arguments.data), "--runs", str(arguments.runs)]
            environment = os.environ | {"PDPLAN_SIMULATOR": mode, "OMP_NUM_THREADS": "1"}
            subprocess.run([*command, "--child", part], env=environment, check=True)


if __name__ == "__main__":
    main()
