"""`pdplan compare`: the difference of two plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdplan.console import Console
from pdplan.options import PATH, console_options, force_option, pass_console
from pdplan.plan_files import read_plan
from pdplan.views import check_files, show_or_write, view_of, view_options

if TYPE_CHECKING:
    from reports.comparison import Comparison


@click.command(short_help="Compare two plan.json: price, fleet, SLOs, settings, inputs.")
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@view_options
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

    Says how much more or less the second plan costs, which pools the difference comes from, and what
    else differs: attainment and latencies, engine settings, inputs.
    """
    from reports.comparison import compare as compare_plans

    view, rival = view or view_of(output), "the comparison"
    check_files({"-o": output}, {"BEFORE": before, "AFTER": after}, force=force, rival=rival)
    found = compare_plans(read_plan(before), read_plan(after))
    show_or_write(console, _render(console, found, view, to_file=output is not None), output, force=force, rival=rival)


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
