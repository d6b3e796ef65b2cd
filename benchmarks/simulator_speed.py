"""Speed, memory and compilation of the simulator.

    python benchmarks/simulator_speed.py [--data ../shared/data] [--before CHECKOUT] [--runs 3]

Prints simulated requests per CPU-second on one core, each fleet in a process of its own: OPT-13B disaggregated on
DistServe's reference trace and Llama-2-7B colocated with chunked prefill on Vidur's, both twenty times as long, and the
fleets planned for the three examples, 20,000 requests drawn from the demand; then time and peak memory of 1,000,000
requests, and the CPU seconds of compiling the loop and of loading it. --before: another checkout, measured beside
this one as it comes (without numba where its default install has none), on the fleets that it plans itself.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("SIMULATOR_SPEED_ROOT", HERE))
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- run as a script, the repository is found first

PEERS = "simdistserve 305, Vidur 193-280, BLIS 125-262, splitwise-sim 90-214 requests per CPU-second"
LONG, MILLION, DRAWN = 20, 1_000_000, 20_000
EXAMPLES = ("chat", "code", "long-context")


def longer(trace, times):
    """The trace `times` times over, one after the other."""
    import numpy as np

    from costmodel.workload import make_trace

    span = trace.arrival[-1] * trace.size / max(1, trace.size - 1)
    arrival = np.concatenate([trace.arrival + k * span for k in range(times)])
    return make_trace(arrival, np.tile(trace.isl, times), np.tile(trace.osl, times))


def reference(data: Path, name: str):
    """Trace and fleet of a reference case."""
    import json

    from benchmarks.reference import simdistserve, vidur
    from benchmarks.reference.files import rows_of, trace_of

    if name == "OPT-13B":
        folder = data / "simulation" / "simdistserve"
        coefficients = json.loads((folder / "coefficients.json").read_text("utf-8"))
        row = next(row for row in rows_of(folder / "results.csv") if row["backend"] == "distserve")
        return trace_of(folder / row["trace"]), simdistserve.fleet_of(row, coefficients)
    folder = data / "simulation" / "vidur"
    row = next(row for row in rows_of(folder / "results_7b.csv") if row["scheduler"] == "sarathi")
    return trace_of(folder / row["trace"]), vidur.fleet_of(row, folder / "tables_7b")


def planned(plan: Path, requests: int):
    """Trace and fleet of a plan."""
    from optimizer.fleets.build_plan import fleet_of_plan
    from optimizer.verification.demand import simulated_trace
    from optimizer.verification.judge import simulated_fleet
    from pdplan.api import read_plan

    instance, fleet = fleet_of_plan(read_plan(plan))
    return simulated_trace(instance, fleet, requests, 1).trace, simulated_fleet(instance, fleet)


def child(arguments: argparse.Namespace) -> None:
    """One measurement, printed as numbers."""
    from costmodel.simulator.run import simulate

    name = arguments.child
    if name == "million":
        trace, fleet = reference(arguments.data, "OPT-13B")
        trace = longer(trace, MILLION // trace.size)
        start = time.process_time()
        simulate(trace, fleet)
        print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    if name in EXAMPLES:
        trace, fleet = planned(arguments.plans / f"{name}.json", DRAWN)
    else:
        trace, fleet = reference(arguments.data, name)
        simulate(trace, fleet)
        trace = longer(trace, LONG)
    simulate(trace, fleet, until=float(trace.arrival[100]))
    spent = []
    for _ in range(arguments.runs):
        start = time.process_time()
        simulate(trace, fleet)
        spent.append(time.process_time() - start)
    print(trace.size / min(spent))


def compilation() -> tuple[float, float]:
    """CPU seconds of the first and of a later process, from import to the first run, where nothing was kept before."""
    script = "import time; from costmodel.simulator.run import prepare; prepare(); print(time.process_time())"
    with tempfile.TemporaryDirectory() as folder:
        command, environment = [sys.executable, "-c", script], os.environ | {"NUMBA_CACHE_DIR": folder}
        first, later = (
            float(subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        )
    return first, later


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--before", type=Path, help="another checkout of pdplan")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plans", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    roots = [HERE] + ([arguments.before.resolve()] if arguments.before else [])
    print(f"measured elsewhere: {PEERS}")
    with tempfile.TemporaryDirectory() as folder:
        for name in EXAMPLES:
            workload = HERE / "examples" / f"{name}.yaml"
            command = [sys.executable, "-m", "pdplan", "optimize", str(workload), "-o", f"{folder}/{name}"]
            subprocess.run([*command, "--effort=quick"], cwd=roots[-1], check=True, capture_output=True)
            Path(folder, name, "plan.json").rename(Path(folder, f"{name}.json"))
        for name in ("OPT-13B", "Llama-2-7B", *EXAMPLES, "million"):
            for root in roots:
                environment = os.environ | {"SIMULATOR_SPEED_ROOT": str(root), "PYTHONPATH": str(root)}
                environment |= {"OMP_NUM_THREADS": "1", "PDPLAN_SIMULATOR": "python"}  # the second for former ones
                command = [
                    sys.executable,
                    __file__,
                    "--data",
                    str(arguments.data.resolve()),
                    "--runs",
                    str(arguments.runs),
                ]
                command += ["--plans", folder, "--child", name]
                done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
                numbers = [float(number) for number in done.stdout.split()]
                which = "now" if root == HERE else "before"
                if name == "million":
                    print(f"{which:<7} 1,000,000 requests  {numbers[0]:6.1f} CPU-s, peak memory {numbers[1]:,.0f} MiB")
                else:
                    print(f"{which:<7} {name:<13} {numbers[0]:>10,.0f} requests per CPU-second", flush=True)
    first, later = compilation()
    print(f"compiling, once: {first:.1f} CPU-s with imports; loading later: {later:.1f}")


if __name__ == "__main__":
    main()
