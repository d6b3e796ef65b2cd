"""The one back end: numba compiles the event loop once, and keeps it on disk.

The loop works on records (`records`), held in structured arrays and passed on as bare pointers, which compile in two
thirds of the time that arrays take. No fast-math and no fused multiply-add, so every machine gives the same bytes. With
`NUMBA_DISABLE_JIT=1` the same functions run as plain Python, slowly, for a debugger.

Source: numba's extension API (https://numba.readthedocs.io/en/stable/extending).
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import lower_builtin, lower_getattr_generic, register_model
from numba.np.numpy_support import from_dtype

from .records import Engine, Lane, State, World, dtype_of

Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Our functions divide by nothing that may be 0, own no memory, and are called by each other only."""


def compiled(function: Function) -> Function:
    """Make the function a part of the loop."""
    dispatcher: Function = numba.njit(**OPTIONS)(function)
    return dispatcher


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function one that Python calls; with all that it calls it is compiled once, and kept by numba.

    Its first argument is a `World` inside, and the arrays of it outside.
    """
    try:
        dispatcher = numba.njit(error_model="numpy", cache=True)(function)
    except RuntimeError:  # there is no folder that takes files
        dispatcher = numba.njit(error_model="numpy")(function)
    index = _index(dispatcher)
    if index is not None:
        index._source_stamp = sources_digest()

    @wraps(function)
    def call(state: State, *rest: Any) -> Any:
        return dispatcher(_world_argument(state), *rest)

    call.__dict__["made"] = dispatcher
    return call


def _index(dispatcher: Any) -> Any:
    """The file in which numba lists what it has kept of a function; None where nothing is."""
    return getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)


def sources_digest() -> str:
    """What the sources say, and how the records lie of which parts, such as `engine.Policy`, stand elsewhere.

    To see whether its code is stale numba looks only at the file of an entry.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    layouts = [str(dtype_of(kind)).encode() for kind in (Engine, Lane)]
    return hashlib.sha256(b"".join([*(path.read_bytes() for path in sources), *layouts])).hexdigest()


def is_kept(call: Callable[..., Any]) -> bool:
    """Whether an entry compiled for this version of Python and of the sources is there, in this process or on disk."""
    dispatcher = call.__dict__["made"]
    index = _index(dispatcher)
    return bool(getattr(dispatcher, "signatures", ())) or (index is not None and bool(index._load_index()))


def _world_argument(state: State) -> Any:
    """The arrays as the loop takes them: addresses, or records by name in plain Python."""
    if not numba.config.DISABLE_JIT:
        return np.array([state[name].ctypes.data if name in state else 0 for name in World._fields], dtype=np.int64)
    views = {name: array.view(np.recarray) if array.dtype.names else array for name, array in state.items()}
    return World(**{name: views[name][0] if name == "rules" else views.get(name) for name in World._fields})  # type: ignore[arg-type]


def opened(addresses: Any) -> World:
    """The world that was packed."""
    world: World = addresses
    return world


class _Worlds(types.Type):
    """numba's type of a World: the addresses of its arrays."""


class _Rows(types.Type):
    """numba's type of a pointer to the records, or numbers, of an array."""

    def __init__(self, name: str, row: types.Type) -> None:
        self.row = row
        super().__init__(name=f"Rows({name})")


@register_model(_Rows)
@register_model(_Worlds)
class _Pointer(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, of: types.Type) -> None:
        super().__init__(manager, of, ir.IntType(8).as_pointer())


def _fields() -> Mapping[str, types.Type]:
    """Types of the arrays of a World; its rules are a single record."""
    fields = {}
    for name, hint in get_type_hints(World).items():
        (kind,) = get_args(hint) or (hint,)
        row = {float: types.float64, int: types.int64}.get(kind) or from_dtype(dtype_of(kind))
        fields[name] = row if kind is hint else _Rows(kind.__name__, row)
    return fields


WORLD, FIELDS = _Worlds("World"), _fields()


@infer_global(opened)
class _Opened(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:  # noqa: ARG002 -- as numba calls it
        return signature(WORLD, *args)


@infer_getattr
class _Field(AttributeTemplate):  # type: ignore[misc]
    key = _Worlds

    def generic_resolve(self, world: Any, name: str) -> Any:  # noqa: ARG002 -- as numba calls it
        return FIELDS.get(name)


@infer_global(operator.getitem)
class _GetRow(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:  # noqa: ARG002 -- as numba calls it
        if isinstance(args[0], _Rows) and isinstance(args[1], types.Integer):
            return signature(args[0].row, args[0], types.intp)
        return None


@infer_global(operator.setitem)
class _SetRow(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:  # noqa: ARG002 -- as numba calls it
        if isinstance(args[0], _Rows) and isinstance(args[1], types.Integer):
            return signature(types.none, args[0], types.intp, args[0].row)
        return None


@lower_builtin(opened, types.Array)  # type: ignore[untyped-decorator]
def _open(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    data = context.make_array(sig.args[0])(context, builder, values[0]).data
    return builder.bitcast(data, context.get_value_type(WORLD))


@lower_getattr_generic(_Worlds)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, _of: Any, world: Any, name: str) -> Any:
    """The address of an array, which never changes."""
    pointer = context.get_value_type(FIELDS[name])
    addresses = builder.bitcast(world, pointer.as_pointer())
    place = ir.Constant(ir.IntType(64), list(FIELDS).index(name))
    address = builder.load(builder.gep(addresses, [place]))
    address.set_metadata("invariant.load", builder.module.add_metadata([]))
    return address


def _place(context: Any, builder: Any, of: _Rows, pointer: Any, index: Any) -> Any:
    """Address of row `index`."""
    size = context.get_abi_sizeof(context.get_data_type(of.row))
    at = builder.gep(pointer, [builder.mul(index, ir.Constant(ir.IntType(64), size))])
    return builder.bitcast(at, context.get_data_type(of.row).as_pointer())


@lower_builtin(operator.getitem, _Rows, types.intp)  # type: ignore[untyped-decorator]
def _get_row(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    at = _place(context, builder, sig.args[0], *values)
    return at if isinstance(sig.return_type, types.Record) else builder.load(at)


@lower_builtin(operator.setitem, _Rows, types.intp, types.Any)  # type: ignore[untyped-decorator]
def _set_row(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    pointer, index, value = values
    builder.store(value, _place(context, builder, sig.args[0], pointer, index))
    return context.get_dummy_value()
