"""Cells of a measurement file: words and numbers within what is believed of them, or the reason why not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from costmodel.quoting import shown
from costmodel.units import MEGA, MILLI

from .bounds import DEGREE, MAX_GPUS, MAX_NUM_SEQS, TOKENS, TPOT, TTFT, Bounds

Cells = Mapping[str, str]

CONCURRENCY: Final = Bounds(1, MEGA, "requests")
STEP_BATCH: Final = Bounds(1, MAX_NUM_SEQS.high, "requests")
GPUS: Final = MAX_GPUS
RANKS: Final = Bounds(DEGREE.low, DEGREE.high)
WORKERS: Final = Bounds(1, DEGREE.high)
SHARE: Final = Bounds(0.01, 1)
FIRST_TOKEN: Final = Bounds(TTFT.low / MILLI, TTFT.high / MILLI, "ms")
NEXT_TOKEN: Final = Bounds(TPOT.low / MILLI, TPOT.high / MILLI, "ms")
STEP_LATENCY: Final = FIRST_TOKEN
"""A step takes no longer than the wait for a first token, of which it is a part."""

MODES: Final = {
    **dict.fromkeys(("colocated", "aggregated", "agg"), "colocated"),
    **dict.fromkeys(("disaggregated", "disagg", "dis"), "disaggregated"),
}
PHASES: Final = {
    **dict.fromkeys(("prefill", "context", "ctx"), "prefill"),
    **dict.fromkeys(("decode", "generation", "gen"), "decode"),
}
PREFIXED = re.compile(r"(?:tp|pp|dp|ep)\s*=?\s*(\d+)", re.IGNORECASE)


class CellError(Exception):
    """A cell does not hold what its column promises."""


def text(cells: Cells, name: str) -> str:
    """The text of a cell that must not be empty."""
    value = cells.get(name, "")
    if not value:
        raise CellError(f"{name} is empty")
    return value


def mode_of(cells: Cells) -> str:
    """Return "colocated" or "disaggregated"; where the cell is empty, the workers of the decode side tell."""
    written = cells.get("mode", "")
    apart = cells.get("decode_workers", "0") not in ("", "0")
    mode = MODES.get(written.lower()) if written else "disaggregated" if apart else "colocated"
    if mode is None:
        raise CellError(f"mode {shown(written)} is neither 'colocated' nor 'disaggregated'")
    if apart and mode == "colocated":
        raise CellError(
            f"mode {shown(written)} has no decode workers, but decode_workers is {shown(cells['decode_workers'])}"
        )
    return mode


def phase_of(cells: Cells) -> str:
    """Return "prefill" or "decode"."""
    written = text(cells, "phase")
    phase = PHASES.get(written.lower())
    if phase is None:
        raise CellError(f"phase {shown(written)} is neither 'prefill' nor 'decode'")
    return phase


def number(written: str, name: str) -> float:
    """A finite number."""
    try:
        value = float(written)
    except ValueError:
        raise CellError(f"{name} {shown(written)} is not a number") from None
    if not math.isfinite(value):
        raise CellError(f"{name} {shown(written)} is not a finite number")
    return value


def bounded(cells: Cells, name: str, bounds: Bounds) -> float:
    """A number that must be there."""
    written = text(cells, name)
    value = number(written, name)
    if not bounds.holds(value):
        raise CellError(f"{name} {shown(written)} {bounds.sentence()}")
    return value


def count(cells: Cells, name: str, bounds: Bounds) -> int:
    """A whole number that must be there."""
    value = bounded(cells, name, bounds)
    if value != int(value):
        raise CellError(f"{name} {shown(cells[name])} must be a whole number")
    return int(value)


def whole(cells: Cells, name: str, default: int, bounds: Bounds = RANKS) -> int:
    """A whole number, also written as in "TP8"; empty and 0 mean `default`."""
    written = cells.get(name, "")
    prefixed = PREFIXED.fullmatch(written)
    value = number(prefixed[1] if prefixed else written, name) if written else 0.0
    if value != int(value) or value < 0:
        raise CellError(f"{name} {shown(written)} must be a whole number")
    if value and not bounds.holds(value):
        raise CellError(f"{name} {shown(written)} {bounds.sentence()}")
    return int(value) or default


def length(cells: Cells, name: str) -> float:
    """A length of prompts or answers, also a mean one [token]."""
    return bounded(cells, name, TOKENS)


def measured(cells: Cells, name: str, bounds: Bounds) -> float:
    """A measured time in milliseconds as seconds; NaN where the file has none (the row is predicted all the same)."""
    written = cells.get(name, "")
    if not written:
        return math.nan
    value = number(written, name)
    if not bounds.holds(value):
        raise CellError(f"{name} {shown(written)} {bounds.sentence()}; leave it empty where nothing was measured")
    return value / 1e3
