"""The answers of frontier, `whatif --break-even` and `whatif --chunk`: the best fleet along one lever."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, Final

from costmodel.metric import METRICS, OWN_FIELDS, Metric
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import join_words, plural
from optimizer.plans.records import Outcome, pool_records, unpriced
from optimizer.whatif.answer import RESOLUTION, ChunkCurve, Frontier, Step
from reports.charts import Axis, Panel, Series, draw_panels, round_ratios, round_steps, round_ticks
from reports.document import Chart, Column, Document, Section, Table, said, table_of
from reports.fleets import fleet_line
from reports.slos import TONES, goal_label, marked, misses_used
from reports.text import MISSING, clean, count, duration, hourly, monthly, percent, rate, signed_percent, significant
from search_spaces.bounds import OVER

from . import whatif

QUESTIONS: Final[Mapping[str, str]] = {
    "rate": "What does more demand cost?",
    **{str(metric): f"What does a tighter {row.label} limit cost?" for metric, row in METRICS.items()},
    "attainment": "What does a higher attainment cost?",
    "budget": "What does each budget serve?",
}
STEP_DIGITS: Final = 4
"""Of the values at which steps end."""
EXACT_DIGITS: Final = 6
"""Of the values at which the cheapest fleet changes."""
MOST_VALUES: Final = 3
"""Values at which the fleet changes that the headline lists."""


def _answers_at(steps: Sequence[Step], at: Callable[[float], str]) -> Iterator[whatif.AnswerAt]:
    """The answer on each step, and from where to where that is."""
    yield from ((f"from {at(step.start)} to {at(step.end)}", step.answer) for step in steps)


# --- frontiers --------------------------------------------------------------------------------------------------------


def curve_record(curve: Frontier) -> dict[str, Any]:
    """The curve as a record, a step for each fleet; by budget: each step's cost, and the rate that it serves."""
    own = {"value": curve.here, "found_usd_per_hour": None if curve.own is None else curve.own.cost}
    exact = {"tolerance": curve.tolerance, "resolution": RESOLUTION, "own": own}
    over, unit = ("budget", "$/h") if curve.by_budget else (curve.over, _unit(curve))
    steps = [_step_record(curve, step) for step in (_having(curve) if curve.by_budget else curve.steps)]
    return {"over": over, "unit": unit} | exact | {"steps": steps, "refuted": [miss.row for miss in curve.refuted]}


ENDS: Final = ("from", "to", "to_by_formula", "missed_at")


def _step_record(curve: Frontier, step: Step) -> dict[str, Any]:
    """A step as a record; along a price, its pools and its fleet have no single one."""
    ends = dict(zip(ENDS, (step.start, step.end, step.promised or step.end, step.missed), strict=True))
    if curve.by_budget:
        per_dollar = {"requests_per_dollar": _per_dollar(step)}
        return {"budget_usd_per_hour": step.answer.cost, "rate_rps": step.end} | per_dollar | ends | step.answer.row
    costs = dict(zip(("cost_from_usd_per_hour", "cost_to_usd_per_hour"), step.costs, strict=True))
    best = step.answer if step.costs[0] == step.costs[1] else replace(step.answer, pools=unpriced(step.answer.pools))
    return ends | costs | best.row | ({} if best is step.answer else {"cost_usd_per_hour": None})


def frontier_rows(curve: Frontier) -> list[dict[str, Any]]:
    """A row for each step, its ends named after the lever; `reports.rows` makes a table of them."""
    names = {key: f"{curve.over}.{key}" for key in ENDS}
    return [{names.get(key, key): value for key, value in row.items()} for row in curve_record(curve)["steps"]]


def frontier_document(curve: Frontier) -> Document:
    """A line per step of the staircase, the easiest first."""
    return Document(
        headline=said(headline(curve), _jump_sentence(curve)),
        sections=(
            Section(charts=_staircase(curve)),
            Section(table=steps_table(curve)),
            Section(
                sentences=tuple(whatif.no_fleet_sentences(_answers_at(curve.steps, lambda value: _at(curve, value))))
            ),
            Section(sentences=(" ".join(_frontier_notes(curve)),)),
        ),
        positive=bool(_having(curve)),
    )


