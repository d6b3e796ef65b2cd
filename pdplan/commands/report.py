"""`pdplan report`: view a plan again."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from pdplan.console import Console
from pdplan.options import PATH, alternative_option, console_options, force_option, pass_console
from pdplan.plan_files import read_plan
from pdplan.views import check_files, show_or_write, view_of, view_options

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan


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
