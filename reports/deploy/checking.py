"""Whether a directory still holds the deployment of a plan, after people had it in their hands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from search_spaces.files import read_file, shown_path

from .describe import describe
from .description import Deployment
from .differences import PROGRAMS_READ, differences, strays
from .files import LARGEST, SUMS, deployment_files, rule_faults
from .record import RECORD, recorded_options


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


@dataclass(frozen=True, slots=True)
class Checked:
    """A directory: what keeps its files from deploying the plan, by cause, and files that are not the plan's."""

    causes: list[Cause]
    strays: list[str]


def checked_directory(plan: Plan, directory: Path, base: Path | None = None, target: str | None = None) -> Checked:
    """Whether the files of a directory deploy a plan as it was evaluated.

    The choices that the plan does not make are those of the directory's own record. base: folder from which files
    that the plan's problem names are looked up; target: what the deployment is for, None: as its record says. Raises
    InputError for a directory that holds no deployment, or one for another target.
    """
    if not (directory / RECORD).exists():
        raise InputError(f"{shown_path(directory)} has no {RECORD}, so it is no directory that pdplan deploy wrote")
    options = recorded_options(_text(directory / RECORD), shown_path(directory / RECORD))
    if target not in {None, options.target}:
        raise InputError(f"{shown_path(directory)} holds a deployment for {options.target}, not for {target}")
    planned = deployment_files(plan, options, base)
    there = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    others = strays([*planned, SUMS], there)
    return Checked(causes(describe(plan, options, base), planned, _found(directory, planned, others)), others)


def causes(deployment: Deployment, planned: Mapping[str, str], found: Mapping[str, str]) -> list[Cause]:
    """Every file that is not as it was written, with the rules that it breaks: a rule is told once, by what mends it.

    The files are put right one after the other; a rule belongs to the file after which it holds again. A file that is
    not the plan's is a fault where it breaks one.
    """
    mended, broken = dict(found), rule_faults(deployment, found)
    told = []
    for path in [*planned, *strays(planned, found)]:
        differs = tuple(differences(_only(path, planned), found))
        if path in planned and not differs:
            continue
        mended = {name: text for name, text in mended.items() if name != path} | _only(path, planned)
        left = rule_faults(deployment, mended) if broken else []
        breaks = tuple(one for one in broken if one not in left)
        if path in planned or breaks:
            told.append(Cause(differs or (f"{path} is no file of this plan",), breaks))
        broken = [one for one in broken if one in left]
    return [*told, Cause((), tuple(broken))] if broken else told


def _only(path: str, files: Mapping[str, str]) -> dict[str, str]:
    return {path: files[path]} if path in files else {}


def _found(directory: Path, planned: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """The texts of the planned files that are there, and of others that look like files of a deployment."""
    found = {path: _text(directory / path) for path in planned if (directory / path).exists()}
    for path in others:
        if PurePosixPath(path).suffix in PROGRAMS_READ:
            with suppress(InputError):  # somebody else's file may be anything
                found[path] = _text(directory / path)
    return found


def _text(path: Path) -> str:
    try:
        return read_file(path, LARGEST).decode("utf-8")
    except ValueError as error:
        raise InputError(f"{shown_path(path)} is not UTF-8 text") from error
