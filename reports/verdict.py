"""The verdict: what to run, what it costs, whether it meets the SLO, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from costmodel.engine import tokens_per_step
from costmodel.prefix_cache import usd_per_gpu
from costmodel.words import join_words, percentage, plural, spares_words
from optimizer.plans.plan import ClassResult, FleetEvaluation, Plan, Status, is_below
from optimizer.plans.records import OPTIMAL_GAP, CheaperFleets, ClassJudgement, JudgedFleet, Outcome, Simulation
from optimizer.verification.bench import Verdict
from optimizer.verification.judge import Judgement
from search_spaces.engines import shipped_acceptance
from search_spaces.problem import DEFAULT_VOLUME_RANGE
from search_spaces.search_space import DTYPES

from . import question
from .document import said
from .fleets import fleet_words, is_feasible, is_overloaded, undecided
from .slos import missed_classes, misses_used, requests_of, tightest, tightest_first
from .text import (
    clean,
    count,
    duration,
    goal_percent,
    hourly,
    is_number,
    money,
    monthly,
    percent,
    percent_beside,
    rate,
    sentence,
    signed_percent,
    significant,
    size,
)

UNSEEN_GAP: Final = 5e-4
"""Gap of a goodput, which carries three digits, below which it counts as proved."""
MANY_TIMES: Final = 10.0
"""From how many times the demand on its multiple is said, not the percentage."""
MOST_NAMES: Final = 3
"""Classes that one sentence names."""


def headlines(plan: Plan) -> list[str]:
    """The answer: which fleet at which price, and whether it meets the SLO; or that there is none."""
    if not question.has_fleet(plan):
        return [no_fleet_headline(plan)]
    prices = f"{hourly(plan.cost_usd_per_hour)} ({monthly(plan.cost_usd_per_hour)}/month)"
    load = rate(question.served_rate(plan))
    per_token = f"{money(plan.usd_per_million_output_tokens)} per million output tokens at {load}"
    service = f"{clean(plan.model, 40)} on {question.serving_words(plan)}"
    return [f"Run {fleet_words(plan)} for {prices}: {per_token} of {service}.", slo_result_sentence(plan)]


def disaggregation_sentence(plan: Plan) -> str:
    """Say what prefill and decode pools save or cost against colocated ones; empty where that was not compared."""
    roles = {pool.role == "colocated" for pool in plan.pools}
    own, is_colocated = plan.cost_usd_per_hour, roles == {True}
    name = "disaggregated" if is_colocated else "colocated"
    row = next((row for row in plan.alternatives if row.kind == f"{name}_only"), None)
    if len(roles) != 1 or not own or plan.objective != "min_cost" or row is None:
        return ""
    if row.status is Status.INFEASIBLE:
        return f"No {name} fleet is possible: {sentence(row.why_not)}."
    if not is_feasible(row) or row.cost_usd_per_hour is None:
        return f"No {name} fleet was found that meets {question.slo_name(plan)}."
    difference, basis = row.cost_usd_per_hour - own, "" if row.simulated else " by formula"
    if money(own) == money(row.cost_usd_per_hour):
        return f"The cheapest {name} fleet found{basis} costs the same."
    if is_colocated:
        share = difference / own
        more = f"{hourly(difference)} more ({signed_percent(share)})"
        return f"Disaggregation does not pay: the cheapest disaggregated fleet found{basis} costs {more}."
    saving = f"{hourly(difference)} ({percent(difference / row.cost_usd_per_hour)})"
    return f"Disaggregation saves {saving} against the cheapest colocated fleet found{basis}."


def no_fleet_headline(plan: Plan) -> str:
    """Say that there is no fleet, and why as far as the plan knows."""
    proven = plan.status is not Status.TIME_LIMIT
    none = "No fleet in the search space meets" if proven else "No fleet was found that meets"
    none += f" {question.slo_name(plan, MOST_NAMES)}"
    doubt = "" if proven else " One may exist: the search did not try every fleet."
    limits = question.violated(plan) or question.tightest_limits(plan)[:1]
    if not limits:
        return f"{none}.{doubt}"
    names = join_words([question.limit_words(limit) for limit in limits])
    is_plural = question.constraint_words(limits[0].constraint).partition(" on ")[0].endswith("s")  # not limit on pools
    verb = "are" if len(limits) > 1 or is_plural else "is"
    return f"{none}: {names} {verb} in the way.{doubt}"


def overload_sentence(plan: Plan) -> str:
    """Say which pools get more than they can do by formula; empty where none does."""
    names = [clean(pool.id, 20) for pool in plan.pools if is_overloaded(pool)]
    if not names:
        return ""
    verb, whose = ("gets", "its queue grows") if len(names) == 1 else ("get", "their queues grow")
    return f"By formula {join_words(names)} {verb} more requests than can be served: {whose} while the load lasts."


def risk_sentence(plan: Plan, label: str = "Risk", subject: str = "this fleet") -> str:
    """Say whether slow GPUs miss the SLO, and what a fleet costs that meets it; empty where nothing is known.

    label: whose risk it is; subject: what the fleet is called. By the plan's error bars, where it
    states no safe fleet. A plan for slow or quick GPUs says so; a fleet that misses the SLO anyway has no risk of that.
    """
    if plan.confidence:
        return f"Figures are for GPUs {question.speed_words(plan)} (confidence: {plan.confidence:g})."
    if missed_classes(plan):
        return ""
    if plan.safe is not None:
        return f"{label}: {sentence(plan.safe.sentence).replace('this fleet', subject)}"
    classes = [item for item in plan.classes if item.error_bars is not None]
    shares = [
        f"{percent(item.error_bars.attainment.low)} of {requests_of(item.name, plan.classes)} "
        f"({goal_percent(item.attainment_goal)} asked)"
        for item in classes
        if item.error_bars is not None and not item.error_bars.attainment.low >= item.attainment_goal
    ]
    slow = "If these GPUs are as slow as the worst 5 % of our predictions"
    replan = "" if plan.status is Status.STATED else "; --confidence 0.9 plans for that"
    if shares:
        result = f"{subject} misses {question.missed_slo(plan)} by formula"
        return f"{label}: {slow}, {result}: {join_words(shares)} meet it{replan}."
    is_known = 0 < len(classes) == len(plan.classes)
    return f"{label}: {slow}, {subject} still meets {question.slo_name(plan)}, by formula." if is_known else ""


def precision_sentence(plan: Plan) -> str:
    """Say what narrower weights or a narrower KV cache save; empty where that is not notable or not known."""
    savings, own = list[str](), plan.cost_usd_per_hour or math.nan
    for row in plan.precision:
        weights, cache = f"{clean(row.weight_dtype, 8)} weights", f"an {clean(row.kv_dtype, 8)} KV cache"
        dtype_words = f"{weights} with {cache}"
        if all(pool.weight_dtype == row.weight_dtype for pool in plan.pools):
            dtype_words = cache
        elif all(pool.kv_dtype == row.kv_dtype for pool in plan.pools):
            dtype_words = weights
        saving = percent(1.0 - row.cost_usd_per_hour / row.base_usd_per_hour)
        is_known = savings or math.isclose(row.base_usd_per_hour, own, rel_tol=OPTIMAL_GAP)
        base = f"{hourly(row.base_usd_per_hour)}{'' if is_known else ', the cheapest fleet by formula,'}"
        prices = f"from {base} to {hourly(row.cost_usd_per_hour)}"
        savings.append(f"{dtype_words} would save {saving} ({prices})")
    return f"By formula, {', '.join(savings)}; test the quality of the model's answers first." if savings else ""


def speculation_sentence(plan: Plan) -> str:
    """Say what speculative decoding saves, and on which acceptance that rests; empty where nobody asked for it."""
    drafted = max((pool.speculative_tokens for pool in plan.pools), default=0)
    if not drafted:
        counts = question.inputs_of(plan, "search").get("speculative_tokens")
        is_searched = plan.pools and plan.status is not Status.STATED and any(counts or ())
        return "Speculative decoding is off: no fleet that drafts tokens was found to cost less." if is_searched else ""
    speculation = question.inputs_of(plan, "model", "speculation")
    method, acceptance = clean(speculation["method"], 10), speculation["acceptance"]
    tokens = tokens_per_step(acceptance, drafted)
    is_shipped = tuple(acceptance) == shipped_acceptance().get(speculation["method"])
    source = "the catalog (costmodel/catalog/acceptance.yaml); measure your own text" if is_shipped else "your file"
    fact = f"Speculative decoding: a decode step makes {tokens:.2f} tokens of a request. This assumes that "
    fact += f"{percent(acceptance[0])} of the first {method} drafts are accepted, as stated in {source}."
    rows = [row for row in plan.alternatives if row.kind == "no_speculation" and row.cost_usd_per_hour is not None]
    if not rows:
        return fact
    basis = "" if rows[0].simulated else " by formula"
    price = hourly(rows[0].cost_usd_per_hour)
    return f"{fact} Without speculative decoding the cheapest fleet found{basis} costs {price}."


def slo_result_sentence(plan: Plan, outcome: Outcome | None = None) -> str:
    """Say whether the fleet meets the SLO, by which share of the tightest class, and how that is known.

    outcome: what is known by more than the shares of the runs, such as queues that grow. Empty for a plan without
    classes. Beside the share stand the ends of its 95 % interval.
    """
    simulation = plan.simulation
    if not plan.classes:
        return ""
    if simulation is None or not simulation.classes:
        item = tightest_first(plan)[0]
        outcome = Outcome.MEETS if item.attainment >= item.attainment_goal else Outcome.MISSES
        basis = "simulated" if question.is_simulated_row(plan) else "by formula, not simulated"
        return f"{result_words(outcome, item, plan.classes)}, {basis}."
    worst = max(simulation.classes, key=lambda item: misses_used(item.attainment_low, item.attainment_goal))
    result = result_words(outcome or worst.outcome, worst, simulation.classes)
    ends = (percent_beside(share, worst.attainment_goal) for share in (worst.attainment_low, worst.attainment_high))
    fresh = "fresh requests" if simulation.confirmation else "requests that were also used to choose it"
    source = "" if simulation.recorded is None else f" drawn from {clean(simulation.recorded.source, 60)}"
    basis = f"{count(simulation.requests)} {fresh}{source} (95 % interval {' to '.join(ends)})"
    if (run := simulation.recorded) is None:
        return f"{result}, simulated over {basis}."
    name, share, goal = tightest({item.name: item.attainment for item in run.classes}, simulation.classes)
    number = "all" if run.requests == run.of else f"{count(run.requests)} of"
    met = f"{percent_beside(share, goal)} of {requests_of(name, simulation.classes)} meet the SLO"
    return f"{result}, simulated over {basis}. Replayed in order, {number} its {count(run.of)} requests: {met}."


VERDICTS: Final = {Outcome.MEETS: "Meets", Outcome.MISSES: "Misses", Outcome.UNDECIDED: "May or may not meet"}


def result_words(
    outcome: Outcome, worst: ClassResult | ClassJudgement, classes: Sequence[ClassResult | ClassJudgement]
) -> str:
    """The verdict with the share of the only class that meets its SLO, or of the tightest of several."""
    verdict, goal = VERDICTS[outcome], worst.attainment_goal
    share = f"{percent_beside(worst.attainment, goal)} of requests ({goal_percent(goal)} asked)"
    if outcome is Outcome.MISSES and worst.attainment >= goal:  # by a further test, or by queues that grow
        name = "" if len(classes) == 1 else f" of {clean(worst.name, 30)}"
        return f"Misses the SLO{name}, though {share} meet it"
    if len(classes) == 1:
        return f"{verdict} the SLO: {share}"
    if outcome is Outcome.MEETS and all(item.attainment >= 1.0 for item in classes):
        return "Meets every SLO: 100 % of requests of every class"
    if outcome is Outcome.MEETS:
        return f"Meets every SLO: {clean(worst.name, 30)} is tightest with {share}"
    return f"{verdict} the SLO of {clean(worst.name, 30)}: {share}"


def strain_words(fleet: FleetEvaluation | Verdict) -> str:
    """Say which further test a fleet fails whose runs meet the SLO: a burst, the recorded order, a few more requests.

    Empty if it passes them all.
    """
    if fleet.stuck:
        return " It does not recover from a burst that fills its KV memory."
    if fleet.replayed:
        return " It misses when the recorded requests are replayed in order."
    if fleet.near_capacity:
        return " It is too near its limit to tell: with 5 % more requests its queues grow without end."
    return ""


def prefix_sentence(plan: Plan) -> str:
    """What the fleet's memory finds of the prefixes that prompts have in common; empty where they have none."""
    cache = plan.prefix_cache
    if cache is None:
        return ""
    keeps, best, load = duration(cache.keeps_s), percent(cache.at_best), question.inputs_of(plan, "workload")
    if "sessions" not in load and "reuse_interval" not in load:
        return (
            f"Prefix cache: the KV memory keeps a prefix for {keeps}. The stated {best} of the input tokens are found "
            "in it if each prefix is used again within that time."
        )
    if any(map(is_overloaded, plan.pools)):
        return (
            f"Prefix cache: {percent(cache.sustained)} of the input tokens count as found in it. How much an "
            "overloaded fleet keeps is not predicted."
        )
    tier = question.inputs_of(plan, "kv_cache_tier")
    in_tier = f" ({percent(cache.read)} in the KV cache tier)" if tier.get("capacity_per_gpu") else ""
    in_simulation = "" if plan.simulation is None else f", {percent(plan.simulation.prefix_hit_share)} in simulation"
    return (
        f"Prefix cache: {percent(cache.sustained)} of the input tokens are found in it{in_tier}{in_simulation}; "
        f"unlimited memory would find {best}. Unused prefixes are kept for {keeps}.{_tier_words(tier)}"
    )


