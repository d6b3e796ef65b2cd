"""`pdplan report`: view a plan again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from pdplan.console import Console, write_text
from pdplan.options import PATH, console_options, force_option, pass_console
from pdplan.plan_files import is_plan, read_plan

if TYPE_CHECKING:
    from optimizer.plan import Plan


@click.command(short_help="View a plan.json again, as text, HTML, Markdown or JSON.")
@click.argument("file", type=PATH)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write to FILE, not to stdout.")
@click.option(
    "--format",
    "view",
    type=click.Choice(["text", "html", "md", "json"]),
    help="Default: by the ending of -o, or text on stdout.",
)
@force_option
@console_options
@pass_console
def report(console: Console, file: Path, output: Path | None, view: str | None, force: bool) -> None:
    """Examples:

    \b
      pdplan report plan/plan.json
      pdplan report plan/plan.json -o report.html
      pdplan report plan/plan.json --format md

    Shows a plan that `pdplan optimize -o` wrote earlier. Nothing is computed anew. Markdown is
    for a pull request: verdict, fleet, SLOs, alternatives, and the command that gives it again.
    """
    view = view or view_of(output)
    plan = read_plan(file)
    text = render(console, plan, view, to_file=output is not None)
    if output is None:
        console.show(text)
        return
    if view != "json" and is_plan(output):
        raise InputError(f"{output} is a plan, which its view would replace; choose another name")
    write_text(output, text, force=force)
    console.note(f"wrote {output}")


def view_of(output: Path | None) -> str:
    """Tell the view that the ending of a file asks for."""
    endings = {".html": "html", ".htm": "html", ".json": "json", ".md": "md", ".txt": "text", "": "text"}
    ending = output.suffix.lower() if output else ""
    if ending not in endings:
        raise InputError(
            f"-o {output}: no view ends in {ending}; end it in .html, .md, .json or .txt, or state --format"
        )
    return endings[ending]


def render(console: Console, plan: Plan, view: str, *, to_file: bool) -> str:
    """Give the plan as text, HTML, Markdown or JSON."""
    if view == "html":
        from reports.html import render_plan as render_html

        return render_html(plan)
    if view == "md":
        from reports.markdown import render_plan as render_markdown

        return render_markdown(plan)
    if view == "json":
        from reports.json_text import plan_json

        return plan_json(plan)
    from reports.terminal import render_plan as render_text

    return render_text(plan, width=console.width, color=console.colored and not to_file)
