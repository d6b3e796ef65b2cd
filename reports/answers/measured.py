"""The answer of `validate --plan`: measurements of a fleet beside its plan, and whether it meets the plan's SLO.

There are two sources: the result of a benchmark that replayed the planned workload, and Prometheus histograms of real
traffic. Both give the share of requests within each limit, from quantiles or buckets, and rarely exactly: every share
is an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.errors import InputError, shown
from costmodel.metric import METRICS, SHOWN_ALWAYS, Metric
from costmodel.transformer import Transformer
from costmodel.words import join_words, plural
from optimizer.plans.plan import Plan
from optimizer.plans.records import Outcome, Quantiles
from reports.deploy.deployment import PlannedWorkload, told_apart
from reports.deploy.describe import demand_of
from reports.document import Document, Section, table_of
from reports.question import slo_classes
from reports.slos import QUANTILES, goal_label
from reports.text import clean, duration, percent, rate, signed_percent
from search_spaces.benchmark_results import read_results
from search_spaces.calibration import FARTHEST, in_flight, other_deployment, other_model
from search_spaces.catalog import load_catalog
from search_spaces.files import shown_path
from search_spaces.measured_engines import measured_model
from search_spaces.measurements import MeasuredRun
from search_spaces.problem import Slo
from search_spaces.prometheus import EngineSeries, Histogram, Scrape, needed_series, read_scrape

OTHER_WORKLOAD: Final = 0.1
"""Difference of mean lengths [1] beyond which a run replayed another workload: chance and tokenizers explain less."""
OTHER_RATE: Final = 0.1
"""How far off the planned request rate traffic is too light to show that the SLO is met, or too heavy to show that it
is missed [1]; assumed."""
SURE: Final = 1.96
"""Standard deviations on each side within which a share lies by chance 95 times in 100."""
ROUNDED: Final = 1e-6
"""Difference of two limits [1] that comes from writing them down."""
LEAST_SEEN: Final = 20
"""Requests that a stretch of time must have before its share within a limit is called a miss; assumed."""
MOST_MISSES: Final = 10
"""Stretches of time in which an SLO was missed that are listed."""
GAPS: Final = "TPOT is read from the gaps between tokens, so long answers count more."
APART: Final = (
    "Every engine times its own part of a request, so no histogram of a disaggregated fleet has the whole TTFT."
)
MIXED: Final = "Engines do not tell SLO classes apart: query the series of this class's replicas alone."
"""What to know of histograms that are not of quite what an SLO limits."""


Within = dict[str, Any]
"""The share of requests within one limit as the record has it: name, limit_s, share_low and share_high [1]."""


def within(name: str, limit: float | None, low: float, high: float) -> Within:
    """At least `low` and at most `high` of the requests [1] are within a limit [s]; None: they did not fail."""
    return {"name": name, "limit_s": limit, "share_low": low, "share_high": high}


def within_words(share: Within) -> str:
    """The share and the limit."""
    limit, interval = share["limit_s"], interval_words(share["share_low"], share["share_high"])
    return f"no failure for {interval}" if limit is None else f"{share['name']} within {duration(limit)} for {interval}"


def interval_words(low: float, high: float) -> str:
    """Write a share that is known to lie between two.

    >>> interval_words(0.5, 0.5), interval_words(0.0, 0.9), interval_words(0.9, 1.0), interval_words(0.5, 0.9)
    ('50 %', 'at most 90 %', 'at least 90 %', '50 % to 90 %')
    """
    if high - low < ROUNDED:
        return percent(low)
    if low <= 0.0:
        return f"at most {percent(high)}"
    return f"at least {percent(low)}" if high >= 1.0 else f"{percent(low)} to {percent(high)}"


def chance(goal: float, requests: float) -> float:
    """How far off the goal the share of so many requests may be by chance, where the goal is just kept [1].

    >>> round(chance(0.9, 400.0), 3)
    0.029
    """
    return SURE * math.sqrt(goal * (1.0 - goal) / requests)


def verdict_of(
    goal: float, shares: Sequence[Within], together: float | None = None, requests: float = math.inf
) -> Outcome:
    """Whether the goal [1] is kept, from the shares within each limit, or from the share within all of them together.

    At least 1 - sum (1 - share) of the requests are within all limits (Bonferroni), at most the smallest share; an
    interval does not reach its upper end, a quantile above the limit. A share that is known must be further from the
    goal than by `chance`; an interval too, where chance is more than half of the requests that may miss.

    >>> verdict_of(0.95, [within("TTFT", 1.0, 0.98, 1.0), within("TPOT", 1.0, 0.98, 1.0)]).value
    'meets'
    >>> verdict_of(0.95, [within("TTFT", 1.0, 0.98, 1.0), within("TPOT", 1.0, 0.5, 0.95)]).value
    'misses'
    >>> verdict_of(0.95, [], 0.96, requests=100).value
    'undecided'
    """
    low = 1.0 - sum(1.0 - share["share_low"] for share in shares) if together is None else together
    counted = shares if together is None else [within("all", None, together, together)]
    if any(_is_missed(share, goal, requests) for share in counted):
        return Outcome.MISSES
    margin = _margin(goal, requests, min((share["share_high"] for share in counted), default=1.0) - low)
    return Outcome.MEETS if low >= goal + margin - ROUNDED else Outcome.UNDECIDED


def _margin(goal: float, requests: float, width: float) -> float:
    """Distance from the goal that chance explains of a share known to within `width`; see `verdict_of` [1]."""
    by_chance = chance(goal, requests)
    return by_chance if width < ROUNDED or by_chance > (1.0 - goal) / 2.0 else 0.0


def _is_missed(share: Within, goal: float, requests: float = math.inf) -> bool:
    """Whether too few are within this limit; the upper end of an interval is not reached."""
    width = share["share_high"] - share["share_low"]
    most = goal - _margin(goal, requests, width)
    return bool(share["share_high"] < most if width < ROUNDED else share["share_high"] <= most)


def too_few_words(goal: float, shares: Sequence[Within], together: float | None, requests: float) -> str:
    """That so few requests do not tell what their shares would; empty where they do, or where no number would."""
    if verdict_of(goal, shares, together, requests) is verdict_of(goal, shares, together):
        return ""
    by_chance = percent(chance(goal, requests))
    return f"{requests:,.0f} requests are too few, as chance alone moves the share by up to {by_chance}: measure more."


def comparison_dict(plan: Plan, file: Path, slo_class: str | None = None) -> dict[str, Any]:
    """Predicted and measured quantiles [s] of each run in a benchmark's result file, and whether it met the SLO.

    slo_class: the one whose requests the run replayed, for every class of several has a run of its own.
    `slower` is measured / predicted - 1. Raises InputError for a plan without latencies, and for a file whose runs did
    not replay the plan's workload, were of another fleet, or have times in another unit.
    """
    if plan.ttft_s is None or plan.tpot_s is None:
        raise InputError(f"the plan {shown(plan.name)} predicts no latencies (its status is {plan.status})")
    runs = [record for record in read_results([file]) if isinstance(record, MeasuredRun)]
    if not runs:
        raise InputError(f"{shown_path(file)} has no run of a load generator")
    model = _planned_model(plan)
    for run in runs:
        _refuse_other_fleet(
            run.where, "" if model is None else other_deployment(run, model, [*plan.gpus], load_catalog())
        )
    slo = goal_of(plan, slo_class)
    demand = demand_of(plan, slo_class)
    prediction = next(((row.ttft_s, row.tpot_s) for row in plan.classes if row.name == slo_class), None)
    by_metric = dict(zip(("TTFT", "TPOT"), prediction or (plan.ttft_s, plan.tpot_s), strict=True))
    measured_class = next(row for row in plan.classes if slo_class in {None, row.name})
    whole = measured_class.latencies.quantiles.get(Metric.E2E)
    by_metric |= {"e2e": whole} if whole is not None and Metric.E2E in slo.limits else {}
    return {
        "schema": "pdplan.measured/1",
        "plan": plan.name,
        "slo_class": slo_class,
        "planned_requests_per_second": demand.request_rate,
        "runs": [_run(by_metric, demand, slo, run) for run in runs],
    }


def _planned_model(plan: Plan) -> Transformer | None:
    """The plan's model; None where a file of the user's describes it, so that no name tells."""
    with suppress(InputError):
        return measured_model(plan.model)
    return None


def _refuse_other_fleet(where: str, reason: str) -> None:
    if reason:
        raise InputError(f"{where}: {reason}, so it did not measure the plan's fleet")


def other_lengths(isl: float | None, osl: float | None, demand: PlannedWorkload) -> str:
    """By which mean lengths [token] requests are not those of the plan; empty where they are, or are not known."""
    for name, tokens, by_plan in (("prompts", isl, demand.mean_isl), ("answers", osl, demand.mean_osl)):
        if tokens is not None and abs(tokens / by_plan - 1.0) > OTHER_WORKLOAD:
            return f"its {name} have {tokens:,.0f} tokens on average, and the plan's {by_plan:,.0f}"
    return ""


def is_lighter(load: float | None, plan_rate: float) -> bool:
    """Whether traffic [1/s] is too light to show that the SLO is met at the planned rate."""
    return load is not None and load < (1.0 - OTHER_RATE) * plan_rate


def is_heavier(load: float | None, plan_rate: float) -> bool:
    """Whether traffic [1/s] is too heavy to show that the SLO is missed at the planned rate."""
    return load is not None and load > (1.0 + OTHER_RATE) * plan_rate


def goal_of(plan: Plan, slo_class: str | None) -> Slo:
    """Limits and goal of the class that was measured; InputError where it must be said which of several it is."""
    if slo_class is None and told_apart(plan):
        names = ", ".join(repr(row.name) for row in plan.classes)
        raise InputError(f"the plan {shown(plan.name)} has several SLO classes, each with a run; say which: {names}")
    demand_of(plan, slo_class)  # refuses a class that the plan does not have
    return next(item for item in slo_classes(plan) if slo_class in {None, item.name})


def _run(predictions: Mapping[str, Quantiles], demand: PlannedWorkload, slo: Slo, run: MeasuredRun) -> dict[str, Any]:
    difference = other_lengths(run.isl, run.osl, demand)
    if difference:
        raise InputError(f"{run.where}: {difference}, so it did not replay the plan's workload")
    measured = {"TTFT": run.ttft, "TPOT": run.tpot} | ({} if run.e2e.p50 is None else {"e2e": run.e2e})
    rows = [
        (f"{metric} {name}", getattr(predictions[metric], name), getattr(by_run, name))
        for metric, by_run in measured.items()
        if metric in predictions
        for name in QUANTILES
        if name != "p95" or (goal_label(slo.attainment) == "p95" and by_run.p95 is not None)
    ]
    _refuse_other_unit(run.where, [(by_plan, by_run) for _, by_plan, by_run in rows if by_run])
    return {
        "where": run.where,
        "tool": run.source,
        "requests": run.completed,
        "requests_per_second": run.request_throughput,
        "latencies": [
            {
                "name": name,
                "predicted_s": by_plan,
                "measured_s": by_run,
                "slower": by_run / by_plan - 1.0 if by_run else None,
            }
            for name, by_plan, by_run in rows
        ],
        **_run_verdict(demand.request_rate, slo, run),
    }


def _refuse_other_unit(where: str, latencies: Sequence[tuple[float, float]]) -> None:
    """Refuse a run that is faster than any fleet of the plan's GPUs, by its latencies as planned and measured [s]."""
    if latencies and float(np.median([by_plan / by_run for by_plan, by_run in latencies])) > FARTHEST:
        by_plan, by_run = latencies[0]
        raise InputError(
            f"{where}: most latencies are over {FARTHEST:g} times shorter than planned, such as {duration(by_run)} in "
            f"place of {duration(by_plan)}; check their unit (milliseconds, seconds)"
        )


