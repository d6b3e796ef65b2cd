"""A tuning study that is kept in a file, for `optuna-dashboard` to show and for a second run to go on from."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.errors import InputError
from costmodel.quoting import shown

if TYPE_CHECKING:
    import optuna

SQLITE, JOURNAL = "sqlite:///", "journal:"
"""What stands before the file in a name of a study: how Optuna writes it."""
FORMS: Final = f"{SQLITE}FILE or {JOURNAL}FILE"


@dataclass(frozen=True, slots=True)
class Axis:
    """A knob as the study shows it: its name, and its values in words or numbers, by their index."""

    name: str
    values: Sequence[float | int]


@dataclass(frozen=True, slots=True)
class KeptStudy:
    """Where a study is kept, under which name, and how its points are shown.

    attributes: what is kept of a point besides its values; recall: gives that back for a point of an earlier run.
    """

    storage: optuna.storages.BaseStorage
    name: str
    axes: Sequence[Axis]
    attributes: Callable[[tuple[int, ...]], Mapping[str, float]]
    recall: Callable[[tuple[int, ...], Mapping[str, Any]], None]


def open_storage(url: str) -> optuna.storages.BaseStorage:
    """The storage of a name such as sqlite:///tuning.db; the file is made where there is none.

    Raises InputError for another form, and for a file that cannot be written or is no study.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    form = next((form for form in (SQLITE, JOURNAL) if url.startswith(form)), None)
    file = "" if form is None else url.removeprefix(form)
    if file in {"", ":memory:"}:
        raise InputError(f"--study: {shown(url)} names no file; allowed: {FORMS}, such as {SQLITE}tuning.db")
    try:
        if form == JOURNAL:
            with Path(file).open("a", encoding="utf-8"):
                pass
            return optuna.storages.JournalStorage(JournalFileBackend(file))
        with closing(sqlite3.connect(file)) as base:
            base.execute("BEGIN IMMEDIATE")
        return optuna.storages.RDBStorage(url)
    except OSError as error:
        raise InputError(f"--study: {shown(file)} cannot be written: {error.strerror or error}") from None
    except (sqlite3.Error, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"--study: {shown(file)} cannot be used as a study: {reason}; name another file") from None
