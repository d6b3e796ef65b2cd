"""What a reader of a plan looks up: how pools run, settings, what moves the cost, what runs it, and its basis."""

from __future__ import annotations

import dataclasses
import json
import math
import posixpath
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from costmodel.metric import METRICS
from costmodel.words import join_words, plural
from optimizer.plans.plan import Plan, Pool, Status
from optimizer.plans.records import (
    BreakEven,
    ClassLatencies,
    EnginePool,
    LeverSensitivity,
    Outcome,
    PricePiece,
    Sensitivity,
    Simulation,
    engine_counts,
)
from reports import question
from reports.deploy.deployment import NamelessWeightsError
from reports.deploy.files import Deployable, deployable, planned_target
from reports.deploy.measurement import planned_scatter_words
from reports.document import Column, Detail, Section, Table, said, table_by_column, table_of, without_empty
from reports.fleets import FLEET_WITH_LIMITS, ORIGINS, fleet_line, outcome_words, own_pools, tried_fleets
from reports.rows import SETTINGS
from reports.slos import OUTCOMES, goal_words, spread, tails_of_limits, worst_tails
from reports.text import (
    MISSING,
    clean,
    count,
    duration,
    hourly,
    in_words,
    is_number,
    percent,
    rate,
    sentence,
    signed_percent,
    significant,
)
from search_spaces.problem import target_of

from .whatif import lever_words, value_words

INPUTS_LIMIT: Final = 20_000
LABELS: Final = {"spare_replicas": "of which spare", "gpus": "GPUs", "usd_per_hour": "price"}
"""Names of settings that are not the engine's own."""
WORDS: Final = (
    ("prefill, decode", "reading a prompt, which gives the first token; generating the other tokens one by one"),
    (
        "colocated",
        "replicas that both prefill and decode; if they are separate, prefill replicas hand the KV cache over",
    ),
    ("TTFT, TPOT", "time to the first token; time for each output token after it"),
    ("SLO, goal", "the limits on a request's TTFT and TPOT; the share of requests that has to keep all of them"),
    ("p90", "what nine in ten requests stay within; p50, p95 and p99 likewise"),
    ("goodput", "the highest request rate at which every SLO is met"),
    ("load", "what a pool serves, as a share of what it can serve within the SLO; in parentheses what runs out first"),
    (
        "3 × H100 TP2 PP2",
        "three replicas, each split over 2 × 2 GPUs: layers by TP, stages by PP; EP: experts, DP: requests; "
        "(1 spare): one of the replicas; spec 3: three tokens are drafted a step",
    ),
    ("KV cache", "what a replica keeps in GPU memory for every token of its running requests"),
    ("request slots", "requests that a replica runs at once (max_num_seqs); its chunk is max_num_batched_tokens"),
    ("MFU, MBU", "share of a GPU's peak FLOP/s, and of its peak memory bandwidth, that a step uses"),
    ("ridge", "FLOP per byte from which on a GPU is bound by compute, no longer by memory bandwidth"),
)
"""Words of the report and their meanings; docs/glossary.md has these and more."""


def workload_section(plan: Plan) -> Section:
    """What was asked of the fleet, and what there was to buy."""
    load, cache = plan.workload, plan.prefix_cache
    source = question.inputs_of(plan, "workload", "lengths").get("source")
    hits = percent(load.prefix_hit_share)
    if cache is not None and cache.sustained < cache.at_best - 1e-6:
        hits = f"{percent(cache.sustained)}, of {hits} that the traffic allows"
    if cache is not None and cache.read:
        hits += f"; {percent(cache.read)} in the KV cache tier"
    demand = (
        ("request rate", rate(load.request_rate_rps)),
        ("arrivals over time", _day_words(plan)),
        *question.arrival_facts(plan),
        ("input tokens found in the prefix cache", hits),
        ("mean input length", f"{significant(load.mean_isl)} tokens"),
        ("mean output length", f"{significant(load.mean_osl)} tokens"),
        ("longest request", f"{count(load.max_tokens)} tokens"),
        *([("lengths from", clean(str(source), 200))] if source else []),
    )
    return Section(
        "Workload",
        sections=(
            Section("The demand", facts=demand),
            Section("What was on offer", facts=question.offers(plan)),
        ),
        detail=Detail.PAGE,
    )


