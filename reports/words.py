"""Words, selections and short sentences that the answers share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from costmodel.engine import Parallelism
from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.metric import METRICS
from costmodel.words import join_words, plural
from optimizer.plans.plan import Alternative, Binding, ClassResult, Plan, Pool, Status
from optimizer.plans.records import EnginePool, JudgedFleet, Outcome, SimulatedClass, engine_counts
from reports.asked import enough_as_shown, violated
from reports.text import capital
from search_spaces.bounds import NO_TARGET, TARGET_NAMES
from search_spaces.problem import Slo, target_of

from .asked import asked
from .numbers import MISSING, count, duration, hourly, is_number, percent, quantity, rate, signed_percent, significant
from .text import clean, sentence

MOST_POOLS_IN_WORDS: Final = 2
MOST_NAMES: Final = 2
"""Other kinds of fleet that one fleet is named after."""
FIRST_KINDS: Final = {"safe", "colocated_only", "disaggregated_only"}
"""Kinds of alternatives that come first: the fleet whose price the risk states, and the other way to serve."""
FLEET_WITH_LIMITS: Final = "replicas × GPU (max seqs/chunk)"
"""Header of a column of `fleet_line` with limits."""
LABEL_LIMIT: Final = 100
"""Of the name of an alternative, which may list the engines of two pools."""
ENGINES_LIMIT: Final = 1000
"""Of the list of engines that an alternative is without, which no view may cut."""

_CONSTRAINTS: Final = {
    "slots": "request slots",
    "time": "prompt time",
    "kv_memory": "KV memory",
    "attention_time": "decode time",
    "link": "KV transfer link",
    "attainment": "permitted misses",
    "inventory": "GPU inventory",
    "budget": "budget",
    "power": "power limit",
    "max_gpus": "GPU limit",
    "max_pools": "limit on pools",
    "max_volume": "most volume",
    "gateway": "limit on pools that the target's router serves",
    **{str(metric): f"{row.label} limit" for metric, row in METRICS.items()},
}
_KINDS: Final = {
    "recommended": "recommended",
    "single_type": "one GPU type",
    "colocated_only": "colocated only",
    "disaggregated_only": "disaggregated only",
    "own_precision": "the model's own precision",
    "no_speculation": "no speculative decoding",
    "one_pool_pair": "one pool pair",
    "nearest_miss": "nearest miss",
    "safe": "for slow GPUs",
    "other_engines": "runner-up",
}


def in_words(name: str, words: dict[str, str]) -> str:
    """Look a short name up; an unknown one is cleaned and its underscores become blanks."""
    return words.get(name, clean(name).replace("_", " "))


def constraint_words(name: str) -> str:
    """Say a constraint's short name in words."""
    return in_words(name, _CONSTRAINTS)


def is_overloaded(pool: Pool) -> bool:
    """Tell whether, by formula, a pool gets more than it can do, so that its queue grows for as long as that lasts."""
    used = pool.operating_point.utilization.values()
    return pool.operating_point.request_rate_rps > 0 and bool(used) and not any(map(is_number, used))


def engine_title(name: str) -> str:
    """An engine as its makers write it; a name that no target knows, as a plan may have, as it is.

    >>> engine_title("vllm"), engine_title("mine")
    ('vLLM', 'mine')
    """
    return target_of(name).title if name in TARGET_NAMES else name


def serving_words(plan: Plan) -> str:
    """Say which engine serves, and on which other target the plan has to run where it was planned for one."""
    target, engine = plan.provenance.inputs.get("target"), plan.engine
    title = clean(engine_title(engine), 20)
    is_alone = target in {None, NO_TARGET, engine}
    return title if is_alone else f"{title} with {clean(engine_title(str(target)), 20)}"


def split_words(pool: EnginePool) -> str:
    """Write how one replica of a pool splits the model, and how many tokens it drafts."""
    split = Parallelism(pool.tensor_parallel, pool.pipeline_parallel, pool.expert_parallel, pool.data_parallel)
    return split.words + (f" spec {pool.speculative_tokens}" if pool.speculative_tokens else "")


def gpus_per_engine(pool: EnginePool) -> int:
    """GPUs of one replica."""
    return pool.gpus // max(1, pool.replicas)


def pool_words(pool: EnginePool) -> str:
    """Write one pool, such as "2 prefill replicas of 4 H200 GPUs"."""
    return f"{plural(pool.replicas, f'{pool.role} replica')} of {replica_words(pool)}"


