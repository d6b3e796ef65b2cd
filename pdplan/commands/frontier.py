"""`pdplan frontier` and `pdplan map`: the least cost over one lever, and where disaggregation pays over two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodel.errors import InputError
from costmodel.quoting import shown
from pdplan.commands.whatif import JOBS, bounds_of, swept
from pdplan.console import Console
from pdplan.files import Output, answer_options, random_problem
from pdplan.options import (
    PATH,
    Choice,
    prices_option,
    set_option,
    verify_option,
    whole,
)

if TYPE_CHECKING:
    from search_spaces.problem import Problem
    from search_spaces.scenarios import Axis

OVER = ("rate", "ttft", "tpot", "attainment", "budget")
"""Values of `optimizer.whatif.frontier.OVER`, which is slow to import."""


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
@answer_options(
    "Write a page with the curve.", prices_option, set_option, rows="Write a row per step of the curve, as CSV."
)
def frontier(
    console: Console,
    /,
    *,
    file: Path,
    over: str,
    between: str | None,
    looks: int,
    prices: str | None,
    settings: tuple[str, ...],
    output: Output,
) -> int:
    """Examples:

    \b
      pdplan frontier workload.yaml --over rate
      pdplan frontier workload.yaml --over ttft --between 300ms:4s --csv ttft.csv
      pdplan frontier workload.yaml --over budget --between 20:80 --json

    Finds the fleet of pdplan optimize --effort quick for every value in the range. The curve is a
    staircase, as replicas are whole. By formula each step ends where its fleet misses the SLO, exact to
    0.01 %; a fleet that is cheapest over less than 1 % is left out. With several SLO classes, all their
    limits are scaled together. Over the budget, it shows the most demand that each budget serves.

    Up to --verify steps are simulated where they end: first the ends of the curve, then those before its
    largest jumps. A fleet that misses there ends where it was simulated to meet the SLO, to 1 %, and the
    next one takes over. At the value in FILE the whole search of pdplan optimize runs, so the curve is
    never above its answer there.

    Exits with 3 when no value in the range has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from optimizer.whatif.frontier import frontier as curve_over
    from optimizer.whatif.frontier import ramp_of
    from reports.answers.frontier import QUESTIONS, frontier_document, frontier_record, frontier_rows
    from reports.answers.whatif import whatif_document

    output.check(FILE=file)
    problem = random_problem(console, file, settings, prices)
    base, remarks = file.resolve().parent, price_remarks(problem)
    unit = over if over == "budget" else ramp_of(problem, base, over).key
    bounds = None if between is None else bounds_of(between, "--between", unit)
    with console.milestones() as progress:
        curve = curve_over(problem, base, over, bounds, looks=looks, progress=progress)
    record = {"schema": "pdplan.frontier/2", "file": str(file)} | frontier_record(curve) | {"price_remarks": remarks}
    document = whatif_document([frontier_document(curve)], remarks, (QUESTIONS[over], problem.name))
    return output.show(console, document, record, frontier_rows(curve))


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
@click.option("--full", is_flag=True, help="Search fleets of any number of pools, as it is done for up to 32 cells.")
@verify_option(0)
@answer_options(
    "Write a page with the heat map.",
    click.option("--jobs", type=whole(JOBS), metavar="N", help="Processes that solve the map; default: one per core."),
    prices_option,
    set_option,
    rows="Write a row per cell and shape of fleet, as CSV.",
)
def map_command(
    console: Console,
    /,
    *,
    file: Path,
    levers: tuple[str, ...],
    full: bool,
    looks: int,
    jobs: int | None,
    prices: str | None,
    settings: tuple[str, ...],
    output: Output,
) -> int:
    """Examples:

    \b
      pdplan map workload.yaml --over isl,rate
      pdplan map workload.yaml --over isl=500:8000:5:log --over rate=5:80:5:log --html map.html --csv map.csv
      pdplan map workload.yaml --over ttft=300ms,1s,3s --over osl=100,400,1600 --verify 8

    For each combination of two levers, finds the cheapest colocated and the cheapest disaggregated fleet
    of the GPU types in FILE. Shows which is cheaper, by how much, and with which GPUs. All levers of
    pdplan whatif may vary; isl and osl are the mean tokens of prompts and outputs.

    Fleets are found by formula, as pdplan optimize --effort quick does; in a map of more than 32 cells,
    of one or two pools. Up to --verify of them are simulated, and those that miss an SLO are replaced.

    Exits with 3 when no combination has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from optimizer.whatif.answer import Effort
    from optimizer.whatif.sweep import check_scenarios, sweep_of
    from reports.answers.frontier import ROLES, SHAPES, map_document, map_record, map_rows
    from reports.answers.whatif import whatif_document
    from search_spaces.scenarios import Axis, grid

    output.check(FILE=file)
    problem = random_problem(console, file, settings, prices)
    base, axes = file.resolve().parent, axes_of(problem, levers)
    scenarios = list(grid([*axes, Axis(ROLES, tuple(map(list, SHAPES.values())))]))
    check_scenarios(problem, base, scenarios)
    keys = [axis.key for axis in axes]
    effort = Effort.FULL if full else None
    sweep = sweep_of(problem, base, scenarios, [*keys, ROLES], effort, gap=False, looks=looks)
    rows = swept(console, sweep, jobs)
    remarks = price_remarks(problem)
    record = {"schema": "pdplan.map/1", "file": str(file)} | map_record(keys, rows) | {"price_remarks": remarks}
    about = ("Where does disaggregation pay?", problem.name)
    document = whatif_document([map_document(keys, rows, sweep.solver.effort.value)], remarks, about)
    return output.show(console, document, record, map_rows(keys, rows))


def axes_of(problem: Problem, levers: tuple[str, ...]) -> list[Axis]:
    """The two axes: stated, or around the values that the problem has.

    Raises InputError where there are not two axes, or where an axis has no value in the problem and none is stated.
    """
    from optimizer.whatif.answer import own_value
    from optimizer.whatif.break_even import usual_range
    from search_spaces.levers import LEVERS
    from search_spaces.scenarios import parse_axis

    # a comma parts two levers, unless it parts two values of one: isl,rate and isl=1,2,rate=3,4
    words = [word.strip() for text in levers for word in re.split(r",(?=[^,=]*=)" if "=" in text else ",", text)]
    if len(words) != 2 or not all(words):
        raise InputError(f"--over takes two levers, such as isl,rate; found {len(words)}: {shown(', '.join(words))}")
    axes = []
    for word in words:
        if "=" in word:
            axes.append(parse_axis(word))
            continue
        lever = LEVERS.get(word.partition(".")[0])
        if lever is not None and own_value(problem, word) is None:
            raise InputError(f"--over {word}: the file has no value of it; state some, such as --over {lever.example}")
        low, high = usual_range(problem, word)
        if word in LENGTHS and problem.model.max_position:  # no prompt outgrows the model's context
            high = min(high, 4.0 * low * problem.model.max_position / problem.workload.max_tokens)
        axes.append(parse_axis(f"{word}={low!r}:{high!r}:{VALUES}:log"))
    return axes
