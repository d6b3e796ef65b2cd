"""What multi-token prediction saves: measured pairs of runs with and without it, against the model.

    python benchmarks/mtp_pairs.py ../shared/data/serving/r1_2026.csv [--acceptance 0.8,0.6,0.4] [--tokens 3]

A pair is two rows of one deployment at one load, one of them with `spec_method` mtp; of several rows without it the
nearest in date. Predicted is the ratio of their TPOT, so that what the model gets wrong of both falls out. The files do
not state how many tokens were drafted: InferenceX's scripts draft three. Without --acceptance one figure for all
positions is fitted to the other half of the pairs (two halves, by deployment), and each half is scored by the other's.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.engine import Draft, Speculation  # noqa: E402 -- the repository is found first
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_serving_policy  # noqa: E402
from search_spaces.measured_engines import MeasuredDeployment, batches_of, deployments_of, steady_state  # noqa: E402
from search_spaces.measurements import read_measurements  # noqa: E402

SAME = ("accelerator", "precision", "engine", "mode", "isl", "osl", "concurrency", "num_gpus", "tp", "pp", "ep", "dp")
SAME += tuple(f"{side}_{key}" for side in ("prefill", "decode") for key in ("workers", "tp", "pp", "dp", "ep"))
GRID = np.round(np.arange(0.3, 0.96, 0.01), 2)


def pairs_of(path: Path) -> list[tuple[dict[str, str], float]]:
    """Rows without speculation that have a partner with it, and the measured ratio of TPOT."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in SAME)].append(row)
    pairs = []
    for group in groups.values():
        plain = [row for row in group if row["spec_method"] == "none"]
        for row in group:
            if row["spec_method"] == "mtp" and plain:
                other = min(plain, key=lambda candidate: abs(_day(candidate) - _day(row)))
                pairs.append((other, _tpot(row) / _tpot(other)))
    return pairs


def _day(row: dict[str, str]) -> int:
    return datetime.date.fromisoformat(row["date"]).toordinal()


def _tpot(row: dict[str, str]) -> float:
    return float(row["tpot_median_ms"] or row["tpot_ms"])


def ratio(deployment: MeasuredDeployment, speculation: Speculation) -> float:
    """Predicted TPOT with speculation over that without it."""
    decode = deployment.decode and replace(deployment.decode, speculation=speculation)
    drafting = replace(deployment, prefill=replace(deployment.prefill, speculation=speculation), decode=decode)
    policy = load_serving_policy(deployment.engine)
    without, with_drafts = (
        float(steady_state(batches_of([run])[0], policy).tpot[0, 0]) for run in (deployment, drafting)
    )
    return with_drafts / without


def main() -> None:
    """Print the pairs by concurrency, and the error of the predicted ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--acceptance", type=lambda text: tuple(map(float, text.split(","))))
    options = parser.parse_args()
    pairs = pairs_of(options.path)
    _, rows = read_measurements(options.path)
    deployments, _ = deployments_of(rows, load_catalog(), None)
    with options.path.open(encoding="utf-8", newline="") as file:
        line_of = {row["id"]: line for line, row in enumerate(csv.DictReader(file), start=2)}
    by_line = {deployment.row.line: deployment for deployment in deployments}
    cases = [(row, measured, by_line[line_of[row["id"]]]) for row, measured in pairs if line_of[row["id"]] in by_line]
    print(f"{len(pairs)} pairs, {len(cases)} of deployments that are predicted")

    def predicted(acceptance: tuple[float, ...]) -> list[float]:
        speculation = Speculation(Draft.MTP, options.tokens, acceptance)
        return [ratio(deployment, speculation) for _, _, deployment in cases]

    measured = np.array([value for _, value, _ in cases])
    if options.acceptance:
        ratios = np.array(predicted(options.acceptance))
    else:
        table = {float(a): np.array(predicted((float(a),))) for a in GRID[::3]}
        keys = sorted({tuple(row[key] for key in SAME if key != "concurrency") for row, _, _ in cases})
        half = np.array([keys.index(tuple(row[k] for k in SAME if k != "concurrency")) % 2 for row, _, _ in cases])
        ratios = np.zeros_like(measured)
        for own in (0, 1):
            errors = {a: np.median(np.abs(np.log(values / measured))[half != own]) for a, values in table.items()}
            best = min(errors, key=errors.__getitem__)
            print(f"half {own}: acceptance {best:.2f}, fitted to the other half")
            ratios[half == own] = table[best][half == own]
    error = ratios / measured - 1.0
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, (row, _, _) in enumerate(cases):
        groups["all",].append(index)
        groups["concurrency", f"{float(row['concurrency']):g}"].append(index)
        groups[row["accelerator"], row["engine"], row["mode"]].append(index)
    print(f"{'pairs':>5}  {'measured':>8}  {'predicted':>9}  {'error':>6}  {'bias':>6}")
    for name, members in groups.items():
        chosen = error[members]
        print(
            f"{len(members):5d}  {statistics.median(measured[members]):8.2f}  {statistics.median(ratios[members]):9.2f}"
            f"  {np.median(np.abs(chosen)):6.1%}  {np.median(chosen):+6.1%}  {' '.join(name)}"
        )


if __name__ == "__main__":
    main()
