"""Write a synthetic Azure-style CSV, read it as `pdplan workload` does, print rows per second and peak memory.

python benchmarks/trace_memory.py [ROWS]        (default 20 million: 0.8 GB in the temporary directory)
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from search_spaces.trace_summary import TraceSummary, read_trace

ROWS = 20_000_000
ROWS_PER_PIECE = 200_000
START = np.datetime64("2024-05-10T00:00:00", "us")
MEAN_GAP = 0.03
"""Seconds: 20 million requests are then a week."""


def write_trace(path: Path, rows: int, seed: int = 0) -> None:
    """Poisson arrivals with log-normal lengths; the fraction of a second is left out where it is zero, as in 2024."""
    random = np.random.default_rng(seed)
    clock = 0.0
    with path.open("w", encoding="ascii") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for done in range(0, rows, ROWS_PER_PIECE):
            size = min(ROWS_PER_PIECE, rows - done)
            arrival = clock + np.cumsum(random.exponential(MEAN_GAP, size))
            clock = float(arrival[-1])
            moments = np.char.replace((START + (arrival * 1e6).astype(np.int64)).astype(str), "T", " ")
            isl = random.lognormal(6.5, 1.0, size).astype(int) + 1
            osl = random.lognormal(5.0, 0.8, size).astype(int) + 1
            lines = zip(moments, isl, osl, strict=True)
            out.write("".join(f"{moment.removesuffix('.000000')}+00:00,{i},{o}\n" for moment, i, o in lines))


def report(summary: TraceSummary, path: Path, seconds: float, before: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    arrivals = summary.arrivals
    print(f"{arrivals.requests:,} rows, {path.stat().st_size / 1e6:,.0f} MB read in {seconds:.1f} s")
    print(f"{arrivals.requests / seconds:,.0f} rows/s; peak memory {peak:.0f} MiB ({before:.0f} MiB before reading)")
    print(f"rate {arrivals.mean_rate:.2f} 1/s, burstiness {arrivals.burstiness:.3f}, mean ISL {summary.mean_isl:.1f}")
    start = time.perf_counter()
    buckets = summary.bucketed()
    print(f"{buckets.isl.size} buckets of lengths in {time.perf_counter() - start:.2f} s")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "azure-style.csv"
        write_trace(path, rows)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.perf_counter()
        summary = read_trace(path)
        report(summary, path, time.perf_counter() - start, before)


if __name__ == "__main__":
    main()