def _tier_words(tier: Mapping[str, Any]) -> str:
    """Say how large a KV cache tier is, and what it takes; empty where there is none."""
    if not tier.get("capacity_per_gpu"):
        return ""
    place = "in a store that replicas share" if tier.get("shared") else "of host memory"
    service = " No deployment files start that store." if tier.get("shared") else ""
    usd = usd_per_gpu(tier["capacity_per_gpu"], tier.get("price_per_gib", 0.0))
    price = f"it costs {hourly(usd)} per GPU" if usd else "its price is not counted"
    return f" KV cache tier: {size(tier['capacity_per_gpu'])} {place} per GPU; {price}.{service}"


def waste_sentence(plan: Plan) -> str:
    """Say what the fleet attains with one replica fewer; empty where that was not simulated."""
    rows = None if plan.simulation is None else plan.simulation.one_replica_less
    return losses_sentence(rows, plan) if rows else ""


def spares_sentence(plan: Plan) -> str:
    """Say that the spare replicas of a plan are idle in its figures, or those of a fleet file are not; else empty."""
    spares = sum(pool.spare_replicas for pool in plan.pools)
    if not spares and question.spare_replicas(plan):
        return "All replicas serve in these figures; none is kept as a spare."
    words = "The spare replica is" if spares == 1 else f"The {spares:,} spare replicas are"
    return f"{words} idle in these figures." if spares else ""


