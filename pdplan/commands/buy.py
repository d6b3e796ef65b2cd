"""`pdplan buy`: what to reserve, buy and rent over the months of a forecast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pdplan.console import Console
from pdplan.files import check_files, random_arrivals, show_answer
from pdplan.options import (
    PATH,
    console_options,
    force_option,
    json_option,
    parse_settings,
    pass_console,
    set_option,
    share_within,
    verify_option,
    whole,
)
from search_spaces import bounds


def stated_of(**options: float | None) -> dict[str, Any]:
    """Those of some options that are stated."""
    return {key: value for key, value in options.items() if value is not None}


@click.command(short_help="Say what to reserve, buy and rent as demand grows.")
@click.argument("file", type=PATH)
@click.option(
    "--terms",
    type=PATH,
    metavar="FILE",
    help="YAML file with the keys of procurement:; its sections replace those of FILE.",
)
@click.option(
    "--months", type=whole(bounds.MONTHS), metavar="N", help="Months to plan for; default: as the terms say, else 12."
)
@click.option(
    "--growth",
    callback=share_within(bounds.GROWTH),
    metavar="SHARE",
    help="Expected growth of the rate per month, such as 5%; default: as the terms say, else 0%.",
)
@click.option(
    "--low",
    callback=share_within(bounds.GROWTH),
    metavar="SHARE",
    help="Growth per month at the lower end of the band; default: as the terms say, else --growth.",
)
@click.option(
    "--high",
    callback=share_within(bounds.GROWTH),
    metavar="SHARE",
    help="Growth per month at the upper end of the band; default: as the terms say, else --growth.",
)
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

    Chooses how many GPUs to reserve or buy now, while the growth of demand is uncertain. Says what to
    sign later and what to rent by the hour on each path of the demand: on demand, spot with headroom
    for its interruptions, reserved, bought, or already owned. Shows the cost of each month, the cost of
    renting everything on demand, and what knowing the growth would be worth.

    The terms stand in FILE under procurement: (pdplan schema), or in a file of their own.

    Every fleet that serves an hour is simulated at the rate that it is bought for. Fleets that miss an
    SLO are excluded, and the choice is made again. --verify 0 relies on the formulas.

    Exits with 3 when no fleet meets the SLOs at the highest rate of the forecast, or when the purchase
    needs a fleet that misses them in simulation.
    """
    from optimizer.procurement.buying import buy as choose
    from reports.answers.buying import buying_dict, buying_document
    from search_spaces.buying_terms import load_terms
    from search_spaces.loader import load_problem

    check_files({"--html": html_file}, {"FILE": file, "--terms": terms}, force=force)
    problem = random_arrivals(console, load_problem(file, overrides=parse_settings(settings)))
    stated = load_terms(problem, terms, stated_of(months=months, growth=growth, low=low, high=high))
    with console.milestones() as progress:
        found = choose(problem, stated, progress, looks)
    answer = buying_document(found), buying_dict(found)
    return show_answer(console, *answer, page=html_file, as_json=as_json, force=force)