def _having(curve: Frontier) -> list[Step]:
    return [step for step in curve.steps if step.answer.cost]


def _per_dollar(step: Step) -> float:
    """Requests at the end of a step for a dollar of its fleet [1/$]."""
    return step.end * SECONDS_PER_HOUR / (step.answer.cost or math.inf)


def _unit(curve: Frontier) -> str:
    """The unit of the lever's values; 1 for factors, shares and counts."""
    return whatif.lever_unit(curve.over).replace(whatif.FACTOR, "") or "1"


def _at(curve: Frontier, value: float | None, digits: int = STEP_DIGITS) -> str:
    """A value of the lever with its unit."""
    return whatif.value_words(curve.over, value or 0.0, digits)


def headline(curve: Frontier) -> str:
    """From what to what the cost goes over the range that has fleets."""
    if not curve.steps:
        return "No fleet at any of these budgets."
    steps = _having(curve)
    if not steps:
        return f"No fleet meets the SLO from {_at(curve, curve.steps[0].start)} to {_at(curve, curve.steps[-1].end)}."
    first, last = steps[0], steps[-1]
    if curve.by_budget:
        serves = list(dict.fromkeys(f"{hourly(step.answer.cost)} serves {rate(step.end)}" for step in (first, last)))
        return f"{', '.join(serves)}."
    ends = f"With the {whatif.lever_words(curve.over)} from {_at(curve, first.start, 3)} to {_at(curve, last.end, 3)}"
    return f"{ends}, the cheapest fleet costs {whatif.cost_words(first.answer.cost, last.answer.cost)}."


def _jump_sentence(curve: Frontier) -> str:
    """Where the cost jumps most; empty where nothing is found."""
    steps = _having(curve)
    jumps = [((after.answer.cost or 0.0) - (before.answer.cost or 0.0), before) for before, after in pairwise(steps)]
    if not jumps:
        return "One fleet is the cheapest over the whole range." if steps else ""
    most, before = max(jumps, key=lambda jump: jump[0])
    place = f"{hourly(most)}, is at {_at(curve, before.end, 3)}"
    if len(jumps) == 1:
        return f"The cheapest fleet changes once over this range; the step in cost, {place}."
    return f"The cheapest fleet changes {len(jumps)} times over this range; the largest step in cost, {place}."


def steps_table(curve: Frontier) -> Table:
    """A row for each step, which begins where the one before it ends; over a budget: what it serves.

    Along a price the cost has two ends.
    """
    steps = _having(curve) if curve.by_budget else list(curve.steps)
    columns: list[Column | str]
    if curve.by_budget:
        columns = ["#budget", "#serves up to", Column("per dollar", "right", optional=True)]
        rows = [[hourly(step.answer.cost), rate(step.end), f"{significant(_per_dollar(step))} req/$"] for step in steps]
    else:
        rises = curve.steps[0].start <= curve.steps[-1].end
        columns = [f"#{whatif.lever_words(curve.over)} {'up' if rises else 'down'} to", "#cost"]
        costs = [dict.fromkeys("no fleet" if cost is None else hourly(cost) for cost in step.costs) for step in steps]
        rows = [[_at(curve, step.end), " to ".join(ends)] for step, ends in zip(steps, costs, strict=True)]
    return whatif.fleet_table(columns, rows, [step.answer for step in steps])


