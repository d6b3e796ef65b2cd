"""Files that appear whole or not at all: written beside their place, all of them, and only then put into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from costmodel.errors import InputError

PLAN_FILE: Final = "plan.json"
REPORT_FILE: Final = "report.html"

_UNFINISHED: Final[set[Path]] = set()
"""Files that were begun and are not in their place yet."""


def write_whole(texts: Mapping[Path, str | bytes]) -> None:
    """Write every file or none, over what stands there; a full disk leaves the old files as they were."""
    begun: dict[Path, Path] = {}
    path = Path()
    try:
        for path, text in texts.items():
            place = Path(os.path.realpath(path))  # a link stays, and what it points to is replaced
            begun[place] = _write_beside(place, text)
        for place, temporary in begun.items():
            path = place
            os.replace(temporary, place)  # noqa: PTH105 - the atomic replace is the point; the name says so
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        discard_unfinished()


def discard_unfinished() -> None:
    """Remove what was begun and not put in place."""
    for temporary in tuple(_UNFINISHED):
        with suppress(OSError):
            temporary.unlink()
    _UNFINISHED.clear()


def check_target(path: Path, *, force: bool) -> None:
    """Raise InputError unless a file may be written here; asked before long work, not after it."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file in it")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file; choose another name")
        if os.path.lexists(path) and not force:
            raise InputError(f"{path} exists; choose another name, or replace it with --force")
        _try_a_file_in(Path(os.path.realpath(path)).parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def check_directory(directory: Path, names: Iterable[str]) -> None:
    """Make the directory if need be; raise InputError unless files of these names may be written into it."""
    try:
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory} is a file, not a directory; choose another name")
        directory.mkdir(parents=True, exist_ok=True)
        _try_a_file_in(directory)
    except OSError as error:
        raise InputError(f"{directory} cannot be written: {error.strerror}") from error
    for name in names:
        check_target(directory / name, force=True)


def _try_a_file_in(directory: Path) -> None:
    """Permissions tell only half of it (a read-only file system, a network drive): make a file that has no name."""
    with tempfile.TemporaryFile(dir=directory):
        pass


def _write_beside(place: Path, text: str | bytes) -> Path:
    content = text.encode("utf-8") if isinstance(text, str) else text
    handle, name = tempfile.mkstemp(prefix=".pdplan-", dir=place.parent)
    temporary = Path(name)
    _UNFINISHED.add(temporary)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.chmod(0o666 & ~_umask())
    return temporary


def _umask() -> int:
    """Read the process's file mode mask; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
