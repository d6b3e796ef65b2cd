"""Whether a directory still holds the deployment of a plan, after people had it in their hands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from costmodel.errors import InputError
from costmodel.units import MIB
from optimizer.plans.plan import Plan
from search_spaces.files import regular_size, shown_path

from .describe import describe
from .differences import AS_WRITTEN, PROGRAMS_READ, differences, strays
from .files import TARGETS, deployment_files, file_faults
from .record import RECORD, recorded_options

LARGEST: Final = 16 * MIB
"""A larger file [byte] is none of ours."""


def directory_faults(plan: Plan, directory: Path, base: Path | None = None) -> list[tuple[str, str]]:
    """What keeps the files of a directory from deploying a plan as it was evaluated, as (rule, sentence).

    The choices that the plan does not make are those of the directory's own record. base: folder from which files
    that the plan's problem names are looked up. Raises InputError for a directory that holds no deployment.
    """
    if not (directory / RECORD).exists():
        raise InputError(f"{shown_path(directory)} has no {RECORD}, so it is no directory that pdplan deploy wrote")
    options = recorded_options(_text(directory / RECORD))
    planned = deployment_files(plan, options, base)
    found = _found(directory, planned)
    deployment = describe(plan, options, base)
    own = TARGETS[options.target].files(deployment)
    others = {path: text for path, text in planned.items() if path not in own}
    rest = [*differences(others, found), *strays(planned, found)]
    return [*file_faults(deployment, found), *((AS_WRITTEN, sentence) for sentence in rest)]


def _found(directory: Path, planned: Iterable[str]) -> dict[str, str]:
    """The texts of the planned files that are there, and of others that look like files of a deployment."""
    found = {path: _text(directory / path) for path in planned if (directory / path).exists()}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.suffix in PROGRAMS_READ and path.is_file() and name not in found:
            found[name] = _text(path)
    return found


def _text(path: Path) -> str:
    size = regular_size(path)
    if size > LARGEST:
        raise InputError(f"{shown_path(path)} has {size:,} bytes, and no file of a deployment has over {LARGEST:,}")
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{shown_path(path)}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{shown_path(path)} is not UTF-8 text") from error
