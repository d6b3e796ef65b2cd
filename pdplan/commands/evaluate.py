"""`pdplan evaluate`: what the fleet that runs today attains, lacks or has to spare."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from pdplan.commands.optimize import no_empty_folder, stamped
from pdplan.console import Console
from pdplan.exit_codes import ExitCode
from pdplan.options import (
    PATH,
    Choice,
    confidence_option,
    console_options,
    json_option,
    parse_settings,
    pass_console,
    set_option,
)
from pdplan.plan_files import read_plan
from search_spaces.files import shown_path

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan
    from search_spaces.fleet_file import StatedFleet

SEARCHES = ("none", "quick", "standard")
"""How the cheapest fleet is sought beside the stated one: not at all, or by such a level of `optimize`."""


@click.command(short_help="Evaluate the fleet that runs today, and find the cheapest.")
@click.argument("file", type=PATH)
@click.option("--fleet", "fleet_file", type=PATH, metavar="FLEET", help="Fleet file; FILE is then the workload.")
@click.option("-o", "--output", type=PATH, metavar="DIR", help="Write evaluation.json to DIR.")
@click.option(
    "--effort",
    type=Choice(SEARCHES),
    default="standard",
    show_default=True,
    help="Effort of the search for the cheapest fleet; none skips it.",
)
@confidence_option
@set_option
@json_option
@click.option("--force", is_flag=True, help="Replace a file in DIR that pdplan did not write.")
@console_options
@pass_console
def evaluate(
    console: Console,
    /,
    *,
    file: Path,
    fleet_file: Path | None,
    output: Path | None,
    effort: str,
    confidence: float | None,
    settings: tuple[str, ...],
    as_json: bool,
    force: bool,
) -> int:
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
    from optimizer.recommend.evaluate import evaluate as judge
    from reports.answers.evaluation import evaluation_document, evaluation_json
    from reports.whole_files import EVALUATION_FILE, check_directory, write_whole

    subject = _subject(file, fleet_file, parse_settings(settings, confidence=confidence))
    with no_empty_folder(output):
        if output is not None:
            check_directory(output, (EVALUATION_FILE,), force=force)
        with console.milestones() as progress:
            evaluation = judge(subject, progress, level=None if effort == "none" else effort, base=file.parent)
        best = None if evaluation.cheapest is None else stamped(evaluation.cheapest, console.command)
        evaluation = evaluation.model_copy(update={"plan": stamped(evaluation.plan, console.command), "cheapest": best})
        text = evaluation_json(evaluation)
        if output is not None:
            write_whole({output / EVALUATION_FILE: text})
            console.note(f"wrote {output / EVALUATION_FILE}")
    if as_json:
        console.show(text)
    else:
        then = f"pdplan resilience {quote(str(file))}"
        if fleet_file is not None:
            then = f"pdplan optimize {quote(str(file))} -o plan"
        elif evaluation.outcome != "meets":
            then = f"change {quote(str(file))}, then run again"
        console.show(evaluation_document(evaluation, next_step=then))
    return 0 if evaluation.outcome == "meets" else ExitCode.INFEASIBLE


def _subject(file: Path, fleet_file: Path | None, overrides: dict[str, str]) -> StatedFleet | Plan:
    """The fleet that was named: of a fleet file, or of a plan."""
    from search_spaces.fleet_file import is_fleet_file, load_fleet

    if fleet_file is not None:
        return load_fleet(fleet_file, file, overrides)
    if is_fleet_file(file):
        return load_fleet(file, overrides=overrides)
    if file.suffix.lower() in {".yaml", ".yml"}:
        raise InputError(
            f"{shown_path(file)}: states no pools, so it is not a fleet file (pdplan init --fleet writes one); if it "
            "is a workload, name the fleet with --fleet"
        )
    if overrides:
        raise InputError(
            "--set and --confidence change the workload of a fleet file; a plan is evaluated as it was made"
        )
    return read_plan(file)
