"""Our fleet solver on other tools' fleet problems: our cost against the proven optimum, and the bound that we state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.search.program import Aim, Matrices, cheapest

from .fleet_cases import files_of, fleet_pd_matrices, melange_matrices
from .fleet_schemas import MelangeCase, MelangeOptimum, PairCase, read_case

IN_TEN_SECONDS = {"nodes": 400, "time_limit": 9.5}
"""The prefill/decode cases are to be answered within ten seconds: this work takes four to six, so that the clock
decides on slower machines alone."""


@dataclass(frozen=True, slots=True)
class FleetComparison:
    """One case: our cost, the proven optimum (None where it is not known), our bound [$/h], and our time [s]."""

    case: str
    cost: float | None
    expected: float | None
    bound: float | None
    seconds: float

    def line(self) -> str:
        """The comparison in words."""
        cost = "no fleet" if self.cost is None else f"cost {self.cost:.6f}"
        expected = "not known" if self.expected is None else f"{self.expected:.6f}"
        return f"{self.case}: {cost}, expected {expected}, bound {self.bound or 0.0:.6f}, {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class FleetGap(FleetComparison):
    """The same with the relative gap between our cost and our bound [1]."""

    gap: float | None

    def line(self) -> str:
        """The comparison in words."""
        return f"{FleetComparison.line(self)}, gap {'none' if self.gap is None else f'{self.gap:.3%}'}"


def _solved(matrices: Matrices, work: dict[str, Any]) -> tuple[float | None, float | None, float]:
    """Cost, bound and seconds of one case; where there can be no fleet both are None."""
    start = time.perf_counter()
    found = cheapest(matrices, Aim(cost_weight=1.0), **work)
    seconds = time.perf_counter() - start
    if not np.isfinite(found.objective):
        return None, found.bound if np.isfinite(found.bound) else None, seconds
    return found.objective, min(found.bound, found.objective), seconds


EXACT = {"gap": 0.0, "nodes": 100_000}
"""Work until the proof, in whole numbers of a dozen types, which mostly takes hundreds of nodes."""


def compare_melange(folder: Path) -> Iterator[FleetComparison]:
    """Every `NAME.input.json` of a folder; `NAME.expected.json`, where there is one, has the proven optimum."""
    for path in files_of(folder, ".input.json", ".input.json.gz"):
        name = path.name.removesuffix(".gz").removesuffix(".input.json")
        matrices = melange_matrices(read_case(path, MelangeCase))
        cost, bound, seconds = _solved(matrices, EXACT)
        yield FleetComparison(name, cost, _fractional_optimum(folder, name), bound, round(seconds, 3))


def _fractional_optimum(folder: Path, name: str) -> float | None:
    for path in (folder / f"{name}.expected.json", folder / f"{name}.expected.json.gz"):
        if path.is_file():
            return read_case(path, MelangeOptimum).fractional_optimal_cost
    return None


def compare_fleet_pd(folder: Path) -> Iterator[FleetGap]:
    """Every prefill/decode case of a folder, gzipped or not."""
    for path in files_of(folder, ".json", ".json.gz"):
        case = read_case(path, PairCase)
        cost, bound, seconds = _solved(fleet_pd_matrices(case), IN_TEN_SECONDS)
        gap = None if cost is None or bound is None else max(0.0, 1.0 - bound / cost) if cost else 0.0
        name = case.name or path.name.removesuffix(".gz").removesuffix(".json")
        yield FleetGap(name, cost, case.expected.best_known, bound, round(seconds, 3), gap)
