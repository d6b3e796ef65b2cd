"""A fleet scaled over a day, as a page."""

from __future__ import annotations

from typing import Final

import numpy as np

from optimizer.fleets.evaluate import keeps_goals
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.procurement.autoscale import Day
from optimizer.procurement.resilience import with_replicas

from .answer_page import (
    AnswerPage,
    Frame,
    Part,
    Share,
    Stack,
    draw_shares,
    draw_stacks,
    render_answer,
)
from .answers.autoscale import autoscale_dict, method, on_load, stretches, verdict
from .numbers import hourly, money, percent, rate, significant
from .page_charts import Chart, Table
from .scales import round_steps
from .text import clean

TICKS: Final = [(float(hour), f"{hour:02d}") for hour in range(0, 24, 3)]


def render_autoscale(instance: Instance, fleet: Fleet, day: Day) -> str:
    """Return the page as one HTML document."""
    table = stretches(instance, fleet, day)
    page = AnswerPage(
        name=instance.problem.name,
        question="What does scaling over the day save?",
        headline=verdict(instance, day),
        lead=(on_load(instance, day),),
        charts=(_cost_chart(instance, fleet, day), _share_chart(instance, day)),
        parts=(Part("The day in stretches", Table(table.headers, table.rows)),),
        notes=(method(day),),
    )
    return render_answer(page, autoscale_dict(instance, fleet, day))


def _cost_chart(instance: Instance, fleet: Fleet, day: Day) -> Chart:
    """Dollars of every hour that its replicas cost, of what the whole fleet costs."""
    whole, load = fleet_cost(instance, fleet), instance.problem.workload.request_rate
    costs = [fleet_cost(instance, with_replicas(fleet, row)) for row in day.need]
    rates = (day.volume * load).tolist()
    words = [
        " + ".join(f"{n} {pool.name}" for n, pool in zip(row, fleet.pools, strict=True)) for row in day.need.tolist()
    ]
    stacks = [
        Stack(
            (("good", cost, f"{hour:02d}:00: {hourly(cost)}, {rate(r)}, {told}"), ("track", whole - cost, "released"))
        )
        for hour, (cost, r, told) in enumerate(zip(costs, rates, words, strict=True))
    ]
    frame = Frame(
        "hour", "$ an hour", TICKS, [(value, significant(value)) for value in round_steps(whole)], 1.05 * whole
    )
    rows = [
        (f"{hour:02d}:00", rate(r), told, hourly(cost))
        for hour, (cost, r, told) in enumerate(zip(costs, rates, words, strict=True))
    ]
    least = int(np.argmin(costs))
    return Chart(
        title=f"At {least:02d}:00, {percent(costs[least] / whole)} of the fleet is enough",
        caption=f"Cost of the replicas that each hour needs; pale: of the whole fleet, {hourly(whole)}.",
        drawing=draw_stacks(stacks, frame, f"cost of each hour, {money(sum(costs))} a day without start-up times"),
        table=Table(("hour", "#rate", "replicas", "#cost"), tuple(rows)),
    )


def _share_chart(instance: Instance, day: Day) -> Chart:
    """Least attainment of an hour, and over the day on load, of every class."""
    rows = []
    for k, slo in enumerate(instance.problem.slos):
        name = clean(slo.name, 20)
        worst, over = float(day.hourly[:, k].min()), float(day.attainment[k])
        rows += [
            Share(f"{name}, worst hour, ahead", worst, slo.attainment, percent(worst)),
            Share(f"{name}, whole day, on load", over, slo.attainment, percent(over)),
        ]
    told = tuple((row.label, row.note, percent(row.goal)) for row in rows)
    kept = not day.short and keeps_goals(instance, day.attainment)
    sure = "Both ways meet every SLO, but for hours that are undecided" if day.unsure else "Both ways meet every SLO"
    return Chart(
        title=sure if kept else "Some SLO is missed",
        caption="Share of requests within their SLO; the line is the goal.",
        drawing=draw_shares(rows, "; ".join(f"{row.label} {row.note}" for row in rows)),
        table=Table(("case", "#meet the SLO", "#goal"), told),
    )
