"""The report's contents: every text, number and drawing that the template places, computed from the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plan import Alternative, Plan, Pool

from . import figures, sentences
from .charts import draw_class, draw_costs, draw_headroom, draw_heat, draw_split
from .fleet_figure import FleetDiagram, PoolShare, fleet_diagram, routed
from .marks import Drawing
from .numbers import (
    MISSING,
    count,
    duration,
    hourly,
    is_number,
    money,
    monthly,
    percent,
    quantity,
    rate,
    signed_percent,
    significant,
    tokens,
)
from .roofline_chart import draw_roofline
from .sources import SourceRow, facts, source_rows
from .text import clean, plural, sentence
from .words import (
    alternative_name,
    by_slack,
    constraint_words,
    extra_cost,
    gpu_words,
    gpus_per_engine,
    has_fleet,
    is_feasible,
    kind_words,
    missed_classes,
    nearest_miss,
    part_words,
    tightest,
    violated,
)

MOST_CLASS_CHARTS: Final = 6
MOST_ROWS: Final = 120
INPUTS_LIMIT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Table:
    """Headers (those of number columns begin with '#') and rows of text; `cut` counts rows left out."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with the finding as its title, a caption, the data behind it, and keys of its colours."""

    title: str
    caption: str
    drawing: Drawing
    table: Table
    legend: tuple[tuple[str, str], ...] = ()


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
    kind: str
    fleet: tuple[str, ...]
    cost: str
    extra: str
    attainment: str
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
    slo: tuple[Chart, ...]
    slo_table: Table
    alternatives_title: str
    alternatives: tuple[AlternativeRow, ...]
    alternatives_cut: int
    costs: Chart | None
    why: tuple[Chart, ...]
    workload: tuple[Chart, ...]
    workload_facts: tuple[tuple[str, str], ...]
    routing: Table
    settings: Table
    transposed: bool
    provenance: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    sources: tuple[SourceRow, ...]
    search: tuple[tuple[str, str], ...]
    inputs: str
    origin: str


def make_page(plan: Plan) -> Page:
    """Compute the page of a plan."""
    found = has_fleet(plan)
    alternatives = tuple(_alternative(row, plan) for row in _ordered(plan))
    name = clean(plan.name)
    return Page(
        title=f"{name}: pdplan",
        eyebrow=(name, f"{clean(plan.model)} on {clean(plan.engine, 20)}", clean(plan.provenance.run.created, 40)),
        chips=("simulated" if plan.simulated else "modelled, not simulated", plan.status.value.replace("_", " ")),
        verdict=sentences.verdict(plan),
        lead=_lead(plan),
        found=found,
        kpis=_kpis(plan) if found else (),
        diagram=fleet_diagram(plan),
        entry=(rate(plan.demand_rps), f"{tokens(plan.workload.mean_isl)} input tokens each"),
        exit=_exit(plan),
        relax=tuple(sentences.relax_sentence(item) for item in violated(plan) or by_slack(plan)[:1]),
        slo_title=sentences.slo_sentence(plan),
        slo=_slo_charts(plan) if found else (),
        slo_table=_slo_table(plan, found),
        alternatives_title=sentences.alternatives_sentence(plan),
        alternatives=alternatives[:MOST_ROWS],
        alternatives_cut=max(0, len(alternatives) - MOST_ROWS),
        costs=_cost_chart(plan),
        why=_why(plan),
        workload=_workload(plan),
        workload_facts=_workload_facts(plan),
        routing=_routing(routed(plan)),
        settings=_settings(plan.pools),
        transposed=len(plan.pools) <= 6,
        provenance=_provenance(plan),
        assumptions=tuple(sentence(text) for text in plan.provenance.assumptions),
        sources=source_rows(plan.provenance.accelerators),
        search=facts(plan.provenance.search),
        inputs=_inputs(plan),
        origin=sentences.origin_sentence(plan),
    )


def _lead(plan: Plan) -> tuple[str, ...]:
    if has_fleet(plan):
        return (sentences.proof_sentence(plan), sentences.growth_sentence(plan))
    miss = nearest_miss(plan)
    asked = f"Asked: {sentences.demand_sentence(plan)}"
    return (asked,) if miss is None else (asked, sentences.miss_sentence(miss))


def _kpis(plan: Plan) -> tuple[Kpi, ...]:
    missed = missed_classes(plan)
    least = tightest(plan)
    room = percent(least.slack) if least else MISSING
    where = f"room of {sentences.limit_words(least)}" if least else "no limit is known"
    proved = plan.gap is not None and plan.gap <= sentences.PROVED_GAP
    return (
        Kpi(hourly(plan.cost_usd_per_hour), f"{monthly(plan.cost_usd_per_hour)} a month of 730 h"),
        Kpi(money(plan.usd_per_million_output_tokens), "per million output tokens"),
        Kpi(plural(sum(plan.gpus.values()), "GPU"), gpu_words(plan)),
        Kpi(
            f"{'✗' if missed else '✓'} {percent(plan.attainment)}",
            f"of requests within all SLOs; {sentences.goals_words(plan)}",
            "bad" if missed else "good",
        ),
        Kpi(rate(plan.goodput_rps), f"goodput; the demand is {rate(plan.demand_rps)}"),
        Kpi(significant(plan.goodput_per_dollar), "requests within SLO per dollar"),
        Kpi("proved" if proved else percent(plan.gap), "cheapest fleet" if proved else "gap to the lower bound"),
        Kpi(room, where, "bad" if least and least.slack < 0 else ""),
    )