def replica_words(pool: EnginePool) -> str:
    """Write what one replica of a pool runs on, such as "4 H200 GPUs"."""
    return plural(gpus_per_engine(pool), f"{clean(pool.accelerator, 24)} GPU")


def fleet_words(plan: Plan) -> str:
    """Write the fleet: pool by pool when few, else GPUs by type."""
    if 0 < len(plan.pools) <= MOST_POOLS_IN_WORDS:
        return join_words([pool_words(pool) for pool in plan.pools])
    return f"{gpu_words(plan)} in {plural(len(plan.pools), 'pool')}"


def gpu_words(plan: Plan) -> str:
    """Write the GPUs by type, such as "8 H100 and 6 H200 GPUs", and how many are paid for where that is more."""
    most = sorted(plan.gpus.items(), key=lambda item: (-item[1], item[0]))
    bill_notes = {
        name: f" ({number:,d} billed, {plan.gpus[name]:,d} used)" for name, number in plan.gpus_billed.items()
    }
    words = [f"{number:,d} {clean(name)}{bill_notes.get(name, '')}" for name, number in most[:4]]
    if words:
        words[-1] += " GPU" if len(most) == 1 and most[0][1] == 1 else " GPUs"
    if len(most) > 4:
        words.append(plural(len(most) - 4, "other type"))
    return join_words(words)


def replicas_cell(pool: EnginePool, *, spares: int = 0, limits: bool = False) -> str:
    """Write a pool without its role, such as "2 × H200 TP4 fp8/bf16": replicas, GPU, parallelism, precision.

    The precision is that of weights and KV cache; it is left out where both have the usual one, or it is not recorded.
    spares: how many of the replicas are; limits: with `batch_limits`, such as "(64/512)", where they are stated.
    """
    dtypes = {str(pool.weight_dtype), str(pool.kv_dtype)}
    is_usual = dtypes == {ACTIVATION_DTYPE} or None in {pool.weight_dtype, pool.kv_dtype}
    precision = "" if is_usual else f"{clean(str(pool.weight_dtype), 20)}/{clean(str(pool.kv_dtype), 20)}"
    notes = f"({spares} spare)" if spares else "", f"({batch_limits(pool)})" if limits and batch_limits(pool) else ""
    engine = " ".join(filter(None, (clean(pool.accelerator), split_words(pool), precision, *notes)))
    return f"{pool.replicas:d} × {engine}"


def fleet_line(pools: Sequence[EnginePool], *, limits: bool = False) -> str:
    """Write a fleet in one line, such as "prefill 2 × H100 TP2, decode 1 × H200 TP2"; limits: as of `replicas_cell`."""
    groups = itertools.groupby(pools, key=lambda pool: pool.role)
    cells = [f"{role} {' + '.join(replicas_cell(pool, limits=limits) for pool in group)}" for role, group in groups]
    return ", ".join(cells) or "no fleet"


def limits_by_role(pools: Sequence[EnginePool]) -> str:
    """Write max_num_seqs and max_num_batched_tokens of the pools of `fleet_line`, such as "48/8,192, 360/360"."""
    groups = itertools.groupby(pools, key=lambda pool: pool.role)
    return ", ".join(" + ".join(map(batch_limits, group)) for _, group in groups)


def batch_limits(pool: EnginePool) -> str:
    """Write max_num_seqs and max_num_batched_tokens of an engine, "" where they are not stated."""
    seqs, chunk = pool.max_num_seqs, pool.max_num_batched_tokens
    return "" if seqs is None or chunk is None else f"{count(seqs)}/{count(chunk)}"


def slo_name(plan: Plan, most: int = 0) -> str:
    """Name what a fleet has to meet: the SLO, or every one; of at most so many classes by their names."""
    names = [clean(item.name, 30) for item in asked(plan)]
    if len(names) <= 1:
        return "the SLO"
    return f"the SLOs of {join_words(names)}" if len(names) <= most else "every SLO"


def is_feasible(row: Alternative) -> bool:
    """Tell whether an alternative could be bought: it meets the SLOs and has a price."""
    return row.status in {Status.OPTIMAL, Status.FEASIBLE} and is_number(row.cost_usd_per_hour)


