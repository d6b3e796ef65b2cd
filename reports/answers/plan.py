"""The answer of a plan: the fleet, its price, whether it meets the SLO, the risk, the alternatives, the reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costmodel.words import dearer, join_words, plural, spares_words
from optimizer.plans.plan import Alternative, FleetEvaluation, Plan, Status
from optimizer.plans.records import Outcome, Provisioning
from reports import fleets, question, slos, verdict
from reports.deploy.files import Deployable
from reports.document import Column, Document, Facts, Section, Table, said, table_of
from reports.text import (
    MISSING,
    capital,
    clean,
    goal_percent,
    hourly,
    moment,
    money,
    monthly,
    percent,
    percent_beside,
    quantity,
    rate,
    record_of,
    sentence,
    signed_percent,
)
from reports.views import html_view

from . import plan_details
from .plan_charts import roofline_chart, slo_charts


def plan_document(
    plan: Plan, runs: Deployable | None = None, *, brief: bool = False, next_step: str | None = None
) -> Document:
    """The answer of a plan.

    runs: what runs it; worked out here when None.
    brief: what fits a screen: verdict, fleet, SLOs, risk, alternatives, goodput; else with all reasons, and with what
    only a page shows.
    next_step: the command named last; made from the plan's own command when None.
    """
    if question.has_fleet(plan):
        runs = runs or plan_details.what_runs(plan)
        sections = _brief(plan, runs) if brief else complete_sections(plan, runs)
    else:
        looked_up = () if brief else (plan_details.workload_section(plan), _trust(plan))
        sections = (*_in_the_way(plan), _alternatives(plan, brief=brief), *looked_up)
    caveats = [sentence(text) for text in (*plan.price_remarks, *plan.warnings)] if question.has_fleet(plan) else []
    # the headline of a fleet says which model it serves, and by which engine
    subject = () if question.has_fleet(plan) else (f"{clean(plan.model)} on {question.serving_words(plan)}",)
    return Document(
        headline=said(*verdict.headlines(plan), *caveats),
        sections=sections,
        positive=question.has_fleet(plan) and not slos.missed_classes(plan),
        next_step=question.next_command(plan) if next_step is None else next_step,
        about=(
            clean(plan.name),
            *subject,
            moment(plan.provenance.run.created),
        ),
    )


def plan_page(plan: Plan, document: Document | None = None) -> str:
    """The report of a plan: its whole answer (made here when None) as a page, with the plan itself in it."""
    document = document or plan_document(plan)
    return html_view(replace(document, next_step=""), record_of(plan), "plan")


def _brief(plan: Plan, runs: Deployable | None) -> tuple[Section, ...]:
    more = len(fleets.alternative_groups(plan)) - 1 - len(_alternative_rows(plan, brief=True))
    is_stated = plan.status is Status.STATED  # its evaluation says it beside the advice
    return (
        Section(table=fleets.fleet_table(plan), notes=said(fleets.billed_sentence(plan))),
        Section(table=slos.brief_slo_table(plan), notes=said(_risk_sentence(plan), slos.unserved_sentence(plan))),
        plan_details.front_section(plan),
        _alternatives(plan, brief=True),
        Section(
            sentences=said(
                " ".join(
                    said(
                        verdict.proof_sentence(plan),
                        verdict.goodput_sentence(plan),
                        verdict.spares_sentence(plan),
                        verdict.waste_sentence(plan),
                        verdict.prefix_sentence(plan),
                        plan_details.prefix_router_sentence(plan, runs),
                        verdict.router_sentence(plan) if plan.prefix_cache and not is_stated else "",
                        plan_details.deploy_sentence(plan, runs),
                        f"-v shows {plural(more, 'more alternative')}." if more > 0 else "",
                    )
                ),
                verdict.overload_sentence(plan),
                verdict.volume_sentence(plan),
                verdict.speculation_sentence(plan),
            )
        ),
    )


def _risk_sentence(plan: Plan) -> str:
    """The risk, with the number of the fleet that survives."""
    kinds = [{row.kind for row in group} for group in fleets.alternative_groups(plan)]
    number = next((f": fleet {number}." for number, names in enumerate(kinds, 1) if "safe" in names), ".")
    return f"{risk.removesuffix('.')}{number}" if (risk := verdict.risk_sentence(plan)) else ""


def complete_sections(plan: Plan, runs: Deployable | None) -> tuple[Section, ...]:
    """All that is known of a plan with a fleet, by subject."""
    spares = sum(pool.spare_replicas for pool in plan.pools)
    spare = f"; {plural(spares, 'replica')} {'is' if spares == 1 else 'are'} spare" if spares else ""
    dtypes = {f"; {clean(pool.weight_dtype, 12)} weights, {clean(pool.kv_dtype, 12)} KV cache" for pool in plan.pools}
    precision = dtypes.pop() if len(dtypes) == 1 else ""  # where pools differ, their cells say it
    fleet = Section(
        f"Fleet: {fleets.gpu_words(plan)}{spare}{precision}",
        table=fleets.fleet_table(plan),
        tiles=_tiles(plan),
        fleet=fleets.fleet_diagram(plan),
    )
    return (
        fleet,
        Section(
            "Cost and goodput",
            said(
                verdict.day_price_words(plan, verdict.DAY_PRICE),
                verdict.overload_sentence(plan),
                verdict.disaggregation_sentence(plan),
                verdict.proof_sentence(plan),
                verdict.growth_sentence(plan),
                verdict.spares_sentence(plan),
                verdict.volume_sentence(plan),
                verdict.waste_sentence(plan),
                verdict.only_replica_sentence(plan),
                verdict.prefix_sentence(plan),
                plan_details.prefix_router_sentence(plan, runs),
                verdict.router_sentence(plan),
                verdict.precision_sentence(plan),
                verdict.speculation_sentence(plan),
                plan_details.backend_sentence(runs),
                plan_details.deploy_sentence(plan, runs),
            ),
        ),
        Section(
            "SLOs",
            table=slos.slo_table(plan),
            notes=said(
                _risk_sentence(plan),
                slos.unserved_sentence(plan),
                slos.missed_lengths_sentence(plan),
                *verdict.error_bar_sentences(plan),
            ),
            charts=slo_charts(plan),
        ),
        *((Section("How it is routed", table=fleets.routing_table(plan)),) if fleets.is_routed_apart(plan) else ()),
        Section(
            "What binds",
            table=_limits(plan),
            notes=said(plan_details.hand_over_sentence(plan)),
            charts=(roofline_chart(plan),) * bool(plan.pools),
            sections=(plan_details.features_section(plan),),
        ),
        plan_details.front_section(plan),
        _alternatives(plan, brief=False),
        *(() if plan.status is Status.STATED else (plan_details.sensitivity_section(plan),)),
        plan_details.workload_section(plan),
        plan_details.settings_section(plan, runs),
        _trust(plan),
    )


def _tiles(plan: Plan) -> Facts:
    """The figures that a reader looks for first."""
    worst = slos.tightest_first(plan)[0]
    of = "of requests" if len(plan.classes) == 1 else f"of {clean(worst.name, 30)}, the tightest class,"
    is_too_small = plan.status is Status.STATED and slos.missed_classes(plan)
    per_token = None if is_too_small else plan.usd_per_million_output_tokens
    rate_words = f"per million output tokens at {rate(question.served_rate(plan))}"
    return (
        (hourly(plan.cost_usd_per_hour), f"{monthly(plan.cost_usd_per_hour)} a month of 730 h"),
        *(((money(per_token), "; ".join(said(rate_words, verdict.day_price_words(plan)))),) if per_token else ()),
        (slos.met_words(worst, plan), f"{of} meet the SLO; {goal_percent(worst.attainment_goal)} is asked"),
        (rate(plan.goodput_rps), f"goodput; the demand is {rate(plan.demand_rps)}"),
    )


def _limits(plan: Plan) -> Table:
    columns = (Column("limit", shrink=True, lines=2), "where", "#used", Column("because", shrink=True, lines=12))
    rows = [
        (
            question.constraint_words(item.constraint),
            clean(item.where, 20),
            question.used_words(item),
            question.binding_sentence(item),
        )
        for item in question.tightest_limits(plan)
    ]
    return table_of(columns, rows)


def _in_the_way(plan: Plan) -> tuple[Section, ...]:
    """Of a plan without a fleet: what was asked, what came nearest, and which limit to relax."""
    obstacles = question.violated(plan) or question.tightest_limits(plan)[:1]
    slo_sentences = (f"{question.slo_words(item)}." for item in question.slo_classes(plan))
    sentences = []
    for limit in obstacles:
        obstacle = question.binding_sentence(limit)
        # where not every fleet was tried, another one may need less
        if plan.status is Status.TIME_LIMIT and limit.constraint in {*question.FLEET_LIMITS, "inventory"}:
            used, most = (quantity(value, limit.unit) for value in (limit.used, limit.limit))
            obstacle = f"The nearest fleet found needs {used}; {question.limit_words(limit)} is {most}."
        nodes = ""
        if limit.constraint == "inventory" and question.by_node(plan, limit.where):
            nodes = " Whole nodes are billed, so the price is of all their GPUs."
        sentences.append(f"{obstacle} {question.relax_sentence(limit)}{nodes}")
    return (
        Section(sentences=(f"Asked: {question.demand_sentence(plan)}", *slo_sentences)),
        Section(sentences=tuple(fleets.miss_sentences(plan))),
        Section(sentences=tuple(sentences)),
    )


def _alternative_rows(plan: Plan, *, brief: bool) -> list[tuple[int, Alternative]]:
    """The cheapest fleet of each kind, by number; brief: few, and without the recommended one and runners-up."""
    left_out = {"recommended", "other_engines"} if brief else set[str]()
    left_out |= set() if question.has_fleet(plan) else {"recommended", "nearest_miss"}
    distinct = [group[0] for group in fleets.alternative_groups(plan)] if brief else fleets.distinct_alternatives(plan)
    rows = [(number, row) for number, row in enumerate(distinct, 1) if row.kind not in left_out]
    return rows[:BRIEF_ALTERNATIVES] if brief else rows


def _alternatives(plan: Plan, *, brief: bool) -> Section:
    """The table of the alternatives."""
    shown = _alternative_rows(plan, brief=brief)
    if all(row.kind == "recommended" for _, row in shown):
        return Section()
    tones = ["out" if not fleets.is_feasible(row) else "chosen" * (row.kind == "recommended") for _, row in shown]
    cells = [_alternative_cells(number, row, plan, brief=brief) for number, row in shown]
    columns = [
        Column("#", "right"),
        Column("alternative", shrink=True, lines=6),
        Column("replicas × GPU" if brief else fleets.FLEET_WITH_LIMITS, shrink=True, lines=8),
        *([Column("max seqs/chunk", spacious=True)] if brief else []),
        Column("$/h", "right"),
        Column("extra", "right"),
        *([] if brief else [Column("SLO met", "right", optional=True)]),
    ]
    table = table_of(columns, cells, tones)
    if brief:
        return Section(table=table)
    how = "--alternative N shows, simulates or deploys fleet N; 1 is the recommended one."
    notes = said(
        how if question.has_fleet(plan) else "",
        "SLO met: the share of the requests of all classes together." if len(plan.classes) > 1 else "",
        *(f"{number}: {text}" for number, row in shown if (text := _reason(row, plan))),
    )
    tried = plan_details.simulated_fleets_section(plan)
    return Section("Alternatives", table=table, notes=notes, sections=(tried,))


BRIEF_ALTERNATIVES: Final = 3
"""Alternatives in the brief answer, which fits 25 lines where fleets have a few pools."""


def _alternative_cells(number: int, row: Alternative, plan: Plan, *, brief: bool) -> tuple[str, ...]:
    """The cells of an alternative; one that was not simulated in a plan that was says so."""
    pools, price, own = row.pools, row.cost_usd_per_hour, plan.cost_usd_per_hour
    name, extra = fleets.alternative_name(row), MISSING
    if row.kind != "recommended" and fleets.is_feasible(row) and price and own:
        name += ", by formula" if plan.simulated and not row.simulated else ""
        extra = signed_percent(price / own - 1.0)
    fleet = fleets.fleet_line(pools, limits=not brief) if pools else ""
    return (
        str(number),
        name,
        fleet or fleets.why_not_sentence(row) or MISSING,
        *([fleets.limits_by_role(pools)] if brief else []),
        money(price),
        extra,
        *([] if brief else [percent(row.attainment)]),
    )


def _reason(row: Alternative, plan: Plan) -> str:
    """Why an alternative with a fleet lost, and what it does without; no price, which the table has."""
    if not row.pools or row.kind == "recommended":
        return ""
    cost, own = row.cost_usd_per_hour, plan.cost_usd_per_hour
    prices = {"the same cost"} | ({f"costs {dearer(cost, own)}"} if cost and own else set())
    without = f"The cheapest fleet {clean(row.label, fleets.ENGINES_LIMIT)}." if row.kind == "other_engines" else ""
    return " ".join(said(without, "" if row.why_not in prices else fleets.why_not_sentence(row)))


def _trust(plan: Plan) -> Section:
    """What the figures rest on, and the command that gives them again."""
    source, subject = plan.provenance, "The plan" if question.has_fleet(plan) else "The answer"
    assumption_words = plural(len(source.assumptions), "assumption")
    basis = "Latencies, request rates and utilization are by formula. "
    if plan.simulated:
        basis = "Latencies and request rates are simulated; utilization is by formula. "
    elif question.is_simulated_row(plan):
        basis = "Latencies are simulated; request rates and utilization are by formula. "
    facts = (
        f"Demand: {question.demand_sentence(plan)}" if question.has_fleet(plan) else "",
        f"{basis * question.has_fleet(plan)}Nothing here was measured on your machines.",
        f"{subject} rests on {assumption_words}: provenance.assumptions in plan.json." if source.assumptions else "",
        f"pdplan {clean(source.pdplan_version, 30)}, seed {source.seed}, inputs SHA-256 "
        f"{clean(source.inputs_sha256, 64)}.",
    )
    return Section("Trust", said(*facts), code=question.command_of(plan), sections=plan_details.trust_sections(plan))


SAME_PRICE: Final = 1e-3
"""Relative difference up to which two prices are told as the same [1]."""


def evaluation_document(evaluation: FleetEvaluation, *, brief: bool = True, next_step: str = "") -> Document:
    """The answer of an evaluation.

    brief: what fits a screen; else with all that is known of the fleet; next_step: the command that a reader would want
    next.
    """
    plan = evaluation.plan
    # a pool or a limit on the fleet gives out, rather than the misses that come of it
    binding = sorted(question.tightest_limits(plan), key=lambda limit: limit.constraint == "attainment")
    advice = said(
        provisioning_sentence(evaluation.provisioning, plan),
        twice_sentence(evaluation),
        *((verdict.router_sentence(plan),) if brief else ()),
        cheapest_sentence(evaluation),
    )
    sections: tuple[Section, ...] = (Section(sentences=advice), *complete_sections(plan, plan_details.what_runs(plan)))
    if brief:
        facts = said(
            verdict.day_price_words(plan, verdict.DAY_PRICE),
            f"Binds first: {question.binding_sentence(binding[0])}" if binding else "",
        )
        sections = (*_brief(plan, None), Section(sentences=(*facts, *advice)))
    return Document(
        headline=said(
            f"{verdict.slo_result_sentence(plan, evaluation.outcome)}{_but(evaluation)}",
            _price_sentence(evaluation),
            *plan.price_remarks,
        ),
        sections=sections,
        positive=evaluation.outcome is Outcome.MEETS,
        next_step=next_step,
        about=(clean(plan.name), "evaluated"),
    )


def _but(evaluation: FleetEvaluation) -> str:
    """Why the fleet is not shown to meet an SLO that its runs might meet; empty where they say it themselves."""
    if strain := verdict.strain_words(evaluation):
        return strain
    classes = [] if evaluation.plan.simulation is None else evaluation.plan.simulation.classes
    if evaluation.outcome is Outcome.UNDECIDED and all(c.outcome is Outcome.MEETS for c in classes):
        return " The interval that decides is wider and contains the goal."
    is_slow = evaluation.outcome is Outcome.MISSES and all(c.attainment_high >= c.attainment_goal for c in classes)
    falling = " It falls behind: its queues grow, and fewer requests meet the SLO, for as long as this load lasts."
    return falling if is_slow else ""


def _price_sentence(evaluation: FleetEvaluation) -> str:
    """What the fleet costs; per token only where it serves the demand."""
    plan = evaluation.plan
    price = f"It costs {hourly(plan.cost_usd_per_hour)} ({monthly(plan.cost_usd_per_hour)}/month)"
    load = f"{rate(plan.demand_rps)} of {clean(plan.model, 40)} on {question.serving_words(plan)}"
    if evaluation.outcome is Outcome.MISSES or plan.usd_per_million_output_tokens is None:
        return f"{price} for {load}."
    return f"{price}: {money(plan.usd_per_million_output_tokens)} per million output tokens at {load}."


def provisioning_sentence(provisioning: Provisioning, plan: Plan) -> str:
    """Say by how many replicas the fleet is too small or too large."""
    if not provisioning.pools:
        return f"Under-provisioned: {_nothing_helps(provisioning)}."
    missing, spare = bool(provisioning.missing), bool(provisioning.spare)
    if not missing and not spare:
        return verdict.losses_sentence(provisioning.one_replica_fewer, plan)
    word = "Unbalanced" if missing and spare else "Under-provisioned" if missing else "Over-provisioned"
    return f"{word}: {_needs_words(provisioning, plan)}."


def _nothing_helps(provisioning: Provisioning) -> str:
    return (
        f"no number of these replicas, up to {provisioning.most:g} times as many, meets the SLO; they need other "
        "settings or GPUs"
    )


def _needs_words(provisioning: Provisioning, plan: Plan) -> str:
    """The replicas that are needed beside those that run, with the price."""
    pools = [
        f"{pool.needed} × {pool.pool}{f' (now {pool.replicas})' if pool.needed != pool.replicas else ''}"
        for pool in provisioning.pools
    ]
    cost, own = provisioning.cost_usd_per_hour or 0.0, plan.cost_usd_per_hour or 1.0
    more_usd = "the same price"
    if abs(cost - own) > SAME_PRICE * own:
        more_usd = f"{'-' if cost < own else '+'}{hourly(abs(cost - own))}, {signed_percent(cost / own - 1.0)}"
    is_idle = any(pool.spare_replicas for pool in plan.pools)
    spares = " beside the spares" if is_idle else spares_words(question.spare_replicas(plan))
    return f"the fleet needs {join_words(pools)}{spares}, for {hourly(cost)} in all ({more_usd})"


def twice_sentence(evaluation: FleetEvaluation) -> str:
    """Say what twice the traffic does, and what it needs."""
    twice, plan = evaluation.twice, evaluation.plan
    name, share, goal = slos.tightest(twice.stated.attainment, plan.classes)
    result = f"({percent_beside(share, goal)} of {slos.requests_of(name, plan.classes)} meet it)"
    if twice.stated.stuck:
        result += "; it does not recover from a burst that fills its KV memory"
    elif twice.stated.overloaded:
        result += "; its queues grow"
    at, goals = f"At twice the traffic ({rate(twice.rate_rps)}) the fleet", "its SLO" + "s" * (len(plan.classes) > 1)
    needs = _needs_words(twice, plan) if twice.pools else _nothing_helps(twice)
    if twice.stated.held:
        return f"{at} meets {goals} too {result}.{f' At that rate, {needs}.' if twice.spare or twice.missing else ''}"
    verb = "is not shown to meet" if twice.stated.outcome is Outcome.UNDECIDED else "misses"
    return f"{at} {verb} {goals} {result}. {capital(needs)}."


def cheapest_sentence(evaluation: FleetEvaluation) -> str:
    """Set the cheapest fleet that the search found beside the stated one, with its risk where it costs less.

    Empty where none was sought.
    """
    best, cost = evaluation.cheapest, evaluation.plan.cost_usd_per_hour or 0.0
    if best is None:
        return f"Cheapest fleet: none. {evaluation.no_cheapest}" if evaluation.no_cheapest else ""
    if not question.has_fleet(best) or evaluation.saving_usd_per_hour is None:
        return f"Cheapest fleet: none. {verdict.no_fleet_headline(best)}"
    saving = evaluation.saving_usd_per_hour
    basis = ("" if best.simulated else " by formula") + spares_words(question.spare_replicas(best))
    fleet = f"{fleets.fleet_words(best)} for {hourly(best.cost_usd_per_hour)}"
    if abs(saving) <= SAME_PRICE * cost:
        return f"Cheapest fleet found{basis}: {fleet}, the same price."
    if saving < 0.0 and evaluation.outcome is Outcome.MEETS and not evaluation.provisioning.missing:
        return f"Cheapest fleet: this one; the search found{basis} {fleet}."
    change = signed_percent(-saving / cost)
    if saving < 0.0:
        return f"Cheapest fleet found{basis}: {fleet}, {hourly(-saving)} more ({change})."
    advice = f"Cheapest fleet found{basis}: {fleet}, {hourly(saving)} less ({change}, {monthly(saving)} a month)."
    return " ".join(said(advice, verdict.risk_sentence(best, "Risk of that fleet", "that cheaper fleet")))