def _exit(plan: Plan) -> tuple[str, str]:
    generated = plan.demand_rps * plan.workload.mean_osl
    return (f"{significant(generated)} tokens/s", f"{tokens(plan.workload.mean_osl)} output tokens each")


def _slo_charts(plan: Plan) -> tuple[Chart, ...]:
    charts = []
    for figure in figures.class_figures(plan)[:MOST_CLASS_CHARTS]:
        held = "holds" if figure.attainment >= figure.goal else "misses its goal"
        rows = tuple(
            (group.metric, bar.label, duration(bar.seconds), duration(group.limit), "yes" if bar.within else "no")
            for group in figure.groups
            for bar in group.bars
        )
        charts.append(
            Chart(
                title=f"{figure.name} {held}: {percent(figure.attainment)} in time, goal {percent(figure.goal)}",
                caption="Bold: the quantile that the goal asks to be within the limit.",
                drawing=draw_class(figure),
                table=Table(("latency", "quantile", "#predicted", "#limit", "within"), rows),
            )
        )
    return tuple(charts)


def _slo_table(plan: Plan, found: bool) -> Table:
    headers = ("class", "#share", "#TTFT limit", "#TPOT limit", "#e2e limit", "#goal", "#attained")
    rows = [
        (
            clean(c.name, 30),
            percent(c.share),
            duration(c.ttft_limit_s),
            duration(c.tpot_limit_s),
            duration(c.e2e_limit_s),
            percent(c.attainment_goal),
            percent(c.attainment) if found else MISSING,
        )
        for c in plan.classes
    ]
    return _cut(headers, rows)


def _ordered(plan: Plan) -> list[Alternative]:
    return sorted(
        plan.alternatives,
        key=lambda a: (a.kind != "recommended", not is_feasible(a), a.cost_usd_per_hour or 0.0, a.label),
    )


def _alternative(row: Alternative, plan: Plan) -> AlternativeRow:
    feasible, recommended = is_feasible(row), row.kind == "recommended"
    return AlternativeRow(
        name=alternative_name(row),
        kind=kind_words(row.kind),
        fleet=tuple(clean(line) for line in row.pools[:12]),
        cost=hourly(row.cost_usd_per_hour) if feasible else row.status.value.replace("_", " "),
        extra=signed_percent(extra_cost(row, plan)) if feasible and not recommended else MISSING,
        attainment=percent(row.attainment),
        why_not=sentence(row.why_not) or (sentences.proof_sentence(plan) if recommended else MISSING),
        recommended=recommended and feasible,
        feasible=feasible,
    )


def _cost_chart(plan: Plan) -> Chart | None:
    figure = figures.alternative_costs(plan)
    if not any(bar.value is not None for bar in figure.bars):
        return None
    rows = tuple((bar.label, hourly(bar.value), bar.note or "feasible") for bar in figure.bars)
    return Chart(
        title="Price of the best fleet of each kind",
        caption="The line is the price of the recommended fleet.",
        drawing=draw_costs(figure, plan.cost_usd_per_hour),
        table=Table(("fleet", "#price", "status"), rows),
    )


def _why(plan: Plan) -> tuple[Chart, ...]:
    charts = [_headroom_chart(plan)] if plan.binding else []
    if plan.pools:
        charts += [_dollar_chart(plan), _roofline_chart(plan), _split_chart(plan)]
    return tuple(charts)


def _headroom_chart(plan: Plan) -> Chart:
    least = tightest(plan)
    title = sentences.binding_sentence(least) if least else "No limit is known"
    rows = [
        (
            constraint_words(b.constraint),
            clean(b.where, 30),
            quantity(b.used, b.unit),
            quantity(b.limit, b.unit),
            percent(b.slack),
            sentences.binding_sentence(b),
        )
        for b in by_slack(plan)
    ]
    return Chart(
        title=title,
        caption="Use of each limit, tightest first; the line is the limit.",
        drawing=draw_headroom(figures.headroom(plan)),
        table=_cut(("limit", "where", "#used", "#limit", "#room", "because"), rows),
    )


def _dollar_chart(plan: Plan) -> Chart:
    figure = figures.dollars(plan)
    rows = [(figures.pool_label(p), clean(p.accelerator), count(p.gpus), hourly(p.usd_per_hour)) for p in plan.pools]
    rows.append(("total", "", count(sum(p.gpus for p in plan.pools)), hourly(figure.total)))
    return Chart(
        title=sentences.dollars_sentence(plan.pools),
        caption=f"The pools sum to {hourly(figure.total)}.",
        drawing=draw_costs(figure),
        table=_cut(("pool", "GPU", "#GPUs", "#price"), rows),
    )


