"""The answer of simulate: whether the fleet meets its SLOs, each class beside the plan, the pools, other rates."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from costmodel.accelerator import POWER
from costmodel.metric import METRICS, OWN_FIELDS, Metric
from costmodel.simulator.metrics import steady_throughput, throughput
from costmodel.units import HOURS_PER_DAY, MICRO
from costmodel.words import join_words, plural
from optimizer.plans.plan import Status
from optimizer.plans.records import TOLERANCE, ClassJudgement, ClassLatencies, Outcome
from optimizer.verification.judge import RatePoint, half_width
from optimizer.verification.simulated_plan import Curve, DaySlot, Simulated
from reports.document import Column, Document, Section, Table, said, table_of, without_empty
from reports.question import served_rate
from reports.slos import QUANTILES, class_record, goal_label, marked, misses_used, requests_of
from reports.text import (
    MISSING,
    clean,
    count,
    duration,
    durations,
    goal_percent,
    is_number,
    percent,
    percent_beside,
    points,
    rate,
    si,
    significant,
)
from reports.verdict import deciding_words, requests_to_decide, result_words, spares_sentence, strain_words

from .plan_charts import curve_chart

OTHER_RATE: Final = 0.05
"""Relative difference from which on the rate of a trace is not the plan's."""
MISMATCH: Final = 1.1
"""Saturation over the most that was served, from which on the runs were too short: requests were still waiting."""


def simulation_document(simulation: Simulated, *, next_step: str = "") -> Document:
    """The answer of a simulation; next_step: the command that a reader would want next."""
    judgement = simulation.judgement
    at, state = rate(judgement.rate), judgement.overload
    deciding = [item for item in judgement.classes if item.outcome is judgement.outcome] or judgement.classes
    worst = max(deciding, key=lambda item: misses_used(item.attainment_low, item.attainment_goal))
    ends = (percent_beside(share, worst.attainment_goal) for share in (worst.attainment_low, worst.attainment_high))
    strain = simulation.strain
    result = (
        f"{result_words(simulation.outcome, worst, judgement.classes)} at {at} (95 % interval {' to '.join(ends)})."
    )
    result += "" if strain is None else strain_words(strain)
    if state.overloaded:
        result = (
            f"Overloaded at {at}: {clean(simulation.behind or 'the fleet', 30)} falls behind. {percent(state.growth)} "
            f"of the requests pile up, and each second adds {duration(state.drift)} of delay, most of it in the "
            f"{state.where}."
        )
    elif judgement.outcome is Outcome.UNDECIDED:
        result += f" {deciding_words([judgement], simulation.most)}"
    return Document(
        headline=(result,),
        sections=(
            Section(sentences=_basis_sentences(simulation)),
            Section("SLOs", table=_classes(simulation), notes=_origins(simulation)),
            Section(
                "Pools",
                table=_pools(simulation),
                notes=(
                    "Busy: share of the time in which a replica runs a step, however small its batch. A plan's load is "
                    "something else: the share of what a pool can take within the SLO.",
                    "MFU, MBU: compute and memory traffic of the steps, as shares of the GPUs' peaks.",
                ),
            ),
            Section(sentences=_facts(simulation)),
            _rates(simulation),
        ),
        positive=simulation.outcome is Outcome.MEETS,
        next_step=next_step,
        about=(clean(simulation.plan.name), "simulated"),
    )


def _basis_sentences(simulation: Simulated) -> tuple[str, ...]:
    """Say which requests were simulated, what is counted of them, and to what every class is known."""
    judgement, until, seeds = simulation.judgement, simulation.request.until, simulation.seeds
    too_short = ""  # the fleet never has as many requests as under a steady load
    if simulation.unfilled is not None:
        residence, span = map(duration, simulation.unfilled)
        too_short = (
            f"These runs are too short to fill the fleet: a request takes {residence}, but a run only {span}, of which "
            "a tenth is warm-up. Under a steady load, latencies are longer. Leave out --requests to simulate enough."
        )
    runs = f" in {len(judgement.runs)} runs" if len(judgement.runs) > 1 else ""
    requests = f"{count(sum(run.demand.trace.size for run in judgement.runs))} requests{runs}"
    width, seed_words = half_width(judgement), ", ".join(map(str, seeds[:2])) + (", ..." if len(seeds) > 2 else "")
    drawn = f" (seed{'s' * (len(seeds) > 1)} {seed_words})" if seeds else ""
    precision = "" if until is None else f"; ±{percent(until)} was asked for"
    if until is not None and width > until:
        precision += " and takes too many requests"
    return said(
        f"{clean(simulation.plan.name, 30)}: {requests} at {rate(judgement.rate)}, {source_words(simulation)}.",
        f"The first 10 % of each run{drawn} are warm-up and not counted. Shares are known to within "
        f"{points(percent(width).removeprefix('<'), 'percentage point')} (95 % interval){precision}.",
        spares_sentence(simulation.plan),
        too_short,
    )


