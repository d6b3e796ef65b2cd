"""What a comparison answers: one signed price, the pools that it comes from, and what else differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reports.comparison import Change, Comparison, Figure, PoolChange, SloChange
from reports.document import Document, Section, Table, said, table_of
from reports.numbers import MISSING, hourly, is_number, money, quantity, signed_percent
from reports.table import Column
from reports.text import plural

SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
FIGURES: Final = (Column("figure", shrink=True, lines=2), "#before", "#after", "#difference")


def comparison_document(comparison: Comparison) -> Document:
    """The answer of a comparison."""
    before, after = comparison.names
    differences = () if comparison.same else _differences(comparison)
    named = Section(sentences=said(f"before: {before}; after: {after}", comparison.note))
    about = ("Two plans compared", f"before, {before}; after, {after}")
    return Document(headline=(headline(comparison),), sections=(named, *differences), about=about)


def _differences(comparison: Comparison) -> tuple[Section, ...]:
    unchanged = f"{plural(comparison.unchanged_pools, 'pool')} unchanged." if comparison.unchanged_pools else ""
    classes = [
        Section(f"SLO: {outcome_words(item, comparison)}", said(lone_words(item)), _slo_figures(item))
        for item in comparison.classes
    ]
    return (
        Section("Fleet", table=pools_table(comparison), notes=said(unchanged)),
        Section("Figures", table=_figures(comparison.figures)),
        Section("SLOs", sections=tuple(classes)),
        Section("Inputs", table=inputs_table(comparison)),
    )


def pools_table(comparison: Comparison) -> Table:
    """The pools that differ, the dearest difference first."""
    rows = [
        (f"{SIGNS[item.kind]} {item.kind}", pool_words(item), f"{signed_money(item.difference)}/h")
        for item in comparison.pools
    ]
    return table_of(("change", Column("pool", shrink=True, lines=6), "#price"), rows)


def inputs_table(comparison: Comparison) -> Table:
    """The inputs that differ."""
    columns = [Column(name, shrink=True, lines=6) for name in ("input", "before", "after")]
    rows = [(item.name, item.before or MISSING, item.after or MISSING) for item in comparison.inputs]
    return table_of(columns, rows)


def _figures(figures: Sequence[Figure]) -> Table:
    shown = [figure for figure in figures if figure.differs]
    return table_of(FIGURES, [figure_words(figure) for figure in shown], [tone(figure) for figure in shown])


def _slo_figures(item: SloChange) -> Table | None:
    """The figures of a class that both plans have."""
    return None if None in item.held else _figures(item.figures)


def headline(comparison: Comparison) -> str:
    """Say the difference of the prices, signed, and both prices."""
    if comparison.same:
        return "The plans do not differ."
    before, after = comparison.price.before, comparison.price.after
    if not all(comparison.found) or not is_number(before) or not is_number(after):
        if not any(comparison.found):
            return "Neither plan has a fleet."
        words = [
            hourly(price) if has else "no fleet" for price, has in zip((before, after), comparison.found, strict=True)
        ]
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
    """Say what became of a pool, such as "d0: decode 2 × H100 TP2, 3 → 4 replicas; max_num_seqs 64 → 128"."""
    before, after = change.engines
    number = f"{before} → {plural(after, 'replica')}" if before and after and before != after else None
    words = [number or plural(after or before, "replica")]
    words += [_setting_words(item) for item in change.settings if item.name != "replicas"]
    return f"{change.name}: {change.shape}, {'; '.join(words)}"


def _setting_words(change: Change) -> str:
    """Say which value a setting had and has."""
    return f"{change.name} {change.before or 'none'} → {change.after or 'none'}"


def figure_words(figure: Figure) -> tuple[str, str, str, str]:
    """Write a figure: name, both values, and the relative difference."""
    return figure.name, _value(figure, figure.before), _value(figure, figure.after), _difference_words(figure)


def _value(figure: Figure, value: float | None) -> str:
    return money(value) if figure.unit == "$" else quantity(value, figure.unit)


def _difference_words(figure: Figure) -> str:
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


def outcome_words(item: SloChange, comparison: Comparison) -> str:
    """Say whether each plan meets the SLO of a class, was asked for it at all, or has no fleet."""
    before, after = (
        "not asked for" if held is None and has else "no fleet" if held is None else "meets" if held else "misses"
        for held, has in zip(item.held, comparison.found, strict=True)
    )
    return f"{item.name} {after}" if before == after else f"{item.name}: {before} → {after}"


def lone_words(item: SloChange) -> str:
    """Write the figures of a class that only one plan has; empty where both have it."""
    if None not in item.held:
        return ""
    sides = [(figure, figure.after if item.held[0] is None else figure.before) for figure in item.figures]
    return ", ".join(f"{figure.name} {_value(figure, value)}" for figure, value in sides if value is not None)
