"""`pdplan map`: where disaggregation pays, over two levers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from costmodel.quoting import shown
from pdplan.console import Console
from pdplan.files import check_files, random_arrivals, show_answer, write_page
from pdplan.options import (
    PATH,
    console_options,
    force_option,
    json_option,
    parse_settings,
    pass_console,
    prices_option,
    set_option,
    verify_option,
    whole,
)

from .whatif_answers import JOBS, swept

if TYPE_CHECKING:
    from search_spaces.problem import Problem
    from search_spaces.scenarios import Axis

LENGTHS = ("isl", "osl", "isl_scale", "osl_scale")
"""Levers that lengthen requests."""
VALUES = 5
"""Of a lever whose values are not stated, evenly spaced in the logarithm."""


@click.command("map", short_help="Map where disaggregation pays, over two levers such as isl and rate.")
@click.argument("file", type=PATH)
@click.option(
    "--over", "levers", multiple=True, required=True, metavar="KEY[=SPEC],…",
    help="Two levers, the first down, the second across; SPEC as of pdplan whatif --vary (LOW:HIGH:COUNT, "
    "LOW:HIGH:COUNT:log or VALUE,VALUE); default: 5 values from 1/4 to 4 times what FILE has.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="Search fleets of any number of pools for each cell: seconds per fleet.")
@verify_option(0)
@click.option("--csv", "csv_file", type=PATH, metavar="OUT", help="Write a row per cell and shape of fleet, as CSV.")
@click.option("--html", "html_file", type=PATH, metavar="OUT", help="Write a page with the heat map.")
@click.option("--jobs", type=whole(JOBS), metavar="N", help="Processes that solve the map; default: one per core.")
@prices_option
@set_option
@json_option
@force_option
@console_options
@pass_console
def map_command(
    console: Console,
    /,
    *,
    file: Path,
    levers: tuple[str, ...],
    full: bool,
    looks: int,
    csv_file: Path | None,
    html_file: Path | None,
    jobs: int | None,
    prices: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    force: bool,
) -> int:
    """Examples:

    \b
      pdplan map workload.yaml --over isl,rate
      pdplan map workload.yaml --over isl=500:8000:5:log --over rate=5:80:5:log --html map.html --csv map.csv
      pdplan map workload.yaml --over ttft=300ms,1s,3s --over osl=100,400,1600 --verify 8

    For each combination of two levers, finds the cheapest colocated and the cheapest disaggregated fleet
    of the GPU types in FILE. Shows which is cheaper, by how much, and with which GPUs. All levers of
    pdplan whatif may vary; isl and osl are the mean tokens of prompts and outputs.

    Fleets are found by formula. Up to --verify of them are simulated, and those that miss an SLO are
    replaced.

    Exits with 3 when no combination has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from optimizer.whatif.scenario import Depth
    from optimizer.whatif.sweep import check_scenarios, sweep_of
    from reports.answers.fleet_map import ROLES, SHAPES, map_document, map_record, map_rows
    from reports.answers.whatif import whatif_document
    from reports.tidy import rows_csv
    from search_spaces.loader import load_problem
    from search_spaces.scenarios import Axis, grid

    check_files({"--csv": csv_file, "--html": html_file}, {"FILE": file}, force=force)
    problem = random_arrivals(console, load_problem(file, overrides=parse_settings(settings, prices=prices)))
    base, axes = file.resolve().parent, axes_of(problem, levers)
    scenarios = list(grid([*axes, Axis(ROLES, tuple(map(list, SHAPES.values())))]))
    check_scenarios(problem, base, scenarios)
    depth, keys = Depth.FULL if full else Depth.SIMPLE, [axis.key for axis in axes]
    sweep = sweep_of(problem, base, scenarios, [*keys, ROLES], depth, gap=False, looks=0 if full else looks)
    rows = swept(console, sweep, jobs)
    remarks = price_remarks(problem)
    record = {"schema": "pdplan.map/1", "file": str(file)} | map_record(keys, rows) | {"price_remarks": remarks}
    about = ("Where does disaggregation pay?", problem.name)
    document = whatif_document([map_document(keys, rows, depth.value)], remarks, about)
    write_page(console, csv_file, lambda: rows_csv(map_rows(keys, rows)), force=force)
    return show_answer(console, document, record, page=html_file, as_json=as_json, force=force)


def axes_of(problem: Problem, levers: tuple[str, ...]) -> list[Axis]:
    """The two axes: stated, or around the values that the problem has.

    Raises InputError where there are not two axes, or where an axis has no value in the problem and none is stated.
    """
    from optimizer.whatif.break_even import usual_range
    from optimizer.whatif.scenario import own_value
    from search_spaces.levers import LEVERS
    from search_spaces.scenarios import parse_axis

    # a comma parts two levers, unless it parts two values of one: isl,rate and isl=1,2,rate=3,4
    parts = [part.strip() for text in levers for part in re.split(r",(?=[^,=]*=)" if "=" in text else ",", text)]
    if len(parts) != 2 or not all(parts):
        raise InputError(f"--over takes two levers, such as isl,rate; found {len(parts)}: {shown(', '.join(parts))}")
    axes = []
    for part in parts:
        if "=" in part:
            axes.append(parse_axis(part))
            continue
        lever = LEVERS.get(part.partition(".")[0])
        if lever is not None and own_value(problem, part) is None:
            raise InputError(f"--over {part}: the file has no value of it; state some, such as --over {lever.example}")
        low, high = usual_range(problem, part)
        if part in LENGTHS and problem.model.max_position:  # no prompt outgrows the model's context
            high = min(high, 4.0 * low * problem.model.max_position / problem.workload.max_tokens)
        axes.append(parse_axis(f"{part}={low!r}:{high!r}:{VALUES}:log"))
    return axes
