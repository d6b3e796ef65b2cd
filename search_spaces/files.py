"""Files that a user names, looked at before they are opened: only regular files, never folders, pipes or devices."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from costmodel.errors import InputError
from costmodel.quoting import UNWRITABLE, shortened

MAX_SHOWN = 200
"""Characters of a path that a message shows."""


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as a message names it, cut in the middle when it is longer than any that is typed.

    >>> shown_path("a/b.yaml"), len(shown_path("x" * 5000))
    ('a/b.yaml', 203)
    """
    return shortened(str(path), MAX_SHOWN)


MOST_FOLDERS = 255
"""Folders in folders that a path may name; Python makes some five hundred at once, and then fails."""


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise InputError unless a plan, a workload.yaml or a report can name this path, and be read back."""
    if UNWRITABLE.search(str(path)):
        raise InputError(
            f"{shown_path(path)}: the name of a file or folder must be UTF-8 text without control characters; rename it"
        )
    folders = len(Path(path).parts)
    if folders > MOST_FOLDERS:
        raise InputError(
            f"{shown_path(path)}: names {folders:,} folders in folders, at most {MOST_FOLDERS} are used here"
        )


def regular_size(path: str | os.PathLike[str], wanted: str = "a file") -> int:
    """Return the size of a regular file [byte]; raise InputError, which names the path, if it is none.

    A pipe or a device is refused unopened: reading it could wait or go on for ever.
    """
    where = shown_path(path)
    try:
        found = Path(path).stat()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(f"{where}: cannot be read ({reason})") from error
    except ValueError as error:  # a NUL, or half a character, in the path
        raise InputError(f"{where!r}: cannot be the name of a file") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{where}: is a folder, {wanted} is wanted")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{where}: is not a regular file but a pipe or a device, {wanted} is wanted")
    return found.st_size
