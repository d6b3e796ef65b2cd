"""Time of sweeps of 1,000 scenarios of the chat example, their speed-up from one core to two, and that rows agree.

    python benchmarks/whatif_sweep.py [--count 1000] [--only "rates x TTFT"]

Each sweep is solved by one worker process on one core and by two on two, both started and warm before the clock runs
(libraries imported, nothing solved); a few rows are solved alone as well. With other work on the machine (its load is
printed) wall times say little: the speed-up that the CPU times allow, 2 x CPU of one / CPU of two, is what two cores
to themselves come to if neither waits, and the busy share of the workers says how much they waited.
Fleets are of one pool or two where `pdplan whatif` searches no others unasked, and simulated where it does so.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from optimizer.whatif.answer import ScenarioAnswer, ScenarioEffort  # noqa: E402
from optimizer.whatif.solver import Sweep, run_sweep, sweep_of  # noqa: E402
from optimizer.whatif.workers import ONE_THREAD  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402
from search_spaces.scenarios import parse_axis  # noqa: E402

EXAMPLE = ROOT / "examples" / "chat.yaml"
ALONE = 5
"""Rows that are solved alone too."""
SETTLE = 0.3
"""For which a worker keeps still, so that the next task meets another one [s]."""


def sweeps(count: int) -> dict[str, list[str]]:
    """Axes of the sweeps, each of about `count` scenarios."""
    square, cube = round(math.sqrt(count)), round(count ** (1 / 3))
    other = count // square
    return {
        "prices": [f"price.H100=1.5:6:{square}", f"price.H200=2:8:{other}"],
        "prices x rates": [f"price.H200=2:8:{count // 10}", "rate=5:50:10"],
        "prices x TTFT": [f"price.H200=2:8:{square}", f"ttft=0.5:4:{other}"],
        "prices x inventory": [f"price.H200=2:8:{count // 10}", "inventory.H200=0,1,2,4,6,8,12,16,24,32"],
        "prices x ISL": [f"price.H200=2:8:{square}", f"isl_scale=0.5:2:{other}"],
        "prices x rates x TTFT": [f"price.H200=2:8:{cube}", f"rate=5:50:{cube}", f"ttft=0.8:3:{cube}"],
        "rates x TTFT": [f"rate=5:50:{square}", f"ttft=0.5:4:{other}"],
    }


@dataclass(frozen=True, slots=True)
class Timed:
    """Wall time and CPU time of the workers and of this process [s], and the rows."""

    wall: float
    workers: float
    own: float
    rows: list[ScenarioAnswer]


def timed(sweep: Sweep, jobs: int) -> Timed:
    """Solve a sweep by so many warm workers on as many cores."""
    with on_cores(jobs), workers(jobs) as executor:
        before, own, begun = cpu_times(executor, jobs), time.process_time(), time.perf_counter()
        rows = run_sweep(sweep, executor, jobs)
        wall, own = time.perf_counter() - begun, time.process_time() - own
        after = cpu_times(executor, jobs)
    return Timed(wall, sum(after.values()) - sum(before.values()), own, rows)


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Processes with the libraries imported, each with a single thread."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def cpu_times(executor: Executor, jobs: int) -> dict[int, float]:
    """CPU time of each worker so far [s], by its number."""
    found: dict[int, float] = {}
    while len(found) < jobs:
        found |= dict(executor.map(cpu_time, range(jobs)))
    return found


def cpu_time(_number: int) -> tuple[int, float]:
    """Number and CPU time of the process that this runs in, once it has what it needs."""
    from ortools.math_opt.python import mathopt  # noqa: F401 - what a search imports

    time.sleep(SETTLE)
    return os.getpid(), time.process_time()


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
@click.option("--full", is_flag=True, help="Search fleets of any number of pools, however many scenarios.")
@click.option("--verify", default=4, show_default=True, help="Fleets that are simulated.")
def main(count: int, only: str | None, verify: int, *, full: bool) -> None:
    problem = load_problem(EXAMPLE)
    for name, axes in sweeps(count).items():
        if only not in {None, name}:
            continue
        varied = [parse_axis(axis) for axis in axes]
        sweep = sweep_of(problem, varied, (), ScenarioEffort.FULL if full else None, looks=verify)
        one, two = timed(sweep, 1), timed(sweep, 2)
        click.echo(
            f"{name}: {told(one, two)}; rows {'equal' if agree(sweep, one, two) else 'DIFFER'}; {gaps(one.rows)}"
        )


def told(one: Timed, two: Timed) -> str:
    """Times and speed-ups."""
    busy = two.workers / (2.0 * two.wall)
    return (
        f"{len(one.rows):,} scenarios; 1 core {one.wall:.1f} s ({one.workers:.1f} CPU-s), 2 cores {two.wall:.1f} s "
        f"({two.workers:.1f} CPU-s, workers {busy:.0%} busy, beside them {two.own:.1f} CPU-s); speed-up "
        f"{one.wall / two.wall:.2f}, by CPU time {2.0 * one.workers / two.workers:.2f}; load {os.getloadavg()[0]:.1f}"
    )


def agree(sweep: Sweep, one: Timed, two: Timed) -> bool:
    """Whether one worker and two give the same rows, and a row alone the same fleet and cost."""
    picked = range(0, len(one.rows), max(len(one.rows) // ALONE, 1))
    pairs = [(one.rows[number].answer, sweep.solver((sweep.scenarios[number], False))) for number in picked]
    same = all(best.cost == alone.cost and best.pools == alone.pools for best, alone in pairs if not best.refuted)
    return same and one.rows == two.rows


def gaps(rows: list[ScenarioAnswer]) -> str:
    """How wide the gaps are."""
    found = sorted(row.answer.gap for row in rows if row.answer.gap is not None)
    fleets = sum(row.answer.cost is not None for row in rows)
    if not found:
        return "no gaps"
    return f"{len(found):,} gaps of {fleets:,} fleets, median {found[len(found) // 2]:.1%}, at most {found[-1]:.1%}"


if __name__ == "__main__":
    main()
