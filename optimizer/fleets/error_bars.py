"""How far a plan's figures can be trusted: error bars, errors on record, and what is assumed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Final, Literal

from costmodel.accelerator import Origin
from costmodel.engine import Draft, FractionOf, Role, Speculation
from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.errors import shown
from costmodel.metric import OWN_FIELDS, Metric
from costmodel.prefix_cache import CacheTier
from costmodel.units import GIGA
from costmodel.words import dollars, join_words, percentage
from optimizer.loads.instance import LINK_UTILIZATION, Instance, shape_configs, step_intervals
from optimizer.plans.records import QUANTILES, AccuracyRecord, ClassLatencies, ErrorBars, Range, StepError
from search_spaces.catalog import normalized_name
from search_spaces.engines import load_engine_memory
from search_spaces.huggingface import UNKNOWN_TYPE
from search_spaces.problem import Balancing, Billing, Problem, undeployed
from search_spaces.quotes import is_quotes_file
from search_spaces.serving_error import is_seen, shipped_errors

from .fleet import Fleet, pool_config

MODES: Final[dict[Literal["colocated", "disaggregated"], frozenset[Role]]] = {
    "colocated": frozenset({Role.COLOCATED}),
    "disaggregated": frozenset({Role.PREFILL, Role.DECODE}),
}
"""Ways to serve (colocated, disaggregated), and the roles that each needs."""

ERRORS = ("ttft_median_abs", "ttft_bias", "tpot_median_abs", "tpot_bias")
"""Errors on record, relative; in the catalog in percent."""

ANALYTIC = "Latencies and attainment are by formula unless they are said to be simulated."
"""The first assumption that a plan by formula states."""
GRANTED = {
    FractionOf.TOTAL: "of GPU memory",
    FractionOf.STARTUP: "of the GPU memory that start-up leaves for weights and KV cache",
    FractionOf.FREE: "of the GPU memory that weights and activations leave for the KV cache",
}
COMPARE = "answers differ; compare their quality before relying on it."
ROUTER = {
    Balancing.LEAST_TOKENS: "The router is least-tokens: a prompt goes to the replica of a pool with the fewest prompt "
    "tokens left to compute.",
    Balancing.LEAST_REQUESTS: "The router is least-requests: a request goes to the replica of a pool with the fewest "
    "requests in simulation; the formulas assume a least-tokens router.",
}
"""What is assumed of the router of a pool."""
EVEN_RANKS = (
    "Prefill replicas give each prompt to the data rank with the fewest tokens, as the deployment files ask "
    "(--load-balance-method total_tokens). By default they deal prompts at random, and prompts wait longer."
)
OTHER_ROUTERS = "A router for several pools of one role is a least-requests one; such fleets are simulated with it."


def step_errors(instance: Instance) -> list[StepError]:
    """Error intervals of each accelerator that can run an engine, for the plan file: the widest over precisions."""
    widest: dict[str, tuple[float, StepError]] = {}
    for config in shape_configs(instance):
        accelerator, intervals = config.accelerator, step_intervals(instance.problem, config)
        prefill, decode = (Range(low=low, high=high) for low, high in intervals)
        row = StepError(accelerator=accelerator.name, measured=accelerator.measured, prefill=prefill, decode=decode)
        low, high = intervals[1]
        rows = widest.get(row.accelerator, (0.0, row)), (high / low, row)
        widest[row.accelerator] = max(rows, key=lambda width: width[0])
    return [row for _, row in widest.values()]


def goal_quantile(goal: float) -> int:
    """Index of the first of `QUANTILES` that is at least a goal [1]; of the last one for a goal above all of them.

    >>> [QUANTILES[goal_quantile(goal)] for goal in (0.9, 0.93, 0.999)]
    [0.9, 0.95, 0.99]
    """
    return next((at for at, level in enumerate(QUANTILES) if level >= goal - 1e-9), len(QUANTILES) - 1)


def bars_between(
    instance: Instance, quick: Sequence[ClassLatencies], slow: Sequence[ClassLatencies], *, stable: bool
) -> list[ErrorBars]:
    """The error bars of each class from both ends; stable: whether the fleet keeps up at the slow end."""
    bars = []
    for slo, *ends in zip(instance.problem.slos, quick, slow, strict=True):
        at, ranges = goal_quantile(slo.attainment), dict[Metric, Range]()
        for metric in (*OWN_FIELDS, *slo.limits):
            low, high = (astuple(end.quantiles[metric])[at] for end in ends)
            ranges[metric] = Range(low=low, high=max(low, high) if stable else None)
        low, high = sorted(end.attainment for end in ends)
        ttft, tpot = (ranges.pop(metric) for metric in OWN_FIELDS)
        attainment = Range(low=low, high=high)
        bars.append(ErrorBars(quantile=QUANTILES[at], ttft_s=ttft, tpot_s=tpot, metrics=ranges, attainment=attainment))
    return bars


def accuracy_records(problem: Problem) -> list[AccuracyRecord]:
    """For every accelerator on offer and way of serving: this model, any model, any engine; the first even if none is.

    Errors are those of the catalog's serving_error.yaml.
    """
    errors = {
        (row["mode"], *(normalized_name(row.get(name, "")) for name in ("accelerator", "engine", "model"))): row
        for row in shipped_errors()["held_out_on"]
    }
    records = []
    for offer, (mode, roles) in itertools.product(problem.offers, MODES.items()):
        if not roles <= set(problem.space.roles):
            continue
        for engine, model in ((problem.engine, problem.model.name), (problem.engine, ""), ("", "")):
            names = (offer.accelerator.name, engine, model)
            row = errors.get((mode, *map(normalized_name, names)))
            if row is None and not model:
                continue
            measured = {} if row is None else {name: row[f"{name}_pct"] / 100.0 for name in ERRORS}
            rows = 0 if row is None else row["rows"]
            records.append(
                AccuracyRecord(accelerator=names[0], mode=mode, engine=engine, model=model, rows=rows, **measured)
            )
    return records


def price_remarks(problem: Problem, offers: Iterable[int] | None = None) -> list[str]:
    """What a buyer must know of prices that are not on-demand quotes; offers: those that matter, all by default."""
    relevant_offers = problem.offers if offers is None else [problem.offers[number] for number in offers]
    remarks = [offer.quote.remark(offer.accelerator.name) for offer in relevant_offers if offer.quote is not None]
    return [remark for remark in (*remarks, _two_price_lists(problem)) if remark]


def _two_price_lists(problem: Problem) -> str:
    """Says that the user's quotes price some of the GPUs on offer and the catalog the others; empty otherwise."""
    if not is_quotes_file(str(problem.inputs.get("prices"))):
        return ""
    quotes = {offer.accelerator.name: offer.quote for offer in problem.offers if offer.quote is not None}
    own = [gpu for gpu, quote in quotes.items() if quote.origin is Origin.STATED]
    rest = [gpu for gpu in quotes if gpu not in own]
    return f"{join_words(own)} at your price, {join_words(rest)} at the catalog's." if own and rest else ""


