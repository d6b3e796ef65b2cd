"""The report's contents: every text, number and drawing that the template places, computed from the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import Alternative, Plan

from . import sentences, verdict
from .arrivals import arrivals, arrivals_chart
from .asked import asked, offered
from .deployment_card import DeploymentCard, deployment_card
from .fleet_figure import ClassShare, FleetDiagram, fleet_diagram, routed
from .glossary import WORDS
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
from .page_charts import MOST_ROWS, Chart, Table, cost_chart, cut_table, why_charts, without_empty, workload_charts
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
from .sensitivity_section import SensitivityView, sensitivity_view
from .simulation_figures import slack
from .simulation_sentences import simulation_sentence, waste_sentence
from .slo_section import SloCheck, fleets_chart, slo_check
from .sources import SourceRow, facts, searched, source_rows
from .text import clean, moment, plural, sentence
from .words import (
    alternative_name,
    alternative_note,
    by_slack,
    distinct_alternatives,
    extra_cost,
    gpu_words,
    has_fleet,
    is_feasible,
    missed_classes,
    nearest_miss,
    status_words,
    tightest,
    violated,
)

MOST_ROUTED: Final = 16
INPUTS_LIMIT: Final = 20_000
_NOTHING: Final = ("0", "none", MISSING)
"""Facts of a model that it has nothing of, such as experts."""


@dataclass(frozen=True, slots=True)
class Kpi:
    """A figure of the verdict: value, what it is, and whether it is good news."""

    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class AlternativeRow:
    """One row of the alternatives' table."""

    name: str
    note: str
    fleet: tuple[str, ...]
    cost: str
    extra: str
    attainment: str
    slack: str
    why_not: str
    recommended: bool
    feasible: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page, top to bottom."""

    title: str
    eyebrow: tuple[str, ...]
    chips: tuple[str, ...]
    verdict: str
    lead: tuple[str, ...]
    found: bool
    kpis: tuple[Kpi, ...]
    diagram: FleetDiagram
    entry: tuple[str, str]
    exit: tuple[str, str]
    relax: tuple[str, ...]
    slo_title: str
    check: SloCheck | None
    slo_table: Table
    error_bars: tuple[str, ...]
    confidence: str
    step_errors: Table
    accuracy: Table
    accuracy_title: str
    alternatives_title: str
    alternatives: tuple[AlternativeRow, ...]
    with_slack: bool
    alternatives_cut: int
    costs: tuple[Chart, ...]
    why: tuple[Chart, ...]
    pools: Table
    hand_over: str
    worth_hint: str
    workload: tuple[Chart, ...]
    workload_facts: tuple[tuple[str, str], ...]
    offered: tuple[tuple[str, str], ...]
    routing: Table
    sensitivity: SensitivityView | None
    settings: Table
    reasons: Table
    deployment: DeploymentCard
    transposed: bool
    provenance: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    sources: tuple[SourceRow, ...]
    origins: Table
    search: tuple[tuple[str, str], ...]
    dropped: Table
    inputs: str
    origin: str
    words: tuple[tuple[str, str], ...] = WORDS


def make_page(plan: Plan) -> Page:
    """Compute the page of a plan."""
    found = has_fleet(plan)
    alternatives = tuple(_alternative(row, plan) for row in distinct_alternatives(plan))
    name, day = clean(plan.name), arrivals_chart(plan)
    sources = source_rows(plan.provenance.accelerators)
    search, dropped = searched(plan.provenance.search)
    return Page(
        title=f"{name}: pdplan",
        eyebrow=(name, f"{clean(plan.model)} on {clean(plan.engine, 20)}", moment(plan.provenance.run.created)),
        chips=("simulated" if plan.simulated else "modelled, not simulated", plan.status.value.replace("_", " ")),
        verdict=verdict.verdict(plan),
        lead=_lead(plan),
        found=found,
        kpis=_kpis(plan) if found else (),
        diagram=fleet_diagram(plan),
        entry=_entry(plan),
        exit=_exit(plan),
        relax=tuple(sentences.relax_sentence(item) for item in violated(plan) or by_slack(plan)[:1]),
        slo_title=sentences.slo_sentence(plan),
        check=slo_check(plan) if found else None,
        slo_table=_slo_table(plan, found),
        error_bars=tuple(line for line in map(sentences.error_bar_sentence, plan.classes) if line),
        confidence=sentences.confidence_sentence(plan),
        step_errors=step_errors_table(plan),
        accuracy=accuracy_table(plan),
        accuracy_title=accuracy_sentence(plan),
        alternatives_title=sentences.alternatives_sentence(plan),
        alternatives=alternatives[:MOST_ROWS],
        with_slack=any(row.slack != MISSING for row in alternatives),
        alternatives_cut=max(0, len(alternatives) - MOST_ROWS),
        costs=tuple(chart for chart in (cost_chart(plan), fleets_chart(plan)) if chart is not None),
        why=why_charts(plan),
        pools=pools_table(plan),
        hand_over=hand_over_sentence(plan),
        worth_hint=worth_hint(plan),
        workload=workload_charts(plan) + ((day,) if day is not None else ()),
        workload_facts=_workload_facts(plan),
        offered=offered(plan),
        routing=_routing(routed(plan)),
        sensitivity=sensitivity_view(plan) if found else None,
        settings=engines_table(plan.pools),
        reasons=settings_table(plan),
        deployment=deployment_card(plan),
        transposed=len(plan.pools) <= 6,
        provenance=_provenance(plan),
        assumptions=tuple(sentence(with_one_form_of_percent(text)) for text in plan.provenance.assumptions),
        sources=sources,
        origins=origins_table(sources, plan),
        search=search,
        dropped=dropped,
        inputs=_inputs(plan),
        origin=sentences.origin_sentence(plan),
    )


def _lead(plan: Plan) -> tuple[str, ...]:
    if has_fleet(plan):
        told = (
            verdict.overload_sentence,
            simulation_sentence,
            verdict.risk_sentence,
            sentences.proof_sentence,
            waste_sentence,
        )
        return tuple(text for text in (say(plan) for say in told) if text)
    miss = nearest_miss(plan)
    asked = f"Asked: {sentences.demand_sentence(plan)}"
    return (asked,) if miss is None else (asked, sentences.miss_sentence(miss))


def _kpis(plan: Plan) -> tuple[Kpi, ...]:
    missed = missed_classes(plan)
    least = tightest(plan)
    spare = percent(least.slack) if least else MISSING
    where = f"slack of {sentences.limit_words(least)}" if least else "no limit is known"
    return (
        Kpi(hourly(plan.cost_usd_per_hour), f"{monthly(plan.cost_usd_per_hour)} a month of 730 h"),
        Kpi(
            money(plan.usd_per_million_output_tokens),
            f"per million output tokens at {rate(sentences.served_rate(plan))}",
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
            f"requests within SLO per dollar at {rate(plan.goodput_rps)}, the goodput",
        ),
        _proof(plan),
        Kpi(spare, where, "bad" if least and least.slack < 0 else ""),
    )


def _proof(plan: Plan) -> Kpi:
    cheapest = plan.objective == "min_cost"
    if sentences.is_proved(plan):
        return Kpi("proved", "cheapest fleet by formula" if cheapest else f"most {sentences.goal_words(plan)}")
    if cheapest:
        return Kpi(percent(plan.gap), "gap to the lower bound of the formulas")
    return Kpi(percent(sentences.possible_gain(plan)), f"more {sentences.goal_words(plan)} at most, by formula")


def _entry(plan: Plan) -> tuple[str, str]:
    served, each = sentences.served_rate(plan), f"{tokens(plan.workload.mean_isl)} input tokens each"
    return rate(served), each if plan.objective == "min_cost" else f"served of {rate(plan.demand_rps)}; {each}"


def _exit(plan: Plan) -> tuple[str, str]:
    generated = sentences.served_rate(plan) * plan.workload.mean_osl
    return (si(generated, "tokens/s").replace(" k", "k "), f"{tokens(plan.workload.mean_osl)} output tokens each")


def _slo_table(plan: Plan, found: bool) -> Table:
    """What each class asks for and, where there is a fleet, gets."""
    headers = ("class", "#share", "#TTFT limit", "#TPOT limit", "#e2e limit", "#goal")
    rows = [
        (clean(c.name, 30), percent(c.share), duration(c.ttft), duration(c.tpot), duration(c.e2e), percent(c.goal))
        for c in asked(plan)
    ]
    if not found:
        return without_empty(cut_table(headers, rows))
    attained = [(*row, percent(c.attainment)) for row, c in zip(rows, plan.classes, strict=True)]
    return without_empty(cut_table((*headers, "#attained"), attained))


def _alternative(row: Alternative, plan: Plan) -> AlternativeRow:
    feasible, recommended = is_feasible(row), row.kind == "recommended"
    return AlternativeRow(
        name=alternative_name(row),
        note=alternative_note(row),
        fleet=tuple(clean(line) for line in row.pools[:12]),
        cost=hourly(row.cost_usd_per_hour) if feasible else status_words(row),
        extra=signed_percent(extra_cost(row, plan)) if feasible and not recommended else MISSING,
        attainment=percent(plan.attainment if recommended else row.attainment),
        slack=percent(slack(row, plan)),
        why_not=_recommended_words(plan) if recommended else sentences.why_not_sentence(row) or MISSING,
        recommended=recommended and feasible,
        feasible=feasible,
    )


def _recommended_words(plan: Plan) -> str:
    """Of which other kinds the recommended fleet is the best."""
    also = sentences.also_best_of(plan)
    return f"✓ recommended{f'; {also}' if also else ''}."


def _workload_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    load = plan.workload
    return (
        ("request rate", rate(load.request_rate_rps)),
        ("arrivals over time", "by the hours of a day" if arrivals(plan) else "one mean rate, without a daily profile"),
        ("burstiness (CV of inter-arrival times; 1 is Poisson)", significant(load.burstiness)),
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


def _provenance(plan: Plan) -> tuple[tuple[str, str], ...]:
    source = plan.provenance
    versions = ", ".join(f"{clean(k, 30)} {clean(v, 30)}" for k, v in source.versions.items())
    timings = ", ".join(f"{clean(k, 30)} {duration(v)}" for k, v in source.run.timings_s.items() if is_number(v))
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
    text = json.dumps(plan.provenance.inputs, indent=2, ensure_ascii=True, sort_keys=False)
    if len(text) <= INPUTS_LIMIT:
        return text
    return text[:INPUTS_LIMIT] + "\n… the rest is in plan.json"