def _run_verdict(plan_rate: float, slo: Slo, run: MeasuredRun) -> dict[str, Any]:
    """Whether a run met the SLO, which a request that failed did not."""
    ceilings = [slo.limits.get(metric) for metric in SHOWN_ALWAYS]
    limits = dict(zip(("TTFT", "TPOT", "e2e"), zip(ceilings, (run.ttft, run.tpot, run.e2e), strict=True), strict=True))
    shares = [
        within(name, limit, *latency.share_within(limit))
        for name, (limit, latency) in limits.items()
        if limit is not None
    ]
    answer_share = min(run.completed / run.prompts, 1.0) if run.completed and run.prompts else 1.0
    shares += [within("failed requests", None, answer_share, answer_share)] if answer_share < 1.0 else []
    matches = [
        goal is limit if goal is None or limit is None else abs(goal / limit - 1.0) < ROUNDED
        for goal, (limit, _) in zip(run.goals, limits.values(), strict=False)
    ]
    together = run.attainment if len(matches) == len(limits) and all(matches) and not _others(slo) else None
    requests, load = run.prompts or run.completed or math.inf, run.request_throughput or plan_rate
    verdict = verdict_of(slo.attainment, shares, together, requests)
    light, heavy, (_, is_closed_loop) = is_lighter(load, plan_rate), is_heavier(load, plan_rate), in_flight(run)
    is_replay = not (heavy or is_closed_loop)
    if (verdict is Outcome.MEETS and (light or _others(slo))) or not is_replay:
        verdict = Outcome.UNDECIDED
    following = {
        Outcome.MEETS: "Send it traffic; `pdplan validate --prometheus` then checks it by its metrics.",
        Outcome.MISSES: "Measure with `benchmark/run.sh sweep`, correct the predictions with `pdplan calibrate`, and "
        "plan again with its file as `catalog:`.",
        Outcome.UNDECIDED: "Replay with AIPerf and `--goodput`, which counts the requests within all limits.",
    }[verdict]
    if is_closed_loop:
        following = (
            f"It kept {run.concurrency:g} requests in flight, and the plan is for {rate(plan_rate)} whatever is in "
            "flight: replay the requests at their own times."
        )
    elif verdict is not Outcome.MEETS and answer_share < min(slo.attainment + chance(slo.attainment, requests), 1.0):
        following = "Read the logs of the router and the replicas: no plan foresees requests that fail."
    elif verdict is Outcome.UNDECIDED and (light or heavy):
        following = (
            f"It served {rate(load)}, and the plan is for {rate(plan_rate)}: replay the requests at their own times."
        )
    elif verdict is Outcome.UNDECIDED and _others(slo):
        names = join_words([METRICS[metric].label for metric in _others(slo)])
        following = f"The result says nothing of {names}: measure with a tool that reports it for each request."
    else:
        following = too_few_words(slo.attainment, shares, together, requests) or following
    return _verdict_dict(verdict, slo, shares, together, following)


