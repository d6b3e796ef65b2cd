"""Files that appear whole or not at all: written beside their place, all of them, and only then put into it.

Nothing is replaced that pdplan did not write: a file of the user's own is refused before the work, unless its owner
says --force; a file that is read, and what a link leads to outside a folder, even then.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from costmodel.errors import InputError
from costmodel.units import MIB
from search_spaces.files import LARGEST_RESULTS, read_file, shown_path

PLAN_FILE: Final = "plan.json"
REPORT_FILE: Final = "report.html"
EVALUATION_FILE: Final = "evaluation.json"
EVALUATION_PAGE: Final = "evaluation.html"

_UNFINISHED: Final[set[Path]] = set()
"""Files that were begun and are not in their place yet."""

_WRITTEN: Final = re.compile(
    rb'(?:\s*\{\s*|<!DOCTYPE html>.*<script type="application/json" id="[a-z]+">\{)'
    rb'"schema"\s*:\s*"pdplan\.(plan|evaluation)/',
    re.DOTALL,
)
"""How a record of any version begins, and the page that holds one."""


def written_kind(path: Path) -> str:
    """What pdplan wrote into a file, "plan" or "evaluation", as JSON or as a page; empty for anything else."""
    try:
        match = _WRITTEN.match(read_file(path, LARGEST_RESULTS))
    except InputError:
        return ""
    return match[1].decode() if match else ""


def is_output(path: Path) -> bool:
    """Whether a file of a plan's or an evaluation's folder is what pdplan writes under its name."""
    return written_kind(path) == ("plan" if path.name in {PLAN_FILE, REPORT_FILE} else "evaluation")


def write_whole(texts: Mapping[Path, str | bytes]) -> None:
    """Write every file or none, over what stands there; a full disk leaves the old files as they were."""
    begun: dict[Path, Path] = {}
    path = Path()
    try:
        for path, text in texts.items():
            place = Path(os.path.realpath(path))  # a link stays, and what it points to is replaced
            place.parent.mkdir(parents=True, exist_ok=True)
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


def check_distinct(outputs: Mapping[str, Path], inputs: Mapping[str, Path]) -> None:
    """Raise InputError where two outputs are one file, by whatever links, or an output is a file that is read."""
    flags = {_identity(path): flag for flag, path in inputs.items()}
    for flag, path in outputs.items():
        first = flags.setdefault(_identity(path), flag)
        if first != flag:
            raise InputError(f"{first} and {flag} name the same file, {shown_path(path)}; choose another name")


def _identity(path: Path) -> object:
    """What all names of a file have in common."""
    try:
        status = path.stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def check_target(path: Path) -> None:
    """Raise InputError unless a file can be written here, or over it; asked before long work, not after it."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file in it")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file; choose another name")
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path} is a link that leads nowhere; choose another name")
        _try_a_file_in(Path(os.path.realpath(path)).parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def check_free(path: Path, *, force: bool) -> None:
    """Raise InputError for a file that exists, unless it may be replaced."""
    if path.exists() and not force:
        raise InputError(f"{path} exists; choose another name, or replace it with --force")


def check_directory(directory: Path, names: Iterable[str], *, force: bool) -> None:
    """Raise InputError unless a plan's files may be written into a directory, which `write_whole` makes if need be.

    force: also in the place of files that pdplan did not write.
    """
    paths = [directory / name for name in names]
    try:
        if os.path.lexists(directory) and not directory.is_dir():
            raise InputError(f"{directory} is a file, not a directory; choose another name")
        _try_a_file_in(next(folder for folder in (directory, *directory.absolute().parents) if folder.exists()))
    except OSError as error:
        raise InputError(f"{directory} cannot be written: {error.strerror}") from error
    for path in paths if directory.exists() else ():
        check_target(path)
    check_origin(directory, paths, None if force else is_output, ", or replace it with --force")


SUMS: Final = "SHA256SUMS"
"""Checksums of all files of a directory, for `sha256sum -c`, and the list of what may be replaced in it later."""
LARGEST_LISTED: Final = 16 * MIB
"""A larger file [byte] is none of those."""


def check_listed(directory: Path) -> bool:
    """Whether a directory holds anything already; InputError for what is none, or cannot be read."""
    try:
        if directory.is_symlink() and not directory.exists():
            raise InputError(f"{shown_path(directory)} is a link that leads nowhere; choose another name")
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{shown_path(directory)} is a file, not a directory; choose another name")
        return directory.exists() and any(directory.iterdir())
    except OSError as error:
        raise InputError(f"{shown_path(directory)} cannot be read: {error.strerror}") from error


def write_listed(texts: Mapping[str, str], directory: Path, merged_files: Collection[str] = ()) -> list[Path]:
    """Write files, by their paths in a directory, with their checksums, and remove what its former list has besides.

    Returns what was written; nothing is where writing fails or ends early, or would lose what a user changed in a file.
    merged_files: those whose text has these changes already.
    """
    sums = "".join(f"{sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(texts.items()))
    paths = {directory / name: text for name, text in {**texts, SUMS: sums}.items()}
    old = _listed(directory)
    check_origin(directory, paths, old.__contains__)
    for path in sorted(set(old) - {directory / name for name in (SUMS, *merged_files)}):
        content = read_file(path, LARGEST_LISTED)
        if sha256(content).hexdigest() != old[path] and content != paths.get(path, "").encode():
            raise InputError(
                f"{shown_path(path)} was changed after pdplan wrote it; move it away to keep your changes, or remove it"
            )
    new_folders = [folder for folder in sorted({directory, *(path.parent for path in paths)}) if not folder.exists()]
    try:
        write_whole(paths)
    except BaseException:
        for folder in new_folders:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    for path in sorted(set(old) - set(paths)):
        try:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        except OSError as error:
            raise InputError(f"{shown_path(path)} cannot be removed: {error.strerror}") from error
    for path in paths:
        if path.suffix == ".sh":
            path.chmod(path.stat().st_mode | (path.stat().st_mode & 0o444) >> 2)
    return list(paths)


def _listed(directory: Path) -> dict[Path, str]:
    """Files that a directory's own list has, and their checksums; whatever leads out of it is left alone."""
    try:
        lines = read_file(directory / SUMS, LARGEST_LISTED).decode("utf-8").splitlines()
    except ValueError:  # an InputError among them
        return {}
    root = directory.resolve()
    entries = (line.partition("  ") for line in lines)
    sums = {directory / SUMS: "", **{directory / name: checksum for checksum, _, name in entries if name}}
    return {path: sums[path] for path in sums if path.is_file() and path.resolve().is_relative_to(root)}


def check_origin(
    directory: Path, paths: Iterable[Path], is_ours: Callable[[Path], bool] | None, mend: str = ""
) -> None:
    """Raise InputError for a file of a folder that leads out of it or to another, or that pdplan did not write.

    is_ours: whether it did, None where any file may be replaced; mend: what can be done but to choose another
    directory, to end the sentence with.
    """
    root, places = os.path.realpath(directory), dict[str, Path]()
    for path in paths:
        place = os.path.realpath(path)
        if not Path(place).is_relative_to(root):
            raise InputError(f"{shown_path(path)} leads out of {shown_path(directory)}; nothing is written there")
        if (first := places.setdefault(place, path)) != path:
            raise InputError(f"{shown_path(first)} and {path.name} name the same file; choose another directory")
        if is_ours is not None and os.path.lexists(path) and not is_ours(path):
            raise InputError(f"{shown_path(path)} was not written by pdplan; choose another directory{mend}")


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
    mask = os.umask(0o022)  # it can only be read by setting it
    os.umask(mask)
    temporary.chmod(0o666 & ~mask)
    return temporary
