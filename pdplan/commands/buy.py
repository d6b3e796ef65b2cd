"""`pdplan buy`: what to reserve, buy and rent over the months of a forecast."""

from __future__ import annotations

from pathlib import Path

import click

from pdplan.console import Console
from pdplan.options import PATH, console_options, json_option, parse_settings, pass_console, set_option


@click.command(short_help="Say what to reserve, buy and rent as demand grows.")
@click.argument("file", type=PATH)
@click.option("--terms", type=PATH, required=True, metavar="FILE", help="Contracts, forecast and electricity, as YAML.")
@set_option
@json_option
@console_options
@pass_console
def buy(console: Console, file: Path, terms: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Examples:

    \b
      pdplan buy workload.yaml --terms terms.yaml
      pdplan buy workload.yaml --terms terms.yaml --set workload.request_rate=40
      pdplan buy workload.yaml --terms terms.yaml --json | jq .commitments

    Chooses, for the forecast in the terms, how many GPUs to reserve or buy in which month and what
    to rent by the hour: on demand, spot with the headroom that its interruptions ask for, reserved,
    bought, or owned already. Says what that costs each month, against renting everything on
    demand, and what it costs if the forecast is wrong.

    Exits with 3 when no fleet meets the SLOs at the highest rate of the forecast.
    """
    from optimizer.procurement.buying import buy as choose
    from reports.buying_text import buying_dict, buying_text
    from search_spaces.buying_terms import load_terms
    from search_spaces.loader import load_problem

    problem = load_problem(file, overrides=parse_settings(settings))
    stated = load_terms(terms, problem)
    with console.progress() as progress:
        found = choose(problem, stated, progress)
    console.show(buying_dict(found) if as_json else buying_text(found, console.width))
