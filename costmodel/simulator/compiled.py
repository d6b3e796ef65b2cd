"""What the event loop is made of: functions and records that run as plain Python, and that numba can compile.

State is kept in records (requests, lanes, groups ...): objects with slots in plain Python, rows of a structured array
where the loop is compiled. Both do the same floating-point operations in the same order (no fast-math, no fused
multiply-add), so results are identical to the bit. `backend` says which of the two serves a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

AnyFunction = Callable[..., Any]
Function = TypeVar("Function", bound=AnyFunction)
Record = TypeVar("Record")
Floats = MutableSequence[float]
Ints = MutableSequence[int]
Events = list[tuple[float, int, int, int]]
"""Heap of (time [s], priority, sequence number, request or lane)."""
Column = NDArray[Any] | Sequence[float] | Sequence[int] | float | int

PARTS: dict[AnyFunction, AnyFunction] = {}
"""The functions of the loop, and what numba compiles for each."""


def compile_loop(function: Function) -> Function:
    """Make the function a part of the loop; as it stands, it is the plain one."""
    PARTS[function] = function
    return function


def compiled_as(other: Function) -> Callable[[Function], Function]:
    """Make a function a part of the loop that numba does not know; `other` gives the same and is compiled for it."""

    def mark(function: Function) -> Function:
        PARTS[function] = other
        return function

    return mark


def records(
    kind: type[Record], size: int, columns: Mapping[str, Column], *, compiled: bool = False
) -> Sequence[Record]:
    """`size` records; a field is filled from its column or constant, and -1 (no link, never) if it has none."""
    types = get_type_hints(kind)
    if not compiled:
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
    if isinstance(rows, np.ndarray):
        return np.array(rows[name])
    return np.array([getattr(row, name) for row in rows])


def floats(values: NDArray[np.float64], *, compiled: bool = False) -> Floats:
    """The numbers as the loop's mutable sequence; always a copy."""
    return cast("Floats", np.array(values, dtype=np.float64) if compiled else values.tolist())


def ints(values: NDArray[np.int64], *, compiled: bool = False) -> Ints:
    """The integers as the loop's mutable sequence; always a copy."""
    return cast("Ints", np.array(values, dtype=np.int64) if compiled else values.tolist())
