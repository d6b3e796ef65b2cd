"""What a plan answers: the fleet, its price, whether it meets the SLO, the risk, the alternatives, the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from costmodel.metric import METRICS, Metric
from optimizer.plans.plan import Alternative, ClassResult, Plan, Pool
from optimizer.plans.records import Quantiles
from reports import sentences, verdict
from reports.asked import asked, asked_table
from reports.deployable import deploy_sentence
from reports.document import Document, Section, Table, said, table_of
from reports.figures import goal_label
from reports.front import front_headers, front_note, front_rows, front_sentence
from reports.next_step import next_command
from reports.numbers import (
    MISSING,
    count,
    duration,
    latencies,
    money,
    percent,
    percent_beside,
    rate,
    signed_percent,
)
from reports.sensitivity import base_sentence, told
from reports.sensitivity_section import LEVER_HEADERS, lever_rows
from reports.simulation_sentences import router_sentence, waste_sentence
from reports.table import Column
from reports.text import clean, plural
from reports.volume_words import volume_sentence
from reports.words import (
    FLEET_WITH_LIMITS,
    alternative_name,
    busiest_words,
    by_slack,
    constraint_words,
    distinct_alternatives,
    extra_cost,
    gpu_words,
    gpus_per_engine,
    has_fleet,
    has_tpot,
    is_feasible,
    limited_cell,
    nearest_miss,
    other_metrics,
    split_words,
    tightest_first,
    violated,
)

BRIEF_ROWS: Final = 4
"""Rows of a table in the brief answer: more of them would push the verdict off the screen."""
MOST_POOLS: Final = BRIEF_ROWS + 2
"""Pools that are all shown in the brief answer, and whose busiest resources fit a sentence in the whole one."""


def plan_document(plan: Plan, *, brief: bool = False, next_step: str | None = None) -> Document:
    """The answer of a plan.

    brief: what fits a screen: verdict, fleet, SLOs, risk, alternatives, capacity; else with all reasons.
    next_step: the command named last; made from the plan's own command when None.
    """
    if not has_fleet(plan):
        sections = (*_in_the_way(plan), _alternatives(plan, brief=brief), *(() if brief else (_origin(plan),)))
    else:
        sections = _brief(plan) if brief else _complete(plan)
    return Document(
        headline=said(*verdict.headlines(plan, brief=brief), *verdict.caveats(plan)),
        sections=sections,
        positive=has_fleet(plan) and not verdict.is_missed(plan),
        next_step=next_command(plan) if next_step is None else next_step,
    )


def _brief(plan: Plan) -> tuple[Section, ...]:
    return (
        Section(table=fleet_table(plan.pools, brief=True), notes=_pools_left_out(plan)),
        Section(table=class_table(plan, brief=True), notes=said(*limit_sentences(plan), _risk(plan))),
        _front(plan),
        _alternatives(plan, brief=True),
        Section(
            sentences=said(
                " ".join(said(verdict.disaggregation_sentence(plan), sentences.proof_sentence(plan))),
                " ".join(said(sentences.capacity_sentence(plan), waste_sentence(plan))),
                verdict.overload_sentence(plan),
                volume_sentence(plan),
                deploy_sentence(plan),
            )
        ),
    )


def _complete(plan: Plan) -> tuple[Section, ...]:
    return (
        Section(
            f"Fleet: {gpu_words(plan)}{_spare_words(plan)}",
            table=fleet_table(plan.pools, brief=False),
            notes=said(busiest_sentence(plan.pools)),
        ),
        Section("SLOs", table=class_table(plan, brief=False), notes=said(*limit_sentences(plan), _risk(plan))),
        Section("Error bars", said(*(sentences.error_bar_sentence(item) for item in plan.classes))),
        Section(
            "Cost and capacity",
            said(
                sentences.cost_sentence(plan),
                verdict.overload_sentence(plan),
                verdict.disaggregation_sentence(plan),
                sentences.proof_sentence(plan),
                sentences.growth_sentence(plan),
                volume_sentence(plan),
                waste_sentence(plan),
                router_sentence(plan),
                verdict.precision_sentence(plan),
                deploy_sentence(plan),
            ),
        ),
        Section("What binds", table=_limits(plan)),
        _front(plan),
        _alternatives(plan, brief=False),
        _sensitivity(plan),
        _origin(plan),
    )


def _spare_words(plan: Plan) -> str:
    spares = sum(pool.spare_replicas for pool in plan.pools)
    return f"; {plural(spares, 'replica')} {'is' if spares == 1 else 'are'} spare" if spares else ""


def _pools_left_out(plan: Plan) -> tuple[str, ...]:
    cut = len(plan.pools) - len(_dearest(plan.pools, brief=True))
    return (f"{plural(cut, 'more pool')} in plan.json.",) if cut else ()


def _dearest(pools: Sequence[Pool], *, brief: bool) -> list[Pool]:
    """The pools that are shown: in a brief answer those that cost most, in the plan's order."""
    if not brief or len(pools) <= MOST_POOLS:
        return list(pools)
    dearest = sorted(pools, key=lambda pool: (-pool.usd_per_hour, pool.id))[: BRIEF_ROWS + 1]
    return [pool for pool in pools if pool in dearest]


