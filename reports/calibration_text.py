"""A calibration on the terminal: what was fitted, and every measured time before and after."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.calibration.scales import SPREAD, Quantity
from costmodel.engine import EngineConfig
from search_spaces.benchmark_results.calibration import Calibration
from search_spaces.benchmark_results.deployed import MeasuredRun
from search_spaces.benchmark_results.physics import where_of
from search_spaces.benchmark_results.prediction import Row

from .numbers import count, duration, percent, signed_percent, significant
from .table import Column, render_table
from .text import clean, plural, wrap

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


def calibration_text(value: dict[str, Any], width: int) -> str:
    """The page of a `calibration_dict`."""
    parts = [
        f"{value['model']} on {value['accelerator']}, {value['engine']}: {count(value['rows'])} "
        f"measured row{'s' * (value['rows'] != 1)}",
        _scales_table(value, width),
        _times_table(value, width),
        _errors(value, width),
        "\n".join(line for note in value["notes"] for line in wrap(f"{note['where']}: {note['reason']}", width)),
    ]
    return "\n\n".join(part for part in parts if part)


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


def _scales_table(value: dict[str, Any], width: int) -> str:
    rows = []
    for name, one in value["scales"].items():
        state = "at the limit of what is looked at" if one["at_limit"] else "fitted"
        rows.append(
            [
                MEANING[name],
                f"× {significant(one['scale'])}" if one["fitted"] else "× 1",
                percent(one["spread_after"]) if one["fitted"] else "–",
                state if one["fitted"] else f"kept: needs {NEEDS[name]}",
            ]
        )
    return render_table(rows, [Column("scale of"), Column("factor", "right"), Column("±", "right"), Column("")], width)


def _times_table(value: dict[str, Any], width: int) -> str:
    names = {
        Quantity.TTFT.value: "TTFT",
        Quantity.TPOT.value: "TPOT",
        Quantity.PREFILL_STEP.value: "step",
        Quantity.DECODE_STEP.value: "step",
    }
    rows, last = [], None
    for one in value["times"]:
        again, last = one["where"] == last, one["where"]
        rows.append(
            [
                "" if again else clean(Path(one["where"]).name, 30),
                "" if again else one["point"],
                names[one["quantity"]],
                duration(one["measured_s"]),
                *(signed_percent(one[key], 0) for key in ("error_before", "error_after", "error_held")),
            ]
        )
    heads = [Column(name, "right") for name in ("measured", "before", "after", "held out")]
    return render_table(rows, [Column("row", optional=True), Column("point"), Column(""), *heads], width)


def _errors(value: dict[str, Any], width: int) -> str:
    before, after, held = (value["error"][key] for key in ("before", "after", "held"))
    sentence = (
        f"Median error {percent(before['median_abs'])} before and {percent(after['median_abs'])} after, "
        f"{percent(held['median_abs'])} on rows left out of the fit; bias {signed_percent(before['bias'], 0)} before, "
        f"{signed_percent(after['bias'], 0)} after."
    )
    return "\n".join(wrap(sentence, width))
