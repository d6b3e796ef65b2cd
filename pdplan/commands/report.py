"""`pdplan report` and `pdplan compare`: view a plan again, or the difference of two."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from pdplan.console import Console
from pdplan.files import check_files, read_plan, show_or_write, view_of, view_options
from pdplan.options import PATH, alternative_option, console_options, force_option, pass_console

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan
    from reports.answers.comparison import Comparison


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
    view = view or view_of(output)
    rival = "" if view == "json" else "its view"
    check_files({"-o": output}, {"FILE": file}, force=force, rival=rival)
    following = f"pdplan simulate {quote(str(file))} --alternative {alternative}" if alternative > 1 else None
    plan = read_plan(file, alternative)
    text = render(console, plan, view, to_file=output is not None, next_step=following)
    show_or_write(console, text, output, force=force, rival=rival)


def render(console: Console, plan: Plan, view: str, *, to_file: bool, next_step: str | None = None) -> str:
    """Give the plan as text, HTML, Markdown or JSON; next_step: see `plan_document`."""
    if view == "html":
        from reports.answers.plan import plan_page as render_html

        return render_html(plan)
    if view == "md":
        from reports.answers.plan import plan_document
        from reports.views.markdown import render_document

        return render_document(plan_document(plan, next_step=""))
    if view == "json":
        from reports.json_text import plan_json

        return plan_json(plan)
    from reports.answers.plan import plan_document
    from reports.views import terminal

    document = plan_document(plan, brief=not (console.verbose or to_file), next_step=next_step)
    return terminal.render_document(document, console.width, color=console.colored and not to_file)


@click.command(short_help="Compare two plan.json: price, fleet, SLOs, settings, inputs.")
@click.argument("before", type=PATH)
@click.argument("after", type=PATH, required=False)
@alternative_option
@view_options
@force_option
@console_options
@pass_console
def compare(
    console: Console,
    /,
    *,
    before: Path,
    after: Path | None,
    alternative: int,
    output: Path | None,
    view: str | None,
    force: bool,
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

    view, rival = view or view_of(output), "the comparison"
    check_files({"-o": output}, {"BEFORE": before, "AFTER": after}, force=force, rival=rival)
    if after is None and alternative == 1:
        raise InputError("AFTER: name a second plan, or one of BEFORE's own alternatives with --alternative N")
    found = compare_plans(read_plan(before), read_plan(after or before, alternative))
    show_or_write(
        console, _compared(console, found, view, to_file=output is not None), output, force=force, rival=rival
    )


def _compared(console: Console, found: Comparison, view: str, *, to_file: bool) -> str:
    from reports.answers.comparison import comparison_document, comparison_record
    from reports.json_text import json_text
    from reports.views import html, markdown, terminal

    if view == "json":
        return json_text(comparison_record(found))
    document = comparison_document(found)
    if view == "html":
        return html.render_document(document, comparison_record(found), "comparison")
    if view == "md":
        return markdown.render_document(document)
    return terminal.render_document(document, console.width, color=console.colored and not to_file)
