"""Which chunk? Latencies, goodput and cost of one fleet against max_num_batched_tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from optimizer.plans.records import pool_records
from optimizer.whatif.chunks import ChunkCurve
from reports.charts import HEIGHT, PLOT
from reports.document import Chart, Document, Section, said, table_of
from reports.drawing import WIDTH, Drawing, Path, axes, plot, round_steps
from reports.figures import goal_label
from reports.numbers import MISSING, count, duration, hourly, monthly, percent, rate, signed_percent, significant
from reports.sensitivity import fleet_line
from reports.text import clean
from reports.words import misses_used

MARKS: Final = {"meets": "✓", "misses": "✗", "undecided": "?"}


def chunk_record(curve: ChunkCurve) -> dict[str, Any]:
    """The curve as a record."""
    return {
        "role": curve.role.value,
        "own_chunk": curve.own,
        "cost_usd_per_hour": curve.answer.cost,
        "pools": pool_records(curve.answer.pools),
        "rows": [
            {
                "chunk_tokens": row.chunk,
                "outcome": row.outcome,
                "simulated": row.simulated,
                "classes": [item.model_dump(mode="json") for item in row.classes],
                "goodput_rps": row.goodput,
                "replicas_needed": row.replicas,
                "cost_needed_usd_per_hour": row.cost,
            }
            for row in curve.rows
        ],
        "without_memory": list(curve.without_memory),
    }


def chunk_rows(curve: ChunkCurve) -> list[dict[str, Any]]:
    """A flat row for each chunk."""
    return [
        {
            "chunk_tokens": row.chunk,
            "outcome": row.outcome,
            "simulated": row.simulated,
            **{
                f"{item.name}.{metric}_{label}_s": getattr(values, label)
                for item in row.classes
                for metric, values in (("ttft", item.ttft_s), ("tpot", item.tpot_s))
                for label in ("p50", "p90", "p95", "p99")
            },
            **{f"{item.name}.attainment": item.attainment for item in row.classes},
            "goodput_rps": row.goodput,
            "replicas_needed": row.replicas,
            "cost_needed_usd_per_hour": row.cost,
        }
        for row in curve.rows
    ]


def tightest_class(curve: ChunkCurve) -> int:
    """The class with the least room at the fleet's own chunk."""
    own = next(row for row in curve.rows if row.chunk == curve.own)
    used = [
        misses_used(item.attainment, slo.attainment) for item, slo in zip(own.classes, curve.problem.slos, strict=True)
    ]
    return used.index(max(used))


def chunk_document(curve: ChunkCurve) -> Document:
    """What each chunk makes of the fleet: TTFT, TPOT, goodput, and what meeting the SLO costs."""
    k = tightest_class(curve)
    slo = curve.problem.slos[k]
    label = goal_label(slo.attainment)
    columns = [
        "#chunk",
        f"#TTFT {label}",
        f"#TPOT {label}",
        "#SLO met",
        "#carries",
        "#replicas",
        "#cost",
    ]
    cells = [
        (
            f"{'own ' if row.chunk == curve.own else ''}{count(row.chunk)}",
            duration(getattr(row.classes[k].ttft_s, label)),
            duration(getattr(row.classes[k].tpot_s, label)),
            f"{MARKS[row.outcome]} {percent(row.classes[k].attainment)}",
            rate(row.goodput),
            MISSING if row.replicas is None else str(row.replicas),
            hourly(row.cost),
        )
        for row in curve.rows
    ]
    return Document(
        headline=(_headline(curve), _range_sentence(curve)),
        sections=(
            Section(charts=_charts(curve, k, label)),
            Section(table=table_of(columns, cells)),
            Section(sentences=_notes(curve, k, label)),
        ),
    )


def _headline(curve: ChunkCurve) -> str:
    cost = curve.answer.cost
    fleet = f"{fleet_line(curve.answer.pools)} for {hourly(cost)} ({monthly(cost)}/month)"
    return f"The cheapest fleet takes prompts in chunks of {count(curve.own)} tokens: {fleet}."


def _range_sentence(curve: ChunkCurve) -> str:
    """From what to what the goodput of the same fleet goes, and with which chunks."""
    worst, best = (pick(curve.rows, key=lambda row: row.goodput) for pick in (min, max))
    if worst.goodput >= best.goodput:
        return f"With any of these chunks it carries {rate(best.goodput)}."
    return (
        f"It carries most with {count(best.chunk)} tokens ({rate(best.goodput)}) and least with {count(worst.chunk)} "
        f"({rate(worst.goodput)}, {signed_percent(worst.goodput / best.goodput - 1.0)})."
    )


