"""Fleets in words, in tables and in the diagram of a page: pools, GPUs, settings, load, routing, and alternatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Final

from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.words import join_words, plural
from optimizer.plans.plan import Alternative, Plan, Pool, Route, Status, Transfer
from optimizer.plans.records import EnginePool, JudgedFleet, Outcome, engine_counts

from .document import Column, FleetDiagram, LinkLine, PoolBox, Table, table_by_column, table_of
from .question import constraint_words, served_rate, slo_classes, tightest_limits, used_words, violated
from .slos import LEAST_SHARE, OUTCOMES, misses_used, tightest
from .text import (
    MISSING,
    as_sentence,
    capital,
    clean,
    count,
    duration,
    hourly,
    in_words,
    is_number,
    money,
    percent,
    rate,
    sentence,
    si,
    significant,
)

MOST_POOLS_IN_WORDS: Final = 2
FLEET_WITH_LIMITS: Final = "replicas × GPU (max seqs/chunk)"
"""Header of a column of `fleet_line` with limits."""


def is_overloaded(pool: Pool) -> bool:
    """Tell whether, by formula, a pool gets more than it can do, so that its queue grows for as long as that lasts."""
    used = pool.operating_point.utilization.values()
    return pool.operating_point.request_rate_rps > 0 and not all(map(is_number, used))


def split_words(pool: EnginePool) -> str:
    """Write how one replica of a pool splits the model, and how many tokens it drafts."""
    return pool.parallelism.words + (f" spec {pool.speculative_tokens}" if pool.speculative_tokens else "")


def pool_words(pool: EnginePool) -> str:
    """Write one pool, such as "2 prefill replicas of 4 H200 GPUs"."""
    return f"{plural(pool.replicas, f'{pool.role} replica')} of {replica_words(pool)}"


def replica_words(pool: EnginePool) -> str:
    """Write what one replica of a pool runs on, such as "4 H200 GPUs"."""
    return plural(pool.parallelism.gpus, f"{clean(pool.accelerator, 24)} GPU")


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


def billed_sentence(plan: Plan) -> str:
    """Say how many GPUs are paid for where whole nodes are; empty where none idles."""
    return f"Whole nodes are billed: {gpu_words(plan)}." if plan.gpus_billed else ""


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
    return f"{count(pool.replicas)} × {engine}"


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


def pool_label(pool: Pool) -> str:
    """Name a pool on a chart."""
    return f"{clean(pool.id, 20)} · {pool.role}"


def dearest_first(pools: Sequence[Pool]) -> list[Pool]:
    """Pools by their price, the dearest first."""
    return sorted(pools, key=lambda pool: (-pool.usd_per_hour, pool.id))


def pool_loads(plan: Plan) -> dict[str, str]:
    """The load of each pool: the share of what it can take within the SLO, and what runs out first."""
    tightest_last = reversed(tightest_limits(plan))
    return {row.where: f"{used_words(row)} ({constraint_words(row.constraint)})" for row in tightest_last}


def fleet_table(plan: Plan) -> Table:
    """The pools of a fleet with their settings, their load and what it is limited by; roles unless ids name them."""
    loads = pool_loads(plan)
    ids_name_roles = all(pool.id.startswith(pool.role) for pool in plan.pools)
    return table_by_column(
        plan.pools,
        ("pool", lambda pool: clean(pool.id, 20)),
        *([] if ids_name_roles else [(Column("role", optional=True), lambda pool: pool.role)]),
        ("replicas × GPU", lambda pool: replicas_cell(pool, spares=pool.spare_replicas)),
        ("#max seqs", lambda pool: count(pool.max_num_seqs)),
        ("#chunk", lambda pool: count(pool.max_num_batched_tokens)),
        ("#$/h", lambda pool: money(pool.usd_per_hour)),
        (Column("load", shrink=True, lines=2), lambda pool: loads.get(pool.id, MISSING)),
    )


def routing_table(plan: Plan) -> Table:
    """Which requests of each class each pool gets, and how many of these meet the SLO.

    The shares of a stage sum to the share of all routes.
    """
    pieces: dict[tuple[str, str, str], list[tuple[float, Route]]] = {}
    for route in plan.routing:
        stages = {"prefill": route.prefill, "decode": route.decode}
        if route.prefill == route.decode:
            stages = {"prefill and decode": route.prefill}
        for stage, fractions in stages.items():
            for pool, fraction in fractions.items():
                pieces.setdefault((stage, pool, route.slo_class), []).append((fraction * route.share, route))
    rows = []
    for (stage, pool, slo_class), routes in pieces.items():
        share, inputs = math.fsum(weight for weight, _ in routes), [row.isl for weight, row in routes if weight > 0.0]
        if share > LEAST_SHARE:
            isl, osl, met = (
                math.fsum(weight * getattr(row, name) for weight, row in routes) / share
                for name in ("isl", "osl", "attainment")
            )
            lengths = " to ".join(dict.fromkeys(map(significant, (min(inputs), max(inputs)))))
            cells = clean(pool, 20), stage, clean(slo_class, 30), percent(share), lengths
            order = stage != "prefill", cells[0], -share, cells[2]
            rows.append((order, (*cells, significant(isl), significant(osl), percent(met))))
    means = (Column(f"mean {name}", "right", optional=True) for name in ("input", "output"))
    headers: tuple[Column | str, ...] = ("pool", "stage", "class", "#share", "#inputs", *means, "#SLO met")
    return table_of(headers, [cells for _, cells in sorted(rows)])


def is_routed_apart(plan: Plan) -> bool:
    """Whether pools of one stage get requests of different lengths."""
    rows = [(stage, slo_class, inputs) for _, stage, slo_class, _, inputs, *_ in routing_table(plan).rows]
    return len(set(rows)) > len({(stage, slo_class) for stage, slo_class, _ in rows})


MOST_ENGINES: Final = 8
MOST_GPUS_OF_MANY: Final = 8
"""GPUs drawn of each pool when a stage has more than two pools; two engines at least."""
MOST_SQUARES: Final = 16
ROLES: Final = ("prefill", "decode", "colocated")


def fleet_diagram(plan: Plan) -> FleetDiagram:
    """Lay the plan's pools out by role in the order of the table of pools, and their links in the order of these."""
    served, load = served_rate(plan), plan.workload
    of = f"{'served of' if served < plan.demand_rps else 'the demand is'} {rate(plan.demand_rps)}; "
    inputs = f"{of * (plan.objective != 'min_cost')}{significant(load.mean_isl)} input tokens each"
    tokens = si(served * load.mean_osl, "tokens/s").replace(" k", "k ")
    loads, places = pool_loads(plan), {pool.id: number for number, pool in enumerate(plan.pools)}
    links = sorted(plan.transfers, key=lambda move: (places[move.source], places[move.target]))
    return FleetDiagram(
        **{
            role: tuple(_box(pool, loads.get(pool.id, MISSING), of_many=len(peers) > 2) for pool in peers)
            for role in ROLES
            for peers in [[pool for pool in plan.pools if pool.role == role]]
        },
        links=tuple(map(_link, links)),
        entry=(rate(served), inputs),
        exit=(tokens, f"{significant(load.mean_osl)} output tokens each"),
    )


