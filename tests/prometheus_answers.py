"""Answers of Prometheus as /api/v1/query_range gives them for the series of vLLM's replicas."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START = 1_777_622_400
"""2026-05-01 08:00 UTC."""
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
"""Buckets of vllm:time_to_first_token_seconds [s]."""
GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
"""Buckets of its times per output token [s]."""
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 8192)
"""Buckets of its lengths [token]: 1, 2, 5 times powers of ten up to max_model_len."""


def histogram_series(
    name: str, bounds: Sequence[float], steps: Sequence[Sequence[float]], pod: str, *, step: float, restart: int = -1
) -> list[dict[str, Any]]:
    """The series of one histogram of one pod: observed values by step; restart: step after which it counts from 0."""
    labels = {"engine": "0", "instance": f"{pod}:8000", "job": "vllm", "model_name": "m", "pod": pod}
    rows = []
    for bound in (*bounds, math.inf):
        le = "+Inf" if math.isinf(bound) else str(bound)
        increases = [sum(value <= bound for value in values) for values in steps]
        rows.append(_series(f"{name}_bucket", labels | {"le": le}, increases, step, restart))
    rows.append(_series(f"{name}_sum", labels, [sum(values) for values in steps], step, restart))
    return rows


def counter_series(name: str, increases: Sequence[float], pod: str, *, step: float) -> dict[str, Any]:
    return _series(name, {"pod": pod}, increases, step, -1)


def _series(
    name: str, labels: Mapping[str, str], increases: Sequence[float], step: float, restart: int
) -> dict[str, Any]:
    total, values = 7.0, [[START, "7"]]
    for number, increase in enumerate(increases):
        total = increase if number == restart else total + increase
        values.append([START + step * (number + 1), f"{total:g}"])
    return {"metric": {"__name__": name, **labels}, "values": values}


def answer(folder: Path, *series: dict[str, Any], kind: str = "matrix") -> Path:
    path = folder / "prometheus.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": kind, "result": list(series)}}), "utf-8")
    return path
