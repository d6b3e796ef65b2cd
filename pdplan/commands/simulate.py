"""`pdplan simulate`: a plan judged request by request."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from pdplan.console import Console, write_text
from pdplan.options import (
    PATH,
    console_options,
    force_option,
    json_option,
    pass_console,
    per_second,
    seconds,
    whole,
)
from pdplan.plan_files import is_plan, read_plan
from search_spaces.bounds import SEED, Bounds

if TYPE_CHECKING:
    from optimizer.fleet import Fleet
    from optimizer.instance import Instance
    from optimizer.judge import Demand, Judgement
    from optimizer.plan import Plan
    from reports.simulation_text import Simulated

Progress = Callable[[str, float], None]

MISSED = 3
"""Exit code when a class misses its goal or the fleet is overloaded."""
REQUESTS = Bounds(100, 5_000_000, "requests")
"""Fewer tell nothing of a tail; more do not fit in memory beside their times."""
REPLICATIONS = Bounds(1, 100, "replications")
NANOSECONDS = 1e9
GOODPUT_RUNS = 8
"""Rates that a search for the goodput tries, about."""
PLAIN_REQUESTS = 200_000
"""So many requests take plain Python some ten seconds, and less than compiling the loop for the first time."""


@click.command(short_help="Simulate the requests that a plan's fleet would serve.")
@click.argument("file", type=PATH)
@click.option("--rate", callback=per_second, metavar="RATE", help="Arrivals, e.g. 12/s; default: the plan's.")
@click.option(
    "--requests", type=whole(REQUESTS), metavar="N", default=20_000, show_default=True, help="Requests in each run."
)
@click.option("--seed", type=whole(SEED), metavar="N", default=0, show_default=True, help="Seed of the requests.")
@click.option("--trace", type=PATH, metavar="TRACE", help="Replay a trace; its first N requests.")
@click.option(
    "--replications",
    type=whole(REPLICATIONS),
    metavar="K",
    default=1,
    show_default=True,
    help="Runs, each with its seed.",
)
@click.option("--goodput", "find_goodput", is_flag=True, help="Also find the highest rate at which every class holds.")
@click.option("--csv", "csv_file", type=PATH, metavar="FILE", help="Write a row per request.")
@click.option("--timeline", type=PATH, metavar="FILE", help="Write the engines' steps, for Perfetto.")
@click.option(
    "--window", callback=seconds, metavar="TIME", default="30s", show_default=True, help="Length of the timeline."
)
@json_option
@force_option
@console_options
@pass_console
def simulate(
    console: Console,
    /,
    *,
    file: Path,
    rate: float | None,
    requests: int,
    seed: int,
    trace: Path | None,
    replications: int,
    find_goodput: bool,
    csv_file: Path | None,
    timeline: Path | None,
    window: float,
    as_json: bool,
    force: bool,
) -> int:
    """Examples:

    \b
      pdplan simulate plan/plan.json
      pdplan simulate plan/plan.json --rate 14/s --csv requests.csv --timeline steps.json
      pdplan simulate plan/plan.json --goodput --requests 10000

    Lets random (or recorded) requests arrive at the plan's fleet and simulates every queue, batch, KV
    block and hand-over, with the cost model's expected step times. Prints what share of each SLO class
    came in time, beside what the plan predicted, and how loaded each pool was.

    Exits with 3 when a class misses its goal or the fleet cannot keep up.
    """
    targets = tuple(path for path in (csv_file, timeline) if path is not None)
    check_options(targets, force=force, drawn=trace is None, alone=replications == 1 and not find_goodput)
    asked = Asked(rate, requests, seed, replications, trace, find_goodput)
    if requests * (replications + GOODPUT_RUNS * find_goodput) <= PLAIN_REQUESTS:
        os.environ.setdefault("PDPLAN_SIMULATOR", "python")
    with console.progress() as progress:
        shown, pools = judged(read_plan(file), asked, progress)
    found = shown.judgement
    if csv_file is not None:
        from reports.simulation_files import requests_csv

        write_text(csv_file, requests_csv(shown.instance, pools, found), force=force)
        console.note(f"wrote {csv_file}")
    if timeline is not None:
        write_text(timeline, timeline_text(pools, found, window), force=force)
        console.note(f"wrote {timeline}; open it at ui.perfetto.dev or chrome://tracing")
    from reports.simulation_text import render_simulation, simulation_json

    console.show(simulation_json(shown) if as_json else render_simulation(shown, console.width, console.colored))
    return 0 if found.held else MISSED


@dataclass(frozen=True, slots=True)
class Asked:
    """What to simulate; rate [1/s]: None for the plan's own."""

    rate: float | None
    requests: int
    seed: int
    replications: int
    trace: Path | None
    goodput: bool