def _frontier_notes(curve: Frontier) -> tuple[str, ...]:
    """Where steps end and how exactly, which of them were simulated, and what is found for the file as it stands."""
    having = [step.answer for step in _having(curve)]
    fine, coarse = (f"{significant(100.0 * share)} %" for share in (curve.tolerance, RESOLUTION))
    simulated = sum(answer.attainment is not None for answer in having)
    unit = " of the permitted misses" if curve.over == "attainment" else ""
    exact = f"to within {fine}{unit} by formula" + (f", {coarse} where it was simulated" if simulated else "")
    basis = "All are by formula, not simulated (--verify N)."
    if simulated:
        moved, ruled_out = sum(step.promised is not None for step in curve.steps), len(curve.refuted)
        effects = said(
            f"moved the end of {plural(moved, 'row')}" * bool(moved),
            f"ruled out {plural(ruled_out, 'other fleet')} (--json)" * bool(ruled_out),
        )
        effect = f"; that {join_words(effects)}" if effects else ""
        number = "All" if simulated == len(having) else f"{simulated:,} of {len(having):,}"
        basis = f"{number} fleets were simulated and meet the SLO{effect}."
    own = ""
    if curve.here is not None and curve.own is not None:
        own = f"At {_at(curve, curve.here)}, the file's own value, pdplan optimize finds {hourly(curve.own.cost)}."
    return said(f"A row ends where its fleet misses the SLO, {exact}.", basis * bool(having), own)


def _staircase(curve: Frontier) -> tuple[Chart, ...]:
    """The chart of the steps, with the value at hand; none where there is no fleet."""
    steps = _having(curve)
    if not steps:
        return ()
    name, unit = whatif.lever_words(curve.over), "" if _unit(curve) == "1" else f" [{_unit(curve)}]"
    ends, costs = (
        [end for step in curve.steps for end in (step.start, step.end)],
        [step.answer.cost or 0.0 for step in steps],
    )
    x, y = _axis(f"{name}{unit}", min(ends), max(ends)), _axis("least cost [$/h]", min(costs), 1.1 * max(costs))
    if not y.log:
        y = replace(y, low=0.0, ticks=[(value, significant(value)) for value in round_steps(y.high)])
    if curve.over == "attainment":
        x = replace(x, ticks=[(value, percent(value)) for value, _ in x.ticks])
    lines = [
        Series([(before.end, before.answer.cost or 0.0), (after.start, after.answer.cost or 0.0)], line="drop")
        for before, after in pairwise(curve.steps)
        if before.answer.cost and after.answer.cost
    ]
    lines += [
        Series(
            [(end, step.answer.cost or 0.0) for end in sorted((step.start, step.end))],
            line="curve decode",
            tips=[
                f"{name} {_at(curve, step.start)} to {_at(curve, step.end)}: {hourly(step.answer.cost)}, "
                f"{fleet_line(step.answer.pools)}"
            ],
        )
        for step in steps
    ]
    here = [] if curve.here is None else [(curve.here, "drop", f"the file: {_at(curve, curve.here)}", "strong")]
    gap = " Where there is no line, there is no fleet." if len(steps) < len(curve.steps) else ""
    return (
        Chart(
            title=f"Least cost by {name}",
            caption=f"Each line is one fleet; replicas are whole, so the cost jumps.{gap}",
            drawing=draw_panels([Panel(x, y, lines, uprights=here, height=240.0)]),
            table=steps_table(replace(curve, by_budget=False)),
        ),
    )


WIDE: Final = 10.0
"""High over low end from which on an axis goes by logarithms, so that its low end can be read."""


def _axis(name: str, low: float, high: float) -> Axis:
    """An axis of positive values; one of a wide range goes by logarithms."""
    is_log = 0.0 < WIDE * low <= high
    ticks = round_ratios(low, high) if is_log else round_ticks(low, high)
    return Axis(
        f"{name}, logarithmic" if is_log else name, low, high, [(tick, significant(tick)) for tick in ticks], is_log
    )


# --- break-even values ------------------------------------------------------------------------------------------------


