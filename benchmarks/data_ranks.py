"""TPOT on data-parallel ranks, measured and predicted: with the host time of one rank's requests, and of all ranks'.

    python benchmarks/data_ranks.py [CSV ...]

CSV: files in the format of serving/closed_loop.csv; without one, that file and serving/r1_2026.csv of the data folder
(PDPLAN_DATA, else ../shared/data). Rows with speculative decoding, which the predictions leave out, are not counted.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.engine import ServingPolicy  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_serving_policy  # noqa: E402
from search_spaces.measured_engines import MeasuredDeployment, batches_of, deployments_of, steady_state  # noqa: E402
from search_spaces.measurements import read_measurements  # noqa: E402

FILES = ("serving/closed_loop.csv", "serving/r1_2026.csv")
FEW = 64.0
"""Requests of a rank up to which host time matters little."""


@dataclass(frozen=True)
class Measured:
    """One row: where it is from, what each rank runs [1], and ln(predicted / measured) TPOT by either law."""

    file: str
    engine: str
    accelerator: str
    ranks: int
    requests: float
    of_rank: float
    of_all: float


def rows_of(path: Path) -> Iterator[Measured]:
    """The rows of a file whose decoding engine has data-parallel ranks."""
    _, rows = read_measurements(path)
    deployments, _ = deployments_of(rows, load_catalog(), data_folder() / "models")
    groups: dict[int, list[MeasuredDeployment]] = defaultdict(list)
    for each in deployments:
        ranks = (each.decode or each.prefill).parallelism.data
        if ranks > 1 and each.prefill.speculation is None:
            groups[ranks].append(each)
    for ranks, members in groups.items():
        for batch in batches_of(members):
            policy = load_serving_policy(batch.engine)
            own, summed = (steady_state(batch, each) for each in (policy, of_all_ranks(policy, ranks)))
            for index, each in enumerate(batch.deployments):
                logs = [float(np.log(steady.tpot[index, 0] / each.row.scored[1])) for steady in (own, summed)]
                workers = each.row.decode.count if each.row.decode else 1
                requests = float(own.running[index, 0]) / workers / ranks
                yield Measured(path.name, batch.engine, each.prefill.accelerator.name, ranks, requests, *logs)


def of_all_ranks(policy: ServingPolicy, ranks: int) -> ServingPolicy:
    """The policy if one process served all ranks: a request of each costs as much as they cost together."""
    return replace(policy, overhead=replace(policy.overhead, per_request=policy.overhead.per_request * ranks))


def show(name: str, rows: list[Measured]) -> None:
    """One line: rows, median error and bias of TPOT by either law."""
    figures = []
    for law in ("of_rank", "of_all"):
        errors = np.expm1([getattr(row, law) for row in rows])
        figures.append(f"{np.median(np.abs(errors)):8.1%} {np.median(errors):+8.1%}")
    print(f"{name:<44}{len(rows):>5}{'   '.join(['', *figures])}")


def main() -> None:
    """Print the errors by file, engine, GPU and ranks."""
    files = [Path(name) for name in sys.argv[1:]] or [data_folder() / name for name in FILES]
    rows = [row for path in files for row in rows_of(path)]
    print(f"{'':<44}{'rows':>5}{'host per rank':>20}{'of all ranks':>20}")
    groups: dict[str, list[Measured]] = defaultdict(list)
    for row in rows:
        groups[f"{row.file} {row.engine} {row.accelerator} DP{row.ranks}"].append(row)
    for name, members in sorted(groups.items()):
        show(name, members)
    show(f"up to {FEW:g} requests a rank", [row for row in rows if row.requests <= FEW])
    show(f"more than {FEW:g} requests a rank", [row for row in rows if row.requests > FEW])
    show("all", rows)


if __name__ == "__main__":
    main()