def _day_words(plan: Plan) -> str:
    """How the rate changes over a day, against the one that was planned for."""
    rates, planned = question.arrivals(plan), plan.demand_rps
    if not rates:
        return "one mean rate, without a daily profile"
    above = sum(value > planned * (1 + 1e-9) for value in rates)
    over = f". In {plural(above, 'hour')} of the day the rate is above the planned one." if above else ""
    return (
        f"{rate(min(rates))} to {rate(max(rates))} over the hours of a day, planned for {rate(planned)}; the "
        f"day's mean is {percent(question.day_rate(plan) / planned)} of that{over}"
    )


SimulatedFleet = tuple[float, str, Sequence[EnginePool], Sequence[ClassLatencies], str]
"""A fleet that was simulated: its price [$/h], its name, its pools, what each class gets, and the outcome in words."""


def _simulated_table(plan: Plan, fleets: Sequence[SimulatedFleet]) -> Table:
    """A row for each fleet; every latency at the percentile of the goal, and over its limit, in the worst class."""
    own, rows = plan.cost_usd_per_hour or math.nan, []
    for usd, name, pools, cases, outcome in fleets:
        extra = MISSING if name == "recommended" else signed_percent(usd / own - 1.0)
        tails = worst_tails(cases, plan.classes).values()
        times = [f"{duration(seconds)} ({percent(share)})" for share, seconds in tails]
        shares = [f"{clean(case.name, 20)} " * (len(cases) > 1) + percent(case.attainment) for case in cases]
        rows.append((name, fleet_line(pools, limits=True), hourly(usd), extra, *times, ", ".join(shares), outcome))
    at, labels = goal_words(plan.classes), [METRICS[metric].label for metric in worst_tails((), plan.classes)]
    columns = ("fleet", Column(FLEET_WITH_LIMITS, shrink=True, lines=12), "#price", "#extra")
    tones = ["chosen" * (name == "recommended") for _, name, *_ in fleets]
    return table_of((*columns, *(f"#{label} {at}" for label in labels), "#SLO met", "outcome"), rows, tones)


def _own_outcome(simulation: Simulation) -> str:
    """The outcome of the recommended fleet."""
    misses = any(item.outcome is Outcome.MISSES for item in simulation.classes)
    return OUTCOMES[Outcome.MEETS if simulation.held else Outcome.MISSES if misses else Outcome.UNDECIDED]


OF_LIMIT: Final = (
    "Latencies are at the goal's percentile, in the worst class; in parentheses, their share of the limit."
)


def simulated_fleets_section(plan: Plan) -> Section:
    """The recommended fleet and those that simulation did not choose, cheapest first; empty where there are none."""
    simulation, cost = plan.simulation, plan.cost_usd_per_hour
    if simulation is None or cost is None:
        return Section()
    own = _own_outcome(simulation)
    fleets: list[SimulatedFleet] = [(cost, "recommended", plan.pools, simulation.classes, own)]
    for fleet in tried_fleets(plan):
        if fleet.latencies:
            outcome, name = outcome_words(fleet, plan), in_words(fleet.what, ORIGINS)
            fleets.append((fleet.cost_usd_per_hour, name, fleet.pools, fleet.latencies, outcome))
    if len(fleets) < 2:
        return Section()
    fleets.sort(key=lambda row: (row[0], row[1] != "recommended", row[1]))
    return Section(
        "Other fleets that were simulated",
        ("Alternatives are in the table above.",),
        table=_simulated_table(plan, fleets),
        notes=(OF_LIMIT,),
        detail=Detail.PAGE,
    )


def front_section(plan: Plan) -> Section:
    """What a dollar more buys: fleets around the plan's by cost and tail, where these were asked for.

    Looks of the plan's price differ from it in settings only, none of which is shown to be better.
    """
    simulation, own = plan.simulation, plan.cost_usd_per_hour or 0.0
    tuning = None if simulation is None else simulation.tuning
    if simulation is None or tuning is None or "tail" not in tuning.objectives:
        return Section()
    own_latencies, names = [item.latencies for item in plan.classes], {item.name for item in plan.classes}
    own_tail = max(tails_of_limits(own_latencies, plan.classes).values())
    dearer_fleets = [
        fleet
        for fleet in tuning.front
        if fleet.tail <= 1.0
        and fleet.cost_usd_per_hour > own * (1 + 1e-9)
        and names == {item.name for item in fleet.latencies}
    ]
    faster = next((fleet for fleet in dearer_fleets if fleet.outcome is Outcome.MEETS and fleet.tail < own_tail), None)
    gain = "no fleet that costs more and meets the SLO is faster"
    if faster is not None:
        more = faster.cost_usd_per_hour - own
        latency = f"the latency nearest to its limit falls from {percent(own_tail)} to {percent(faster.tail)} of it"
        gain = f"for +{hourly(more)} ({percent(more / own)}) {latency}"
    fleets: list[SimulatedFleet] = [(own, "recommended", plan.pools, own_latencies, _own_outcome(simulation))]
    for fleet in dearer_fleets:
        outcome = "one short run" if fleet.outcome is None else OUTCOMES[fleet.outcome]
        fleets.append((fleet.cost_usd_per_hour, "costs more", fleet.pools, fleet.latencies, outcome))
    other_kinds = f" and {count(tuning.compared)} of other kinds" if tuning.compared else ""
    looks = f"{plural(tuning.looks, 'fleet')} around the plan's{other_kinds} were simulated"
    return Section(
        f"What a dollar more buys: {gain}",
        table=_simulated_table(plan, fleets),
        notes=(f"{OF_LIMIT} {looks}, in full runs like the plan's unless the outcome says otherwise.",),
    )


