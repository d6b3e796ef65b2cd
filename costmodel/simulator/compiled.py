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
from numba.core.types.misc import CPointer
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


class _World(CPointer):  # type: ignore[misc]
    """numba's type of a World: a pointer to the addresses of its arrays."""


class _Rows(CPointer):  # type: ignore[misc]
    """numba's type of a pointer to records; unlike numbers they are passed on by their address."""


register_model(_World)(models.PointerModel)
register_model(_Rows)(models.PointerModel)


def _fields() -> Mapping[str, types.Type]:
    """Types of the arrays of a World; its rules are a single record."""
    fields = {}
    for name, hint in get_type_hints(World).items():
        (kind,) = get_args(hint) or (hint,)
        number = {float: types.float64, int: types.int64}.get(kind)
        row = number or from_dtype(dtype_of(kind))
        fields[name] = row if kind is hint else CPointer(row) if number else _Rows(row)
    return fields


WORLD, FIELDS = _World(types.intp), _fields()


@infer_global(opened)
class _Opened(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:  # noqa: ARG002 -- as numba calls it
        return signature(WORLD, *args)


@infer_getattr
class _Field(AttributeTemplate):  # type: ignore[misc]
    key = _World

    def generic_resolve(self, world: Any, name: str) -> Any:  # noqa: ARG002 -- as numba calls it
        return FIELDS.get(name)


@lower_builtin(opened, types.Array)  # type: ignore[untyped-decorator]
def _open(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    return context.make_array(sig.args[0])(context, builder, values[0]).data


@lower_getattr_generic(_World)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, _of: Any, world: Any, name: str) -> Any:
    """The address of an array, which never changes."""
    addresses = builder.bitcast(world, context.get_value_type(FIELDS[name]).as_pointer())
    address = builder.load(builder.gep(addresses, [ir.Constant(ir.IntType(64), list(FIELDS).index(name))]))
    address.set_metadata("invariant.load", builder.module.add_metadata([]))
    return address


@lower_builtin(operator.getitem, _Rows, types.Integer)  # type: ignore[untyped-decorator]
def _record(_context: Any, builder: Any, _sig: Any, values: Any) -> Any:
    pointer, index = values
    return builder.gep(pointer, [index])