def hardware_remarks(problem: Problem, offers: Iterable[int] | None = None) -> list[str]:
    """What a buyer must know of accelerators: how a name is read, assumed or unmeasured figures, missing targets.

    offers: those that matter, all by default.
    """
    relevant_offers = problem.offers if offers is None else [problem.offers[number] for number in offers]
    remarks = []
    for offer in relevant_offers:
        accelerator, name = offer.accelerator, offer.accelerator.name
        if offer.alias:
            remarks.append(f"The file's {shown(offer.alias)} is read as {name}.")
        if accelerator.assumed:
            remarks.append(f"No data sheet of {name} states these figures, so they are assumed: {accelerator.assumed}.")
        if not is_seen(accelerator):
            remarks.append(f"No accelerator of the generation of {name} was measured: its error bars are wide.")
        remarks.append(undeployed(accelerator))
    return [remark for remark in remarks if remark]


def assumptions(instance: Instance) -> list[str]:
    """The assumptions behind the predictions, with the numbers in force."""
    problem, policy, memory = instance.problem, instance.policy, load_engine_memory(instance.problem.engine)
    overhead, limits = policy.overhead, problem.constraints
    sentences = [
        ANALYTIC,
        f"{problem.engine} spends {overhead.step * 1e6:.0f} µs of host time per step and "
        f"{overhead.per_request * 1e6:.0f} µs per request in it ({overhead.origin}).",
        f"Every TTFT has {policy.arrival * 1e3:.0f} ms in it for HTTP, tokenizing and scheduling, and "
        f"{policy.handover * 1e3:.0f} ms for a hand-over, beside the KV transfer ({overhead.origin}).",
        f"Engines may use {percentage(problem.memory_fraction, 1)} {GRANTED[memory.fraction_of]}.",
        f"Network cards are busy with KV transfers for {percentage(LINK_UTILIZATION)} of the time at most, each at "
        "full speed; transfers do not overlap with prefill.",
        "Prompts that wait at an engine are computed in order of arrival, max_num_batched_tokens in a step.",
        ROUTER[limits.balancing],
        *([OTHER_ROUTERS] if limits.balancing is Balancing.LEAST_TOKENS and limits.counting != limits.gateway else []),
        *price_remarks(problem),
    ]
    for offer in problem.offers:
        if offer.accelerator.efficiency["gemm", "bf16"].origin is Origin.ASSUMED:
            name = offer.accelerator.name
            sentences.append(f"The kernel efficiencies of {name} are assumed from other accelerators, not measured.")
    if UNKNOWN_TYPE in problem.model.source:
        sentences.append(
            f"{problem.model.name} is read by the fields of its config.json alone, as its model_type is not known: "
            "`pdplan models CONFIG --check` counts its parameters."
        )
    sentences += limits_by_use(problem)
    if problem.workload.prefix_hit_share > 0.0:
        sentences.append(_prefix_hits(problem))
    if problem.kv_cache_tier is not None:
        sentences.append(_cache_tier(problem.kv_cache_tier, problem.offers[0].tier_usd_per_hour))
    if problem.speculation is not None:
        sentences.append(_acceptance(problem.speculation))
        if problem.speculation.draft is Draft.MTP and not problem.model.draft_layers:
            sentences.append(
                f"The config.json of {problem.model.name} states no layer of multi-token prediction (MTP): check that "
                "the checkpoint has one."
            )
    return sentences + _arrivals(problem)