def features_section(plan: Plan) -> Section:
    """What each feature of serving is worth, by formula, where that was asked for."""
    table = table_by_column(
        plan.worth,
        ("without", lambda item: clean(item.feature, 30)),
        ("#price", lambda item: hourly(item.without_usd_per_hour)),
        (Column("finding", shrink=True, lines=6), lambda item: sentence(item.sentence)),
    )
    return Section("What features are worth, by formula", table=table) if plan.worth else Section()


def hand_over_sentence(plan: Plan) -> str:
    """Say what share of the median TTFT the longest KV transfer takes; empty where nothing is transferred."""
    transfers = [move for move in plan.transfers if is_number(move.seconds_per_request)]
    median = plan.ttft_s.p50 if plan.ttft_s is not None else None
    if not transfers or not is_number(median) or median <= 0:
        return ""
    longest = max(transfers, key=lambda move: move.seconds_per_request)
    return (
        f"The longest KV transfer, from {clean(longest.source, 30)} to {clean(longest.target, 30)}, takes "
        f"{duration(longest.seconds_per_request)} for a mean request there: "
        f"{percent(longest.seconds_per_request / median)} of the median TTFT of {duration(median)}."
    )


def settings_section(plan: Plan, runs: Deployable | None) -> Section:
    """The settings of the engines, and the command that writes the files that state them, or why none does."""
    words = "They tell the engines these settings, and a max_model_len with room for a chat template."
    words = f"{no_target_words(runs)}." if runs is not None and runs.target is None else words
    drafts = any(pool.speculative_tokens for pool in plan.pools)
    names = ["role", "accelerator", "replicas", "spare_replicas", "gpus", *SETTINGS[1:]]
    names = [name for name in names if drafts or name != "speculative_tokens"]
    settings = [(LABELS.get(name, name), *(_setting(pool, name) for pool in plan.pools)) for name in names]
    engines = table_of(("setting", *(f"#{clean(pool.id, 20)}" for pool in plan.pools)), settings)
    return Section(
        "Settings",
        ("Exactly what was evaluated, per pool.",),
        table=engines,
        sections=(Section("Deployment files", (words,), code=deploy_command(plan, runs)),),
        detail=Detail.PAGE,
    )


def _setting(pool: Pool, name: str) -> str:
    value = getattr(pool, name)
    if isinstance(value, str):
        return clean(value)
    return hourly(value) if name == "usd_per_hour" else count(value) if isinstance(value, int) else significant(value)


def trust_sections(plan: Plan) -> tuple[Section, ...]:
    """What the figures of a plan rest on."""
    sections = (
        Section("Assumptions in force", tuple(map(sentence, plan.provenance.assumptions)) or ("None is stated.",)),
        Section(
            "Serving predicted against measured", table=accuracy_table(plan), notes=(MEDIANS,) * bool(plan.accuracy)
        ),
        Section(
            "Step times predicted against measured",
            table=step_errors_table(plan),
            notes=(STEP_ERRORS,) * bool(plan.step_errors),
        ),
        Section("Words", facts=WORDS),
    )
    text = json.dumps(question.readable_inputs(plan.provenance.inputs), indent=2, ensure_ascii=True, sort_keys=False)
    text = text if len(text) <= INPUTS_LIMIT else f"{text[:INPUTS_LIMIT]}\n… the rest is in plan.json"
    inputs = Section("The inputs, with every default filled in", code=text, detail=Detail.FOLDED)
    return *(dataclasses.replace(item, detail=Detail.PAGE) for item in sections), inputs


