"""What validate answers: how wrong the predictions of measured rows are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from costmodel.words import percentage
from reports.document import Document, Section, said, table_of
from reports.table import Column
from reports.text import clean, plural

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
QUANTITIES: Final = {"TTFT": "TTFT", "TPOT": "TPOT", "MAPE": "step times"}
LABELS: Final = 4
"""Columns that say what the figures of a row are of."""
FIGURES: Final = 4
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


def validation_document(parts: Mapping[str, dict[str, Any]]) -> Document:
    """The answer: of each file its errors by quantity, and which rows were refused and why."""
    return Document(
        headline=tuple(
            f"{name}: {value['predicted']:,} of {plural(value['rows'], 'row')} predicted."
            for name, value in parts.items()
        ),
        sections=tuple(section for name, value in parts.items() for section in _file(name, value)),
    )


def _file(name: str, value: dict[str, Any]) -> Iterator[Section]:
    """A table of each quantity, then what was refused and assumed."""
    figures = SERVING_COLUMNS if value["format"] == "serving" else STEP_COLUMNS
    _, rows = cells(value)
    for start in range(0, len(figures), FIGURES) if value["predicted"] else ():
        quantity, *others = (header for header, _, _ in figures[start : start + FIGURES])
        middle = quantity if quantity == "MAPE" else "median"
        columns = (Column("", shrink=True, lines=4), *(Column(header, "right") for header in ("rows", middle, *others)))
        yield Section(f"{name}: errors of {QUANTITIES[quantity]}", table=table_of(columns, _of(rows, start)))
    tau = value.get("throughput_kendall_tau")
    yield Section(
        sentences=said(
            *(f"{plural(n, 'row')} not predicted: {reason}" for reason, n in value["refused_reasons"].items()),
            *(f"{plural(n, 'row')}: {note}" for note, n in value["notes"].items()),
            "" if tau is None else f"Kendall's tau of throughput per GPU: {tau:.2f}",
        )
    )


def _of(rows: Sequence[Sequence[str]], start: int) -> list[tuple[str, ...]]:
    """Of each row what it is of, in one cell, how many rows were measured, and the figures of one quantity."""
    names = _short_names({row[0] for row in rows})
    first = LABELS + 1 + start
    return [
        (
            ", ".join(clean(word) for word in (names[row[0]], *row[1:LABELS]) if word),
            row[LABELS],
            *row[first : first + FIGURES],
        )
        for row in rows
    ]


def _short_names(models: Collection[str]) -> dict[str, str]:
    """Models without their organization, save those that two organizations name alike."""
    shared = Counter(model.rpartition("/")[2] for model in models)
    return {model: name if shared[name := model.rpartition("/")[2]] == 1 else model for model in models}