def own_pools(plan: Plan) -> list[EnginePool]:
    """The recommended fleet's pools as the alternatives state theirs."""
    return next((list(row.pools) for row in plan.alternatives if row.kind == "recommended"), [])


def alternative_groups(plan: Plan) -> list[list[Alternative]]:
    """Alternatives by fleet, in the order of their numbers: the recommended one, FIRST_KINDS, others, runners-up.

    Within these by price. A fleet that is the best under several restrictions stands once, under the first of them;
    that it has other engines is then no news. One for slow GPUs may owe that to its batch limits, so that they have to
    be the same too.
    """

    def order(row: Alternative) -> tuple[bool, bool, bool, bool, float, bool, str]:
        usual = row.kind not in FIRST_KINDS, not is_feasible(row), row.cost_usd_per_hour or 0.0
        return row.kind != "recommended", row.kind == "other_engines", *usual, row.kind == "single_type", row.label

    own = engine_counts(own_pools(plan))
    rows = sorted(plan.alternatives, key=order)
    groups: dict[object, list[Alternative]] = {}
    for number, row in enumerate(row for row in rows if row.kind != "safe"):
        counts = engine_counts(row.pools)
        is_own = row.kind == "recommended" or (counts == own and is_feasible(row))
        rival = (counts, row.cost_usd_per_hour) if is_feasible(row) and row.pools else number
        groups.setdefault("own" if is_own else rival, []).append(row)
    for row in (row for row in rows if row.kind == "safe"):
        same = (key for key, rivals in groups.items() if key != "own" and rivals[0].pools == row.pools)
        groups.setdefault(next(same, "safe"), []).append(row)
    return sorted((sorted(group, key=order) for group in groups.values()), key=lambda group: order(group[0]))


def distinct_alternatives(plan: Plan) -> list[Alternative]:
    """The first alternative of each fleet, in the order of their numbers, under the names of several restrictions.

    A runner-up keeps its own: the engines that it is without.
    """
    distinct = []
    for first, *rest in alternative_groups(plan):
        also = [alternative_name(row) for row in rest if row.kind != "other_engines"]
        more = [f"{len(also) - MOST_NAMES} more"] if len(also) > MOST_NAMES else []
        label = ", ".join([alternative_name(first), *also[:MOST_NAMES], *more])
        if first.kind == "other_engines":
            label = first.label
        elif first.kind == "recommended":
            label = f"recommended (also cheapest for: {join_words(also)})" if also else "recommended"
        distinct.append(first.model_copy(update={"label": label}))
    return distinct


def alternative_name(row: Alternative) -> str:
    """Name an alternative: its label, or its kind in words when it has none.

    A runner-up's label names the engines that it does without, which says nothing of the fleet.
    """
    label = "" if row.kind == "other_engines" else clean(row.label, LABEL_LIMIT)
    return label or in_words(row.kind, _KINDS)


def misses_used(attainment: float, goal: float) -> float:
    """The misses of a class over those that its goal permits [1]: the class that uses most of them is the tightest.

    Infinite where the share in time is unknown, or where none may miss and one does.

    >>> round(misses_used(0.977, 0.9), 3), round(misses_used(0.999, 0.95), 3), misses_used(1.0, 1.0)
    (0.23, 0.02, 0.0)
    """
    misses, miss_limit = 1.0 - attainment, 1.0 - goal
    if misses <= 0.0:
        return 0.0
    return misses / miss_limit if miss_limit > 0.0 and not math.isnan(misses) else math.inf


def tightest(shares: Mapping[str, float], classes: Sequence[ClassResult | SimulatedClass]) -> tuple[str, float, float]:
    """The class that uses most of its permitted misses: name, its share that meets the SLO, and its goal [1]."""
    goals = {item.name: item.attainment_goal for item in classes}
    name = max(shares, key=lambda name: misses_used(shares[name], goals.get(name, 0.0)))
    return name, shares[name], goals.get(name, 0.0)


def tightest_first(plan: Plan) -> list[ClassResult]:
    """Classes by what they use of their permitted misses, the one that uses most first."""
    return sorted(plan.classes, key=lambda item: (-misses_used(item.attainment, item.attainment_goal), item.name))


def missed_classes(plan: Plan) -> list[ClassResult]:
    """Classes whose predicted attainment is below their goal."""
    return [item for item in plan.classes if not item.attainment >= item.attainment_goal]