def check_options(targets: Sequence[Path], *, force: bool, drawn: bool, alone: bool) -> None:
    """Refuse what cannot be done before the work, not after it."""
    from reports.whole_files import check_target

    if not drawn and not alone:
        raise InputError("--trace replays one recording, so it goes with neither --replications nor --goodput")
    if len({path.resolve() for path in targets}) < len(targets):
        raise InputError("--csv and --timeline name the same file")
    for path in targets:
        if is_plan(path):
            raise InputError(f"{path} is a plan, which the file would replace; choose another name")
        check_target(path, force=force)


def judged(plan: Plan, asked: Asked, progress: Progress | None) -> tuple[Simulated, list[str]]:
    """Simulate what was asked; ids of the pools beside it."""
    from optimizer.evaluate import evaluate
    from optimizer.judge import judge, judge_demands, simulated_fleet
    from optimizer.plan_fleet import fleet_of_plan, planned_volume
    from optimizer.simulated_goodput import goodput
    from reports.simulation_text import Simulated

    instance, fleet = fleet_of_plan(plan)
    engines = simulated_fleet(instance, fleet)
    if progress is not None:
        progress("simulating", 0.3)
    if asked.trace is not None:
        found = judge_demands(instance, engines, [replay(instance, fleet, asked)])
        shown = Simulated(plan, instance, found, None, source=f"replayed from {asked.trace.name}")
    else:
        demand = instance.problem.workload.request_rate
        volume = planned_volume(plan) if asked.rate is None else asked.rate / demand
        settings = {"requests": asked.requests, "seed": asked.seed, "replications": asked.replications}
        found = judge(instance, fleet, volume=volume, engines=engines, **settings)
        shown = Simulated(plan, instance, found, evaluate(instance, fleet, volume))
    if asked.goodput:
        if progress is not None:
            progress("finding the goodput", 0.6)
        shown = replace(shown, goodput=goodput(instance, fleet, requests=asked.requests, seed=asked.seed))
    return shown, [pool.name for pool in fleet.pools]


def replay(instance: Instance, fleet: Fleet, asked: Asked) -> Demand:
    """The first requests of a trace that generate tokens; with a rate, their arrivals are stretched to it."""
    import numpy as np

    from optimizer.judge import replayed_trace
    from search_spaces.traces import in_order, read_rows

    path = asked.trace or Path()
    parts = [rows.pick(np.flatnonzero(rows.osl > 0)) for rows in in_order(path, read_rows(path, limit=asked.requests))]
    nanoseconds, isl, osl = (
        np.concatenate([getattr(rows, name) for rows in parts]) if parts else np.zeros(0, dtype=np.int64)
        for name in ("nanoseconds", "isl", "osl")
    )
    if isl.size < REQUESTS.low:
        raise InputError(f"{path}: has {isl.size} requests with output; {REQUESTS.low} are needed at least")
    arrival = (nanoseconds - nanoseconds[0]) / NANOSECONDS
    span = float(arrival[-1])
    if span <= 0.0:
        raise InputError(f"{path}: all requests arrive at once")
    if asked.rate is not None:
        arrival *= (isl.size - 1) / span / asked.rate
    return replayed_trace(instance, fleet, arrival, np.maximum(isl, 1), osl, seed=asked.seed)


def timeline_text(pools: list[str], found: Judgement, window: float) -> str:
    """Steps of the first run in a window [s] that begins where the warm-up ends; the run is made again with a log."""
    import numpy as np

    from costmodel.simulator import simulate as run
    from costmodel.simulator.metrics import steady
    from reports.simulation_files import timeline_json

    first = found.runs[0]
    start = float(first.result.arrival[int(np.argmax(steady(first.result)))])
    logged = run(first.demand.trace, found.engines, until=start + window, log_rows=first.result.events)
    return timeline_json(pools, found.engines, logged, start, start + window)
