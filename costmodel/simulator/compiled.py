"""The one back end: numba compiles the event loop once, and keeps it on disk.

The loop works on records (`records`), held in structured arrays and passed on as bare pointers, which compile several
times as fast as arrays do. No fast-math and no fused multiply-add, so every machine gives the same bytes. With
`NUMBA_DISABLE_JIT=1` the same functions run as plain Python, slowly, for a debugger.

Source: numba's extension API (https://numba.readthedocs.io/en/stable/extending).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, overload, register_model

from .kept import kept_folder

Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Our functions divide by nothing that may be 0, own no memory, and are called by each other only."""


def compiled(function: Function) -> Function:
    """Make the function a part of the loop."""
    made: Function = numba.njit(**OPTIONS)(function)
    return made


def entry(function: Function) -> Function:
    """Make the function one that Python calls; with all that it calls it is compiled once and kept."""
    folder, before = kept_folder(), numba.config.CACHE_DIR
    numba.config.CACHE_DIR = "" if folder is None else str(folder)
    try:
        made: Function = numba.njit(error_model="numpy", cache=folder is not None)(function)
    finally:
        numba.config.CACHE_DIR = before
    return made


class Rows(types.Type):
    """numba's type of a pointer to the records, or numbers, of an array."""

    def __init__(self, row: types.Type) -> None:
        self.row = row
        super().__init__(name=f"Rows({row})")


@register_model(Rows)
class _RowsModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, of: Rows) -> None:
        super().__init__(manager, of, ir.IntType(8).as_pointer())


def rows(array: np.ndarray[Any, Any]) -> Any:
    """The array as the loop reads it: `rows(array)[k].field` of records, `rows(array)[k]` of numbers."""
    return array.view(np.recarray) if array.dtype.names else array


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_context: Any, array: types.Array) -> Any:
    def code(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, values[0]).data
        return builder.bitcast(data, context.get_value_type(sig.return_type))

    return Rows(array.dtype)(array), code


@overload(rows)  # type: ignore[untyped-decorator]
def _rows(array: types.Array) -> Any:  # noqa: ARG001 -- numba compares the names of arguments
    def code(array: types.Array) -> Any:
        return _pointer(array)

    return code


@infer_global(operator.getitem)
class _GetRow(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:  # noqa: ARG002 -- as numba calls it
        if isinstance(args[0], Rows) and isinstance(args[1], types.Integer):
            return signature(args[0].row, args[0], types.intp)
        return None


@infer_global(operator.setitem)
class _SetRow(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:  # noqa: ARG002 -- as numba calls it
        if isinstance(args[0], Rows) and isinstance(args[1], types.Integer):
            return signature(types.none, args[0], types.intp, args[0].row)
        return None


def _place(context: Any, builder: Any, of: Rows, pointer: Any, index: Any) -> Any:
    """Address of row `index`."""
    size = context.get_abi_sizeof(context.get_data_type(of.row))
    at = builder.gep(pointer, [builder.mul(index, ir.Constant(ir.IntType(64), size))])
    return builder.bitcast(at, context.get_data_type(of.row).as_pointer())


@lower_builtin(operator.getitem, Rows, types.intp)  # type: ignore[untyped-decorator]
def _get_row(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    at = _place(context, builder, sig.args[0], *values)
    return at if isinstance(sig.return_type, types.Record) else builder.load(at)


@lower_builtin(operator.setitem, Rows, types.intp, types.Any)  # type: ignore[untyped-decorator]
def _set_row(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    pointer, index, value = values
    builder.store(value, _place(context, builder, sig.args[0], pointer, index))
    return context.get_dummy_value()
