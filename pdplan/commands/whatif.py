"""`pdplan whatif`: the questions that a buyer asks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError, UnknownNameError
from pdplan.console import Console
from pdplan.exit_codes import ExitCode
from pdplan.options import (
    PATH,
    console_options,
    force_option,
    json_option,
    parse_settings,
    pass_console,
    set_option,
    whole,
)
from pdplan.views import check_files
from search_spaces.bounds import Bounds

if TYPE_CHECKING:
    from optimizer.whatif.sweep import Row, Sweep
    from optimizer.whatif.whatif import Depth
    from search_spaces.problem import Problem
    from search_spaces.scenarios import Scenario

TOLERANCE = 1e-6
"""How exactly break-even values are found, as a share of the range."""
JOBS = Bounds(1, 4096, "jobs")


def share(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Turn 5% or 0.05 into a share below 1."""
    if value is None:
        return None
    text = value.strip()
    try:
        found = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise click.BadParameter(f"{value[:80]!r} is not a share such as 5% or 0.05") from None
    if not 0.0 < found < 1.0:
        raise click.BadParameter(f"{value[:80]!r} is not between 0% and 100%")
    return found


class WithLevers(click.Command):
    """A command whose help ends with all levers."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """An example of each lever, and what it changes."""
        from search_spaces.levers import LEVERS

        with formatter.section("Levers, as --vary takes them and `scenarios:` of FILE"):
            formatter.write_dl([(lever.example, lever.says) for lever in LEVERS.values()])


@click.command(cls=WithLevers, short_help="Sweep prices, demand, SLOs and limits; find where the best fleet changes.")
@click.argument("file", type=PATH)
@click.option(
    "--vary", "axes", multiple=True, metavar="KEY=SPEC",
    help="Values of a lever: LOW:HIGH:COUNT, LOW:HIGH:COUNT:log or VALUE,VALUE; several make a grid.",
)  # fmt: skip
@click.option(
    "--scenario", "names", multiple=True, metavar="NAME", help="A scenario that FILE names; 'all' for every one."
)
@click.option("--break-even", "break_even", metavar="KEY", help="Values of a lever at which the best fleet changes.")
@click.option("--between", metavar="LOW:HIGH", help="Range of --break-even: 1:8, 300ms:2s; default: 1/4 to 4 times.")
@click.option("--shadow-prices", "shadow", is_flag=True, help="What one more GPU, dollar or watt of a limit is worth.")
@click.option("--tornado", "swing", callback=share, metavar="SHARE", help="Cost with each lever so much lower, higher.")
@click.option("--slack", callback=share, metavar="SHARE", help="Fleets so much dearer without a GPU type: 5%.")
@click.option("--gap/--no-gap", "gap", default=None, help="Bound what other fleets could save; default: where quick.")
@click.option("--full", is_flag=True, help="Search all fleets and bound each gap: seconds per scenario.")
@click.option("--simulate", "simulated", is_flag=True, help="The same, and prove each fleet by simulation.")
@click.option("--csv", "csv_file", type=PATH, metavar="OUT", help="Write a row per scenario.")
@click.option("--parquet", "parquet_file", type=PATH, metavar="OUT", help="The same as Parquet (needs pyarrow).")
@click.option("--html", "html_file", type=PATH, metavar="OUT", help="Write a page with heat maps of the cost.")
@click.option("--jobs", type=whole(JOBS), metavar="N", help="Processes; default: all cores.")
@click.option("--resume", "journal", type=PATH, metavar="LOG", help="Keep finished rows in LOG, and go on from there.")
@click.option("--backend", type=click.Choice(("local", "dask")), default="local", show_default=True, help="Who solves.")
@click.option("--address", metavar="ADDRESS", help="Dask's scheduler, e.g. tcp://10.0.0.7:8786.")
@set_option
@json_option
@force_option
@console_options
@pass_console
def whatif(
    console: Console,
    /,
    *,
    file: Path,
    axes: tuple[str, ...],
    names: tuple[str, ...],
    break_even: str | None,
    between: str | None,
    shadow: bool,
    swing: float | None,
    slack: float | None,
    gap: bool | None,
    full: bool,
    simulated: bool,
    csv_file: Path | None,
    parquet_file: Path | None,
    html_file: Path | None,
    jobs: int | None,
    journal: Path | None,
    backend: str,
    address: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    force: bool,
) -> int:
    """Examples:

    \b
      pdplan whatif workload.yaml --vary price.H200=1:8:8
      pdplan whatif workload.yaml --vary rate=5:80:16 --vary ttft=0.5s,1s,2s --csv sweep.csv
      pdplan whatif workload.yaml --break-even price.H200 --between 1:8 --tornado 20% --slack 5%

    Solves the workload in FILE once for every combination of values, on all cores: prices, demand,
    SLOs, limits, or any other value of FILE by its dotted path. The short names stand below.

    By default each scenario gets the cheapest fleet of one or two pools that the formulas say holds,
    and some of them, up to 16, a proof of what any other fleet could save, which the others share.
    A scenario without a fleet is a row that says what is in the way.

    Exits with 3 when no scenario has a fleet that meets the SLOs.
    """
    os.environ.setdefault("PDPLAN_SIMULATOR", "python")
    from optimizer.whatif.whatif import Bounds, Depth, check_scenarios, sweep_of
    from reports.whatif_text import sweep_text
    from search_spaces.loader import load_problem
    from search_spaces.scenarios import grid, parse_axis

    if (address is None) == (backend == "dask"):
        raise InputError("--address names Dask's scheduler: state it with --backend dask, and only there")
    files = {"--csv": csv_file, "--parquet": parquet_file, "--html": html_file}
    check_files(files, force=force)
    problem = load_problem(file, overrides=parse_settings(settings))
    varied = [parse_axis(axis) for axis in axes]
    if not (varied or names or break_even or shadow or swing is not None or slack is not None):
        raise InputError("nothing is asked; state --vary, such as --vary price.H200=1:8:8, --scenario or --break-even")
    depth = Depth.SIMULATED if simulated else Depth.FULL if full else Depth.SIMPLE
    record: dict[str, Any] = {
        "schema": "pdplan.whatif/1",
        "file": str(file),
        "search": depth.value,
        "simulated": simulated,
    }
    texts: list[str] = []
    base, found = file.resolve().parent, 0
    if varied or names:
        scenarios = list(grid(varied, chosen_scenarios(problem, names)))
        check_scenarios(problem, base, scenarios)
        bounds = {None: Bounds.SHARED, True: Bounds.EACH, False: Bounds.NONE}[gap]
        sweep = sweep_of(problem, base, scenarios, [axis.key for axis in varied], depth, bounds)
        rows = swept(console, sweep, jobs, journal, address)
        record["rows"] = rows
        write_tables(console, record, files, problem.name)
        texts.append(sweep_text(rows, depth.value, console.width))
        found += sum(row["cost_usd_per_hour"] is not None for row in rows)
    questions = Questions(break_even, between, shadow, swing, slack)
    for key, value, text, answered in asked(problem, base, depth, questions, console.width):
        record[key] = value
        texts.append(text)
        found += answered
    console.show(record if as_json else "\n\n".join(texts))
    return 0 if found else ExitCode.INFEASIBLE


@dataclass(frozen=True, slots=True)
class Questions:
    """What was asked besides a sweep."""

    break_even: str | None
    between: str | None
    shadow: bool
    swing: float | None
    slack: float | None


def asked(
    problem: Problem, base: Path, depth: Depth, questions: Questions, width: int
) -> Iterator[tuple[str, object, str, bool]]:
    """Each answer: its key in the JSON document, its record, its text, and whether there is any fleet."""
    from optimizer.whatif.near_optimal import near_optimal
    from optimizer.whatif.pieces import pieces_along, usual_range
    from optimizer.whatif.shadow import shadow_prices
    from optimizer.whatif.tornado import tornado
    from optimizer.whatif.whatif import solve
    from reports import whatif_answers as told

    if questions.break_even:
        usual = None if questions.between else usual_range(problem, questions.break_even)
        low, high = usual or bounds_of(questions.between or "", "--between", questions.break_even)
        pieces = pieces_along(problem, base, questions.break_even, low, high, TOLERANCE, depth)
        any_fleet = any(one.answer.cost is not None for one in pieces.pieces)
        yield "break_even", told.break_even_record(pieces), told.break_even_text(pieces, width), any_fleet
    if questions.shadow:
        here = solve(problem, base, depth)
        prices = [] if here.cost is None else shadow_prices(problem, base)
        text = told.shadow_text(prices, width) if here.cost is not None else told.no_fleet_text(here, width)
        yield "shadow_prices", told.shadow_record(prices), text, here.cost is not None
    if questions.swing is not None:
        rows = tornado(problem, base, questions.swing, depth)
        any_fleet = any(row.cost is not None for row in rows)
        yield "tornado", told.tornado_record(rows), told.tornado_text(rows, width), any_fleet
    if questions.slack is not None:
        others = near_optimal(problem, base, questions.slack)
        any_fleet = others[0].answer.cost is not None
        text = told.alternatives_text(others, questions.slack, width)
        yield "alternatives", told.alternatives_record(others), text, any_fleet


def bounds_of(text: str, flag: str, key: str) -> tuple[float, float]:
    """Read LOW:HIGH in units of a lever.

    >>> bounds_of("300ms:2s", "--between", "ttft")
    (0.3, 2.0)
    """
    from search_spaces.levers import number_of
    from search_spaces.quantities import QuantityError

    low, _, high = text.partition(":")
    try:
        found = number_of(key, low), number_of(key, high)
    except QuantityError as error:
        raise InputError(f"{flag} {text!r} is not LOW:HIGH in units of {key}: {error}") from None
    if not -math.inf < found[0] < found[1] < math.inf:
        raise InputError(f"{flag} {text!r}: LOW must be below HIGH, and both finite")
    return found


def chosen_scenarios(problem: Problem, names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names; all of the file's for 'all'."""
    from search_spaces.scenarios import named_scenarios

    known = named_scenarios(problem)
    if names and not known:
        raise InputError("--scenario: the file names no scenarios; state them under `scenarios:`, or use --vary")
    if "all" in names and "all" not in known:
        return list(known.values())
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise UnknownNameError("scenario", missing, known)
    return [known[name] for name in dict.fromkeys(names)]


