"""From a fleet and its evaluation to the plan file."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.metric import SHOWN_ALWAYS, Metric
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import percentage
from optimizer.loads.engine_table import LINK_UTILIZATION
from optimizer.loads.instance import Instance
from optimizer.plans.plan import (
    Alternative,
    Binding,
    ClassResult,
    ErrorBars,
    MetricResult,
    Plan,
    Pool,
    Provenance,
    Route,
    RunInfo,
    Transfer,
    WorkloadSummary,
)
from optimizer.plans.proof import Proof, bound_for, gap_of
from optimizer.plans.records import EnginePool, Quantiles
from search_spaces.catalog import entry_dict, price_dict
from search_spaces.echo import whole_echo
from search_spaces.models import model_entry
from search_spaces.problem import Balancing, Problem

from .accuracy import accuracy_records
from .assumed import assumed_arrivals, assumed_figures, price_remarks
from .binding import binding_limits, fleet_bindings, limits_by_use, volume_bindings
from .bought import billed_gpus, offer_prices, pools_apart, within_limits
from .error_bars import step_errors
from .evaluate import Evaluation, PoolState, evaluate, goodput_volume, holds
from .fleet import Fleet, FleetPool, hand_over_mix, pool_config
from .headroom import LIGHT, Headroom, pool_headroom
from .operating import operating_point

FloatArray = NDArray[np.float64]

ANALYTIC = "Latencies and attainment are analytic; the plan has not been simulated."
"""First of the assumptions of a plan by formula."""
ROUTER = {
    Balancing.FEWEST_TOKENS: "The router sends a prompt to the engine of a pool with the fewest prompt tokens left.",
    Balancing.FEWEST_REQUESTS: "The router sends a request to the engine of a pool that has the fewest, as simulated; "
    "the formulas take it to count prompt tokens.",
}

PACKAGES = ("numpy", "ortools", "optuna", "pydantic", "jinja2", "click")


def offer_costs(instance: Instance, fleet: Fleet) -> FloatArray:
    """Price of the GPUs of each offer, spares and whole nodes included [$/h], shape (offers,)."""
    return np.array(offer_prices(instance.problem, fleet_gpus(instance, fleet)))


def fleet_cost(instance: Instance, fleet: Fleet) -> float:
    """Price of a fleet, spares and whole nodes included [$/h]."""
    return float(offer_costs(instance, fleet).sum())


def keeps_limits(instance: Instance, fleet: Fleet) -> bool:
    """Whether inventory, budget, power and GPU count allow a fleet."""
    return bool(within_limits(pools_apart(instance.problem), fleet_gpus(instance, fleet)))


def pool_cost(instance: Instance, fleet: Fleet, pool: FleetPool) -> float:
    """Price of one pool; what is paid for the GPUs of an accelerator is shared among its pools by GPUs [$/h]."""
    offer = int(instance.tables.offer[pool.shape])
    share = pool_gpus(instance, pool) / int(fleet_gpus(instance, fleet)[offer])
    return share * float(offer_costs(instance, fleet)[offer])


def fleet_gpus(instance: Instance, fleet: Fleet) -> NDArray[np.int64]:
    """GPUs of each offer, spares included, shape (offers,)."""
    count = np.zeros(len(instance.problem.offers), dtype=np.int64)
    for pool in fleet.pools:
        count[instance.tables.offer[pool.shape]] += pool_gpus(instance, pool)
    return count


def pool_gpus(instance: Instance, pool: FleetPool) -> int:
    """GPUs of one pool, spares included."""
    return (pool.replicas + pool.spares) * int(instance.tables.gpus[pool.shape])


def engine_pool(instance: Instance, fleet: Fleet, pool: FleetPool) -> EnginePool:
    """A pool of a fleet with every setting of its engine."""
    config = pool_config(instance, pool)
    return EnginePool(
        role=pool.role.value,
        accelerator=config.accelerator.name,
        replicas=pool.replicas + pool.spares,
        tensor_parallel=config.parallelism.tensor,
        pipeline_parallel=config.parallelism.pipeline,
        expert_parallel=config.parallelism.expert,
        data_parallel=config.parallelism.data,
        gpus=pool_gpus(instance, pool),
        weight_dtype=config.weight_dtype,
        kv_dtype=config.kv_dtype,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        memory_fraction=config.memory_fraction,
        usd_per_hour=pool_cost(instance, fleet, pool),
    )


def engine_pools(instance: Instance, fleet: Fleet) -> list[EnginePool]:
    """The pools of a fleet, as every record of a fleet states them."""
    return [engine_pool(instance, fleet, pool) for pool in fleet.pools]


def plan_pool(instance: Instance, fleet: Fleet, pool: FleetPool, state: PoolState, headroom: Headroom) -> Pool:
    """A pool of the plan's own fleet, with how it runs."""
    return Pool(
        **vars(engine_pool(instance, fleet, pool)),
        id=pool.name,
        spare_replicas=pool.spares,
        operating_point=operating_point(instance, pool, state, headroom.resource),
    )