def source_words(simulation: Simulated) -> str:
    """Say where the requests come from, and how they differ from the plan's."""
    request, judgement, recording = simulation.request, simulation.judgement, simulation.instance.problem.recorded
    source = "drawn from the workload" if recording is None else f"drawn from {recording.source}, as the plan's were"
    if request.trace is not None:
        source = f"replayed from {request.trace.name}{simulation.remark}"
    elif request.profile is not None:
        day = float(judgement.runs[0].demand.trace.arrival.max())
        source += f" over a day that is made to last {duration(day)}"
    if request.balancing is not None:
        source += f", routed by a {request.balancing} router"
    if request.concurrency:
        source += f", {request.concurrency} at a time"
    if simulation.hits is not None:
        source += f", {percent(simulation.hits)} of its prompt tokens found in prefix caches by its hash blocks"
    demand, has_own_rate = simulation.plan.demand_rps, request.trace is not None and not request.concurrency
    if has_own_rate and request.rate is None and abs(judgement.rate / demand - 1.0) > OTHER_RATE:
        source += f", at its own rate; the plan is for {rate(demand)} (--rate)"
    return source


def _classes(simulation: Simulated) -> Table:
    metrics = _metrics(simulation)
    columns: list[Column | str] = [
        Column("class", shrink=True),
        "#SLO met",
        Column("95 % interval", "right", optional=True),
        *(f"#{METRICS[metric].label} {'/'.join(_labels(simulation))}" for metric in metrics),
    ]
    numbers = range(len(simulation.plan.classes))
    return table_of(columns, [row for number in numbers for row in _class_rows(simulation, number, metrics)])


def _labels(simulation: Simulated) -> list[str]:
    """The median, the percentiles that the goals ask for, and p99."""
    of_goals = {goal_label(slo.attainment) for slo in simulation.instance.problem.slos}
    return [label for label in QUANTILES if label in of_goals | {"p50", "p99"}]


def _metrics(simulation: Simulated) -> list[Metric]:
    """TTFT, TPOT and every other metric that some class limits."""
    limited_metrics = {metric for slo in simulation.instance.problem.slos for metric in slo.limits}
    return [metric for metric in Metric if metric in {*OWN_FIELDS, *limited_metrics}]


def _class_rows(simulation: Simulated, number: int, metrics: Sequence[Metric]) -> list[list[str]]:
    """The name, and under it goal, simulated, by formula and planned.

    Of a fleet that falls behind no share is undecided: it sinks for as long as the load lasts.
    """
    item, formula = simulation.judgement.classes[number], simulation.analytic
    labels, slo = _labels(simulation), simulation.instance.problem.slos[number]
    limits = [f"≤ {duration(slo.limits[metric])}" if metric in slo.limits else "" for metric in metrics]
    predictions: dict[str, ClassLatencies] = {}
    if formula is not None and formula.stable:
        predictions["by formula"] = formula.classes[number]
    if simulation.plan.status is not Status.STATED:  # the plan of a fleet file is by formula
        predictions["planned"] = simulation.plan.classes[number].latencies
    is_overloaded = number in simulation.judgement.late
    rows = [
        [clean(item.name, 30), "", "", *[""] * len(metrics)],
        ["  goal", goal_percent(item.attainment_goal), "", *limits],
        ["  simulated", *_attained(item, metrics, labels, is_overloaded=is_overloaded)],
    ]
    if formula is not None and not formula.stable:
        rows.append(["  by formula", percent(0.0), "", *["overloaded"] * len(metrics)])
    rows += [
        [f"  {name}", percent(row.attainment), "", *_quantiles(row, metrics, labels)]
        for name, row in predictions.items()
    ]
    return rows


def _origins(simulation: Simulated) -> tuple[str, ...]:
    """What the rows that are not simulated stand for."""
    sure = simulation.plan.confidence
    end = "upper" if sure > 0 else "lower"
    speed = f", with step times at the {end} end of their {percent(abs(sure))} interval" if sure else ""
    plan_sentence = f"planned: what the plan states for {rate(served_rate(simulation.plan))}{speed}."
    return said(
        "" if simulation.analytic is None else "by formula: queueing formulas at this rate.",
        "" if simulation.plan.status is Status.STATED else plan_sentence,
    )


