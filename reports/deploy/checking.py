"""Whether a directory still holds the deployment of a plan, after people had it in their hands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from costmodel.errors import InputError
from costmodel.units import MIB
from optimizer.plans.plan import Plan
from search_spaces.files import regular_size, shown_path

from .describe import describe
from .description import Deployment
from .differences import PROGRAMS_READ, differences, strays
from .files import deployment_files, rule_faults
from .record import RECORD, recorded_options

LARGEST: Final = 16 * MIB
"""A larger file [byte] is none of ours."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What is wrong for one reason: a file that is not as it was written.

    differs: a sentence for each place of the file; none where it is the plan itself that breaks a rule.
    breaks: the rules that hold again once the file is as it was written, as (rule, sentence).
    """

    differs: tuple[str, ...]
    breaks: tuple[tuple[str, str], ...]

    @property
    def faults(self) -> int:
        """How many faults somebody has to mend: a changed place that breaks three rules is one."""
        return len(self.differs) or len(self.breaks)


def directory_faults(plan: Plan, directory: Path, base: Path | None = None) -> list[Cause]:
    """What keeps the files of a directory from deploying a plan as it was evaluated, by cause.

    The choices that the plan does not make are those of the directory's own record. base: folder from which files
    that the plan's problem names are looked up. Raises InputError for a directory that holds no deployment.
    """
    if not (directory / RECORD).exists():
        raise InputError(f"{shown_path(directory)} has no {RECORD}, so it is no directory that pdplan deploy wrote")
    options = recorded_options(_text(directory / RECORD), shown_path(directory / RECORD))
    planned = deployment_files(plan, options, base)
    return causes(describe(plan, options, base), planned, _found(directory, planned))


def causes(deployment: Deployment, planned: Mapping[str, str], found: Mapping[str, str]) -> list[Cause]:
    """Every file that is not as it was written, with the rules that it breaks: a rule is told once, by what mends it.

    The files are put right one after the other; a rule belongs to the file after which it holds again.
    """
    mended, broken = dict(found), rule_faults(deployment, found)
    told = []
    for path in [*planned, *(path for path in found if path not in planned)]:
        differs = tuple(chain(differences(_only(path, planned), found), strays(planned, _only(path, found))))
        if not differs:
            continue
        mended = {name: text for name, text in mended.items() if name != path} | _only(path, planned)
        left = rule_faults(deployment, mended) if broken else []
        told.append(Cause(differs, tuple(one for one in broken if one not in left)))
        broken = [one for one in broken if one in left]
    return [*told, Cause((), tuple(broken))] if broken else told


def _only(path: str, files: Mapping[str, str]) -> dict[str, str]:
    return {path: files[path]} if path in files else {}


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