def plan_transfers(instance: Instance, fleet: Fleet, volume: float) -> list[Transfer]:
    """KV hand-overs between each pair of a prefill and a decode pool that share a flow."""
    flows, tables = instance.flows, instance.tables
    decodes = fleet.of(Role.DECODE)
    shared = np.maximum(sum((pool.route for pool in decodes), np.zeros(flows.isl.size)), 1e-12)
    transfers = []
    for source, mix in zip(fleet.of(Role.PREFILL), hand_over_mix(instance, fleet), strict=True):
        for target, part in zip(decodes, mix, strict=True):
            rate = flows.rate * volume * source.route * target.route / shared * part
            total = float(rate.sum())
            if total <= 1e-9:
                continue
            link = float(min(tables.link[source.shape], tables.link[target.shape]))
            ends = min(source.replicas * tables.links[source.shape], target.replicas * tables.links[target.shape])
            moved = float(rate @ tables.kv_transferred[source.shape])
            transfers.append(
                Transfer(
                    source=source.name,
                    target=target.name,
                    requests_per_second=total,
                    bytes_per_second=moved,
                    seconds_per_request=moved / total / link,
                    link_utilization=moved / float(ends),
                )
            )
    return transfers


def plan_routes(instance: Instance, fleet: Fleet, evaluation: Evaluation) -> list[Route]:
    """Where each bucket of each class is served."""
    flows, routes = instance.flows, []
    for f in range(flows.isl.size):
        first = {p.name: float(p.route[f]) for p in fleet.pools if p.role is not Role.DECODE and p.route[f] > 1e-9}
        later = {p.name: float(p.route[f]) for p in fleet.pools if p.role is not Role.PREFILL and p.route[f] > 1e-9}
        routes.append(
            Route(
                slo_class=instance.problem.slos[int(flows.slo[f])].name,
                isl=float(flows.isl[f]),
                osl=float(flows.osl[f]),
                share=float(flows.share[f]),
                prefill=first,
                decode=later,
                attainment=float(evaluation.flow_attainment[f]),
            )
        )
    return routes


def quantiles(values: FloatArray) -> Quantiles:
    """Quantiles of the evaluation as the plan file states them."""
    return Quantiles(**{name: float(value) for name, value in zip(("p50", "p90", "p95", "p99"), values, strict=True)})


