"""The errors of a file as a table: for the terminal and, the same, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from costmodel.words import percentage

from .table import GUTTER, Column, render_table
from .text import clean, display_width, plural, wrap

Figure = tuple[str, str, Callable[[float], str]]
"""A column: header, key of its figure, how that is written."""
SERVING_COLUMNS: Final[tuple[Figure, ...]] = (
    ("TTFT", "ttft_median_abs_pct", "{:.1f} %".format),
    ("p90", "ttft_p90_abs_pct", "{:.0f} %".format),
    ("bias", "ttft_bias_pct", "{:+.1f} %".format),
    ("in 90 %", "ttft_interval90_coverage", percentage),
    ("TPOT", "tpot_median_abs_pct", "{:.1f} %".format),
    ("p90", "tpot_p90_abs_pct", "{:.0f} %".format),
    ("bias", "tpot_bias_pct", "{:+.1f} %".format),
    ("in 90 %", "tpot_interval90_coverage", percentage),
)
STEP_COLUMNS: Final[tuple[Figure, ...]] = (
    ("MAPE", "latency_mape_pct", "{:.1f} %".format),
    ("p90", "latency_p90_abs_pct", "{:.0f} %".format),
    ("bias", "latency_bias_pct", "{:+.1f} %".format),
    ("in 90 %", "latency_interval90_coverage", percentage),
)
KEYS = {"serving": ("model", "accelerator", "engine", "mode"), "steps": ("model", "accelerator", "phase", "dtype")}
LABELS = 4
"""Columns that say what the figures of a row are of."""
READABLE_LABEL = 24
"""Columns of a label that is not broken into more than two or three lines."""
FIGURES = 4
"""Columns of one quantity: middle, p90, bias, share in the interval."""


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


def _figures(group: dict[str, Any], figures: Sequence[Figure]) -> list[str]:
    count = str(group.get("predicted", group["rows"]))
    return [count, *("–" if group[key] is None else written(group[key]) for _, key, written in figures)]


def validation_text(name: str, value: dict[str, Any], width: int | None = None) -> str:
    """The tables with what was refused and assumed, for a terminal of `width` columns (None: as wide as they are)."""
    parts = [f"{name}: {value['predicted']:,} of {plural(value['rows'], 'row')} predicted"]
    if value["predicted"]:
        header, rows = cells(value)
        parts.append(_tables(header, _named_shortly(rows), width))
    lines = [
        f"  {plural(count, 'row')} not predicted: {reason}" for reason, count in value["refused_reasons"].items()
    ] + [f"  {plural(count, 'row')}: {note}" for note, count in value["notes"].items()]
    if value.get("throughput_kendall_tau") is not None:
        lines.append(f"  Kendall's tau of throughput per GPU: {value['throughput_kendall_tau']:.2f}")
    if width is not None:
        lines = [f"  {part}" for line in lines for part in wrap(line.strip(), width - 2)]
    return "\n\n".join([*parts, "\n".join(lines)] if lines else parts)


def _named_shortly(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows with models named without their organisation, save those that two organisations name alike."""
    models = {row[0] for row in rows}
    shared = Counter(model.rpartition("/")[2] for model in models)
    short = {model: name for model in models if shared[name := model.rpartition("/")[2]] == 1}
    return [[clean(word) for word in (short.get(row[0], row[0]), *row[1:])] for row in rows]


def _tables(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """All figures at any width: beside what they are of, else beside a label on several lines, else in two tables."""
    natural = _width([header, *rows])
    if width is None or natural <= width:
        return render_table(rows, [_column(title, index < LABELS) for index, title in enumerate(header)], natural)
    header = ["of", *header[LABELS:]]
    rows = [[", ".join(word for word in row[:LABELS] if word), *row[LABELS:]] for row in rows]
    label = max(READABLE_LABEL, *(display_width(word) for row in rows for word in row[0].split()))
    fits = label + _width([header[1:], *(row[1:] for row in rows)]) + GUTTER <= width
    counted = 2  # the label and the number of rows stand before the figures
    step = len(header) - counted if fits else FIGURES

    def part(row: Sequence[str], start: int) -> list[str]:
        return [*row[:counted], *row[start : start + step]]

    return "\n\n".join(
        render_table(
            [part(row, start) for row in rows],
            [_column(title, index == 0) for index, title in enumerate(part(header, start))],
            width,
        )
        for start in range(counted, len(header), step)
    )


def _column(title: str, is_label: bool) -> Column:
    return Column(title, "left" if is_label else "right", shrink=is_label, lines=LABELS if is_label else 1)


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Columns of a table in which nothing is cut."""
    return sum(max(map(display_width, column)) for column in zip(*rows, strict=True)) + GUTTER * (len(rows[0]) - 1)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table, the first `left` columns set left."""
    rule = ["---" if index < left else "---:" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
