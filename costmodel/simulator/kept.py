"""Where the compiled event loop is kept: beside the package or, where that is read-only, in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from functools import cache
from pathlib import Path


@cache
def kept_folder() -> Path | None:
    """A folder for what numba compiles, one per state of the sources; None where nothing can be written.

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


def is_kept() -> bool:
    """Whether the loop compiled for this version of Python is there."""
    folder = kept_folder()
    files = f"**/*run_loop*.py{sys.version_info.major}{sys.version_info.minor}*.nbc"
    return folder is not None and any(folder.glob(files))
