"""The fleet solver: exactness on small problems, speed on large ones, and its proofs on the examples.

    python benchmarks/fleet_solver.py [--small 200] [--seeds 3] [--no-examples]

1. `small` random problems: the optimum against trying every fleet.
2. Realistic problems: 12 GPU types, about 200 undominated configs per role, 40 buckets, inventories, two hand-over
   domains; cost and gap of the first effort and of a thorough one, in CPU seconds and by the clock.
3. Mélange's format, 400 buckets x 12 GPU types.
4. The examples: the cheapest fleet of one pool or two, and the floor of all fleets.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, make_instance  # noqa: E402 -- as a script, the root is found first
from optimizer.search.program import Aim, Limit, Matrices, ProgramSolution, cheapest  # noqa: E402

FIRST = {"nodes": 60, "time_limit": 5.0}
"""A first look for a fleet."""

THOROUGH = {"gap": 5e-3, "nodes": 2000, "time_limit": 30.0}
TYPES, BUCKETS, SURVIVING = 12, 40, 200
MANY = 20
"""Seeds of the problems of many buckets."""


def realistic(seed: int, rate: float) -> Matrices:
    """Configs of 12 GPU types as prefill, decode and colocated engines, thinned to undominated ones.

    Prefill strength follows FLOP/s per dollar and falls with the prompt's length, decode strength follows bandwidth per
    dollar and falls with the answer's; a type's ratio of both, and the loss from more GPUs per engine, are random.
    """
    random = np.random.default_rng(seed)
    isl, osl = (np.tile(np.geomspace(128, 16000, 8), 5), np.repeat(np.geomspace(32, 2000, 5), 8))
    demand = rate * random.dirichlet(np.ones(BUCKETS))
    price = np.round(random.uniform(0.7, 6.0, TYPES), 1)
    compute, bandwidth = price * random.uniform(0.5, 1.5, TYPES), price * random.uniform(0.5, 1.5, TYPES)
    roles, lengths, types = (PREFILL, DECODE, COLOCATED), (isl, osl, demand), (price, compute, bandwidth)
    parts = [_configs(random, role, lengths, types) for role in roles]
    role, kind, gpus, need = (np.concatenate(part) for part in zip(*parts, strict=True))
    limits = tuple(Limit(f"inventory {t}", float(random.integers(16, 160)), gpus * (kind == t)) for t in range(TYPES))
    return Matrices(
        role=role,
        domain=(kind >= TYPES - 2).astype(np.int64),
        price=gpus * price[kind],
        need=need[:, None, :],
        late=np.zeros(need.shape),
        slo=np.zeros(BUCKETS, dtype=np.int64),
        permitted=np.ones(1),
        limits=limits,
    )


FloatArray = NDArray[np.float64]


def _configs(
    random: np.random.Generator, role: int, lengths: tuple[FloatArray, ...], types: tuple[FloatArray, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray, FloatArray]:
    """About SURVIVING configs of one role of which none dominates another: role, type, GPUs and needs."""
    isl, osl, demand = lengths
    price, compute, bandwidth = types
    size = 6 * SURVIVING
    kind, gpus = random.integers(0, TYPES, size), random.choice([1.0, 2.0, 4.0, 8.0], size)
    scale = gpus ** random.uniform(0.85, 1.1, size)
    prefill = 4000.0 * (compute[kind] * scale)[:, None] / (isl * (1.0 + isl / 30000.0))
    decode = 90.0 * (bandwidth[kind] * scale)[:, None] / (osl * (1.0 + (isl + osl / 2.0) / 8000.0))
    noise = random.uniform(0.75, 1.25, (size, 1)) * random.uniform(0.9, 1.1, (size, isl.size))
    rate = {PREFILL: prefill, DECODE: decode, COLOCATED: 0.9 / (1.0 / prefill + 1.0 / decode)}[role] * noise
    rate = np.where(isl > 14000.0 * gpus[:, None], 0.0, rate)
    with np.errstate(divide="ignore"):
        need = np.where(rate > 0.0, demand / np.maximum(rate, 1e-300), np.inf)
    kept = undominated(gpus * price[kind], kind, need)
    kept = np.sort(random.permutation(kept)[:SURVIVING])
    return np.full(kept.size, role), kind[kept], gpus[kept], need[kept]


def undominated(price: FloatArray, kind: NDArray[np.int64], need: FloatArray) -> NDArray[np.int64]:
    """Indices of the configs that none of the same type dominates: none as cheap that needs no more for any bucket."""
    kept: list[int] = []
    for config in np.lexsort((np.minimum(need, 1e12).sum(axis=1), price)):
        rivals = [rival for rival in kept if kind[rival] == kind[config]]
        copies = np.floor(price[config] / price[rivals] * (1.0 + 1e-12))[:, None]
        if not (need[rivals] <= need[config] * copies).all(axis=1).any():
            kept.append(int(config))
    return np.sort(np.array(kept))


def timed(matrices: Matrices, work: dict[str, Any]) -> tuple[ProgramSolution, float, float]:
    """A search, its CPU seconds and its seconds by the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = cheapest(matrices, Aim(), **work)
    return found, time.process_time() - cpu, time.perf_counter() - wall