def _notes(curve: ChunkCurve, k: int, label: str) -> tuple[str, ...]:
    slo = curve.problem.slos[k]
    name = f" of class {clean(slo.name, 20)}, which has the least room" if len(curve.problem.slos) > 1 else ""
    simulated = curve.rows[0].simulated
    how = "of fresh simulated requests, the same for each chunk" if simulated else "by formula"
    limits = ", ".join(
        f"{metric} {duration(limit)}"
        for metric, limit in (("TTFT", slo.ttft), ("TPOT", slo.tpot))
        if math.isfinite(limit)
    )
    none = ", ".join(map(count, curve.without_memory))
    role, demand = f"{curve.role.value} replicas", rate(curve.problem.workload.request_rate)
    return said(
        f"own: the chunk of the fleet (max_num_batched_tokens of the {role}); all else stays the same.",
        f"TTFT, TPOT and SLO met{name}: {how}, at {label}. Limits: {limits or 'none'} for {percent(slo.attainment)} of "
        "requests.",
        "SLO met: ✓ meets, ✗ misses, ? undecided (the goal lies within the 95 % interval)." if simulated else "",
        "Carries: the highest rate within the SLO, by formula.",
        f"Replicas, cost: as many {role} as meet the SLO at {demand} by formula, and the fleet with them.",
        f"No memory for a request beside a chunk of {none} tokens." if none else "",
    )


def _charts(curve: ChunkCurve, k: int, label: str) -> tuple[Chart, ...]:
    """Latencies over their limits, and the highest rate, against the chunk."""
    slo, sizes = curve.problem.slos[k], [row.chunk for row in curve.rows]
    limits = [(name, limit) for name, limit in (("ttft", slo.ttft), ("tpot", slo.tpot)) if math.isfinite(limit)]
    used = {
        name: [getattr(getattr(row.classes[k], f"{name}_s"), label) / limit for row in curve.rows]
        for name, limit in limits
    }
    demand = curve.problem.workload.request_rate
    table = table_of(
        ["#chunk", *(f"#{name.upper()} over its limit" for name in used), "#highest rate"],
        [
            (count(row.chunk), *(percent(shares[at]) for shares in used.values()), rate(row.goodput))
            for at, row in enumerate(curve.rows)
        ],
    )
    latency = _lines(sizes, used, 1.0, f"{label} over its limit", {"ttft": "curve prefill", "tpot": "curve decode"})
    goodput = _lines(sizes, {"rate": [row.goodput for row in curve.rows]}, demand, "highest rate [req/s]", {})
    legend = (("prefill", "TTFT"), ("decode", "TPOT"))
    return (
        Chart(_latency_sentence(used, label), "The dashed line is the limit.", latency, table, legend),
        Chart(_range_sentence(curve), "The dashed line is the demand.", goodput, table),
    )


def _latency_sentence(used: Mapping[str, Sequence[float]], label: str) -> str:
    """From which to which share of its limit each latency goes."""
    spans = [f"{name.upper()} is {percent(min(row))} to {percent(max(row))} of its limit" for name, row in used.items()]
    return f"At {label}, {' and '.join(spans)}" if spans else "No latency is limited"


def _lines(
    sizes: Sequence[int], values: Mapping[str, Sequence[float]], limit: float, name: str, tones: Mapping[str, str]
) -> Drawing:
    """Lines over chunks, evenly apart, with a dashed line at a limit."""
    high = 1.1 * max([limit, *(value for row in values.values() for value in row)])
    drawn = plot(PLOT, (0.0, max(len(sizes) - 1.0, 1.0)), (0.0, high))
    ticks = [(float(at), count(size)) for at, size in enumerate(sizes)]
    marks = axes(drawn, ticks, [(v, significant(v)) for v in round_steps(high)], "chunk [tokens]", name)
    for key, row in values.items():
        points = tuple(drawn.at((float(at), value)) for at, value in enumerate(row))
        tip = f"{key}: " + ", ".join(f"{count(size)} {significant(v)}" for size, v in zip(sizes, row, strict=True))
        marks.append(Path(points if len(points) > 1 else points * 2, tones.get(key, "curve decode"), tip))
    marks.append(Path((drawn.at((0.0, limit)), drawn.at((len(sizes) - 1.0, limit))), "limit"))
    return Drawing(WIDTH, HEIGHT, f"{name} against the chunk", tuple(marks))
