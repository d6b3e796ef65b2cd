"""Two plans side by side, for the terminal and for Markdown: one signed price, then where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import click

from .comparison import Change, Comparison, Figure, PoolChange, SloChange
from .numbers import MISSING, hourly, is_number, money, quantity, signed_percent
from .table import Column, render_table
from .text import plural, wrap
from .views.markdown import escaped, table

LEAST_WIDTH: Final = 56
MOST_ROWS: Final = 20
SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}

Paint = Callable[..., str]


def headline(found: Comparison) -> str:
    """Say the difference of the prices, signed, and both prices."""
    if found.same:
        return "The plans do not differ."
    before, after = found.price.before, found.price.after
    if not all(found.found) or not is_number(before) or not is_number(after):
        if not any(found.found):
            return "Neither plan has a fleet."
        words = [hourly(price) if has else "no fleet" for price, has in zip((before, after), found.found, strict=True)]
        return f"From {words[0]} to {words[1]}."
    if before == after:
        return f"±$0/h: both cost {hourly(after)}."
    share = f" ({signed_percent(after / before - 1)})" if before else ""
    return f"{signed_money(after - before)}/h{share}: {hourly(after)} instead of {hourly(before)}."


def signed_money(value: float) -> str:
    """Write a difference of prices with its sign.

    >>> signed_money(3.2), signed_money(-0.5), signed_money(0.0)
    ('+$3.20', '-$0.50', '±$0')
    """
    return "±$0" if value == 0 else money(value) if value < 0 else f"+{money(value)}"


def pool_words(change: PoolChange) -> str:
    """Say what became of a pool, such as "d0: decode 2 × H100 TP2, 3 → 4 engines; max_num_seqs 64 → 128"."""
    before, after = change.engines
    number = f"{before} → {plural(after, 'engine')}" if before and after and before != after else None
    parts = [number or plural(after or before, "engine")]
    parts += [setting_words(item) for item in change.settings if item.name != "replicas"]
    return f"{change.name}: {change.shape}, {'; '.join(parts)}"


def setting_words(change: Change) -> str:
    """Say which value a setting had and has."""
    return f"{change.name} {change.before or 'none'} → {change.after or 'none'}"


def figure_words(figure: Figure) -> tuple[str, str, str, str]:
    """Write a figure: name, both values, and the relative difference."""
    before, after = figure.before, figure.after
    return figure.name, _value(figure, before), _value(figure, after), difference_words(figure)


def _value(figure: Figure, value: float | None) -> str:
    return money(value) if figure.unit == "$" else quantity(value, figure.unit)


def difference_words(figure: Figure) -> str:
    """Write how much more or less a figure is: in points where it is a share, else relative; a dash where unknown."""
    if not is_number(figure.before) or not is_number(figure.after):
        return MISSING
    if figure.unit == "1":
        return f"{signed_percent(figure.after - figure.before).removesuffix('%')}points"
    return signed_percent(figure.after / figure.before - 1) if figure.before else MISSING


def tone(figure: Figure) -> str:
    """Tell whether a difference is good or bad news; empty where it is neither."""
    if not figure.better or not figure.differs or not is_number(figure.before) or not is_number(figure.after):
        return ""
    return "good" if (figure.after < figure.before) == (figure.better == "lower") else "bad"


def outcome_words(item: SloChange, found: Comparison) -> str:
    """Say whether a class held and holds, was asked for at all, or has no fleet to hold it."""
    before, after = (
        "not asked for" if held is None and has else "no fleet" if held is None else "meets" if held else "misses"
        for held, has in zip(item.held, found.found, strict=True)
    )
    return f"{item.name} {after}" if before == after else f"{item.name}: {before} → {after}"


def lone_words(item: SloChange) -> str:
    """Write the figures of a class that only one plan has; empty where both have it."""
    if None not in item.held:
        return ""
    sides = [(figure, figure.after if item.held[0] is None else figure.before) for figure in item.figures]
    return ", ".join(f"{figure.name} {_value(figure, value)}" for figure, value in sides if value is not None)


def render_text(found: Comparison, width: int = 100, color: bool = False) -> str:
    """Return the comparison as text that fits `width` columns (56 at least)."""
    width = max(LEAST_WIDTH, width)
    paint: Paint = partial(click.style) if color else _plain
    blocks = [[paint(line, bold=True) for line in wrap(headline(found), width)]]
    blocks[0] += wrap(f"before: {found.names[0]}; after: {found.names[1]}", width)
    blocks[0] += wrap(found.note, width) if found.note else []
    if not found.same:
        blocks += [_pools(found, width, paint), _figures(found.figures, width, paint)]
        blocks += [_class(item, found, width, paint) for item in found.classes[:MOST_ROWS]]
        blocks.append(_inputs(found.inputs, width))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _plain(text: str, **_style: object) -> str:
    return text


def _pools(found: Comparison, width: int, paint: Paint) -> list[str]:
    if not found.pools:
        return ["Fleet: the same pools"] if any(found.found) else []
    lines = []
    colors = {"added": "green", "removed": "red", "changed": "yellow"}
    for change in found.pools[:MOST_ROWS]:
        first, *rest = wrap(pool_words(change), width - 18)
        sign = paint(SIGNS[change.kind], fg=colors[change.kind])
        lines.append(f"  {sign} {first:{width - 18}}{signed_money(change.difference) + '/h':>13}")
        lines += ["    " + line for line in rest]
    if len(found.pools) > MOST_ROWS:
        lines.append(f"  … and {len(found.pools) - MOST_ROWS} more")
    same = [f"    {plural(found.unchanged_pools, 'pool')} unchanged"] if found.unchanged_pools else []
    total = sum(change.difference for change in found.pools)
    return ["Fleet", *lines, *same, f"    {'total':{width - 18}}{signed_money(total) + '/h':>13}"]


def _figures(figures: Sequence[Figure], width: int, paint: Paint) -> list[str]:
    shown = [figure for figure in figures if figure.differs]
    if not shown:
        return []
    columns = [
        Column("", shrink=True, lines=2),
        Column("before", "right"),
        Column("after", "right"),
        Column("", "right"),
    ]

    def style(row: int, column: int, cell: str) -> str:
        colors = {"good": "green", "bad": "red", "": None}
        return paint(cell, fg=colors[tone(shown[row])]) if column == len(columns) - 1 else cell

    rows = [figure_words(figure) for figure in shown]
    return render_table(rows, columns, width, indent=2, style=style).split("\n")


def _class(item: SloChange, found: Comparison, width: int, paint: Paint) -> list[str]:
    color = "red" if item.held[1] is False else None
    lone = lone_words(item)
    rows = [f"  {line}" for line in wrap(lone, width - 2)] if lone else _figures(item.figures, width, paint)
    return [paint(f"SLO: {outcome_words(item, found)}", fg=color), *rows]


def _inputs(changes: Sequence[Change], width: int) -> list[str]:
    if not changes:
        return []
    lines = [line for change in changes[:MOST_ROWS] for line in wrap(setting_words(change), width - 2)]
    cut = [f"  … and {len(changes) - MOST_ROWS} more"] if len(changes) > MOST_ROWS else []
    return ["Inputs", *(f"  {line}" for line in lines), *cut]


def render_markdown(found: Comparison) -> str:
    """Return the comparison as Markdown for a pull request."""
    blocks = [[f"### {escaped(headline(found))}"], [escaped(f"before: {found.names[0]}; after: {found.names[1]}")]]
    if found.note:
        blocks.append([escaped(found.note)])
    if found.pools:
        rows = [(SIGNS[c.kind], pool_words(c), f"{signed_money(c.difference)}/h") for c in found.pools]
        total = f"{signed_money(sum(change.difference for change in found.pools))}/h"
        blocks.append(table(("", "fleet", "#price"), [*rows[:MOST_ROWS], ("", "total", total)], MOST_ROWS + 1))
    blocks.append(_table(found.figures))
    for item in found.classes:
        title = f"SLO: {outcome_words(item, found)}"
        lone, lines = lone_words(item), _table(item.figures)
        if lone:
            blocks.append([f"**{escaped(title)}**: {escaped(lone)}"])
        elif lines:
            blocks.append([f"**{escaped(title)}**", "", *lines])
    if found.inputs:
        rows = [(change.name, change.before or MISSING, change.after or MISSING) for change in found.inputs]
        blocks.append(table(("input", "before", "after"), rows))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _table(figures: Sequence[Figure]) -> list[str]:
    shown = [figure_words(figure) for figure in figures if figure.differs]
    return table(("", "#before", "#after", "#difference"), shown) if shown else []
