"""`pdplan resilience`, `autoscale` and `buy`: a plan after a loss, over a day, and over the months of a forecast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError, shown
from pdplan.console import Console
from pdplan.files import Output, answer_options, problem_options, read_fleet
from pdplan.options import PATH, seconds, share_within, verify_option, whole
from search_spaces import bounds
from search_spaces.bounds import HOURLY_RATE, RUN_REQUESTS, SEED, Bounds

if TYPE_CHECKING:
    from search_spaces.problem import Problem


LEAST_REQUESTS = 5_000
"""Of a run, at the least: else as many as each of those had that proved the plan."""
LOSSES = Bounds(1, 100)
LEAST = Bounds(1, 100_000)
HOURS = 24


@click.command(short_help="Say which loss of a replica or node breaks an SLO.")
@click.argument("file", metavar="PLAN", type=PATH)
@click.option("--losses", type=whole(LOSSES), default=1, show_default=True, help="Replicas or nodes lost at once.")
@click.option("--requests", type=whole(RUN_REQUESTS),
              help="Fewest requests to simulate after each loss; default: those of each run that proved the plan, but "
              "at least 5,000.")  # fmt: skip
@click.option("--seed", type=whole(SEED), default=0, show_default=True, metavar="N", help="Seed of the requests.")
@answer_options("Write a page.")
def resilience(
    console: Console,
    /,
    *,
    file: Path,
    losses: int,
    requests: int | None,
    seed: int,
    output: Output,
) -> int:
    """Examples:

    \b
      pdplan resilience plan/plan.json
      pdplan resilience plan/plan.json --losses 2
      pdplan resilience plan/plan.json --json | jq '.losses[] | select(.verdict != "meets")'

    Takes one replica from each pool, then each node, in turn. Routes the requests to what is left,
    simulates them, and says which loss breaks an SLO and what spares against it cost. Runs are longer
    than --requests where these are too few to show whether a pool falls behind. Spare replicas of the
    plan (constraints.headroom) serve like the others. PLAN may be a fleet file.

    Exits with 3 when some loss breaks an SLO, or when the verdict is undecided: the goal lies within the
    95 % interval. More --requests decide.
    """
    from optimizer.fleets.build_plan import fleet_of_plan, planned_volume
    from optimizer.procurement.operation import resilience as ask
    from reports.answers.operation import resilience_dict, resilience_document

    output.check(PLAN=file)
    plan = read_fleet(file)
    proof = plan.simulation
    least = LEAST_REQUESTS if proof is None else max(LEAST_REQUESTS, proof.requests // proof.replications)
    instance, fleet = fleet_of_plan(plan, file.parent)
    with console.milestones() as progress:
        answer = ask(
            instance,
            fleet,
            count=losses,
            spares=[pool.spare_replicas for pool in plan.pools],
            requests=requests or least,
            seed=seed,
            volume=planned_volume(plan),
            progress=progress,
        )
    document = resilience_document(answer, losses, plan)
    return output.show(console, document, resilience_dict(answer))


@click.command(short_help="Say what scaling a plan's fleet over the day saves.")
@click.argument("file", metavar="PLAN", type=PATH)
@click.option("--start-up", callback=seconds, metavar="TIME", default="5min", show_default=True,
              help="Time from the decision to a replica's first request.")  # fmt: skip
@click.option("--by-hour", metavar="RATE,…", help="24 mean rates [1/s]; default: the daily profile of the plan.")
@click.option("--least", type=whole(LEAST), default=1, show_default=True, help="Fewest replicas of every pool.")
@click.option("--requests", type=whole(RUN_REQUESTS), default=5_000, show_default=True,
              help="Fewest requests to simulate for each rate and fleet.")  # fmt: skip
@answer_options("Write a page with a chart.")
def autoscale(
    console: Console,
    /,
    *,
    file: Path,
    start_up: float,
    by_hour: str | None,
    least: int,
    requests: int,
    output: Output,
) -> int:
    """Examples:

    \b
      pdplan autoscale plan/plan.json
      pdplan autoscale plan/plan.json --start-up 10min --least 2
      pdplan autoscale plan/plan.json --by-hour 2,1,1,1,1,2,4,6,8,9,9,9,10,10,9,9,8,8,7,6,5,4,3,2

    Finds by simulation how many replicas each pool needs in every hour of the day. Says what the day
    costs if replicas start ahead by the daily profile, against a fleet of fixed size, and which SLO is
    missed if they start only when the load has come. PLAN may be a fleet file.

    Exits with 3 when the plan's own fleet misses an SLO in some hour, or when the verdict is undecided:
    the goal lies within the 95 % interval. More --requests decide.
    """
    import numpy as np

    from optimizer.fleets.build_plan import fleet_of_plan
    from optimizer.procurement.operation import autoscale as scale
    from optimizer.verification.demand import planned_profile
    from reports.answers.operation import autoscale_dict, autoscale_document

    output.check(PLAN=file)
    instance, fleet = fleet_of_plan(read_fleet(file), file.parent)
    volume = planned_profile(instance)
    if by_hour is not None:
        volume = np.array(_rates(by_hour)) / instance.problem.workload.request_rate
    if volume is None:
        raise InputError("the plan has no daily profile (workload.diurnal); state one with --by-hour")
    with console.milestones() as progress:
        day = scale(instance, fleet, volume, start_up, least, requests=requests, progress=progress)
    return output.show(console, autoscale_document(instance.problem, day), autoscale_dict(day))


def _rates(text: str) -> list[float]:
    """Read 24 rates [1/s].

    >>> len(_rates("1" + ",2" * 23))
    24
    """
    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--by-hour {shown(text)} is not a list of 24 numbers") from None
    if len(rates) != HOURS or not all(HOURLY_RATE.holds(rate) for rate in rates) or max(rates) <= 0.0:
        raise InputError(f"--by-hour needs {HOURS} rates of at least 0, one above 0, but has {len(rates)} values")
    return rates


@click.command(short_help="Say what to reserve, buy and rent as demand grows.")
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
@problem_options("Write a page with a chart.", prices=False, reads=("terms",))
def buy(
    console: Console, problem: Problem, /, *, terms: Path | None, looks: int, output: Output, **changes: Any
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

    stated = {name: changes[name] for name in ("months", "growth", "low", "high") if changes[name] is not None}
    terms_of_file = load_terms(problem, terms, stated)
    with console.milestones() as progress:
        purchase = choose(problem, terms_of_file, progress, looks)
    return output.show(console, buying_document(purchase), buying_dict(purchase))
