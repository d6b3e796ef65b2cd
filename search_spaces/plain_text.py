"""Bytes of a user's file as text: UTF-8, or a sentence that names what they are instead."""

from __future__ import annotations

from costmodel.errors import InputError

_KINDS = (
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
"""First bytes of files that are no text, by which they are told."""
_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Byte-order marks of UTF-16, little end first and big end first."""
_ALTERNATING = 16
"""Bytes of which every other one is zero where text in Latin letters is UTF-16 without a mark."""


def is_utf16(data: bytes) -> bool:
    r"""Whether bytes are UTF-16, with a byte-order mark or without.

    >>> is_utf16("name".encode("utf-16")), is_utf16("{}".encode("utf-16-be")), is_utf16(b"name"), is_utf16(b"\\0\\0")
    (True, True, False, False)
    """
    if data.startswith(_MARKS):
        return True
    even, odd = data[:_ALTERNATING:2], data[1:_ALTERNATING:2]
    return bool(odd) and any(not any(zeros) and all(letters) for zeros, letters in ((even, odd), (odd, even)))


def kind_of_bytes(data: bytes) -> str:
    """What a file is that is no UTF-8 text, by its first bytes; empty where they do not tell.

    >>> kind_of_bytes(b"PAR1...."), kind_of_bytes(b"isl,osl")
    ('a Parquet file', '')
    """
    if is_utf16(data):
        return "UTF-16 text"
    return next((kind for magic, kind in _KINDS if data.startswith(magic)), "")


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
