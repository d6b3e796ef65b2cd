"""Files that a user names: opened and read here, and what is wrong in them: where, what, and how to mend it.

Only regular files, none beyond a size, text in UTF-8. A folder, a pipe, a device or a socket is refused unopened:
reading one could wait or go on for ever. Faults are collected, then shown all at once:

workload.yaml:7:11: accelerators.0.name: 'H20O' is not known; did you mean 'H200'?
  - {name: H20O, price: 3}
           ^
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from costmodel.errors import UNSHOWABLE, UNWRITABLE, InputError, shortened
from costmodel.units import MIB
from costmodel.words import plural

LONGEST_SHOWN = 200
"""Characters of a path that a message shows."""
LARGEST_RESULTS = 256 * MIB
"""Largest file of results [byte]: one with the details of every request has some 10 kB a request."""
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as a message names it, cut in the middle when it is longer than any that is typed.

    >>> shown_path("a/b.yaml"), len(shown_path("x" * 5000))
    ('a/b.yaml', 203)
    """
    return shortened(str(path), LONGEST_SHOWN)


MOST_FOLDERS = 255
"""Deepest nesting of folders in a path; Python creates some five hundred at once, and then fails."""


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise InputError unless a plan, a workload.yaml or a report can name this path, and be read back."""
    if UNWRITABLE.search(str(path)):
        raise InputError(
            f"{shown_path(path)}: the name of a file or folder must be UTF-8 text without control characters; rename it"
        )
    folders = len(Path(path).parts)
    if folders > MOST_FOLDERS:
        raise InputError(
            f"{shown_path(path)}: names {folders:,} folders in folders, at most {MOST_FOLDERS} are used here"
        )


def regular_size(path: str | os.PathLike[str], label: str = "a file") -> int:
    """Return the size of a regular file [byte]; raise InputError, which names the path, if it is none."""
    where = shown_path(path)
    try:
        status = Path(path).stat()
    except OSError as error:
        raise _unreadable(where, error) from error
    except ValueError as error:  # a NUL, or half a character, in the path
        raise InputError(f"{where!r}: cannot be the name of a file") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{where}: is a folder, but must be {label}")
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for holds, name in _KINDS if holds(status.st_mode)), "a device")
        mend = "; save what it gives to a file first" if kind == "a pipe" else ""
        raise InputError(f"{where}: is not a regular file but {kind}, but must be {label}{mend}")
    return status.st_size


@contextmanager
def open_file(path: str | os.PathLike[str], label: str = "a file") -> Iterator[BinaryIO]:
    """Open a regular file for reading its bytes; raise InputError if it is none, or cannot be read."""
    regular_size(path, label)
    try:
        with Path(path).open("rb") as stream:
            yield stream
    except OSError as error:
        raise _unreadable(shown_path(path), error) from error


def read_file(path: str | os.PathLike[str], largest: int, label: str = "a file", mend: str = "") -> bytes:
    """Return the bytes of a regular file; raise InputError, which names the path, if it is none or cannot be read.

    largest: size above which it is refused unread [byte]; mend: what such a file should be instead, to end the
    sentence with.
    """
    size, data = regular_size(path, label), b""
    if size <= largest:
        with open_file(path, label) as stream:
            data = stream.read(largest + 1)
        size = max(size, len(data))
    if size > largest:
        raise InputError(f"{shown_path(path)}: has {size:,} bytes, but at most {largest:,} are read here{mend}")
    return data


def delimiter_of(text: str) -> str:
    """What separates the fields of a CSV text, by its first line: a comma, a semicolon or a tab."""
    return max(",;\t", key=text.partition("\n")[0].count)


def read_text(path: str | os.PathLike[str], largest: int, label: str = "a file", mend: str = "") -> str:
    """The text of a regular file in UTF-8, as `read_file` reads it."""
    return decoded(read_file(path, largest, label, mend), shown_path(path))


def shipped_text(package: str, name: str) -> str:
    """The text of a file of the distribution."""
    from importlib import resources  # takes time that `pdplan --help` has better use for

    return resources.files(package).joinpath(name).read_text("utf-8")


def shipped_table(package: str, name: str) -> Any:
    """The content of a YAML file of the distribution; InputError, with the place, where an edit has broken it."""
    import yaml  # as above

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # with libyaml it is ten times as fast
    try:
        return yaml.load(shipped_text(package, name), Loader=loader)  # noqa: S506 (a safe loader; the file is ours)
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark  # where what is not closed begins, if anything
        line = "" if mark is None else f":{mark.line + 1}"
        raise InputError(f"{package.replace('.', '/')}/{name}{line}: {error.problem}") from error


def _unreadable(where: str, error: OSError) -> InputError:
    return InputError(f"{where}: cannot be read ({(error.strerror or 'unknown error').lower()})")


_SIGNATURES = (
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\x1f\x8b", "gzip-compressed"),
    (b"PK\x03\x04", "a zip archive, as .xlsx files are"),
    (b"\xd0\xcf\x11\xe0", "an old Office file (.xls)"),
    (b"PAR1", "a Parquet file"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed"),
    (b"\xfd7zXZ", "xz-compressed"),
    (b"BZh", "bzip2-compressed"),
    (b"GGUF", "a file of model weights (GGUF)"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF"),
)
"""First bytes by which common non-text files are recognized."""


def kind_of_bytes(data: bytes) -> str:
    """The kind of a file that is not UTF-8 text, from its first bytes; empty if they do not tell.

    >>> kind_of_bytes(b"PAR1...."), kind_of_bytes(b"isl,osl")
    ('a Parquet file', '')
    """
    return next((kind for magic, kind in _SIGNATURES if data.startswith(magic)), "")


def decoded(data: bytes, name: str) -> str:
    """The text of a file, without a byte-order mark; InputError, which names the file, for bytes that are not UTF-8."""
    kind = kind_of_bytes(data)
    if kind:
        raise InputError(f"{name}: is {kind}; {SAVE_IT}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fault = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise InputError(f"{name}:{line}: is not UTF-8 text ({fault}); {SAVE_IT}") from error


SAVE_IT = "save it as UTF-8"
"""What to do with a file that is no text."""


Keys = tuple[str | int, ...]
"""Keys and indexes that lead to a value of a file."""

MAX_FAULTS = 20
"""Faults that are shown; more are counted."""
LONGEST_PATH = 80
"""Characters of the path of keys to a fault."""
MAX_SHOWN = 100
"""Characters of a source line that are shown; longer ones are cut around the caret."""


class Position(NamedTuple):
    """Line and column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: the path of keys to it, a sentence, and whether the key itself is wrong.

    position: where it stands, if not where the path says (a key that stands twice).
    """

    path: Keys
    sentence: str
    on_key: bool = False
    position: Position | None = None

    def told(self) -> str:
        """The dotted path and the sentence, without a place in a file."""
        keys = shortened(".".join(str(key) for key in self.path), LONGEST_PATH)
        return f"{keys}: {self.sentence}" if keys else self.sentence


def _first_faults(sentences: Sequence[str]) -> str:
    """The first MAX_FAULTS faults, one per line, and how many more there are."""
    surplus = len(sentences) - MAX_FAULTS
    more = [f"and {plural(surplus, 'more fault')}"] if surplus > 0 else []
    return "\n".join([*sentences[:MAX_FAULTS], *more])


class FaultsError(InputError):
    """Faults found in a part of a file, for the reader of the whole file to collect."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(_first_faults([fault.sentence for fault in faults]))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Source:
    """A file as read: its plain value, and the place of every key and value.

    faults: of the text itself, such as a key that stands twice; overridden: paths whose values came from elsewhere (the
    command line), so that they have no place in the file, and how each was stated there.
    """

    name: str
    lines: tuple[str, ...]
    value: Any
    values: Mapping[Keys, Position] = field(default_factory=dict)
    keys: Mapping[Keys, Position] = field(default_factory=dict)
    faults: Sequence[Fault] = ()
    overridden: Mapping[Keys, str] = field(default_factory=dict)

    def locate(self, path: Keys, *, on_key: bool = False) -> Position | None:
        """Return where `path` stands, or its nearest parent; None if it came from an override."""
        prefixes = [path[:length] for length in range(len(path), -1, -1)]
        if self.override_of(path) is not None:
            return None
        if on_key and path in self.keys:
            return self.keys[path]
        return next((self.values[prefix] for prefix in prefixes if prefix in self.values), None)

    def override_of(self, path: Keys) -> str | None:
        """The override that stated the value at `path`, or something in it that the file lacks."""
        above = (path[:length] for length in range(len(path), -1, -1))
        override = next((self.overridden[prefix] for prefix in above if prefix in self.overridden), None)
        if override is not None or path in self.values:
            return override
        return next((how for place, how in self.overridden.items() if place[: len(path)] == path), None)

    def settle(self, path: Keys) -> Keys:
        """Return `path` as it is written here.

        Steps that a short form spares (`H100` for a list of one mapping with a name) are left out, and so is the word
        of `kind` that chose a section; a missing key stays.

        >>> Source("a.yaml", (), {"slo": {"ttft": 1}}).settle(("slo", 0, "tpot"))
        ('slo', 'tpot')
        """
        value, steps = self.value, list[str | int]()
        for key in path:
            if isinstance(value, Mapping) and isinstance(key, str):
                if key.startswith("<") or value.get("kind") == key:
                    continue
                value = value.get(key)
                steps.append(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
                steps.append(key)
        return tuple(steps)

    def error(self, sentence: str, path: Keys = ()) -> InputError:
        """The error of the value at a path."""
        return InputError(self.render([Fault(path, sentence)]))

    def check(self, faults: Iterable[Fault]) -> None:
        """Raise InputError with these faults, if there are any."""
        if all_faults := list(faults):
            raise InputError(self.render(all_faults))

    def render(self, faults: Iterable[Fault]) -> str:
        """Return the faults in the order of the file, the first `MAX_FAULTS` of them with their lines and carets."""
        faults_in_place = [replace(fault, path=self.settle(fault.path)) for fault in faults]
        pairs = [(fault.position or self.locate(fault.path, on_key=fault.on_key), fault) for fault in faults_in_place]
        pairs = list(dict.fromkeys(pairs))
        pairs.sort(key=lambda item: item[0] or (0, 0))
        sentences = []
        for position, fault in pairs:
            override = self.override_of(fault.path)
            where = f"{self.name}{f' (overridden by {override})' if override else ''}"
            sentence = fault.told()
            sentences.append(pointed(self.name, self.lines, position, sentence) if position else f"{where}: {sentence}")
        return _first_faults(sentences)


OURS = "pdplan."
"""Prefix of the schema of every file that pdplan writes."""
COMMANDS = {"plan": "pdplan report", "fleet": "pdplan evaluate", "workload": "pdplan optimize"}
"""For each kind of our files, the first command that takes it."""


def check_kind(source: Source, label: str, schema: str = "") -> None:
    """Raise InputError for another kind of our own files, such as a plan, instead of a fault for every key.

    label: what is wanted; schema: that of such files, where they have one.
    """
    schema_id = source.value.get("schema")
    kind = schema_id.partition("/")[0] if isinstance(schema_id, str) else ""
    title = f"{label} ({schema})" if schema else label
    if kind.startswith(OURS) and kind != schema.partition("/")[0]:
        command = COMMANDS.get(kind.removeprefix(OURS))
        hint = f"; {command} {source.name} takes it" if command else ""
        raise source.error(f"{schema_id} is not a {title}{hint}", ("schema",))
    if label == "workload" and not kind and "pools" in source.value:
        sentence = f"a file with pools is a fleet file, not a {title}; {COMMANDS['fleet']} {source.name} takes it"
        raise source.error(sentence, ("pools",))


def pointed(name: str, lines: tuple[str, ...], position: Position, sentence: str) -> str:
    """Return `name:line:column: sentence`, the source line and a caret under the column.

    >>> print(pointed("a.yaml", ("rate: -1",), Position(1, 7), "rate: must be above 0"))
    a.yaml:1:7: rate: must be above 0
      rate: -1
            ^
    """
    head = f"{name}:{position.line}:{position.column}: {sentence}"
    if not 1 <= position.line <= len(lines):
        return head
    line = lines[position.line - 1].replace("\t", " ").rstrip()
    offset = position.column - 1
    start = max(0, offset - MAX_SHOWN // 2) if len(line) > MAX_SHOWN else 0
    excerpt = UNSHOWABLE.sub("?", line[start : start + MAX_SHOWN])
    excerpt = ("…" if start else excerpt[:1]) + excerpt[1:]
    if len(line) > start + MAX_SHOWN:
        excerpt = f"{excerpt[:-1]}…"
    if not excerpt.strip():
        return head
    indent = min(len(excerpt) - len(excerpt.lstrip()), offset - start)  # the caret may be at what indents: a tab
    return f"{head}\n  {excerpt[indent:]}\n  {' ' * (offset - start - indent)}^"
