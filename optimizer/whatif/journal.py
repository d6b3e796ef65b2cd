"""A journal of a sweep: a line per finished scenario, so that a sweep that was killed goes on where it stood.

The first line says that the file is a journal and of which sweep; a file without it is never touched. Every row ends
with a digest of itself and of the sweep, so that one that was damaged, changed or taken from elsewhere is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.units import MIB
from search_spaces.files import open_file, shown_path

SCHEMA = "pdplan.sweep/2"
LONGEST_LINE = MIB
"""A row has a few kB; a longer line is none [byte]."""
WANTED = "a journal of a sweep"
DIGEST = "sha256"
"""Last key of every row."""
MEND = "remove the line, and its scenario is solved again"


def no_fault(_row: Mapping[str, Any]) -> str:
    """Rows that may hold anything."""
    return ""


@dataclass(frozen=True, slots=True)
class Journal:
    """The file of one sweep.

    key: digest of everything that its rows depend on; fault_of: what is wrong with a row, which begins with the field
    and is empty where nothing is.
    """

    path: Path
    key: str
    fault_of: Callable[[Mapping[str, Any]], str] = no_fault

    @property
    def where(self) -> str:
        """The file as a message names it."""
        return shown_path(self.path)

    def read(self) -> dict[int, dict[str, Any]]:
        """Rows by scenario number, as far as they were finished; a last line that was cut short is none.

        Raises InputError for a file that is no journal, for that of another sweep, and for a row that is damaged.
        """
        rows = {}
        for number, line in enumerate(self._lines(), start=1):
            if number > 1:
                row = self._row(line, f"{self.where}:{number}")
                rows[row["number"]] = row
        return rows

    def open(self) -> None:
        """Begin the file, or cut off a last line that was not finished."""
        whole = sum(len(line) for line in self._lines())
        try:
            if whole:
                os.truncate(self.path, whole)
            else:
                self._begin()
        except OSError as error:
            raise self._unwritable(error) from error

    def _begin(self) -> None:
        """Make the file with its header, or none."""
        with self.path.open("xb", buffering=0) as file:
            try:
                _write(file, self._header)
            except OSError:
                self.path.unlink()
                raise

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines and see them onto the disk; those before them stay whatever happens."""
        try:
            with self.path.open("r+b", buffering=0) as file:
                file.seek(0, os.SEEK_END)
                _write(file, b"".join(self._line(row) for row in rows))
        except OSError as error:
            raise self._unwritable(error) from error

    @property
    def _header(self) -> bytes:
        return json.dumps({"schema": SCHEMA, "key": self.key}).encode() + b"\n"

    def _lines(self) -> Iterator[bytes]:
        """The lines that end, header and rows; none where there is no file."""
        if not os.path.lexists(self.path):
            return
        with open_file(self.path, WANTED) as stream:
            self._check_header(line := stream.readline(LONGEST_LINE))
            while line.endswith(b"\n"):
                yield line
                line = stream.readline(LONGEST_LINE)
            if len(line) == LONGEST_LINE:
                raise InputError(f"{self.where} has a line of over {LONGEST_LINE:,} bytes, and no row has; {MEND}")

    def _check_header(self, line: bytes) -> None:
        if line == self._header:
            return
        if line.startswith(b'{"schema": "pdplan.sweep/') and line.endswith(b"}\n"):
            raise InputError(
                f"{self.where} holds another sweep (other inputs, scenarios or version); choose another file"
            )
        raise InputError(f"{self.where} is no journal of a sweep, and is left as it is; choose another file")

    def _row(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            row = json.loads(line, object_pairs_hook=_once)
        except InputError as error:
            raise InputError(f"{where}: {error}; {MEND}") from None
        except (ValueError, RecursionError):
            raise InputError(f"{where}: is not JSON, a row of the sweep is wanted; {MEND}") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: is {shown(row)}, an object with a row of the sweep is wanted; {MEND}")
        digest = row.pop(DIGEST, None)
        fault = _number_fault(row) or self.fault_of(row)
        if not fault and digest != self._digest(row):
            fault = (
                f"{DIGEST}: {'is missing' if digest is None else shown(digest)}, so the row is not as it was written"
            )
        if fault:
            raise InputError(f"{where}: {fault}; {MEND}")
        return row

    def _line(self, row: Mapping[str, Any]) -> bytes:
        return json.dumps({**row, DIGEST: self._digest(row)}).encode() + b"\n"

    def _digest(self, row: Mapping[str, Any]) -> str:
        return hashlib.sha256(f"{self.key} {json.dumps(row)}".encode()).hexdigest()

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"{self.where} cannot be written: {error.strerror}; the same command goes on from the rows that are in it"
        )


def _write(file: FileIO, content: bytes) -> None:
    """Write all of it, and see it onto the disk."""
    while content:
        content = content[file.write(content) :]
    os.fsync(file.fileno())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise InputError(f"{shown(next(key for key in keys if keys.count(key) > 1))}: stands twice")
    return value


def _number_fault(row: Mapping[str, Any]) -> str:
    number = row.get("number")
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return ""
    return f"number: {shown(number) if 'number' in row else 'is missing'}, a whole number of at least 0 is wanted"