def class_results(instance: Instance, evaluation: Evaluation, bars: list[ErrorBars]) -> list[ClassResult]:
    """What each SLO class asked for and gets."""
    return [
        ClassResult(
            name=slo.name,
            share=slo.share,
            ttft_limit_s=slo.ttft if math.isfinite(slo.ttft) else math.nan,
            tpot_limit_s=slo.tpot if math.isfinite(slo.tpot) else math.nan,
            e2e_limit_s=slo.limits.get(Metric.E2E),
            attainment_goal=slo.attainment,
            attainment=float(evaluation.attainment[k]),
            ttft_s=quantiles(evaluation.ttft[k]),
            tpot_s=quantiles(evaluation.tpot[k]),
            error_bars=bars[k],
            metrics={
                metric: MetricResult(limit_s=limit, quantiles_s=quantiles(evaluation.metrics[metric][k]))
                for metric, limit in slo.limits.items()
                if metric not in SHOWN_ALWAYS
            },
        )
        for k, slo in enumerate(instance.problem.slos)
    ]


def workload_summary(problem: Problem) -> WorkloadSummary:
    """The demand as the plan saw it."""
    load = problem.workload
    return WorkloadSummary(
        request_rate_rps=load.request_rate,
        burstiness=load.burstiness,
        prefix_hit_share=load.prefix_hit_share,
        mean_isl=load.mean_isl,
        mean_osl=load.mean_osl,
        max_tokens=load.max_tokens,
        isl=[float(value) for value in load.isl],
        osl=[float(value) for value in load.osl],
        share=[float(value) for value in load.share],
    )


def assumptions(instance: Instance) -> list[str]:
    """What the predictions take for granted, stated with the numbers in force."""
    problem, overhead = instance.problem, instance.overhead
    stated = [
        ANALYTIC,
        f"{problem.engine} spends {overhead.step * 1e6:.0f} µs of host time per step and "
        f"{overhead.per_request * 1e6:.0f} µs per request in it ({overhead.origin}).",
        f"Engines may use {percentage(problem.memory_fraction, 1)} of GPU memory.",
        f"Network cards are busy with KV transfers for {percentage(LINK_UTILIZATION)} of the time at most, each at "
        "full speed; transfers do not overlap with prefill.",
        "Prompts that wait at an engine are computed in order of arrival, max_num_batched_tokens in a step.",
        ROUTER[problem.constraints.balancing],
    ]
    stated += assumed_figures(problem) + limits_by_use(problem)
    if problem.workload.prefix_hit_share > 0.0:
        share = percentage(problem.workload.prefix_hit_share, 1)
        stated.append(f"{share} of every prompt is found in the prefix cache, whatever its length.")
    return stated + assumed_arrivals(problem)


def _other_precision(instance: Instance, fleet: Fleet) -> list[str]:
    """Precisions that the search chose for a fleet and the checkpoint does not have: they change the answers."""
    problem = instance.problem
    stated = []
    for pool in fleet.pools:
        config = pool_config(instance, pool)
        if problem.space.weight_dtype and config.weight_dtype != problem.model.native_weight_dtype:
            stated.append(
                f"Weights are served in {config.weight_dtype}, but {problem.model.name} is published in "
                f"{problem.model.native_weight_dtype}: answers differ; compare their quality before relying on it."
            )
        if problem.space.kv_dtype and config.kv_dtype != ACTIVATION_DTYPE:
            stated.append(
                f"The KV cache is kept in {config.kv_dtype}, but {problem.model.name} computes it in "
                f"{ACTIVATION_DTYPE}: answers differ; compare their quality before relying on it."
            )
    return list(dict.fromkeys(stated))


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages whose results the plan depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # vendored without metadata
            found[name] = "unknown"
    return found


def provenance(instance: Instance, search: dict[str, Any], run: RunInfo) -> Provenance:
    """Everything needed to reproduce the plan."""
    problem = instance.problem
    inputs = whole_echo(problem)
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()
    try:
        own = version("pdplan")
    except PackageNotFoundError:  # run from a source tree that is not installed
        own = "unknown"
    return Provenance(
        pdplan_version=own,
        versions=package_versions(),
        seed=problem.seed,
        inputs_sha256=digest,
        inputs=inputs,
        accelerators=[
            entry_dict(offer.accelerator)
            | ({} if offer.quote is None else {"price": price_dict(offer.quote)})
            | {"offered_usd_per_hour": offer.usd_per_hour, "inventory": offer.inventory, "billing": offer.billing.value}
            for offer in problem.offers
        ],
        model=model_entry(problem.model),
        search=search,
        assumptions=assumptions(instance),
        run=run,
    )


