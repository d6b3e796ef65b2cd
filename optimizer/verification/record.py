"""Records of simulations for the plan file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.metric import METRICS, Metric
from costmodel.simulator.metrics import percentiles
from costmodel.units import SECONDS_PER_HOUR
from optimizer.fleets.build_plan import binding, engine_pools, more_load, with_latencies
from optimizer.fleets.error_bars import ANALYTIC, bars_between
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import ENDS, Instance, Resource, at_quantile
from optimizer.plans import records
from optimizer.plans.plan import Binding, ClassResult, Plan
from search_spaces.problem import Goal

from .bench import Bench, Verdict, by_requests, goodput_of
from .demand import recorded_trace
from .judge import Judgement, OutOfTimeError, counted, hit_share, in_time, judge_demands, pooled, simulated_fleet
from .tune import Tuned, front_beside
from .verify import SearchResult

CDF_SHARES: Final = tuple(
    round(float(share), 6) for share in [*np.linspace(0.0, 0.9, 46), *(1.0 - 0.1 * 10.0 ** -np.linspace(0.1, 2.0, 18))]
)
"""64 shares at which distributions are written down: evenly up to 0.9, then evenly in the logarithm of what is left."""
CURVE: Final = (0.4, 0.7)
"""Rates of the latency curve below the planned one, as shares of it."""
BY_REQUESTS = "least-requests router"
"""Label of the plan's fleet behind a least-requests router."""
POOL_LIMITS: Final = frozenset(map(str, Resource))
"""Limits of pools; `used` is the planned load as a share of what the pool can take."""


def other_rates(bench: Bench, winner: Verdict, by_formula: float) -> dict[str, Any]:
    """The goodput, which is not below the rate at which the fleet held, and latencies up to it and beyond.

    by_formula: the goodput that the formulas expect [1/s], which is tried first. Where goodput was the goal, it is the
    rate at which the fleet was proven: the runs at other rates are shorter. Once it is to stop, nothing is said.
    """
    portion, demand = bench.part(winner.fleet), bench.instance.problem.workload.request_rate
    planned_rate = demand * portion.volume
    try:
        goodput = goodput_of(bench, winner.fleet, by_formula, held=winner.held)
        trials = bench.trials_of(winner.fleet)
        points = [trials.at(share * portion.volume) for share in CURVE]
    except OutOfTimeError:
        return {"goodput_rps": None, "goodput_fails_rps": None, "curve": [], "curve_requests": 0}
    beyond = (
        point for point in goodput.points if (point.rate > planned_rate) is winner.held and point.rate != planned_rate
    )
    points += [point for point in beyond if point.rate <= goodput.fails]
    most = max(goodput.rate, planned_rate) if winner.held else goodput.rate
    if bench.instance.problem.objective.goal is not Goal.MIN_COST:
        most = planned_rate
    rows = [*((point.rate, point, point.breaks) for point in points), (planned_rate, winner.judgement, None)]
    curve = [
        records.SimulatedRate(
            rate_rps=rate * portion.parts,
            held=judgement.proven,
            outcome=judgement.outcome,
            overloaded=judgement.overloaded,
            breakdown=None if breaks is None else records.Breakdown(winner.fleet.pools[breaks[0]].name, breaks[1]),
            classes=list(judgement.classes),
        )
        for rate, judgement, breaks in sorted(rows, key=lambda row: row[0])
    ]
    served_rate, fails = most * portion.parts, goodput.fails * portion.parts
    return {
        "goodput_rps": served_rate,
        "goodput_fails_rps": fails,
        "curve": curve,
        "curve_requests": portion.requests,
    }


def judged_fleet(instance: Instance, label: str, verdict: Verdict) -> records.JudgedFleet:
    """The record of a fleet other than the plan's."""
    return records.JudgedFleet(
        what=label,
        pools=engine_pools(instance, verdict.fleet),
        cost_usd_per_hour=verdict.cost,
        held=verdict.held,
        outcome=verdict.outcome,
        stuck=verdict.stuck,
        replayed=verdict.replayed,
        overloaded=verdict.judgement.overloaded,
        attainment={item.name: item.attainment for item in verdict.judgement.classes},
        latencies=list(verdict.judgement.classes),
    )


def tuning_record(bench: Bench, winner: Verdict, tuning: Tuned) -> records.Tuning:
    """The record of the fleets that tuning looked at and judged."""
    best, compared_count = front_beside(bench, winner, tuning)
    share = bench.instance.flows.share / bench.instance.flows.share.sum()
    return records.Tuning(
        objectives=["cost", "tail"] if tuning.wish.front else ["cost"],
        looks=len(tuning.looks),
        compared=compared_count,
        front=[
            records.TunedFleet(
                pools=engine_pools(bench.instance, verdict.fleet),
                served=[min(float(pool.route @ share), 1.0) for pool in verdict.fleet.pools],
                cost_usd_per_hour=verdict.cost,
                tail=verdict.tail,
                outcome=verdict.outcome,
                latencies=list(verdict.judgement.classes),
            )
            for verdict in (bench.verdict(look.fleet) for look in best)
        ],
    )


