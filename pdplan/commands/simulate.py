"""`pdplan simulate`: a plan judged request by request."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import click

from costmodel.quoting import shown
from pdplan.console import Console
from pdplan.files import check_files, read_fleet
from pdplan.options import (
    PATH,
    Choice,
    alternative_option,
    console_options,
    force_option,
    json_option,
    pass_console,
    per_second,
    seconds,
    share_within,
    whole,
)
from search_spaces.bounds import CONCURRENCY, DAY_PARTS, HALF_WIDTH, REPLICATIONS, SEED, SIMULATED_REQUESTS
from search_spaces.target_names import ROUTER_SPELLINGS, ROUTERS

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
@click.option("--csv", type=PATH, metavar="FILE", help="Write a row per request, as CSV.")
@click.option("--parquet", type=PATH, metavar="FILE", help="The same as Parquet (needs pyarrow).")
@click.option("--timeline", type=PATH, metavar="FILE", help="Write the steps of each replica over time, for Perfetto.")
@click.option(
    "--window", callback=seconds, metavar="TIME", default="30s", show_default=True,
    help="Length of the timeline, such as 30s.",
)  # fmt: skip
@click.option("--html", type=PATH, metavar="FILE", help="Write the answer as one page, offline.")
@alternative_option
@json_option
@force_option
@console_options
@pass_console
def simulate(
    console: Console, /, *, file: Path, alternative: int, as_json: bool, force: bool, window: float, **options: Any
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
    from reports.rows import columns_csv, columns_parquet, request_columns
    from reports.views.html import render_document

    files: dict[str, Path | None] = {f"--{name}": options.pop(name) for name in ("csv", "parquet", "timeline", "html")}
    request = SimulationRequest(**options)
    request.check()
    check_files(files, {"FILE": file, "--trace": request.trace}, force=force)
    telling = console.progress() if request.work <= SOON_DONE else console.milestones()
    plan = read_fleet(file, alternative)
    with telling as progress:
        prepare(None if progress is None else lambda text: progress(text, 0.0))
        simulation = simulate_plan(plan, request, progress)
    console.note(f"simulated in {simulation.cpu_seconds:.1f} CPU-seconds")
    pools = [pool.name for pool in simulation.use.pools]
    has_rows = files["--csv"] or files["--parquet"]
    rows = request_columns(simulation.instance, pools, simulation.judgement) if has_rows else {}
    makers: dict[str, Callable[[], str | bytes]] = {
        "--csv": lambda: columns_csv(rows),
        "--parquet": lambda: columns_parquet(rows),
        "--timeline": lambda: timeline_json(simulation, window),
        "--html": lambda: render_document(document, record, "simulation"),
    }
    chosen = f" --alternative {alternative}" if alternative > 1 else ""
    following = f"pdplan deploy {quote(str(file))}{chosen} -o deploy" if simulation.judgement.proven else ""
    document, record = simulation_document(simulation, next_step=following), simulation_json(simulation)
    for flag, path in files.items():
        if path is not None:
            hint = "; open it at ui.perfetto.dev or chrome://tracing" if flag == "--timeline" else ""
            console.write(path, makers[flag](), force=force, hint=hint)
    return console.answer(document, record, as_json=as_json)
