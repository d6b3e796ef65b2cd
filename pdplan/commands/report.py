"""`pdplan report` and `pdplan compare`: view a plan again, or the difference of two."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import click

from costmodel.errors import InputError
from pdplan.console import Console
from pdplan.files import check_files, read_plan, show_view, view_of, view_options
from pdplan.options import PATH, alternative_option, console_options, force_option, pass_console


@click.command(short_help="View a plan.json again, as text, HTML, Markdown or JSON.")
@click.argument("file", type=PATH)
@view_options
@alternative_option
@force_option
@console_options
@pass_console
def report(
    console: Console, /, *, file: Path, output: Path | None, view: str | None, alternative: int, force: bool
) -> None:
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

    view = view or view_of(output)
    rival = "" if view == "json" else "its view"
    check_files({"-o": output}, {"FILE": file}, force=force, rival=rival)
    plan = read_plan(file, alternative)
    following = f"pdplan simulate {quote(str(file))} --alternative {alternative}" if alternative > 1 else None
    brief = view == "text" and output is None and not console.verbose
    document = plan_document(plan, brief=brief, next_step=following if view == "text" else "")
    show_view(console, view, document, plan_record(plan), output, name="plan", force=force, rival=rival)


@click.command(short_help="Compare two plan.json: price, fleet, SLOs, settings, inputs.")
@click.argument("before", type=PATH)
@click.argument("after", type=PATH, required=False)
@alternative_option
@view_options
@force_option
@console_options
@pass_console
def compare(
    console: Console, /, *, before: Path, after: Path | None, alternative: int, view: str | None, **options: Any
) -> None:
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

    output, force = options["output"], options["force"]
    view, rival = view or view_of(output), "the comparison"
    check_files({"-o": output}, {"BEFORE": before, "AFTER": after}, force=force, rival=rival)
    if after is None and alternative == 1:
        raise InputError("AFTER: name a second plan, or one of BEFORE's own alternatives with --alternative N")
    comparison = compare_plans(read_plan(before), read_plan(after or before, alternative))
    document, record = comparison_document(comparison), comparison_record(comparison)
    show_view(console, view, document, record, output, name="comparison", force=force, rival=rival)