def break_even_document(curve: Frontier, *, simulable: bool) -> Document:
    """The best fleet over the range of a lever; simulable: whether --verify simulates fleets along it."""
    answers = [step.answer for step in curve.steps]
    notes = whatif.simulated_notes(answers)
    if notes and not simulable and all(answer.attainment is None for answer in answers):
        notes = said(
            f"Not simulated: --verify is for fleets along a price, not along {curve.over}.",
            "--simulate simulates each of these fleets; pdplan optimize simulates the fleet of the file as it stands.",
            f"pdplan frontier --over {curve.over} shows how far each meets the SLO." if curve.over in OVER else "",
        )
    sentences = (
        *whatif.no_fleet_sentences(_answers_at(curve.steps, lambda value: _at(curve, value, EXACT_DIGITS))),
        *whatif.ruled_out_sentences(curve.refuted),
        *notes,
    )
    return Document(
        headline=(_changes_sentence(curve),),
        sections=(Section(table=steps_table(curve)), Section(sentences=sentences)),
        positive=any(answer.cost is not None for answer in answers),
    )


def _changes_sentence(curve: Frontier) -> str:
    """At which values the cheapest fleet changes, and how exactly they are known; prices are, to all digits shown."""
    low, high, *values = (
        _at(curve, value, EXACT_DIGITS)
        for value in (curve.steps[0].start, curve.steps[-1].end, *(step.start for step in curve.steps[1:]))
    )
    if not values:
        return f"From {low} to {high}, {curve.over} does not change the cheapest fleet."
    times = {1: "once", 2: "twice"}.get(len(values), f"{len(values)} times")
    where = f", at {join_words(values)}" if len(values) <= MOST_VALUES else ""
    tolerance = whatif.value_words(curve.over, curve.tolerance, 2).removeprefix(whatif.FACTOR)
    exact = "" if curve.over.startswith("price.") else f" (exact to {tolerance})"
    return f"From {low} to {high}, {curve.over} changes the cheapest fleet {times}{where}{exact}."


# --- chunks -----------------------------------------------------------------------------------------------------------


def chunk_record(curve: ChunkCurve) -> dict[str, Any]:
    """The curve as a record."""
    return {
        "role": curve.role.value,
        "own_chunk": curve.own,
        "cost_usd_per_hour": curve.answer.cost,
        "pools": pool_records(curve.answer.pools),
        "rows": [asdict(row) for row in curve.rows],
        "without_memory": list(curve.without_memory),
    }


def chunk_document(curve: ChunkCurve) -> Document:
    """What each chunk makes of the fleet, for the class with the least room: latencies, goodput, and what it costs."""
    own, slos = next(row for row in curve.rows if row.chunk_tokens == curve.own), curve.problem.slos
    used = [misses_used(item.attainment, slo.attainment) for item, slo in zip(own.classes, slos, strict=True)]
    k = used.index(max(used))
    label, cost = goal_label(slos[k].attainment), curve.answer.cost
    metrics = [metric for metric in Metric if metric in {*OWN_FIELDS, *slos[k].limits}]
    cells = [
        (
            f"{count(row.chunk_tokens)}{' (own)' if row.chunk_tokens == curve.own else ''}",
            *(
                "overloaded" if row.overloaded else duration(getattr(row.classes[k].quantiles[metric], label))
                for metric in metrics
            ),
            marked(row.outcome, row.classes[k].attainment),
            rate(row.goodput_rps),
            MISSING if row.replicas_needed is None else str(row.replicas_needed),
            hourly(row.cost_needed_usd_per_hour),
        )
        for row in curve.rows
    ]
    latencies = (f"#{METRICS[metric].label} {label}" for metric in metrics)
    columns = ["#chunk", *latencies, "#SLO met", "#goodput", "#replicas", "#cost"]
    fleet = f"{fleet_line(curve.answer.pools)} for {hourly(cost)} ({monthly(cost)}/month)"
    return Document(
        headline=(
            f"The cheapest fleet takes prompts in chunks of {count(curve.own)} tokens: {fleet}.",
            _range_sentence(curve),
        ),
        sections=(
            Section(charts=(_chunk_chart(curve, k, label),)),
            Section(table=table_of(columns, cells)),
            Section(sentences=_chunk_notes(curve, k, label)),
        ),
    )


