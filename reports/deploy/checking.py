"""Whether a directory still holds the deployment of a plan, after people had it in their hands."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.whole_files import LARGEST_LISTED, SUMS
from search_spaces.files import read_file, shown_path

from .deployment import Deployment
from .describe import describe
from .files import RECORD, deployment_files, recorded_options, rule_faults
from .formats import READERS, title


@dataclass(frozen=True, slots=True)
class Checked:
    """A directory beside its plan: places that differ, the rules that its files break, and files of others.

    differs: a sentence for each place that is not as it was written; breaks: (rule, sentence) pairs.
    """

    differs: list[str]
    breaks: list[tuple[str, str]]
    strays: list[str]

    @property
    def faults(self) -> int:
        """How many faults somebody has to mend: a changed place that breaks three rules is one."""
        return len(self.differs) or len(self.breaks)


def checked_directory(plan: Plan, directory: Path, target: str | None = None) -> Checked:
    """Whether the files of a directory deploy a plan as it was evaluated.

    The choices that the plan does not make are those of the directory's own record. target: what the
    deployment is for, None: as its record says. Raises InputError for a directory that holds no deployment, or one for
    another target.
    """
    if not (directory / RECORD).exists():
        raise InputError(f"{shown_path(directory)} has no {RECORD}, so it is no directory that pdplan deploy wrote")
    options = recorded_options(_text(directory / RECORD), shown_path(directory / RECORD))
    if target not in {None, options.target}:
        raise InputError(f"{shown_path(directory)} holds a deployment for {options.target}, not for {target}")
    plan_files = deployment_files(plan, options)
    there = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    rest = strays([*plan_files, SUMS], there)
    return checked_files(describe(plan, options), plan_files, _present(directory, plan_files, rest), rest)


def checked_files(
    deployment: Deployment, plan_files: Mapping[str, str], present: Mapping[str, str], rest: Sequence[str] = ()
) -> Checked:
    """Whether texts by path deploy a plan; plan_files: as they were written; rest: files there that are not the plan's.

    Files that nobody changed are not judged again: rules are broken by a change, or by a file of others.
    """
    differs = list(differences(plan_files, present))
    has_changes = differs or present.keys() - plan_files.keys()
    return Checked(differs, rule_faults(deployment, present) if has_changes else [], list(rest))


def _present(directory: Path, plan_files: Iterable[str], rest: Iterable[str]) -> dict[str, str]:
    """The texts of the planned files that are there, and of others that look like files of a deployment."""
    present = {path: _text(directory / path) for path in plan_files if (directory / path).exists()}
    for path in rest:
        if PurePosixPath(path).suffix in {*READERS, ".yml"}:
            with suppress(InputError):  # somebody else's file may be anything
                present[path] = _text(directory / path)
    return present


def _text(path: Path) -> str:
    try:
        return read_file(path, LARGEST_LISTED).decode("utf-8")
    except ValueError as error:
        raise InputError(f"{shown_path(path)} is not UTF-8 text") from error


AS_WRITTEN: Final = "as_written"
"""The rule that files say what was written, whether or not another rule is about it."""
RESULTS: Final = "benchmark/"
"""Folder in which the benchmark leaves its results."""
SHOWN: Final = 80
"""Characters of a value that a sentence shows."""
BEFORE: Final = 20
"""Characters before the place where two long texts part that are shown too."""


def differences(plan_files: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each planned file that is missing, and for each value or key of it that is not the plan's.

    plan_files, present: texts by path.
    """
    for path, text in plan_files.items():
        if path.endswith(".md"):
            continue
        if path not in present:
            yield f"{path} is missing"
            continue
        read = READERS[PurePosixPath(path).suffix]  # what the program that a file is for makes of it
        between = _between_documents if path.endswith(".yaml") else _between
        try:
            yield from between(path, read(path, text), read(path, present[path]))
        except InputError as error:
            yield str(error)


def strays(plan_files: Collection[str], there: Iterable[str]) -> list[str]:
    """Files that are not the plan's, in order; hidden ones and results of the benchmark are nobody's concern.

    >>> strays(["a.sh"], ["notes.txt", "a.sh", ".git/config", "benchmark/results/c.json", "b.sh"])
    ['b.sh', 'notes.txt']
    """
    rest = (path for path in sorted(there) if path not in plan_files and not path.startswith(RESULTS))
    return [path for path in rest if not any(name.startswith(".") for name in path.split("/"))]


def _between_documents(path: str, plan_documents: list[Any], present: list[Any]) -> Iterator[str]:
    """The differences of a file of YAML, which may hold several objects: a benchmark has a job for each class."""
    if len(plan_documents) != len(present):
        yield _lengths(path, ("document", "documents"), list(map(title, plan_documents)), list(map(title, present)))
        return
    for wanted, stated in zip(plan_documents, present, strict=True):
        yield from _between(path if len(plan_documents) == 1 else f"{path}: {title(wanted)}", wanted, stated)


def _between(place: str, plan_value: Any, present: Any) -> Iterator[str]:
    if isinstance(plan_value, dict) and isinstance(present, dict):
        yield from (f"{place}: {_shown(key)} is missing" for key in plan_value if key not in present)
        yield from (f"{place}: {_shown(key)} does not belong there" for key in present if key not in plan_value)
        for key in [key for key in plan_value if key in present]:
            yield from _between(f"{place}: {key}", plan_value[key], present[key])
    elif isinstance(plan_value, list) and isinstance(present, list):
        if len(plan_value) != len(present):
            yield _lengths(place, ("entry", "entries"), plan_value, present)
            return
        for number, (wanted, stated) in enumerate(zip(plan_value, present, strict=True)):
            yield from (f"{fault}{_line(stated)}" for fault in _between(f"{place}[{number}]", wanted, stated))
    elif type(plan_value) is not type(present) or plan_value != present:
        yield f"{place} is {_beside(present, plan_value)}, not {_beside(plan_value, present)}"


def _lengths(place: str, noun: tuple[str, str], planned: list[Any], present: list[Any]) -> str:
    """That two lists have not as many members, and where they part: too many at the end, one missing, or another."""
    few = f"1 {noun[0]}" if len(present) == 1 else f"{len(present):,} {noun[1]}"
    places = (number for number, pair in enumerate(zip(planned, present, strict=False)) if pair[0] != pair[1])
    at = next(places, min(len(planned), len(present)))
    if at >= len(present):
        strange = f"number {at + 1:,}, {_shown(planned[at])}, is missing"
    elif at >= len(planned):
        strange = f"number {at + 1:,}, {_shown(present[at])}, is too many"
    else:
        strange = f"they part at number {at + 1:,}, which is {_shown(present[at])}, not {_shown(planned[at])}"
    return f"{place} has {few}, not {len(planned):,}: {strange}"


def _line(value: Any) -> str:
    """The text of a line that was read as a list of words, by which people find it."""
    words = value if isinstance(value, list) and all(isinstance(word, str) for word in value) else []
    return f", in the line {_shown(' '.join(words))}" if words else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _beside(value: Any, rival: Any) -> str:
    """A value as `_shown`; of a long text that begins like the other one, the part where they differ."""
    if not (isinstance(value, str) and isinstance(rival, str) and _shown(value) == _shown(rival)):
        return _shown(value)
    at = next(k for k, pair in enumerate(itertools.zip_longest(value, rival)) if pair[0] != pair[1]) - BEFORE
    return f"...{_shown(value[at:])}"
