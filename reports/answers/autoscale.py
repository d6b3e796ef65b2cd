"""What autoscale answers: what scaling a fleet over the day saves, and what it misses."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.procurement.autoscale import DAY, Day
from reports.charts import Frame, Stack, draw_stacks, round_steps
from reports.document import Chart, Document, Section, Table, table_of
from reports.numbers import count, duration, hourly, money, percent, rate, significant
from reports.text import plural

TICKS: Final = [(float(hour), f"{hour:02d}") for hour in range(0, 24, 3)]
NEGLIGIBLE: Final = 1e-9
"""Share of the cost below which a saving is rounding."""


def autoscale_dict(instance: Instance, fleet: Fleet, day: Day) -> dict[str, Any]:
    """The answer as a record."""
    names = [slo.name for slo in instance.problem.slos]
    load = instance.problem.workload.request_rate
    return {
        "schema": "pdplan.autoscale/2",
        "start_up_s": day.start_up,
        "simulated_requests": day.requests,
        "fixed_usd_per_day": day.fixed,
        "ahead_usd_per_day": day.ahead,
        "on_load_usd_per_day": day.on_load,
        "saved_usd_per_day": day.saved,
        "late_share": day.late,
        "longest_start_up_s": day.longest,
        "attainment_on_load": dict(zip(names, day.attainment.tolist(), strict=True)),
        "hours": [
            {
                "hour": hour,
                "rate_rps": float(volume * load),
                "replicas": {pool.name: int(n) for pool, n in zip(fleet.pools, row, strict=True)},
                "attainment": dict(zip(names, day.hourly[hour].tolist(), strict=True)),
                "low": dict(zip(names, day.low[hour].tolist(), strict=True)),
                "high": dict(zip(names, day.high[hour].tolist(), strict=True)),
                "carried": hour not in day.short,
                "settled": hour not in day.unsure,
            }
            for hour, (volume, row) in enumerate(zip(day.volume, day.need, strict=True))
        ],
    }


def autoscale_document(instance: Instance, fleet: Fleet, day: Day) -> Document:
    """The answer: what scaling ahead saves, what scaling on load misses, the day in stretches of equal replicas."""
    return Document(
        headline=(verdict(instance, day),),
        sections=(
            Section(
                sentences=(on_load(instance, day),),
                charts=(_cost_chart(instance, fleet, day),),
            ),
            Section(table=stretches(instance, fleet, day)),
            Section(sentences=(method(day),)),
        ),
        positive=not (day.short or day.unsure),
        about=("What does scaling over the day save?", instance.problem.name),
    )


def verdict(instance: Instance, day: Day) -> str:
    """Whether the fleet meets its SLOs in every hour, and only where none is missed what scaling ahead saves."""
    cost = (
        f"Scaled ahead by the daily profile, {duration(day.start_up)} before each rise, the fleet costs "
        f"{money(day.ahead)} a day instead of {money(day.fixed)}"
    )
    if day.short:
        most = float(day.volume[list(day.short)].max() * instance.problem.workload.request_rate)
        return (
            f"The whole fleet misses an SLO in {plural(len(day.short), 'hour')} of the day, of up to {rate(most)}, "
            f"scaled or not ({lowest(instance, day)}). {cost}, which does not meet the SLO either."
            f"{unsure(instance, day)}"
        )
    if day.saved <= NEGLIGIBLE * day.fixed:
        return (
            "Scaling saves nothing: every hour needs the whole fleet, or the start-up time fills the gaps. "
            f"{cost}.{unsure(instance, day)}"
        )
    how, hours = "when simulated" if day.requests else "by formula", "Every other hour" if day.unsure else "Every hour"
    return (
        f"{cost}: {money(day.saved)} saved ({percent(day.saved / day.fixed)}).{unsure(instance, day)} {hours} meets "
        f"its SLO {how} ({lowest(instance, day)})."
    )


def unsure(instance: Instance, day: Day) -> str:
    """In how many hours it is undecided whether the whole fleet meets its SLOs; empty where there is none."""
    if not day.unsure:
        return ""
    hours = list(day.unsure)
    most = float(day.volume[hours].max() * instance.problem.workload.request_rate)
    slos = instance.problem.slos
    doubts = [
        (day.low[hour, k] - slo.attainment, hour, k)
        for hour in hours
        for k, slo in enumerate(slos)
        if day.low[hour, k] < slo.attainment
    ]
    _, hour, k = min(doubts)
    interval = f"{slos[k].name} {percent(day.low[hour, k])} to {percent(day.high[hour, k])} at {hour:02d}:00"
    return (
        f" Undecided: in {plural(len(hours), 'hour')}, of up to {rate(most)}, the goal lies within the 95 % interval "
        f"of the whole fleet's runs ({interval}, goal {percent(slos[k].attainment)}). Longer runs (--requests) decide."
    )


def lowest(instance: Instance, day: Day) -> str:
    """The hour of the least attainment of each class."""
    shares = []
    for k, slo in enumerate(instance.problem.slos):
        hour = int(np.argmin(day.hourly[:, k]))
        shares.append(
            f"{slo.name} {percent(float(day.hourly[hour, k]))} at {hour:02d}:00, goal {percent(slo.attainment)}"
        )
    return "lowest: " + "; ".join(shares)


def on_load(instance: Instance, day: Day) -> str:
    """What scaling on load does, and how fast replicas must start for it."""
    misses = [
        f"{slo.name} {percent(float(share))}, goal {percent(slo.attainment)}"
        for slo, share in zip(instance.problem.slos, day.attainment, strict=True)
        if share < slo.attainment - 1e-9
    ]
    if day.short:
        limit = "No start-up time is short enough for the hours in which the whole fleet misses an SLO."
    elif day.longest <= 0.0:
        limit = "It would meet them only without any start-up time."
    elif day.longest >= DAY:
        limit = "It meets them at any start-up time."
    else:
        limit = f"It meets every SLO up to a start-up time of {duration(day.longest)}."
    result = f"misses an SLO over the day ({'; '.join(misses)})" if misses else "meets every SLO over the day"
    return (
        f"Scaled on load, the fleet costs {money(day.on_load)} a day and {result}. {percent(day.late)} of the requests "
        f"come to a fleet that is too small for their hour, or to the queue behind it. {limit}"
    )


def method(day: Day) -> str:
    """How it was found."""
    runs = f"simulated, with at least {count(day.requests)} requests for each rate and fleet"
    how = runs if day.requests else "by formula"
    return (
        f"Replicas and shares are {how}. Each hour is taken as if its rate lasted, with routing unchanged. The "
        "queue behind too small a fleet is a fluid, and whoever comes while it stands misses the SLO. A released "
        "replica stops at once."
    )


def stretches(instance: Instance, fleet: Fleet, day: Day) -> Table:
    """Stretches of hours with the same replicas, and the least attainment in them."""
    change = np.flatnonzero((day.need[1:] != day.need[:-1]).any(axis=1)) + 1
    rows = []
    for hours in np.split(np.arange(len(day.need)), change):
        peak = float(day.volume[hours].max() * instance.problem.workload.request_rate)
        counts = [str(n) for n in day.need[hours[0]].tolist()]
        doubt = ", undecided" if set(hours.tolist()) & set(day.unsure) else ""
        least = [f"{percent(share)}{doubt}" for share in day.hourly[hours].min(axis=0).tolist()]
        rows.append((f"{hours[0]:02d}:00 to {hours[-1] + 1:02d}:00", rate(peak), *counts, *least))
    figures = (*(pool.name for pool in fleet.pools), *(f"{slo.name} SLO met" for slo in instance.problem.slos))
    return table_of(("hours", "#up to", *(f"#{name}" for name in figures)), rows)


def _cost_chart(instance: Instance, fleet: Fleet, day: Day) -> Chart:
    """Dollars of every hour that its replicas cost, of what the whole fleet costs."""
    whole, load = fleet_cost(instance, fleet), instance.problem.workload.request_rate
    costs = [fleet_cost(instance, fleet.resized(row)) for row in day.need]
    rates = (day.volume * load).tolist()
    words = [
        " + ".join(f"{n} {pool.name}" for n, pool in zip(row, fleet.pools, strict=True)) for row in day.need.tolist()
    ]
    stacks = [
        Stack(
            (("good", cost, f"{hour:02d}:00: {hourly(cost)}, {rate(r)}, {counts}"), ("track", whole - cost, "released"))
        )
        for hour, (cost, r, counts) in enumerate(zip(costs, rates, words, strict=True))
    ]
    frame = Frame(
        "hour", "$ an hour", TICKS, [(value, significant(value)) for value in round_steps(whole)], 1.05 * whole
    )
    rows = [
        (f"{hour:02d}:00", rate(r), counts, hourly(cost))
        for hour, (cost, r, counts) in enumerate(zip(costs, rates, words, strict=True))
    ]
    least = int(np.argmin(costs))
    return Chart(
        title=f"At {least:02d}:00, {percent(costs[least] / whole)} of the fleet is enough",
        caption=f"Cost of the replicas that each hour needs; pale: of the whole fleet, {hourly(whole)}.",
        drawing=draw_stacks(stacks, frame, f"cost of each hour, {money(sum(costs))} a day without start-up times"),
        table=table_of(("hour", "#rate", "replicas", "#cost"), rows),
    )
