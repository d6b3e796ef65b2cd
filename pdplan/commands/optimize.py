"""`pdplan optimize`, `evaluate` and `explain`: the cheapest fleet, the fleet of today, the rank of a config."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import BelowFloorError, InputError
from pdplan import api
from pdplan.api import stated_fleet
from pdplan.console import Console
from pdplan.exits import ExitCode, stop_on_interrupt
from pdplan.options import (
    PATH,
    Choice,
    Whole,
    collected,
    confidence_option,
    force_option,
    json_option,
    pairs,
    parse_settings,
    prices_option,
    seconds,
    set_option,
    with_console,
)
from reports.text import json_text, record_of
from reports.whole_files import EVALUATION_FILE, EVALUATION_PAGE, PLAN_FILE, REPORT_FILE, check_directory
from search_spaces.bounds import NO_TARGET, SEED, TARGET_NAMES, TARGET_SPELLINGS, Bounds

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan
    from search_spaces.problem import Problem

EFFORTS = ("quick", "standard", "thorough")
"""Values of `optimizer.loads.effort.Level`, which is slow to import."""
FRONT = Bounds(2, 10_000)
"""Fleets that may be simulated for a front."""


@click.command(short_help="Find the cheapest fleet for a workload.")
@click.argument("file", type=PATH)
@click.option("-o", "--output", type=PATH, metavar="DIR", help="Write plan.json and report.html to DIR.")
@click.option(
    "-t",
    "--target",
    type=Choice((*TARGET_NAMES, NO_TARGET), TARGET_SPELLINGS),
    help="Search only fleets that this target can run; none searches all. Overrides the file's. Default: fleets that "
    "at least one target of the engine can run.",
)
@click.option("--deploy", type=PATH, metavar="DIR", help="Write the files that run the plan to DIR; see pdplan deploy.")
@json_option
@force_option("Replace files in DIR that pdplan did not write.")
@click.option(
    "--time-limit",
    callback=seconds,
    metavar="TIME",
    help="Longest time for the whole command; where it stops the search, the plan says so. Default: none.",
)
@click.option(
    "--effort",
    type=Choice(EFFORTS),
    default="standard",
    help="quick: by formula, simulated only where that finds no fleet; standard: confirmed by simulation; "
    "thorough: also tuned by simulation.",
)
@click.option(
    "--sensitivity", is_flag=True, help="Also vary rate, lengths, SLOs, links and step times; takes up to two minutes."
)
@click.option(
    "--front",
    type=Whole(FRONT),
    help="With --effort standard or thorough: also simulate up to N fleets near the plan's, to show what a dollar more "
    "buys in latency.",
)
@click.option(
    "--study",
    metavar="URL",
    help="With --effort thorough or --front: keep the tuning study in a file, sqlite:///FILE or journal:FILE, for "
    "optuna-dashboard. A later run of the same problem continues it.",
)
@click.option("--seed", type=Whole(SEED), help="Random seed; overrides the file's.")
@confidence_option
@prices_option
@set_option
@with_console
def optimize(console: Console, /, *, file: Path, output: Path | None, deploy: Path | None, **options: Any) -> int:
    """Examples:

    \b
      pdplan optimize workload.yaml -o plan
      pdplan optimize workload.yaml --set workload.request_rate=25 --set constraints.max_gpus=32
      pdplan optimize workload.yaml --target dynamo -o plan --deploy deploy
      pdplan optimize workload.yaml --json | jq .cost_usd_per_hour

    Finds the cheapest fleet that serves the workload in FILE within its SLOs, says why it is the
    cheapest, and what the runners-up cost. Start from `pdplan init` or `pdplan workload TRACE`.

    Queueing formulas choose the fleet, then its requests are simulated. A fleet that misses an SLO is
    repaired; a replica that it does not need is removed. Ctrl-C ends it early, once a fleet is proven.
    The report shows how the cost moves with the prices of GPUs; with --effort thorough or --sensitivity,
    with every other lever too.

    Exits with 3 when no fleet meets the SLOs; the plan then names the nearest miss, or the least limit
    that physics allows.
    """
    from search_spaces.loader import load_problem

    flags = {name: options.pop(name) for name in ("seed", "target", "confidence", "prices")}
    problem = load_problem(file, overrides=parse_settings(options.pop("settings"), **flags))
    prepare_folders(output, deploy, console.force)
    try:
        plan = stamped(searched(console, problem, file.resolve().parent, **options), console.command)
    except BelowFloorError:
        if console.json_only:  # a program gets a plan of any problem without a fleet; no file is written
            from optimizer.recommend.optimize import plan_below_floor

            console.show(record_of(stamped(plan_below_floor(problem), console.command)))
        raise
    for warning in plan.warnings if console.json_only or not plan.pools else ():  # else the answer has them
        console.warn(warning)
    show_plan(console, plan, output)
    if deploy is not None and plan.pools:
        console.note(f"wrote {len(api.deploy(plan, deploy, force=console.force))} files to {deploy}")
    return 0 if plan.pools else ExitCode.INFEASIBLE


def show_plan(console: Console, plan: Plan, output: Path | None) -> None:
    """Write the files of a plan, if a folder is named, and show its answer; both rest on one look at what runs it."""
    from reports.answers.plan import plan_document, plan_page
    from reports.answers.plan_details import what_runs

    if console.json_only and output is None:
        console.show(record_of(plan))
        return
    runs = what_runs(plan)
    document = plan_document(plan, runs, brief=output is None and not console.verbose)
    if output is not None:
        texts = {PLAN_FILE: json_text(record_of(plan)), REPORT_FILE: plan_page(plan, document)}
        console.write_folder(output, texts)
        document = document if console.verbose else plan_document(plan, runs, brief=True)
    console.answer(document, record_of(plan))


def searched(console: Console, problem: Problem, base: Path, effort: str, **options: Any) -> Plan:
    """Find the fleet and report progress; Ctrl-C ends the search once a fleet is proven."""
    from optimizer.loads.effort import Brake

    brake = Brake()
    telling = console.progress() if effort == "quick" else console.milestones()
    with telling as progress, stop_on_interrupt(brake):
        plan = api.optimize(problem, effort=effort, base=base, brake=brake, progress=progress, **options)
    if brake.pulled:
        console.note("interrupted: this fleet meets the SLOs in simulation, but a cheaper one may do so too")
    return plan


def prepare_folders(output: Path | None, deploy: Path | None, force: bool) -> None:
    """Refuse, before the search, folders into which nothing could be written after it."""
    if output is not None and deploy is not None and output.resolve() == deploy.resolve():
        raise InputError(f"-o and --deploy name the same folder, {output}; deploy for example to {output / 'deploy'}")
    if output is not None:
        check_directory(output, (PLAN_FILE, REPORT_FILE), force=force)
    if deploy is not None:
        from reports.deploy.files import check_deployment

        check_deployment(deploy, force=force)


def stamped(plan: Plan, command: str) -> Plan:
    """Return the plan with the command line that asked for it."""
    run = plan.provenance.run.model_copy(update={"command": command})
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"run": run})})


SEARCHES = ("none", "quick", "standard")
"""How the cheapest fleet is sought beside the stated one: not at all, or by such a level of `optimize`."""


@click.command(short_help="Evaluate the fleet that runs today, and find the cheapest.")
@click.argument("file", type=PATH)
@click.option("--fleet", "fleet_file", type=PATH, metavar="FLEET", help="Fleet file; FILE is then the workload.")
@click.option("-o", "--output", type=PATH, metavar="DIR", help="Write evaluation.json and evaluation.html to DIR.")
@click.option(
    "--effort",
    type=Choice(SEARCHES),
    default="standard",
    help="Effort of the search for the cheapest fleet; none skips it.",
)
@confidence_option
@prices_option
@set_option
@json_option
@force_option("Replace a file in DIR that pdplan did not write.")
@with_console
def evaluate(console: Console, /, *, file: Path, output: Path | None, effort: str, **options: Any) -> int:
    """Examples:

    \b
      pdplan evaluate fleet.yaml
      pdplan evaluate workload.yaml --fleet fleet.yaml --effort none
      pdplan evaluate plan/plan.json --json | jq .provisioning

    Simulates the fleet that FILE states, as pdplan optimize simulates its own (pdplan init --fleet writes
    an example). Shows what share of each SLO class meets the SLO, the highest request rate, what binds
    and the price. Then: how many replicas are missing or to spare, what twice the traffic needs, and the
    cheapest fleet. FILE may be a plan: its own requests are simulated again.

    Exits with 2 and names the rule when a replica cannot start. Exits with 3 when the fleet misses an
    SLO, or when the verdict is undecided.
    """
    from reports.answers.plan import evaluation_document
    from reports.views import html_view

    fleet_file: Path | None = options["fleet_file"]
    overrides = parse_settings(options["settings"], confidence=options["confidence"], prices=options["prices"])
    subject = stated_fleet(fleet_file or file, file if fleet_file else None, overrides)
    if output is not None:
        check_directory(output, (EVALUATION_FILE, EVALUATION_PAGE), force=console.force)
    with console.milestones() as progress:
        evaluation = api.evaluate(subject, effort=effort, base=file.parent, progress=progress)
    best = None if evaluation.cheapest is None else stamped(evaluation.cheapest, console.command)
    evaluation = evaluation.model_copy(update={"plan": stamped(evaluation.plan, console.command), "cheapest": best})
    record = record_of(evaluation)
    if output is not None:
        page = html_view(evaluation_document(evaluation, brief=False), record, "evaluation")
        console.write_folder(output, {EVALUATION_FILE: json_text(record), EVALUATION_PAGE: page})
    following = _next_step(file, fleet_file, evaluation.outcome)
    document = evaluation_document(evaluation, brief=not console.verbose, next_step=following)
    return console.answer(document, record)


def _next_step(file: Path, fleet_file: Path | None, outcome: str) -> str:
    """What a reader would do next: a fleet file can be changed, a plan cannot."""
    if fleet_file is not None:
        return f"pdplan optimize {quote(str(file))} -o plan"
    if outcome == "meets":
        return f"pdplan resilience {quote(str(file))}"
    if file.suffix.lower() in {".yaml", ".yml"}:
        return f"change the pools in {quote(str(file))}, then run again"
    return "pdplan init --fleet   # a fleet file: state other pools in it, then pdplan evaluate it"


@click.command(short_help="Say which rule excludes an engine config, or where it ranks.")
@click.argument("file", type=PATH)
@click.option(
    "--config", "configs", required=True, multiple=True, metavar="KEY=VALUE,…",
    help="Engine config: gpu (required), role (prefill, decode or colocated; default: all), tp, pp, ep, dp (default: "
    "1), max_num_seqs, max_num_batched_tokens (default: those of FILE), weight_dtype, kv_dtype (default: FILE's). "
    "May be repeated.",
)  # fmt: skip
@prices_option
@set_option
@json_option
@with_console
def explain(console: Console, /, *, file: Path, configs: tuple[str, ...], prices: str | None, **options: Any) -> int:
    """Examples:

    \b
      pdplan explain workload.yaml --config gpu=H100,tp=4,role=decode
      pdplan explain workload.yaml --config gpu=H200,tp=3 --config gpu=H200,tp=2
      pdplan explain workload.yaml --config gpu=H200,tp=2,max_num_seqs=64,weight_dtype=fp8 --json
      pdplan explain workload.yaml --config gpu=H100,role=prefill --config gpu=H200,role=decode

    Checks an engine config against every feasibility rule. A feasible one is ranked among all configs of
    its role by the cheapest fleet that uses it, with what its pool runs out of first. Settings outside
    the search space of FILE are tried too. For every pair of a prefill and a decode config it says, rule
    by rule, whether they can hand over KV blocks.

    Exits with 3 when no stated config is in a fleet that meets the SLOs.
    """
    from itertools import product

    from costmodel.engine import Role
    from optimizer.recommend.explain import explain_each, explain_pair, parse_query
    from reports.answers.explanation import explanation_dict, explanation_document, pair_dict
    from search_spaces.loader import load_problem

    overrides = parse_settings(options["settings"], prices=prices)
    problem = load_problem(file, overrides, engines_exist=False)  # settings outside the search space are tried too
    candidates = collected(configs, lambda config: parse_query(pairs(config, "--config", "gpu=H100,tp=4"), problem))
    assumptions = [candidate.assumed for candidate in candidates]
    explanations = list(zip(configs, assumptions, explain_each(problem, candidates), strict=True))
    ends = [
        [(config, candidate) for config, candidate in zip(configs, candidates, strict=True) if candidate.role is role]
        for role in (Role.PREFILL, Role.DECODE)
    ]
    pairs_ = [(a, b, explain_pair(problem, first, second)) for (a, first), (b, second) in product(*ends)]
    document = explanation_document(explanations, pairs_)
    records = [*(explanation_dict(*item) for item in explanations), *(pair_dict(*item) for item in pairs_)]
    return console.answer(document, records)
