"""Samplers for tuning by simulation, on small problems whose whole grid is known.

    python benchmarks/tuning.py [--budget 40] [--seeds 20] [--requests 1000] [--values 4] [NAME ...]

Simulates every point of each grid once, then lets each sampler look at as many points as the budget allows, from the
fleet that the formulas found, and prints by how much the best that it found falls short of the best of the grid: the
mean and the worst over the seeds, in percent of the cost of the start (so 1 % is one dollar in a hundred, or a tail
that is half a limit longer). The samplers only see what they ask for; points are looked up, so seeds cost nothing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PDPLAN_SIMULATOR", "python")

CHAT, CODE = "chat", "code"
PROBLEMS: dict[str, tuple[str, dict[str, str]]] = {
    "chat": (CHAT, {}),
    "chat, colocated": (CHAT, {"search.roles": "[colocated]", "workload.request_rate": "20"}),
    "chat, 8B": (CHAT, {"model.name": "Llama-3.1-8B", "workload.request_rate": "30"}),
    "chat, tight TPOT": (CHAT, {"slo.tpot": "28ms"}),
    "code": (CODE, {}),
    "code, bursty": (CODE, {"workload.burstiness": "2.5"}),
    "code, tight TTFT": (CODE, {"slo.ttft": "0.8s", "search.roles": "[colocated]"}),
}
"""Name: example, and what is set otherwise."""


def nearby(knob, most: int):
    """The knob with `most` values next to its start only."""
    from dataclasses import replace

    first = max(0, min(knob.start - most // 2, len(knob.values) - most))
    return replace(knob, values=knob.values[first : first + most], start=knob.start - first)


def grid_of(name: str, requests: int, most: int):
    """Knobs, start, and the value of every point of one problem's grid."""
    from optimizer.fleets.plan_fleet import fleet_of_plan
    from optimizer.recommend.level import Level
    from optimizer.recommend.optimize import optimize
    from optimizer.verification.tune import Tuner, knobs_of
    from optimizer.verification.verdict import Bench
    from search_spaces.loader import load_problem

    example, changes = PROBLEMS[name]
    path = ROOT / "examples" / f"{example}.yaml"
    plan = optimize(load_problem(path, changes), level=Level.QUICK)
    instance, fleet = fleet_of_plan(plan, path.parent)
    knobs = tuple(nearby(knob, most) for knob in knobs_of(instance, fleet))
    tuner = Tuner(Bench(instance, 0, requests), fleet, knobs, requests)
    points = list(itertools.product(*(range(len(knob.values)) for knob in knobs)))
    return tuner, {point: tuner.value(point) for point in points}


def shortfalls(sampler, tuner, grid, budget: int, seeds: int) -> np.ndarray:
    """By how much the sampler misses the best of the grid [1], for each seed."""
    sizes = [len(knob.values) for knob in tuner.knobs]
    best = min(grid.values())
    return np.array(
        [min(sampler(sizes, grid.__getitem__, tuner.start, budget, seed).values()) - best for seed in range(seeds)]
    )


def main() -> None:
    from optimizer.verification.samplers import at_random, by_descent, by_tpe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PROBLEMS), metavar="NAME", help=", ".join(PROBLEMS))
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--values", type=int, default=4, help="most values of a knob: those next to its start")
    arguments = parser.parse_args()
    samplers = {"TPE": by_tpe, "random": at_random, "descent": by_descent}
    print(f"shortfall of the best found, mean / worst of {arguments.seeds} seeds, {arguments.budget} looks\n")
    head = ["problem", "points", "start", *samplers, "CPU s"]
    print("  ".join(f"{cell:>17}" for cell in head))
    every: dict[str, list[np.ndarray]] = {name: [] for name in samplers}
    for name in arguments.names:
        began = time.process_time()
        tuner, grid = grid_of(name, arguments.requests, arguments.values)
        cells = [name, str(len(grid)), f"{100 * (grid[tuner.start] - min(grid.values())):.2f} %"]
        for label, sampler in samplers.items():
            found = shortfalls(sampler, tuner, grid, arguments.budget, arguments.seeds)
            every[label].append(found)
            cells.append(f"{100 * found.mean():.2f} / {100 * found.max():.2f} %")
        print("  ".join(f"{cell:>17}" for cell in [*cells, f"{time.process_time() - began:.0f}"]), flush=True)
    means = [f"{100 * np.mean(every[label]):.2f} / {100 * np.max(every[label]):.2f} %" for label in samplers]
    print("  ".join(f"{cell:>17}" for cell in ["all", "", "", *means, ""]).rstrip())


if __name__ == "__main__":
    main()