def _roofline_chart(plan: Plan) -> Chart:
    rows = []
    for pool in plan.pools:
        at = pool.operating_point
        cells = (significant(at.arithmetic_intensity), significant(at.ridge_point), percent(at.mfu), percent(at.mbu))
        rows.append((figures.pool_label(pool), clean(pool.accelerator), *cells, clean(at.bound_by, 20)))
    return Chart(
        title=sentences.roofline_sentence(plan.pools),
        caption="Each point is a pool's typical step; the dotted line above it is what its roof would allow.",
        drawing=draw_roofline(figures.roofline(plan)),
        table=_cut(("pool", "GPU", "#FLOP/byte", "#ridge", "#MFU", "#MBU", "bound by"), rows),
        legend=tuple((role, role) for role in ("prefill", "decode", "colocated") if _has_role(plan, role)),
    )


def _has_role(plan: Plan, role: str) -> bool:
    return any(pool.role == role for pool in plan.pools)


def _split_chart(plan: Plan) -> Chart:
    rows = []
    for pool in plan.pools:
        at = pool.operating_point
        shares = (percent(getattr(at.time_split, part)) for part in figures.PARTS)
        rows.append((figures.pool_label(pool), duration(at.step_s), significant(at.batch), *shares))
    parts = tuple(part_words(part) for part in figures.PARTS)
    return Chart(
        title=sentences.split_sentence(plan.pools),
        caption="Time of one typical step of each pool: a decode step, or the prefill of the mean prompt.",
        drawing=draw_split(figures.step_splits(plan)),
        table=_cut(("pool", "#step", "#requests", *(f"#{part}" for part in parts)), rows),
        legend=tuple((f"part-{name}", part_words(name)) for name in figures.PARTS),
    )


def _workload(plan: Plan) -> tuple[Chart, ...]:
    load = plan.workload
    if not load.share:
        return ()
    figure = figures.heat_map(load)
    rows = [(tokens(i), tokens(o), percent(s)) for i, o, s in zip(load.isl, load.osl, load.share, strict=True)]
    return (
        Chart(
            title=sentences.heat_sentence(figure.peak[0], *_peak_labels(figure)),
            caption=f"{plural(len(load.share), 'bucket')} of lengths, binned by powers of two.",
            drawing=draw_heat(figure),
            table=_cut(("#input tokens", "#output tokens", "#share"), rows),
        ),
    )


def _peak_labels(figure: figures.HeatMap) -> tuple[str, str]:
    _, row, column = figure.peak
    return figure.column_labels[-column], figure.row_labels[-row]


def _workload_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    load = plan.workload
    return (
        ("request rate", rate(load.request_rate_rps)),
        ("burstiness (CV of inter-arrival times; 1 is Poisson)", significant(load.burstiness)),
        ("input tokens found in the prefix cache", percent(load.prefix_hit_share)),
        ("mean input length", f"{tokens(load.mean_isl)} tokens"),
        ("mean output length", f"{tokens(load.mean_osl)} tokens"),
        ("longest request", f"{count(load.max_tokens)} tokens"),
    )


def _routing(shares: Sequence[PoolShare]) -> Table:
    rows = [(s.pool, s.stage, percent(s.share), tokens(s.mean_isl), tokens(s.mean_osl)) for s in shares]
    return _cut(("pool", "stage", "#share of requests", "#mean input", "#mean output"), rows)


def _settings(pools: Sequence[Pool]) -> Table:
    names = (
        "pool",
        "role",
        "accelerator",
        "replicas",
        "of which spare",
        "GPUs per engine",
        "tensor_parallel",
        "pipeline_parallel",
        "expert_parallel",
        "data_parallel",
        "weight_dtype",
        "kv_dtype",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "memory_fraction",
        "price",
    )
    rows = [
        (
            clean(pool.id, 20),
            pool.role,
            clean(pool.accelerator, 24),
            count(pool.replicas),
            count(pool.spare_replicas),
            count(gpus_per_engine(pool)),
            count(pool.tensor_parallel),
            count(pool.pipeline_parallel),
            count(pool.expert_parallel),
            count(pool.data_parallel),
            clean(pool.weight_dtype, 12),
            clean(pool.kv_dtype, 12),
            count(pool.max_num_seqs),
            count(pool.max_num_batched_tokens),
            count(pool.max_model_len),
            significant(pool.memory_fraction),
            hourly(pool.usd_per_hour),
        )
        for pool in pools
    ]
    return Table(names, tuple(rows))


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
        *((f"model {name}", value) for name, value in facts(source.model)),
    )


def _inputs(plan: Plan) -> str:
    text = json.dumps(plan.provenance.inputs, indent=2, ensure_ascii=True, sort_keys=False)
    if len(text) <= INPUTS_LIMIT:
        return text
    return text[:INPUTS_LIMIT] + "\n… the rest is in plan.json"


def _cut(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(headers, tuple(rows[:MOST_ROWS]), max(0, len(rows) - MOST_ROWS))
