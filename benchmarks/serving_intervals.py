"""Intervals from the residuals of held-out models, and how many rows of a model those of the others hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving_tables import Table  # noqa: E402

from costmodel.serving.interval import ErrorTable, Factors, Regime, interval_factors  # noqa: E402
from costmodel.serving.load import Steady  # noqa: E402
from search_spaces.measured_batches import regime_of  # noqa: E402

Array = NDArray[np.float64]

LEAST_ROWS = 25
"""Residuals that a regime needs for an interval of its own."""
HELD = 0.94
"""Share of held-out residuals inside an interval: more than 0.9, as new models are less like the old than these."""

Steadies = list[Steady]
Logs = list[tuple[Array, Array]]


def logs_of(tables: Sequence[Table], steadies: Steadies) -> Logs:
    """ln(predicted / measured) of TTFT and TPOT of each table."""
    return [
        (np.log(steady.ttft / table.ttft)[:, 0], np.log(steady.tpot / table.tpot)[:, 0])
        for table, steady in zip(tables, steadies, strict=True)
    ]


def regimes_of(table: Table, steady: Steady) -> list[Regime]:
    """The regime of every row as it is predicted."""
    shares, lines = steady.prefill_share[:, 0].tolist(), steady.line[:, 0].tolist()
    return [
        regime_of(each, share, line) for each, share, line in zip(table.batch.deployments, shares, lines, strict=True)
    ]


def factors(tables: Sequence[Table], steadies: Steadies) -> dict[str, dict[str, dict[str, float]]]:
    """Interval factors of TTFT and TPOT by regime, from held-out residuals.

    Intervals of an engine's own are for TTFT only, which its scheduler decides; TPOT is a matter of kernels.
    """
    found: dict[str, dict[str, list[float]]] = {"ttft": {}, "tpot": {}}
    for table, steady, (ttft, tpot) in zip(tables, steadies, logs_of(tables, steadies), strict=True):
        for index, regime in enumerate(regimes_of(table, steady)):
            for key in regime.keys:
                found["ttft"].setdefault(key, []).append(-ttft[index])
            for key in replace(regime, engine="").keys:
                found["tpot"].setdefault(key, []).append(-tpot[index])
    return {quantity: quantiles(regimes) for quantity, regimes in found.items()}


def quantiles(regimes: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """The narrowest factors that hold the share HELD of ln(measured / predicted), for regimes with rows enough."""
    found = {}
    for key, logs in sorted(regimes.items()):
        if len(logs) >= LEAST_ROWS or key == "all":
            low, high = narrowest(np.array(logs))
            found[key] = {"low": round(float(np.exp(low)), 3), "high": round(float(np.exp(high)), 3), "rows": len(logs)}
    return found


def narrowest(values: Array) -> tuple[float, float]:
    """The shortest interval around 0 that holds the share HELD of the values."""
    starts = np.linspace(0.0, 1.0 - HELD, 29)
    low, high = np.minimum(np.quantile(values, starts), 0.0), np.maximum(np.quantile(values, starts + HELD), 0.0)
    best = int(np.argmin(high - low))
    return float(low[best]), float(high[best])


def coverage(
    tables: Sequence[Table], steadies: Steadies, groups: Mapping[str, Sequence[int]]
) -> dict[str, tuple[float, float]]:
    """Share of held-out rows of each group inside the intervals that come from the other models: (TTFT, TPOT) [1]."""
    inside: list[tuple[list[bool], list[bool]]] = [([], []) for _ in tables]
    for family in {table.family for table in tables}:
        others = [i for i, table in enumerate(tables) if table.family != family]
        bounds = error_table(factors([tables[i] for i in others], [steadies[i] for i in others]))
        for i in (i for i, table in enumerate(tables) if table.family == family):
            regimes = regimes_of(tables[i], steadies[i])
            for part, (quantity, logs) in enumerate(
                zip(("ttft", "tpot"), logs_of([tables[i]], [steadies[i]])[0], strict=True)
            ):
                for regime, log in zip(regimes, logs, strict=True):
                    low, high = interval_factors(bounds, quantity, regime)
                    inside[i][part].append(bool(low <= np.exp(-log) <= high))
    return {
        key: (share([inside[i][0] for i in members]), share([inside[i][1] for i in members]))
        for key, members in {**groups, "all": range(len(tables))}.items()
    }


def share(parts: Sequence[list[bool]]) -> float:
    """Share of the true values of all parts together [1]."""
    return float(np.mean(np.concatenate([np.asarray(part, dtype=float) for part in parts])))


def error_table(quantities: dict[str, dict[str, dict[str, float]]]) -> ErrorTable:
    """Intervals as the catalog would give them."""
    return {
        quantity: {key: Factors(one["low"], one["high"], int(one["rows"])) for key, one in regimes.items()}
        for quantity, regimes in quantities.items()
    }