def losses_sentence(rows: Sequence[JudgedFleet], plan: Plan) -> str:
    """Say what a fleet attains with one replica fewer in each pool of several.

    Spare replicas are idle in a plan's figures, so the replica is one of those in use.
    """
    spares = any(pool.spare_replicas for pool in plan.pools) or question.spare_replicas(plan) > 0
    if not rows:
        return f"{'Apart from the spares,' if spares else 'No spare:'} every pool has one replica."
    subject = "No spare: with one replica fewer"
    if spares:
        subject = "Apart from the spares, every replica is needed: with one fewer"
    if not spares and any(undecided(row, plan) for row in rows):
        subject = "It is undecided whether a replica is spare: with one fewer"
    losses = list[str]()
    for row in rows:
        name, share, goal = tightest(row.attainment, plan.classes)
        reasons = {
            " (undecided)": undecided(row, plan),
            " (in the trace's own order)": row.replayed,
            " so far, but the queue grows without end": row.overloaded and share >= goal,
            " (overloaded)": row.overloaded,
            " (once its KV memory was full)": row.stuck,
        }
        whose = "" if losses else f" of {requests_of(name, plan.classes)} meet the SLO"
        why = next((reason for reason, holds in reasons.items() if holds), "")
        losses.append(f"in {clean(row.what).partition(':')[0]}, {percent(share)}{whose}{why}")
    also = "; pdplan resilience shows which losses the spare replicas cover" if spares else ""
    return f"{subject} {'; '.join(losses)}{also}."


