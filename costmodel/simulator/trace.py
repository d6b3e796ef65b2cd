"""The requests of a run: when they come and how long they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival; arrays of shape (requests,).

    arrival [s]; isl, osl [token]; cached: tokens of the prompt whose KV is found in a cache [token];
    prefix: requests with the same number share a prefix (-1: none); pool, decode_pool: index of the pool that computes
    the prompt and of the one that decodes (-1: any); concurrency: of a closed loop, 0 for an open one. In a closed loop
    the first `concurrency` requests come at their arrival, every other one `think` seconds after one has ended.
    """

    arrival: FloatArray
    isl: IntArray
    osl: IntArray
    cached: IntArray | None = None
    prefix: IntArray | None = None
    pool: IntArray | None = None
    decode_pool: IntArray | None = None
    concurrency: int = 0
    think: float = 0.0

    @property
    def size(self) -> int:
        """Number of requests."""
        return int(self.arrival.size)

    @property
    def opened(self) -> int:
        """Requests that come by themselves."""
        return min(self.concurrency, self.size) if self.concurrency else self.size


def make_trace(
    arrival: FloatArray,
    isl: IntArray,
    osl: IntArray,
    *,
    cached: IntArray | None = None,
    prefix: IntArray | None = None,
    pool: IntArray | None = None,
    decode_pool: IntArray | None = None,
    concurrency: int = 0,
    think: float = 0.0,
) -> Trace:
    """Check the columns of a trace and sort its requests by arrival (stable)."""
    columns = {
        "isl": isl,
        "osl": osl,
        "cached": cached,
        "prefix": prefix,
        "pool": pool,
        "decode_pool": decode_pool,
    }
    times = np.asarray(arrival, dtype=np.float64)
    if times.ndim != 1 or not times.size:
        raise InputError("trace: it needs at least one request")
    if not np.all(np.isfinite(times)):
        raise InputError("trace: every arrival must be a finite time in seconds")
    order = np.argsort(times, kind="stable")
    sorted_columns: dict[str, IntArray | None] = {}
    for name, column in columns.items():
        if column is not None and np.shape(column) != times.shape:
            raise InputError(f"trace: {name} has {np.size(column)} values for {times.size} requests")
        sorted_columns[name] = None if column is None else np.asarray(column, dtype=np.int64)[order]
    trace = Trace(times[order], **sorted_columns, concurrency=concurrency, think=think)  # type: ignore[arg-type]
    for name, values in (("isl", trace.isl), ("osl", trace.osl)):
        if values.min() < 1:
            raise InputError(f"trace: {name} {values.min()} of request {int(values.argmin())} must be 1 token or more")
    if trace.cached is not None and (trace.cached.min() < 0 or np.any(trace.cached >= trace.isl)):
        raise InputError("trace: cached tokens must be at least 0 and below isl, for the last token is always computed")
    return trace
