"""`pdplan deploy`: the files that run what a plan evaluated."""

from __future__ import annotations

from pathlib import Path

import click

from costmodel.errors import InputError
from pdplan.console import Console
from pdplan.options import PATH, console_options, force_option, pairs, pass_console
from pdplan.plan_files import read_plan

TARGETS = ("vllm", "dynamo", "llmd", "sglang", "trtllm")


@click.command(short_help="Write the files that run what a plan evaluated.")
@click.argument("file", type=PATH)
@click.option("-t", "--target", type=click.Choice(TARGETS), help="Default: the plain target of the plan's engine.")
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="Directory to write, new or empty.")
@click.option(
    "--engine-version", "version", metavar="VERSION", help="Version of the target; default: the newest known."
)
@click.option("--model", "weights", metavar="NAME", help="Weights to load: a Hugging Face id, or a folder.")
@click.option("--image", metavar="IMAGE", help="Container image of the engines, instead of the target's own.")
@click.option("--namespace", default="default", show_default=True, metavar="NAME", help="Kubernetes namespace.")
@click.option("--rdma", default="rdma/ib", show_default=True, metavar="RESOURCE", help="Name of the RDMA resource.")
@click.option(
    "--label", "labels", default="", metavar="GPU=LABEL,...", help="Node labels that differ from the catalog's."
)
@click.option(
    "--api",
    type=click.Choice(["v1beta1", "v1alpha1"]),
    default="v1beta1",
    show_default=True,
    help="Of Dynamo's resource.",
)
@force_option
@console_options
@pass_console
def deploy(
    console: Console,
    file: Path,
    *,
    target: str | None,
    output: Path,
    version: str | None,
    weights: str | None,
    image: str | None,
    namespace: str,
    rdma: str,
    labels: str,
    api: str,
    force: bool,
) -> None:
    """Examples:

    \b
      pdplan deploy plan/plan.json -o deploy
      pdplan deploy plan/plan.json --target dynamo -o deploy --namespace serving
      pdplan deploy plan/plan.json --target llmd --engine-version 0.31.0 --model my-org/my-model -o deploy

    Writes configuration for every engine with exactly the settings that were
    evaluated, the router, a page that says why each setting is there, and a
    benchmark that replays the planned workload. The files are read back and
    checked against the plan first; a rule that they break is one sentence,
    and nothing is written.
    """
    from reports.deploy.description import Options
    from reports.deploy.facts import checked_version
    from reports.deploy.files import write_deployment

    plan = read_plan(file)
    target = target or plan.engine
    if target not in TARGETS:
        raise InputError(f"the plan's engine {target!r} is none of {', '.join(TARGETS)}; name a target with --target")
    options = Options(
        target=target,
        version=checked_version(target, version),
        model=weights,
        image=image,
        namespace=namespace,
        rdma=rdma,
        labels=pairs(labels, "--label"),
        api=api,
    )
    written = write_deployment(plan, options, output, force=force)
    console.note(f"wrote {len(written)} files to {output}")
    console.note(f"Next: {output / 'README.md'} says how to start it")
