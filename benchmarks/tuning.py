"""Samplers for tuning by simulation, on problems whose whole grid is known.

    python benchmarks/tuning.py [--grids DIR] [--seeds 30] [--budgets 30 60] [--samplers NAME ...] [NAME ...]
    python benchmarks/tuning.py --front [--grids DIR] [--seeds 30]

Simulates every point of each grid once (kept in DIR, if given), then lets each sampler look at as many points as the
budget allows, and prints by how much the best that it found falls short of the best of the grid, in percent of the
start's cost (so 1 % is one dollar in a hundred, or a tail that is half a limit longer; 50 % at most, which stands for
nothing that holds): mean, median and 90th percentile over problems, starts and seeds. Every problem is begun at two
points: the fleet that the formulas found, and the dearest one with the smallest batches. Samplers are compared in
pairs, same start and seed; intervals of 95 % over the seeds, for these problems, and over the problems. Samplers were
chosen on the first half of the problems; the others are held out. Points are looked up, so seeds cost no simulation.
--front: the same for cost and tail at once; by how much of the grid's dominated area a sampler's front falls short.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.problems import TWO_CLASSES, Posed, by_formula  # noqa: E402 -- the repository is found first
from optimizer.plans.records import MOST_MORE  # noqa: E402
from optimizer.verification.bench import make_bench  # noqa: E402
from optimizer.verification.tune import (  # noqa: E402
    MISS_WEIGHT,
    TAIL_WEIGHT,
    Knob,
    Looks,
    Point,
    Search,
    Tuner,
    Value,
    Values,
    front_of,
    knobs_of,
)

Grid = NDArray[np.float64]

SMALL = {"model.name": "Llama-3.1-8B", "search": "{roles: [colocated], tensor_parallel: [1]}"}
APART = {"slo": TWO_CLASSES, "constraints.pools": "per_class", "workload.request_rate": "20"}
INVENTORY = "[{name: H100, inventory: 4}, {name: A100-80, inventory: 4}, {name: H200, inventory: 4}]"
DEVELOPMENT: dict[str, Posed] = {
    "chat": ("chat", {"workload.request_rate": "20"}),
    "code, bursty": ("code", {"workload.burstiness": "2.5"}),
    "code by length": (
        "code",
        SMALL | {"accelerators": "[{name: H100, inventory: 1}, {name: A100-80, inventory: 1}, L40S]"},
    ),
    "two classes, 8B": ("chat", SMALL | APART),
    "two classes, 70B": ("chat", APART),
}
HELD_OUT: dict[str, Posed] = {
    "long context": ("long-context", {}),
    "chat, tight TPOT": ("chat", {"slo.tpot": "28ms", "workload.request_rate": "20"}),
    "code, tight TTFT": ("code", {"slo.ttft": "0.8s"}),
    "chat, three types": ("chat", {"accelerators": INVENTORY, "workload.request_rate": "20"}),
    "two classes, MoE": ("chat", SMALL | APART | {"model.name": "Qwen3-30B-A3B"}),
}
POINTS = 3000
"""Of a grid, at most: the values of a knob are thinned out evenly until it has no more."""
MOST = 0.5
"""Shortfall that stands for nothing that holds [1]."""
REFERENCE = 2.0
"""Tail, in limits, at which the area that a front dominates ends; it ends a per cent above the dearest fleet too."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A grid: cost [$/h] and tail [1] of every point, infinite where it is not allowed; starts: formulas', far."""

    name: str
    cost: Grid
    tail: Grid
    starts: tuple[Point, Point]

    @property
    def knobs(self) -> Sequence[int]:
        """Number of values of each knob."""
        return self.cost.shape

    def worth(self, start: Point) -> Grid:
        """What the points are worth to a search from there (`Tuner.worth`); infinite where they are not allowed."""
        tail = TAIL_WEIGHT * np.minimum(self.tail, 1.0) + MISS_WEIGHT * np.log(np.maximum(self.tail, 1.0))
        return np.where(np.isfinite(self.cost), self.cost / self.cost[start] + tail, np.inf)

    def both(self) -> Callable[[Point], Values | None]:
        """Looks up cost, over the formulas' start's, and tail."""
        base = self.cost[self.starts[0]]

        def look(point: Point) -> Values | None:
            return (float(self.cost[point] / base), float(self.tail[point])) if np.isfinite(self.cost[point]) else None

        return look


def thinned(knob: Knob, most: int) -> Knob:
    """The knob with at most so many values, evenly over its range; the one next to its start makes way for that."""
    if len(knob.values) <= most:
        return knob
    kept = np.unique(np.round(np.linspace(0, len(knob.values) - 1, most)).astype(int))
    kept[np.abs(kept - knob.start).argmin()] = knob.start
    values, shown = (tuple(row[k] for k in kept) for row in (knob.values, knob.shown))
    return replace(knob, values=values, shown=shown, start=kept.tolist().index(knob.start))


