"""Error bars from the residuals of predictions whose parameters never saw the model: a pure function of these."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving_tables import Table  # noqa: E402

from costmodel.queues.steady_state import Steady  # noqa: E402
from search_spaces.serving_error import ORDER, ErrorTable, Factors, Stratum, interval_factors, stratum_of  # noqa: E402

Array = NDArray[np.float64]
Steadies = list[Steady]
Logs = list[tuple[Array, Array]]

LEAST_ROWS = 5
"""Residuals that a stratum needs for bars of its own."""
HELD = 0.92
"""Share of held-out residuals inside an interval: a little more than 0.9, as quantiles of few rows fall short."""
ROWS, FAMILIES = 10.0, 2.0
"""Rows, and families of models, with which a stratum's own quantiles weigh as much as those around it."""


@dataclass(frozen=True)
class Residual:
    """ln(measured / predicted) of one row by quantity, where it stands, and the family that the fit left out for it."""

    stratum: Stratum
    family: str
    logs: Mapping[str, float]


def logs_of(tables: Sequence[Table], steadies: Steadies) -> Logs:
    """ln(predicted / measured) of TTFT and TPOT of each table."""
    return [
        (np.log(steady.ttft / table.ttft)[:, 0], np.log(steady.tpot / table.tpot)[:, 0])
        for table, steady in zip(tables, steadies, strict=True)
    ]


def residuals_of(tables: Sequence[Table], steadies: Steadies) -> list[list[Residual]]:
    """The residuals of each table's rows."""
    parts: list[list[Residual]] = []
    for table, (ttft, tpot) in zip(tables, logs_of(tables, steadies), strict=True):
        rows = zip(table.batch.deployments, -ttft, -tpot, strict=True)
        strata = [(stratum_of(one.model, one.prefill, one.engine, one.row.mode), *logs) for one, *logs in rows]
        parts.append([Residual(each, table.family, dict(zip(ORDER, logs, strict=True))) for each, *logs in strata])
    return parts


def factors(residuals: Sequence[Residual]) -> ErrorTable:
    """Bars of every stratum with rows enough, the nearest ones drawn to those around them.

    Own quantiles, every family weighing the same, are mixed with those of the stratum around by how few rows and
    families there are; in a model's own stratum by its rows alone.
    """
    found: dict[str, dict[str, Factors]] = {}
    for quantity, names in ORDER.items():
        members: dict[str, list[Residual]] = defaultdict(list)
        for residual in residuals:
            for key in residual.stratum.keys(quantity):
                members[key].append(residual)
        ends: dict[str, Array] = {}
        for key in sorted(members, key=lambda key: (key != "all", key.count("/"))):
            rows = members[key]
            families = np.inf if key.count("/") + 1 == len(names) else len({row.family for row in rows})
            weight = min(len(rows) / (len(rows) + ROWS), 1.0 / (1.0 + FAMILIES / families))
            own, around = _quantiles(rows, quantity), ends.get(key.rpartition("/")[0], ends.get("all"))
            if around is not None:
                own = weight * own + (1.0 - weight) * around if len(rows) >= LEAST_ROWS else around
            ends[key] = own
        kept = {key: np.exp(own).round(3).tolist() for key, own in ends.items() if len(members[key]) >= LEAST_ROWS}
        found[quantity] = {key: Factors(low, high, len(members[key])) for key, (low, high) in sorted(kept.items())}
    return found


def _quantiles(rows: Sequence[Residual], quantity: str) -> Array:
    """The shortest interval around 0 that holds the share HELD of the rows, each weighing 1 over its family's."""
    count = Counter(row.family for row in rows)
    values = np.array([row.logs[quantity] for row in rows])
    order = np.argsort(values)
    weights = np.array([1.0 / count[row.family] for row in rows])[order]
    places = (np.cumsum(weights) - weights / 2.0) / weights.sum()
    starts = np.linspace(0.0, 1.0 - HELD, 29)
    low = np.minimum(np.interp(starts, places, values[order]), 0.0)
    high = np.maximum(np.interp(starts + HELD, places, values[order]), 0.0)
    best = int(np.argmin(high - low))
    return np.array([low[best], high[best]])


def coverage(
    tables: Sequence[Table], steadies: Steadies, groups: Mapping[str, Sequence[int]]
) -> dict[str, tuple[float, float]]:
    """Share of held-out rows of each group inside the intervals that come from the other models: (TTFT, TPOT) [1]."""
    rows = residuals_of(tables, steadies)
    every = [row for part in rows for row in part]
    bounds = {family: factors([row for row in every if row.family != family]) for family in {t.family for t in tables}}
    held = [[[is_held(bounds[row.family], row, name) for name in ORDER] for row in part] for part in rows]
    parts = {**groups, "all": range(len(tables))}
    shares = {key: np.concatenate([held[i] for i in members]).mean(axis=0) for key, members in parts.items()}
    return {key: (float(ttft), float(tpot)) for key, (ttft, tpot) in shares.items()}


def by_stratum(residuals: Sequence[Residual]) -> dict[str, tuple[int, float, float]]:
    """Rows, and the share of them inside the bars (TTFT, TPOT) [1], by engine, GPU generation, structure and dtype."""
    table, strata = factors(residuals), defaultdict[str, list[list[bool]]](list)
    for row in residuals:
        key = " ".join((row.stratum.engine, row.stratum.generation, row.stratum.structure, row.stratum.dtype))
        strata[key].append([is_held(table, row, name) for name in ORDER])
    shares = {key: np.mean(rows, axis=0) for key, rows in strata.items()}
    return {key: (len(strata[key]), float(ttft), float(tpot)) for key, (ttft, tpot) in sorted(shares.items())}


def is_held(table: ErrorTable, row: Residual, quantity: str) -> bool:
    """Whether the measured value lies inside the interval of the prediction."""
    low, high = interval_factors(table, quantity, row.stratum)
    return bool(low <= np.exp(row.logs[quantity]) <= high)