def _attained(
    item: ClassJudgement, metrics: Sequence[Metric], labels: Sequence[str], *, is_overloaded: bool
) -> list[str]:
    """The share of a class that meets the SLO with its interval, and its latencies."""
    met = marked(Outcome.MISSES if is_overloaded else item.outcome, item.attainment)
    interval = f"{percent(item.attainment_low)} to {percent(item.attainment_high)}"
    return [met, interval, *_quantiles(item, metrics, labels)]


def _quantiles(item: ClassLatencies, metrics: Sequence[Metric], labels: Sequence[str]) -> list[str]:
    """Write the labelled quantiles of each metric."""
    quantiles = [item.quantiles.get(metric) for metric in metrics]
    return [
        MISSING if values is None else durations([getattr(values, label) for label in labels]) for values in quantiles
    ]


def _pools(simulation: Simulated) -> Table:
    columns = (
        Column("pool", shrink=True),
        *("#replicas", "#busy"),
        Column("MFU", "right", optional=True),
        *("#MBU", "#KV mean/peak", "#preempted", "#rejected"),
        Column("power", "right", optional=True),
        Column("most running", "right", optional=True),
    )
    rows, spares = [], {pool.id: pool.spare_replicas for pool in simulation.plan.pools}
    for pool in simulation.use.pools:
        replicas = count(pool.engines) + (f" (+{spares[pool.name]} spare)" if spares[pool.name] else "")
        shares = (pool.utilization, pool.mfu, pool.mbu)
        memory = f"{percent(pool.kv_occupancy)} / {percent(pool.kv_peak)}"
        events = (pool.preemptions, pool.preemption_rate), (pool.rejected, pool.rejection_rate)
        refusals = (f"{count(number)} ({percent(share)})" if number else "0" for number, share in events)
        cells = clean(pool.name, 20), replicas, *map(percent, shares), memory, *refusals
        rows.append((*cells, si(pool.power, "W"), count(pool.peak_running)))
    return table_of(columns, rows)


def _facts(simulation: Simulated) -> tuple[str, ...]:
    """What the fleet did beyond the tables."""
    use, unfinished_count = simulation.use, sum(int((~run.result.finished).sum()) for run in simulation.judgement.runs)
    served_rate, tokens = _served(simulation)
    middle = " without the first and the last tenth" * _is_even(simulation)
    loss_sentence = (
        f"{plural(unfinished_count, 'request')} never ended, and count{'s' * (unfinished_count == 1)} as missed."
    )
    return said(
        f"Served {rate(served_rate)} and {count(round(tokens))} output tokens/s{middle}.",
        *(
            f"Longest gap between tokens of {clean(item.name, 30)} (ITL max, p50/p99/max): "
            f"{durations((gap.quantiles.p50, gap.quantiles.p99, gap.longest))}."
            for item, gap in zip(simulation.judgement.classes, simulation.gaps, strict=True)
        ),
        f"Energy over the whole run: {significant(use.wh_per_1000_tokens)} Wh per 1,000 output tokens. The GPU boards "
        f"draw {si(use.power, 'W')} on average ({si(sum(pool.tdp for pool in use.pools), 'W')} TDP), "
        f"{POWER.origin.value} from published measurements.",
        _slot_sentence(simulation) if simulation.slots else "",
        loss_sentence if unfinished_count else "",
    )


def _is_even(simulation: Simulated) -> bool:
    """Whether the middle of a run is like the rest: not where it follows a day or a trace."""
    return simulation.request.trace is None and simulation.request.profile is None


def _served(simulation: Simulated) -> tuple[float, float]:
    """Requests and output tokens ended per second, on average over the runs [1/s].

    Of a day or a trace over the whole run: its middle may be busier than the rest.
    """
    speed = steady_throughput if _is_even(simulation) else throughput
    served_rate, tokens = np.mean([speed(run.result) for run in simulation.judgement.runs], axis=0).tolist()
    return served_rate, tokens


def _slot_sentence(simulation: Simulated) -> str:
    """Say which slot of the day went worst."""
    goals = [item.attainment_goal for item in simulation.judgement.classes]

    def used(slot: DaySlot) -> float:
        """Of the permitted misses, in the class that uses most; a class without a request in the slot uses none."""
        return max(misses_used(1.0 if math.isnan(a) else a, g) for a, g in zip(slot.attainment, goals, strict=True))

    worst = max(simulation.slots, key=lambda slot: (used(slot), slot.rate))
    number, length = simulation.slots.index(worst), HOURS_PER_DAY / len(simulation.slots)
    shares = join_words(
        [
            f"{percent(share)} of {requests_of(item.name, goals)}"
            for item, share in zip(simulation.judgement.classes, worst.attainment, strict=True)
        ]
    )
    ends = (divmod(round(60 * at * length), 60) for at in (number, number + 1))
    hours = " to ".join(f"{hour:02d}:{minute:02d}" for hour, minute in ends)
    return f"Worst part of the day: {hours} at {rate(worst.rate)}; {shares} meet the SLO."


