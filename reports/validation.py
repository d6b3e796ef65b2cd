"""Prediction errors in numbers: medians, 90th percentiles, bias, coverage and rank correlation, in all and by group."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.measured_predictions import SERVING_GROUP, Outcome, Predicted
from search_spaces.measurements import Format

FloatArray = NDArray[np.float64]

LEAST_RANKED = 5
"""Configs of one model and accelerator below which their order says nothing."""
SERVING_QUANTITIES = ("ttft", "tpot")
MOST_REASONS = 1000
"""Refusals listed one by one; beyond, they are only counted."""


def validation_dict(kind: Format, outcome: Outcome, *, with_rows: bool = False) -> dict[str, Any]:
    """The errors of one file as JSON-ready values.

    Percentages are of the measured value: `*_bias_pct` is the median of (predicted / measured - 1) of TTFT and TPOT,
    and the mean of it for step latencies, whose `mape` is a mean too; coverage is a share of rows.
    """
    value: dict[str, Any] = {
        "format": str(kind),
        "rows": outcome.rows,
        "predicted": len(outcome.predicted),
        **_errors(kind, outcome.predicted),
        "groups": [
            {**dict(group), "rows": len(members), "predicted": len(members), **_errors(kind, members)}
            for group, members in _groups(outcome.predicted)
        ],
        "refused": [{"line": one.line, "reason": one.reason} for one in outcome.refused[:MOST_REASONS]],
        "refused_reasons": dict(Counter(one.reason for one in outcome.refused)),
        "notes": dict(Counter(note for one in outcome.predicted for note in one.notes)),
    }
    if kind is Format.SERVING:
        sound = [one for one in outcome.predicted if not one.suspect]
        doubts = Counter((one.suspect, *one.group.values()) for one in outcome.predicted if one.suspect)
        value["suspect"] = [
            dict(zip(("rule", *SERVING_GROUP, "rows"), (*key, rows), strict=True))
            for key, rows in sorted(doubts.items())
        ]
        value["without_suspect"] = {"rows": len(sound), **_errors(kind, sound)}
        value["throughput_kendall_tau"] = throughput_tau(outcome.predicted)
        for mode in sorted({one.group["mode"] for one in outcome.predicted}):
            members = [one for one in outcome.predicted if one.group["mode"] == mode]
            value[mode] = {"rows": len(members), **_errors(kind, members)}
    if with_rows:
        value["predictions"] = [_row(one) for one in outcome.predicted]
    return value


def _errors(kind: Format, members: Sequence[Predicted]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for quantity in SERVING_QUANTITIES if kind is Format.SERVING else ("latency",):
        values = [one.values[quantity] for one in members if one.values[quantity].measured > 0]
        error = np.array([value.error for value in values])
        covered = [value.covered for value in values]
        steps = quantity == "latency"
        found[f"{quantity}_mape_pct" if steps else f"{quantity}_median_abs_pct"] = _of(
            np.mean if steps else np.median, np.abs(error)
        )
        found[f"{quantity}_p90_abs_pct"] = _of(lambda data: np.quantile(data, 0.9), np.abs(error))
        found[f"{quantity}_bias_pct"] = _of(np.mean if steps else np.median, error)
        found[f"{quantity}_interval90_coverage"] = float(np.mean(covered)) if covered else None
    return found


def _of(statistic: Any, error: FloatArray) -> float | None:
    return float(100.0 * statistic(error)) if error.size else None


def _groups(members: Iterable[Predicted]) -> list[tuple[tuple[tuple[str, str], ...], list[Predicted]]]:
    """Rows by model, accelerator, engine and mode (steps: phase and dtype), in alphabetical order."""
    groups: dict[tuple[tuple[str, str], ...], list[Predicted]] = defaultdict(list)
    for one in members:
        groups[tuple(one.group.items())].append(one)
    return sorted(groups.items())


def throughput_tau(members: Iterable[Predicted]) -> float | None:
    """Kendall's tau of throughput per GPU, predicted against measured, among the configs of one model and GPU [1].

    Mean over (model, accelerator), weighted by configs; pairs that the measurement ties do not count.
    """
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in members:
        if math.isfinite(sum(one.throughput)):
            groups[one.group["model"], one.group["accelerator"]].append(one.throughput)
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
    untied = int(np.count_nonzero(agreement))
    return float(agreement.sum() / untied) if untied else 1.0


def _row(one: Predicted) -> dict[str, Any]:
    times = {
        f"{quantity}_{name}_ms": 1e3 * number if math.isfinite(number) else None
        for quantity, value in one.values.items()
        for name, number in (
            ("predicted", value.predicted),
            ("low", value.low),
            ("high", value.high),
            ("measured", value.measured),
        )
    }
    return {"line": one.line, **one.group, **times, "notes": list(one.notes), "suspect": one.suspect or None}