def _verdict_dict(
    verdict: Outcome, slo: Slo, shares: Sequence[Within], together: float | None, following: str
) -> dict[str, Any]:
    """Whether the SLO is met, by which metric, and what to do next."""
    reason = join_words([within_words(share) for share in shares]) or "no limit"
    opening = {
        Outcome.MEETS: "The fleet meets the plan's SLO",
        Outcome.MISSES: "The fleet misses the plan's SLO",
        Outcome.UNDECIDED: "This does not tell whether the fleet meets the plan's SLO",
    }[verdict]
    if verdict is Outcome.MISSES:
        missed = [share for share in shares if _is_missed(share, slo.attainment)]
        opening = f"{opening} by {join_words([share['name'] for share in missed or shares])}"
        reason = join_words([within_words(share) for share in missed]) or reason
    if together is not None:
        alone = f" ({reason})" if verdict is Outcome.MISSES else ""
        reason = f"{percent(together)} of the requests are within all limits{alone}"
    return {
        "verdict": verdict.value,
        "attainment_goal": slo.attainment,
        "attainment": together,
        "within": list(shares),
        "sentence": f"{opening}: {reason}; the goal is {percent(slo.attainment)}. {following}",
    }


def comparison_document(value: dict[str, Any]) -> Document:
    """The answer, of a `comparison_dict`: a table for each run, and last whether the SLO is met."""
    plan_rate, runs = rate(value["planned_requests_per_second"]), value["runs"]
    columns = ("latency", "#plan", "#measured", "#slower by")
    rows = [
        [
            (item["name"], duration(item["predicted_s"]), duration(item["measured_s"]), signed_percent(item["slower"]))
            for item in run["latencies"]
        ]
        for run in runs
    ]
    tables = [
        Section(run["where"] if len(runs) > 1 else "", table=table_of(columns, latencies))
        for run, latencies in zip(runs, rows, strict=True)
    ]
    verdicts = [Section(sentences=(clean(run["sentence"], 600),)) for run in runs]
    return Document(
        headline=tuple(
            f"{run['where']}: {plural(run['requests'], 'request')} at {rate(run['requests_per_second'])}, planned "
            f"{plan_rate}."
            for run in runs
        ),
        sections=(*tables, *verdicts),
        positive=all(run["verdict"] == Outcome.MEETS for run in runs),
    )