def fleet_table(pools: Sequence[Pool], *, brief: bool) -> Table:
    """The pools of a fleet with their settings; brief: the dearest where they are many, without roles named by ids."""
    named = all(pool.id.startswith(pool.role) for pool in pools)
    columns = [
        Column("pool"),
        Column("role", optional=True),
        Column("replicas × GPUs"),
        Column("parallelism"),
        Column("weights/KV"),
        Column("max seqs", "right"),
        Column("chunk", "right"),
        Column("$/h", "right"),
        Column("busiest", shrink=True, lines=2, optional=True),
    ]
    hidden = ("role" if named else "") if brief else "busiest" if len(pools) <= MOST_POOLS else ""
    shown = [at for at, column in enumerate(columns) if column.header != hidden]
    rows = [_pool_row(pool) for pool in _dearest(pools, brief=brief)]
    return table_of([columns[at] for at in shown], [[row[at] for at in shown] for row in rows])


def busiest_sentence(pools: Sequence[Pool]) -> str:
    """Say what is busiest in each pool; empty where they are many, and a column of the table says it."""
    words = ((clean(pool.id, 20), busiest_words(pool.operating_point)) for pool in pools)
    used = "; ".join(f"{name} {busiest}" for name, busiest in words if busiest != MISSING)
    return f"Busiest: {used}." if used and len(pools) <= MOST_POOLS else ""


def _pool_row(pool: Pool) -> tuple[str, ...]:
    replicas = f"{pool.replicas - pool.spare_replicas}+{pool.spare_replicas}" if pool.spare_replicas else pool.replicas
    return (
        clean(pool.id, 20),
        pool.role,
        f"{replicas} × {gpus_per_engine(pool)} {clean(pool.accelerator, 24)}",
        split_words(pool),
        f"{clean(pool.weight_dtype, 8)}/{clean(pool.kv_dtype, 8)}",
        count(pool.max_num_seqs),
        count(pool.max_num_batched_tokens),
        money(pool.usd_per_hour),
        busiest_words(pool.operating_point, short=True),
    )


def class_table(plan: Plan, *, brief: bool) -> Table:
    """The SLO of each class: latencies at the percentile that its goal asks for, or at all of them."""
    classes = tightest_first(plan)[:BRIEF_ROWS] if brief and len(plan.classes) > BRIEF_ROWS else plan.classes
    labels = {goal_label(item.attainment_goal) for item in classes}
    at = "p50/p90/p99" if not brief else labels.pop() if len(labels) == 1 else "at goal"
    columns = (
        Column("class", shrink=True),
        Column("share", "right", optional=True),
        Column(f"TTFT {at}", "right"),
        Column("limit", "right", beside=True),
        Column(f"TPOT {at}", "right"),
        Column("limit", "right", beside=True),
        *("#meet the SLO", "#goal", ""),
    )
    return table_of(columns, [_class_row(item, brief=brief) for item in classes])


