"""Compilation of the hot loop: the same functions run under numba if it is installed, and as plain Python if not.

State is kept in records (requests, lanes, groups ...): objects with slots in plain Python, rows of a structured array
under numba. Both do the same floating-point operations in the same order (no fast-math, no fused multiply-add), so
results are identical to the bit. `PDPLAN_SIMULATOR=python` switches compilation off.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
Record = TypeVar("Record")
Floats = MutableSequence[float]
Ints = MutableSequence[int]
Events = list[tuple[float, int, int, int]]
"""Heap of (time [s], priority, sequence number, request or lane)."""
Column = NDArray[Any] | Sequence[float] | Sequence[int] | float | int

COMPILED = os.environ.get("PDPLAN_SIMULATOR", "") != "python" and importlib.util.find_spec("numba") is not None
"""Whether numba compiles the loop."""


def compile_loop(function: Function) -> Function:
    """Compile with numba (cached on disk), or hand back the function as it is."""
    if not COMPILED:
        return function
    numba: Any = importlib.import_module("numba")
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = cache_folder()
    try:
        return cast("Function", numba.njit(cache=True)(function))
    finally:
        numba.config.CACHE_DIR = before


@cache
def cache_folder() -> str:
    """Where compiled code is kept, one folder per state of the sources.

    numba looks only at the file of a function to see whether its cache is stale, but our functions call each other
    across files; so the digest of all of them is part of the path.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()[:16]
    folder = (
        _kept_in(here / "__pycache__") or _kept_in(Path.home() / ".cache" / "pdplan") or Path(tempfile.gettempdir())
    )
    for stale in folder.glob("loop-*"):
        if stale.name != f"loop-{digest}":
            shutil.rmtree(stale, ignore_errors=True)
    return str(folder / f"loop-{digest}")


def _kept_in(folder: Path) -> Path | None:
    """The folder, made if it is not there, or None if nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def records(kind: type[Record], size: int, columns: Mapping[str, Column]) -> Sequence[Record]:
    """`size` records; a field is filled from its column or constant, and -1 (no link, never) if it has none."""
    types = get_type_hints(kind)
    if not COMPILED:
        return _objects(kind, size, columns, types)
    rows = np.full(size, -1, dtype=np.dtype([(name, _code(types[name])) for name in types], align=True))
    for name in types:
        rows[name] = columns.get(name, -1)
    return cast("Sequence[Record]", rows)


def _objects(
    kind: type[Record], size: int, columns: Mapping[str, Column], types: Mapping[str, type]
) -> Sequence[Record]:
    made = [kind.__new__(kind) for _ in range(size)]
    for name, of in types.items():
        value = np.broadcast_to(np.asarray(columns.get(name, -1), dtype=_code(of)), (size,)).tolist()
        deque(map(getattr(kind, name).__set__, made, value), maxlen=0)  # the slot itself: half the time of setattr
    return made


def _code(of: type) -> str:
    return "f8" if of is float else "i8"


def column(rows: Sequence[Any], name: str) -> NDArray[Any]:
    """One field of all records."""
    if COMPILED:
        return np.array(cast("NDArray[Any]", rows)[name])
    return np.array([getattr(row, name) for row in rows])


def floats(values: NDArray[np.float64]) -> Floats:
    """The numbers as the backend's mutable sequence; always a copy."""
    return cast("Floats", np.array(values, dtype=np.float64) if COMPILED else values.tolist())


def ints(values: NDArray[np.int64]) -> Ints:
    """The integers as the backend's mutable sequence; always a copy."""
    return cast("Ints", np.array(values, dtype=np.int64) if COMPILED else values.tolist())