def _rates(simulation: Simulated) -> Section:
    """The rates at which the fleet was simulated, where they were asked for: its whole curve, or for its goodput."""
    curve, goodput = simulation.curve, simulation.goodput
    if goodput is None:
        return Section()
    points, metrics = (goodput if curve is None else curve).points, _metrics(simulation)
    columns: list[Column | str] = [
        "#req/s",
        Column("class", shrink=True, beside=True),
        Column("req/s served", "right", optional=True),
        "#SLO met",
        Column("95 % interval", "right", optional=True),
        *(f"#{METRICS[metric].label} {'/'.join(_labels(simulation))}" for metric in metrics),
        Column("state", beside=True),
        Column("req/s within SLO", "right", optional=True),
    ]
    sentence = f"Goodput: none; the fleet misses an SLO even at {rate(goodput.fails)}."
    if goodput.rate > 0.0:
        plan, own_rate = simulation.plan, simulation.plan.goodput_rps
        is_less = plan.simulated and is_number(own_rate) and own_rate < goodput.rate * (1.0 - goodput.tolerance)
        burst = ", at which the fleet also recovers from a burst that fills its KV memory" if is_less else ""
        sentence = (
            f"Goodput: {rate(goodput.rate)}, exact to {percent(goodput.tolerance)}. Up to it the lower end of the 95 % "
            f"interval reaches the goal. {'The plan states' if plan.simulated else 'By formula it is'} {rate(own_rate)}"
            f"{burst}."
        )
    return Section(
        "Goodput" if curve is None else "Latency and throughput",
        said(*(() if curve is None else _curve_sentences(curve)), sentence),
        without_empty(
            table_of(columns, [row for point in points for row in _point_rows(point, metrics, _labels(simulation))])
        ),
        charts=() if curve is None else (curve_chart(simulation.plan, curve, f"Goodput {rate(goodput.rate)}"),),
    )


def _curve_sentences(curve: Curve) -> tuple[str, str]:
    """Say at which rate the fleet saturates, and where its knee is."""
    most = max(point.served for point in curve.points)
    saturation = f"Saturated at every rate down to {rate(curve.points[0].rate)}."
    if curve.saturation > 0.0:
        saturation = (
            f"Saturation: {rate(curve.saturation)}, exact to {percent(TOLERANCE)}. Above it the fleet falls behind. It "
            f"served {rate(most)} at most."
        )
        if curve.saturation > MISMATCH * most:
            saturation += " That is less: the runs are too short, so ask for more --requests."
    knee = next(point for point in curve.points if point.rate == curve.knee)
    return saturation, (
        f"Knee: {rate(knee.rate)}. Throughput over mean time in the system ({duration(knee.e2e)}) is greatest here. "
        "Above it that time grows faster, in proportion, than the throughput."
    )


def _point_rows(point: RatePoint, metrics: Sequence[Metric], labels: Sequence[str]) -> list[list[str]]:
    return [
        [
            significant(point.rate),
            clean(item.name, 30),
            significant(point.served),
            *_attained(item, metrics, labels, is_overloaded=number in point.late),
            "overloaded" if point.overloaded else MISSING,
            significant(point.in_time),
        ]
        for number, item in enumerate(point.classes)
    ]


# --- the record ------------------------------------------------------------------------------------------------------

SIMULATION_SCHEMA: Final = "pdplan.simulation/2"
UNITS: Final = {"power": "power_w", "tdp": "tdp_w", "energy": "energy_j"}
"""Fields of a pool's use that have a unit, and their keys."""


