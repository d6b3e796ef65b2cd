"""Speed and memory of the main job.

    python benchmarks/speed.py [--runs 3] [--example chat] [--effort standard] [--growth]

Prints wall time, CPU time (of all its threads: what one core would take) and peak memory of `pdplan optimize` on an
example, each run in a fresh process, imports included; then engine configs x buckets priced per second (one
process, two threads) and engine step evaluations per second. With `--growth`, also the CPU time of the quick search as
GPU types, buckets, classes and requests per second grow, and its exponent: the slope of log time over log size.
"""

from __future__ import annotations

import argparse
import math
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
sys.path.insert(0, str(ROOT))


def buckets(number: int) -> str:
    """So many lengths, equally likely, of prompts from 100 to 10,000 tokens."""
    rows = (
        f"{{isl: {100.0 * 100.0 ** (at / (number - 1)):.0f}, osl: 200, share: {1 / number}}}" for at in range(number)
    )
    return f"{{histogram: [{', '.join(rows)}]}}"


def classes(number: int) -> str:
    """So many classes, each with a TPOT limit that is 10 ms looser than that of the one before."""
    limits = (f"ttft: {2 + at}s, tpot: {50 + 10 * at}ms, percentile: p90" for at in range(number))
    return f"[{', '.join(f'{{name: c{at}, share: {1 / number}, {row}}}' for at, row in enumerate(limits))}]"


GPUS = ("A100-80", "H100", "H200", "L40S", "B200", "MI300X")
GROWTH = {
    "GPU types": {n: {"accelerators": f"[{', '.join(GPUS[:n])}]"} for n in (2, 4, 6)},
    "buckets": {n: {"workload.lengths": buckets(n)} for n in (12, 24, 48, 96)},
    "classes": {n: {"workload.lengths": buckets(12), "slo": classes(n)} for n in (1, 2, 4)},
    "requests per second": {n: {"workload.request_rate": str(n)} for n in (10, 100, 1000, 1_000_000)},
}
"""What is set otherwise in the chat example, by size."""


def growth() -> None:
    """Print the CPU time of the quick search at every size, and from the first size to the last its exponent."""
    from benchmarks.problems import problem_of
    from optimizer.recommend.optimize import optimize

    for name, sizes in GROWTH.items():
        spent: dict[int, float] = {}
        for size, changes in sizes.items():
            problem, start = problem_of(("chat", changes)), time.process_time()
            optimize(problem, level="quick")
            spent[size] = time.process_time() - start
        first, *_, last = spent
        slope = math.log(spent[last] / spent[first]) / math.log(last / first)
        times = ", ".join(f"{size}: {seconds:.2f} s" for size, seconds in spent.items())
        print(f"{name:<34}{times}; exponent {slope:.2f}")


def pricing_rate(example: Path) -> None:
    from optimizer.loads.instance import make_instance
    from optimizer.search.search import evaluated, unmixed
    from search_spaces.loader import load_problem

    problem = load_problem(example)
    start = time.perf_counter()
    instance = make_instance(problem)
    tables = time.perf_counter() - start
    shapes, flows = len(instance.tables.shapes), instance.flows.isl.size
    steps = instance.tables.mixed_base.size + instance.tables.prefill_time.size + 2 * instance.tables.kv_held.size
    start = time.perf_counter()
    search = evaluated(instance)
    unmixed(search)
    seconds = time.perf_counter() - start
    print(f"engine shapes                     {shapes:>12,}")
    print(f"buckets                           {flows:>12,}")
    print(f"step evaluations                  {steps:>12,}   in {tables:.3f} s = {steps / tables / 1e6:.2f} million/s")
    print(f"engine settings                   {search.settings.size:>12,}")
    looked = len(search.reached)
    print(f"fleets evaluated for the cheapest {looked:>12,}   in {seconds:.3f} s = {looked / seconds:.0f}/s")


def cold_run(example: Path, effort: str) -> tuple[float, float, float]:
    """Wall time [s], CPU time [s] and peak resident memory [MB] of the main job in a new process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pdplan", "optimize", str(example), "--effort", effort, "-o", directory]
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
    parser.add_argument("--effort", default="standard", choices=("quick", "standard", "thorough"))
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args()
    runs, example = arguments.runs, EXAMPLES / f"{arguments.example}.yaml"
    results = [cold_run(example, arguments.effort) for _ in range(runs)]
    walls, spent, peaks = zip(*results, strict=True)
    job = f"pdplan optimize examples/{example.name} --effort {arguments.effort}"
    print(f"{job}, {runs} cold runs on {os.cpu_count()} cores")
    print(f"wall time, imports included       {statistics.median(walls):>12.2f} s (worst {max(walls):.2f})")
    print(f"CPU time, imports included        {statistics.median(spent):>12.2f} s (worst {max(spent):.2f})")
    print(f"peak memory                       {max(peaks):>12.0f} MB")
    pricing_rate(example)
    if arguments.growth:
        growth()
    print(f"this process, peak memory         {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:>12.0f} MiB")


if __name__ == "__main__":
    main()