def watch_dict(plan: Plan, file: Path, slo_class: str | None = None) -> dict[str, Any]:
    """Whether real traffic met the plan's SLO, of a Prometheus range query: by how much, and when it did not."""
    slo, scrape, model = goal_of(plan, slo_class), read_scrape(file), _planned_model(plan)
    for name in scrape.label_values("model_name"):
        _refuse_other_fleet(scrape.file, other_model(name, model) if model else "")
    histograms, notes = _limited(slo, scrape)
    notes += [MIXED] * told_apart(plan)
    notes += [APART] * any(pool.role == "prefill" for pool in plan.pools)
    if not histograms:
        raise InputError(f"the plan {shown(plan.name)} limits no latency that Prometheus has")
    shares = [
        within(series.value, limit, *histogram.share_within(limit)) for series, (limit, histogram) in histograms.items()
    ]
    misses = sorted(
        (miss for series, (limit, histogram) in histograms.items() for miss in _misses(series, limit, histogram, slo)),
        key=lambda miss: float(miss["share"]),
    )
    of_requests = (scrape.histogram(series) for series in (EngineSeries.TTFT, EngineSeries.E2E, EngineSeries.TPOT))
    request_histogram = next(filter(None, of_requests), next(iter(histograms.values()))[1])
    verdict = verdict_of(slo.attainment, shares, requests=request_histogram.total)
    too_few = too_few_words(slo.attainment, shares, None, request_histogram.total)
    demand, busiest = demand_of(plan, slo_class), request_histogram.busiest
    seconds = float(request_histogram.time[-1] - request_histogram.time[0]) + request_histogram.step
    load = request_histogram.total / seconds if seconds > 0.0 else None
    prompts, answers = scrape.histogram(EngineSeries.ISL), scrape.histogram(EngineSeries.OSL)
    difference = other_lengths(prompts.mean if prompts else None, answers.mean if answers else None, demand)
    if difference:
        difference += ". Plan again for it (`pdplan workload FILE`)"
    elif verdict is not Outcome.MISSES and is_lighter(busiest, demand.request_rate):
        difference = (
            f"the busiest tenth of the time had {rate(busiest)}, and the plan is for {rate(demand.request_rate)}"
        )
        difference += _absent_replicas(plan, scrape)
    if verdict is Outcome.MEETS and (_others(slo) or APART in notes or difference):
        verdict = Outcome.UNDECIDED
    return {
        "schema": "pdplan.watch/1",
        "plan": plan.name,
        "slo_class": slo_class,
        "start": _moment(float(request_histogram.time[0]) - request_histogram.step),
        "end": _moment(float(request_histogram.time[-1])),
        "requests": round(request_histogram.total),
        "requests_per_second": load,
        "planned_requests_per_second": demand.request_rate,
        "misses": misses,
        "notes": notes,
        **_verdict_dict(
            verdict, slo, shares, None, too_few or _watch_next(verdict, load, demand.request_rate, difference, misses)
        ),
    }


