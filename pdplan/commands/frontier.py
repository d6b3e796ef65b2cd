"""`pdplan frontier`: cost against demand or SLO."""

from __future__ import annotations

from pathlib import Path

import click

from pdplan.console import Console, part_of
from pdplan.files import check_files, random_arrivals, show_answer, write_page
from pdplan.options import (
    PATH,
    Choice,
    console_options,
    force_option,
    json_option,
    parse_settings,
    pass_console,
    prices_option,
    set_option,
    verify_option,
)

from .whatif_answers import bounds_of

OVER = ("rate", "ttft", "tpot", "attainment", "budget")
"""Values of `optimizer.whatif.frontier.OVER`, which is slow to import."""
LOOKING = 0.6
"""Share of the work that is done when the looks begin."""


@click.command(short_help="Draw the least cost against rate, TTFT, TPOT, attainment or budget.")
@click.argument("file", type=PATH)
@click.option("--over", type=Choice(OVER), required=True, help="Quantity that the least cost is drawn against.")
@click.option(
    "--between",
    metavar="LOW:HIGH",
    help="Range of the curve, such as 300ms:2s, 5/s:40/s or 20:80 ($/h); default: from 1/4 to 4 times the "
    "value in FILE, attainment from 50% to 99.9%.",
)
@verify_option(12)
@click.option("--csv", "csv_file", type=PATH, metavar="OUT", help="Write a row per step of the curve, as CSV.")
@click.option("--html", "html_file", type=PATH, metavar="OUT", help="Write a page with the curve.")
@prices_option
@set_option
@json_option
@force_option
@console_options
@pass_console
def frontier(
    console: Console,
    /,
    *,
    file: Path,
    over: str,
    between: str | None,
    looks: int,
    csv_file: Path | None,
    html_file: Path | None,
    prices: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    force: bool,
) -> int:
    """Examples:

    \b
      pdplan frontier workload.yaml --over rate
      pdplan frontier workload.yaml --over ttft --between 300ms:4s --csv ttft.csv
      pdplan frontier workload.yaml --over budget --between 20:80 --json

    Finds the cheapest fleet of one or two pools for every value in the range. The curve is a staircase,
    as replicas are whole. By formula each step ends where its fleet misses the SLO, exact to 0.01 %; a
    fleet that is cheapest over less than 1 % is left out. With several SLO classes, all their limits are
    scaled together. Over the budget, it shows the most demand that each budget serves.

    Up to --verify steps are simulated where they end: first the ends of the curve, then those before its
    largest jumps. A fleet that misses there ends where it was simulated to meet the SLO, to 1 %, and the
    next one takes over. At the value in FILE the whole search of pdplan optimize runs, so the curve is
    never above its answer there.

    Exits with 3 when no value in the range has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from optimizer.whatif.frontier import frontier as curve_over
    from optimizer.whatif.frontier import ramp_of, with_looks
    from reports.answers.frontier import QUESTIONS, frontier_document, frontier_record, frontier_rows
    from reports.answers.whatif import whatif_document
    from reports.tidy import rows_csv
    from search_spaces.loader import load_problem

    check_files({"--csv": csv_file, "--html": html_file}, {"FILE": file}, force=force)
    problem = random_arrivals(console, load_problem(file, overrides=parse_settings(settings, prices=prices)))
    base, remarks = file.resolve().parent, price_remarks(problem)
    unit = over if over == "budget" else ramp_of(problem, base, over).key
    bounds = None if between is None else bounds_of(between, "--between", unit)
    with console.milestones() as progress:
        curve = curve_over(problem, base, over, bounds, progress=part_of(progress, 0.0, LOOKING))
        curve = with_looks(problem, base, over, curve, looks=looks, progress=part_of(progress, LOOKING, 1.0))
    record = {"schema": "pdplan.frontier/2", "file": str(file)} | frontier_record(curve) | {"price_remarks": remarks}
    document = whatif_document([frontier_document(curve)], remarks, (QUESTIONS[over], problem.name))
    write_page(console, csv_file, lambda: rows_csv(frontier_rows(curve)), force=force)
    return show_answer(console, document, record, page=html_file, as_json=as_json, force=force)