def small_problems(count: int) -> None:
    """Random problems against trying every fleet."""
    from tests.fleet_matrices import MOST_EACH, billed_by_node, by_trying_all, random_matrices

    wrong = compared = 0
    for seed in range(count):
        matrices = random_matrices(seed, columns=3 + seed % 2, limited=seed % 3 == 0)
        matrices = billed_by_node(matrices) if seed % 5 == 0 else matrices
        found = cheapest(matrices, Aim(), gap=0.0)
        best = by_trying_all(matrices)
        if found.x.max(initial=0) <= MOST_EACH:
            compared += 1
            wrong += not np.isclose(found.objective, best, rtol=1e-6)
    print(f"small problems: {count}; {compared} compared with trying every fleet, {wrong} differ")


def realistic_problems(seeds: int) -> None:
    """How far the first effort can be from the optimum, and the gap of a thorough search."""
    for seed in range(seeds):
        for rate in (5.0, 40.0):
            matrices = realistic(seed, rate)
            quick, cpu, wall = timed(matrices, FIRST)
            best, more_cpu, more_wall = timed(matrices, THOROUGH)
            print(
                f"realistic, seed {seed}, {rate:g}/s, {matrices.size} configs, {BUCKETS} buckets:"
                f" first {quick.objective:.1f} $/h, at most {quick.objective / best.bound - 1.0:.2%} above the optimum,"
                f" CPU {cpu:.1f} s, clock {wall:.1f} s; thorough {best.objective:.1f} $/h, gap"
                f" {1.0 - best.bound / best.objective:.2%}, CPU {more_cpu:.1f} s, clock {more_wall:.1f} s",
                flush=True,
            )


def synthetic(buckets: int, types: int, seed: int) -> dict[str, Any]:
    """GPU types of random price whose throughput falls with length, each with strengths of its own."""
    random = np.random.default_rng(seed)
    side = round(buckets**0.5)
    length = np.geomspace(1.0, 60.0, side)
    grid = 1.0 / (length[:, None] ** 0.8 + 0.5 * length[None, :] ** 0.9)
    price = np.round(random.uniform(0.7, 8.0, types), 2)
    speed = price * random.uniform(4.0, 7.0, types)
    shape = random.uniform(0.6, 1.4, (types, side, side))
    return {
        "gpu_info": {
            f"gpu{t}": {"cost": float(price[t]), "tputs": (speed[t] * shape[t] * grid).round(6).tolist()}
            for t in range(types)
        },
        "workload_distribution": random.dirichlet(np.ones(side * side)).reshape(side, side).tolist(),
        "total_request_rate": 60.0,
        "slice_factor": 1,
    }


def many_buckets() -> None:
    """Mélange's format at 400 buckets x 12 types."""
    from benchmarks.reference.fleet_cases import melange_matrices
    from benchmarks.reference.fleet_schemas import MelangeCase
    from benchmarks.reference.fleets import EXACT

    gaps, cpus, walls = [], [], []
    for seed in range(MANY):
        matrices = melange_matrices(MelangeCase.model_validate(synthetic(400, 12, seed)))
        found, cpu, wall = timed(matrices, EXACT)
        gaps.append(1.0 - found.bound / found.objective)
        cpus.append(cpu)
        walls.append(wall)
    print(
        f"400 buckets x 12 types, {MANY} seeds: gap at most {max(gaps):.1e}, CPU mean {np.mean(cpus):.2f} s, at most"
        f" {max(cpus):.2f} s, clock mean {np.mean(walls):.2f} s, at most {max(walls):.2f} s",
        flush=True,
    )


def examples() -> None:
    """Cost of the cheapest fleet of one pool or two of the examples, and the floor of all fleets."""
    from optimizer.fleets.fleet import fleet_cost
    from optimizer.loads.instance import as_planned
    from optimizer.search.bound import least_cost
    from optimizer.search.search import evaluated, unmixed
    from search_spaces.loader import load_problem

    for path in sorted((ROOT / "examples").glob("*.yaml")):
        problem = load_problem(path)
        made = make_instance(problem)
        search = evaluated(as_planned(made))
        fleet = unmixed(search)
        if not fleet.pools:
            continue
        cost, cpu = fleet_cost(search.instance, fleet), time.process_time()
        floor = least_cost(search.instance, search.settings, ceiling=cost) or 0.0
        print(
            f"{path.stem}: {cost:.2f} $/h, floor {floor:.2f}, gap {1.0 - floor / cost:.2%},"
            f" {search.settings.size} settings, CPU of the floor {time.process_time() - cpu:.1f} s",
            flush=True,
        )


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    small_problems(given.small)
    many_buckets()
    realistic_problems(given.seeds)
    if given.examples:
        examples()


if __name__ == "__main__":
    main()