def simulation_of(bench: Bench, winner: Verdict, plan: Plan, result: SearchResult) -> records.Simulation:
    """The record of the fleet that a search came to; plan: by formula."""
    judgement, instance = winner.judgement, bench.instance
    rates = other_rates(bench, winner, plan.goodput_rps)
    counting = by_requests(bench, winner) if winner.held and not bench.late() else None
    runs = [run.result for run in judgement.runs]
    requests = sum(run.trace.size for run in runs)
    gaps = pooled((run.itl_max for run in runs), counted(instance, judgement.runs, several=True))
    good = pooled((in_time(instance, run) for run in judgement.runs), counted(instance, judgement.runs))
    rejections = sum(engine.rejected for run in runs for engine in run.engines)
    return records.Simulation(
        requests=requests,
        replications=len(runs),
        seed=bench.seed,
        rate_rps=instance.problem.workload.request_rate * bench.volume,
        parts=bench.part(winner.fleet).parts,
        held=winner.held,
        confirmation=winner.confirmation,
        attainment=float(good.mean()),
        classes=[_class(instance, judgement, plan.classes[k], k) for k in range(len(judgement.classes))],
        cdf_shares=list(CDF_SHARES),
        itl_max_p99_s=0.0 if not gaps.size else percentiles(gaps, records.QUANTILES[-1:])[0],
        preemptions_per_request=sum(engine.preemptions for run in runs for engine in run.engines) / requests,
        prefix_hit_share=hit_share(instance, judgement),
        rejected=rejections / requests,
        unfinished=sum(int((~run.finished).sum()) for run in runs) / requests,
        **rates,
        one_replica_less=[judged_fleet(instance, label, verdict) for label, verdict in result.one_less],
        behind_least_requests=None if counting is None else judged_fleet(instance, BY_REQUESTS, counting),
        recorded=recorded_run(bench, winner.fleet),
        others=[judged_fleet(instance, label, verdict) for label, verdict in result.others],
        tuning=None if result.tuning is None else tuning_record(bench, winner, result.tuning),
        judged=max(len(bench.verdicts), 1),
        repairs=result.repairs,
    )


def recorded_run(bench: Bench, fleet: Fleet) -> records.RecordedRun | None:
    """The record of the plan's fleet under the recorded requests in their own order; None if nothing was recorded."""
    recording, replay = bench.instance.problem.recorded, bench.replayed(fleet)
    if recording is None or replay is None:
        return None
    return records.RecordedRun(
        source=recording.source,
        requests=recording.arrival.size,
        of=recording.of,
        classes=list(replay.classes),
    )


def _class(
    instance: Instance, judgement: Judgement, formula_result: ClassResult, number: int
) -> records.SimulatedClass:
    item = judgement.classes[number]
    ttft, tpot = _first_and_later(instance, judgement, number)
    return records.SimulatedClass(
        **{entry.name: getattr(item, entry.name) for entry in fields(item)},
        by_formula=formula_result.latencies,
        ttft_cdf_s=list(percentiles(ttft, CDF_SHARES)) if ttft.size else [],
        tpot_cdf_s=list(percentiles(tpot, CDF_SHARES)) if tpot.size else [],
    )