def _absent_replicas(plan: Plan, scrape: Scrape) -> str:
    """How many replicas that generate tokens the file lacks; empty where it has as many as the plan."""
    planned = sum(pool.replicas for pool in plan.pools if pool.role != "prefill")
    replicas = len(scrape.label_values("instance"))
    return f". The file has {replicas} of the plan's {planned} replicas: query all" if 0 < replicas < planned else ""


def _others(slo: Slo) -> list[Metric]:
    """The metrics that a class limits beyond those that a benchmark or Prometheus measures as the plan does."""
    return [metric for metric in slo.limits if metric not in SHOWN_ALWAYS]


def _limited(slo: Slo, scrape: Scrape) -> tuple[dict[EngineSeries, tuple[float, Histogram]], list[str]]:
    """Every limit [s] with the histogram of what it limits, and what is to be known of them."""
    series_of = {Metric.TTFT: EngineSeries.TTFT, Metric.TPOT: EngineSeries.TPOT, Metric.E2E: EngineSeries.E2E}
    histograms: dict[EngineSeries, tuple[float, Histogram]] = {}
    notes = [f"{metric.value} is limited, but Prometheus has no histogram of it." for metric in _others(slo)]
    for metric, series in series_of.items():
        limit = slo.limits.get(metric)
        if limit is None:
            continue
        histogram = scrape.histogram(series)
        if histogram is None and series is EngineSeries.TPOT:
            histogram = needed_series(scrape, EngineSeries.GAP)
            notes.append(GAPS)
        histograms[series] = (limit, histogram or needed_series(scrape, series))
    return histograms, notes


