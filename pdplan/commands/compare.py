"""`pdplan compare`: the difference of two plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from pdplan.commands.report import view_of
from pdplan.console import Console, write_text
from pdplan.options import PATH, console_options, force_option, pass_console
from pdplan.plan_files import is_plan, read_plan

if TYPE_CHECKING:
    from reports.comparison import Comparison


@click.command(short_help="Compare two plan.json: price, fleet, SLOs, settings, inputs.")
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
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
def compare(
    console: Console, /, *, before: Path, after: Path, output: Path | None, view: str | None, force: bool
) -> None:
    """Examples:

    \b
      pdplan compare old/plan.json new/plan.json
      pdplan compare old/plan.json new/plan.json --format md
      pdplan compare old/plan.json new/plan.json -o difference.html

    Says what the second plan costs more or less than the first, which pools the difference comes
    from, and what else differs: attainment and latencies, engine settings, inputs.
    """
    from reports.comparison import compare as compare_plans

    found = compare_plans(read_plan(before), read_plan(after))
    text = _render(console, found, view or view_of(output), to_file=output is not None)
    if output is None:
        console.show(text)
        return
    if is_plan(output):
        raise InputError(f"{output} is a plan, which the comparison would replace; choose another name")
    write_text(output, text, force=force)
    console.note(f"wrote {output}")


def _render(console: Console, found: Comparison, view: str, *, to_file: bool) -> str:
    from reports.comparison_html import comparison_json, render_comparison
    from reports.comparison_text import render_markdown, render_text

    if view == "html":
        return render_comparison(found)
    if view == "md":
        return render_markdown(found)
    if view == "json":
        return comparison_json(found)
    return render_text(found, width=console.width, color=console.colored and not to_file)