def _range_sentence(curve: ChunkCurve) -> str:
    """From what to what the goodput of the same fleet goes, and with which chunks."""
    worst, best = (pick(curve.rows, key=lambda row: row.goodput_rps) for pick in (min, max))
    if worst.goodput_rps >= best.goodput_rps:
        return f"With any of these chunks its goodput is {rate(best.goodput_rps)}."
    return (
        f"Its goodput is highest with {count(best.chunk_tokens)} tokens ({rate(best.goodput_rps)}) and lowest with "
        f"{count(worst.chunk_tokens)} ({rate(worst.goodput_rps)}, "
        f"{signed_percent(worst.goodput_rps / best.goodput_rps - 1.0)})."
    )


def _chunk_notes(curve: ChunkCurve, k: int, label: str) -> tuple[str, ...]:
    slo = curve.problem.slos[k]
    name = f" of class {clean(slo.name, 20)}, which has the least room" if len(curve.problem.slos) > 1 else ""
    is_simulated = curve.rows[0].simulated
    is_undecided = any(row.outcome is Outcome.UNDECIDED for row in curve.rows)
    how = "simulated, with the same fresh requests for each chunk" if is_simulated else "by formula"
    limits = ", ".join(f"{METRICS[metric].label} {duration(limit)}" for metric, limit in slo.limits.items())
    none = ", ".join(map(count, curve.without_memory))
    role, demand = f"{curve.role.value} replicas", rate(curve.problem.workload.request_rate)
    return said(
        f"own: the chunk of the fleet (max_num_batched_tokens of the {role}); all else stays the same.",
        f"Latencies at {label}, and SLO met{name}: {how}. Limits: {limits} for {percent(slo.attainment)} of requests.",
        "Undecided: the goal lies within the 95 % interval of the share." if is_undecided else "",
        "Goodput: the highest rate within the SLO, by formula.",
        f"Replicas, cost: the {role} that the SLO needs at {demand} by formula, and what the fleet with them costs.",
        f"No memory for a request beside a chunk of {none} tokens." if none else "",
    )


def _chunk_chart(curve: ChunkCurve, k: int, label: str) -> Chart:
    """Latencies over their limits against the chunk, of which each takes as much room."""
    used = {
        metric: [getattr(row.classes[k].quantiles[metric], label) / limit for row in curve.rows]
        for metric, limit in curve.problem.slos[k].limits.items()
    }
    chunks, names = [count(row.chunk_tokens) for row in curve.rows], {metric: METRICS[metric].label for metric in used}
    spans = [
        f"{names[metric]} is {percent(min(row))} to {percent(max(row))} of its limit" for metric, row in used.items()
    ]
    lines = [
        Series(
            list(enumerate(row)),
            line=f"curve {TONES[metric]}",
            tips=[
                ", ".join(
                    f"{chunk}: {names[metric]} {percent(share)}" for chunk, share in zip(chunks, row, strict=True)
                )
            ],
        )
        for metric, row in used.items()
    ]
    high = 1.1 * max(1.0, *(share for row in used.values() for share in row))
    x = Axis("chunk [tokens]", 0.0, max(len(chunks) - 1.0, 1.0), list(enumerate(chunks)))
    y = Axis(f"{label}, share of its limit", 0.0, high, [(share, percent(share)) for share in round_steps(high)])
    return Chart(
        title=f"At {label}, {join_words(spans)}",
        caption="The dashed line is the limit.",
        drawing=draw_panels([Panel(x, y, lines, levels=[(1.0, "limit", "")], height=240.0)]),
        table=table_of(
            ("#chunk", *(f"#{name} of its limit" for name in names.values())),
            [(chunk, *map(percent, shares)) for chunk, *shares in zip(chunks, *used.values(), strict=True)],
        ),
        legend=tuple((TONES[metric], name) for metric, name in names.items()),
    )
