"""ISO 8601 dates with time of day, to nanoseconds since 1970-01-01 UTC: whole columns at once, or one text."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from .rows import NANOSECONDS, IntArray

ByteMatrix = NDArray[np.uint8]

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:[Zz]|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_CLOCK_LENGTH = 19
"""Characters of YYYY-MM-DD HH:MM:SS."""


def looks_like_date(text: str) -> bool:
    """Tell whether the text starts as an ISO date does.

    >>> looks_like_date("2023-11-16 18:15:46.6805900"), looks_like_date("46.68")
    (True, False)
    """
    return re.match(r"\d{4}-\d\d-\d\d", text.strip()) is not None


def parse_date(text: str) -> int | None:
    """Return nanoseconds since 1970 of one ISO date and time; without an offset it is UTC; None if it is not one.

    >>> parse_date("1970-01-01 00:00:01.5"), parse_date("1970-01-01T01:00:00+01:00"), parse_date("yesterday")
    (1500000000, 0, None)
    """
    found = _ISO.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    seconds = round((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    if found[8]:
        shift = 3600 * int(found[9]) + 60 * int(found[10])
        seconds -= shift if found[8] == "+" else -shift
    return seconds * NANOSECONDS + int((found[7] or "0").ljust(9, "0"))


def parse_dates(buffer: NDArray[np.uint8], start: IntArray, end: IntArray) -> IntArray | None:
    """Return nanoseconds since 1970 of the fields buffer[start:end], or None if any is not plainly an ISO date.

    Fields of one length are handled together: the 2024 Azure trace leaves the fraction out when it is zero.
    """
    width = end - start
    result = np.empty(start.size, dtype=np.int64)
    for length in np.unique(width):
        if not _CLOCK_LENGTH <= length <= 40:
            return None
        chosen = np.flatnonzero(width == length)
        parsed = _parse_matrix(buffer[start[chosen][:, None] + np.arange(length)])
        if parsed is None:
            return None
        result[chosen] = parsed
    return result


def _parse_matrix(text: ByteMatrix) -> IntArray | None:
    """Parse dates of equal length, one per row; all must have the shape of the first."""
    tail = text[0, _CLOCK_LENGTH:].tobytes()
    match = re.fullmatch(rb"(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", tail)
    if match is None or not _punctuated(text):
        return None
    digits = len(match[1] or b"")
    fraction = _number(text, _CLOCK_LENGTH + 1, digits) if digits else np.zeros(len(text), dtype=np.int64)
    seconds = _clock_seconds(text)
    offset = _offset_seconds(text, match[2] or b"")
    if fraction is None or seconds is None or offset is None or (digits and np.any(text[:, _CLOCK_LENGTH] != ord("."))):
        return None
    moment: IntArray = (seconds - offset) * NANOSECONDS + fraction * 10 ** (9 - digits)
    return moment


def _punctuated(text: ByteMatrix) -> bool:
    marks = np.all(text[:, [4, 7, 13, 16]] == np.frombuffer(b"--::", dtype=np.uint8))
    return bool(marks and np.all((text[:, 10] == ord(" ")) | (text[:, 10] == ord("T"))))


def _clock_seconds(text: ByteMatrix) -> IntArray | None:
    """Return seconds since 1970 of YYYY-MM-DD HH:MM:SS, or None if a part is no number or out of its range."""
    places = ((0, 4, 1828, 2111), (5, 2, 1, 12), (8, 2, 1, 31), (11, 2, 0, 23), (14, 2, 0, 59), (17, 2, 0, 59))
    parts: list[IntArray] = []
    for start, digits, least, most in places:
        part = _number(text, start, digits)
        if part is None or part.min() < least or part.max() > most:
            return None
        parts.append(part)
    year, month, day, hour, minute, second = parts
    months = (year - 1970) * 12 + month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    following = (months + 1).astype("datetime64[M]").astype("datetime64[D]")
    if np.any(day > (following - first).astype(np.int64)):
        return None
    return (first.astype(np.int64) + day - 1) * 86400 + hour * 3600 + minute * 60 + second


def _offset_seconds(text: ByteMatrix, zone: bytes) -> IntArray | None:
    """Return the offset from UTC [s] that ends each row, where `zone` is that of the first row."""
    if len(zone) < 6:
        same = not zone or bool(np.all(text[:, -1] == ord("Z")))
        return np.zeros(len(text), dtype=np.int64) if same else None
    length = text.shape[1]
    hours, minutes = _number(text, length - 5, 2), _number(text, length - 2, 2)
    sign = text[:, length - 6].astype(np.int64)
    known = (sign == ord("+")) | (sign == ord("-"))
    if hours is None or minutes is None or not np.all(known & (text[:, length - 3] == ord(":"))):
        return None
    offset: IntArray = np.where(sign == ord("-"), -1, 1) * (hours * 3600 + minutes * 60)
    return offset


def _number(text: ByteMatrix, start: int, digits: int) -> IntArray | None:
    """Return the decimal number in columns start..start+digits of each row, or None if a character is no digit."""
    value = np.zeros(len(text), dtype=np.int64)
    for column in range(start, start + digits):
        digit = text[:, column] - np.uint8(ord("0"))
        if digit.max() > 9:
            return None
        value = value * 10 + digit
    return value
