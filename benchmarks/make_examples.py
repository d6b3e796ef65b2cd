"""Derive the length histograms and trace excerpts of examples/ from the public traces; print how true they are.

    python benchmarks/make_examples.py [FOLDER OF TRACES]   (default ../shared/data/traces, or PDPLAN_DATA/traces)

Writes examples/histograms/*.csv and examples/traces/*; examples/README.md names sources and licences.
"""

from __future__ import annotations

import gzip
import sys
from itertools import islice
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- run as a script, the repository is found first
from costmodel.workload import Buckets  # noqa: E402
from search_spaces.trace_summary import TraceSummary, read_trace, workload_block  # noqa: E402

EXAMPLES = ROOT / "examples"
BUCKETS = 48
CONVERSATION = "AzureLLMInferenceTrace_conv_2023.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl.gz"
SOURCES = {
    "chat": CONVERSATION,
    "long-context": MOONCAKE,
    "code": "AzureLLMInferenceTrace_code_2023.csv",
}
EXCERPTS = {"azure-conv-500.csv": (CONVERSATION, 501), "mooncake-200.jsonl": (MOONCAKE, 200)}
"""Excerpt: its source, and how many lines of it (the header counts)."""


def write_histogram(path: Path, rows: list[tuple[float, float, float]]) -> Buckets:
    """Write the rows and return them as they will be read again."""
    lines = "".join(f"{isl:.2f},{osl:.2f},{share:.6f}\n" for isl, osl, share in rows)
    path.write_text("isl,osl,share\n" + lines, encoding="utf-8")
    isl, osl, share = np.array(rows).T
    return Buckets(isl, osl, share)


def print_accuracy(name: str, summary: TraceSummary, buckets: Buckets) -> None:
    share, isl, osl = buckets.share, buckets.isl, buckets.osl
    own_isl, own_osl = (tokens.astype(np.float64) for tokens in (summary.rows.isl, summary.rows.osl))
    moments = {
        "E[isl]": (share @ isl, summary.mean_isl),
        "E[osl]": (share @ osl, summary.mean_osl),
        "E[isl^2]": (share @ isl**2, float((own_isl**2).mean())),
        "E[osl^2]": (share @ osl**2, float((own_osl**2).mean())),
        "E[isl osl]": (share @ (isl * osl), float((own_isl * own_osl).mean())),
    }
    print(f"{name}: {summary.arrivals.requests} requests, {isl.size} buckets, longest {summary.max_tokens} tokens")
    print("  " + "  ".join(f"{label} {(got / true - 1) * 100:+.3f} %" for label, (got, true) in moments.items()))
    for label, values, counts in (
        ("isl", isl, np.bincount(summary.rows.isl)),
        ("osl", osl, np.bincount(summary.rows.osl)),
    ):
        mean, worst, tail = exceedance_errors(values, share, counts)
        print(f"  |error of P({label} > t)|: mean {mean:.3f}, worst {worst:.3f}, at the 99th percentile {tail:.4f}")
    rate, burstiness = summary.arrivals.mean_rate or 0.0, summary.arrivals.burstiness
    print(f"  rate {rate:.2f} 1/s, burstiness {burstiness:.2f}, prefix hits {summary.prefix_hit_share}")


def exceedance_errors(values: np.ndarray, share: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """Mean and worst error of P(length > t) over the trace's 5 %, 10 %, ... 95 % quantiles, and that at 99 %."""
    below = np.cumsum(counts) / counts.sum()
    points = [int(np.searchsorted(below, q)) for q in (*np.arange(0.05, 0.951, 0.05), 0.99)]
    errors = [abs(share[values > t].sum() - (1 - below[t])) for t in points]
    return float(np.mean(errors[:-1])), float(max(errors[:-1])), float(errors[-1])


def write_excerpt(path: Path, source: Path, lines: int) -> None:
    with source.open("rb") as raw, gzip.GzipFile(fileobj=raw) if source.suffix == ".gz" else raw as stream:
        path.write_bytes(b"".join(islice(stream, lines)))


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else data_folder() / "traces"
    missing = [name for name in SOURCES.values() if not (folder / name).is_file()]
    if missing:
        print(f"skipped: {folder} lacks {', '.join(missing)}")
        return 0
    for sub in ("histograms", "traces"):
        (EXAMPLES / sub).mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        summary = read_trace(folder / source)
        rows = workload_block(summary.bucketed(BUCKETS))["lengths"]["histogram"]
        buckets = write_histogram(EXAMPLES / "histograms" / f"{name}.csv", [(*row.values(),) for row in rows])
        print_accuracy(name, summary, buckets)
    for name, (source, lines) in EXCERPTS.items():
        write_excerpt(EXAMPLES / "traces" / name, folder / source, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
