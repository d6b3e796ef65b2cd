"""Bytes of a trace file, plain or gzip-compressed, in blocks of whole lines; refuses what cannot be a trace."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from costmodel.errors import InputError
from costmodel.units import MIB
from search_spaces.files import open_file, regular_size
from search_spaces.plain_text import kind_of_bytes

BLOCK_BYTES = 2 * MIB
MAX_LINE_BYTES = 16 * MIB
"""A request of a million tokens needs some 20 kB for its hash blocks; a longer line is a file without lines."""
SNIFF_BYTES = 64 * 1024
MAX_BLANK_BYTES = 32 * MIB
"""Blank lines in a row that are skipped; a compressed file of nothing else would take for ever."""
WANTED = "a trace file"

Progress = Callable[[float], None]
"""Told the share of the file that has been read [1]."""

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines, each with its newline, and the number of the first of them (counted from 1)."""

    data: bytes
    first_line: int


def first_bytes(path: Path) -> bytes:
    """Return the start of the trace's text without byte-order mark, or raise InputError if it is no text at all."""
    with ExitStack() as stack:
        start = _read(_open(path, stack)[0], SNIFF_BYTES, path, 1)
    kind = kind_of_bytes(start)
    if kind:
        raise InputError(f"{path}: the file is {kind}, a trace must be plain or gzip-compressed CSV or JSONL in UTF-8")
    control = next((place for place, byte in enumerate(start) if byte < 9), None)
    if control is not None:
        raise InputError(
            f"{path}: the file is binary (byte 0x{start[control]:02x} at offset {control}), "
            "a trace must be plain or gzip-compressed CSV or JSONL"
        )
    try:
        # A character may be cut in two at the end of the piece that was read.
        start[: max(len(start) - 4, 0)].decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 8:
            raise InputError(
                f"{path}: the file is not UTF-8 text (offset {error.start}), a trace must be CSV or JSONL"
            ) from None
    return start.removeprefix(b"\xef\xbb\xbf")


def read_blocks(path: Path, progress: Progress | None = None) -> Iterator[Block]:
    """Yield the file as blocks of whole lines, about BLOCK_BYTES each; the last line gets a newline if it has none."""
    size = max(regular_size(path, WANTED), 1)
    line, blank, rest = 1, 0, b""
    with ExitStack() as stack:
        stream, raw = _open(path, stack)
        while piece := _read(stream, BLOCK_BYTES, path, line):
            data = rest + piece
            if line == 1 and not rest:
                data = data.removeprefix(b"\xef\xbb\xbf")
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            if len(rest) > MAX_LINE_BYTES:
                long_line = line + data.count(b"\n", 0, end)
                raise InputError(
                    f"{path}:{long_line}: the line is longer than {MAX_LINE_BYTES // MIB} MiB, "
                    "a trace has one request per line"
                )
            whole = data[:end]
            blank = 0 if whole.strip() else blank + end
            if blank > MAX_BLANK_BYTES:
                raise InputError(f"{path}:{line}: {blank // MIB} MiB of blank lines end here; give {WANTED}")
            if end and not blank:
                yield Block(whole, line)
            line += whole.count(b"\n")
            if progress is not None:
                progress(min(raw.tell() / size, 1.0))
    if rest:
        yield Block(rest + b"\n", line)


def _open(path: Path, stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Return the stream of text bytes and the one of file bytes below it, both closed by `stack`."""
    raw = stack.enter_context(open_file(path, WANTED))
    packed = raw.read(2) == _GZIP
    raw.seek(0)
    return (cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=raw))), raw) if packed else (raw, raw)


def _read(stream: BinaryIO, size: int, path: Path, line: int) -> bytes:
    try:
        return stream.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{path}: the gzip data is cut off or damaged after line {line}; fetch it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read after line {line}: {error.strerror}") from None
