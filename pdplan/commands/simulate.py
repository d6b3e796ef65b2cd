"""`pdplan simulate`: a plan judged request by request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.words import percentage
from pdplan.console import Console, write_text
from pdplan.exits import ExitCode
from pdplan.files import check_files, read_fleet
from pdplan.options import (
    PATH,
    ROUTERS,
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
from search_spaces.bounds import SEED, Bounds

if TYPE_CHECKING:
    import numpy as np

    from costmodel.simulator import Fleet as SimulatedFleet
    from optimizer.fleets.fleet import Fleet
    from optimizer.loads.instance import Instance
    from optimizer.plans.plan import Plan
    from optimizer.verification.demand import Demand
    from optimizer.verification.judge import Judgement
    from reports.answers.simulation import Simulated

REQUESTS = Bounds(100, 5_000_000, "requests")
"""Fewer tell nothing of a tail; more do not fit in memory beside their times."""
REPLICATIONS = Bounds(1, 100, "replications")
CONCURRENCY = Bounds(1, 100_000, "requests")
GOODPUT_RUNS, CURVE_RUNS = 8, 30
"""Rates that a search for the goodput, and a curve, try, about."""
OTHER_RATE = 0.05
"""Relative difference from which on the rate of a trace is not the plan's."""
PER_USER = 10
"""Requests for each one of a closed loop, so that those with which it starts are warm-up."""
UNTIL = Bounds(1e-4, 0.25)
"""Half widths of an interval that may be asked for [1]."""
MOST_UNTIL = 2_000_000
"""Requests of all runs together, beyond which an interval is told as it is: 2 GB of their times."""
PLANNED: tuple[float, ...] = ()
"""Stands for the daily profile that the plan was made for."""
PARTS = Bounds(2, 1440, "parts of a day")
SOON_DONE = 50_000
"""So many requests take a few seconds: nobody needs to be told that they are under way."""


