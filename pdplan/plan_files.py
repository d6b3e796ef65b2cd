"""plan.json files as the commands find them: told from others, and read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from costmodel.errors import InputError
from costmodel.units import MIB
from search_spaces.files import regular_size, shown_path

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan

LARGEST_PLAN: Final = 32 * MIB
"""A plan file is some 100 kB; one larger than this [byte] is something else."""

_HEAD_BYTES: Final = 200
_HEAD: Final = re.compile(rb'\s*\{\s*"schema"\s*:\s*"pdplan\.plan/')


def is_plan(path: Path) -> bool:
    """Whether the file is a plan of any version of pdplan: all begin with their schema, and no more is read."""
    try:
        return _HEAD.match(_first_bytes(path, _HEAD_BYTES)) is not None
    except InputError:
        return False


def read_plan(path: Path) -> Plan:
    """Read a plan file, or say in one sentence why it is none."""
    from optimizer.plans.plan import parse_plan

    data = _first_bytes(path, LARGEST_PLAN + 1)
    if len(data) > LARGEST_PLAN:
        raise InputError(f"{shown_path(path)} is too large to be a plan (over {LARGEST_PLAN // MIB} MiB)")
    try:
        return parse_plan(data, shown_path(path))
    except InputError as error:
        if path.suffix.lower() not in {".yaml", ".yml"}:
            raise
        raise InputError(f"{error}; a workload becomes one by pdplan optimize") from error


def _first_bytes(path: Path, most: int) -> bytes:
    regular_size(path, "a plan.json")
    try:
        with path.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise InputError(f"{shown_path(path)} cannot be read: {error.strerror}") from error