def _box(pool: Pool, load: str, *, of_many: bool) -> PoolBox:
    gpus = pool.parallelism.gpus
    load = "overloaded by formula" if is_overloaded(pool) else f"load {load}"
    squares = min(gpus, MOST_SQUARES)
    drawn = min(pool.replicas, max(2, MOST_GPUS_OF_MANY // squares) if of_many else MOST_ENGINES)
    working = pool.replicas - pool.spare_replicas
    hidden = [plural(pool.replicas - drawn, "more replica")] if pool.replicas > drawn else []
    hidden += [f"{gpus} GPUs in each replica"] if gpus > squares else []
    spare = f", {pool.spare_replicas} spare" if pool.spare_replicas else ""
    return PoolBox(
        title=pool_label(pool),
        role=pool.role,
        lines=(
            f"{plural(pool.replicas, 'replica')} of {replica_words(pool)}{spare} · {split_words(pool)}",
            f"{rate(pool.operating_point.request_rate_rps)} · {load} · {hourly(pool.usd_per_hour)}",
        ),
        engines=tuple((squares, index >= working) for index in range(drawn)),
        columns=max(1, min(8, squares, max(pool.tensor_parallel, pool.data_parallel))),
        more=", ".join(hidden),
    )


def _link(item: Transfer) -> LinkLine:
    return LinkLine(
        source=clean(item.source, 20),
        target=clean(item.target, 20),
        lines=(
            f"{rate(item.requests_per_second)} · {si(item.bytes_per_second, 'B/s')} of KV cache",
            f"{duration(item.seconds_per_request)} each · {percent(item.link_utilization)} of the link",
        ),
    )


# --- alternatives -----------------------------------------------------------------------------------------------------

FIRST_KINDS: Final = {"safe", "colocated_only", "disaggregated_only"}
"""Kinds of alternatives that come first: the fleet whose price the risk states, and the other way to serve."""
LABEL_LIMIT: Final = 160
"""Of the name of an alternative, which may list the engines of two pools."""
ENGINES_LIMIT: Final = 1000
"""Of the list of engines that an alternative is without, which no view may cut."""
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
        label = ", ".join([alternative_name(first), *also])
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


def miss_sentences(plan: Plan) -> list[str]:
    """Say which fleets came closest, at which price, and which share of requests would meet the SLO, as far as known.

    They are the alternatives of that kind, else the one of the highest attainment. A fleet has its own reason where no
    limit of the plan gives one, or where it is not the nearest.
    """
    sentences = []
    rows_named_so = [row for row in plan.alternatives if row.kind == "nearest_miss"]
    rows = [row for row in plan.alternatives if is_number(row.attainment)]
    for number, miss in enumerate(rows_named_so or sorted(rows, key=lambda row: -(row.attainment or 0.0))[:1]):
        pools = fleet_line(miss.pools) if miss.pools else alternative_name(miss)
        price = f" for {hourly(miss.cost_usd_per_hour)}" if is_number(miss.cost_usd_per_hour) else ""
        basis = "in simulation" if miss.simulated else "by formula"
        met = f"{percent(miss.attainment)} of requests would meet the SLO {basis}." * is_number(miss.attainment)
        opening = f"{capital(alternative_name(miss))}" if number else "Nearest miss"
        keeps_goals = is_number(miss.attainment) and all(miss.attainment >= slo.attainment for slo in slo_classes(plan))
        if not number and violated(plan) and keeps_goals:
            limit, verb = ("this limit", "is") if len(violated(plan)) == 1 else ("these limits", "are")
            looser = any(binding.unit == "s" for binding in violated(plan))  # and no looser than it is relaxed below
            lifted = miss.label if miss.label.startswith("without ") else f"without {limit}"
            change = f"if {limit} {verb} relaxed as below" if looser else lifted
            share = f"{percent(miss.attainment)} of requests, {basis}"
            # beyond limits on GPUs and power the search takes the fleet that needs the least of them, not the cheapest
            by_cost = looser or {binding.constraint for binding in violated(plan)} == {"budget"}
            word = "Cheapest" if by_cost else "Nearest"
            sentences.append(f"{word} fleet {change}: {pools}{price}; it would meet the SLO ({share}).")
            continue
        reasons = [why_not_sentence(miss)] if number or not violated(plan) else [met]
        sentences.append(" ".join(filter(None, (f"{opening}: {pools}{price}.", *reasons))))
    return sentences


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


def outcome_words(fleet: JudgedFleet, plan: Plan) -> str:
    """Whether a fleet that was simulated meets the SLO, in words."""
    if fleet.held:
        return OUTCOMES[Outcome.MEETS]
    if fleet.overloaded or fleet.stuck:
        return "overloaded"
    return OUTCOMES[Outcome.UNDECIDED if undecided(fleet, plan) else Outcome.MISSES]


def undecided(fleet: JudgedFleet, plan: Plan) -> bool:
    """Whether the simulation does not tell if a fleet holds; older plans do not say: then the shares are compared."""
    if fleet.outcome is not None:
        return fleet.outcome == "undecided"
    goals = {item.name: item.attainment_goal for item in plan.classes}
    meets_goals = all(share >= goals.get(name, 0.0) for name, share in fleet.attainment.items())
    return meets_goals and not fleet.held and not fleet.overloaded
