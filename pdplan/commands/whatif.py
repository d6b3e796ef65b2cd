"""`pdplan whatif`, `frontier`, `map` and `buy`: the questions that a buyer asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.errors import InputError, shown
from costmodel.words import join_words
from pdplan.api import curve_range, range_of, solved_sweep
from pdplan.console import Console
from pdplan.options import PATH, Choice, Decorator, Whole, problem_options, share_within, verify_option
from reports.document import Document
from search_spaces import bounds
from search_spaces.bounds import JOBS, OVER, Bounds

if TYPE_CHECKING:
    from optimizer.whatif.answer import ScenarioEffort
    from search_spaces.problem import Problem
    from search_spaces.scenarios import SweepAxis

    Reply = tuple[str, Any, Document]
    """An answer: its key and its record in the JSON document, and as a document."""


def chunks_of(_context: click.Context | None, _parameter: click.Parameter | None, text: str | None) -> tuple[int, ...]:
    """Read chunks such as 256,512 [token].

    >>> chunks_of(None, None, "512, 2048")
    (512, 2048)
    """
    sizes = [word.strip() for word in text.split(",")] if text is not None else []
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise InputError(f"--chunk {shown(text or '')} is not a list of whole numbers of tokens, such as 512,2048")
    return tuple(map(int, sizes))


def share_option(name: str, words: str, limits: Bounds = bounds.PART) -> Decorator:
    """An option that takes a share [1]; words: its help."""
    return click.option(name, callback=share_within(limits), metavar="SHARE", help=words)


def jobs_option(noun: str) -> Decorator:
    """Add --jobs; noun: what the processes solve."""
    words = f"Processes that solve the {noun}; default: one per core."
    return click.option("--jobs", type=Whole(JOBS), metavar="N", help=words)


class WithLevers(click.Command):
    """A command whose help ends with all levers."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """An example of each lever, and what it changes."""
        from search_spaces.scenarios import LEVERS

        with formatter.section("Levers, as --vary takes them and `scenarios:` of FILE"):
            formatter.write_dl([(lever.example, lever.says) for lever in LEVERS.values()])


@click.command(cls=WithLevers, short_help="Sweep prices, demand, SLOs and limits; find where the best fleet changes.")
@click.option(
    "--vary", "axes", multiple=True, metavar="KEY=SPEC",
    help="Try values of a lever (below), or of any dotted path of FILE: LOW:HIGH:COUNT, evenly spaced, "
    "LOW:HIGH:COUNT:log or VALUE,VALUE; several --vary make a grid.",
)  # fmt: skip
@click.option(
    "--scenario", "names", multiple=True, metavar="NAME",
    help="Solve a scenario that FILE names under scenarios:, or 'all'.",
)  # fmt: skip
@click.option(
    "--break-even", metavar="KEY", help="Find the values of a lever at which another fleet becomes the cheapest."
)
@click.option(
    "--between",
    metavar="LOW:HIGH",
    help="Range of --break-even, in the unit of its lever: 1:8 ($/h), 300ms:2s; default: 1/4 to 4 times what FILE has.",
)
@click.option(
    "--shadow-prices", is_flag=True, help="Show what one more GPU, dollar or watt of each limit of FILE saves."
)
@share_option("--slack", "Show fleets that do without a GPU type or vendor and cost at most SHARE more, such as 5%.")
@click.option(
    "--chunk", "chunks", callback=chunks_of, metavar="TOKENS,…",
    help="Show TTFT, TPOT, goodput and cost of the cheapest fleet with each chunk (max_num_batched_tokens).",
)  # fmt: skip
@click.option(
    "--gap/--no-gap", default=None, help="Prove what any other fleet could save; default: for up to 64 scenarios."
)
@click.option("--full", is_flag=True, help="Search fleets of any number of pools for more than 64 scenarios too.")
@click.option(
    "--simulate", "simulated", is_flag=True, help="Prove each fleet by simulation, as pdplan optimize; slower."
)
@verify_option(4)
@problem_options(
    "Write a page.",
    jobs_option("sweep"),
    click.option("--resume", type=PATH, metavar="LOG", help="Keep finished rows in LOG, and continue from there."),
    click.option(
        "--address",
        metavar="ADDRESS",
        help="Solve the sweep on the Dask cluster of this scheduler, such as tcp://10.0.0.7:8786.",
    ),
    rows="Write a row per scenario, or per chunk, as CSV.",
    parquet=True,
    reads=("resume",),
)
def whatif(console: Console, problem: Problem, /, *, file: Path, **options: Any) -> int:
    """Examples:

    \b
      pdplan whatif workload.yaml --vary price.H200=1:8:8
      pdplan whatif workload.yaml --vary rate=5:80:16 --vary ttft=0.5s,1s,2s --csv sweep.csv
      pdplan whatif workload.yaml --break-even price.H200 --between 1:8 --slack 5%
      pdplan whatif workload.yaml --chunk 256,512,1024,2048,4096,8192 --html chunk.html

    Solves the workload in FILE once for every combination of values, on all cores: prices, demand,
    SLOs, limits, or any other value of FILE by its dotted path. The list below has the short names.

    Each scenario gets the fleet that pdplan optimize --effort quick finds, or that of the unchanged file
    where it costs less and still meets the SLO. The gap says what any other fleet could save at most. A sweep
    of more than 64 scenarios has only fleets of one or two pools, by formula, and no gap. A scenario without
    a fleet is a row that says what is in the way.

    Exits with 3 when no scenario has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from optimizer.whatif.answer import ScenarioEffort, sweep_rows
    from reports.answers.whatif import sweep_document, whatif_document
    from search_spaces.scenarios import parse_axis

    sweeps = bool(options["axes"] or options["names"])
    table = next((f"--{form}" for form in ("csv", "parquet") if form in console.files), "")
    check_questions(options, table, sweeps=sweeps)
    effort, remarks = ScenarioEffort.SIMULATED if options["simulated"] else ScenarioEffort.FULL, price_remarks(problem)
    replies: list[Reply] = []
    if sweeps:
        named = {name: options[name] for name in ("full", "gap", "jobs", "resume", "address")}
        named |= {"simulate": options["simulated"], "verify": options["looks"]}
        axes = [parse_axis(axis) for axis in options["axes"]]
        with console.milestones() as progress:
            used, results = solved_sweep(problem, axes, options["names"], progress=progress, **named)
        replies.append(("rows", sweep_rows(results), sweep_document(results, used.value)))
    with console.progress() as progress:
        replies += answers(problem, effort, options, progress or (lambda _what, _share: None))
    record = {"schema": "pdplan.whatif/3", "file": str(file), "search": effort.value, "simulated": options["simulated"]}
    record |= {"price_remarks": remarks} | {key: answer for key, answer, _ in replies}
    document = whatif_document([document for _, _, document in replies], remarks, ("What if?", problem.name))
    rows = record.get("rows") or (record.get("chunks") or {}).get("rows", ())
    return console.answer(document, record, rows)


