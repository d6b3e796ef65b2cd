"""What multi-token prediction (MTP) saves: measured runs with it, and pairs of runs with and without it, and the model.

    python benchmarks/mtp_pairs.py ../shared/data/serving/r1_2026.csv [--tokens 3 --acceptance 0.8,0.6]

Three tables, none of them fitted. Tokens a step: engines that stream every n steps say how long a step without prompts
takes, the median gap between chunks over n; what TPOT has beyond a step in the nearest run without MTP are others'
prompts, so tokens a step = step / (TPOT - prompts), where prompts are less than a fifth of the TPOT. TPOT of every run
with MTP against the model. Ratio of TPOT with MTP to that without, of two runs of one deployment at one load, the
nearest in date: what the model gets wrong of both falls out.

The file does not state how many tokens are drafted: `drafted` has what the scripts of InferenceX and the recipes of
srt-slurm do. Acceptance is the catalog's for 1,024 output tokens; random prompts with 8,192 have answers that repeat
themselves, of which more is accepted (`LONG`).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402 -- the repository is found first
from costmodel.engine import Draft  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import shipped_acceptance  # noqa: E402
from search_spaces.measured_engines import predict_serving  # noqa: E402
from search_spaces.measurements import SCRIPTS, read_measurements, read_scripts, with_settings  # noqa: E402

Row = dict[str, str]
SAME = ("accelerator", "precision", "engine", "mode", "isl", "osl", "concurrency", "num_gpus", "tp", "pp", "ep", "dp")
SAME += tuple(f"{side}_{key}" for side in ("prefill", "decode") for key in ("workers", "tp", "pp", "dp", "ep"))
LONG = (0.887, 0.67)
"""Acceptance by position with 8,192 output tokens [1]: 1.89 tokens a step of one drafted, 2.88 of three."""
LARGEST_BATCH = 64
"""Requests of a decode worker up to which a table counts a run as small [1]."""


def drafted(row: Row) -> int:
    """Tokens that a run with MTP drafts a step.

    SGLang two (`--speculative-num-steps 2`), three on MI355X; TensorRT-LLM three, one where one engine does all with
    data-parallel attention.
    """
    if row["engine"] == "sglang":
        return 3 if row["accelerator"] == "mi355x" else 2
    return 1 if row["mode"] == "colocated" and float(row["dp"]) > 1 else 3


def chunk_steps(row: Row) -> int:
    """Steps from one streamed chunk to the next; 0 where the engine counts tokens, not steps (SGLang on NVIDIA)."""
    if row["engine"] == "sglang":
        return 1 if row["accelerator"] == "mi355x" else 0
    return 10 if row["mode"] == "colocated" else 100


def tpot(row: Row) -> float:
    """Median TPOT [ms], or what the row has."""
    return float(row["tpot_median_ms"] or row["tpot_ms"])


def batch(row: Row) -> float:
    """Requests in flight for each decode worker [1]."""
    return float(row["concurrency"]) / float(row["decode_workers"] or 1)


def pairs_of(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Runs without MTP and with it of one deployment at one load; of several without it the nearest in date."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in SAME)].append(row)
    pairs = []
    for group in groups.values():
        plain = [row for row in group if row["spec_method"] == "none"]
        drafting = [row for row in group if row["spec_method"] == "mtp" and plain]
        pairs += [(min(plain, key=lambda other: abs(_day(other) - _day(row))), row) for row in drafting]
    return pairs


def _day(row: Row) -> int:
    return datetime.date.fromisoformat(row["date"]).toordinal()


def tokens_a_step(plain: Row, row: Row) -> float | None:
    """Tokens that a run with MTP makes a step [1]; None where its chunks do not say."""
    steps = chunk_steps(row)
    if not steps or not row["itl_median_ms"] or not plain["itl_median_ms"]:
        return None
    prompts = max(tpot(plain) - float(plain["itl_median_ms"]) / steps, 0.0)
    if prompts > 0.2 * tpot(plain):
        return None
    return float(row["itl_median_ms"]) / steps / (tpot(row) - prompts)


def predicted(rows: Sequence[Row]) -> list[float]:
    """TPOT of every row [ms], with the flags of its script."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        measured = with_settings(read_measurements(path)[1], read_scripts(data_folder() / "serving" / SCRIPTS))
        outcome = predict_serving(measured, load_catalog(), None)
    if outcome.refused:
        raise SystemExit(f"not predicted: {outcome.refused[0].reason}")
    return [1e3 * row.values["tpot"].predicted for row in outcome.predicted]


def show(title: str, rows: Sequence[Row], measured: Sequence[float], predictions: Sequence[float]) -> None:
    """Print the errors of a quantity, by deployment, batch and drafted tokens."""
    errors = np.array(predictions) / np.array(measured) - 1.0
    groups: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups["all"].append(index)
        small = batch(row) <= LARGEST_BATCH
        groups[f"up to {LARGEST_BATCH} requests" if small else f"over {LARGEST_BATCH} requests"].append(index)
        groups[f"{drafted(row)} drafted"].append(index)
        groups[" ".join(row[key] for key in ("accelerator", "engine", "mode"))].append(index)
    print(f"\n{title}\n{'runs':>5}  {'measured':>8}  {'predicted':>9}  {'error':>6}  {'bias':>6}")
    for name in sorted(groups):
        members = groups[name]
        middle, guess = np.median(np.array(measured)[members]), np.median(np.array(predictions)[members])
        error, bias = np.median(np.abs(errors[members])), np.median(errors[members])
        print(f"{len(members):5d}  {middle:8.2f}  {guess:9.2f}  {error:6.1%}  {bias:+6.1%}  {name}")


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokens", type=int, help="drafted in every run, whatever its script says")
    parser.add_argument("--acceptance", type=lambda text: tuple(map(float, text.split(","))), help="of every run")
    options = parser.parse_args()
    with options.path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def drafting_row(row: Row) -> Row:
        acceptance = options.acceptance or (LONG if row["osl"] == "8192" else shipped_acceptance()[Draft.MTP])
        tokens = options.tokens or drafted(row)
        return row | {"spec_tokens": str(tokens), "spec_acceptance": " ".join(map(str, acceptance))}

    pairs = pairs_of(rows)
    for osl in ("1024", "8192"):
        counts = [tokens_a_step(*pair) for pair in pairs if pair[1]["osl"] == osl and drafted(pair[1]) == 3]
        counts = [count for count in counts if count is not None]
        print(f"OSL {osl}: {np.median(counts):.2f} tokens a step of three drafted (median of {len(counts)} runs)")
    drafting = [row for row in rows if row["spec_method"] == "mtp"]
    guesses = predicted([drafting_row(row) for row in drafting])
    times = {row["id"]: guess for row, guess in zip(drafting, guesses, strict=True)}
    show("TPOT with MTP [ms]", drafting, [tpot(row) for row in drafting], guesses)
    plain_times = predicted([plain for plain, _ in pairs])
    with_mtp = [row for _, row in pairs]
    measured = [tpot(row) / tpot(plain) for plain, row in pairs]
    ratios = [times[row["id"]] / time for row, time in zip(with_mtp, plain_times, strict=True)]
    show("TPOT with MTP over that without", with_mtp, measured, ratios)


if __name__ == "__main__":
    main()