def _watch_next(
    verdict: Outcome, load: float | None, plan_rate: float, difference: str, misses: Sequence[dict[str, Any]]
) -> str:
    if is_heavier(load, plan_rate):
        return (
            f"Traffic is {rate(load)}, the plan is for {rate(plan_rate)}: plan again for it (`pdplan workload FILE`)."
        )
    if difference:
        return f"It is other traffic than planned: {difference}."
    if verdict is Outcome.MISSES:
        return (
            "Traffic is no more than planned: replay the workload (`benchmark/run.sh`) to see which predictions "
            "are off."
        )
    if verdict is Outcome.UNDECIDED:
        return (
            "Histograms count each latency by itself, in buckets. They do not show how many requests meet all limits: "
            "replay the workload (`benchmark/run.sh`) to see."
        )
    worst = f"It missed the SLO from {misses[0]['start']} to {misses[0]['end']}." if misses else ""
    return worst or "There is nothing to do."


def _misses(series: EngineSeries, limit: float, histogram: Histogram, slo: Slo) -> Iterator[dict[str, Any]]:
    """Stretches of steps in each of which fewer requests were within the limit than must, whatever its bucket."""
    high, counts = histogram.shares_within(limit)[1], histogram.counts.sum(axis=1)
    is_miss = (high < slo.attainment) & (counts > 0.0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_miss, [False]])))
    step = histogram.step
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        requests = float(counts[first:end].sum())
        if requests < LEAST_SEEN:
            continue
        yield {
            "name": series.value,
            "start": _moment(float(histogram.time[first]) - step),
            "end": _moment(float(histogram.time[end - 1])),
            "requests": round(requests),
            "share": float(high[first:end] @ counts[first:end]) / requests,
        }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def watch_document(value: dict[str, Any]) -> Document:
    """The answer, of a `watch_dict`: shares within the limits, when they were missed, and last the verdict."""
    within = [
        (item["name"], duration(item["limit_s"]), interval_words(item["share_low"], item["share_high"]))
        for item in value["within"]
    ]
    misses = [
        (item["name"], item["start"], item["end"], f"{item['requests']:,}", percent(item["share"]))
        for item in value["misses"][:MOST_MISSES]
    ]
    sections = [Section(table=table_of(("metric", "#limit", "#requests within it"), within))]
    if misses:
        table = table_of(("missed by", "from", "to", "#requests", "#within, at most"), misses)
        sections.append(Section("When it was missed", table=table))
    sections.append(Section(sentences=(*value["notes"], value["sentence"])))
    return Document(
        headline=(
            f"{plural(value['requests'], 'request')} from {value['start']} to {value['end']}, "
            f"{rate(value['requests_per_second'])}; planned {rate(value['planned_requests_per_second'])}.",
        ),
        sections=tuple(sections),
        positive=value["verdict"] == Outcome.MEETS,
    )
