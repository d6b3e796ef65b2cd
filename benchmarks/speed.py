"""Speed and memory of the main job.

    python benchmarks/speed.py [--runs 3] [--example chat]

Prints wall time, CPU time (of all its threads: what one core would take) and peak memory of `pdplan optimize` on an
example, each run in a fresh process, imports included; then engine configs x buckets priced per second (one
process, two threads) and engine step evaluations per second.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def pricing_rate(example: Path) -> None:
    from optimizer.loads.instance import make_instance
    from optimizer.search.search import evaluated, unmixed
    from search_spaces.engines import load_engine_overhead
    from search_spaces.loader import load_problem

    problem = load_problem(example)
    start = time.perf_counter()
    instance = make_instance(problem, load_engine_overhead(problem.engine))
    tables = time.perf_counter() - start
    shapes, flows = len(instance.tables.shapes), instance.flows.isl.size
    steps = instance.tables.mixed_base.size + instance.tables.prefill_time.size + 2 * instance.tables.kv_held.size
    start = time.perf_counter()
    known = evaluated(instance)
    unmixed(known)
    seconds = time.perf_counter() - start
    print(f"engine shapes                     {shapes:>12,}")
    print(f"buckets                           {flows:>12,}")
    print(f"step evaluations                  {steps:>12,}   in {tables:.3f} s = {steps / tables / 1e6:.2f} million/s")
    print(f"engine settings                   {known.settings.size:>12,}")
    looked = len(known.held)
    print(f"fleets evaluated for the cheapest {looked:>12,}   in {seconds:.3f} s = {looked / seconds:.0f}/s")


def cold_run(example: Path) -> tuple[float, float, float]:
    """Wall time [s], CPU time [s] and peak resident memory [MB] of the main job in a new process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pdplan", "optimize", str(example), "-o", directory]
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return seconds, usage.ru_utime + usage.ru_stime, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--example", default="chat", choices=sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
    arguments = parser.parse_args()
    runs, example = arguments.runs, EXAMPLES / f"{arguments.example}.yaml"
    results = [cold_run(example) for _ in range(runs)]
    walls, spent, peaks = zip(*results, strict=True)
    print(f"pdplan optimize examples/{example.name}, {runs} cold runs on {os.cpu_count()} cores")
    print(f"wall time, imports included       {statistics.median(walls):>12.2f} s (worst {max(walls):.2f})")
    print(f"CPU time, imports included        {statistics.median(spent):>12.2f} s (worst {max(spent):.2f})")
    print(f"peak memory                       {max(peaks):>12.0f} MB")
    pricing_rate(example)
    print(f"this process, peak memory         {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:>12.0f} MiB")


if __name__ == "__main__":
    main()