def limits_by_use(problem: Problem) -> list[str]:
    """What the limits count where whole nodes are billed; empty where no stated limit could be read in two ways."""
    by_node = [offer for offer in problem.offers if offer.billing is Billing.NODE]
    limits = problem.constraints
    limit_values = [limits.power, limits.max_gpus, *(offer.inventory for offer in by_node)]
    if not by_node or all(limit is None for limit in limit_values):
        return []
    names = join_words([offer.accelerator.name for offer in by_node])
    return [
        f"Whole nodes of {names} are billed: the budget pays for all of their GPUs; inventory, power and max_gpus "
        "count those that engines use."
    ]


def _acceptance(speculation: Speculation) -> str:
    """How many drafted tokens are accepted: this depends on the text, and no error bar covers it."""
    shares = join_words([percentage(share) for share in speculation.acceptance])
    last = " and later ones" if len(speculation.acceptance) == 1 else ""
    position = "position" if len(speculation.acceptance) == 1 else "positions, in order"
    return (
        f"Of tokens drafted by {speculation.draft}, {shares} are accepted at the first {position}{last}. The "
        "error bars do not cover this; measure it on your own prompts."
    )


def _prefix_hits(problem: Problem) -> str:
    """The prefix hits that are assumed, and when prefixes are used again."""
    load = problem.workload
    if load.sessions is not None:
        return "A turn finds the prompt of the turn before if its replica still has it; answers are computed again."
    share = percentage(load.prefix_hit_share, 1)
    if load.reuse is None:
        return f"{share} of every prompt is found in the prefix cache, whatever its length and the KV memory."
    return f"{share} of every prompt is found in the prefix cache, if the cache kept it for the reuse interval."


def _cache_tier(tier: CacheTier, usd: float) -> str:
    """The KV cache tier, and its price per GPU [$/h]."""
    owner = "all replicas of a pool share" if tier.shared else "each replica has for itself"
    return (
        f"KV of all prompts is copied to {tier.capacity / GIGA:.3g} GB per GPU that {owner}, and read from there at "
        f"{tier.bandwidth / GIGA:.3g} GB/s per GPU where GPU memory no longer has it. "
        + (f"It costs {dollars(usd)}/h per GPU." if usd else "No price is counted for it.")
    )


def _arrivals(problem: Problem) -> list[str]:
    """The arrival process, unless it is Poisson."""
    recording, variation = problem.recorded, problem.workload.burstiness
    if recording is None:
        return [f"Arrivals are independent with a coefficient of variation of {variation:g}."] * (variation != 1.0)
    left_out = f", without {recording.too_long:,} that no replica can serve" if recording.too_long else ""
    pace = problem.workload.request_rate / recording.rate
    return [
        f"The simulation replays the requests of {recording.source}{left_out}, at {pace:.3g} times their rate. "
        f"The formulas assume independent arrivals with a coefficient of variation of {variation:.3g}, which is "
        "measured over windows of time and so includes waves."
    ]


def fleet_assumptions(instance: Instance, fleet: Fleet) -> list[str]:
    """Assumptions on one fleet: its data-parallel ranks, and precisions that change the model's answers.

    The precision of the KV cache is named too where the checkpoint is the reason that it is not 16 bit.
    """
    problem, model = instance.problem, instance.problem.model
    sentences = []
    for config in (pool_config(instance, pool) for pool in fleet.pools):
        if problem.space.weight_dtype and config.weight_dtype != model.native_weight_dtype:
            sentences.append(
                f"Weights are served in {config.weight_dtype}, but {model.name} is published in "
                f"{model.native_weight_dtype}: {COMPARE}"
            )
        if problem.space.kv_dtype and config.kv_dtype != ACTIVATION_DTYPE:
            sentences.append(
                f"The KV cache is kept in {config.kv_dtype}, but {model.name} computes it in "
                f"{ACTIVATION_DTYPE}: {COMPARE}"
            )
        elif config.kv_dtype == "fp8" and model.cache_quantizer:
            sentences.append(
                f"The KV cache is kept in fp8, which the config of {model.name} states ({model.cache_quantizer})."
            )
        if instance.policy.scheduler.random_lanes and config.role is Role.PREFILL and config.parallelism.data > 1:
            sentences.append(EVEN_RANKS)
    return list(dict.fromkeys(sentences))
