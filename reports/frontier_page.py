"""The cost curve as a page: the staircase, and every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from optimizer.whatif.frontier import Frontier, Step

from .answer_page import HEIGHT, PLOT, AnswerPage, Part, render_answer
from .document import Chart, Table, table_of
from .drawing import WIDTH, Drawing, Mark, Path, Plot, Text, axes, plot, round_steps, round_ticks
from .frontier_text import curve_findings, curve_headers, curve_notes, curve_rows, end_words
from .numbers import hourly, percent, significant
from .sensitivity import fleet_line, value_words
from .text import plural
from .whatif_text import FLEET

WORDS: Mapping[str, str] = {
    "rate": "demand",
    "ttft": "TTFT",
    "ttft_scale": "TTFT limits",
    "tpot": "TPOT",
    "tpot_scale": "TPOT limits",
    "attainment": "attainment",
}
"""What a curve is over, in a heading."""
QUESTIONS: Mapping[str, str] = {
    "rate": "What does more demand cost?",
    "attainment": "What does a higher attainment cost?",
    "budget": "What does each budget serve?",
}
"""What each curve answers; those of other levers, which are limits: what tighter ones cost."""


def render_frontier(curve: Frontier, record: Mapping[str, Any], name: str) -> str:
    """Return the page as one HTML document; name: of the problem; record: what --json prints, embedded."""
    return render_answer(make_frontier_page(curve, name), record)


def make_frontier_page(curve: Frontier, name: str) -> AnswerPage:
    """Compute the page of a curve."""
    over = "budget" if curve.by_budget else curve.over
    steps = [step for step in curve.steps if step.answer.cost is not None]
    return AnswerPage(
        name=name,
        question=QUESTIONS.get(over, f"What does a tighter {over.partition('_')[0].upper()} cost?"),
        headline=_headline(curve, steps),
        lead=tuple(curve_findings(curve)),
        charts=(_chart(curve, steps),) if steps else (),
        parts=(Part("Every step", _table(curve)),),
        notes=tuple(curve_notes(curve)),
    )


def _table(curve: Frontier) -> Table:
    """A row for each step, as on the terminal."""
    headers = [name if name == FLEET else f"#{name}" for name in curve_headers(curve)]
    rows = (tuple(row) for row in curve_rows(curve))
    return table_of(tuple(headers), tuple(rows))


def _headline(curve: Frontier, steps: Sequence[Step]) -> str:
    """From what to what the cost goes over the range that has fleets."""
    if not curve.steps:
        return "No fleet at any of these budgets"
    if not steps:
        return f"No fleet from {_value(curve, curve.steps[0].easy)} to {_value(curve, curve.steps[-1].hard)}"
    first, last = steps[0], steps[-1]
    ends = f"from {_value(curve, first.easy)} to {_value(curve, last.hard)}"
    costs = [hourly(step.answer.cost) for step in (first, last)]
    if len(steps) == 1:
        return f"{costs[0]} {ends}, with one fleet"
    return f"{costs[0]} to {costs[1]} {ends}, in {plural(len(steps), 'step')}"


def _value(curve: Frontier, value: float) -> str:
    """A value of the lever with its unit, rounded."""
    return value_words(curve.over, value)


def _chart(curve: Frontier, steps: Sequence[Step]) -> Chart:
    """The staircase; where it rises most stands in the title."""
    word = WORDS.get(curve.over, curve.over)
    ends = [end for step in curve.steps for end in (step.easy, step.hard)]
    low, high = min(ends), max(ends)
    top = max(float(step.answer.cost or 0.0) for step in steps) or 1.0
    drawn = plot(PLOT, (low, high), (0.0, 1.1 * top))
    unit = "" if curve.unit == "1" else f" [{curve.unit}]"
    ticks = [(value, percent(value) if curve.unit == "1" else significant(value)) for value in round_ticks(low, high)]
    heights = [(value, significant(value)) for value in round_steps(top)]
    marks = axes(drawn, ticks, heights, f"{word}{unit}", "least cost [$/h]")
    marks += [_stair(drawn, curve, step) for step in steps]
    marks += _gaps(drawn, curve)
    return Chart(
        title=_title(curve, steps),
        caption="Each line is one fleet; fleets are whole, so costs jump.",
        drawing=Drawing(WIDTH, HEIGHT + 8.0, f"least cost by {word}, {_headline(curve, steps)}", tuple(marks)),
        table=_table(replace(curve, by_budget=False)),
    )


def _title(curve: Frontier, steps: Sequence[Step]) -> str:
    """Where the cost jumps most."""
    jumps = [
        (float(after.answer.cost or 0.0) - float(before.answer.cost or 0.0), before)
        for before, after in pairwise(steps)
    ]
    if not jumps:
        return "One fleet is the cheapest over the whole range"
    most, before = max(jumps, key=lambda jump: jump[0])
    return f"The cost jumps most, by {hourly(most)}, at {_value(curve, before.hard)}"


def _stair(drawn: Plot, curve: Frontier, step: Step) -> Mark:
    cost = float(step.answer.cost or 0.0)
    span = f"{end_words(curve, step.easy)} to {end_words(curve, step.hard)}"
    tip = f"{curve.over} {span}: {hourly(cost)}, {fleet_line(step.answer.pools)}"
    return Path((drawn.at((step.easy, cost)), drawn.at((step.hard, cost))), "curve decode", tip)


def _gaps(drawn: Plot, curve: Frontier) -> list[Mark]:
    """A word where there is no fleet."""
    return [
        Text(drawn.x((step.easy + step.hard) / 2.0), PLOT.bottom - 8, "no fleet", "muted", "middle")
        for step in curve.steps
        if step.answer.cost is None
    ]