def only_replica_sentence(plan: Plan) -> str:
    """Say without which pools nothing is served: the only replica of all that prefill, or that decode; else empty."""
    stages = [[pool for pool in plan.pools if pool.role == role] for role in ("prefill", "decode")]
    names = [clean(pools[0].id, 20) for pools in stages if sum(pool.replicas for pool in pools) == 1]
    if not names or any(pool.role == "colocated" for pool in plan.pools):
        return ""
    return f"Without the only replica of {' or of '.join(names)}, no request is served."


def router_sentence(plan: Plan) -> str:
    """Say what the fleet attains behind a least-requests router; empty where that was not simulated."""
    simulation = plan.simulation
    if simulation is None or simulation.behind_least_requests is None:
        return ""
    fleet, router = simulation.behind_least_requests, "behind a least-requests router (vLLM's default)"
    share = kept_by_requests(simulation, fleet)
    goals = question.slo_name(plan)
    if undecided(fleet, plan):
        return f"Undecided {router}: {share}, too close to tell whether the fleet meets {goals} there."
    result = f"Also meets {goals}" if fleet.held else f"Misses {question.missed_slo(plan)}"
    return f"{result} {router}: {share}."


def kept_by_requests(simulation: Simulation, row: JudgedFleet) -> str:
    """The share of the tightest class that meets the SLO behind a least-requests router."""
    name, share, goal = tightest(row.attainment, simulation.classes)
    return f"{percent_beside(share, goal)} of {requests_of(name, simulation.classes)} ({goal_percent(goal)} asked)"


