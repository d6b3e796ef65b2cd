"""What a plan promised beside what the benchmark of its deployment measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from costmodel.errors import InputError
from costmodel.quoting import shown
from optimizer.plans.plan import Plan
from optimizer.plans.records import Quantiles
from reports.document import Document, Section, Table, table_of
from reports.numbers import duration, rate, signed_percent
from reports.text import plural
from search_spaces.benchmark_results.readers import read_results
from search_spaces.benchmark_results.records import BenchmarkRun
from search_spaces.files import shown_path
from search_spaces.problem import Balancing

from .demand import demand_of, told_apart
from .description import Demand

QUANTILES: Final = ("p50", "p90", "p99")
OTHER_WORKLOAD: Final = 0.1
"""Difference of mean lengths [1] beyond which a run replayed another workload: chance and tokenizers explain less."""


def behind(plan: Plan, router: Balancing) -> Plan:
    """The plan with its figures behind a router; as it is where that is its own, or was not simulated.

    Latencies of several classes together are known behind its own only.
    """
    found = None if plan.simulation is None else plan.simulation.fewest_requests
    if found is None or not found.latencies or router is not Balancing.FEWEST_REQUESTS:
        return plan
    classes = [
        one.model_copy(update={"attainment": row.attainment, "ttft_s": row.ttft_s, "tpot_s": row.tpot_s})
        for one, row in zip(plan.classes, found.latencies, strict=True)
    ]
    whole = {"ttft_s": classes[0].ttft_s, "tpot_s": classes[0].tpot_s} if len(classes) == 1 else {}
    return plan.model_copy(update={"classes": classes, **whole})


def promise_dict(plan: Plan, file: Path, slo_class: str | None = None) -> dict[str, Any]:
    """Promised and measured quantiles [s] of each run in a benchmark's result file.

    slo_class: the one whose requests the run replayed, for every class of several has a run of its own.
    The error is promised / measured - 1. Raises InputError for a plan without a promise, and for a file whose runs
    did not replay the plan's workload.
    """
    if plan.ttft_s is None or plan.tpot_s is None:
        raise InputError(f"the plan {shown(plan.name)} promises no latencies (its status is {plan.status})")
    runs = [record for record in read_results([file]) if isinstance(record, BenchmarkRun)]
    if not runs:
        raise InputError(f"{shown_path(file)} has no run of a load generator")
    if slo_class is None and told_apart(plan):
        names = ", ".join(repr(one.name) for one in plan.classes)
        raise InputError(f"the plan {shown(plan.name)} has several SLO classes, each with a run; say which: {names}")
    demand = demand_of(plan, slo_class)
    promised = next(((one.ttft_s, one.tpot_s) for one in plan.classes if one.name == slo_class), None)
    return {
        "schema": "pdplan.promise/1",
        "plan": plan.name,
        "slo_class": slo_class,
        "planned_requests_per_second": demand.rate,
        "runs": [_run(promised or (plan.ttft_s, plan.tpot_s), demand, run) for run in runs],
    }


def _run(latencies: tuple[Quantiles, Quantiles], demand: Demand, run: BenchmarkRun) -> dict[str, Any]:
    for name, found, lengths in (("prompts", run.isl, demand.isl), ("answers", run.osl, demand.osl)):
        planned = sum(length * share for length, share in zip(lengths, demand.share, strict=True)) / sum(demand.share)
        if abs(found / planned - 1.0) > OTHER_WORKLOAD:
            raise InputError(
                f"{run.where}: its {name} have {found:,.0f} tokens on average, and the plan's {planned:,.0f}, so it "
                "did not replay the plan's workload"
            )
    pairs = [
        (f"{metric} {name}", getattr(promised, name), getattr(measured, name))
        for metric, promised, measured in zip(("TTFT", "TPOT"), latencies, (run.ttft, run.tpot), strict=True)
        for name in QUANTILES
    ]
    return {
        "where": run.where,
        "tool": run.tool.value,
        "requests": run.completed,
        "requests_per_second": run.request_throughput,
        "latencies": [
            {
                "name": name,
                "promised_s": promised,
                "measured_s": measured,
                "error": promised / measured - 1.0 if measured else None,
            }
            for name, promised, measured in pairs
        ],
    }


def promise_document(value: dict[str, Any]) -> Document:
    """The answer, of a `promise_dict`: a table for each run."""
    planned, runs = rate(value["planned_requests_per_second"]), value["runs"]
    return Document(
        headline=tuple(
            f"{run['where']}: {plural(run['requests'], 'request')} at {rate(run['requests_per_second'])}, planned "
            f"{planned}."
            for run in runs
        ),
        sections=tuple(Section(run["where"] if len(runs) > 1 else "", table=_latencies(run)) for run in runs),
    )


def _latencies(run: dict[str, Any]) -> Table:
    rows = [
        (item["name"], duration(item["promised_s"]), duration(item["measured_s"]), signed_percent(item["error"]))
        for item in run["latencies"]
    ]
    return table_of(("latency", "#plan", "#measured", "#error"), rows)
