"""Charts: figure data to marks. Only positions are decided here; numbers come from `reports.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .drawing import WIDTH, Drawing, Linear, Mark, Path, Rect, Text, text_width
from .figures import PARTS, Bar, ClassFigure, CostBars, HeadroomBars, HeatMap, QuantileBar, QuantileBars, SplitRow
from .numbers import duration, hourly, is_number, percent, power_of_two
from .text import fit
from .words import part_words

_LINE: Final = 20.0
_LIMIT_AT: Final = 0.75
"""Where the limit stands on a bar chart, as a share of its width: the rest shows by how much it is passed."""


def draw_class(figure: ClassFigure) -> Drawing:
    """Draw quantile bars of one class, each latency scaled to its own limit; the limit is a line."""
    marks: list[Mark] = []
    y = 0.0
    for group in figure.groups:
        marks.extend(_quantile_group(group, y))
        y += _group_height(group)
    summary = "; ".join(
        f"{group.metric} {bar.label} {duration(bar.seconds)} of {duration(group.limit)}"
        for group in figure.groups
        for bar in group.bars
    )
    return Drawing(WIDTH, y, f"{figure.name}: {summary}", tuple(marks))


def _group_height(group: QuantileBars) -> float:
    return 26 + _LINE * len(group.bars) + 12


def _quantile_group(group: QuantileBars, top: float) -> list[Mark]:
    left, right = 40.0, WIDTH - 74
    scale = Linear(0, group.limit / _LIMIT_AT, left, right)
    tone = "prefill" if group.metric == "TTFT" else "decode"
    y = top + 26
    marks: list[Mark] = [Text(0, top + 15, group.metric, "strong")]
    for bar in group.bars:
        marks.append(Rect(left, y, right - left, 14, "track"))
        marks.extend(_quantile_bar(bar, group, scale, y, tone))
        y += _LINE
    limit = scale(group.limit)
    marks.append(Path(((limit, top + 20), (limit, y - 2)), "limit"))
    marks.append(Text(limit, top + 15, f"limit {duration(group.limit)}", "limit", "middle"))
    return marks


def _quantile_bar(bar: QuantileBar, group: QuantileBars, scale: Linear, y: float, tone: str) -> list[Mark]:
    end = scale(bar.seconds) if is_number(bar.seconds) else scale.end
    tip = f"{group.metric} {bar.label}: {duration(bar.seconds)}, limit {duration(group.limit)}"
    limit = scale(group.limit)
    label = "strong" if bar.goal else "label"
    marks: list[Mark] = [Text(0, y + 11, bar.label, label)]
    marks.append(Rect(scale.start, y, min(end, limit) - scale.start, 14, tone, tip))
    if end > limit:
        marks.append(Rect(limit, y, end - limit, 14, "over", tip))
    if not is_number(bar.seconds) or bar.seconds > scale.high:
        marks.append(Path(((end - 7, y + 2), (end - 1, y + 7), (end - 7, y + 12)), "clipped"))
    marks.append(Text(WIDTH, y + 11, duration(bar.seconds), label, "end"))
    return marks


def draw_costs(figure: CostBars, base: float | None = None) -> Drawing:
    """Draw dollars per hour as horizontal bars; with `base`, each note says the difference to it."""
    highest = max([bar.value for bar in figure.bars if bar.value is not None], default=1.0)
    rows = []
    for bar in figure.bars:
        note = bar.note
        if bar.value is not None:
            share = f" · {percent(bar.value / figure.total)}" if figure.total else ""
            note = hourly(bar.value) + share
        rows.append((bar, note))
    mark_at = base if base is not None and base <= highest else None
    return _bars(rows, highest, mark_at, "dollars per hour")


def draw_headroom(figure: HeadroomBars) -> Drawing:
    """Draw how much of each limit is used; the line is the limit."""
    used = [bar.value for bar in figure.bars if bar.value is not None and is_number(bar.value)]
    rows = [(bar, percent(bar.value)) for bar in figure.bars]
    return _bars(rows, max([1.0 / 0.9, *used]), 1.0, "use of each limit")


def _bars(rows: Sequence[tuple[Bar, str]], highest: float, line_at: float | None, label: str) -> Drawing:
    scale = Linear(0, highest, 0, WIDTH)
    marks: list[Mark] = []
    y = 2.0
    for bar, note in rows:
        room = int((WIDTH - text_width(note) - 12) / text_width("n"))
        marks.append(Text(0, y + 11, fit(bar.label, max(8, room)), "strong" if bar.tone == "good" else "label"))
        marks.append(Text(WIDTH, y + 11, note, "label", "end"))
        marks.append(Rect(0, y + 17, WIDTH, 10, "track"))
        if bar.value is not None and is_number(bar.value):
            marks.extend(_bar(bar, y + 17, scale, line_at, f"{bar.label}: {note}"))
        if line_at is not None:
            at = scale(line_at)
            marks.append(Path(((at, y + 15), (at, y + 29)), "limit"))
        y += 36
    summary = "; ".join(f"{bar.label} {note}" for bar, note in rows)
    return Drawing(WIDTH, max(y - 4, 1.0), f"{label}: {summary}", tuple(marks))


def _bar(bar: Bar, y: float, scale: Linear, limit: float | None, tip: str) -> list[Mark]:
    """Draw one bar; of a bar that is over its limit only the part beyond it is coloured so."""
    end = max(1.5, scale(bar.value or 0.0))
    if bar.tone != "over" or limit is None:
        return [Rect(0, y, end, 10, bar.tone, tip)]
    at = scale(limit)
    return [Rect(0, y, at, 10, "other", tip), Rect(at, y, max(1.5, end - at), 10, "over", tip)]


def draw_split(rows: Sequence[SplitRow]) -> Drawing:
    """Draw the parts of each pool's step as one bar of full width."""
    marks: list[Mark] = []
    y = 2.0
    for row in rows:
        marks.append(Text(0, y + 11, f"{row.pool} · {row.role}", "label"))
        marks.append(Text(WIDTH, y + 11, f"{duration(row.step)} a step", "label", "end"))
        marks.extend(_split_bar(row, y + 17))
        y += 46
    summary = "; ".join(
        f"{row.pool}: " + ", ".join(f"{part_words(p)} {percent(v)}" for p, v in zip(PARTS, row.parts, strict=True))
        for row in rows
    )
    return Drawing(WIDTH, max(y - 4, 1.0), f"time of one step: {summary}", tuple(marks))


