"""`pdplan simulate`: a plan judged request by request."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote
from typing import Any

import click

from costmodel.quoting import shown
from pdplan.console import Console
from pdplan.files import Output, answer_options, read_fleet
from pdplan.options import (
    PATH,
    Choice,
    alternative_option,
    per_second,
    seconds,
    share_within,
    whole,
)
from search_spaces.bounds import (
    CONCURRENCY,
    DAY_PARTS,
    HALF_WIDTH,
    REPLICATIONS,
    ROUTER_SPELLINGS,
    ROUTERS,
    SEED,
    SIMULATED_REQUESTS,
)

SOON_DONE = 50_000
"""So many requests take a few seconds: nobody needs to be told that they are under way."""


def day_profile(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Turn "0.4,1,0.8" into numbers, and "plan" into `simulated_plan.PLANNED`: no multiples."""
    if value is None or value.strip() == "plan":
        return None if value is None else ()
    try:
        multiples = tuple(float(word) for word in value.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"{shown(value[:80])} is neither 'plan' nor multiples of the rate such as 0.4,1,0.8"
        ) from error
    if not DAY_PARTS.holds(len(multiples)):
        raise click.BadParameter(f"has {len(multiples)} multiples; {DAY_PARTS.sentence()}")
    if not all(math.isfinite(multiple) and multiple >= 0.0 for multiple in multiples) or max(multiples) <= 0.0:
        raise click.BadParameter("its multiples must be finite, 0 or more, and one of them above 0")
    return multiples


def half_width(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Turn a half width such as 0.5%, ±0.5% or 0.005 into a share [1]."""
    return share_within(HALF_WIDTH)(context, parameter, value if value is None else value.strip().removeprefix("±"))


@click.command(short_help="Simulate requests on the fleet of a plan.")
@click.argument("file", type=PATH)
@click.option(
    "--rate", callback=per_second, metavar="RATE",
    help="Mean arrivals, such as 12/s or 600/min; default: the plan's, or those of --trace.",
)  # fmt: skip
@click.option(
    "--diurnal", "profile", callback=day_profile, metavar="PROFILE",
    help="Let the rate change over a day: 'plan' for the plan's profile, or multiples of the rate at equal intervals, "
    "such as 0.4,1,0.8; default: a steady rate.",
)  # fmt: skip
@click.option(
    "--concurrency", type=whole(CONCURRENCY), metavar="N",
    help="Closed loop: N requests at a time; when one ends, the next one starts.",
)  # fmt: skip
@click.option("--trace", type=PATH, metavar="TRACE", help="Replay the first --requests requests of a trace.")
@click.option(
    "--requests",
    type=whole(SIMULATED_REQUESTS),
    metavar="N",
    default=20_000,
    show_default=True,
    help="Requests in each run.",
)
@click.option(
    "--seed", type=whole(SEED), metavar="N", default=0, show_default=True, help="Seed of the random requests."
)
@click.option(
    "--replications", type=whole(REPLICATIONS), metavar="K",
    help="Number of runs, each with its own seed; default: 1, and up to 4 while a class is undecided.",
)  # fmt: skip
@click.option(
    "--until", callback=half_width, metavar="SHARE",
    help="Repeat runs until the 95 % interval of every class is within plus and minus SHARE, such as 0.5%.",
)  # fmt: skip
@click.option(
    "--balancing",
    type=Choice(ROUTERS, ROUTER_SPELLINGS),
    help="How the router chooses a replica of a pool; default: as in the plan.",
)
@click.option("--goodput", is_flag=True, help="Also find the highest request rate at which every class meets its SLO.")
@click.option("--curve", is_flag=True, help="Also simulate rates from light load to beyond saturation.")
@click.option("--timeline", type=PATH, metavar="FILE", help="Write the steps of each replica over time, for Perfetto.")
@click.option(
    "--window", callback=seconds, metavar="TIME", default="30s", show_default=True,
    help="Length of the timeline, such as 30s.",
)  # fmt: skip
@answer_options(
    "Write the answer as one page, offline.", alternative_option, rows="Write a row per request, as CSV.", parquet=True
)
def simulate(
    console: Console,
    /,
    *,
    file: Path,
    alternative: int,
    output: Output,
    timeline: Path | None,
    window: float,
    **options: Any,
) -> int:
    """Examples:

    \b
      pdplan simulate plan/plan.json
      pdplan simulate plan/plan.json --rate 14/s --csv requests.csv --timeline steps.json
      pdplan simulate plan/plan.json --curve --requests 10000

    Simulates every queue, batch, KV block and hand-over of the fleet in FILE, with the cost model's
    expected step times. FILE is a plan or a fleet file (pdplan init --fleet). Requests are random, or
    recorded (--trace). Prints what share of each SLO class meets the SLO, what the plan predicted, and
    how busy each pool was.

    A class meets its SLO when the lower end of its 95 % interval reaches the goal, and misses it when
    the upper end does not. Between the two it is undecided, and the text says how many requests decide.

    Exits with 0 when every class meets its SLO. Exits with 3 when one misses it, when the fleet cannot
    keep up, or when it is undecided ("verdict" in --json: meets, misses or undecided).
    """
    from costmodel.simulator import prepare
    from optimizer.verification.simulated_plan import SimulationRequest, simulate_plan
    from reports.answers.simulation import simulation_document, simulation_json, timeline_json
    from reports.rows import request_columns

    request = SimulationRequest(**options)
    request.check()
    output.check({"--timeline": timeline}, FILE=file, trace=request.trace)
    telling = console.progress() if request.work <= SOON_DONE else console.milestones()
    plan = read_fleet(file, alternative)
    with telling as progress:
        prepare(None if progress is None else lambda text: progress(text, 0.0))
        simulation = simulate_plan(plan, request, progress)
    console.note(f"simulated in {simulation.cpu_seconds:.1f} CPU-seconds")
    if timeline is not None:
        hint = "; open it at ui.perfetto.dev or chrome://tracing"
        console.write(timeline, timeline_json(simulation, window), force=output.force, hint=hint)
    chosen = f" --alternative {alternative}" if alternative > 1 else ""
    following = f"pdplan deploy {quote(str(file))}{chosen} -o deploy" if simulation.judgement.proven else ""
    document, pools = simulation_document(simulation, next_step=following), [pool.name for pool in simulation.use.pools]
    return output.show(
        console,
        document,
        simulation_json(simulation),
        lambda: request_columns(simulation.instance, pools, simulation.judgement),
    )
