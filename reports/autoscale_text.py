"""A fleet scaled over a day: as text and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.procurement.autoscale import DAY, Day

from .numbers import duration, money, percent, rate
from .table import Column, render_table
from .text import wrap


def autoscale_dict(instance: Instance, fleet: Fleet, day: Day) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
    load = instance.problem.workload.request_rate
    return {
        "schema": "pdplan.autoscale/1",
        "start_up_s": day.start_up,
        "fixed_usd_per_day": day.fixed,
        "ahead_usd_per_day": day.ahead,
        "on_load_usd_per_day": day.on_load,
        "saved_usd_per_day": day.saved,
        "late_share": day.late,
        "longest_start_up_s": day.longest,
        "attainment_on_load": {
            slo.name: float(share) for slo, share in zip(instance.problem.slos, day.attainment, strict=True)
        },
        "hours": [
            {
                "hour": hour,
                "rate_rps": float(volume * load),
                "replicas": {pool.name: int(n) for pool, n in zip(fleet.pools, row, strict=True)},
                "carried": hour not in day.short,
            }
            for hour, (volume, row) in enumerate(zip(day.volume, day.need, strict=True))
        ],
    }


def autoscale_text(instance: Instance, fleet: Fleet, day: Day, width: int) -> str:
    """What is saved, what breaks, then the day in stretches of equal replicas."""
    blocks = ["\n".join(wrap(text, width)) for text in (_saved(day), _on_load(instance, day), *_short(instance, day))]
    return "\n\n".join([*blocks, _table(instance, fleet, day, width)])


def _saved(day: Day) -> str:
    return (
        f"Scaled ahead by the daily profile, {duration(day.start_up)} before each rise, the fleet costs "
        f"{money(day.ahead)} a day instead of {money(day.fixed)}: {money(day.saved)} saved "
        f"({percent(day.saved / day.fixed)})."
    )


def _on_load(instance: Instance, day: Day) -> str:
    """What scaling on load does, and how fast engines must start for it."""
    missed = [
        f"{slo.name} {percent(float(share))} of {percent(slo.attainment)}"
        for slo, share in zip(instance.problem.slos, day.attainment, strict=True)
        if share < slo.attainment - 1e-9
    ]
    verdict = f"breaks {', '.join(missed)}" if missed else "still keeps every goal over the day"
    limit = (
        "whatever the start-up time"
        if day.longest >= DAY
        else "with no start-up time at all"
        if day.longest <= 0.0
        else f"up to a start-up time of {duration(day.longest)}"
    )
    kept = "It keeps none" if day.longest <= 0.0 else "It keeps them"
    return (
        f"Scaled on load, {money(day.on_load)} a day, {percent(day.late)} of the requests meet a fleet that is too "
        f"small for their hour: that {verdict}. {kept} {limit}."
    )


def _short(instance: Instance, day: Day) -> list[str]:
    if not day.short:
        return []
    most = float(day.volume[list(day.short)].max() * instance.problem.workload.request_rate)
    return [f"In {len(day.short)} hours of up to {rate(most)} even the whole fleet misses a goal."]


def _table(instance: Instance, fleet: Fleet, day: Day, width: int) -> str:
    """Stretches of hours with the same replicas."""
    change = np.flatnonzero((day.need[1:] != day.need[:-1]).any(axis=1)) + 1
    rows = []
    for hours in np.split(np.arange(len(day.need)), change):
        peak = float(day.volume[hours].max() * instance.problem.workload.request_rate)
        counts = [str(n) for n in day.need[hours[0]].tolist()]
        rows.append([f"{hours[0]:02d}:00 to {hours[-1] + 1:02d}:00", rate(peak), *counts])
    columns = [Column("hours"), Column("up to", "right"), *(Column(pool.name, "right") for pool in fleet.pools)]
    return render_table(rows, columns, width)
