"""The answers of validate and calibrate: prediction errors, before and after a fit to the user's results."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.calibration import SPREAD, Quantity
from costmodel.words import percentage, plural
from reports.document import Column, Document, Section, Table, said, table_of
from reports.text import MISSING, clean, count, duration, percent, signed_percent, significant
from search_spaces.calibration import Calibration, MeasuredRow
from search_spaces.measured_engines import Predicted, Predictions
from search_spaces.measurements import RowKind

QUANTITIES: Final = {"serving": {"TTFT": "ttft", "TPOT": "tpot"}, "steps": {"step times": "latency"}}
"""What is predicted of a row, by the format of its file, and the beginning of the keys of its errors."""
LABELS: Final = {
    "serving": ("model", "accelerator", "engine", "mode"),
    "steps": ("model", "accelerator", "phase", "dtype"),
}
"""What tells the groups of rows apart."""


ERRORS: Final = (
    "Errors are relative to the measured value. Median (of steps: mean) and p90 are of absolute errors; bias is the "
    "median (mean) of errors with their signs. In interval: the share of measured values within the 90 % interval of "
    "the prediction."
)


def error_cells(errors: Mapping[str, Any], quantity: str) -> tuple[str, ...]:
    """Median (of steps: mean), p90, bias and share in the interval; a figure without measurements is a dash."""
    middle = "mape" if quantity == "latency" else "median_abs"
    forms = {f"{middle}_pct": "{:.1f} %", "p90_abs_pct": "{:.0f} %", "bias_pct": "{:+.1f} %"}
    values = [(errors[f"{quantity}_{key}"], form) for key, form in forms.items()]
    share = errors[f"{quantity}_interval90_coverage"]
    texts = (MISSING if value is None else form.format(value) for value, form in values)
    return *texts, MISSING if share is None else percentage(share)


def labelled(value: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
    """Every group of rows with its labels, then all of each mode, then all."""
    groups = [([str(group[key]) for key in LABELS[value["format"]]], group) for group in value["groups"]]
    groups += [(["all", "", "", mode], value[mode]) for mode in ("colocated", "disaggregated") if mode in value]
    return [*groups, (["all", "", "", ""], value)]


def validation_document(files: Mapping[str, dict[str, Any]]) -> Document:
    """The answer: of each file its errors by quantity, and which rows were refused and why."""
    return Document(
        headline=tuple(
            f"{name}: {value['predicted']:,} of {plural(value['rows'], 'row')} predicted."
            for name, value in files.items()
        ),
        sections=(
            Section(sentences=(ERRORS,) * any(value["predicted"] for value in files.values())),
            *(section for name, value in files.items() for section in _file(name, value)),
        ),
    )


def _file(name: str, value: dict[str, Any]) -> Iterator[Section]:
    """A table of each quantity, then what was refused and assumed; models stand without their organization.

    Save those that two organizations name alike.
    """
    models = {labels[0] for labels, _ in labelled(value)}
    shared = Counter(model.rpartition("/")[2] for model in models)
    names = {model: last if shared[last := model.rpartition("/")[2]] == 1 else model for model in models}
    for words, quantity in QUANTITIES[value["format"]].items() if value["predicted"] else ():
        columns = (Column("", shrink=True, lines=4), "#rows", "#mean" if quantity == "latency" else "#median")
        rows = [
            (
                ", ".join(clean(label) for label in (names[labels[0]], *labels[1:]) if label),
                str(group.get("predicted", group["rows"])),
                *error_cells(group, quantity),
            )
            for labels, group in labelled(value)
        ]
        table = table_of((*columns, "#p90", "#bias", "#in interval"), rows)
        yield Section(f"{name}: errors of {words}", table=table)
    tau = value.get("throughput_kendall_tau")
    order = (
        "" if tau is None else f"Kendall's tau of throughput per GPU: {tau:.2f} (1: every pair of configs in order)."
    )
    yield Section(
        sentences=said(
            *(f"{plural(n, 'row')} not predicted: {reason}." for reason, n in value["refused_reasons"].items()),
            *(f"{plural(n, 'row')}: {note}." for note, n in value["notes"].items()),
            order,
        )
    )


LEAST_RANKED = 5
"""Configs of one model and accelerator below which their order says nothing."""
MOST_REASONS = 1000
"""Refusals listed one by one; beyond, they are only counted."""


def validation_dict(kind: RowKind, outcome: Predictions, *, with_rows: bool = False) -> dict[str, Any]:
    """The errors of one file as JSON-ready values.

    Percentages are of the measured value: `*_bias_pct` is the median of (predicted / measured - 1) of TTFT and TPOT,
    and the mean of it for step latencies, whose `mape` is a mean too; coverage is a share of rows.
    """
    by_group: dict[tuple[tuple[str, str], ...], list[Predicted]] = defaultdict(list)
    for row in outcome.predicted:
        by_group[tuple(row.group.items())].append(row)
    value: dict[str, Any] = {
        "format": str(kind),
        "rows": outcome.rows,
        "predicted": len(outcome.predicted),
        **_errors(kind, outcome.predicted),
        "groups": [
            {**dict(group), "rows": len(members), "predicted": len(members), **_errors(kind, members)}
            for group, members in sorted(by_group.items())
        ],
        "refused": [{"line": row.line, "reason": row.reason} for row in outcome.refused[:MOST_REASONS]],
        "refused_reasons": dict(Counter(row.reason for row in outcome.refused)),
        "notes": dict(Counter(note for row in outcome.predicted for note in row.notes)),
    }
    if kind is RowKind.SERVING:
        value["throughput_kendall_tau"] = throughput_tau(outcome.predicted)
        for mode in sorted({row.group["mode"] for row in outcome.predicted}):
            members = [row for row in outcome.predicted if row.group["mode"] == mode]
            value[mode] = {"rows": len(members), **_errors(kind, members)}
    if with_rows:
        value["predictions"] = [_row(row) for row in outcome.predicted]
    return value


def _errors(kind: RowKind, members: Sequence[Predicted]) -> dict[str, float | None]:
    """Size, tail and bias of the errors [%], and the share within their intervals; None without a measured value."""
    errors: dict[str, float | None] = {}
    serving = kind is RowKind.SERVING
    middle, name = (np.median, "median_abs") if serving else (np.mean, "mape")
    for quantity in QUANTITIES[str(kind)].values():
        values = [row.values[quantity] for row in members if row.values[quantity].measured > 0]
        error = 100.0 * np.array([value.error for value in values])
        errors |= {
            f"{quantity}_{name}_pct": float(middle(np.abs(error))) if values else None,
            f"{quantity}_p90_abs_pct": float(np.quantile(np.abs(error), 0.9)) if values else None,
            f"{quantity}_bias_pct": float(middle(error)) if values else None,
            f"{quantity}_interval90_coverage": float(np.mean([value.covered for value in values])) if values else None,
        }
    return errors


def throughput_tau(members: Iterable[Predicted]) -> float | None:
    """Kendall's tau of throughput per GPU, predicted against measured, among the configs of one model and GPU [1].

    Mean over (model, accelerator), weighted by configs; pairs that the measurement ties do not count.
    """
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in members:
        if math.isfinite(sum(row.throughput)):
            groups[row.group["model"], row.group["accelerator"]].append(row.throughput)
    sizes = [len(pairs) for pairs in groups.values() if len(pairs) >= LEAST_RANKED]
    taus = [kendall_tau(*np.array(pairs).T) for pairs in groups.values() if len(pairs) >= LEAST_RANKED]
    return float(np.average(taus, weights=sizes)) if taus else None


def kendall_tau(first: FloatArray, second: FloatArray) -> float:
    """Kendall's rank correlation [1]: (concordant - discordant pairs) / pairs without ties.

    >>> kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == 1 / 3
    True
    """
    above = np.triu_indices(first.size, 1)
    agreement = np.sign(np.subtract.outer(first, first)[above]) * np.sign(np.subtract.outer(second, second)[above])
    pair_count = int(np.count_nonzero(agreement))
    return float(agreement.sum() / pair_count) if pair_count else 1.0


def _row(prediction: Predicted) -> dict[str, Any]:
    times = {
        f"{quantity}_{name}_ms": 1e3 * number if math.isfinite(number) else None
        for quantity, value in prediction.values.items()
        for name, number in (
            ("predicted", value.predicted),
            ("low", value.low),
            ("high", value.high),
            ("measured", value.measured),
        )
    }
    return {"line": prediction.line, **prediction.group, **times, "notes": list(prediction.notes)}


# --- calibrate -------------------------------------------------------------------------------------------------------

SCHEMA = "pdplan.calibration/1"

SCALES = {
    "memory": ("efficiency of memory traffic", "a run with TPOT"),
    "compute": ("efficiency of arithmetic", "a run with TTFT"),
    "host": ("host time per step and per request", "TPOT at two loads"),
    "arrival": ("TTFT overhead", "TTFT at two loads"),
}
"""What each scale is of, and what it needs to be seen."""


def calibration_dict(calibration: Calibration, overlay: str | None) -> dict[str, Any]:
    """The calibration as JSON-ready values; errors are predicted / measured - 1, held out None of a single row."""
    fit, is_alone = calibration.fit, len(calibration.rows) == 1
    errors = {"before": fit.before, "after": fit.after, "held": None if is_alone else fit.held}
    return {
        "schema": SCHEMA,
        "model": calibration.setup.model.name,
        "accelerator": calibration.setup.accelerator.name,
        "engine": calibration.engine,
        "rows": len(calibration.rows),
        "scales": {
            name: {
                "scale": getattr(fit.scales, name),
                "fitted": name in fit.free,
                "at_limit": name in fit.at_limit,
                "spread_before": SPREAD[name],
                "spread_after": fit.spread.get(name, SPREAD[name]),
            }
            for name in SCALES
        },
        "error": {key: None if logs is None else _summary(logs) for key, logs in errors.items()},
        "times": [
            {
                "where": calibration.rows[time.row].record.where,
                "point": point_text(calibration.rows[time.row]),
                "quantity": time.quantity.value,
                "measured_s": time.seconds,
                "error_before": math.expm1(before),
                "error_after": math.expm1(after),
                "error_held": None if is_alone else math.expm1(held_out),
            }
            for time, before, after, held_out in zip(calibration.seen, fit.before, fit.after, fit.held, strict=True)
        ],
        "explained": fit.explains,
        "strain": fit.strain,
        "refusal": calibration.refusal or None,
        "notes": [{"where": note.where, "reason": note.reason} for note in calibration.notes],
        "overlay": overlay,
    }


def calibration_document(value: dict[str, Any]) -> Document:
    """The answer, of a `calibration_dict`."""
    before, after, held_out = (value["error"][key] for key in ("before", "after", "held"))
    doubt = "A single row does not show how well the fit predicts others."
    if held_out:
        doubt = f"On rows left out of the fit the median error is {percent(held_out['median_abs'])}."
    biases = (signed_percent(error["bias"], 0) for error in (before, after))
    scales = [_scale(*item) for item in value["scales"].items()]
    return Document(
        headline=(
            f"{value['model']} on {value['accelerator']}, {value['engine']}: median error "
            f"{percent(before['median_abs'])} before the fit and {percent(after['median_abs'])} after, over "
            f"{plural(value['rows'], 'measured row')}.",
        ),
        sections=(
            Section(sentences=(doubt, f"The bias is {' before and '.join(biases)} after.")),
            Section(table=table_of(("scale of", "#factor", "#±", ""), scales)),
            Section(table=_times(value)),
            Section(sentences=tuple(f"{note['where']}: {note['reason']}" for note in value["notes"])),
        ),
        positive=value["refusal"] is None,
    )


def point_text(row: MeasuredRow) -> str:
    """The operating point of a row in a few words."""
    deployment = row.deployment
    if deployment is not None:
        layout = " > ".join(config.parallelism.words for config in row.configs)
        flight = deployment.concurrency * (1 if deployment.decode else deployment.row.prefill.count)
        return (
            f"{count(round(deployment.isl))} + {count(round(deployment.osl))} tokens, {flight:,.3g} in flight, {layout}"
        )
    prompts, new, _, decodes, context = map(round, row.point)
    words = []
    if prompts:
        words.append(f"{count(prompts)} × {count(new)} prompt tokens")
    if decodes:
        words.append(f"{plural(decodes, 'decode')} at {count(context)}")
    return ", ".join(words)


def _summary(logs: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    errors = np.expm1(logs)
    return {"median_abs": float(np.median(np.abs(errors))), "bias": float(np.median(errors))}


def _scale(name: str, scale: dict[str, Any]) -> tuple[str, ...]:
    meaning, needs = SCALES[name]
    if not scale["fitted"]:
        return meaning, "× 1", MISSING, f"kept: needs {needs}"
    state = "fitted, at the end of its range" if scale["at_limit"] else "fitted"
    return meaning, f"× {significant(scale['scale'])}", percent(scale["spread_after"]), state


def _times(value: dict[str, Any]) -> Table:
    """Every measured time; row and point stand once above those of the same run."""
    names = {
        Quantity.TTFT.value: "TTFT",
        Quantity.TPOT.value: "TPOT",
        Quantity.PREFILL_STEP.value: "step",
        Quantity.DECODE_STEP.value: "step",
    }
    error_columns = {"error_before": "before", "error_after": "after"}
    error_columns |= {"error_held": "held out"} if value["error"]["held"] else {}
    rows, last = [], None
    for item in value["times"]:
        head = ("", "") if item["where"] == last else (clean(Path(item["where"]).name, 30), item["point"])
        last = item["where"]
        errors = (signed_percent(item[key], 0) for key in error_columns)
        rows.append((*head, names[item["quantity"]], duration(item["measured_s"]), *errors))
    heads = ("point", "time", "#measured", *(f"#{head}" for head in error_columns.values()))
    return table_of((Column("row", optional=True), *heads), rows)