def _split_bar(row: SplitRow, y: float) -> list[Mark]:
    total = sum(part for part in row.parts if is_number(part)) or 1.0
    marks: list[Mark] = []
    x = 0.0
    for name, part in zip(PARTS, row.parts, strict=True):
        if not is_number(part) or part <= 0:
            continue
        width = part / total * WIDTH
        tip = f"{row.pool}: {part_words(name)} {percent(part)} of {duration(row.step)}"
        marks.append(Rect(x, y, width, 20, f"part-{name}", tip))
        if width > text_width(percent(part)) + 8:
            marks.append(Text(x + width / 2, y + 14, percent(part), f"on-{name}", "middle"))
        x += width
    return marks


def draw_heat(figure: HeatMap) -> Drawing:
    """Draw the share of requests in each cell, the darker the more; lengths are marked at the cells' edges."""
    peak = figure.peak[0] or 1.0

    def cell(share: float) -> tuple[str, str]:
        level = 0 if share <= 0 else min(8, 1 + int(7.999 * share / peak))
        return f"heat-{level}", _cell_text(share)

    return draw_cells(
        tuple(tuple(cell(share) for share in row) for row in figure.cells),
        (figure.column_labels, figure.row_labels),
        (figure.isl_edges, figure.osl_edges),
        f"share of requests by length, largest cell {percent(figure.peak[0])}",
        "cells in % of requests",
    )


def draw_cells(
    cells: Sequence[Sequence[tuple[str, str]]],
    labels: tuple[Sequence[str], Sequence[str]],
    edges: tuple[Sequence[float], Sequence[float]],
    summary: str,
    what: str,
) -> Drawing:
    """Draw a table of (tone, number) by input length (columns) and output length (rows, longest first).

    labels: of columns and rows; edges: of input and output lengths [token]; what: what the numbers are.
    """
    left, top, height = 44.0, 30.0, 26.0
    width = (WIDTH - left - 8) / len(labels[0])
    marks: list[Mark] = [Text(0, 12, "output tokens", "muted")]
    for r, row in enumerate(cells):
        for c, (tone, text) in enumerate(row):
            x, y = left + c * width, top + r * height
            tip = f"{labels[0][c]} in, {labels[1][r]} out: {f'{text} %' if text else 'none'}"
            marks.append(Rect(x, y, width - 1.5, height - 1.5, tone, tip))
            if text:
                marks.append(Text(x + width / 2, y + 17, text, f"on-{tone}", "middle"))
    bottom = top + height * len(cells)
    for r, edge in enumerate(reversed(edges[1])):
        marks.append(Text(left - 5, top + r * height + 3, power_of_two(edge), "tick", "end"))
    for c, edge in enumerate(edges[0]):
        last = c == len(labels[0])
        at = WIDTH if last else left + c * width
        marks.append(Text(at, bottom + 16, power_of_two(edge), "tick", "end" if last else "middle"))
    marks.append(Text(WIDTH, bottom + 34, f"input tokens · {what}", "muted", "end"))
    return Drawing(WIDTH, bottom + 40, summary, tuple(marks))


def _cell_text(share: float) -> str:
    """Write the share without its sign; the axis says that cells are per cent."""
    return "" if share <= 0 else percent(share).removesuffix(" %")