def day_profile(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Turn "0.4,1,0.8" into numbers, and "plan" into `PLANNED`."""
    if value is None or value.strip() == "plan":
        return None if value is None else PLANNED
    try:
        multiples = tuple(float(word) for word in value.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"{shown(value[:80])} is neither 'plan' nor multiples of the rate such as 0.4,1,0.8"
        ) from error
    if not PARTS.holds(len(multiples)):
        raise click.BadParameter(f"has {len(multiples)} multiples; {PARTS.sentence()}")
    if not all(math.isfinite(multiple) and multiple >= 0.0 for multiple in multiples) or max(multiples) <= 0.0:
        raise click.BadParameter("its multiples must be finite, 0 or more, and one of them above 0")
    return multiples


def half_width(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Turn a half width such as 0.5%, ±0.5% or 0.005 into a share [1]."""
    return share_within(UNTIL)(context, parameter, value if value is None else value.strip().removeprefix("±"))


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
    "--requests", type=whole(REQUESTS), metavar="N", default=20_000, show_default=True, help="Requests in each run."
)
@click.option(
    "--seed", type=whole(SEED), metavar="N", default=0, show_default=True, help="Seed of the random requests."
)
@click.option(
    "--replications", type=whole(REPLICATIONS), metavar="K", default=1, show_default=True,
    help="Number of runs, each with its own seed, for confidence intervals.",
)  # fmt: skip
@click.option(
    "--until", callback=half_width, metavar="SHARE",
    help="Repeat runs until the 95 % interval of every class is within plus and minus SHARE, such as 0.5%.",
)  # fmt: skip
@click.option(
    "--balancing", type=Choice(ROUTERS), help="How the router chooses a replica of a pool; default: as in the plan."
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
    from reports.answers.simulation import simulation_document, simulation_json
    from reports.rows import requests_csv, requests_parquet

    files: dict[str, Path | None] = {f"--{name}": options.pop(name) for name in ("csv", "parquet", "timeline")}
    request = SimulationRequest(**options)
    request.check()
    check_files(files, {"FILE": file, "--trace": request.trace}, force=force)
    telling = console.progress() if request.work <= SOON_DONE else console.milestones()
    plan = read_fleet(file, alternative)
    with telling as progress:
        prepare(None if progress is None else lambda text: progress(text, 0.0))
        simulation = simulated(plan, request, progress)
    console.note(f"simulated in {simulation.cpu_seconds:.1f} CPU-seconds")
    pools = [pool.name for pool in simulation.use.pools]
    makers: dict[str, Callable[[], str | bytes]] = {
        "--csv": lambda: requests_csv(simulation.instance, pools, simulation.judgement),
        "--parquet": lambda: requests_parquet(simulation.instance, pools, simulation.judgement),
        "--timeline": lambda: timeline_text(pools, simulation.judgement, window),
    }
    for flag, path in files.items():
        if path is not None:
            write_text(path, makers[flag](), force=force)
            hint = "; open it at ui.perfetto.dev or chrome://tracing" if flag == "--timeline" else ""
            console.note(f"wrote {path}{hint}")
    console.show(simulation_json(simulation) if as_json else simulation_document(simulation))
    return 0 if simulation.judgement.proven else ExitCode.INFEASIBLE


Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What to simulate.

    rate: arrivals [1/s], None for the plan's own; profile: rate in each part of a day as multiples of it, `PLANNED` or
    None for one rate; concurrency: requests at once of a closed loop, None for an open one; balancing: None as planned;
    until: half width of every class's 95 % interval at which runs end [1], None for as many as `replications` says.
    """

    rate: float | None = None
    requests: int = 20_000
    seed: int = 0
    replications: int = 1
    trace: Path | None = None
    profile: tuple[float, ...] | None = None
    concurrency: int | None = None
    goodput: bool = False
    curve: bool = False
    balancing: str | None = None
    until: float | None = None

    @property
    def work(self) -> int:
        """Requests of all runs together, about; the most that there may be where a precision was asked for."""
        if self.until is not None:
            return MOST_UNTIL
        runs = self.replications + (CURVE_RUNS if self.curve else GOODPUT_RUNS * self.goodput)
        return self.requests * runs

    def check(self) -> None:
        """Raise InputError for what does not go together."""
        flags = {f"--{name}" for name in ("trace", "concurrency", "rate", "until") if getattr(self, name) is not None}
        flags |= {f"--{name}" for name in ("goodput", "curve") if getattr(self, name)}
        flags |= {"--diurnal"} if self.profile is not None else set()
        flags |= {"--replications"} if self.replications > 1 else set()
        for flag, (reason, rivals) in EXCLUDED.items():
            conflicts = [rival for rival in rivals if {flag, rival} <= flags]
            if conflicts:
                raise InputError(f"{flag} {reason}, so it does not go with {conflicts[0]}")
        if self.concurrency is not None and self.requests < PER_USER * self.concurrency:
            raise InputError(
                f"--concurrency {self.concurrency} needs --requests {PER_USER * self.concurrency} or more, for the "
                f"first {self.concurrency} come at once and only a tenth is warm-up; found {self.requests}"
            )


EXCLUDED = {
    "--trace": ("replays one recording", ("--replications", "--goodput", "--curve", "--diurnal")),
    "--concurrency": ("starts a request when another one ends", ("--rate", "--goodput", "--curve", "--diurnal")),
    "--diurnal": ("lets the rate change", ("--goodput", "--curve")),
    "--until": (
        "makes as many runs as it needs",
        ("--replications", "--trace", "--concurrency", "--diurnal", "--goodput", "--curve"),
    ),
}
"""Options that leave no room for others: why, and for which."""


def simulated(plan: Plan, request: SimulationRequest, progress: Progress | None) -> Simulated:
    """Simulate what was asked: the run, or runs, then other rates."""
    from optimizer.fleets.evaluate import evaluate
    from optimizer.fleets.plan_fleet import fleet_of_plan, planned_volume
    from optimizer.verification.judge import goodput, judge_demands, latency_curve, pool_behind, simulated_fleet
    from optimizer.verification.record import class_e2e, class_gaps, fleet_use, slots_of_day
    from reports.answers.simulation import Simulated
    from search_spaces.problem import Balancing

    tell = progress or (lambda _stage, _share: None)
    instance, fleet = fleet_of_plan(plan)
    if request.balancing is not None:
        limits = replace(instance.problem.constraints, balancing=Balancing(request.balancing))
        instance = replace(instance, problem=replace(instance.problem, constraints=limits))
    tell("simulating", 0.3)
    demand_rate = instance.problem.workload.request_rate
    volume = planned_volume(plan) if request.rate is None else request.rate / demand_rate
    start = time.process_time()
    demands, source, most = _requests(instance, fleet, request, volume)
    if request.until is None:
        engines = simulated_fleet(instance, fleet)
        judgement = judge_demands(instance, _prefix_affine(engines) if demands[0].trace.pages else engines, demands)
    else:
        judgement, most = _until_precise(instance, fleet, request, volume, tell), MOST_UNTIL
    steady = request.trace is None and request.profile is None and not request.concurrency
    profile = None if request.profile is None else _profile(instance, request.profile)
    behind = pool_behind(judgement)
    simulation = Simulated(
        plan=plan,
        instance=instance,
        judgement=replace(judgement, rate=demand_rate * volume) if steady else judgement,
        use=fleet_use(instance, fleet, judgement),
        gaps=class_gaps(instance, judgement),
        e2e=class_e2e(instance, judgement),
        behind=None if behind is None else fleet.pools[behind].name,
        source=source if request.trace is None else f"{source}{_of_trace(plan, instance, request, judgement)}",
        most=most,
        concurrency=request.concurrency or 0,
        analytic=evaluate(instance, fleet, volume) if steady else None,
        slots=() if profile is None else slots_of_day(instance, judgement, profile, volume),
        seed=None if request.trace is not None else request.seed,
        until=request.until,
        cpu_seconds=time.process_time() - start,
    )
    settings = {"requests": request.requests, "seed": request.seed}
    if request.curve:
        tell("going through the rates", 0.5)
        curve = latency_curve(instance, fleet, **settings)
        return replace(simulation, curve=curve, goodput=curve.goodput)
    if request.goodput:
        tell("finding the goodput", 0.6)
        return replace(simulation, goodput=goodput(instance, fleet, **settings))
    return simulation


def _until_precise(
    instance: Instance, fleet: Fleet, request: SimulationRequest, volume: float, tell: Progress
) -> Judgement:
    """Runs of as many requests as the fleet's slowest queue asks for, two at least, until they tell enough."""
    from optimizer.verification.bench import full_length
    from optimizer.verification.demand import seeded_demands
    from optimizer.verification.judge import half_width, judge_until, simulated_fleet, until_precise

    precision = request.until or UNTIL.high
    requests = full_length(instance, fleet, request.requests, volume)
    enough = until_precise(precision, requests, MOST_UNTIL)

    def wanted(judgement: Judgement) -> int:
        simulated_requests, precision_now = len(judgement.runs) * requests, half_width(judgement)
        most = max(simulated_requests / MOST_UNTIL, min((precision / max(precision_now, 1e-9)) ** 2, 1.0))
        tell(f"{simulated_requests:,} requests, ±{percentage(precision_now, 2)}", 0.9 * most)
        return enough(judgement)

    draws = seeded_demands(instance, fleet, requests, request.seed, volume)
    return judge_until(instance, simulated_fleet(instance, fleet), draws, wanted, first=2)


def _prefix_affine(engines: SimulatedFleet) -> SimulatedFleet:
    """The same engines behind a router that knows what each of them has cached, as one for prefixes is deployed."""
    from costmodel.simulator import Router

    aware = {Router.LENGTH_AWARE: Router.PREFIX_AFFINE}
    pools = tuple(replace(pool, router=aware.get(pool.router, pool.router)) for pool in engines.pools)
    return replace(engines, pools=pools)


def _requests(
    instance: Instance, fleet: Fleet, request: SimulationRequest, volume: float
) -> tuple[list[Demand], str, int]:
    """Requests of each run, where they come from in words, and the most that a run of them can have.

    No requests where runs are made until they are precise.
    """
    from optimizer.verification.demand import closed_demand, diurnal_demands, seeded_demands
    from reports.numbers import duration

    recording, most, numbers = instance.problem.recorded, int(REQUESTS.high), range(request.replications)
    source = "drawn from the workload" if recording is None else f"drawn from {recording.source}, as the plan's were"
    demands: list[Demand] = []
    if request.profile is not None:
        profile, runs = _profile(instance, request.profile), {"requests": request.requests, "seed": request.seed}
        demands = diurnal_demands(instance, fleet, profile, volume=volume, replications=len(numbers), **runs)
        source += f" over a day that is made to last {duration(float(demands[0].trace.arrival.max()))}"
    elif request.trace is not None:
        demand, left_out, whole = replay(instance, fleet, request)
        demands, source = [demand], f"replayed from {request.trace.name}{left_out}"
        most = demand.trace.size if whole else most
    elif request.until is None:
        demands = list(map(seeded_demands(instance, fleet, request.requests, request.seed, volume), numbers))
    if request.balancing is not None:
        source += f", sent to the engine with the {request.balancing.replace('_', ' ')}"
    if request.concurrency:
        demands = [closed_demand(demand, request.concurrency) for demand in demands]
        source += f", {request.concurrency} at a time"
    return demands, source, most


def _of_trace(plan: Plan, instance: Instance, request: SimulationRequest, judgement: Judgement) -> str:
    """What prefix caches found of a trace with hash blocks, and that it came at another rate than the plan's."""
    from optimizer.verification.record import hit_share
    from reports.numbers import percent, rate

    words = ""
    if judgement.runs[0].demand.trace.pages is not None:
        share = percent(hit_share(instance, judgement))
        words = f", {share} of its prompt tokens found in prefix caches by its hash blocks"
    if request.rate is None and not request.concurrency and abs(judgement.rate / plan.demand_rps - 1.0) > OTHER_RATE:
        words += f", at its own rate; the plan is for {rate(plan.demand_rps)} (--rate)"
    return words


def _profile(instance: Instance, profile: tuple[float, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Rates over the day as multiples."""
    import numpy as np

    from optimizer.verification.demand import planned_profile

    if profile != PLANNED:
        return np.array(profile)
    plan_profile = planned_profile(instance)
    if plan_profile is None:
        raise InputError("--diurnal plan: the plan's workload has no diurnal profile; give multiples such as 0.4,1,0.8")
    return plan_profile


def replay(instance: Instance, fleet: Fleet, request: SimulationRequest) -> tuple[Demand, str, bool]:
    """The first requests of a trace; with a rate, their arrivals are stretched to it.

    Where the trace has hash blocks and the plan's engines cache prefixes, prompts find what their engine still has.
    Also what is to be said of requests that are left out as no engine can serve them, or as they are longer than the
    engines' max_model_len; and whether there are no more in the trace.
    """
    from costmodel.simulator import Pages
    from optimizer.verification.demand import replayed_trace
    from search_spaces.enumeration import block_tokens
    from search_spaces.traces import read_trace
    from search_spaces.traces.reader import NANOSECONDS
    from search_spaces.traces.summary import spread

    path, most = request.trace or Path(), instance.problem.workload.max_tokens
    summary = read_trace(path, limit=request.requests, most_tokens=most)
    rows, unservable, too_long = summary.rows, summary.unservable, summary.too_long
    least = max(int(REQUESTS.low), PER_USER * (request.concurrency or 0))
    if len(rows) < least:
        from reports.text import plural

        fit = f" of at most {most:,} tokens" if too_long else ""
        raise InputError(f"{path}: has {plural(len(rows), 'request')}{fit}; {least:,} are needed at least")
    arrival = spread((rows.nanoseconds - rows.nanoseconds[0]) / NANOSECONDS, summary.arrivals)
    span = float(arrival[-1])
    if span <= 0.0:
        raise InputError(f"{path}: all requests arrive at once")
    if request.rate is not None:
        arrival *= (len(rows) - 1) / span / request.rate
    remark = f", of which {unservable.words}" if unservable.count else ""
    if too_long:
        remark += f", less {too_long:,} of more than {most:,} tokens, which its engines do not take"
    demand = replayed_trace(instance, fleet, arrival, rows.isl, rows.osl, seed=request.seed)
    prefixes = summary.prefixes if instance.problem.workload.prefix_hit_share > 0.0 else None
    if prefixes is not None and rows.hash_ids is not None and rows.hash_counts is not None:
        pages = Pages(rows.hash_ids, rows.hash_counts, prefixes.block_tokens)
        pages = pages.in_blocks(block_tokens(instance.problem.engine, instance.problem.model))
        demand = replace(demand, trace=replace(demand.trace, cached=None, pages=pages))
    return demand, remark, unservable.rows < request.requests


def timeline_text(pools: list[str], judgement: Judgement, window: float) -> str:
    """Steps of the first run in a window [s] that begins where the warm-up ends; the run is made again with a log."""
    import numpy as np

    from costmodel.simulator import simulate as run
    from costmodel.simulator.metrics import steady
    from reports.answers.simulation import timeline_json

    first = judgement.runs[0]
    start = float(first.result.arrival[int(np.argmax(steady(first.result)))])
    logged = run(first.demand.trace, judgement.engines, until=start + window, log_rows=first.result.events)
    return timeline_json(pools, judgement.engines, logged, start, start + window)