def gap_of_any_fleet(plan: Plan) -> float | None:
    """Share of its cost that a fleet of any shape could save at most [1]; None: not known, or not what was sought."""
    floor, cost = plan.floor_usd_per_hour, plan.cost_usd_per_hour
    if plan.objective != "min_cost":
        return None
    return None if not cost or floor is None or is_below(floor, cost) else max(0.0, 1.0 - floor / cost)


def proof_sentence(plan: Plan) -> str:
    """Say what is known of better fleets: of those of one or two pools, and of those of any shape.

    Nothing of a fleet that was stated, beside which none was sought. Where a price of the fleet needs a remark, all of
    it is so at these prices.
    """
    if plan.status is Status.STATED:
        return ""
    if plan.objective != "min_cost":
        return _goodput_proof(plan)
    floor, bound, gap = hourly(plan.floor_usd_per_hour), plan.bound_usd_per_hour, gap_of_any_fleet(plan)
    at_prices = " at these prices" if plan.price_remarks else ""
    if plan.cost_usd_per_hour is not None and is_below(plan.floor_usd_per_hour, plan.cost_usd_per_hour):
        refuted = f"by formula no fleet below {floor} meets {question.slo_name(plan)}, but this one does in simulation"
        return f"No lower bound on the price is known: {refuted}."
    with_spares = spares_words(question.spare_replicas(plan))
    any_shape = f"o fleet of {_searched(plan)} can cost less than {floor}{with_spares}{at_prices}."
    if gap is not None and gap <= OPTIMAL_GAP:
        return f"Cheapest fleet possible: n{any_shape}"
    sentences = [f"N{any_shape}"] if plan.floor_usd_per_hour is not None else []
    is_bounded = is_number(plan.gap) and bound is not None and bound != plan.floor_usd_per_hour
    cheaper = plan.cheaper_fleets
    if cheaper is None and is_bounded and is_number(plan.gap) and plan.gap <= OPTIMAL_GAP:
        cheaper = CheaperFleets(count=0, simulated=0)
    if cheaper is not None:
        sentences.insert(0, f"Cheapest fleet found{_cheaper_words(plan, cheaper, at_prices)}.")
    elif is_bounded:
        unconfirmed = f"simulation confirmed no fleet below {hourly(plan.cost_usd_per_hour)}"
        sentences.insert(0, f"By formula a fleet for {hourly(bound)} meets {question.slo_name(plan)}; {unconfirmed}.")
    return " ".join(sentences) or "No lower bound on the price is known."