def build_plan(
    instance: Instance,
    fleet: Fleet,
    *,
    bars: list[ErrorBars],
    proof: Proof,
    volume: float,
    alternatives: list[Alternative],
    shortfalls: list[Binding],
    origin: Provenance,
) -> Plan:
    """Assemble the plan of a fleet (empty when none was found) that serves `volume` times the demand.

    bars: how wrong the predictions for each class may be.
    """
    problem = instance.problem
    demand = problem.workload.request_rate
    common: dict[str, Any] = {
        "name": problem.name,
        "model": problem.model.name,
        "engine": problem.engine,
        "objective": problem.objective.goal.value,
        "status": proof.status,
        "simulated": False,
        "confidence": problem.confidence,
        "step_errors": step_errors(instance),
        "accuracy": accuracy_records(problem),
        "bound_usd_per_hour": proof.bound,
        "gap": proof.gap,
        "floor_usd_per_hour": proof.floor,
        "demand_rps": demand,
        "alternatives": alternatives,
        "workload": workload_summary(problem),
        "provenance": origin.model_copy(update={"assumptions": origin.assumptions + _other_precision(instance, fleet)}),
    }
    if not fleet.pools:
        return Plan(**common, **_nothing(), binding=shortfalls)
    evaluation = evaluate(instance, fleet, volume)
    cost = fleet_cost(instance, fleet)
    common["certified_gap"] = gap_of(bound_for(proof.floor, cost), cost)
    goodput = demand * goodput_volume(instance, fleet)
    tokens_per_hour = demand * volume * problem.workload.mean_osl * SECONDS_PER_HOUR
    others = 1.0 if holds(instance, evaluation) else LIGHT  # so that of a fleet that misses, pools tell of themselves
    headrooms = [pool_headroom(instance, fleet, at, volume, others=others) for at in range(len(fleet.pools))]
    count = fleet_gpus(instance, fleet)
    limits = binding_limits(instance, fleet, evaluation, headrooms) + fleet_bindings(instance, cost, count)
    limits += volume_bindings(problem, volume)
    gpus = zip(problem.offers, count, strict=True)
    common["price_remarks"] = price_remarks(problem, np.flatnonzero(count))
    return Plan(
        **common,
        cost_usd_per_hour=cost,
        goodput_rps=goodput,
        goodput_per_dollar=goodput * SECONDS_PER_HOUR / cost,
        usd_per_million_output_tokens=cost / tokens_per_hour * 1e6,
        attainment=evaluation.overall,
        ttft_s=quantiles(evaluation.ttft[-1]),
        tpot_s=quantiles(evaluation.tpot[-1]),
        gpus={offer.accelerator.name: int(number) for offer, number in gpus if number},
        gpus_billed=billed_gpus(problem, count),
        pools=[
            plan_pool(instance, fleet, pool, state, room)
            for pool, state, room in zip(fleet.pools, evaluation.states, headrooms, strict=True)
        ],
        transfers=plan_transfers(instance, fleet, volume),
        classes=class_results(instance, evaluation, bars),
        routing=plan_routes(instance, fleet, evaluation),
        binding=sorted(limits, key=lambda row: (row.slack, row.constraint, row.where)),
    )


def _nothing() -> dict[str, Any]:
    """The fields of a plan without a fleet."""
    return {
        "cost_usd_per_hour": None,
        "goodput_rps": 0.0,
        "goodput_per_dollar": 0.0,
        "usd_per_million_output_tokens": None,
        "attainment": 0.0,
        "ttft_s": None,
        "tpot_s": None,
        "gpus": {},
        "pools": [],
        "transfers": [],
        "classes": [],
        "routing": [],
    }