def _first_and_later(
    instance: Instance, judgement: Judgement, number: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """TTFT of the requests of a class that count, or of all, and TPOT of those of more than one token [s]."""
    runs = judgement.runs
    ttft = pooled((run.result.ttft for run in runs), counted(instance, runs, number))
    return ttft, pooled((run.result.tpot for run in runs), counted(instance, runs, number, several=True))


def simulated_error_bars(bench: Bench, fleet: Fleet) -> list[records.ErrorBars]:
    """Each class with all steps at the quick and at the slow end of their 90 % interval, simulated.

    Stretches of a recording differ much, so that all of it is served, in order.
    """
    instance, portion, recording = bench.instance, bench.part(fleet), bench.instance.problem.recorded
    if recording is None:
        demand = portion.drawn(portion.requests, 0)
    else:
        demand = recorded_trace(instance, fleet, recording, bench.volume)
    ends = (simulated_fleet(at_quantile(instance, end), portion.fleet) for end in ENDS)
    quick, slow = (judge_demands(instance, engines, [demand]) for engines in ends)
    return bars_between(instance, quick.classes, slow.classes, stable=not slow.overloaded)


def as_simulated(bench: Bench, plan: Plan, winner: Verdict, result: SearchResult) -> Plan:
    """The plan of a fleet with the figures of its simulation; plan: by formula, as loads stay."""
    instance, judgement, simulation = bench.instance, winner.judgement, simulation_of(bench, winner, plan, result)
    bars = [item.error_bars for item in plan.classes] if bench.late() else simulated_error_bars(bench, winner.fleet)
    headroom = with_simulated_headroom(plan.binding, simulation)
    plan = with_latencies(plan.model_copy(update={"binding": headroom}), simulation.classes)
    classes = [item.model_copy(update={"error_bars": bar}) for item, bar in zip(plan.classes, bars, strict=True)]
    route_shares = route_attainment(instance, judgement)
    routing = [
        route if np.isnan(share) else route.model_copy(update={"attainment": float(share)})
        for route, share in zip(plan.routing, route_shares[: instance.flows.asked], strict=True)
    ]
    ttft, tpot = _first_and_later(instance, judgement)
    goodput = plan.goodput_rps if simulation.goodput_rps is None else simulation.goodput_rps
    return plan.model_copy(
        update={
            "simulated": True,
            "simulation": simulation,
            "attainment": simulation.attainment,
            "ttft_s": records.Quantiles.of(percentiles(ttft, records.QUANTILES)),
            "tpot_s": records.Quantiles.of(percentiles(tpot, records.QUANTILES)),
            "goodput_rps": goodput,
            "goodput_per_dollar": goodput * SECONDS_PER_HOUR / (plan.cost_usd_per_hour or np.inf),
            "classes": classes,
            "routing": routing,
            "provenance": plan.provenance.model_copy(update={"assumptions": _assumptions(plan, simulation)}),
        }
    )


def _assumptions(plan: Plan, simulation: records.Simulation) -> list[str]:
    runs = "one run" if simulation.replications == 1 else f"{simulation.replications} runs"
    sentence = (
        f"Latencies, attainment and goodput are simulated: {simulation.requests:,} requests in {runs} at "
        f"{simulation.rate_rps:.3g} req/s, the first tenth of each run left out; loads are by formula, and headroom "
        "where the simulation agrees."
    )
    return [sentence if line == ANALYTIC else line for line in plan.provenance.assumptions]


def route_attainment(instance: Instance, judgement: Judgement) -> FloatArray:
    """Share of each flow's requests within their SLOs, (flows,); NaN where none came."""
    flows, counts = instance.flows.isl.size, counted(instance, judgement.runs)
    flow = pooled((run.demand.flow for run in judgement.runs), counts)
    good = pooled((in_time(instance, run) for run in judgement.runs), counts)
    came = np.bincount(flow, minlength=flows)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(flow, weights=good, minlength=flows) / came)


def with_simulated_headroom(rows: Sequence[Binding], simulation: records.Simulation) -> list[Binding]:
    """Limits by formula; limits of pools are simulated, with their reason, where the simulation refutes them.

    The simulation refutes a pool's limit in two cases: by formula the pool is full below the goodput, or it still has
    room at the next rate, where it broke. Its limit is then the goodput. Without a simulated goodput, only rows stay
    that can take the planned load. If the goodput is below the planned rate, all rows stay.
    """
    if simulation.goodput_rps is None or simulation.goodput_fails_rps is None:
        return [row for row in rows if row.slack >= 0.0]
    if simulation.goodput_rps < simulation.rate_rps:
        return list(rows)
    load_factor, fails = (rate / simulation.rate_rps for rate in (simulation.goodput_rps, simulation.goodput_fails_rps))
    breaks = None if simulation.beyond_goodput is None else simulation.beyond_goodput.breakdown

    def simulated_row(row: Binding) -> Binding:
        is_broken = breaks is not None and breaks.pool == row.where
        is_refuted = row.used * load_factor > 1.0 or (is_broken and row.used * fails < 1.0)
        if row.constraint not in POOL_LIMITS or not is_refuted:
            return row
        room, constraint = f"{row.where} can take {more_load(load_factor)} more load in simulation", row.constraint
        if breaks is not None:
            constraint, pool = breaks.limit, "it" if is_broken else breaks.pool
            room += f": beyond that, {pool} {breakdown_words(breaks.limit)}"
        return binding(constraint, row.where, 1.0 / load_factor, 1.0, row.unit, f"{room}.")

    return list(map(simulated_row, rows))


def breakdown_words(limit: str) -> str:
    """Say what a pool does that breaks a limit."""
    if limit == records.QUEUE:
        return "falls behind and its queue grows"
    if limit == records.BURST:
        return "does not recover from a burst that fills its KV memory"
    return f"makes too many requests exceed the {METRICS[Metric(limit)].label} limit"