def check_questions(options: Mapping[str, Any], table: str, *, sweeps: bool) -> None:
    """Raise InputError where nothing is asked, or where an option is stated that the questions have no use for.

    options: the options of the command; table: the one that asks for a file of rows; sweeps: whether there is a sweep.
    """
    key = options["break_even"]
    if key is not None and not key.strip():
        raise InputError(f"--break-even {shown(key)} names no lever; state one, such as price.H200 or rate")
    if not (sweeps or key or options["shadow_prices"] or options["chunks"] or options["slack"]):
        raise InputError("nothing is asked; state --vary, such as --vary price.H200=1:8:8, --scenario or --break-even")
    if table and not (sweeps or options["chunks"]):
        raise InputError(f"{table} is for the rows of a sweep or of --chunk; state --vary or --scenario with it")
    if options["between"] is not None and not key:
        raise InputError("--between is the range of --break-even, which is not stated")
    idle_options = [f"--{name}" for name in ("jobs", "resume", "address") if options[name] is not None and not sweeps]
    if idle_options:
        verb = "is" if len(idle_options) == 1 else "are"
        raise InputError(f"{join_words(idle_options)} {verb} for a sweep; state --vary or --scenario")


# --- questions about the best fleet ---------------------------------------------------------------------------------


def answers(
    problem: Problem, effort: ScenarioEffort, options: Mapping[str, Any], tell: Callable[[str, float], None]
) -> Iterator[Reply]:
    """The answer to each question besides a sweep."""
    from optimizer.whatif import sensitivity
    from optimizer.whatif.answer import Answer
    from optimizer.whatif.curves import chunk_curve
    from optimizer.whatif.solver import answer
    from reports.answers import curves, whatif

    looks: int = options["looks"]
    second = f", {looks} fleets at most simulated" if looks else ""
    if key := options["break_even"]:
        tell(f"fleets along {key}", 0.0)
        ends = range_of(key, options["between"], "--between")
        curve = sensitivity.break_even(problem, key, ends, effort, looks=looks)
        document = curves.break_even_document(curve, simulable=sensitivity.by_price(problem, key))
        yield "break_even", curves.curve_record(curve), document
    if options["shadow_prices"]:
        tell("shadow prices", 0.3)
        here = answer(problem, effort)
        prices = [] if here.cost is None else sensitivity.shadow_prices(problem, effort)
        yield "shadow_prices", [asdict(row) for row in prices], whatif.shadow_document(prices, here)
    if options["slack"]:
        tell(f"fleets without each GPU type{second}", 0.8)
        fleets = sensitivity.near_optimal(problem, effort, looks)
        yield "alternatives", *whatif.alternatives_answer(fleets, options["slack"])
    if options["chunks"]:
        tell("the cheapest fleet", 0.9)
        chunks = chunk_curve(problem, options["chunks"], simulated=bool(looks), progress=tell)
        if isinstance(chunks, Answer):
            yield "chunks", None, whatif.no_fleet_document("No fleet meets the SLO.", chunks)
        else:
            yield "chunks", curves.chunk_record(chunks), curves.chunk_document(chunks)