def _cheaper_words(plan: Plan, cheaper: CheaperFleets, at_prices: str) -> str:
    """How many cheaper fleets of one pool or a pair there are, and why none of them is taken."""
    if not cheaper.count:
        return f": no fleet of one pool, or of a prefill and a decode pool, is cheaper{at_prices}"
    by_formula, simulated = cheaper.count - cheaper.simulated, cheaper.simulated
    number = "it" if cheaper.count == 1 else "all" if by_formula == cheaper.count else f"{by_formula:,}"
    misses = f"{number} {'misses' if by_formula == 1 else 'miss'} {question.missed_slo(plan)} by formula"
    unconfirmed = f"{simulated:,} {'was' if simulated == 1 else 'were'} not confirmed in simulation"
    if simulated == cheaper.count:
        unconfirmed = f"{'it' if simulated == 1 else 'none'} was {'not ' * (simulated == 1)}confirmed in simulation"
    reasons = said(misses * bool(by_formula), unconfirmed * bool(simulated))
    fleets = f"{plural(cheaper.count, 'fleet')} (one pool, or a prefill and a decode pool)"
    return f". {fleets} {'costs' if cheaper.count == 1 else 'cost'} less{at_prices}: {' and '.join(reasons)}"


def _searched(plan: Plan) -> str:
    """The engines that the floor is for, with their precisions unless the search chose among several."""
    if not plan.pools or any(len(question.inputs_of(plan, "search").get(key) or ()) > 1 for key in DTYPES):
        return "the engines searched"
    pool = plan.pools[0]
    if pool.weight_dtype == pool.kv_dtype:
        return f"the {pool.weight_dtype} engines searched"
    return f"the engines searched, with {pool.weight_dtype} weights and {pool.kv_dtype} KV,"


def _goodput_proof(plan: Plan) -> str:
    """The same of a plan for the most goodput; a gap is one of the bound, what could be more one of the plan."""
    objective = "goodput" if plan.objective == "max_goodput" else "goodput per dollar"
    if not is_number(plan.gap) or plan.gap >= 1.0:
        return f"No upper bound on the {objective} is known."
    more = plan.gap / (1.0 - plan.gap)
    if more <= UNSEEN_GAP:
        return f"No fleet of any shape has more {objective}."
    most = f"{percent(more)} higher" if more < 1.0 else f"{significant(1.0 + more)} times as high"
    return f"The {objective} of a fleet of any shape is at most {most}, by formula."


def volume_sentence(plan: Plan) -> str:
    """Say which loads were allowed, and which the ratio is for; empty where the objective is another.

    Requests per dollar are a fleet's goodput over its price. The demand of the file is served for the same dollars.
    """
    cost, demand = plan.cost_usd_per_hour, plan.demand_rps
    bounds = [question.inputs_of(plan, "objective").get(key) for key in ("min_volume", "max_volume")]
    multiples = [float(value) for value in bounds if isinstance(value, int | float) and is_number(value)]
    if plan.objective != "max_goodput_per_dollar" or not cost or len(multiples) != 2:
        return ""
    least, most = multiples
    default = " (four times min_volume, as none is stated)" if most == DEFAULT_VOLUME_RANGE * least else ""
    loads = f"{rate(least * demand)} to {rate(most * demand)}: max_volume is {significant(most)}{default}"
    alone = f"at the demand of {rate(demand)} the fleet serves {significant(demand * 3600.0 / cost)} requests per $"
    return f"Fleets were to serve {loads}. The ratio is for {rate(plan.goodput_rps)}; {alone}."


