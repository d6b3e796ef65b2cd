"""Plans for the tests of the report: those of tests/plans, and one of them as if it had been simulated."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

from optimizer.plans.plan import ClassResult, Plan, parse_plan
from optimizer.plans.records import (
    AccuracyRecord,
    ClassLatencies,
    JudgedFleet,
    Quantiles,
    Sensitivity,
    SimulatedClass,
    SimulatedRate,
    Simulation,
)
from reports.answers.plan import plan_document
from reports.views import markdown_view, terminal_view
from tests.engine_cases import engines

PLANS = Path(__file__).parent / "plans"
NAMES = ("disaggregated", "colocated", "infeasible", "hostile", "hundred-pools")
SHARES = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
RATES = ((3.0, 0.5), (6.0, 0.8), (7.8, 0.99), (8.1, 1.4))
"""Arrival rates [1/s] of the simulated curve, and by what the plan's latencies are multiplied there."""


def text_of(plan: Plan, width: int = 100, color: bool = False, *, brief: bool = False) -> str:
    """The plan on a terminal: all of the answer, or what fits a screen."""
    return terminal_view(plan_document(plan, brief=brief), width, color=color)


def markdown_of(plan: Plan) -> str:
    return markdown_view(plan_document(plan, next_step=""))


def load(name: str) -> Plan:
    return parse_plan((PLANS / f"{name}.json").read_bytes())


def times(values: Quantiles, factor: float) -> Quantiles:
    return Quantiles.of([value * factor for value in astuple(values)])


def latencies(item: ClassResult, factor: float = 1.0) -> ClassLatencies:
    return ClassLatencies(
        name=item.name,
        attainment=item.attainment if factor <= 1 else item.attainment / factor,
        ttft_s=times(item.ttft_s, factor),
        tpot_s=times(item.tpot_s, factor),
    )


def simulated_class(item: ClassResult) -> SimulatedClass:
    return SimulatedClass(
        name=item.name,
        attainment=item.attainment,
        ttft_s=item.ttft_s,
        tpot_s=item.tpot_s,
        attainment_goal=item.attainment_goal,
        attainment_low=item.attainment - 0.004,
        attainment_high=min(1.0, item.attainment + 0.004),
        counted=9000,
        by_formula=latencies(item, 0.9),
        ttft_cdf_s=[item.ttft_s.p50 * (0.2 + 1.6 * share) for share in SHARES],
        tpot_cdf_s=[item.tpot_s.p50 * (0.8 + 0.4 * share) for share in SHARES],
    )


def judged(plan: Plan, what: str, cost: float, factor: float) -> JudgedFleet:
    return JudgedFleet(
        what=what,
        pools=[engines(1, "H100-SXM", 4, "prefill")],
        cost_usd_per_hour=cost,
        held=factor <= 1.0,
        overloaded=factor > 3.0,
        attainment={item.name: latencies(item, factor).attainment for item in plan.classes},
        latencies=[latencies(item, factor) for item in plan.classes],
    )


def simulated(plan: Plan) -> Plan:
    """The plan with a simulation: its latencies are the plan's own, the formulas' a tenth lower."""
    cost = plan.cost_usd_per_hour or 0.0
    curve = [
        SimulatedRate(
            rate_rps=rate, held=factor < 1, overloaded=False, classes=[latencies(item, factor) for item in plan.classes]
        )
        for rate, factor in RATES
    ]
    found = Simulation(
        requests=20_000,
        replications=2,
        seed=7,
        rate_rps=plan.demand_rps,
        held=True,
        attainment=plan.attainment,
        classes=[simulated_class(item) for item in plan.classes],
        cdf_shares=SHARES,
        itl_max_p99_s=0.0412,
        preemptions_per_request=0.0123,
        rejected=0.0,
        unfinished=0.0,
        goodput_rps=7.8,
        goodput_fails_rps=8.1,
        curve_requests=4_321,
        curve=curve,
        one_replica_less=[judged(plan, "p0: one replica fewer", cost - 9.96, 1.3)],
        others=[judged(plan, "found by formula", cost + 4.0, 0.7)],
        judged=5,
        repairs=1,
    )
    rows = [
        row.model_copy(update={"simulated": True, "latencies": [latencies(item, 0.9) for item in plan.classes]})
        if row.cost_usd_per_hour is not None
        else row
        for row in plan.alternatives
    ]
    return plan.model_copy(update={"simulated": True, "simulation": found, "goodput_rps": 7.8, "alternatives": rows})


def with_sensitivity(plan: Plan) -> Plan:
    """The plan with four levers that are moved, a price that another fleet takes over at, and one that none does."""
    found = Sensitivity.model_validate_json((PLANS / "sensitivity.json").read_bytes())
    return plan.model_copy(update={"sensitivity": found})


def with_accuracy(plan: Plan) -> Plan:
    """The plan with what is on record of its accelerators: nothing of its model, something of others."""
    rows = []
    for name in plan.gpus:
        for mode in ("colocated", "disaggregated"):
            rows += [
                AccuracyRecord(accelerator=name, mode=mode, engine=plan.engine, model=plan.model, rows=0),
                AccuracyRecord(
                    accelerator=name,
                    mode=mode,
                    engine=plan.engine,
                    model="",
                    rows=91,
                    ttft_median_abs=0.217,
                    ttft_bias=-0.031,
                    tpot_median_abs=0.083,
                    tpot_bias=0.012,
                ),
            ]
    return plan.model_copy(update={"accuracy": rows})


def with_command(plan: Plan, command: str) -> Plan:
    """The plan as if this command line had asked for it."""
    run = plan.provenance.run.model_copy(update={"command": command})
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"run": run})})