def simulation_json(simulation: Simulated) -> dict[str, Any]:
    """Give the simulation as a JSON document."""
    judgement, state = simulation.judgement, simulation.judgement.overload
    use, goodput, curve, strain = simulation.use, simulation.goodput, simulation.curve, simulation.strain
    served_rate, tokens = _served(simulation)
    return {
        "schema": SIMULATION_SCHEMA,
        "plan": simulation.plan.name,
        "source": source_words(simulation),
        "rate_rps": judgement.rate,
        "concurrency": simulation.request.concurrency,
        "requests": sum(run.demand.trace.size for run in judgement.runs),
        "replications": len(judgement.runs),
        "seeds": simulation.seeds,
        "cpu_s": simulation.cpu_seconds,
        "half_width": half_width(judgement),
        "until": simulation.request.until,
        "verdict": str(simulation.outcome),
        "requests_to_decide": requests_to_decide(judgement),
        "held": simulation.outcome is Outcome.MEETS,
        "stuck": strain is not None and strain.stuck,
        "replayed": strain is not None and strain.replayed,
        "near_capacity": strain is not None and strain.near_capacity,
        "overload": {
            "overloaded": state.overloaded,
            "growth": state.growth,
            "drift": state.drift,
            "where": state.where if state.overloaded else None,
            "pool": simulation.behind,
        },
        "served_rps": served_rate,
        "output_tokens_per_s": tokens,
        "classes": [_class_json(simulation, number, case) for number, case in enumerate(judgement.classes)],
        "pools": [{UNITS.get(name, name): value for name, value in asdict(pool).items()} for pool in use.pools],
        "energy": {
            "energy_j": use.energy,
            "power_w": use.power,
            "wh_per_1000_output_tokens": use.wh_per_1000_tokens,
            "origin": POWER.origin.value,
            "source": POWER.source,
        },
        "slots": [{"rate_rps": slot.rate, "attainment": list(slot.attainment)} for slot in simulation.slots] or None,
        "goodput": goodput
        and {
            "rate_rps": goodput.rate,
            "fails_at_rps": goodput.fails,
            "tolerance": goodput.tolerance,
            "points": [_point_json(point) for point in goodput.points],
        },
        "curve": curve
        and {
            "saturation_rps": curve.saturation,
            "knee_rps": curve.knee,
            "goodput_rps": curve.goodput.rate,
            "points": [_point_json(point) for point in curve.points],
        },
    }


def _class_json(simulation: Simulated, number: int, case: ClassJudgement) -> dict[str, Any]:
    """The figures of a class; `analytic` of a fleet that is overloaded by formula, and `plan` of a fleet file: null."""
    gaps, formula = simulation.gaps[number], simulation.analytic
    is_stated = simulation.plan.status is Status.STATED
    return class_record(case, is_late=number in simulation.judgement.late) | {
        "itl_max_s": asdict(gaps.quantiles) | {"max": gaps.longest},
        "analytic": None if formula is None or not formula.stable else asdict(formula.classes[number]),
        "plan": None if is_stated else asdict(simulation.plan.classes[number].latencies),
    }


def _point_json(point: RatePoint) -> dict[str, Any]:
    return {
        "rate_rps": point.rate,
        "served_rps": point.served,
        "in_time_rps": point.in_time,
        "output_tokens_per_s": point.tokens,
        "e2e_mean_s": point.e2e,
        "classes": [class_record(case, is_late=number in point.late) for number, case in enumerate(point.classes)],
        "overloaded": point.overloaded,
        "verdict": str(point.outcome),
        "held": point.proven,
    }


def timeline_json(simulation: Simulated, window: float) -> str:
    """Chrome-trace events of the steps of the first run in a window [s], for chrome://tracing or Perfetto.

    One process per engine, one thread per micro-batch in flight; a row of several equal decode steps is one event.
    """
    result, start = simulation.timeline(window)
    pools, engines = [pool.name for pool in simulation.use.pools], simulation.judgement.engines
    lanes = [(number, lane) for number, use in enumerate(result.engines) for lane in range(engines[use.pool].pipeline)]
    events: list[dict[str, Any]] = []
    for number, use in enumerate(result.engines):
        name = f"{pools[use.pool]} engine {number}"
        events.append({"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}})
    for lane, begin, finish, prompts, decodes, context, steps in result.steps_log.tolist():
        if begin < start + window and finish > start:
            engine, batch = lanes[int(lane)]
            contents = [f"{int(prompts)} prompt tokens"] * bool(prompts) + [f"{int(decodes)} decodes"] * bool(decodes)
            events.append(
                {
                    "name": " + ".join(contents) + (f" x {int(steps)}" if steps > 1 else ""),
                    "cat": "prefill" if prompts and not decodes else "decode" if not prompts else "mixed",
                    "ph": "X",
                    "ts": round(begin / MICRO, 3),
                    "dur": round((finish - begin) / MICRO, 3),
                    "pid": engine,
                    "tid": batch,
                    "args": {
                        "prompt_tokens": int(prompts),
                        "decodes": int(decodes),
                        "context_tokens": int(context),
                        "steps": int(steps),
                    },
                }
            )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"