def has_tpot(item: ClassResult) -> bool:
    """Tell whether any request of a class has more than one output token."""
    return item.tpot_s.p99 != 0.0


def used_words(limit: Binding) -> str:
    """How much of a limit is used; of a pool, its load over the most that it can take within the SLO.

    It is not known where nothing is allowed, and where a pool can take no load at all.
    """
    return percent(limit.used / limit.limit) if limit.limit and is_number(limit.used) else MISSING


def basis_words(plan: Plan) -> str:
    """Say whether the figures of a plan with a fleet are simulated."""
    if plan.simulated:
        return "simulated"
    return "simulated, request rates by formula" if is_simulated_row(plan) else "by formula, not simulated"


def is_simulated_row(plan: Plan) -> bool:
    """Whether the latencies of a plan are those that an alternative of another plan was simulated with."""
    return not plan.simulated and any(row.kind == "recommended" and row.latencies for row in plan.alternatives)


def dearest_of_each_role(pools: Sequence[Pool]) -> list[Pool]:
    """Return the most expensive pool of each role, in the order prefill, decode, colocated."""
    pools_of_roles = []
    for role in ("prefill", "decode", "colocated"):
        members = [pool for pool in pools if pool.role == role]
        if members:
            pools_of_roles.append(max(members, key=lambda pool: (pool.usd_per_hour, pool.id)))
    return pools_of_roles


OUTCOMES: Final = {
    Outcome.MEETS: "meets the SLO",
    Outcome.MISSES: "misses the SLO",
    Outcome.UNDECIDED: "undecided",
}
MARKS: Final = {Outcome.MEETS: "✓", Outcome.MISSES: "✗", Outcome.UNDECIDED: "undecided:"}


def marked(outcome: Outcome, share: float) -> str:
    """Write a share that meets the SLO, and what simulation says of its goal.

    >>> marked(Outcome.MEETS, 0.991), marked(Outcome.UNDECIDED, 0.9)
    ('✓ 99.1 %', 'undecided: 90 %')
    """
    return f"{MARKS[outcome]} {percent(share)}"


def requests_of(name: str, classes: Sequence[object]) -> str:
    """Whose requests a share is of: those of a class, by its name where there are several.

    >>> requests_of("chat", ["chat"]), requests_of("chat", ["chat", "batch"])
    ('requests', 'chat')
    """
    return "requests" if len(classes) == 1 else clean(name, 30)


ORIGINS: Final = {"found by formula": "cheapest by formula", "repaired": "repaired after a miss"}


def tried_fleets(plan: Plan) -> list[JudgedFleet]:
    """Every fleet that was simulated beside the plan's once: one replica fewer first, then the others as tried.

    Of attempts that differ in batch limits, or in how requests are routed, the one that went best.
    """
    if plan.simulation is None:
        return []
    attempts: dict[tuple[Hashable, float], list[JudgedFleet]] = {}
    for fleet in (*plan.simulation.one_replica_less, *plan.simulation.others):
        attempts.setdefault((engine_counts(fleet.pools), fleet.cost_usd_per_hour), []).append(fleet)

    def merit(fleet: JudgedFleet) -> tuple[bool, bool, float]:
        _, share, goal = tightest(fleet.attainment, plan.classes)
        return fleet.held, not fleet.overloaded, -misses_used(share, goal)

    return [max(alike, key=merit) for alike in attempts.values()]


def speed_words(plan: Plan) -> str:
    """How fast the GPUs are that a plan's figures are for."""
    end = f"{percent((1.0 - abs(plan.confidence)) / 2.0)} of our predictions"
    if plan.confidence < 0.0:
        return f"as fast as the best {end}"
    return f"as slow as the worst {end}" if plan.confidence else "as fast as expected"


def undecided(fleet: JudgedFleet, plan: Plan) -> bool:
    """Whether the simulation does not tell if a fleet holds; older plans do not say: then the shares are compared."""
    if fleet.outcome is not None:
        return fleet.outcome == "undecided"
    goals = {item.name: item.attainment_goal for item in plan.classes}
    meets_goals = all(share >= goals.get(name, 0.0) for name, share in fleet.attainment.items())
    return meets_goals and not fleet.held and not fleet.overloaded


def limit_words(binding: Binding) -> str:
    """Name a limit and where it holds, such as "the KV memory of d0"."""
    where = clean(binding.where)
    name = f"the {constraint_words(binding.constraint)}"
    return name if where in {"fleet", ""} else f"{name} of {where}"


