"""What calibrate answers: how wrong the predictions are before and after the fit, and what was fitted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.calibration.scales import SPREAD, Quantity
from costmodel.engine import EngineConfig
from reports.document import Document, Section, Table, table_of
from reports.numbers import MISSING, count, duration, percent, signed_percent, significant
from reports.table import Column
from reports.text import clean, plural
from search_spaces.benchmark_results.calibration import Calibration, Row, where_of
from search_spaces.benchmark_results.deployed import MeasuredRun

SCHEMA = "pdplan.calibration/1"

MEANING = {
    "memory": "efficiency of memory traffic",
    "compute": "efficiency of arithmetic",
    "host": "host time per step and per request",
    "arrival": "TTFT overhead",
}
NEEDS = {
    "memory": "a run with TPOT",
    "compute": "a run with TTFT",
    "host": "TPOT at two loads",
    "arrival": "TTFT at two loads",
}
"""What each scale needs to be seen."""


def calibration_dict(found: Calibration, overlay: str | None) -> dict[str, Any]:
    """The calibration as JSON-ready values; errors are predicted / measured - 1."""
    fit = found.fit
    return {
        "schema": SCHEMA,
        "model": found.setup.model.name,
        "accelerator": found.setup.accelerator.name,
        "engine": found.engine,
        "rows": len(found.rows),
        "scales": {
            name: {
                "scale": getattr(fit.scales, name),
                "fitted": name in fit.free,
                "at_limit": name in fit.at_limit,
                "spread_before": SPREAD[name],
                "spread_after": fit.spread.get(name, SPREAD[name]),
            }
            for name in MEANING
        },
        "error": {key: _summary(getattr(fit, key)) for key in ("before", "after", "held")},
        "times": [
            {
                "where": where_of(found.rows[one.row]),
                "point": point_text(found.rows[one.row]),
                "quantity": one.quantity.value,
                "measured_s": one.seconds,
                "error_before": math.expm1(before),
                "error_after": math.expm1(after),
                "error_held": math.expm1(held),
            }
            for one, before, after, held in zip(found.seen, fit.before, fit.after, fit.held, strict=True)
        ],
        "explained": fit.explains,
        "strain": fit.strain,
        "refusal": found.refusal or None,
        "notes": [{"where": note.where, "reason": note.reason} for note in found.notes],
        "overlay": overlay,
    }


def calibration_document(value: dict[str, Any]) -> Document:
    """The answer, of a `calibration_dict`."""
    before, after, held = (value["error"][key] for key in ("before", "after", "held"))
    return Document(
        headline=(
            f"{value['model']} on {value['accelerator']}, {value['engine']}: median error "
            f"{percent(before['median_abs'])} before the fit and {percent(after['median_abs'])} after, over "
            f"{plural(value['rows'], 'measured row')}.",
        ),
        sections=(
            Section(
                sentences=(
                    f"On rows left out of the fit the median error is {percent(held['median_abs'])}. The bias is "
                    f"{signed_percent(before['bias'], 0)} before and {signed_percent(after['bias'], 0)} after.",
                ),
            ),
            Section(table=_scales(value)),
            Section(table=_times(value)),
            Section(sentences=tuple(f"{note['where']}: {note['reason']}" for note in value["notes"])),
        ),
        positive=value["refusal"] is None,
    )


def point_text(row: Row) -> str:
    """The operating point of a row in a few words."""
    if isinstance(row, MeasuredRun):
        each = row.deployment
        layout = layout_text(each.prefill) + (f" > {layout_text(each.decode)}" if each.decode else "")
        flight = each.concurrency * (1 if each.decode else each.row.prefill.workers)
        return f"{count(round(each.isl))} + {count(round(each.osl))} tokens, {flight:,.3g} in flight, {layout}"
    step = row.step
    words = []
    if step.prompts:
        words.append(f"{count(round(step.prompts))} × {count(round(step.new))} prompt tokens")
    if step.decodes:
        words.append(f"{plural(round(step.decodes), 'decode')} at {count(round(step.context))}")
    return ", ".join(words)


def layout_text(config: EngineConfig) -> str:
    """The split of an engine: TP4 EP2."""
    split = config.parallelism
    degrees = {"TP": split.tensor, "PP": split.pipeline, "EP": split.expert, "DP": split.data}
    return " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1 or name == "TP")


def _summary(logs: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    errors = np.expm1(logs)
    return {"median_abs": float(np.median(np.abs(errors))), "bias": float(np.median(errors))}


def _scales(value: dict[str, Any]) -> Table:
    return table_of(("scale of", "#factor", "#±", ""), [_scale(name, scale) for name, scale in value["scales"].items()])


def _scale(name: str, scale: dict[str, Any]) -> tuple[str, ...]:
    if not scale["fitted"]:
        return MEANING[name], "× 1", MISSING, f"kept: needs {NEEDS[name]}"
    state = "fitted, at the end of its range" if scale["at_limit"] else "fitted"
    return MEANING[name], f"× {significant(scale['scale'])}", percent(scale["spread_after"]), state


def _times(value: dict[str, Any]) -> Table:
    """Every measured time; row and point stand once above those of the same run."""
    names = {
        Quantity.TTFT.value: "TTFT",
        Quantity.TPOT.value: "TPOT",
        Quantity.PREFILL_STEP.value: "step",
        Quantity.DECODE_STEP.value: "step",
    }
    rows, last = [], None
    for item in value["times"]:
        head = ("", "") if item["where"] == last else (clean(Path(item["where"]).name, 30), item["point"])
        last = item["where"]
        errors = (signed_percent(item[key], 0) for key in ("error_before", "error_after", "error_held"))
        rows.append((*head, names[item["quantity"]], duration(item["measured_s"]), *errors))
    columns = (Column("row", optional=True), "point", "time", "#measured", "#before", "#after", "#held out")
    return table_of(columns, rows)