def goodput_sentence(plan: Plan) -> str:
    """Say how far the demand may grow before a class misses its SLO."""
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0:
        return f"Goodput: the highest request rate within {question.slo_name(plan)} is not known."
    if plan.goodput_rps <= 0.0:
        return f"Goodput: none; the fleet misses {question.missed_slo(plan)} at every rate that was tried."
    if plan.objective != "min_cost":
        return f"Goodput: {rate(plan.goodput_rps)} within {question.slo_name(plan)}."
    more = plan.goodput_rps / plan.demand_rps
    change = percentage(abs(more - 1.0), 1)
    room = f"{change} over" if more < MANY_TIMES else f"{significant(more)} times"
    room = "no more than" if change == "0 %" else f"{change} below" if more < 1.0 else room
    basis = " by formula" if question.is_simulated_row(plan) else ""
    return f"Goodput: {rate(plan.goodput_rps)} within {question.slo_name(plan)}{basis} ({room} the demand)."


def growth_sentence(plan: Plan) -> str:
    """Say the same, with what a dollar then serves and how the next higher rate went: missed, or undecided."""
    goodput, simulation = goodput_sentence(plan), plan.simulation
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0 or plan.goodput_rps <= 0.0:
        return goodput
    per_dollar = f"{goodput} That is {significant(plan.goodput_per_dollar)} requests per $."
    if plan.objective != "min_cost" or simulation is None or simulation.goodput_fails_rps is None:
        return per_dollar
    fails = simulation.goodput_fails_rps
    is_undecided = simulation.beyond_goodput is not None and not simulation.beyond_goodput.missed
    result = "the simulation is undecided" if is_undecided else f"the fleet misses {question.missed_slo(plan)}"
    return f"{per_dollar} At {rate(fails)} {result}."


def error_bar_sentences(plan: Plan) -> tuple[str, ...]:
    """Say what the 90 % intervals of the latencies are; else empty."""
    bars = [bar for item in plan.classes if (bar := item.error_bars) is not None]
    is_endless = any(times.high is None for bar in bars for times in (bar.ttft_s, bar.tpot_s) if times is not None)
    return said(
        "90 % interval: the latency if all steps are as fast, or as slow, as the ends of the range that covers nine of "
        "ten measured step times." * bool(bars),
        "To overload: GPUs as slow as our slowest predictions cannot keep up, so the queue grows." * is_endless,
    )


def day_price_words(plan: Plan, opening: str = "") -> str:
    """The price of a million output tokens over a day on which the fleet stays as it is; empty without a profile.

    The plan's own is for the rate planned for, its peak; the same dollars over the day's mean give
    p_day = p_peak × peak rate / mean rate. Empty too for a stated fleet that cannot serve its peak, and so not the
    day's requests. opening: what a whole sentence begins with.
    """
    mean, peak = question.day_rate(plan), plan.usd_per_million_output_tokens
    is_too_small = plan.status is Status.STATED and is_number(plan.goodput_rps) and plan.goodput_rps < plan.demand_rps
    if not mean or not peak or plan.objective != "min_cost" or is_too_small:
        return ""
    price = f"{money(peak * plan.demand_rps / mean)} over the day's mean of {rate(mean)}"
    return f"{opening}{price}." if opening else price


DAY_PRICE: Final = "Price per million output tokens: "


# --- of a simulation --------------------------------------------------------------------------------------------------


def deciding_words(judgements: Sequence[Judgement], most: int) -> str:
    """Say how many requests of a run would decide all of these; most: that it can have."""
    enough = max(requests_to_decide(item) or most + 1 for item in judgements)
    if enough > most:
        return f"If the shares stay, not even the longest run ({count(most)} requests) decides."
    return f"If the shares stay, about {count(enough)} requests in each run decide: --requests {enough}."


def requests_to_decide(judgement: Judgement) -> int | None:
    """Requests of each run that would decide, rounded up to two digits; None where it is decided, or none would."""
    if judgement.outcome is not Outcome.UNDECIDED or not math.isfinite(judgement.deciding):
        return None
    digit = int(10 ** max(math.floor(math.log10(judgement.deciding)) - 1, 0))
    return math.ceil(judgement.deciding / digit) * digit