def step_errors_table(plan: Plan) -> Table:
    """The 90 % interval of measured over predicted step times of each accelerator; those of the fleet first."""
    factor: Final = "×{:.2f}".format
    bought = set(plan.gpus)
    return without_empty(
        table_by_column(
            sorted(plan.step_errors, key=lambda row: (row.accelerator not in bought, row.accelerator)),
            ("accelerator", lambda row: clean(row.accelerator, 30)),
            ("in the fleet", lambda row: "yes" if row.accelerator in bought else "no" if bought else MISSING),
            ("#prompts off by", lambda row: spread(row.prefill, factor)),
            ("#decode steps off by", lambda row: spread(row.decode, factor)),
            ("kernels", lambda row: "measured" if row.measured else "a relative's"),
        )
    )


STEP_ERRORS: Final = "Off by: 90 % of measured step times are within these multiples of the predicted ones."
MEDIANS: Final = (
    "Medians over models that the fit never saw, relative to the measured value. With a bias above zero, predictions "
    "are too long."
)


def accuracy_table(plan: Plan) -> Table:
    """Errors on record of TTFT and TPOT on the fleet's accelerators and ways of serving, relative to what was measured.

    Of all that were on offer where there is no fleet.
    """
    modes = {"colocated" if pool.role == "colocated" else "disaggregated" for pool in plan.pools}
    used = {(pool.accelerator, mode) for pool in plan.pools for mode in modes}
    return table_by_column(
        (row for row in plan.accuracy if not used or (row.accelerator, row.mode) in used),
        ("accelerator", lambda row: clean(row.accelerator)),
        ("mode", lambda row: row.mode),
        ("engine", lambda row: clean(row.engine, 20) or "any"),
        ("model", lambda row: clean(row.model) or "any"),
        ("#measurements", lambda row: count(row.rows) if row.rows else "none"),
        ("#TTFT off by", lambda row: percent(row.ttft_median_abs)),
        ("#TTFT bias", lambda row: signed_percent(row.ttft_bias)),
        ("#TPOT off by", lambda row: percent(row.tpot_median_abs)),
        ("#TPOT bias", lambda row: signed_percent(row.tpot_bias)),
    )


# --- what moves the cost ----------------------------------------------------------------------------------------------


def _ends(row: LeverSensitivity) -> tuple[tuple[str, float | None], tuple[str, float | None]]:
    """Both ends of a lever in words, and the least cost there [$/h]."""
    return (
        (value_words(row.lever, row.low), row.usd_per_hour_low),
        (value_words(row.lever, row.high), row.usd_per_hour_high),
    )


def piece_here(row: BreakEven) -> PricePiece | None:
    """The piece that the price at hand is in."""
    return next((piece for piece in row.pieces if piece.low <= row.usd_per_gpu_hour <= piece.high), None)


def break_even_sentence(plan: Plan, sensitivity: Sensitivity) -> str:
    """Say at which price of a GPU another fleet takes over first.

    What changes is the cheapest fleet by formula, which is named unless it has the same GPUs as the
    recommended one.
    """
    rows = [
        (row, below.high, above if piece_here(row) == below else below)
        for row in sensitivity.break_even
        for below, above in pairwise(row.pieces)
        if row.usd_per_gpu_hour > 0 and piece_here(row) in (below, above)
    ]
    if not rows:
        owns_gpus = any(entry.get("owned") for entry in plan.provenance.inputs.get("accelerators", ()))
        gpu_phrase = "a GPU to rent (what owned ones cost was not moved)" if owns_gpus else "a GPU"
        return f"By formula no price of {gpu_phrase}, from a quarter to four times as much, changes the cheapest fleet"
    row, at, piece = min(rows, key=lambda item: abs(item[1] / item[0].usd_per_gpu_hour - 1.0))
    away = at / row.usd_per_gpu_hour - 1.0
    change = (
        f"{'above' if away >= 0 else 'below'} {hourly(at)} per {clean(row.accelerator, 24)} ({signed_percent(away)})"
    )
    is_own_fleet = _alike(own_pools(plan), piece.pools)
    fleet = "the recommended fleet" if is_own_fleet else fleet_line(piece.pools)
    takes_over = f"{fleet} becomes cheaper" if piece.pools else "no fleet fits the budget"
    here = piece_here(row)
    gpus = Counter[str]()
    for pool in () if here is None else here.pools:
        gpus[pool.accelerator] += pool.gpus
    if here is None or gpus == plan.gpus:  # the same GPUs cost the same unless whole nodes are billed
        return f"Break-even by formula: {change}, {takes_over}"
    return f"By formula the cheapest fleet is {fleet_line(here.pools)}; {change}, {takes_over}"


