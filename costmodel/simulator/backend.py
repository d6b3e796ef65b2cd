"""Which loop serves a run: plain Python, or the same functions compiled by numba.

The compiled loop is kept on disk. Loading it takes as long as some ten thousand requests in plain Python, compiling it
as long as some hundred thousand; so it is loaded or compiled once a process has simulated so many, or expects to
(LOAD_FROM, COMPILE_FROM), and never where numba is not there or nothing can be kept. Both loops give the same bytes.
`PDPLAN_SIMULATOR=python` and `PDPLAN_SIMULATOR=numba` choose by hand.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from costmodel.errors import InputError
from costmodel.quoting import shown

from .compiled import PARTS, floats, ints, records
from .loop import run_loop
from .state import Group, Lane, PoolRecord, Request, Rules, World
from .step_numbers import StepRecord

RunLoop = Callable[[World, int, float], int]

VARIABLE = "PDPLAN_SIMULATOR"
AUTOMATIC, PYTHON, NUMBA = "", "python", "numba"
LOAD_FROM = 20_000
"""Requests of a process from which on a kept loop is loaded: they take 1.3-1.9 CPU-seconds in plain Python in the
examples, numba's import and the loading 0.9."""
COMPILE_FROM = 200_000
"""Requests of a process from which on the loop is compiled: 13-18 CPU-seconds in plain Python, less than compiling
takes, but it is done once for all processes to come."""


@dataclass(slots=True)
class Served:
    """Requests that this process has simulated; they decide how long the next run takes, never what comes out.

    expected: how many it will have, as far as that is known.
    """

    requests: int = 0
    expected: int = 0


_served = Served()


def expect(requests: int) -> None:
    """Say that so many requests more are to come, so that the compiled loop serves the first of them too if it pays."""
    _served.expected = max(_served.expected, _served.requests + requests)


def chosen_loop(requests: int) -> RunLoop | None:
    """The compiled loop where it pays for so many requests more, None for plain Python."""
    mode = os.environ.get(VARIABLE, AUTOMATIC)
    if mode not in (AUTOMATIC, PYTHON, NUMBA):
        raise InputError(f"{VARIABLE}: {shown(mode)} is neither {PYTHON!r} nor {NUMBA!r}")
    _served.requests += requests
    known = max(_served.requests, _served.expected)
    loop = compiled_loop() if mode == NUMBA or (mode == AUTOMATIC and pays(known)) else None
    if mode == NUMBA and loop is None:
        raise InputError(f"{VARIABLE}: {NUMBA!r} needs numba, which cannot be loaded here: pip install 'pdplan[fast]'")
    return loop


def pays(requests: int) -> bool:
    """Whether a process that simulates so many requests gains by the compiled loop."""
    if requests < LOAD_FROM or importlib.util.find_spec("numba") is None:
        return False
    folder = cache_folder()
    return folder is not None and (requests >= COMPILE_FROM or is_kept(folder))


@cache
def compiled_loop() -> RunLoop | None:
    """The loop compiled, or read from where it is kept; None where numba cannot."""
    try:
        numba: Any = importlib.import_module("numba")
    except (ImportError, OSError):  # not installed, not for this numpy, or not for this system
        return None
    loop = compiled_copy(numba, cache_folder())
    for _ in range(2):  # what is compiled but cannot be written, say to a full disk, fails once and serves from then on
        try:
            loop(_empty_world(), 0, 0.0)
        except OSError:
            continue
        except (numba.core.errors.NumbaError, EOFError, pickle.UnpicklingError):  # too old a numba, or a damaged file
            return None
        return loop
    return None


def compiled_copy(numba: Any, folder: Path | None) -> RunLoop:
    """The loop for numba to compile on its first call: copies of its functions, which call each other's copies.

    Only the outermost is kept, for it contains all others. folder: where; None: nowhere.
    """
    spaces = {body.__module__: dict(body.__globals__) for body in PARTS.values()}
    copies = {}
    for part, body in PARTS.items():
        copy = FunctionType(body.__code__, spaces[body.__module__], body.__name__)
        copies[part] = _kept(numba, copy, folder) if part is run_loop else numba.njit(copy)
    for space in spaces.values():
        parts = {name: value for name, value in space.items() if isinstance(value, FunctionType) and value in copies}
        space.update((name, copies[value]) for name, value in parts.items())
    loop: RunLoop = copies[run_loop]
    return loop


def _kept(numba: Any, function: Callable[..., Any], folder: Path | None) -> Any:
    """The function, compiled and kept in the folder."""
    if folder is None:
        return numba.njit(function)
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # nothing can be written there after all
        return numba.njit(function)
    finally:
        numba.config.CACHE_DIR = before


def _empty_world() -> World:
    """A fleet without engines that nobody asks: enough to compile for."""
    return World(
        requests=records(Request, 0, {}, compiled=True),
        lanes=records(Lane, 0, {}, compiled=True),
        groups=records(Group, 0, {}, compiled=True),
        pools=records(PoolRecord, 0, {}, compiled=True),
        models=records(StepRecord, 0, {}, compiled=True),
        rules=records(Rules, 0, {}, compiled=True),
        numbers=floats(np.zeros(0), compiled=True),
        counts=ints(np.zeros(0, dtype=np.int64), compiled=True),
    )


@cache
def cache_folder() -> Path | None:
    """Where the compiled loop is kept, one folder per state of the sources; None where nothing can be written.

    numba looks only at the file of a function to see whether what it kept is stale, but our functions call each other
    across files; so the digest of all of them is part of the path. Never a folder that others write to: what is read
    from it is run.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    name = f"loop-{hashlib.sha256(b''.join(path.read_bytes() for path in sources)).hexdigest()[:16]}"
    own, *others = places()
    folder = next((place / name for place in (own, *others) if _writable(place / name)), None)
    if folder is not None and folder.parent == own:
        for stale in own.glob("loop-*"):
            if stale != folder:
                shutil.rmtree(stale, ignore_errors=True)
    return folder


def places() -> list[Path]:
    """Folders that may hold compiled loops: this package's own, of which only its state now counts, and the user's."""
    own = Path(__file__).parent / "__pycache__"
    try:
        return [own, Path.home() / ".cache" / "pdplan"]
    except RuntimeError:  # a user without a home
        return [own]


def _writable(folder: Path) -> bool:
    """Whether the folder is there, or could be made, and takes files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def is_kept(folder: Path) -> bool:
    """Whether a loop compiled for this version of Python lies in the folder."""
    return any(folder.glob(f"**/*.py{sys.version_info.major}{sys.version_info.minor}*.nbc"))
