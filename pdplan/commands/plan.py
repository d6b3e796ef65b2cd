"""`pdplan report`, `compare` and `deploy`: view a plan again, compare it with another one, write the files for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from costmodel.errors import InputError
from costmodel.quoting import shown
from pdplan.console import Console
from pdplan.files import View, read_fleet, read_plan, view_options
from pdplan.options import PATH, Choice, alternative_option, console_options, force_option, pairs, pass_console
from search_spaces.bounds import TARGET_NAMES, TARGET_SPELLINGS

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan

MOST_STRAYS = 5


@click.command(short_help="View a plan.json again, as text, HTML, Markdown or JSON.")
@click.argument("file", type=PATH)
@view_options("its view")
def report(console: Console, /, *, file: Path, view: View, alternative: int) -> None:
    """Examples:

    \b
      pdplan report plan/plan.json
      pdplan report plan/plan.json -o report.html
      pdplan report plan/plan.json --format md

    Shows a plan that `pdplan optimize -o` wrote earlier. Nothing is computed anew. Markdown is for a
    pull request: verdict, fleet, SLOs, alternatives, and the command that makes the plan again.
    """
    from reports.answers.plan import plan_document
    from reports.json_text import plan_record

    if view.form == "json":
        view = replace(view, rival="")
    view.check(FILE=file)
    plan = read_plan(file, alternative)
    following = f"pdplan simulate {quote(str(file))} --alternative {alternative}" if alternative > 1 else None
    brief = view.is_screen and not console.verbose
    document = plan_document(plan, brief=brief, next_step=following if view.form == "text" else "")
    view.show(console, document, plan_record(plan), "plan")


@click.command(short_help="Compare two plan.json: price, fleet, SLOs, settings, inputs.")
@click.argument("before", type=PATH)
@click.argument("after", type=PATH, required=False)
@view_options("the comparison")
def compare(console: Console, /, *, before: Path, after: Path | None, alternative: int, view: View) -> None:
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

    view.check(BEFORE=before, AFTER=after)
    if after is None and alternative == 1:
        raise InputError("AFTER: name a second plan, or one of BEFORE's own alternatives with --alternative N")
    comparison = compare_plans(read_plan(before), read_plan(after or before, alternative))
    view.show(console, comparison_document(comparison), comparison_record(comparison), "comparison")


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
    "--model",
    metavar="NAME",
    help="Weights to load: a Hugging Face id, or a folder; default: the plan's model.",
)
@click.option("--image", metavar="IMAGE", help="Container image of the replicas; default: the target's own.")
@click.option(
    "--device",
    type=Choice(["gpu", "cpu"]),
    default="gpu",
    show_default=True,
    help="cpu: for vLLM's CPU build, with a core for each planned GPU, to test a deployment without GPUs.",
)
@click.option(
    "--bytes-per-token",
    type=float,
    metavar="BYTES",
    help="Bytes of a request per prompt token, for routers that choose by size; default: 4, for English text.",
)
@click.option(
    "--namespace", default="default", show_default=True, metavar="NAME", help="Kubernetes namespace of all objects."
)
@click.option(
    "--rdma",
    default="rdma/ib",
    show_default=True,
    metavar="RESOURCE",
    help="Kubernetes resource that gives a pod RDMA.",
)
@click.option(
    "--claim",
    metavar="NAME",
    help="PersistentVolumeClaim for the weights that pods fetch; default: each pod fetches its own.",
)
@click.option(
    "--label",
    "labels",
    default="",
    metavar="GPU=LABEL,...",
    help="Kubernetes node labels of GPU types, where they differ from the catalog's.",
)
@alternative_option
@force_option
@console_options
@pass_console
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
    or a fleet file. The files are first read back and checked against the plan: if they break a rule, one
    sentence says so, and nothing is written.

    With --check, each changed place of the files in DIR is one line of output. Below them stand the rules
    that the files then break, each once. Files that are not of this plan have a line of their own. Exits with
    2 if there is any fault.
    """
    from pdplan.api import deployment_options
    from reports.deploy.describe import describe
    from reports.deploy.files import planned_target, write_deployment
    from reports.deploy.readme import scattered_words
    from reports.next_steps import Deployability, deploy_sentence

    plan = read_fleet(file, alternative)
    if check is not None:
        _check(console, plan, check, options["target"])
        return
    if output is None:
        raise click.UsageError("give -o DIR to write a deployment, or --check DIR to check one")
    force, labels = options.pop("force"), pairs(options.pop("labels"), "--label")
    settings = deployment_options(plan, label=labels, **options)
    files = write_deployment(plan, settings, output, force=force)
    deployment = describe(plan, settings)
    if deployment.demand.sessions and (warning := scattered_words(deployment)):
        console.warn(warning)
    if options["target"] is None and settings.target != planned_target(plan):
        console.note(deploy_sentence(plan, Deployability.of(plan).targets))
    console.note(f"wrote {len(files)} files to {output}")
    console.note(f"Next: {output / 'README.md'} says how to start it")


def _check(console: Console, plan: Plan, directory: Path, target: str | None) -> None:
    """Say what is wrong with a deployment that was written earlier, with the options that it was written with.

    target: what it has to be for, None: any.
    """
    from costmodel.words import plural
    from reports.deploy.checking import AS_WRITTEN, checked_directory

    context = click.get_current_context()
    for parameter in context.command.params:
        is_set = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if is_set and parameter.expose_value and parameter.name not in {"file", "check", "target", "alternative"}:
            raise click.UsageError(f"--check takes the other options from DIR; leave out {parameter.opts[-1]}")
    result = checked_directory(plan, directory, target=target)
    if result.strays:
        console.show(_left_aside(result.strays))
    if not result.faults:
        console.show(f"{directory} deploys {shown(plan.name)} as it was evaluated")
        return
    for sentence in result.differs:
        console.show(f"{AS_WRITTEN}: {sentence}")
    for rule, sentence in result.breaks:
        console.show(f"{'  ' if result.differs else ''}{rule}: {sentence}")
    rules = len(result.breaks) if result.differs else 0
    broken = f"; {plural(rules, 'rule')} {'is' if rules == 1 else 'are'} broken" if rules else ""
    raise InputError(
        f"{directory} does not deploy {shown(plan.name)} as it was evaluated: {plural(result.faults, 'fault')}{broken}"
    )


def _left_aside(strays: list[str]) -> str:
    """Name the files that are not the plan's, in one line."""
    from costmodel.words import plural
    from reports.text import clean

    more = f" and {len(strays) - MOST_STRAYS:,} more" if len(strays) > MOST_STRAYS else ""
    names = ", ".join(clean(name, 200) for name in strays[:MOST_STRAYS])
    count = f"{plural(len(strays), 'file')} there {'are' if len(strays) > 1 else 'is'} not of this plan"
    return f"{count}, and are applied with the whole folder: {names}{more}"
