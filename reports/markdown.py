"""A plan as Markdown, short enough for a pull request: the verdict, then the tables it rests on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from costmodel.metric import METRICS, Metric
from optimizer.plans.plan import Alternative, ClassResult, MetricResult, Plan, Pool
from optimizer.plans.records import Sensitivity

from . import sentences, verdict
from .asked import asked_table
from .deployable import deploy_sentence
from .figures import goal_label
from .front import front_headers, front_note, front_rows, front_sentence
from .numbers import MISSING, count, duration, hourly, percent, percent_beside, rate, signed_percent
from .sensitivity import base_sentence, told
from .sensitivity_section import LEVER_HEADERS, lever_rows
from .simulation_sentences import router_sentence, simulation_sentence, waste_sentence
from .text import clean, plural
from .volume_words import volume_sentence
from .words import (
    FLEET_WITH_LIMITS,
    alternative_name,
    by_slack,
    distinct_alternatives,
    extra_cost,
    gpus_per_engine,
    has_fleet,
    has_tpot,
    is_feasible,
    limited_cell,
    limited_metrics,
    nearest_miss,
    split_words,
    violated,
)

MOST_ROWS: Final = 20
_SPECIAL: Final = re.compile(r"([\\`*{}\[\]<#|~&@]|>(?!\d)|^>|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
"""What Markdown or its mentions of people and issues give a meaning; an underscore within a word has none, nor has
the sign in >99.9 %, where it begins no line."""


def escaped(text: str) -> str:
    """Write text so that Markdown shows it as it is; a backslash would not do for all characters, references do.

    >>> escaped("a|b <i> @you, _max_num_seqs")
    'a&#124;b &#60;i&#62; &#64;you, &#95;max_num_seqs'
    """
    return _SPECIAL.sub(lambda found: f"&#{ord(found[1])};", text)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> list[str]:
    """Write a table; headers of number columns begin with '#'."""
    names = [header.removeprefix("#") for header in headers]
    rules = ["---:" if header.startswith("#") else "---" for header in headers]
    lines = [names, rules, *([escaped(cell) for cell in row] for row in rows[:most])]
    written = [f"| {' | '.join(line)} |" for line in lines]
    cut = len(rows) - most
    return [*written, "", f"{plural(cut, 'more row')} in plan.json."] if cut > 0 else written


def render_plan(plan: Plan) -> str:
    """Return the plan as Markdown: verdict, fleet, SLOs, alternatives, and the command that gives it again."""
    said = [f"### {escaped(verdict.verdict(plan))}", *_lead(plan)]
    blocks = [[line] for line in said if line]
    if has_fleet(plan):
        blocks += [_titled("Fleet", _fleet(plan.pools)), _titled("SLOs", _classes(plan.classes))]
    else:
        blocks += [_titled("Asked", _asked(plan))]
    if front_rows(plan):
        blocks.append(_titled("What a dollar more buys", _front(plan)))
    rows = distinct_alternatives(plan)
    if rows:
        blocks.append(_titled("Alternatives", _alternatives(rows, plan)))
    if plan.sensitivity is not None:
        blocks.append(_titled("Sensitivity", _sensitivity(plan, plan.sensitivity)))
    blocks.append(_reproduce(plan))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [f"**{title}**", "", *lines]


def _lead(plan: Plan) -> list[str]:
    if not has_fleet(plan):
        miss = nearest_miss(plan)
        said = [f"Asked: {sentences.demand_sentence(plan)}", "" if miss is None else sentences.miss_sentence(miss)]
        said += [sentences.relax_sentence(limit) for limit in violated(plan) or by_slack(plan)[:1]]
    else:
        told = (
            verdict.overload_sentence,
            simulation_sentence,
            verdict.risk_sentence,
            sentences.cost_sentence,
            sentences.proof_sentence,
            verdict.precision_sentence,
        )
        also = (sentences.growth_sentence, volume_sentence, waste_sentence, router_sentence, deploy_sentence)
        said = [*verdict.caveats(plan), *(say(plan) for say in (*told, *also))]
    return [escaped(line) for line in said if line]


def _fleet(pools: Sequence[Pool]) -> list[str]:
    headers = ("pool", "role", "engines × GPUs", "split", "dtype/KV", "#max seqs", "#chunk", "#price")
    rows = [
        (
            clean(pool.id, 20),
            pool.role,
            f"{count(pool.replicas)} × {gpus_per_engine(pool)} {clean(pool.accelerator, 24)}",
            split_words(pool),
            f"{clean(pool.weight_dtype, 8)}/{clean(pool.kv_dtype, 8)}",
            count(pool.max_num_seqs),
            count(pool.max_num_batched_tokens),
            hourly(pool.usd_per_hour),
        )
        for pool in pools
    ]
    return table(headers, rows)


def _classes(classes: Sequence[ClassResult]) -> list[str]:
    others = limited_metrics(classes)
    names = ["TTFT", "TPOT", *(METRICS[metric].label for metric in others)]
    headers = ("", "class", *(header for name in names for header in (f"#{name}", "#limit")), "#in time", "#goal")
    return table(headers, [_class(item, others) for item in classes])


def _class(item: ClassResult, others: Sequence[Metric]) -> tuple[str, ...]:
    label = goal_label(item.attainment_goal)
    return (
        "✓" if item.attainment >= item.attainment_goal else "✗",
        clean(item.name, 30),
        f"{label} {duration(getattr(item.ttft_s, label))}",
        duration(item.ttft_limit_s),
        f"{label} {duration(getattr(item.tpot_s, label))}" if has_tpot(item) else MISSING,
        duration(item.tpot_limit_s),
        *(cell for metric in others for cell in _metric(item.metrics.get(metric), label)),
        percent_beside(item.attainment, item.attainment_goal),
        percent(item.attainment_goal),
    )


def _metric(found: MetricResult | None, label: str) -> tuple[str, str]:
    """A metric at the quantile of the goal, and its limit."""
    if found is None:
        return MISSING, MISSING
    return f"{label} {duration(getattr(found.quantiles_s, label))}", duration(found.limit_s)


def _asked(plan: Plan) -> list[str]:
    return table(*asked_table(plan))


def _front(plan: Plan) -> list[str]:
    said, note = escaped(front_sentence(plan)), escaped(front_note(plan))
    return [f"{said}.", "", *table(front_headers(plan), front_rows(plan)), "", note]


def _alternatives(rows: Sequence[Alternative], plan: Plan) -> list[str]:
    headers = ("alternative", FLEET_WITH_LIMITS, "#price", "#extra", "#in time", "why not")
    return table(headers, [_alternative(row, plan) for row in rows])


def _alternative(row: Alternative, plan: Plan) -> tuple[str, ...]:
    recommended, feasible = row.kind == "recommended", is_feasible(row)
    return (
        alternative_name(row),
        " + ".join(limited_cell(pool) for pool in row.pools[:6]) or MISSING,
        hourly(row.cost_usd_per_hour),
        signed_percent(extra_cost(row, plan)) if feasible and not recommended else MISSING,
        percent(plan.attainment if recommended else row.attainment),
        "recommended" if recommended else sentences.alternative_sentence(row) or MISSING,
    )


def _sensitivity(plan: Plan, found: Sensitivity) -> list[str]:
    said = [escaped(text) for text in (base_sentence(plan, found), *told(plan, found))]
    return [*said, "", *table(LEVER_HEADERS, lever_rows(found))] if found.levers else said


def _reproduce(plan: Plan) -> list[str]:
    source = plan.provenance
    facts = (
        f"pdplan {clean(source.pdplan_version, 30)}, seed {source.seed}",
        f"inputs SHA-256 {clean(source.inputs_sha256, 64)}",
        f"demand {rate(plan.demand_rps)}",
        sentences.origin_sentence(plan),
    )
    command = clean(source.run.command, 300).replace("```", "")
    lines = ["```sh", command or "pdplan optimize workload.yaml", "```", ""]
    return _titled("Reproduce", [*lines, *(f"- {escaped(fact)}" for fact in facts)])
