"""`pdplan simulate`, `report`, `compare`, `deploy`, `resilience`, `autoscale`: questions about a plan or a fleet."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from costmodel.errors import InputError, shown
from costmodel.units import HOURS_PER_DAY
from costmodel.words import plural
from pdplan.api import deployment_options, read_fleet, read_plan
from pdplan.console import Console
from pdplan.options import (
    PATH,
    Choice,
    Whole,
    alternative_option,
    answer_options,
    force_option,
    pairs,
    per_second,
    seconds,
    share_within,
    view_options,
    with_console,
)
from reports.text import clean, record_of, significant
from search_spaces import bounds
from search_spaces.bounds import ROUTER_SPELLINGS, ROUTERS, TARGET_NAMES, TARGET_SPELLINGS, Bounds

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan

SOON_DONE = 50_000
"""So many requests take a few seconds: nobody needs to be told that they are under way."""


def day_profile(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Turn "0.4,1,0.8" into numbers, and "plan" into `simulated_plan.PLANNED`: no multiples."""
    from search_spaces.fields import day_multiples

    if value is None or value.strip() == "plan":
        return None if value is None else ()
    try:
        return day_multiples(value.split(","))
    except InputError as error:
        raise click.BadParameter(str(error)) from error


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
    "--concurrency", type=Whole(bounds.CONCURRENCY),
    help="Closed loop: N requests at a time; when one ends, the next one starts.",
)  # fmt: skip
@click.option("--trace", type=PATH, metavar="TRACE", help="Replay the first --requests requests of a trace.")
@click.option(
    "--requests", type=Whole(bounds.SIMULATED_REQUESTS),
    help="Requests in each run; default: 20,000, or more if these do not fill the fleet.",
)  # fmt: skip
@click.option("--seed", type=Whole(bounds.SEED), default=0, help="Seed of the random requests.")
@click.option(
    "--replications", type=Whole(bounds.REPLICATIONS), metavar="K",
    help="Number of runs, each with its own seed; default: 1, and up to 4 while a class is undecided.",
)  # fmt: skip
@click.option(
    "--until", callback=share_within(bounds.HALF_WIDTH), metavar="SHARE",
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
@click.option("--window", callback=seconds, metavar="TIME", default="30s", help="Length of the timeline, such as 30s.")
@answer_options(
    "Write the answer as one page, offline.", alternative_option, rows="Write a row per request, as CSV.", parquet=True
)
def simulate(
    console: Console,
    /,
    *,
    file: Path,
    alternative: int,
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
    If every class meets its SLO at a single rate, the fleet must pass the other tests of a plan too: recover from
    a burst that fills its KV memory, and, near its capacity, keep up with 5 % more requests.

    Exits with 0 when every class meets its SLO. Exits with 3 when one misses it, when the fleet cannot
    keep up, or when it is undecided ("verdict" in --json: meets, misses or undecided).
    """
    from costmodel.simulator.run import prepare
    from optimizer.plans.records import Outcome
    from optimizer.verification.simulated_plan import SimulationRequest, simulate_plan
    from reports.answers.simulation import simulation_document, simulation_json, timeline_json
    from reports.rows import request_columns

    request = SimulationRequest(**options)
    request.check()
    console.check_files({"FILE": file, "--trace": request.trace}, {"--timeline": timeline})
    telling = console.progress() if request.requests and request.work <= SOON_DONE else console.milestones()
    plan = read_fleet(file, alternative)
    with telling as progress:
        prepare(None if progress is None else lambda text: progress(text, 0.0))
        simulation = simulate_plan(plan, request, progress)
    console.note(f"simulated in {significant(simulation.cpu_seconds, 2)} CPU-seconds")
    if timeline is not None:
        hint = "; open it at ui.perfetto.dev or chrome://tracing"
        console.write(timeline, timeline_json(simulation, window), hint=hint)
    chosen = f" --alternative {alternative}" if alternative > 1 else ""
    following = f"pdplan deploy {quote(str(file))}{chosen} -o deploy" if simulation.outcome is Outcome.MEETS else ""
    document, pools = simulation_document(simulation, next_step=following), [pool.name for pool in simulation.use.pools]
    return console.answer(
        document,
        simulation_json(simulation),
        lambda: request_columns(simulation.instance, pools, simulation.judgement),
    )


MOST_STRAYS = 5
OPTIONS_OF_CHECK = {"file", "check", "target", "alternative", "quiet", "verbose", "no_color"}
"""What `deploy --check` takes beside what a deployment records."""


@click.command(short_help="View a plan.json again, as text, HTML, Markdown or JSON.")
@click.argument("file", type=PATH)
@view_options
def report(console: Console, /, *, file: Path, alternative: int) -> None:
    """Examples:

    \b
      pdplan report plan/plan.json
      pdplan report plan/plan.json -o report.html
      pdplan report plan/plan.json --format md

    Shows a plan that `pdplan optimize -o` wrote earlier. Nothing is computed anew. Markdown is for a
    pull request: verdict, fleet, SLOs, alternatives, and the command that makes the plan again.
    """
    from reports.answers.plan import plan_document

    console.check_files({"FILE": file})
    plan = read_plan(file, alternative)
    following = f"pdplan simulate {quote(str(file))} --alternative {alternative}" if alternative > 1 else None
    brief = console.screen == "text" and not console.verbose
    document = plan_document(
        plan, brief=brief, next_step=following if "text" in {console.screen, *console.files} else ""
    )
    console.answer(document, record_of(plan), name="plan")


@click.command(short_help="Compare two plan.json: price, fleet, SLOs, settings, inputs.")
@click.argument("before", type=PATH)
@click.argument("after", type=PATH, required=False)
@view_options
def compare(console: Console, /, *, before: Path, after: Path | None, alternative: int) -> None:
    """Examples:

    \b
      pdplan compare old/plan.json new/plan.json
      pdplan compare old/plan.json new/plan.json --format md
      pdplan compare old/plan.json new/plan.json -o difference.html
      pdplan compare plan/plan.json --alternative 2

    Says how much more or less the second plan costs, which pools the difference comes from, and what
    else differs: attainment and latencies, engine settings, inputs.
    """
    from reports.answers.comparison import compare as compare_plans
    from reports.answers.comparison import comparison_document, comparison_record

    console.check_files({"BEFORE": before, "AFTER": after})
    if after is None and alternative == 1:
        raise InputError("AFTER: name a second plan, or one of BEFORE's own alternatives with --alternative N")
    comparison = compare_plans(read_plan(before), read_plan(after or before, alternative))
    console.answer(comparison_document(comparison), comparison_record(comparison), name="comparison")


@click.command(short_help="Write the files that run what a plan evaluated.")
@click.argument("file", type=PATH)
@click.option(
    "-t",
    "--target",
    type=Choice(TARGET_NAMES, TARGET_SPELLINGS),
    help="What runs the replicas; default: the plan's target, else the engine alone, else the first that runs it.",
)
@click.option("-o", "--output", type=PATH, metavar="DIR", help="Write the files to DIR, new or empty.")
@click.option("--check", type=PATH, metavar="DIR", help="Write nothing; check the deployment in DIR against the plan.")
@click.option(
    "--engine-version",
    metavar="VERSION",
    help="Version of the target that the files are for; default: the newest known.",
)
@click.option(
    "--unchecked",
    is_flag=True,
    help="Allow a --engine-version that is newer than all that are known, with the flags of the newest.",
)
@click.option(
    "--model", metavar="NAME", help="Weights to load: a Hugging Face id, or a folder; default: the plan's model."
)
@click.option("--image", metavar="IMAGE", help="Container image of the replicas; default: the target's own.")
@click.option(
    "--device",
    type=Choice(["gpu", "cpu"]),
    default="gpu",
    help="cpu: for vLLM's CPU build, with a core for each planned GPU, to test a deployment without GPUs.",
)
@click.option(
    "--bytes-per-token",
    type=float,
    metavar="BYTES",
    help="Bytes of a request per prompt token, for routers that choose by size; default: 4, for English text.",
)
@click.option("--namespace", default="default", metavar="NAME", help="Kubernetes namespace of all objects.")
@click.option("--rdma", default="rdma/ib", metavar="RESOURCE", help="Kubernetes resource that gives a pod RDMA.")
@click.option(
    "--claim",
    metavar="NAME",
    help="PersistentVolumeClaim for the weights that pods fetch; default: each pod fetches its own.",
)
@click.option(
    "--label",
    "labels",
    default="",
    show_default=False,
    metavar="GPU=LABEL,...",
    help="Kubernetes node labels of GPU types, where they differ from the catalog's.",
)
@alternative_option
@force_option()
@with_console
def deploy(
    console: Console, /, file: Path, *, alternative: int, output: Path | None, check: Path | None, **options: Any
) -> None:
    """Examples:

    \b
      pdplan deploy plan/plan.json -o deploy
      pdplan deploy plan/plan.json --target dynamo -o deploy --namespace serving
      pdplan deploy plan/plan.json --target llm-d --engine-version 0.31.0 --model my-org/my-model -o deploy
      pdplan deploy plan/plan.json --check deploy

    Writes the configuration of every replica with the settings that were evaluated, the router, a page
    that says why each setting is there, and a benchmark that replays the planned workload. FILE is a plan
    or a fleet file. Where the target or its engine cannot run the plan, one sentence says so, and nothing
    is written.

    With --check, shows each changed place of the files in DIR as diff does: - as planned, + as it is. Files
    that are not of this plan have a line of their own. Exits with 2 if there is any change.
    """
    from reports.answers.plan_details import deploy_sentence, what_runs
    from reports.deploy.describe import describe
    from reports.deploy.files import planned_target, write_deployment
    from reports.deploy.measurement import scattered_words

    plan = read_fleet(file, alternative)
    if check is not None:
        _check(console, plan, check, options["target"])
        return
    if output is None:
        raise click.UsageError("give -o DIR to write a deployment, or --check DIR to check one")
    settings = deployment_options(plan, label=pairs(options.pop("labels"), "--label"), **options)
    files = write_deployment(plan, settings, output, force=console.force)
    deployment = describe(plan, settings)
    if deployment.demand.reuse and (warning := scattered_words(plan, deployment)):
        console.warn(warning)
    if options["target"] is None and settings.target != planned_target(plan):
        console.note(deploy_sentence(plan, what_runs(plan)))
    console.note(f"wrote {len(files)} files to {output}")
    console.note(f"Next: {output / 'README.md'} says how to start it")


def _check(console: Console, plan: Plan, directory: Path, target: str | None) -> None:
    """Say what is wrong with a deployment that was written earlier, with the options that it was written with.

    target: what it has to be for, None: any.
    """
    from reports.deploy.files import checked_directory

    context = click.get_current_context()
    for parameter in context.command.params:
        is_set = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if is_set and parameter.name not in OPTIONS_OF_CHECK:
            raise click.UsageError(f"--check takes the other options from DIR; leave out {parameter.opts[-1]}")
    differences, strays = checked_directory(plan, directory, target)
    if strays:
        more = f" and {len(strays) - MOST_STRAYS:,} more" if len(strays) > MOST_STRAYS else ""
        names = ", ".join(clean(name, 200) for name in strays[:MOST_STRAYS])
        count = f"{plural(len(strays), 'file')} there {'are' if len(strays) > 1 else 'is'}"
        console.show(f"{count} not of this plan: {names}{more}")
    if not differences:
        console.show(f"{directory} deploys {shown(plan.name)} as it was evaluated")
        return
    console.show("\n".join(differences))
    faults = plural(len(differences), "fault")
    raise InputError(f"{directory} does not deploy {shown(plan.name)} as it was evaluated: {faults}")


# --- what a loss does, and a day --------------------------------------------------------------------------------------

LOSSES = Bounds(1, 100)
LEAST = Bounds(1, 100_000)


@click.command(short_help="Say which loss of a replica or node breaks an SLO.")
@click.argument("file", metavar="PLAN", type=PATH)
@click.option("--losses", type=Whole(LOSSES), default=1, help="Replicas or nodes lost at once.")
@click.option("--requests", type=Whole(bounds.RUN_REQUESTS),
              help="Fewest requests to simulate after each loss; default: as many as simulate draws, or as each run "
              "that proved the plan, if those were more.")  # fmt: skip
@click.option("--seed", type=Whole(bounds.SEED), default=0, help="Seed of the requests.")
@answer_options("Write a page.")
def resilience(console: Console, /, *, file: Path, losses: int, requests: int | None, seed: int) -> int:
    """Examples:

    \b
      pdplan resilience plan/plan.json
      pdplan resilience plan/plan.json --losses 2
      pdplan resilience plan/plan.json --json | jq '.losses[] | select(.verdict != "meets")'

    Takes one replica from each pool, then each node, in turn. Routes the requests to what is left,
    simulates them, and says which loss breaks an SLO and what spares against it cost. Runs are longer
    than --requests where these are too few to show whether a pool falls behind. Spare replicas of the
    plan (constraints.headroom) serve like the others. PLAN may be a fleet file.

    Exits with 3 when some loss breaks an SLO, or when the verdict is undecided: the goal lies within the
    95 % interval. More --requests decide.
    """
    from optimizer.fleets.build_plan import fleet_of_plan, planned_volume
    from optimizer.procurement.operation import resilience as ask
    from optimizer.verification.simulated_plan import DEFAULT_REQUESTS
    from reports.answers.operation import resilience_dict, resilience_document

    console.check_files({"PLAN": file})
    plan = read_fleet(file)
    proof = plan.simulation
    least = max(DEFAULT_REQUESTS, 0 if proof is None else proof.requests // proof.replications)
    instance, fleet = fleet_of_plan(plan, file.parent)
    with console.milestones() as progress:
        answer = ask(
            instance,
            fleet,
            count=losses,
            spares=[pool.spare_replicas for pool in plan.pools],
            requests=requests or least,
            seed=seed,
            volume=planned_volume(plan),
            progress=progress,
        )
    document = resilience_document(answer, losses, plan)
    return console.answer(document, resilience_dict(answer))


@click.command(short_help="Say what scaling a plan's fleet over the day saves.")
@click.argument("file", metavar="PLAN", type=PATH)
@click.option("--start-up", callback=seconds, metavar="TIME", default="5min",
              help="Time from the decision to a replica's first request.")  # fmt: skip
@click.option(
    "--by-hour",
    callback=day_profile,
    metavar="RATE,…",
    help="24 mean rates [1/s]; default: the daily profile of the plan.",
)
@click.option("--least", type=Whole(LEAST), default=1, help="Fewest replicas of every pool.")
@click.option("--requests", type=Whole(bounds.RUN_REQUESTS), default=5_000,
              help="Fewest requests to simulate for each rate and fleet.")  # fmt: skip
@answer_options("Write a page.")
def autoscale(console: Console, /, *, file: Path, start_up: float, by_hour: Any, least: int, requests: int) -> int:
    """Examples:

    \b
      pdplan autoscale plan/plan.json
      pdplan autoscale plan/plan.json --start-up 10min --least 2
      pdplan autoscale plan/plan.json --by-hour 2,1,1,1,1,2,4,6,8,9,9,9,10,10,9,9,8,8,7,6,5,4,3,2

    Finds by simulation how many replicas each pool needs in every hour of the day. Says what the day
    costs if replicas start ahead by the daily profile, against a fleet of fixed size, and which SLO is
    missed if they start only when the load has come. PLAN may be a fleet file.

    Exits with 3 when the plan's own fleet misses an SLO in some hour, or when the verdict is undecided:
    the goal lies within the 95 % interval. More --requests decide.
    """
    import numpy as np

    from optimizer.fleets.build_plan import fleet_of_plan
    from optimizer.procurement.operation import autoscale as scale
    from optimizer.verification.demand import planned_profile
    from reports.answers.operation import autoscale_dict, autoscale_document

    console.check_files({"PLAN": file})
    instance, fleet = fleet_of_plan(read_fleet(file), file.parent)
    volume = planned_profile(instance)
    if by_hour:
        if len(by_hour) != HOURS_PER_DAY or not all(map(bounds.HOURLY_RATE.holds, by_hour)):
            high = f"{bounds.HOURLY_RATE.high:,.0f}"
            raise InputError(f"--by-hour has {len(by_hour)} rates; allowed: {HOURS_PER_DAY}, each from 0 to {high}/s")
        volume = np.array(by_hour) / instance.problem.workload.request_rate
    if volume is None:
        raise InputError(
            "the plan has no daily profile (workload.diurnal); state one with --by-hour, 24 rates separated by commas"
        )
    with console.milestones() as progress:
        day = scale(instance, fleet, volume, start_up, least, requests=requests, progress=progress)
    return console.answer(autoscale_document(instance.problem, day), autoscale_dict(day))