def swept(console: Console, sweep: Sweep, jobs: int | None, journal: Path | None, address: str | None) -> list[Row]:
    """All rows of a sweep, from this machine's cores or from a cluster, with a progress bar."""
    from optimizer.whatif.journal import Journal
    from optimizer.whatif.sweep import all_cores, dask_executor, local_executor, run_sweep

    log = None if journal is None else Journal(journal, sweep.key)
    wanted = min(jobs or all_cores(), len(sweep.scenarios))
    with ExitStack() as stack:
        progress = stack.enter_context(console.progress())
        if address is not None:
            executor, workers = stack.enter_context(dask_executor(address))
        else:
            executor, workers = stack.enter_context(local_executor(wanted)), wanted

        def told(done: int, total: int, left: float) -> None:
            if progress is None:
                return
            first = len(sweep.scenarios)
            if total == first:
                progress(f"{done:,} of {total:,} scenarios, {left:,.0f} s left", done / total)
            else:
                progress(f"{done - first:,} of {total - first:,} proofs", (done - first) / (total - first))

        return run_sweep(sweep, executor, workers, log, told)


def write_tables(console: Console, record: dict[str, Any], files: dict[str, Path | None], name: str) -> None:
    """Write the rows beside the result."""
    from reports.whatif_files import sweep_csv, sweep_parquet
    from reports.whatif_page import render_sweep
    from reports.whole_files import write_whole

    rows = record["rows"]
    makers: dict[str, Callable[[], str | bytes]] = {
        "--csv": lambda: sweep_csv(rows),
        "--parquet": lambda: sweep_parquet(rows),
        "--html": lambda: render_sweep(rows, record, name, record["search"]),
    }
    wanted = {path: makers[flag]() for flag, path in files.items() if path is not None}
    write_whole(wanted)
    for path in wanted:
        console.note(f"wrote {path}")
