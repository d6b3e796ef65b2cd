"""Files that a user names, looked at before they are opened: only regular files, never folders, pipes or devices."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from costmodel.errors import InputError

MAX_SHOWN = 200
"""Characters of a path that a message shows."""


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as a message names it, cut in the middle when it is longer than any that is typed.

    >>> shown_path("a/b.yaml"), len(shown_path("x" * 5000))
    ('a/b.yaml', 203)
    """
    text = str(path).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN // 2]}...{text[-MAX_SHOWN // 2 :]}"


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