# --- the curve and the map ------------------------------------------------------------------------------------------


@click.command(short_help="Draw the least cost against rate, a latency limit, attainment or budget.")
@click.option("--over", type=Choice(OVER), required=True, help="Quantity that the least cost is drawn against.")
@click.option(
    "--between",
    metavar="LOW:HIGH",
    help="Range of the curve, such as 300ms:2s, 5/s:40/s or 20:80 ($/h); default: from 1/4 to 4 times the "
    "value in FILE, attainment from 50% to 99.9%.",
)
@verify_option(12)
@problem_options("Write a page with the curve.", rows="Write a row per step of the curve, as CSV.")
def frontier(console: Console, problem: Problem, /, *, file: Path, over: str, between: str | None, looks: int) -> int:
    """Examples:

    \b
      pdplan frontier workload.yaml --over rate
      pdplan frontier workload.yaml --over ttft --between 300ms:4s --csv ttft.csv
      pdplan frontier workload.yaml --over budget --between 20:80 --json

    Finds the cheapest fleet by formula for every value in the range; it is no dearer than that of
    pdplan optimize --effort quick. The curve is a staircase, as replicas are whole. By formula each
    step ends where its fleet misses the SLO, exact to 0.01 %; a step shorter than 1 % may be left out.
    With several SLO classes, all their limits are scaled together. Over the budget, it shows the most
    demand that each budget serves.

    Up to --verify steps are simulated where they end, the easiest first. Where a fleet misses there, its
    step is cut back to where it meets the SLO in simulation, to 1 %, and the next fleet takes over. At
    the value in FILE the whole search of pdplan optimize runs, so the curve is never above its answer
    there.

    Exits with 3 when no value in the range has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from optimizer.whatif.curves import frontier as curve_over
    from reports.answers.curves import QUESTIONS, curve_record, frontier_document, frontier_rows
    from reports.answers.whatif import whatif_document

    remarks = price_remarks(problem)
    with console.milestones() as progress:
        ends = curve_range(problem, over, between, "--between")
        curve = curve_over(problem, over, ends, looks=looks, progress=progress)
    record = {"schema": "pdplan.frontier/3", "file": str(file)} | curve_record(curve) | {"price_remarks": remarks}
    document = whatif_document([frontier_document(curve)], remarks, (QUESTIONS[over], problem.name))
    return console.answer(document, record, frontier_rows(curve))


LENGTHS = ("isl", "osl", "isl_scale", "osl_scale")
"""Levers that lengthen requests."""
VALUES = 5
"""Of a lever whose values are not stated, evenly spaced in the logarithm."""


@click.command("map", short_help="Map where disaggregation pays, over two levers such as isl and rate.")
@click.option(
    "--over", "levers", multiple=True, required=True, metavar="KEY[=SPEC],…",
    help="Two levers, the first down, the second across; SPEC as of pdplan whatif --vary (LOW:HIGH:COUNT, "
    "LOW:HIGH:COUNT:log or VALUE,VALUE); default: 5 values from 1/4 to 4 times what FILE has.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="Search fleets of any number of pools for more than 32 cells too.")
@verify_option(0)
@problem_options(
    "Write a page with the heat map.",
    jobs_option("map"),
    rows="Write a row per cell and shape of fleet, as CSV.",
)
def map_command(
    console: Console,
    problem: Problem,
    /,
    *,
    file: Path,
    levers: tuple[str, ...],
    full: bool,
    looks: int,
    jobs: int | None,
) -> int:
    """Examples:

    \b
      pdplan map workload.yaml --over isl,rate
      pdplan map workload.yaml --over isl=500:8000:5:log --over rate=5:80:5:log --html map.html --csv map.csv
      pdplan map workload.yaml --over ttft=300ms,1s,3s --over osl=100,400,1600 --verify 8

    For each combination of two levers, finds the cheapest colocated and the cheapest disaggregated fleet
    of the GPU types in FILE. Shows which is cheaper, by how much, and with which GPUs. All levers of
    pdplan whatif may vary; isl and osl are the mean tokens of prompts and outputs.

    Fleets are found by formula, as by pdplan optimize --effort quick. A map of more than 32 cells has only
    fleets of one or two pools.

    Exits with 3 when no combination has a fleet that meets the SLOs.
    """
    from optimizer.fleets.error_bars import price_remarks
    from optimizer.whatif.solver import cheapest_of
    from reports.answers.whatif import ROLES, SHAPES, cells_of, map_document, map_rows, whatif_document
    from search_spaces.scenarios import SweepAxis

    axes = axes_of(problem, levers)
    keys, shapes = [axis.key for axis in axes], SweepAxis(ROLES, tuple(map(list, SHAPES.values())))
    with console.milestones() as progress:
        effort, results = solved_sweep(
            problem, [*axes, shapes], full=full, gap=False, verify=looks, jobs=jobs, progress=progress
        )
    cells = cells_of(keys, results, partial(cheapest_of, problem))
    remarks, rows = price_remarks(problem), map_rows(cells, keys, results)
    record = {"schema": "pdplan.map/2", "file": str(file), "over": keys, "rows": rows, "price_remarks": remarks}
    about = ("Where does disaggregation pay?", problem.name)
    document = whatif_document([map_document(keys, cells, effort.value)], remarks, about)
    return console.answer(document, record, rows)


def axes_of(problem: Problem, levers: tuple[str, ...]) -> list[SweepAxis]:
    """The two axes: stated, or around the values that the problem has.

    Raises InputError where there are not two axes, or where an axis has no value in the problem and none is stated.
    """
    from search_spaces.scenarios import LEVERS, own_value, parse_axis, usual_range

    # a comma parts two levers, unless it parts two values of one: isl,rate and isl=1,2,rate=3,4
    words = [word.strip() for text in levers for word in re.split(r",(?=[^,=]*=)" if "=" in text else ",", text)]
    if len(words) != 2 or len({word.partition("=")[0] for word in words} - {""}) != 2:
        raise InputError(f"--over takes two different levers, such as isl,rate; found: {shown(', '.join(words))}")
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


@click.command(short_help="Say what to reserve, buy and rent as demand grows.")
@click.option(
    "--terms", type=PATH, metavar="FILE",
    help="YAML file with the keys of procurement:; its sections replace those of FILE.",
)  # fmt: skip
@click.option(
    "--months", type=Whole(bounds.MONTHS), metavar="N", help="Months to plan for; default: as the terms say, else 12."
)
@share_option(
    "--growth", "Expected growth of the rate per month, such as 5%; default: as the terms say, else 0%.", bounds.GROWTH
)
@share_option(
    "--low", "Growth per month at the lower end of the band; default: as the terms say, else --growth.", bounds.GROWTH
)
@share_option(
    "--high", "Growth per month at the upper end of the band; default: as the terms say, else --growth.", bounds.GROWTH
)
@verify_option(40)
@problem_options("Write a page.", reads=("terms",))
def buy(console: Console, problem: Problem, /, *, terms: Path | None, looks: int, **changes: Any) -> int:
    """Examples:

    \b
      pdplan buy workload.yaml
      pdplan buy workload.yaml --terms terms.yaml --growth 5% --low 0% --high 8%
      pdplan buy workload.yaml --prices my-quotes.csv --html buy.html

    Chooses how many GPUs to reserve or buy now, while the growth of demand is uncertain. Says what to
    sign later and what to rent by the hour on each path of the demand: on demand, spot with headroom
    for its interruptions, reserved, bought, or already owned. Shows the cost of each month, the cost of
    renting all that is not owned on demand, and what knowing the growth would be worth.

    The terms stand in FILE under procurement: (pdplan schema), or in a file of their own.

    Fleets are simulated at the rate that they are bought for.

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
    return console.answer(buying_document(purchase), buying_dict(purchase))
