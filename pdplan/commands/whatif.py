"""`pdplan whatif`: the questions that a buyer asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pdplan.console import Console
from pdplan.exits import ExitCode
from pdplan.files import check_files, random_arrivals, with_remarks
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
    share_within,
    verify_option,
    whole,
)
from search_spaces import bounds

from .whatif_answers import answers
from .whatif_asked import Asked
from .whatif_sweep import sweep_answer

JOBS = bounds.Bounds(1, 4096, "jobs")


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
    help="Try values of a lever (below), or of any dotted path of FILE: LOW:HIGH:COUNT, evenly spaced, "
    "LOW:HIGH:COUNT:log or VALUE,VALUE; several --vary make a grid.",
)  # fmt: skip
@click.option(
    "--scenario",
    "names",
    multiple=True,
    metavar="NAME",
    help="Solve a scenario that FILE names under scenarios:, or 'all'.",
)
@click.option(
    "--break-even",
    "break_even",
    metavar="KEY",
    help="Find the values of a lever at which another fleet becomes the cheapest.",
)
@click.option(
    "--between",
    metavar="LOW:HIGH",
    help="Range of --break-even, in the unit of its lever: 1:8 ($/h), 300ms:2s; default: 1/4 to 4 times what FILE has.",
)
@click.option(
    "--shadow-prices",
    "shadow",
    is_flag=True,
    help="Show what one more GPU, dollar or watt of each limit of FILE saves.",
)
@click.option(
    "--tornado",
    "swing",
    callback=share_within(bounds.PART),
    metavar="SHARE",
    help="Show the cost with each lever lower and higher by SHARE, such as 20%.",
)
@click.option(
    "--slack",
    callback=share_within(bounds.PART),
    metavar="SHARE",
    help="Show fleets without a GPU type or vendor that cost at most SHARE more, such as 5%.",
)
@click.option(
    "--gap/--no-gap",
    "gap",
    default=None,
    help="Prove what any other fleet could save; default: for up to 64 scenarios, roughly for more.",
)
@click.option(
    "--full", is_flag=True, help="Search fleets of any number of pools, and prove each gap: seconds per scenario."
)
@click.option("--simulate", "simulated", is_flag=True, help="As --full, and prove each fleet by simulation; slower.")
@verify_option(4)
@click.option("--csv", "csv_file", type=PATH, metavar="OUT", help="Write a row per scenario of the sweep, as CSV.")
@click.option("--parquet", "parquet_file", type=PATH, metavar="OUT", help="The same as Parquet (needs pyarrow).")
@click.option("--html", "html_file", type=PATH, metavar="OUT", help="Write a page with heat maps of the cost.")
@click.option("--jobs", type=whole(JOBS), metavar="N", help="Processes that solve the sweep; default: one per core.")
@click.option(
    "--resume", "journal", type=PATH, metavar="LOG", help="Keep finished rows in LOG, and continue from there."
)
@click.option(
    "--backend",
    type=Choice(("local", "dask")),
    default="local",
    show_default=True,
    help="Solve the sweep on this machine or on a Dask cluster.",
)
@click.option("--address", metavar="ADDRESS", help="Scheduler of --backend dask, such as tcp://10.0.0.7:8786.")
@prices_option
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
    prices: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    force: bool,
    **options: Any,
) -> int:
    """Examples:

    \b
      pdplan whatif workload.yaml --vary price.H200=1:8:8
      pdplan whatif workload.yaml --vary rate=5:80:16 --vary ttft=0.5s,1s,2s --csv sweep.csv
      pdplan whatif workload.yaml --break-even price.H200 --between 1:8 --tornado 20% --slack 5%

    Solves the workload in FILE once for every combination of values, on all cores: prices, demand,
    SLOs, limits, or any other value of FILE by its dotted path. The list below has the short names.

    By default each scenario gets the cheapest fleet of one or two pools that meets the SLO by formula,
    and a bound on what any other fleet could save: proven for up to 64 scenarios, rough for more.
    Up to --verify fleets are simulated, those of the most rows first. Where a fleet misses its SLOs, its
    rows are solved again without it. A scenario without a fleet is a row that says what is in the way.

    Exits with 3 when no scenario has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from search_spaces.loader import load_problem

    asked = Asked(**options)
    asked.check_backend()
    check_files(asked.files, {"FILE": file, "--resume": asked.journal}, force=force)
    problem = random_arrivals(console, load_problem(file, overrides=parse_settings(settings, prices=prices)))
    base = file.resolve().parent
    verifies = click.get_current_context().get_parameter_source("looks") is ParameterSource.COMMANDLINE
    asked.check_any(verifies=verifies)
    depth = asked.depth()
    remarks = price_remarks(problem)
    record: dict[str, Any] = {
        "schema": "pdplan.whatif/2",
        "file": str(file),
        "search": depth.value,
        "simulated": asked.simulated,
        "price_remarks": remarks,
    }
    told = []
    if asked.axes or asked.names:
        told.append(sweep_answer(console, problem, base, asked, record, force=force))
    with console.progress() as progress:
        tell = progress or (lambda _what, _share: None)
        told += answers(problem, base, asked, width=console.width, tell=tell)
    record |= {one.key: one.record for one in told}
    console.show(record if as_json else with_remarks("\n\n".join(one.text for one in told), remarks, console.width))
    return 0 if any(one.any_fleet for one in told) else ExitCode.INFEASIBLE
