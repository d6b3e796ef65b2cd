"""The files of a plan: plan.json is the product, report.html a view of it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from costmodel.errors import InputError
from optimizer.plan import Plan

from .html import render_plan
from .json_text import plan_json

__all__ = ["PLAN_FILE", "REPORT_FILE", "plan_json", "write_outputs"]

PLAN_FILE: Final = "plan.json"
REPORT_FILE: Final = "report.html"


def write_outputs(plan: Plan, directory: Path, force: bool = True) -> list[Path]:
    """Write plan.json and report.html into the directory, which is made if need be, and return their paths.

    Both are rendered before either is written, and each appears whole or not at all. Without `force`,
    an existing file of either name is an error.
    """
    texts = {directory / PLAN_FILE: plan_json(plan), directory / REPORT_FILE: render_plan(plan)}
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file, not a directory; choose another name")
    for path in texts:
        if path.exists() and not force:
            raise InputError(f"{path} exists; choose another directory, or replace it with --force")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            _write_whole(path, text)
    except OSError as error:
        raise InputError(f"{directory} cannot be written: {error.strerror}") from error
    return list(texts)


def _write_whole(path: Path, text: str) -> None:
    """Write beside the file, then put it in the file's place in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)  # noqa: PTH105 - the atomic replace is the point; the name says so
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _umask() -> int:
    """Read the process's file mode mask; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