def reduced(knobs: Sequence[Knob]) -> tuple[Knob, ...]:
    """The knobs with as many values each as POINTS allows."""
    every = (tuple(thinned(knob, most) for knob in knobs) for most in range(12, 1, -1))
    return next(some for some in every if math.prod(len(knob.values) for knob in some) <= POINTS)


def far_start(cost: Grid, knobs: Sequence[Knob]) -> Point:
    """The dearest fleet with the smallest batches."""
    batches = [k for k, knob in enumerate(knobs) if knob.setting in {"seqs", "chunk"}]

    def far(point: Point) -> tuple[float, int]:
        return float(cost[point]), -sum(point[k] for k in batches)

    return max((point for point in np.ndindex(cost.shape) if np.isfinite(cost[point])), key=far)


def problem_of(name: str, folder: Path | None) -> Problem:
    """The grid of a problem, simulated or as it was kept."""
    kept = None if folder is None else folder / f"{name}.npz"
    if kept is not None and kept.exists():
        with np.load(kept) as found:
            starts = tuple(tuple(int(k) for k in start) for start in found["starts"])
            return Problem(name, found["cost"], found["tail"], (starts[0], starts[1]))
    instance, fleet = by_formula((DEVELOPMENT | HELD_OUT)[name])
    knobs = reduced(knobs_of(instance, fleet))
    tuner = Tuner(make_bench(instance), fleet, knobs)
    sizes = [len(knob.values) for knob in knobs]
    cost, tail = np.full(sizes, np.inf), np.full(sizes, MOST_MORE)
    tuner.value(tuner.start)
    for point in np.ndindex(*sizes):
        tuner.value(point)
    for point, look in tuner.looks.items():
        cost[point], tail[point] = look.cost, look.distance
    made = Problem(name, cost, tail, (tuner.start, far_start(cost, knobs)))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, cost=cost, tail=tail, starts=np.array(made.starts))
    return made


class Sampler(Protocol):
    """Looks at points; knobs: number of values of each."""

    def __call__(self, knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int) -> Looks: ...


def searching(knobs: Sequence[int], value: Value, seed: int, *, near: bool = False) -> Search:
    """A search over knobs that are named by their place."""
    return Search({str(knob): range(size) for knob, size in enumerate(knobs)}, value, seed, near=near)


def at_random(knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int) -> Looks:
    """Points drawn evenly."""
    import optuna

    return searching(knobs, value, seed).looks_of(start, budget, optuna.samplers.RandomSampler(seed=seed))


def by_descent(knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int) -> Looks:
    """By turns a neighbor of the best point so far and a point drawn evenly, without any study."""
    search = searching(knobs, value, seed, near=True)
    search.see(start)
    while not search.ended(budget):
        search.see(search.neighbor(front_of(search.looks) if len(search.looks) % 2 else []) or search.unknown())
    return search.looks


def by_tpe_alone(knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int) -> Looks:
    """The estimator without neighbors; what it proposes twice is drawn anew."""
    return searching(knobs, value, seed).looks_of(start, budget)


def by_nsga(knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int) -> Looks:
    """NSGA-II with a population of 20; what it proposes twice is drawn anew."""
    import optuna

    sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=20)
    return searching(knobs, value, seed).looks_of(start, budget, sampler)


def by_tpe(knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int) -> Looks:
    """What production uses."""
    return searching(knobs, value, seed, near=True).looks_of(start, budget)


SAMPLERS: dict[str, Sampler] = {
    "random": at_random,
    "descent": by_descent,
    "TPE alone": by_tpe_alone,
    "TPE and neighbours": by_tpe,
}
FRONT_SAMPLERS: dict[str, Sampler] = {
    "random": at_random,
    "NSGA-II": by_nsga,
    "TPE alone": by_tpe_alone,
    "TPE and neighbours": by_tpe,
}


def shortfalls(sampler: Sampler, problem: Problem, start: Point, budgets: Sequence[int], seed: int) -> list[float]:
    """By how much a sampler misses the best of the grid after each number of looks [1]."""
    worth = problem.worth(start)

    def value(point: Point) -> Values | None:
        return (float(worth[point]),) if np.isfinite(worth[point]) else None

    looks = sampler(problem.knobs, value, start, max(budgets), seed)
    best = np.minimum.accumulate([one for (one,) in looks.values()]) - worth.min()
    return [min(float(best[min(budget, best.size) - 1]), MOST) for budget in budgets]


def area(points: Iterator[Values], most: float) -> float:
    """What points of (cost, tail) dominate up to cost `most` and tail REFERENCE."""
    total, edge = 0.0, REFERENCE
    for cost, tail in sorted(points):
        if cost < most and tail < edge:
            total, edge = total + (most - cost) * (edge - tail), tail
    return total