def _alike(own: Sequence[EnginePool], pools: Sequence[EnginePool]) -> bool:
    """Whether these are the pools of the recommended fleet, in any order."""
    return bool(own) and engine_counts(own) == engine_counts(pools)


def base_sentence(plan: Plan, sensitivity: Sensitivity) -> str:
    """Say which fleets the section's costs are of, and how the recommended one stands to them."""
    own, base = hourly(plan.cost_usd_per_hour), hourly(sensitivity.usd_per_hour)
    opening = f"One lever changes at a time. Costs are those of the cheapest fleet by formula, now {base}"
    if _alike(own_pools(plan), sensitivity.pools):
        return f"{opening}, the recommended one."
    simulated_fleets = [] if plan.simulation is None else plan.simulation.others
    missed = any(_alike(fleet.pools, sensitivity.pools) and not fleet.held for fleet in simulated_fleets)
    unconfirmed = ", as simulation did not confirm that one" if missed else ""
    return f"{opening}. The recommended fleet costs {own}{unconfirmed}."


def swing_sentence(sensitivity: Sensitivity) -> str:
    """Say which lever moves the cost most, or leaves no fleet."""
    base = sensitivity.usd_per_hour
    costs = {row.lever: [base, row.usd_per_hour_low, row.usd_per_hour_high] for row in sensitivity.levers}
    row = next((row for row in sensitivity.levers if None in costs[row.lever]), sensitivity.levers[0])
    lever, ends = lever_words(row.lever), [cost for cost in costs[row.lever] if cost is not None]
    name = lever if lever == "burstiness" else f"the {lever}"
    without = next((value for value, cost in _ends(row) if cost is None), None)
    if without is not None:
        return f"With {name} at {without}, no fleet meets the SLO"
    if max(ends) - min(ends) <= 1e-9 * base:
        return f"No lever changes the cost within {percent(sensitivity.share)}: this fleet has room"
    return f"The cost depends most on {name}: {hourly(min(ends))} to {hourly(max(ends))}"


def sensitivity_section(plan: Plan) -> Section:
    """The section of a plan that has a fleet; where no lever was moved, what moves them."""
    sensitivity = plan.sensitivity
    if sensitivity is None:
        none = "Not worked out for this plan; pdplan whatif moves prices, demand, SLOs and limits."
        return Section("Sensitivity", (none,), detail=Detail.PAGE)
    changes = [(row, flip) for row in sensitivity.levers for flip in row.flips]
    sentences = (
        break_even_sentence(plan, sensitivity),
        swing_sentence(sensitivity) if sensitivity.complete else "",
        f"No other lever changes the fleet within {percent(sensitivity.share)}"
        * (sensitivity.complete and not changes),
        "Step times change over the 90 % interval of our prediction errors" if sensitivity.complete else "",
    )
    cells = [
        (
            lever_words(row.lever),
            *(value_words(row.lever, value) for value in (row.value, flip.same_at, flip.other_at)),
            fleet_line(flip.pools),
            hourly(flip.usd_per_hour),
        )
        for row, flip in changes
    ]
    which = Column("which", shrink=True, lines=4)
    table = table_of(("lever", "#now", "#same engines at", "#others at", which, "#$/h fleet"), cells)
    where = Section("Levers that make another fleet the cheapest", table=table)
    return Section(
        "Sensitivity",
        (base_sentence(plan, sensitivity), *(f"{text}." for text in said(*sentences))),
        levers_table(sensitivity.levers, sensitivity.usd_per_hour),
        sections=(
            *((_prices_section(plan, sensitivity),) if sensitivity.break_even else ()),
            *((where,) if changes else ()),
        ),
    )


def levers_table(levers: Sequence[LeverSensitivity], base: float | None) -> Table:
    """Each lever with its ends and what the cheapest fleet costs there, and beside it at hand [$/h]."""
    change = Column("change", "right", optional=True)
    columns = (Column("lever", shrink=True), "#lower", "#$/h fleet", change, "#higher", "#$/h fleet", change)
    rows = []
    for row in levers:
        cells = [lever_words(row.lever)]
        for value, cost in _ends(row):
            swing = "no fleet" if cost is None else signed_percent(cost / base - 1.0) if base else MISSING
            cells += [value, hourly(cost), swing]
        rows.append(cells)
    return table_of(columns, rows)