def binding_sentence(binding: Binding) -> str:
    """Say a limit: the planner's own sentence, or one made from its numbers."""
    used, limit = quantity(binding.used, binding.unit), quantity(binding.limit, binding.unit)
    verb = "needs" if binding.used > binding.limit else "uses"
    return sentence(binding.sentence) or f"{capital(limit_words(binding))} is {limit}; the fleet {verb} {used}."


def why_not_sentence(row: Alternative) -> str:
    """Say why an alternative lost, as a whole sentence: in the planner's words, else how the search for it ended.

    Empty for a fleet that could be bought and of which the plan does not tell more.
    """
    if row.why_not or is_feasible(row):
        return as_sentence(sentence(row.why_not))
    unproven = "none found that meets the SLO" if row.simulated else "not found before the time was up"
    status = unproven if row.status is Status.TIME_LIMIT else row.status.value
    price = f" at {hourly(row.cost_usd_per_hour)}" if is_number(row.cost_usd_per_hour) else ""
    return as_sentence(f"{status}{price}")


def as_sentence(text: str) -> str:
    """The text with a capital first letter and an end; empty as it is."""
    return text if not text or text.endswith((".", "…")) else f"{capital(text)}."


def relax_sentence(binding: Binding) -> str:
    """Say by how much a violated limit would have to give."""
    limit_name = limit_words(binding)
    if not is_number(binding.used) or not is_number(binding.limit):
        return f"Relax {limit_name}."
    change = f" ({signed_percent(binding.used / binding.limit - 1)})" if binding.limit else ""
    return f"Relax {limit_name} to {quantity(enough_as_shown(binding.used, binding.unit), binding.unit)}{change}."


def miss_sentences(plan: Plan) -> list[str]:
    """Say which fleets came closest, at which price, and which share of requests would meet the SLO, as far as known.

    They are those named so, else the one of the highest attainment. Why it is none stands there where no limit of the
    plan says it, and of others than the nearest.
    """
    sentences = []
    rows_named_so = [row for row in plan.alternatives if row.kind == "nearest_miss"]
    rows = [row for row in plan.alternatives if is_number(row.attainment)]
    for number, miss in enumerate(rows_named_so or sorted(rows, key=lambda row: -(row.attainment or 0.0))[:1]):
        pools = fleet_line(miss.pools[:4]) if miss.pools else alternative_name(miss)
        price = f" for {hourly(miss.cost_usd_per_hour)}" if is_number(miss.cost_usd_per_hour) else ""
        basis = "in simulation" if miss.simulated else "by formula"
        met = f"{percent(miss.attainment)} of requests would meet the SLO {basis}." * is_number(miss.attainment)
        opening = f"{capital(alternative_name(miss))}" if number else "Nearest miss"
        keeps_goals = is_number(miss.attainment) and all(miss.attainment >= slo.attainment for slo in asked(plan))
        if not number and violated(plan) and keeps_goals:
            limit = "this limit" if len(violated(plan)) == 1 else "these limits"
            looser = any(binding.unit == "s" for binding in violated(plan))  # and no looser than it is relaxed below
            change = f"with {limit} relaxed as below" if looser else f"without {limit}"
            share = f"{percent(miss.attainment)} of requests, {basis}"
            sentences.append(f"Cheapest fleet {change}: {pools}{price}; it would meet the SLO ({share}).")
            continue
        reasons = [why_not_sentence(miss)] if number or not violated(plan) else [met]
        sentences.append(" ".join(filter(None, (f"{opening}: {pools}{price}.", *reasons))))
    return sentences


def demand_sentence(plan: Plan) -> str:
    """Say what was asked: rate, lengths and SLOs."""
    load = plan.workload
    shape = f"{significant(load.mean_isl)} input and {significant(load.mean_osl)} output tokens on average"
    number = len(asked(plan))
    classes = f", {plural(number, 'SLO class')}" if number else ""
    return f"{clean(plan.model)} at {rate(plan.demand_rps)} with {shape}{classes}."


def slo_words(slo: Slo) -> str:
    """Say what one class asks for."""
    limits = [f"{METRICS[metric].label} within {duration(limit)}" for metric, limit in slo.limits.items()]
    return f"{clean(slo.name, 30)}: {join_words(limits) or 'no limit'} for {percent(slo.attainment)} of its requests"
