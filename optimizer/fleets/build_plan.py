"""From a fleet and its evaluation to the plan file, with how close it is to each limit.

From a plan file back to what it was made from: the problem, and the fleet as the search saw it.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role
from costmodel.engine_arrays import engine_arrays
from costmodel.errors import InputError, shown
from costmodel.estimate import step_estimate
from costmodel.metric import Metric, Scope, limit_names
from costmodel.step import StepLoad, step_time
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import dollars, percentage, plural
from optimizer.loads.instance import ENDS, Instance, Resource, at_quantile, make_instance, step_factor
from optimizer.plans.plan import (
    Alternative,
    Binding,
    ClassResult,
    MetricResult,
    OperatingPoint,
    Plan,
    Pool,
    Proof,
    Provenance,
    Route,
    RunInfo,
    TimeSplit,
    Transfer,
    WorkloadSummary,
    bound_for,
    gap_of,
)
from optimizer.plans.records import ALIKE, OPTIMAL_GAP, ClassLatencies, EnginePool, ErrorBars, PrefixCache, Quantiles
from search_spaces.catalog import entry_dict, price_dict
from search_spaces.loader import problem_of, whole_echo
from search_spaces.models import model_entry
from search_spaces.problem import Goal, Problem

from . import error_bars
from .evaluate import Evaluation, PoolHeadroom, evaluate, goodput_volume, pool_headroom, utilization
from .fleet import (
    Fleet,
    FleetPool,
    fleet_cost,
    fleet_gpus,
    gpu_limits,
    hand_over_mix,
    offer_costs,
    paid_gpus,
    pool_config,
    pool_gpus,
)
from .pool import PoolState, mean_state, prefix_keeps

PACKAGES = ("numpy", "ortools", "optuna", "pydantic", "jinja2", "click")

NO_FLEET: dict[str, Any] = {
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
"""Fields of a plan that has no fleet."""


def shortage(resource: Resource, metrics: Container[Metric]) -> str:
    """What happens in a pool that runs out of a resource; metrics: those that the classes limit which miss.

    >>> shortage(Resource.TIME, [Metric.E2E])
    'prompts wait too long for the e2e limit'
    """
    match resource:
        case Resource.SLOTS:
            return "more than max_num_seqs requests run at once, so some wait"
        case Resource.KV_MEMORY:
            return "the KV cache fills the memory"
        case Resource.ATTENTION_TIME:
            return f"decode steps take too long for the {limit_names(metrics, Scope.LATER)} limit"
        case _:
            return f"prompts wait too long for the {limit_names(metrics, Scope.FIRST)} limit"


def engine_pools(instance: Instance, fleet: Fleet) -> list[EnginePool]:
    """The pools of a fleet with every setting of their engines, as every record of a fleet states them.

    What is paid for the GPUs of an accelerator is shared among its pools by GPUs.
    """
    gpus, costs = fleet_gpus(instance, fleet), offer_costs(instance, fleet)
    pools = []
    for pool in fleet.pools:
        config, offer = pool_config(instance, pool), int(instance.tables.offer[pool.shape])
        own = pool_gpus(instance, pool)
        pools.append(
            EnginePool(
                role=pool.role.value,
                accelerator=config.accelerator.name,
                replicas=pool.replicas + pool.spares,
                tensor_parallel=config.parallelism.tensor,
                pipeline_parallel=config.parallelism.pipeline,
                expert_parallel=config.parallelism.expert,
                data_parallel=config.parallelism.data,
                gpus=own,
                weight_dtype=config.weight_dtype,
                kv_dtype=config.kv_dtype,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=config.max_model_len,
                memory_fraction=config.memory_fraction,
                speculative_tokens=instance.tables.shapes[pool.shape].speculative_tokens,
                usd_per_hour=own / int(gpus[offer]) * float(costs[offer]),
            )
        )
    return pools


def typical_load(instance: Instance, pool: FleetPool, state: PoolState) -> tuple[StepLoad, float]:
    """The mean step of a pool and the requests in it: a mean prompt, a running batch, or both mixed.

    The batch of a pool that gets more than it can serve is as large as its limit allows.
    """
    flows, tables = instance.flows, instance.tables
    total = max(float(state.rate.sum()), 1e-12)
    new_tokens = float(state.rate @ flows.new_tokens) / total
    past = float(state.rate @ flows.past_tokens) / total
    ranks, stages = float(tables.ranks[pool.shape]), float(tables.pipeline[pool.shape])
    if pool.role is Role.PREFILL:
        chunk = min(new_tokens, float(tables.rank_chunks[pool.shape, pool.chunk]))
        return StepLoad.of(ranks, chunk, past + (new_tokens - chunk) / 2.0, 0.0, 0.0), 1.0
    work = state.rate * flows.osl
    context = float(work @ flows.mean_context) / max(float(work.sum()), 1e-12)
    running = min(state.running, float(tables.seqs[pool.seqs]))
    batch = running / stages
    if pool.role is Role.DECODE:
        return StepLoad.of(0.0, 0.0, 0.0, batch, context), running
    per_step = float(state.rate @ flows.new_tokens) / pool.replicas * state.step / stages / ranks
    chunk = min(per_step, float(tables.rank_chunks[pool.shape, pool.chunk]))
    return StepLoad.of(ranks, max(chunk, 1.0), past + new_tokens / 2.0, batch, context), running


def operating_point(instance: Instance, pool: FleetPool, state: PoolState, binding: Resource) -> OperatingPoint:
    """Describe the typical step of a pool; `binding` is the resource that runs out first.

    Step times are those that the plan is made for: expected ones, or slower ones where a confidence is stated.
    """
    problem, config = instance.problem, pool_config(instance, pool)
    engines = engine_arrays(problem.model, [config], instance.policy.overhead)
    load, batch = typical_load(instance, pool, state)
    step = step_estimate(step_time(problem.model, engines, load), engines)
    slower = step_factor(instance, config)
    return OperatingPoint(
        request_rate_rps=float(state.rate.sum()),
        utilization=utilization(instance, pool, state),
        binding=str(binding),
        step_s=step.time * slower,
        batch=batch,
        mfu=step.mfu / slower,
        mbu=step.mbu / slower,
        arithmetic_intensity=step.arithmetic_intensity,
        ridge_point=float(engines.peak[0, 0] / engines.bandwidth[0, 0]),
        bound_by=step.bound_by,
        time_split=TimeSplit(**{name: seconds / step.time for name, seconds in step.split.items()}),
    )


def plan_transfers(instance: Instance, fleet: Fleet, volume: float) -> list[Transfer]:
    """KV hand-overs between each pair of a prefill and a decode pool that share a flow."""
    flows, tables = instance.flows, instance.tables
    decodes = fleet.of(Role.DECODE)
    shared = np.maximum(sum((pool.route for pool in decodes), np.zeros(flows.isl.size)), 1e-12)
    transfers = []
    for source, mix in zip(fleet.of(Role.PREFILL), hand_over_mix(instance, fleet), strict=True):
        for target, factor in zip(decodes, mix, strict=True):
            rate = flows.rate * volume * source.route * target.route / shared * factor
            total = float(rate.sum())
            if total <= 1e-9:
                continue
            link = float(min(tables.link[source.shape], tables.link[target.shape]))
            ends = min(source.replicas * tables.links[source.shape], target.replicas * tables.links[target.shape])
            kv_rate = float(rate @ tables.kv_transferred[source.shape])
            transfers.append(
                Transfer(
                    source=source.name,
                    target=target.name,
                    requests_per_second=total,
                    bytes_per_second=kv_rate,
                    seconds_per_request=kv_rate / total / link,
                    link_utilization=kv_rate / float(ends),
                )
            )
    return transfers


def plan_prefix_cache(instance: Instance, fleet: Fleet, volume: float = 1.0) -> PrefixCache | None:
    """Prefix hits over all pools that compute prompts; None where prompts share nothing."""
    flows, load = instance.flows, instance.problem.workload
    if load.prefix_hit_share == 0.0:
        return None
    hit_tokens, read_tokens, keeps = 0.0, 0.0, []
    for pool in fleet.pools:
        if pool.role is not Role.DECODE:
            state, share = mean_state(instance, pool, volume), flows.share * pool.route
            found_tokens = flows.past_tokens
            if flows.reuse is not None and state.hit_chance is not None:
                found_tokens = found_tokens - (1.0 - state.hit_chance) * flows.reuse.history
            if flows.reuse is not None and state.reads is not None:
                read_tokens += float(share @ (state.reads.chance * flows.reuse.history))
            hit_tokens += float(share @ found_tokens)
            keeps.append(prefix_keeps(instance, pool, state))
    prompt_tokens = float(flows.share @ flows.isl)
    at_best = float(flows.share @ flows.past_tokens) / prompt_tokens
    return PrefixCache(
        at_best=at_best,
        sustained=min(hit_tokens / prompt_tokens, at_best),
        read=read_tokens / prompt_tokens,
        keeps_s=min(keeps),
    )


def plan_routes(instance: Instance, fleet: Fleet, evaluation: Evaluation) -> list[Route]:
    """Where each bucket of each class is served."""
    flows, routes = instance.flows, []
    for f in range(flows.asked):
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


def class_error_bars(instance: Instance, fleet: Fleet, volume: float) -> list[ErrorBars]:
    """Each class with all steps at the fast and at the slow end of their 90 % interval, with unchanged routing."""
    quick, slow = (evaluate(at_quantile(instance, end), fleet, volume) for end in ENDS)
    return error_bars.bars_between(instance, quick.classes, slow.classes, stable=slow.stable)


def class_results(instance: Instance, evaluation: Evaluation, bars: list[ErrorBars]) -> list[ClassResult]:
    """What each SLO class asked for and gets."""
    return [
        ClassResult(
            name=slo.name,
            share=slo.share,
            ttft_limit_s=slo.ttft if math.isfinite(slo.ttft) else math.nan,
            tpot_limit_s=slo.tpot if math.isfinite(slo.tpot) else math.nan,
            attainment_goal=slo.attainment,
            attainment=item.attainment,
            ttft_s=item.ttft_s,
            tpot_s=item.tpot_s,
            error_bars=bar,
            metrics={
                metric: MetricResult(limit_s=slo.limits[metric], quantiles_s=values)
                for metric, values in item.metrics.items()
            },
        )
        for slo, item, bar in zip(instance.problem.slos, evaluation.classes, bars, strict=True)
    ]


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages whose results the plan depends on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # vendored without metadata, or run from a source tree that is not installed
        return "unknown"


def provenance(instance: Instance, search: dict[str, Any], run: RunInfo) -> Provenance:
    """Everything needed to reproduce the plan."""
    problem = instance.problem
    inputs = whole_echo(problem)
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()
    return Provenance(
        pdplan_version=_version("pdplan"),
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
        assumptions=error_bars.assumptions(instance),
        run=run,
    )


def owned_remarks(problem: Problem, gpus: IntArray) -> list[str]:
    """Sentences on owned GPUs: how many the fleet uses of each type, and how many it rents besides; gpus (offers,)."""
    remarks = []
    for offer, count in zip(problem.offers, gpus.tolist(), strict=True):
        rented_gpus, price = max(count - offer.owned, 0), f"at {dollars(offer.owned_usd_per_hour)}/h per GPU"
        if offer.owned and rented_gpus:
            remarks.append(
                f"Of {count} {offer.accelerator.name}, {offer.owned} are owned, {price}; {rented_gpus} are rented."
            )
        elif offer.owned and count:
            owned = f"All {count} {offer.accelerator.name} are" if count > 1 else f"The {offer.accelerator.name} is"
            remarks.append(f"{owned} owned, {price}.")
    return remarks


def build_plan(  # noqa: PLR0917
    instance: Instance,
    fleet: Fleet,
    proof: Proof,
    origin: Provenance,
    volume: float = 1.0,
    alternatives: Sequence[Alternative] = (),
    shortfalls: Sequence[Binding] = (),
) -> Plan:
    """Assemble the plan of a fleet (empty when none was found) that serves `volume` times the demand."""
    problem = instance.problem
    load, demand = problem.workload, problem.workload.request_rate
    names = WorkloadSummary.model_fields.keys() - {"request_rate_rps"}
    summary = {name: np.asarray(getattr(load, name)).tolist() for name in names}
    common: dict[str, Any] = {
        "name": problem.name,
        "model": problem.model.name,
        "engine": problem.engine,
        "objective": problem.objective.goal.value,
        "status": proof.status,
        "simulated": False,
        "confidence": problem.confidence,
        "step_errors": error_bars.step_errors(instance),
        "accuracy": error_bars.accuracy_records(problem),
        "bound_usd_per_hour": proof.bound,
        "gap": proof.gap,
        "floor_usd_per_hour": proof.floor,
        "demand_rps": demand,
        "alternatives": list(alternatives),
        "workload": WorkloadSummary(request_rate_rps=demand, **summary),
        "provenance": origin.model_copy(
            update={"assumptions": origin.assumptions + error_bars.fleet_assumptions(instance, fleet)}
        ),
    }
    if not fleet.pools:
        return Plan(**common, **NO_FLEET, binding=list(shortfalls))
    evaluation = evaluate(instance, fleet, volume)
    cost = fleet_cost(instance, fleet)
    common["certified_gap"] = gap_of(bound_for(proof.floor, cost), cost)
    goodput = demand * goodput_volume(instance, fleet)
    tokens_per_hour = demand * volume * problem.workload.mean_osl * SECONDS_PER_HOUR
    share = 1.0 if evaluation.holds else ALIKE  # so that of a fleet that misses, pools tell of themselves
    headrooms = [pool_headroom(instance, fleet, at, volume, others=share) for at in range(len(fleet.pools))]
    count = fleet_gpus(instance, fleet)
    limits = binding_limits(instance, fleet, evaluation, headrooms) + fleet_bindings(instance, cost, count)
    limits += volume_bindings(problem, volume)
    offers = [offer.accelerator.name for offer in problem.offers]
    paid = zip(offers, count.tolist(), paid_gpus(problem, count).tolist(), strict=True)
    rented = np.flatnonzero(count > [offer.owned for offer in problem.offers])
    common["price_remarks"] = error_bars.price_remarks(problem, rented) + owned_remarks(problem, count)
    common["warnings"] = error_bars.catalog_remarks(problem, np.flatnonzero(count))
    return Plan(
        **common,
        cost_usd_per_hour=cost,
        goodput_rps=goodput,
        goodput_per_dollar=goodput * SECONDS_PER_HOUR / cost,
        usd_per_million_output_tokens=cost / tokens_per_hour * 1e6,
        attainment=evaluation.overall,
        ttft_s=Quantiles.of(evaluation.ttft[-1]),
        tpot_s=Quantiles.of(evaluation.tpot[-1]),
        gpus={name: used for name, used in zip(offers, count.tolist(), strict=True) if used},
        gpus_billed={name: round(billed) for name, used, billed in paid if billed > used},
        pools=[
            Pool(
                **vars(engines),
                id=pool.name,
                spare_replicas=pool.spares,
                operating_point=operating_point(instance, pool, state, headroom.resource),
            )
            for engines, pool, state, headroom in zip(
                engine_pools(instance, fleet), fleet.pools, evaluation.states, headrooms, strict=True
            )
        ],
        prefix_cache=plan_prefix_cache(instance, fleet, volume),
        transfers=plan_transfers(instance, fleet, volume),
        classes=class_results(instance, evaluation, class_error_bars(instance, fleet, volume)),
        routing=plan_routes(instance, fleet, evaluation),
        binding=in_order(limits),
    )


# --- how close a plan is to each limit ------------------------------------------------------------------------------


def binding(constraint: str, where: str, used: float, limit: float, unit: str, sentence: str) -> Binding:  # noqa: PLR0917
    """A limit with its slack: the share of it that is unused. Where the limit is 0, the slack is minus the excess."""
    slack = 1.0 - used / limit if limit else -used
    return Binding(
        constraint=constraint, where=where, used=used, limit=limit, unit=unit, slack=slack, sentence=sentence
    )


def amount(value: float, unit: str) -> str:
    """A quantity of a limit in words, rounded so little that two different quantities never read the same.

    >>> amount(1001.0, "GPU"), amount(99.7, "$/h"), amount(40.0, "W"), amount(3.0, "1")
    ('1,001 GPUs', '$99.70/h', '0.04 kW', '3')
    """
    if unit == "GPU":
        return plural(value, "GPU")
    if unit == "$/h":
        return f"{dollars(value)}/h"
    if unit == "W":
        return f"{value / 1e3:,.10g} kW"
    if unit == "pools":
        return plural(value, "pool")
    return f"{value:,.6g}" if unit == "1" else f"{value:,.6g} {unit}"


def more_load(load: float) -> str:
    """By how much a load is above the planned load of 1; below one percent it has a decimal place.

    >>> more_load(1.003), more_load(1.218)
    ('0.3 %', '22 %')
    """
    return percentage(load - 1.0, 1 if load < 1.01 else 0)


def pool_binding(pool: FleetPool, headroom: PoolHeadroom, prompt_time: float = 0.0) -> Binding:
    """How close a pool is to the load at which an SLO breaks; prompt_time: share of the time with a prompt [1].

    Waiting prompts share steps, so prompts may fill nearly all of the time long before the pool is at its capacity.
    """
    share = 1.0 / headroom.load if headroom.load > 0.0 else float("inf")
    shared = f" (prompts that wait are batched, so its prompt time of {percentage(prompt_time, 1)} grows by less)"
    why = shortage(headroom.resource, headroom.metrics)
    why += shared if 1.0 < prompt_time * headroom.load < float("inf") else ""
    if headroom.load >= 1.0:
        room = f"can take {more_load(headroom.load)} more load by formula: beyond that,"
    elif headroom.load > 0.0:
        room = f"gets {percentage(share - 1.0)} more load than it can take by formula:"
    else:
        room = "misses at every request rate:"
    sentence = f"{pool.name} {room} {why}."
    return binding(str(headroom.resource), pool.name, share, 1.0, "1", sentence)


def attainment_binding(name: str, miss_share: float, miss_limit: float, source: str = "") -> Binding:
    """How many requests of a class miss an SLO, and how many may [1]; source: how that is known."""
    share = percentage(miss_share, 2) if miss_share >= OPTIMAL_GAP / 2.0 or miss_share <= 0.0 else "Less than 0.01 %"
    sentence = f"{share} of class {name} misses the SLO{source}; {percentage(miss_limit, 2)} may."
    return binding("attainment", name, miss_share, miss_limit, "1", sentence)


def with_latencies(plan: Plan, latencies: Sequence[ClassLatencies]) -> Plan:
    """A plan by formula that takes the attainment and latencies of its classes from the simulation.

    The limits on classes follow from these. Latencies over all classes together stay those of the formula.
    """
    classes = []
    for item, row in zip(plan.classes, latencies, strict=True):
        metrics = {
            metric: MetricResult(limit_s=result.limit_s, quantiles_s=row.metrics.get(metric, result.quantiles_s))
            for metric, result in item.metrics.items()
        }
        times = {"ttft_s": row.ttft_s, "tpot_s": row.tpot_s, "metrics": metrics}
        classes.append(item.model_copy(update={"attainment": row.attainment, **times}))
    misses = [
        attainment_binding(item.name, 1.0 - item.attainment, 1.0 - item.attainment_goal, " when simulated")
        for item in classes
    ]
    limits = in_order([*(row for row in plan.binding if row.constraint != "attainment"), *misses])
    whole = {"ttft_s": classes[0].ttft_s, "tpot_s": classes[0].tpot_s} if len(classes) == 1 else {}
    return plan.model_copy(update={"classes": classes, "binding": limits, **whole})


def in_order(limits: Iterable[Binding]) -> list[Binding]:
    """Limits of a plan, tightest first."""
    return sorted(limits, key=lambda row: (row.slack, row.constraint, row.where))


def binding_limits(
    instance: Instance, fleet: Fleet, evaluation: Evaluation, headrooms: list[PoolHeadroom]
) -> list[Binding]:
    """How close the pools and the SLO classes are to their limits."""
    pools = zip(fleet.pools, headrooms, evaluation.states, strict=True)
    limits = [pool_binding(pool, headroom, state.utilization) for pool, headroom, state in pools]
    for slo, attainment in zip(instance.problem.slos, evaluation.attainment, strict=True):
        limits.append(attainment_binding(slo.name, 1.0 - float(attainment), 1.0 - slo.attainment))
    return limits


LIMIT_UNITS: Final = {"budget": "$/h", "max_gpus": "GPU", "power": "W", "max_pools": "pools", "gateway": ""}
"""Limits of the constraints with their units, in the order in which `explain` lifts them."""


def fleet_bindings(instance: Instance, cost: float, gpus: IntArray) -> list[Binding]:
    """Inventory, power, GPU count and budget of a fleet against their limits, kept or exceeded."""
    problem, budget = instance.problem, instance.problem.constraints.budget
    rows = [(name, float(gpus @ weight), most) for name, most, weight in gpu_limits(problem)]
    rows += [] if budget is None else [("budget", cost, budget)]
    return [_fleet_limit(*row) for row in rows if row[1]]


def _fleet_limit(name: str, used: float, limit: float) -> Binding:
    """One limit on the fleet; a fleet that breaks it needs, one that keeps it uses."""
    constraint, _, gpu = name.partition(" ")
    unit, most = LIMIT_UNITS.get(constraint, "GPU"), amount(limit, LIMIT_UNITS.get(constraint, "GPU"))
    words = {
        "inventory": f"the {gpu} inventory",
        "power": "the board power limit",
        "budget": "the budget",
        "max_gpus": "the GPU limit",
        "max_pools": "the limit on pools",
    }
    verb = "are" if unit in {"GPU", "pools"} and used != 1.0 else "is"
    if used <= limit * (1.0 + 1e-9):
        sentence = f"{amount(used, unit)} {verb} used; {words.get(constraint, constraint)} is {most}."
    else:
        sentence = f"{amount(used, unit)} {verb} needed, but {words.get(constraint, constraint)} is {most}."
    return binding(constraint, gpu or "fleet", used, float(limit), unit, sentence)


def volume_bindings(problem: Problem, volume: float) -> list[Binding]:
    """The most that a plan for goodput per dollar may serve, against what it serves, `volume` times the demand [1]."""
    objective, demand = problem.objective, problem.workload.request_rate
    if objective.goal is not Goal.MAX_GOODPUT_PER_DOLLAR:
        return []
    served_rate, most = volume * demand, objective.max_volume * demand
    sentence = f"{served_rate:.3g} req/s served, of {most:.3g} req/s at most: max_volume is {objective.max_volume:g}."
    return [binding("max_volume", "fleet", served_rate, most, "req/s", sentence)]


# --- from a plan back to its fleet -----------------------------------------------------------------------------------

SAME_LENGTH = 1e-9
"""Relative difference up to which a length of the routing is that of a flow."""


def problem_of_plan(plan: Plan, base: Path | None = None) -> Problem:
    """The problem that a plan states in its provenance; InputError for one with faults.

    base: folder from which the files that the problem names (a model config, a catalog) are looked up.
    """
    return problem_of(plan.provenance.inputs, "provenance.inputs", base or Path())


def fleet_of_plan(plan: Plan, base: Path | None = None) -> tuple[Instance, Fleet]:
    """The problem that a plan states in its provenance, with expected step times, and its fleet; spares are left out.

    base: see `problem_of_plan`. Raises InputError for a plan without a fleet, or whose pools or routing do not fit its
    own problem.
    """
    if not plan.pools:
        raise InputError(
            f"the plan {shown(plan.name)} has no fleet (its status is {plan.status}), so nothing can be served"
        )
    instance = make_instance(problem_of_plan(plan, base))
    _check_routes(plan, instance)
    pools = []
    for pool in plan.pools:
        stages = (route.decode if Role(pool.role) is Role.DECODE else route.prefill for route in plan.routing)
        share = np.array([float(stage.get(pool.id, 0.0)) for stage in stages])[instance.flows.source]
        pools.append(pool_of_record(instance, pool, pool.id, max(pool.replicas - pool.spare_replicas, 1), share))
    return instance, Fleet(tuple(pools))


def planned_volume(plan: Plan) -> float:
    """Multiple of the demand that the plan serves: 1, unless its goal was to find the most."""
    prompts = [pool.operating_point.request_rate_rps for pool in plan.pools if pool.role != Role.DECODE.value]
    return sum(prompts) / plan.demand_rps


def _check_routes(plan: Plan, instance: Instance) -> None:
    flows, slos = instance.flows, instance.problem.slos
    if len(plan.routing) != flows.asked:
        raise InputError(f"routing: it has {len(plan.routing)} rows for {flows.asked} classes x lengths of the inputs")
    for number, route in enumerate(plan.routing):
        lengths = np.isclose([route.isl, route.osl], [flows.isl[number], flows.osl[number]], rtol=SAME_LENGTH)
        if route.slo_class != slos[int(flows.slo[number])].name or not lengths.all():
            raise InputError(f"routing.{number}: its class and lengths are not those of row {number} of the inputs")


def routes_of(
    instance: Instance, records: Sequence[EnginePool], routes: Sequence[Sequence[float] | FloatArray]
) -> FloatArray:
    """Recorded routes of pools, 1 where none are recorded, (pools, flows); InputError if they are not of all flows."""
    shape = len(records), instance.flows.isl.size
    shares = np.array(routes or np.ones(shape))
    if shares.shape != shape:
        raise InputError(f"its routes are not those of {shape[1]} classes x lengths")
    return shares


def pools_of_records(
    instance: Instance, records: Iterable[EnginePool], routes: Iterable[FloatArray]
) -> list[FleetPool]:
    """Pools as the search sees them, with the spares of its problem; routes: of each, as of `pool_of_record`."""
    spares = instance.problem.constraints.spare_replicas
    return [
        replace(pool_of_record(instance, pool, pool.role, max(pool.replicas - spares, 1), route), spares=spares)
        for pool, route in zip(records, routes, strict=True)
    ]


def pool_of_record(instance: Instance, pool: EnginePool, name: str, replicas: int, route: FloatArray) -> FleetPool:
    """The pool as the search sees it, without spares; route (flows,): share of each flow that it serves [1].

    Raises InputError for settings that the instance does not have.
    """
    tables, role = instance.tables, Role(pool.role)
    seqs, chunk = pool.max_num_seqs or 0, pool.max_num_batched_tokens or 0
    shape = _shape(instance, pool, name)
    least = role is Role.DECODE and chunk == max(int(tables.chunks[0]), int(tables.verified[shape]) * seqs)
    return FleetPool(
        name=name,
        role=role,
        shape=shape,
        seqs=_setting(tables.seqs, seqs, name, "max_num_seqs"),
        chunk=0 if least else _setting(tables.chunks, chunk, name, "max_num_batched_tokens"),
        replicas=replicas,
        spares=0,
        route=route,
    )


def _shape(instance: Instance, pool: EnginePool, name: str) -> int:
    for number, shape in enumerate(instance.tables.shapes):
        same_accelerator = instance.problem.offers[shape.offer].accelerator.name == pool.accelerator
        own = (shape.weight_dtype, shape.kv_dtype, shape.speculative_tokens)
        same_settings = own == (pool.weight_dtype, pool.kv_dtype, pool.speculative_tokens)
        if same_accelerator and same_settings and shape.parallelism == pool.parallelism:
            return number
    raise InputError(
        f"pool {name}: no engine on {pool.accelerator} with these parallel degrees, {pool.weight_dtype} weights and "
        f"{pool.kv_dtype} KV cache is possible here"
    )


def _setting(values: FloatArray, value: int, pool: str, name: str) -> int:
    places = np.flatnonzero(values == value)
    if not places.size:
        raise InputError(f"pool {pool}: {name} {value} is not in the plan's search space")
    return int(places[0])
