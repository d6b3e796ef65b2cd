"""The report's contents: every text, number and drawing that the template places, computed from the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from optimizer.plans.plan import Alternative, Plan

from . import sentences, verdict
from .arrivals import arrivals_chart
from .asked import asked_table, offered
from .day import arrivals, day_price_words
from .deployable import deploy_sentence
from .deployment_card import deployment_card
from .fleet_figure import ClassShare, fleet_diagram, routed
from .numbers import (
    MISSING,
    count,
    duration,
    hourly,
    is_number,
    money,
    monthly,
    percent,
    rate,
    si,
    signed_percent,
    significant,
    tokens,
    with_one_form_of_percent,
)
from .page_charts import MOST_ROWS, Table, cost_chart, cut_table, why_charts, without_empty, workload_charts
from .page_parts import (
    AlternativeRow,
    AlternativesSection,
    AnswerSection,
    Facts,
    Kpi,
    LeadLine,
    Page,
    SettingsSection,
    SloSection,
    TrustSection,
    WhySection,
    WorkloadSection,
)
from .proof_words import largest_saving, outcome_words
from .reasons import (
    accuracy_sentence,
    accuracy_table,
    engines_table,
    hand_over_sentence,
    origins_table,
    pools_table,
    scope_words,
    settings_table,
    step_errors_table,
    worth_hint,
)
from .recording import arrival_facts, readable_inputs
from .sensitivity_section import sensitivity_view
from .simulation_figures import slack
from .simulation_sentences import router_sentence, slo_result_sentence, waste_sentence
from .slo_section import fleets_chart, slo_check
from .sources import facts, searched, source_rows
from .text import clean, moment, plural, sentence
from .volume_words import volume_sentence
from .words import (
    alternative_name,
    alternative_note,
    basis_words,
    by_slack,
    distinct_alternatives,
    extra_cost,
    gpu_words,
    has_fleet,
    is_feasible,
    limited_cell,
    missed_classes,
    nearest_miss,
    serving_words,
    tightest,
    violated,
)

MOST_ROUTED: Final = 16
MOST_COLUMNS: Final = 6
"""Pools whose settings stand side by side; those of more stand below each other."""
INPUTS_LIMIT: Final = 20_000
_NOTHING: Final = ("0", "none", MISSING)
"""Facts of a model that it has nothing of, such as experts."""


def make_page(plan: Plan) -> Page:
    """Compute the page of a plan."""
    found, name = has_fleet(plan), clean(plan.name)
    return Page(
        title=f"{name}: pdplan",
        eyebrow=(name, f"{clean(plan.model)} on {serving_words(plan)}", moment(plan.provenance.run.created)),
        chips=(basis_words(plan), outcome_words(plan)),
        found=found,
        answer=_answer(plan),
        slo=_slo(plan),
        alternatives=_alternatives(plan),
        why=WhySection(why_charts(plan), pools_table(plan), hand_over_sentence(plan), worth_hint(plan)),
        workload=_workload(plan),
        sensitivity=sensitivity_view(plan) if found else None,
        settings=SettingsSection(
            engines_table(plan.pools), len(plan.pools) <= MOST_COLUMNS, settings_table(plan), deployment_card(plan)
        ),
        trust=_trust(plan),
    )


def _answer(plan: Plan) -> AnswerSection:
    return AnswerSection(
        verdict=verdict.verdict(plan),
        lead=_lead(plan),
        kpis=_kpis(plan) if has_fleet(plan) else (),
        diagram=fleet_diagram(plan),
        entry=_entry(plan),
        exit=_exit(plan),
        relax=tuple(sentences.relax_sentence(item) for item in violated(plan) or by_slack(plan)[:1]),
    )


def _lead(plan: Plan) -> tuple[LeadLine, ...]:
    if not has_fleet(plan):
        miss = nearest_miss(plan)
        asked_for = LeadLine("Asked", sentences.demand_sentence(plan))
        return (asked_for,) if miss is None else (asked_for, LeadLine("Nearest miss", sentences.miss_words(miss)))
    lines = (
        *(LeadLine("Caveat", text, "bad") for text in verdict.caveats(plan)),
        LeadLine("Overload", verdict.overload_sentence(plan), "bad"),
        LeadLine("SLO", slo_result_sentence(plan)),
        LeadLine("Risk", verdict.risk_sentence(plan), "bad" if verdict.is_at_risk(plan) else ""),
        LeadLine("Price" if plan.objective == "min_cost" else "Goodput", sentences.proof_sentence(plan)),
        LeadLine("Precision", verdict.precision_sentence(plan)),
        LeadLine("Volume", volume_sentence(plan)),
        LeadLine("Disaggregation", verdict.disaggregation_sentence(plan)),
        LeadLine("Capacity", sentences.growth_sentence(plan).removeprefix("Capacity: ")),
        LeadLine("Spare", waste_sentence(plan)),
        LeadLine("Router", router_sentence(plan)),
        LeadLine("Deploy", deploy_sentence(plan).removeprefix("Deploy: "), "bad"),
    )
    return tuple(line for line in lines if line.text)


def _kpis(plan: Plan) -> tuple[Kpi, ...]:
    missed = missed_classes(plan)
    least = tightest(plan)
    spare = percent(least.slack) if least else MISSING
    where = f"slack of {sentences.limit_words(least)}" if least else "no limit is known"
    served = rate(sentences.served_rate(plan))
    return (
        Kpi(hourly(plan.cost_usd_per_hour), f"{monthly(plan.cost_usd_per_hour)} a month of 730 h"),
        Kpi(
            money(plan.usd_per_million_output_tokens),
            "; ".join(filter(None, (f"per million output tokens at {served}", day_price_words(plan)))),
        ),
        Kpi(plural(sum(plan.gpus.values()), "GPU"), gpu_words(plan)),
        Kpi(
            f"{'✗' if missed else '✓'} {percent(plan.attainment)}",
            f"of requests within all SLOs; {sentences.goals_words(plan)}",
            "bad" if missed else "good",
        ),
        Kpi(rate(plan.goodput_rps), f"goodput; the demand is {rate(plan.demand_rps)}"),
        Kpi(
            significant(plan.goodput_per_dollar),
            f"requests per dollar at {rate(plan.goodput_rps)}, the goodput",
        ),
        _proof(plan),
        Kpi(spare, where, "bad" if least and least.slack < 0 else ""),
    )


def _proof(plan: Plan) -> Kpi:
    cheapest = plan.objective == "min_cost"
    if sentences.is_proved(plan):
        who = "no fleet of one or two pools is cheaper" if cheapest else f"most {sentences.goal_words(plan)} found"
        who += " at these prices" if plan.price_remarks else ""
        return Kpi("cheapest" if cheapest else "best", f"{who}{_at_most(plan)}")
    if cheapest:
        share = largest_saving(plan)
        if share is None:
            return Kpi(percent(plan.gap), "gap to the lower bound of the formulas")
        return Kpi(percent(share), "cheaper at most: any fleet, by formula")
    return Kpi(percent(sentences.possible_gain(plan)), f"more {sentences.goal_words(plan)} at most, by formula")


def _at_most(plan: Plan) -> str:
    share = largest_saving(plan)
    return "" if share is None else f"; any fleet: at most {percent(share)} cheaper"


def _entry(plan: Plan) -> tuple[str, str]:
    served, each = sentences.served_rate(plan), f"{tokens(plan.workload.mean_isl)} input tokens each"
    if plan.objective == "min_cost":
        return rate(served), each
    demand = (
        f"served of {rate(plan.demand_rps)}" if served < plan.demand_rps else f"the demand is {rate(plan.demand_rps)}"
    )
    return rate(served), f"{demand}; {each}"


def _exit(plan: Plan) -> tuple[str, str]:
    generated = sentences.served_rate(plan) * plan.workload.mean_osl
    return (si(generated, "tokens/s").replace(" k", "k "), f"{tokens(plan.workload.mean_osl)} output tokens each")


def _slo(plan: Plan) -> SloSection:
    found = has_fleet(plan)
    return SloSection(
        title=sentences.slo_sentence(plan),
        check=slo_check(plan) if found else None,
        table=_slo_table(plan, found),
        error_bars=tuple(line for line in map(sentences.error_bar_sentence, plan.classes) if line),
        confidence=sentences.confidence_sentence(plan),
    )


def _slo_table(plan: Plan, found: bool) -> Table:
    """What each class asks for and, where there is a fleet, gets."""
    headers, rows = asked_table(plan)
    if not found:
        return without_empty(cut_table(headers, rows))
    attained = [(*row, percent(c.attainment)) for row, c in zip(rows, plan.classes, strict=True)]
    return without_empty(cut_table((*headers, "#attained"), attained))


def _alternatives(plan: Plan) -> AlternativesSection:
    rows = tuple(_alternative(number, row, plan) for number, row in enumerate(distinct_alternatives(plan), 1))
    return AlternativesSection(
        title=sentences.alternatives_sentence(plan),
        rows=rows[:MOST_ROWS],
        with_slack=any(row.slack != MISSING for row in rows),
        cut=max(0, len(rows) - MOST_ROWS),
        charts=tuple(chart for chart in (cost_chart(plan), fleets_chart(plan)) if chart is not None),
    )


def _alternative(number: int, row: Alternative, plan: Plan) -> AlternativeRow:
    feasible, recommended = is_feasible(row), row.kind == "recommended"
    return AlternativeRow(
        number=str(number),
        name=alternative_name(row),
        note=alternative_note(row),
        fleet=tuple(limited_cell(pool) for pool in row.pools[:12]),
        cost=hourly(row.cost_usd_per_hour),
        extra=signed_percent(extra_cost(row, plan)) if feasible and not recommended else MISSING,
        attainment=percent(row.attainment),
        slack=percent(slack(row, plan)),
        why_not=_recommended_words(plan) if recommended else sentences.why_not_sentence(row) or MISSING,
        recommended=recommended and feasible,
        feasible=feasible,
    )


def _recommended_words(plan: Plan) -> str:
    """That a row is the recommended fleet, and of which other kinds it is the cheapest."""
    return f"✓ {sentences.recommended_words(plan)}."


def _workload(plan: Plan) -> WorkloadSection:
    day = arrivals_chart(plan)
    return WorkloadSection(
        charts=workload_charts(plan) + ((day,) if day is not None else ()),
        facts=_workload_facts(plan),
        offered=offered(plan),
        routing=_routing(routed(plan)),
    )


def _workload_facts(plan: Plan) -> Facts:
    load = plan.workload
    return (
        ("request rate", rate(load.request_rate_rps)),
        ("arrivals over time", "by the hours of a day" if arrivals(plan) else "one mean rate, without a daily profile"),
        *arrival_facts(plan),
        ("input tokens found in the prefix cache", percent(load.prefix_hit_share)),
        ("mean input length", f"{tokens(load.mean_isl)} tokens"),
        ("mean output length", f"{tokens(load.mean_osl)} tokens"),
        ("longest request", f"{count(load.max_tokens)} tokens"),
        *scope_words(plan),
    )


def _routing(shares: Sequence[ClassShare]) -> Table:
    """Which requests each pool serves; their classes where there are several."""
    several = len({share.slo_class for share in shares}) > 1
    rows = [
        (s.pool, s.stage, *([s.slo_class] if several else []), percent(s.share), tokens(s.isl), tokens(s.osl))
        for s in shares
    ]
    headers = ("pool", "stage", *(["class"] if several else []), "#share", "#mean input", "#mean output")
    return cut_table(headers, rows, MOST_ROUTED)


def _trust(plan: Plan) -> TrustSection:
    sources = source_rows(plan.provenance.accelerators)
    search, dropped = searched(plan.provenance.search)
    return TrustSection(
        origin=sentences.origin_sentence(plan),
        provenance=_provenance(plan),
        assumptions=tuple(sentence(with_one_form_of_percent(text)) for text in plan.provenance.assumptions),
        search=search,
        dropped=dropped,
        step_errors=step_errors_table(plan),
        accuracy=accuracy_table(plan),
        accuracy_title=accuracy_sentence(plan),
        origins=origins_table(sources, plan),
        sources=sources,
        inputs=_inputs(plan),
    )


def _provenance(plan: Plan) -> Facts:
    source = plan.provenance
    versions = ", ".join(f"{clean(k, 30)} {clean(v, 30)}" for k, v in source.versions.items())
    timings = ", ".join(f"{clean(k, 30)} {duration(v)}" for k, v in source.run.timings_s.items() if is_number(v))
    if source.run.cpu_s:
        timings += f"; {duration(sum(v for v in source.run.cpu_s.values() if is_number(v)))} of the processor in all"
    return (
        ("command", clean(source.run.command, 300)),
        ("created", clean(source.run.created, 40)),
        ("pdplan", clean(source.pdplan_version, 30)),
        ("versions", versions or MISSING),
        ("seed", str(source.seed)),
        ("inputs (SHA-256)", clean(source.inputs_sha256, 64)),
        ("objective", clean(plan.objective).replace("_", " ")),
        ("time taken", timings or MISSING),
        *((f"model {name}", value) for name, value in facts(source.model) if value not in _NOTHING),
    )


def _inputs(plan: Plan) -> str:
    text = json.dumps(readable_inputs(plan.provenance.inputs), indent=2, ensure_ascii=True, sort_keys=False)
    if len(text) <= INPUTS_LIMIT:
        return text
    return text[:INPUTS_LIMIT] + "\n… the rest is in plan.json"