def _class_row(item: ClassResult, *, brief: bool) -> tuple[str, ...]:
    label = goal_label(item.attainment_goal)
    write: Callable[[Quantiles], str] = (lambda times: duration(getattr(times, label))) if brief else _quantiles
    return (
        clean(item.name, 30),
        percent(item.share),
        write(item.ttft_s),
        duration(item.ttft_limit_s),
        write(item.tpot_s) if has_tpot(item) else MISSING,
        duration(item.tpot_limit_s),
        percent_beside(item.attainment, item.attainment_goal),
        percent(item.attainment_goal),
        "✓" if item.attainment >= item.attainment_goal else "✗ missed",
    )


def _quantiles(values: Quantiles) -> str:
    return latencies((values.p50, values.p90, values.p99))


def limit_sentences(plan: Plan) -> list[str]:
    """Limits beyond TTFT and TPOT, a sentence each: columns would not fit beside the others."""
    said_of = [
        (METRICS[Metric.E2E].label, item.name, _e2e(plan, item.name), item.e2e_limit_s)
        for item in plan.classes
        if item.e2e_limit_s is not None
    ]
    said_of += [
        (label, item.name, times, limit) for item in plan.classes for label, times, limit in other_metrics(item)
    ]
    return [
        f"{label} of {clean(name, 30)}{_at_percentiles(times)}, limit {duration(limit)}."
        for label, name, times, limit in said_of
    ]


def _e2e(plan: Plan, name: str) -> Quantiles | None:
    """Time from arrival to last token of a class; None where that was not simulated."""
    classes = [] if plan.simulation is None else plan.simulation.classes
    return next((item.e2e_s for item in classes if item.name == name), None)


def _at_percentiles(times: Quantiles | None) -> str:
    return "" if times is None else f" (p50/p90/p99): {_quantiles(times)}"


def _risk(plan: Plan) -> str:
    """Whether slow GPUs miss the SLO and what helps; or that the figures are for such GPUs."""
    if plan.confidence > 0.0:
        return sentences.confidence_sentence(plan)
    stated = plan.safe is not None or verdict.is_at_risk(plan)
    return f"Risk: {verdict.risk_sentence(plan)}" if stated else ""


def _limits(plan: Plan) -> Table:
    columns = (
        Column("limit", shrink=True, lines=2),
        *("where", "#slack"),
        Column("because", shrink=True, lines=12),
    )
    rows = [
        (
            constraint_words(item.constraint),
            clean(item.where, 20),
            percent(item.slack),
            sentences.binding_sentence(item),
        )
        for item in by_slack(plan)
    ]
    return table_of(columns, rows)


def _in_the_way(plan: Plan) -> tuple[Section, ...]:
    """Of a plan without a fleet: what was asked, what came nearest, and which limit to relax."""
    miss = nearest_miss(plan)
    obstacles = violated(plan) or by_slack(plan)[:1]
    headers, rows = asked_table(plan)
    wanted = f"Asked: {sentences.demand_sentence(plan)}"
    classes = tuple(f"{sentences.slo_words(item)}." for item in asked(plan)[:BRIEF_ROWS])
    return (
        Section(sentences=(wanted, *(classes if len(rows) <= BRIEF_ROWS else ())), table=_asked(headers, rows)),
        Section(sentences=said("" if miss is None else sentences.miss_sentence(miss))),
        Section(
            sentences=tuple(
                f"{sentences.binding_sentence(limit)} {sentences.relax_sentence(limit)}" for limit in obstacles
            )
        ),
    )


