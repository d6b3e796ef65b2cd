"""`pdplan whatif`: the questions that a buyer asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from costmodel.errors import InputError
from costmodel.quoting import shown
from pdplan.console import Console
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
    share_within,
    verify_option,
    whole,
)
from search_spaces import bounds

from .whatif_answers import JOBS, Asked, answers, sweep_answer


def chunks_of(_context: click.Context | None, _parameter: click.Parameter | None, text: str | None) -> tuple[int, ...]:
    """Read chunks such as 256,512 [token].

    >>> chunks_of(None, None, "512, 2048")
    (512, 2048)
    """
    sizes = [part.strip() for part in text.split(",")] if text is not None else []
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise InputError(f"--chunk {shown(text or '')} is not a list of whole numbers of tokens, such as 512,2048")
    return tuple(map(int, sizes))


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
    "--chunk", "chunks", callback=chunks_of, metavar="TOKENS,…",
    help="Show TTFT, TPOT, goodput and cost of the cheapest fleet with each chunk (max_num_batched_tokens).",
)  # fmt: skip
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
@click.option("--csv", "csv_file", type=PATH, metavar="OUT", help="Write a row per scenario, or per chunk, as CSV.")
@click.option("--parquet", "parquet_file", type=PATH, metavar="OUT", help="The same as Parquet (needs pyarrow).")
@click.option("--html", "html_file", type=PATH, metavar="OUT", help="Write a page with charts.")
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
    csv_file: Path | None,
    parquet_file: Path | None,
    html_file: Path | None,
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
      pdplan whatif workload.yaml --chunk 256,512,1024,2048,4096,8192 --html chunk.html

    Solves the workload in FILE once for every combination of values, on all cores: prices, demand,
    SLOs, limits, or any other value of FILE by its dotted path. The list below has the short names.

    By default each scenario gets the cheapest fleet of one or two pools that meets the SLO by formula,
    and a bound on what any other fleet could save: proven for up to 64 scenarios, rough for more.
    Up to --verify fleets are simulated, those of the most rows first. Where a fleet misses its SLOs, its
    rows are solved again without it. A scenario without a fleet is a row that says what is in the way.

    Exits with 3 when no scenario has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from reports.answers.whatif import whatif_document
    from reports.tidy import rows_csv, rows_parquet
    from search_spaces.loader import load_problem

    asked = Asked(**options)
    files = {"--csv": csv_file, "--parquet": parquet_file, "--html": html_file}
    check_files(files, {"FILE": file, "--resume": asked.journal}, force=force)
    verifies = click.get_current_context().get_parameter_source("looks") is ParameterSource.COMMANDLINE
    asked.check([flag for flag in ("--csv", "--parquet") if files[flag]], verifies=verifies)
    problem = random_arrivals(console, load_problem(file, overrides=parse_settings(settings, prices=prices)))
    base, remarks = file.resolve().parent, price_remarks(problem)
    told = [sweep_answer(console, problem, base, asked)] if asked.sweeps else []
    with console.progress() as progress:
        told += answers(problem, base, asked, progress or (lambda _what, _share: None))
    record: dict[str, Any] = {
        "schema": "pdplan.whatif/2",
        "file": str(file),
        "search": asked.depth.value,
        "simulated": asked.simulated,
    }
    record |= {"price_remarks": remarks} | {answer.key: answer.record for answer in told}
    document = whatif_document([answer.document for answer in told], remarks, ("What if?", problem.name))
    rows = next((answer.rows for answer in told if answer.rows), ())
    write_page(console, csv_file, lambda: rows_csv(rows), force=force)
    write_page(console, parquet_file, lambda: rows_parquet(rows), force=force)
    return show_answer(console, document, record, page=html_file, as_json=as_json, force=force)
