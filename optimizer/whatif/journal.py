"""A journal of a sweep: a line per finished scenario, so that a sweep that was killed goes on where it stood."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.errors import InputError

SCHEMA = "pdplan.sweep/1"


@dataclass(frozen=True, slots=True)
class Journal:
    """The file of one sweep; key: digest of everything that its rows depend on."""

    path: Path
    key: str

    def read(self) -> dict[int, dict[str, Any]]:
        """Rows by scenario number, as far as they were finished; a last line that was cut short is none.

        Raises InputError for a file that is no journal, or that of another sweep.
        """
        if not self.path.exists():
            return {}
        whole = self.path.read_bytes().rpartition(b"\n")[0].splitlines()
        lines = [self._parsed(line, number) for number, line in enumerate(whole, start=1)]
        if not lines:
            return {}
        head, *rows = lines
        if head.get("schema") != SCHEMA:
            raise InputError(f"{self.path} is no journal of a sweep; choose another file")
        if head.get("key") != self.key:
            raise InputError(
                f"{self.path} holds another sweep (other inputs, scenarios or version); choose another file"
            )
        return {int(row["number"]): row for row in rows}

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            raise InputError(f"{self.path}:{number} is no line of a sweep's journal; choose another file") from None
        if not isinstance(value, dict):
            raise InputError(f"{self.path}:{number} is no line of a sweep's journal; choose another file")
        return value

    def open(self) -> None:
        """Begin the file, or cut off a last line that was not finished."""
        if not self.path.exists() or not self.path.stat().st_size:
            self.append([{"schema": SCHEMA, "key": self.key}])
            return
        content = self.path.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self.path, content.rfind(b"\n") + 1)
            if b"\n" not in content:
                self.append([{"schema": SCHEMA, "key": self.key}])

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines and see them onto the disk."""
        with self.path.open("ab") as file:
            file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())
