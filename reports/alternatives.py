"""Alternatives to the recommended fleet: their names and numbers, why they lost, and which came nearest."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import Alternative, Plan, Status
from optimizer.plans.records import EnginePool, JudgedFleet, Outcome, engine_counts

from .fleets import fleet_line
from .limits import violated
from .numbers import hourly, is_number, percent
from .question import slo_classes
from .slos import OUTCOMES, misses_used, tightest
from .text import as_sentence, capital, clean, in_words, sentence

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

    They are those named so, else the one of the highest attainment. Why it is none stands there where no limit of the
    plan says it, and of others than the nearest.
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
            limit = "this limit" if len(violated(plan)) == 1 else "these limits"
            looser = any(binding.unit == "s" for binding in violated(plan))  # and no looser than it is relaxed below
            lifted = miss.label if miss.label.startswith("without ") else f"without {limit}"
            change = f"with {limit} relaxed as below" if looser else lifted
            share = f"{percent(miss.attainment)} of requests, {basis}"
            sentences.append(f"Cheapest fleet {change}: {pools}{price}; it would meet the SLO ({share}).")
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
