"""A fleet scaled over a day: as text and as JSON."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.procurement.autoscale import DAY, Day

from .numbers import count, duration, money, percent, rate
from .page_charts import Table
from .table import Column, render_table
from .text import plural, wrap

NEGLIGIBLE: Final = 1e-9
"""Share of the cost below which a saving is rounding."""


def autoscale_dict(instance: Instance, fleet: Fleet, day: Day) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
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


def autoscale_text(instance: Instance, fleet: Fleet, day: Day, width: int) -> str:
    """Whether the goals are kept, what that saves, what breaks, then the day in stretches of equal replicas."""
    table = stretches(instance, fleet, day)
    columns = [Column(head.removeprefix("#"), "right" if head.startswith("#") else "left") for head in table.headers]
    blocks = ["\n".join(wrap(text, width)) for text in (verdict(instance, day), on_load(instance, day), method(day))]
    blocks.insert(2, render_table(table.rows, columns, width))
    return "\n\n".join(blocks)


def verdict(instance: Instance, day: Day) -> str:
    """Whether the fleet keeps its goals in every hour, and only where none is missed what scaling ahead saves."""
    cost = (
        f"Scaled ahead by the daily profile, {duration(day.start_up)} before each rise, the fleet costs "
        f"{money(day.ahead)} a day instead of {money(day.fixed)}"
    )
    if day.short:
        most = float(day.volume[list(day.short)].max() * instance.problem.workload.request_rate)
        return (
            f"The whole fleet misses a goal in {plural(len(day.short), 'hour')} of the day, of up to {rate(most)}, "
            f"scaled or not ({lowest(instance, day)}). {cost}, which does not keep the SLO either."
            f"{unsure(instance, day)}"
        )
    if day.saved <= NEGLIGIBLE * day.fixed:
        return (
            "Scaling saves nothing: every hour needs the whole fleet, or the start-up time fills the gaps. "
            f"{cost}.{unsure(instance, day)}"
        )
    how, every = "when simulated" if day.requests else "by formula", "Every other hour" if day.unsure else "Every hour"
    return (
        f"{cost}: {money(day.saved)} saved ({percent(day.saved / day.fixed)}).{unsure(instance, day)} {every} keeps "
        f"its goals {how} ({lowest(instance, day)})."
    )


def unsure(instance: Instance, day: Day) -> str:
    """Of which hours the runs of the whole fleet do not tell whether it keeps its goals; empty where they all tell."""
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
    seen = f"{slos[k].name} {percent(day.low[hour, k])} to {percent(day.high[hour, k])} at {hour:02d}:00"
    return (
        f" Unsure: of {plural(len(hours), 'hour')}, of up to {rate(most)}, the runs of the whole fleet do not tell, as "
        f"the goal lies within the 95 % interval ({seen}, goal {percent(slos[k].attainment)}); longer runs "
        "(--requests) tell more."
    )


def lowest(instance: Instance, day: Day) -> str:
    """The hour of the least attainment of each class."""
    parts = []
    for k, slo in enumerate(instance.problem.slos):
        hour = int(np.argmin(day.hourly[:, k]))
        parts.append(
            f"{slo.name} {percent(float(day.hourly[hour, k]))} at {hour:02d}:00, goal {percent(slo.attainment)}"
        )
    return "lowest: " + "; ".join(parts)


def on_load(instance: Instance, day: Day) -> str:
    """What scaling on load does, and how fast engines must start for it."""
    missed = [
        f"{slo.name}, {percent(float(share))} of {percent(slo.attainment)}"
        for slo, share in zip(instance.problem.slos, day.attainment, strict=True)
        if share < slo.attainment - 1e-9
    ]
    if day.short:
        limit = "No start-up time is short enough for the hours in which the whole fleet misses one."
    elif day.longest <= 0.0:
        limit = "It keeps them with no start-up time at all only."
    elif day.longest >= DAY:
        limit = "It keeps them whatever the start-up time."
    else:
        limit = f"It keeps them up to a start-up time of {duration(day.longest)}."
    verdict = f"misses an SLO over the day ({'; '.join(missed)})" if missed else "meets every SLO over the day"
    return (
        f"Scaled on load, {money(day.on_load)} a day, {percent(day.late)} of the requests meet a fleet that is too "
        f"small for their hour, or the queue behind it: that {verdict}. {limit}"
    )


def method(day: Day) -> str:
    """How it was found."""
    how = f"at least {count(day.requests)} simulated requests for each rate and fleet" if day.requests else "formula"
    return (
        f"Replicas and attainment by {how}; each hour as if its rate lasted, routing unchanged. A queue that too small "
        "a fleet leaves is fluid, and whoever comes while it stands is late. What is released stops at once."
    )


def stretches(instance: Instance, fleet: Fleet, day: Day) -> Table:
    """Stretches of hours with the same replicas, and the least attainment in them."""
    change = np.flatnonzero((day.need[1:] != day.need[:-1]).any(axis=1)) + 1
    rows = []
    for hours in np.split(np.arange(len(day.need)), change):
        peak = float(day.volume[hours].max() * instance.problem.workload.request_rate)
        counts = [str(n) for n in day.need[hours[0]].tolist()]
        doubt = ", unsure" if set(hours.tolist()) & set(day.unsure) else ""
        least = [f"{percent(share)}{doubt}" for share in day.hourly[hours].min(axis=0).tolist()]
        rows.append((f"{hours[0]:02d}:00 to {hours[-1] + 1:02d}:00", rate(peak), *counts, *least))
    pools = (f"#{pool.name}" for pool in fleet.pools)
    classes = (f"#{slo.name} in SLO" for slo in instance.problem.slos)
    return Table(("hours", "#up to", *pools, *classes), tuple(rows))
