"""`pdplan compare`: the difference of two plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from pdplan.console import Console
from pdplan.options import PATH, alternative_option, console_options, force_option, pass_console
from pdplan.plan_files import read_plan
from pdplan.views import check_files, show_or_write, view_of, view_options

if TYPE_CHECKING:
    from reports.answers.comparison import Comparison


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
    show_or_write(console, _render(console, found, view, to_file=output is not None), output, force=force, rival=rival)


def _render(console: Console, found: Comparison, view: str, *, to_file: bool) -> str:
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
