"""The errors of a file as a table: for the terminal and, the same, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .table import Column, render_table
from .text import plural

SERVING_COLUMNS = (
    ("TTFT", "ttft_median_abs_pct", "{:.1f} %"),
    ("p90", "ttft_p90_abs_pct", "{:.0f} %"),
    ("bias", "ttft_bias_pct", "{:+.1f} %"),
    ("in 90 %", "ttft_interval90_coverage", "{:.0%}"),
    ("TPOT", "tpot_median_abs_pct", "{:.1f} %"),
    ("p90", "tpot_p90_abs_pct", "{:.0f} %"),
    ("bias", "tpot_bias_pct", "{:+.1f} %"),
    ("in 90 %", "tpot_interval90_coverage", "{:.0%}"),
)
STEP_COLUMNS = (
    ("MAPE", "latency_mape_pct", "{:.1f} %"),
    ("p90", "latency_p90_abs_pct", "{:.0f} %"),
    ("bias", "latency_bias_pct", "{:+.1f} %"),
    ("in 90 %", "latency_interval90_coverage", "{:.0%}"),
)
KEYS = {"serving": ("model", "accelerator", "engine", "mode"), "steps": ("model", "accelerator", "phase", "dtype")}


def cells(value: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: every group, then all; a figure without measurements is a dash."""
    figures = SERVING_COLUMNS if value["format"] == "serving" else STEP_COLUMNS
    keys = KEYS[value["format"]]
    totals: list[tuple[str, dict[str, Any]]] = [
        (mode, value[mode]) for mode in ("colocated", "disaggregated") if mode in value
    ]
    rows = [[str(group[key]) for key in keys] + _figures(group, figures) for group in value["groups"]]
    rows += [["all", "", "", mode, *_figures(total, figures)] for mode, total in totals]
    rows.append(["all", "", "", "", *_figures(value, figures)])
    return [*keys, "rows", *(name for name, _, _ in figures)], rows


def _figures(group: dict[str, Any], figures: Sequence[tuple[str, str, str]]) -> list[str]:
    count = str(group.get("predicted", group["rows"]))
    return [count, *("–" if group[key] is None else form.format(group[key]) for _, key, form in figures)]


def validation_text(name: str, value: dict[str, Any], width: int) -> str:
    """The table with what was refused and assumed, for a terminal of `width` columns."""
    header, rows = cells(value)
    columns = [
        Column(title, "left" if index < 4 else "right", shrink=index == 0, optional=title in ("p90", "in 90 %"))
        for index, title in enumerate(header)
    ]
    parts = [f"{name}: {value['predicted']} of {plural(value['rows'], 'row')} predicted"]
    parts.append(render_table(rows, columns, width))
    lines = [
        f"  {plural(count, 'row')} not predicted: {reason}" for reason, count in value["refused_reasons"].items()
    ] + [f"  {plural(count, 'row')}: {note}" for note, count in value["notes"].items()]
    if value.get("throughput_kendall_tau") is not None:
        lines.append(f"  Kendall's tau of throughput per GPU: {value['throughput_kendall_tau']:.2f}")
    return "\n\n".join([*parts, "\n".join(lines)] if lines else parts)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table, the first `left` columns set left."""
    rule = ["---" if index < left else "---:" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
