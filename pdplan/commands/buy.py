"""`pdplan buy`: what to reserve, buy and rent over the months of a forecast."""

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
from pdplan.views import check_files, write_page
from search_spaces.bounds import Bounds

MONTHS = Bounds(1, 120)


def growth(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Turn 5% or 0.05 a month into a share [1]."""
    if value is None:
        return None
    from search_spaces.buying_schema import as_share

    try:
        share = as_share(value)
        return float(value) if share is None else share
    except ValueError:
        raise click.BadParameter(f"{value[:80]!r} is not a growth per month such as 5% or 0.05") from None


def stated_of(**options: float | None) -> dict[str, Any]:
    """Those of some options that are stated."""
    return {key: value for key, value in options.items() if value is not None}


@click.command(short_help="Say what to reserve, buy and rent as demand grows.")
@click.argument("file", type=PATH)
@click.option("--terms", type=PATH, metavar="FILE", help="Terms as YAML; its sections go before those of procurement:.")
@click.option("--months", type=whole(MONTHS), metavar="N", help="Horizon.")
@click.option("--growth", callback=growth, metavar="SHARE", help="Expected growth per month: 5%.")
@click.option("--low", callback=growth, metavar="SHARE", help="Growth per month at the lower end of the band.")
@click.option("--high", callback=growth, metavar="SHARE", help="Growth per month at the upper end of the band.")
@verify_option(40)
@click.option("--html", "html_file", type=PATH, metavar="OUT", help="Write a page with charts.")
@set_option
@json_option
@force_option
@console_options
@pass_console
def buy(
    console: Console,
    /,
    *,
    file: Path,
    terms: Path | None,
    months: int | None,
    growth: float | None,
    low: float | None,
    high: float | None,
    looks: int,
    html_file: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
    force: bool,
) -> int:
    """Examples:

    \b
      pdplan buy workload.yaml
      pdplan buy workload.yaml --terms terms.yaml --growth 5% --low 0% --high 8%
      pdplan buy workload.yaml --set procurement.electricity.usd_per_kwh=0.2 --html buy.html

    Chooses how many GPUs to reserve or buy now, under the uncertainty of the growth, and what to
    sign later and rent by the hour on each path of the demand: on demand, spot with the headroom
    that its interruptions ask for, reserved, bought, or owned already. Says what that costs each
    month, against renting everything on demand, and what knowing the growth would be worth.

    The terms stand in FILE under procurement: (pdplan schema), or in a file of their own.

    Every fleet that serves an hour is simulated at the rate that it is bought for, and the choice is
    made again without those that miss; --verify 0 leaves the fleets to the formulas.

    Exits with 3 when no fleet meets the SLOs at the highest rate of the forecast, or when the
    purchase counts on a fleet that misses them when simulated.
    """
    from optimizer.procurement.buying import buy as choose
    from reports.buying_page import render_buying
    from reports.buying_text import buying_dict, buying_text
    from search_spaces.buying_terms import load_terms
    from search_spaces.loader import load_problem

    check_files({"--html": html_file}, force=force)
    problem = load_problem(file, overrides=parse_settings(settings))
    stated = load_terms(problem, terms, stated_of(months=months, growth=growth, low=low, high=high))
    with console.milestones() as progress:
        found = choose(problem, stated, progress, looks)
    write_page(console, html_file, lambda: render_buying(found))
    console.show(buying_dict(found) if as_json else buying_text(found, console.width))
    return ExitCode.INFEASIBLE if found.looks.missed else 0