def _prices_section(plan: Plan, sensitivity: Sensitivity) -> Section:
    """Which fleet is the cheapest at each price of a GPU."""
    table = table_by_column(
        ((row, piece) for row in sensitivity.break_even for piece in row.pieces),
        ("GPU", lambda at: clean(at[0].accelerator)),
        ("#price from", lambda at: hourly(at[1].low)),
        ("#to", lambda at: hourly(at[1].high)),
        ("cheapest fleet", lambda at: fleet_line(at[1].pools)),
        ("#costs from", lambda at: hourly(at[1].usd_per_hour_low)),
        ("#to", lambda at: hourly(at[1].usd_per_hour_high)),
        ("now", lambda at: "yes" if at[1] is piece_here(at[0]) else "no"),
    )
    notes = ("Fleets that simulation did not confirm are left out.",) * (plan.simulation is not None)
    return Section("Cheapest fleet by price of a GPU", table=table, notes=notes, detail=Detail.PAGE)


# --- what runs it -----------------------------------------------------------------------------------------------------


def what_runs(plan: Plan) -> Deployable | None:
    """What runs a plan with every choice left to its default, worked out once for all views of it.

    None for a plan without a fleet, and where a file of the user describes the model or the accelerators: views must
    not depend on what lies on the disk.
    """
    is_of_catalog = not plan.provenance.inputs.get("catalog") and bool(question.inputs_of(plan, "model").get("name"))
    return deployable(plan) if question.has_fleet(plan) and is_of_catalog else None


def deploy_sentence(plan: Plan, runs: Deployable | None) -> str:
    """Say which targets cannot run a plan; empty where its own can, or its engine's, or where none is known.

    The targets named are those that run the plan's engine.
    """
    if runs is None or not runs.refused:
        return ""
    if runs.target is None:
        return f"{no_target_words(runs)} (pdplan deploy says why)."
    unable = [f"{target_of(name).title}{' alone' * (name == plan.engine)}" for name in runs.refused]
    title, why = target_of(runs.target).title, f"pdplan deploy --target {next(iter(runs.refused))} says why"
    return f"Deploy it with {title}: {join_words(unable)} cannot run it ({why})."


def prefix_router_sentence(plan: Plan, runs: Deployable | None) -> str:
    """Say what comes of a plan whose prefix hits need another router than that of its target; else empty."""
    if plan.prefix_cache is None:
        return ""
    target = planned_target(plan) if runs is None else runs.target
    return "" if target is None else planned_scatter_words(plan, target)


def no_target_words(runs: Deployable) -> str:
    """Say of a plan that no target runs that none does, or that one would if its weights had a name."""
    mends = [error.mend for error in runs.refused.values() if isinstance(error, NamelessWeightsError)]
    is_nameless = mends and len(mends) == len(runs.refused)
    return f"To deploy this plan, {mends[0]}" if is_nameless else "No deployment target runs this plan"


def backend_sentence(runs: Deployable | None) -> str:
    """Say that GPU types have to share one attention backend, which step times do not allow for; else empty."""
    engines = None if runs is None else runs.engines
    backend = None if engines is None else engines.pools[0].settings.attention_backend
    if engines is None or backend is None:
        return ""
    names = list(dict.fromkeys(pool.accelerator for pool in engines.pools))
    every = "both" if len(names) == 2 else "all"
    return (
        f"Shared attention backend: to hand over KV, {join_words(names)} {every} run the attention backend {backend}. "
        "Step times are predicted for the backend that each would choose by itself."
    )


def deploy_command(plan: Plan, runs: Deployable | None) -> str:
    """The command that writes the files that deploy a plan; empty where no target runs it.

    An evaluation writes no plan: its fleet is deployed from the file that was evaluated; empty where that is not known.
    """
    target, words = planned_target(plan) if runs is None else runs.target, question.command_words(plan)
    is_evaluated = plan.status is Status.STATED
    if target is None or (is_evaluated and (len(words) < 3 or words[2].startswith("-") or "--fleet" in words)):
        return ""
    folder = next((words[at + 1] for at, word in enumerate(words[:-1]) if word in {"-o", "--output"}), "plan")
    target_flag = "" if target == planned_target(plan) else f" --target {target}"
    source = words[2] if is_evaluated else posixpath.join(folder, "plan.json")
    return f"pdplan deploy {shlex.quote(source)}{target_flag} -o deploy"
