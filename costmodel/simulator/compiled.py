"""The one back end: numba compiles the event loop once, and keeps it on disk.

The loop works on records (`records`), held in structured arrays and passed on as bare pointers, which compile several
times as fast as arrays do. Numba would optimize each function anew together with all that it calls; here all functions
are put together first and optimized once, which takes half as long. No fast-math and no fused multiply-add, so every
machine gives the same bytes. With `NUMBA_DISABLE_JIT=1` the same functions run as plain Python, slowly, for a debugger.

Source: numba's extension API and its custom pipelines (https://numba.readthedocs.io/en/stable/extending and
/developer/custom_pipeline).
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
from numba._dynfunc import make_function
from numba.core import typed_passes, types, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import lower_builtin, lower_getattr_generic, register_model
from numba.np.numpy_support import from_dtype

from .records import State, World, dtype_of

Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Our functions divide by nothing that may be 0, own no memory, and are called by each other only."""
PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    typed_passes.AnnotateTypes,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)
"""What numba does to a function of the loop: its own pipeline, less what serves Python that the loop has none of."""


def compiled(function: Function) -> Function:
    """Make the function a part of the loop."""
    dispatcher: Function = numba.njit(pipeline_class=_Compiler, **OPTIONS)(function)
    return dispatcher


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function one that Python calls; with all that it calls it is compiled once, and kept by numba.

    Its first argument is a `World` inside, and the arrays of it outside.
    """
    try:
        dispatcher = numba.njit(pipeline_class=_Compiler, error_model="numpy", cache=True)(function)
    except RuntimeError:  # there is no folder that takes files
        dispatcher = numba.njit(pipeline_class=_Compiler, error_model="numpy")(function)
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
    """What the sources say, all of them: numba looks only at the file of an entry to see whether its code is stale."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


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


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """Code of one function, which is optimized and made machine code only with all others."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalized = True


class _Whole(JITCodeLibrary):  # type: ignore[misc]
    """Code of an entry and of all that it calls, each function once."""

    def finalize(self) -> None:
        libraries, waiting = dict[Any, None](), [*self._linking_libraries]
        while waiting:
            library = waiting.pop()
            waiting += library._linking_libraries if isinstance(library, _Part) and library not in libraries else []
            libraries[library] = None
        self._linking_libraries: list[Any] = list(libraries)
        super().finalize()


@register_pass(mutates_CFG=False, analysis_only=False)
class _Compile(typed_passes.LoweringPass):  # type: ignore[misc]
    """All passes in turn; numba's manager would analyze the function anew after each of them."""

    _name = "simulator"

    def __init__(self) -> None:
        typed_passes.LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        is_part = state.flags.no_cpython_wrapper
        state.library = (_Part if is_part else _Whole)(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_compile = is_part
        for work in PASSES:
            work().run_pass(state)
        if is_part:
            state.cr = state.cr._replace(entry_point=_callable(state))
        return True


def _callable(state: Any) -> Any:
    """What other functions know a part by, which has no machine code to be called by Python."""
    name = state.cr.fndesc
    stub = make_function(name.lookup_module(), name.qualname, "", 0, state.cr.environment, (state.library,))
    state.targetctx.insert_user_function(stub, name, [state.library])
    return stub


class _Compiler(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[PassManager]:
        manager = PassManager("simulator")
        manager.add_pass(_Compile, "of the event loop")
        manager.finalize()
        return [manager]


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