def missing_areas(sampler: Sampler, problem: Problem, budgets: Sequence[int], seed: int) -> list[float]:
    """What share of the area that the grid dominates a sampler's front leaves out, from the formulas' start [1]."""
    look, allowed = problem.both(), [p for p in np.ndindex(*problem.knobs) if np.isfinite(problem.cost[p])]
    every = [found for found in map(look, allowed) if found is not None]
    most = 1.01 * max(cost for cost, _ in every)
    looks = list(sampler(problem.knobs, look, problem.starts[0], max(budgets), seed).values())
    whole = area(iter(every), most)
    return [1.0 - area(iter(looks[:budget]), most) / whole for budget in budgets]


def compared(rows: Grid, others: Grid) -> str:
    """Mean of rows less others (cases, seeds) in percent, with its interval over the seeds and over the problems."""
    gain, problems = 100.0 * (rows - others), rows.shape[0]
    seeds = 1.96 * math.sqrt(float(gain.var(axis=1, ddof=1).sum()) / gain.shape[1]) / problems
    spread = 1.96 * float(gain.mean(axis=1).std(ddof=1)) / math.sqrt(problems) if problems > 1 else math.nan
    return f"{gain.mean():+.2f} ± {seeds:.2f} (± {spread:.2f})"


def show(found: dict[str, Grid], budgets: Sequence[int], cases: Sequence[str]) -> None:
    """Print a table of samplers for each budget; found: (cases, seeds, budgets) of each sampler [1]."""
    for k, budget in enumerate(budgets):
        print(f"\n{budget} looks: mean / median / 90th percentile; less random; less descent")
        for name, rows in found.items():
            values = 100.0 * rows[:, :, k]
            cells = f"{values.mean():6.2f} / {np.median(values):5.2f} / {np.quantile(values, 0.9):5.2f}"
            rivals = [one for one in ("random", "descent") if one in found and one != name]
            pairs = "  ".join(f"{one}: {compared(rows[:, :, k], found[one][:, :, k])}" for one in rivals)
            print(f"  {name:<19} {cells}   {pairs}")
    print("\n  means of each case after", budgets[min(1, len(budgets) - 1)], "looks:", "; ".join(cases))
    for name, rows in found.items():
        means = 100.0 * rows[:, :, min(1, len(budgets) - 1)].mean(axis=1)
        print(f"  {name:<19} {'  '.join(f'{one:5.2f}' for one in means)}", flush=True)


def describe(problem: Problem) -> str:
    """One line on a grid: how far start, far start and median point are from the best."""
    worth = problem.worth(problem.starts[0])
    best, some = worth.min(), worth[np.isfinite(worth)]
    gaps = [f"{100.0 * (value - best):7.1f} %" for value in (*(worth[p] for p in problem.starts), np.median(some))]
    held = (problem.tail <= 1.0) & np.isfinite(problem.cost)
    return (
        f"{problem.name:<18} {worth.ndim} {some.size:>6} {100.0 * held.sum() / some.size:6.1f} % {'  '.join(gaps)}"
        f"  {100.0 * (worth <= best + 0.005).sum() / some.size:5.2f} %"
    )


def run(half: dict[str, Posed], arguments: argparse.Namespace) -> None:
    """Print the problems of a half, and how the samplers do on them."""
    names = [name for name in half if name in (arguments.names or half)]
    problems = [problem_of(name, arguments.grids) for name in names]
    print("problem, knobs, points allowed, that hold; start, far start, median above the best; within 0.5 % of it")
    for problem in problems:
        print(" ", describe(problem), flush=True)
    seeds, budgets, found = range(arguments.seeds), arguments.budgets, {}
    offered = FRONT_SAMPLERS if arguments.front else SAMPLERS
    for name in arguments.samplers or offered:
        sampler = offered[name]
        if arguments.front:
            rows = [[missing_areas(sampler, problem, budgets, seed) for seed in seeds] for problem in problems]
        else:
            begun = itertools.product(problems, range(2))
            rows = [[shortfalls(sampler, one, one.starts[k], budgets, seed) for seed in seeds] for one, k in begun]
        found[name] = np.array(rows)
    where = ("",) if arguments.front else ("", " far")
    show(found, budgets, [f"{one.name}{far}" for one in problems for far in where])


def main() -> None:
    every = DEVELOPMENT | HELD_OUT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(every))
    parser.add_argument("--budgets", type=int, nargs="+", default=[30, 60])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--samplers", nargs="+", metavar="NAME", help=", ".join(SAMPLERS | FRONT_SAMPLERS))
    parser.add_argument("--grids", type=Path, metavar="DIR", help="folder for simulated grids")
    parser.add_argument("--front", action="store_true", help="cost and tail at once")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in every]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(every)}")
    for title, half in (("DEVELOPMENT", DEVELOPMENT), ("HELD OUT", HELD_OUT)):
        if not arguments.names or any(name in half for name in arguments.names):
            began = time.process_time()
            print(f"\n{title}, {arguments.seeds} seeds")
            run(half, arguments)
            print(f"  {time.process_time() - began:.0f} s CPU", flush=True)


if __name__ == "__main__":
    main()
