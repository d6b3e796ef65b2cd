"""Traces of sessions: which turns they have, and when and how long these are.

Two kinds of JSON lines are known. With `session_id` (AIPerf, Mooncake) the first turn of a session has a `timestamp`
and later ones a `delay` after the answer before [ms]; lengths are those of the new tokens. With `chat_id` and
`parent_chat_id` (Alibaba's Bailian traces) every turn has a `timestamp` [s], and its input is all that was before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.errors import InputError, shown
from costmodel.units import MILLI
from search_spaces.quantities import rounded

from .reader import parse_object, read_lines

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""Quantiles by which a distribution is written down."""
LEAST_PAUSE = 1e-3
"""As a shorter pause is written [s]."""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """Sessions of a trace, read once.

    starts: of the sessions [s]; turns (sessions,); pause: before all turns but the first [s]; user, answer (requests,):
    new tokens and output tokens of every turn [token]; answers_in: whether the pauses have the time of the answer
    before in them.
    """

    path: str
    starts: FloatArray
    turns: FloatArray
    pause: FloatArray
    user: FloatArray
    answer: FloatArray
    answers_in: bool

    @property
    def rate(self) -> float | None:
        """New sessions [1/s]; None if all began at one moment."""
        span = float(np.ptp(self.starts))
        return (self.starts.size - 1) / span if span > 0.0 else None

    def mapping(self, request_rate: float | None = None) -> dict[str, Any]:
        """The `workload:` block of workload.yaml as plain data; request_rate: to plan for, if not the trace's [1/s]."""
        rate = self.rate
        if rate is None and request_rate is None:
            raise InputError(f"{self.path}: all sessions begin at the same time; state a rate of requests (--rate)")
        rate_field = {} if request_rate is not None or rate is None else {"rate": rounded(rate)}
        quantiles = _quantiles(np.maximum(self.pause, LEAST_PAUSE)) if self.pause.size else {"fixed": LEAST_PAUSE}
        sessions = {
            **rate_field,
            "turns": _quantiles(self.turns),
            "think_time": quantiles if "quantiles" in quantiles else {"mean": quantiles["fixed"]},
            "user_tokens": _quantiles(np.maximum(self.user, 1.0)),
            "answer_tokens": _quantiles(np.maximum(self.answer, 1.0)),
        }
        return {**({} if request_rate is None else {"request_rate": request_rate}), "sessions": sessions}


def _quantiles(values: FloatArray) -> dict[str, Any]:
    """A distribution as workload.yaml states one."""
    points = np.quantile(values, PROBABILITIES)
    if points[0] == points[-1]:
        return {"fixed": rounded(points[0])}
    return {"quantiles": {f"{p:g}": rounded(x) for p, x in zip(PROBABILITIES, points, strict=True)}}


def is_session_trace(path: Path) -> bool:
    """Whether the first line of a file is a turn of a session; what cannot be read is left to who reads it."""
    try:
        _, line = next(read_lines(path), (1, b""))
        return line.lstrip().startswith(b"{") and _kind(parse_object(line)) is not None
    except InputError:
        return False


def read_sessions(path: Path, limit: int | None = None) -> SessionSummary:
    """Read the sessions of a trace, of its first `limit` lines."""
    rows: dict[Any, list[tuple[float | None, float | None, float, float]]] = {}
    root: dict[Any, Any] = {}
    whole = False
    for number, line in islice(read_lines(path), limit):
        where = f"{path}:{number}"
        row = parse_object(line, where)
        kind = _kind(row)
        if kind is None:
            raise InputError(f"{where}: the turn has no session_id or chat_id, but those above have")
        whole = kind == "chat_id"
        parent = row.get("parent_chat_id", -1) if whole else None
        name = root.get(parent, row[kind]) if whole else row[kind]
        root[row[kind]] = name
        time = _number(where, row, "timestamp", 1.0 if whole else MILLI)
        delay = _number(where, row, "delay", MILLI)
        lengths = [_number(where, row, key, 1.0) for key in ("input_length", "output_length")]
        if lengths[0] is None or lengths[1] is None:
            raise InputError(f"{where}: a turn needs input_length and output_length")
        rows.setdefault(name, []).append((time, delay, lengths[0], lengths[1]))
    if not rows:
        raise InputError(f"{path}: the trace is empty: it has no turns")
    return _summary(path, list(rows.values()), whole=whole)


def _summary(
    path: Path, sessions: list[list[tuple[float | None, float | None, float, float]]], *, whole: bool
) -> SessionSummary:
    """The turns of all sessions together; whole: the input of a turn is all that was before."""
    starts, pauses, user, answer = [], [], [], []
    answers_in = False
    for turns in sessions:
        if turns[0][0] is None:
            raise InputError(f"{path}: the first turn of every session needs a timestamp")
        starts.append(turns[0][0])
        before = 0.0
        for number, (time, delay, isl, osl) in enumerate(turns):
            user.append(max(isl - before, 1.0) if whole else isl)
            answer.append(osl)
            before = isl + osl if whole else 0.0
            last = turns[number - 1][0]
            if number and delay is not None:
                pauses.append(delay)
            elif number and time is not None and last is not None:
                pauses.append(max(time - last, 0.0))
                answers_in = True
    sizes = np.array([len(turns) for turns in sessions], dtype=np.float64)
    columns = (np.array(values, dtype=np.float64) for values in (starts, pauses, user, answer))
    begin, pause, new, out = columns
    return SessionSummary(str(path), begin, sizes, pause, new, out, answers_in)


def _kind(row: Mapping[str, Any]) -> str | None:
    """The key by which a row names its session."""
    return next((key for key in ("session_id", "chat_id") if key in row), None)


def _number(where: str, row: Mapping[str, Any], key: str, unit: float) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1e15:
        raise InputError(f"{where}: {key} {shown(value)} must be a number of at least 0")
    return float(value) * unit
