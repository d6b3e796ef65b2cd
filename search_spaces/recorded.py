"""Requests as a trace recorded them: the simulation draws stretches of them, and the formulas ask how they bunch.

Waves of requests, pauses and lengths that come together are in no coefficient of variation. The arrivals of one pause
and one wave have that of a process whose gaps are drawn each by itself and that is far burstier within seconds, and far
calmer within minutes. So where there is a trace the simulation takes its requests, and the formulas, which know one
number only, take the dispersion of its counts over the time that a request may take.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.errors import InputError

MICROSECONDS = 1e6
LEAST, MOST = 1_000, 20_000
"""Requests of a trace that tells of waves at all, assumed; and those that are kept of a longer one."""
LARGEST = 3 * 8 * (MOST + MOST // 10)
"""Bytes of a packed one at most: stretches have some more or less than MOST requests."""
PARTS = 20
"""Stretches of equal length, at equal distances, that are kept of a longer one."""
STRETCHES = 10
"""Stretches of mean length that a recording has."""
LEAST_WINDOWS, LEAST_COUNT = 20, 10.0
"""Windows that a dispersion is of, and mean arrivals in one, at least: in shorter ones any process is like Poisson."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Requests of a trace in order of arrival, each array of shape (requests,).

    source: name of the trace; of: requests that it has; too_long: those left out that have too many tokens; arrival
    [s], within [0, span); isl, osl [token].
    """

    source: str
    of: int
    too_long: int
    span: float
    arrival: FloatArray
    isl: IntArray
    osl: IntArray

    @property
    def rate(self) -> float:
        """Mean arrivals [1/s]."""
        return self.arrival.size / self.span

    @property
    def longest(self) -> int:
        """Most tokens of a request, ISL + OSL [token]."""
        return int((self.isl + self.osl).max())

    def dispersion(self, window: float) -> float:
        """Index of dispersion of the counts in windows of so many seconds, variance over mean [1].

        1 for Poisson arrivals; the squared coefficient of variation of the gaps for a renewal process, in windows of
        many gaps (Fendick and Whitt 1989). Too short and too long windows are replaced by the nearest fit ones.
        """
        window = min(max(window, LEAST_COUNT / self.rate), self.span / LEAST_WINDOWS)
        windows = int(self.span / window)
        counts = np.bincount((self.arrival / window).astype(np.int64), minlength=windows)[:windows]
        return float(counts.var() / counts.mean())

    def drawn(self, count: int, rate: float, seed: int = 0) -> tuple[FloatArray, IntArray]:
        """Arrival [s] and index of `count` requests in stretches of the recording, at a mean rate [1/s].

        Stretches start anywhere, go over its end to its start, and last a tenth of it on average, exponentially
        distributed (stationary bootstrap, Politis and Romano 1994): waves that last no longer are kept as they are.
        The draws do not depend on the rate.
        """
        rng = np.random.default_rng([seed, 1])
        index, times, clock, drawn = list[IntArray](), list[FloatArray](), 0.0, 0
        while drawn < count:
            start, lasts = rng.uniform(0.0, self.span), min(rng.exponential(self.span / STRETCHES), self.span)
            place = np.arange(self._before(start), self._before(start + lasts))
            index.append(place % self.arrival.size)
            times.append(clock - start + self.arrival[index[-1]] + place // self.arrival.size * self.span)
            clock, drawn = clock + lasts, drawn + place.size
        return np.concatenate(times)[:count] * (self.rate / rate), np.concatenate(index)[:count]

    def _before(self, time: float) -> int:
        """Requests that come before a time, in the first or second pass."""
        passes, rest = divmod(time, self.span)
        return int(passes) * self.arrival.size + int(np.searchsorted(self.arrival, rest))

    def echo(self) -> dict[str, Any]:
        """The same, ready for JSON and small: times to the microsecond (see `unpacked`)."""
        columns = np.stack([np.floor(self.arrival * MICROSECONDS).astype("<i8"), self.isl, self.osl])
        columns[0] = np.diff(columns[0], prepend=0)  # gaps compress better
        text = base64.b64encode(zlib.compress(columns.astype("<i8").tobytes(), 9)).decode()
        return {"source": self.source, "of": self.of, "too_long": self.too_long, "span": self.span, "packed": text}


def unpacked(source: str, of: int, too_long: int, span: float, packed: str) -> Recorded:
    """What `Recorded.echo` wrote: rows of gaps [us], ISL and OSL as 64-bit numbers, compressed by zlib, in base64.

    Raises InputError where that is not what stands there.
    """
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(packed, validate=True), LARGEST)
        gaps, isl, osl = np.frombuffer(data, dtype="<i8").reshape(3, -1)
    except (binascii.Error, zlib.error, ValueError):
        raise InputError("is damaged: it is no recording that pdplan packed") from None
    arrival = np.cumsum(gaps) / MICROSECONDS
    if not reader.eof:
        raise InputError("is damaged: its end is missing, or it is too long")
    if arrival.size < LEAST or gaps.min() < 0 or arrival[-1] >= span or min(isl.min(), osl.min()) < 1:
        raise InputError(f"is damaged: {LEAST:,} requests at least must come within its span of {span:g} s")
    return Recorded(source, of, too_long, span, arrival, isl.astype(np.int64), osl.astype(np.int64))
