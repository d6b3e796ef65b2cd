"""`pdplan whatif`: the questions that a buyer asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

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
    verify_option,
    whole,
)
from pdplan.views import check_files
from search_spaces.bounds import Bounds

from .whatif_answers import answers
from .whatif_asked import Asked
from .whatif_sweep import sweep_answer

JOBS = Bounds(1, 4096, "jobs")


def share(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Turn 5% or 0.05 into a share below 1."""
    if value is None:
        return None
    from search_spaces.buying_schema import as_share

    try:
        written = as_share(value)
        found = float(value) if written is None else written
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
@verify_option(4)
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
    console: Console, /, *, file: Path, settings: tuple[str, ...], as_json: bool, force: bool, **options: Any
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
    The fleets of the most rows are simulated, as many as --verify says; rows whose fleet misses its
    SLOs then are solved again without it. A scenario without a fleet is a row that says what is in
    the way.

    Exits with 3 when no scenario has a fleet that meets the SLOs.
    """
    from search_spaces.loader import load_problem

    asked = Asked(**options)
    asked.check_backend()
    check_files(asked.files, force=force)
    problem, base = load_problem(file, overrides=parse_settings(settings)), file.resolve().parent
    asked.check_any()
    depth = asked.depth()
    record: dict[str, Any] = {
        "schema": "pdplan.whatif/1",
        "file": str(file),
        "search": depth.value,
        "simulated": asked.simulated,
    }
    told = []
    if asked.axes or asked.names:
        told.append(sweep_answer(console, problem, base, asked, record))
    with console.progress() as progress:
        tell = progress or (lambda _what, _share: None)
        told += answers(problem, base, asked, width=console.width, tell=tell)
    record |= {one.key: one.record for one in told}
    console.show(record if as_json else "\n\n".join(one.text for one in told))
    return 0 if any(one.any_fleet for one in told) else ExitCode.INFEASIBLE