def _asked(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table | None:
    """The classes in a table, where they are too many for a sentence each."""
    if len(rows) <= BRIEF_ROWS:
        return None
    return table_of((Column(headers[0], shrink=True), *headers[1:]), rows[: 5 * BRIEF_ROWS])


def _alternatives(plan: Plan, *, brief: bool) -> Section:
    """The cheapest fleet of each kind; brief: without the recommended one, which stands above, and runners-up."""
    every = list(enumerate(distinct_alternatives(plan), 1))
    if not has_fleet(plan):
        every = [(number, row) for number, row in every if row.kind not in {"recommended", "nearest_miss"}]
    left_out = {"recommended", "other_engines"} if brief else set[str]()
    kinds = [(number, row) for number, row in every if row.kind not in left_out]
    if all(row.kind == "recommended" for _, row in kinds):
        return Section()
    columns = (
        Column("#", "right"),
        Column("alternative", shrink=True, lines=3),
        Column(FLEET_WITH_LIMITS, shrink=True, lines=4),
        Column("$/h", "right"),
        Column("extra", "right"),
        Column("SLO met", "right", optional=True),
    )
    shown = kinds[:BRIEF_ROWS] if brief else kinds
    cut = len(kinds) - len(shown)
    notes = [f"{plural(cut, 'more alternative')}: see -v or plan.json."] if cut else []
    notes += (
        ["--alternative N shows, simulates or deploys fleet N; 1 is the recommended one."] if has_fleet(plan) else []
    )
    notes += [] if brief else [f"{number}: {text}" for number, row in shown if (text := _reason(row))]
    table = table_of(columns, [(str(number), *_alternative_row(row, plan)) for number, row in shown])
    return Section("" if brief else "Alternatives", table=table, notes=tuple(notes))


def _alternative_row(row: Alternative, plan: Plan) -> tuple[str, ...]:
    recommended, feasible = row.kind == "recommended", is_feasible(row)
    fleet = " + ".join(limited_cell(pool) for pool in row.pools[:6])
    return (
        sentences.recommended_words(plan) if recommended else alternative_name(row),
        fleet or sentences.why_not_sentence(row) or MISSING,
        money(row.cost_usd_per_hour),
        signed_percent(extra_cost(row, plan)) if feasible and not recommended else MISSING,
        percent(row.attainment),
    )


def _reason(row: Alternative) -> str:
    """Why an alternative with a fleet lost, and what it does without."""
    if not row.pools or row.kind == "recommended":
        return ""
    return sentences.alternative_sentence(row)


def _front(plan: Plan) -> Section:
    """What a dollar more buys, where it was asked for."""
    rows, headers = front_rows(plan), front_headers(plan)
    if not rows:
        return Section()
    table = table_of((Column(headers[0], shrink=True, lines=6), *headers[1:]), rows)
    return Section(f"What a dollar more buys: {front_sentence(plan)}", (), table, (front_note(plan),))


def _sensitivity(plan: Plan) -> Section:
    moved = plan.sensitivity
    if moved is None:
        return Section()
    lines = said(base_sentence(plan, moved), *told(plan, moved))
    return Section("Sensitivity", lines, table_of(LEVER_HEADERS, lever_rows(moved)))


def _origin(plan: Plan) -> Section:
    """What the figures rest on, and the command that gives them again."""
    source = plan.provenance
    stated = plural(len(source.assumptions), "assumption")
    facts = (
        f"Demand: {sentences.demand_sentence(plan)}",
        sentences.origin_sentence(plan),
        f"{stated} in force, listed in plan.json and the report." if source.assumptions else "",
        f"pdplan {clean(source.pdplan_version, 30)}, seed {source.seed}, inputs SHA-256 "
        f"{clean(source.inputs_sha256, 64)}, demand {rate(plan.demand_rps)}.",
    )
    command = clean(source.run.command, 300) or "pdplan optimize workload.yaml"
    return Section("Reproduce", said(*facts), code=command)
