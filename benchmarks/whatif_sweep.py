"""Time of a sweep of 1,000 scenarios of the chat example, its speed-up from one core to two, and that rows agree.

    python benchmarks/whatif_sweep.py [--count 1000]

Three sweeps: prices of two GPU types on a grid; prices and rates; prices, rates and TTFT limits. Each is solved on one
core and on two; a few rows are solved alone as well. The speed-up at best is what the CPU times allow: two workers both
need the physics and start anew. With other work running (the load is printed) wall times say little.
Bounds are proven where `pdplan whatif` does so unasked.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from optimizer.whatif import bound, physics  # noqa: E402
from optimizer.whatif.sweep import Row, Sweep, local_executor, run_sweep  # noqa: E402
from optimizer.whatif.whatif import Depth, sweep_of  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402
from search_spaces.scenarios import grid, parse_axis  # noqa: E402

EXAMPLE = ROOT / "examples" / "chat.yaml"
ALONE = 5
"""Rows that are solved alone too."""


def sweeps(count: int) -> dict[str, list[str]]:
    """Axes of the sweeps, each of about `count` scenarios."""
    square, cube = round(math.sqrt(count)), round(count ** (1 / 3))
    return {
        "prices": [f"price.H100=1.5:6:{square}", f"price.H200=2:8:{count // square}"],
        "prices x rates": [f"price.H200=2:8:{count // 10}", "rate=5:50:10"],
        "prices x rates x TTFT": [f"price.H200=2:8:{cube}", f"rate=5:50:{cube}", f"ttft=0.8:3:{cube}"],
    }


def timed(sweep: Sweep, jobs: int) -> tuple[float, float, list[Row]]:
    """Wall time [s], CPU time of all processes [s] and rows of a sweep; workers are started within it."""
    begun, before = time.perf_counter(), sum(os.times()[:4])
    with on_cores(jobs), local_executor(jobs) as executor:
        rows = run_sweep(sweep, executor, jobs)
    wall = time.perf_counter() - begun
    for worker in multiprocessing.active_children():
        worker.join()
    return wall, sum(os.times()[:4]) - before, rows


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Keep this process and those that it starts to some cores: threads would use the others too."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(every)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


@click.command()
@click.option("--count", default=1000, show_default=True, help="Scenarios of each sweep.")
@click.option("--only", help="The sweep of this name.")
def main(count: int, only: str | None) -> None:
    problem = load_problem(EXAMPLE)
    for name, axes in sweeps(count).items():
        if only not in {None, name}:
            continue
        varied = [parse_axis(axis) for axis in axes]
        sweep = sweep_of(problem, EXAMPLE.parent, list(grid(varied)), [axis.key for axis in varied], Depth.SIMPLE)
        caches_cleared()
        one, one_cpu, rows = timed(sweep, 1)
        two, two_cpu, same = timed(sweep, 2)
        picked = range(0, len(rows), max(len(rows) // ALONE, 1))
        alone = [sweep.solve([(number, sweep.scenarios[number])])[0] for number in picked]
        equal = rows == same and alone == [rows[number] for number in picked]
        gaps = [row["gap"] for row in rows if row["gap"] is not None]
        proven = f"{len(gaps):,} with a gap, at most {max(gaps, default=0.0):.1%}"
        click.echo(
            f"{name}: {len(rows):,} scenarios; 1 core {one:.1f} s ({one_cpu:.1f} CPU-s), 2 cores {two:.1f} s "
            f"({two_cpu:.1f} CPU-s), speed-up {one / two:.2f}, at best {2.0 * one_cpu / two_cpu:.2f}; "
            f"rows {'equal' if equal else 'DIFFER'}; {proven}; load of the machine {os.getloadavg()[0]:.1f}"
        )


def caches_cleared() -> None:
    """Forget what earlier sweeps worked out, as a new process would."""
    for cached in (*vars(physics).values(), *vars(bound).values()):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


if __name__ == "__main__":
    main()
