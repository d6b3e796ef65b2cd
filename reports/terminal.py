"""A plan on one terminal screen: one sentence with the price, then the tables it rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import click

from optimizer.plans.plan import Alternative, ClassResult, Plan, Pool
from optimizer.plans.records import EnginePool, Quantiles

from . import sentences, verdict
from .asked import asked
from .deployable import deploy_sentence
from .front import front_headers, front_note, front_rows, front_sentence
from .next_step import next_command
from .numbers import MISSING, count, duration, hourly, is_number, money, percent, rate, signed_percent, significant
from .proof_words import outcome_words
from .sensitivity import told
from .sentences import binding_sentence, relax_sentence
from .simulation_sentences import router_sentence, simulation_sentence, waste_sentence
from .table import Column, Style, kept_headers, render_table, table_blocks
from .text import clean, fit, plural, wrap
from .volume_words import volume_sentence
from .words import (
    FLEET_WITH_LIMITS,
    alternative_name,
    busiest_words,
    by_slack,
    constraint_words,
    distinct_alternatives,
    engine_cell,
    extra_cost,
    gpu_words,
    gpus_per_engine,
    has_fleet,
    has_tpot,
    is_feasible,
    limited_cell,
    nearest_miss,
    other_metrics,
    serving_words,
    split_words,
    tightest_first,
    violated,
)

MOST_POOLS: Final = 6
MOST_CLASSES: Final = 4
MOST_ALTERNATIVES: Final = 6
LEAST_ALTERNATIVES: Final = 2
MOST_LIMITS: Final = 3
MOST_FRONT: Final = 8
MOST_FLEET: Final = 4
"""Lines of a fleet in a table."""
MOST_BECAUSE: Final = 12
"""Lines of a reason: a narrow terminal makes it tall, and cuts none."""
SCREEN_LINES: Final = 45
"""Lines that the whole text may take; the alternatives, two lines each, get what the rest leaves."""
LEAST_WIDTH: Final = 56

SETTINGS: Final = ("dtype/KV", "chunk")
"""Columns of the fleet that are told below it where they have no room: engines have to be given them."""
BUSIEST: Final = "busiest"
"""The column that goes first where they have no room: told below too."""

Paint = Callable[..., str]


def render_plan(plan: Plan, width: int = 100, color: bool = False, *, next_step: str | None = None) -> str:
    """Return the plan as text that fits a screen of `width` columns and 45 lines.

    Args:
        plan: the plan; nothing else is read.
        width: most columns of a line; less than 56 is taken as 56.
        color: add terminal colours.
        next_step: the command named on the last line; made from the plan's own command when None.
    """
    width = max(LEAST_WIDTH, width)
    paint = partial(click.style) if color else _plain
    blocks = [_title(plan, width, paint)]
    if has_fleet(plan):
        blocks += [fleet_lines(plan, width), _classes(plan, width, paint), _cost(plan, width), _limits(plan, width)]
    else:
        blocks += [_missed(plan, width)]
    tail = [_notes(plan, width, paint), [paint(f"Next: {next_step or next_command(plan)}", fg="cyan")]]
    blocks.append(_front(plan, width))
    used = sum(len(block) + 1 for block in blocks + tail)
    blocks += [_alternatives(plan, width, SCREEN_LINES - used, paint), *tail]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _plain(text: str, **_style: object) -> str:
    return text


def _title(plan: Plan, width: int, paint: Paint) -> list[str]:
    found = has_fleet(plan)
    lines = wrap(" ".join([verdict.headline(plan), *verdict.caveats(plan)]), width)
    about = (
        f"{clean(plan.name, 30)}: {clean(plan.model, 40)} on {serving_words(plan)}, {rate(plan.demand_rps)}, "
        f"{outcome_words(plan)}{'' if plan.simulated else ', not simulated'}"
    )
    simulated = wrap(simulation_sentence(plan), width) if plan.simulation else []
    bold = (paint(line, bold=True, fg=None if found else "red") for line in [*lines, *simulated])
    return [*bold, *wrap(about, width)]


def _heading(name: str, shown: int, total: int) -> str:
    return name if shown >= total else f"{name} ({shown} of {total}, all in plan.json)"


def fleet_lines(plan: Plan, width: int) -> list[str]:
    """The pools of a plan with their settings, as lines of a terminal."""
    pools = plan.pools
    if len(pools) > MOST_POOLS:
        pools = sorted(pools, key=lambda pool: (-pool.usd_per_hour, pool.id))[: MOST_POOLS - 1]
    columns = [
        Column("pool"),
        Column("role"),
        Column("engines × GPUs"),
        Column("split"),
        Column("dtype/KV", optional=True),
        Column("max seqs", "right"),
        Column("chunk", "right", optional=True),
        Column("$/h", "right"),
        Column(BUSIEST, shrink=True, lines=2, optional=True),
    ]
    rows = [_pool_row(pool) for pool in pools]
    table = render_table(rows, columns, width, indent=2)
    heading = _heading("Fleet", len(pools), len(plan.pools))
    spares = sum(pool.spare_replicas for pool in plan.pools)
    spare = f"; {plural(spares, 'engine')} {'is' if spares == 1 else 'are'} spare" if spares else ""
    lines = [fit(f"{heading}: {gpu_words(plan)}{spare}", width), *table.split("\n")]
    lines += _left_out(rows, columns, width)
    rest = sum(pool.usd_per_hour for pool in plan.pools) - sum(pool.usd_per_hour for pool in pools)
    if len(pools) < len(plan.pools):
        lines.append(f"  … and {plural(len(plan.pools) - len(pools), 'more pool')} for {hourly(rest)}")
    return lines


def _left_out(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[str]:
    """Columns that have no room, in sentences: once for pools that agree."""
    shown = kept_headers(rows, columns, width - 2)
    absent = {column.header: at for at, column in enumerate(columns) if column.header not in shown}
    told = [f"{header} {_by_pool(rows, at)}" for header, at in absent.items() if header in SETTINGS]
    lines = _indented(f"Also set: {'; '.join(told)}.", width) if told else []
    return lines + (_indented(f"Busiest: {_by_pool(rows, absent[BUSIEST])}.", width) if BUSIEST in absent else [])


def _by_pool(rows: Sequence[Sequence[str]], at: int) -> str:
    """Say what a column holds, with the pools that hold it where they differ."""
    pools: dict[str, list[str]] = {}
    for row in rows:
        pools.setdefault(row[at], []).append(row[0])
    return ", ".join(value + (f" ({', '.join(names)})" if len(pools) > 1 else "") for value, names in pools.items())


def _pool_row(pool: Pool) -> list[str]:
    engines = f"{pool.replicas - pool.spare_replicas}+{pool.spare_replicas}" if pool.spare_replicas else pool.replicas
    return [
        clean(pool.id, 20),
        pool.role,
        f"{engines} × {gpus_per_engine(pool)} {clean(pool.accelerator, 24)}",
        split_words(pool),
        f"{clean(pool.weight_dtype, 8)}/{clean(pool.kv_dtype, 8)}",
        count(pool.max_num_seqs),
        count(pool.max_num_batched_tokens),
        money(pool.usd_per_hour),
        busiest_words(pool.operating_point, short=True),
    ]


def _classes(plan: Plan, width: int, paint: Paint) -> list[str]:
    classes = plan.classes
    if len(classes) > MOST_CLASSES:
        classes = tightest_first(plan)[:MOST_CLASSES]
    columns = [
        Column("class", shrink=True),
        Column("share", "right", optional=True),
        Column("TTFT p50/p90/p99", "right"),
        Column("limit", "right", beside=True),
        Column("TPOT p50/p90/p99", "right"),
        Column("limit", "right", beside=True),
        Column("in SLO", "right"),
        Column("goal", "right"),
        Column(""),
    ]
    rows = [_class_row(item) for item in classes]
    table = render_table(rows, columns, width, indent=2, style=_class_style(classes, len(columns) - 1, paint))
    lines = [_heading("SLOs", len(classes), len(plan.classes)), *table.split("\n"), *_e2e_limits(classes, width)]
    lines += [line for text in _other_metrics(classes) for line in _indented(text, width)]
    return [*lines, *_error_bars(classes, width), *_risk(plan, width)]


def _e2e_limits(classes: Sequence[ClassResult], width: int) -> list[str]:
    """The limits on whole requests, in a sentence: a column of them would not fit beside the others."""
    said = [f"{clean(c.name, 30)} {duration(c.e2e_limit_s)}" for c in classes if c.e2e_limit_s is not None]
    return _indented(f"Limit from arrival to the last token: {', '.join(said)}.", width) if said else []


def _other_metrics(classes: Sequence[ClassResult]) -> list[str]:
    """The further metrics that a class limits, a sentence each: columns would not fit beside the others."""
    return [
        f"{label} of {clean(item.name, 30)} (p50/p90/p99): {_quantiles(values)}, limit {duration(limit)}."
        for item in classes
        for label, values, limit in other_metrics(item)
    ]


def _error_bars(classes: Sequence[ClassResult], width: int) -> list[str]:
    """Where the latencies lie nine times in ten, a line for each class."""
    said = [line for line in map(sentences.error_bar_sentence, classes) if line]
    lines = [line for text in said for line in _indented(text, width, 4)]
    return ["  Nine times in ten, by the errors of past predictions:", *lines] if lines else []


def _risk(plan: Plan, width: int) -> list[str]:
    """Whether slow GPUs miss an SLO and what helps; or that the figures are for such GPUs."""
    if plan.confidence > 0.0:
        return _indented(sentences.confidence_sentence(plan), width)
    said = plan.safe is not None or verdict.is_at_risk(plan)
    return _indented(f"Risk: {verdict.risk_sentence(plan)}", width) if said and has_fleet(plan) else []


def _class_row(item: ClassResult) -> list[str]:
    held = item.attainment >= item.attainment_goal
    return [
        clean(item.name, 30),
        percent(item.share),
        _quantiles(item.ttft_s),
        duration(item.ttft_limit_s),
        _quantiles(item.tpot_s) if has_tpot(item) else MISSING,
        duration(item.tpot_limit_s),
        percent(item.attainment),
        percent(item.attainment_goal),
        "✓" if held else "missed",
    ]


def _quantiles(values: Quantiles) -> str:
    """Write p50/p90/p99 in one unit, that of the largest.

    >>> _quantiles(Quantiles(p50=0.1824, p90=0.341, p95=0.4, p99=0.585))
    '182/341/585 ms'
    """
    three = (values.p50, values.p90, values.p99)
    finite = [value for value in three if is_number(value)]
    in_seconds = max(finite, default=0.0) >= 1
    scale, unit = (1.0, "s") if in_seconds else (1e3, "ms")
    return "/".join(significant(value * scale) for value in three) + f" {unit}"


def _class_style(classes: Sequence[ClassResult], last: int, paint: Paint) -> Style:
    def style(row: int, column: int, cell: str) -> str:
        if column != last:
            return cell
        held = classes[row].attainment >= classes[row].attainment_goal
        return paint(cell, fg="green" if held else "red")

    return style


def _cost(plan: Plan, width: int) -> list[str]:
    lines = wrap(sentences.cost_sentence(plan), width)
    moved = [] if plan.sensitivity is None else told(plan, plan.sensitivity)
    said = (
        verdict.overload_sentence(plan),
        sentences.proof_sentence(plan),
        verdict.precision_sentence(plan),
        sentences.growth_sentence(plan),
        volume_sentence(plan),
        waste_sentence(plan),
        router_sentence(plan),
        *moved,
        deploy_sentence(plan),
    )
    return [*lines, *(line for text in said if text for line in wrap(text, width))]


def _limits(plan: Plan, width: int) -> list[str]:
    if not plan.binding:
        return []
    rows = [
        [constraint_words(item.constraint), clean(item.where, 20), percent(item.slack), binding_sentence(item)]
        for item in by_slack(plan)[:MOST_LIMITS]
    ]
    columns = [
        Column("what binds", shrink=True, lines=2),
        Column("where"),
        Column("slack", "right"),
        Column("because", shrink=True, lines=MOST_BECAUSE),
    ]
    return render_table(rows, columns, width).split("\n")


def _missed(plan: Plan, width: int) -> list[str]:
    lines = wrap(f"Asked: {sentences.demand_sentence(plan)}", width)
    for item in asked(plan)[:MOST_CLASSES]:
        lines += _indented(f"{sentences.slo_words(item)}.", width)
    miss = nearest_miss(plan)
    if miss is not None:
        lines += ["", *wrap(sentences.miss_sentence(miss), width)]
    in_the_way = violated(plan) or by_slack(plan)[:1]
    if in_the_way:
        lines += ["", "In the way:"]
    for limit in in_the_way[:MOST_LIMITS]:
        lines += _indented(f"{binding_sentence(limit)} {relax_sentence(limit)}", width)
    return lines


def _indented(text: str, width: int, indent: int = 2) -> list[str]:
    return [" " * indent + line for line in wrap(text, width - indent)]


def _alternatives(plan: Plan, width: int, room: int, paint: Paint) -> list[str]:
    told = ("recommended",) if has_fleet(plan) else ("recommended", "nearest_miss")
    rows = [row for row in distinct_alternatives(plan) if row.kind not in told]
    same = sentences.also_best_of(plan)
    if not rows:
        return wrap(f"The recommended fleet is {same}.", width) if same else []
    shown = rows[: min(max((room - 4) // 2, LEAST_ALTERNATIVES), MOST_ALTERNATIVES)]
    heading = _heading("Alternatives", len(shown), len(rows)) + (f"; the recommended is {same}" if same else "")
    head, *cells = _alternative_blocks(shown, plan, width)
    lines = [*wrap(heading, width), *head.split("\n")]
    for row, cell in zip(shown, cells, strict=True):
        lines += cell.split("\n") if is_feasible(row) else [paint(line, dim=True) for line in cell.split("\n")]
        lines += [paint(line, dim=True) for line in _indented(sentences.alternative_sentence(row), width, 4)]
    return lines


def _front(plan: Plan, width: int) -> list[str]:
    """What a dollar more buys, where it was asked for."""
    rows, headers = front_rows(plan), front_headers(plan)
    if not rows:
        return []
    heading = _heading(f"What a dollar more buys: {front_sentence(plan)}", min(len(rows), MOST_FRONT), len(rows))
    columns = [
        Column(headers[0], shrink=True, lines=6),
        *(Column(name.removeprefix("#"), "right" if name.startswith("#") else "left") for name in headers[1:]),
    ]
    table = render_table(rows[:MOST_FRONT], columns, width, indent=2)
    return [*wrap(heading, width), *table.split("\n"), *_indented(front_note(plan), width)]


def _alternative_blocks(rows: Sequence[Alternative], plan: Plan, width: int) -> tuple[str, ...]:
    """The head and the rows of the comparison, with batch limits where these take no more lines."""

    def blocks(fleet: str, cell: Callable[[EnginePool], str]) -> tuple[str, ...]:
        columns = [
            Column("kind", shrink=True, lines=2),
            Column("$/h", "right"),
            Column("extra", "right"),
            Column(fleet, shrink=True, lines=MOST_FLEET),
        ]
        return table_blocks([_alternative_row(row, plan, cell) for row in rows], columns, width, indent=2)

    plain, limited = blocks("fleet, engines × GPUs", engine_cell), blocks(FLEET_WITH_LIMITS, limited_cell)
    return limited if "".join(limited).count("\n") <= "".join(plain).count("\n") else plain


def _alternative_row(row: Alternative, plan: Plan, cell: Callable[[EnginePool], str]) -> list[str]:
    return [
        alternative_name(row),
        money(row.cost_usd_per_hour),
        signed_percent(extra_cost(row, plan)) if is_feasible(row) else MISSING,
        ", ".join(cell(pool) for pool in row.pools[:6]) or MISSING,
    ]


def _notes(plan: Plan, width: int, paint: Paint) -> list[str]:
    notes = [sentences.origin_sentence(plan)]
    if plan.provenance.assumptions:
        number = plural(len(plan.provenance.assumptions), "assumption")
        notes.append(f"{number} in force, listed in plan.json and the report; seed {plan.provenance.seed}.")
    return [paint(line, dim=True) for note in notes for line in wrap(note, width)]
