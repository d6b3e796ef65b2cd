"""Plans of problems drawn at random, on requests that they have not seen and beside all simple fleets that cost less.

    python benchmarks/drawn_plans.py [--problems 40] [--first 0] [--seed SEED] [--exhaustive] [--looks 300]

Plans each problem (`drawn_problems`) at --effort quick (by formula) and standard (proven), simulates the proven fleet
in RUNS runs with another seed, five times as long as the plan's, and prints a row per problem: cost by formula and
proven, simulated attainment of the class with the least room with its 95 % interval (UNSURE where its lower end is
below the goal), the goal, and CPU seconds of the proven plan. Problems without a plan are counted and left out where
the model fits on no engine, or no engine keeps a limit however idle it is.

--exhaustive tries the fleets of one colocated pool, and of a prefill and a decode pool, that cost less than the plan,
with every setting, what the formulas promise most of first: a short run of each, a longer one of what is near its goals
and two of PROOF requests of what keeps them. What then keeps them at the lower end of its interval counts as found.
Told are the cheapest that was found, and how many fleets were looked at of how many.

Ends with how many hold on fresh requests and in how many something cheaper was found; exit code 1 where fewer than nine
in ten hold.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.drawn_problems import SEED, drawn  # noqa: E402 -- the repository is found first
from benchmarks.fresh_requests import FRESH_SEED, dollars, on_fresh_requests, print_table  # noqa: E402
from benchmarks.problems import instance_of, problem_of  # noqa: E402
from costmodel.engine import Role  # noqa: E402
from costmodel.errors import InputError  # noqa: E402
from optimizer.fleets.build_plan import engine_pools  # noqa: E402
from optimizer.fleets.evaluate import evaluate  # noqa: E402
from optimizer.fleets.fleet import Fleet, FleetPool, allowed, fleet_cost, prefill_seqs, with_replicas  # noqa: E402
from optimizer.loads.effort import Level  # noqa: E402
from optimizer.loads.instance import Instance  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402
from optimizer.verification.bench import valid  # noqa: E402
from optimizer.verification.judge import Judgement  # noqa: E402
from optimizer.verification.simulated_plan import judge  # noqa: E402
from reports.fleets import fleet_line  # noqa: E402

RUNS = 4
"""Fresh runs of a proven fleet."""
SHORT, LONG, PROOF = (2_500, 0.03), (12_000, 0.005), 40_000
"""Requests of the first two runs of a fleet that is tried, and by how much it may miss there; of each of two more."""
CHEAPER = 1.0 - 1e-6
"""Factor on the plan's cost below which another counts as cheaper."""
MANY = 200
"""Engines of a pool beyond which no more are tried."""
PROMISING = 0.3
"""Share of every goal that the formulas must promise of the engines, with their best settings, to be tried."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The cheapest fleet that was found, None if none was; fleets that were looked at, of so many promising ones.

    capped: whether looks ran out before all that could be cheaper still were looked at.
    """

    found: Fleet | None
    looks: int
    fleets: int
    capped: bool


@dataclass(frozen=True, slots=True)
class Row:
    """What is printed of a problem; miss: of the goal on fresh requests, negative where it holds [1]."""

    cells: tuple[str, ...]
    miss: float
    cheaper: float | None = None
    """Cost of the cheapest fleet that was found over that of the plan [1]."""
    capped: bool = False


def row_of(number: int, seed: int, looks: int) -> Row:
    """Plan one problem and try the plan; looks: at cheaper fleets, none for 0."""
    posed = drawn(number, seed)
    problem = problem_of(posed)
    formula = optimize(problem, level=Level.QUICK).cost_usd_per_hour
    start = time.process_time()
    plan = optimize(problem)
    spent = f"{time.process_time() - start:.0f}"
    about = (str(number), posed[1]["model.name"], problem.engine, dollars(formula), dollars(plan.cost_usd_per_hour))
    if plan.simulation is None or plan.cost_usd_per_hour is None:
        return Row((*about, "", "", spent, ""), -1.0)
    fresh = on_fresh_requests(plan, plan.simulation, RUNS)
    shown, miss = fresh.words, fresh.miss
    if not looks:
        return Row((*about, *shown, spent, ""), miss)
    instance = instance_of(posed)
    tried = cheaper_fleets(instance, plan.cost_usd_per_hour, looks)
    told = f"{tried.looks} of {tried.fleets}{' (capped)' if tried.capped else ''}"
    if tried.found is None:
        return Row((*about, *shown, spent, told), miss, capped=tried.capped)
    cost = fleet_cost(instance, tried.found)
    told = f"{told}: {dollars(cost)}, {described(instance, tried.found)}"
    return Row((*about, *shown, spent, told), miss, cost / plan.cost_usd_per_hour, tried.capped)


def margin(found: Judgement) -> float:
    """By how much the worst class exceeds its goal [1]; -1 for a fleet that falls behind."""
    if found.overload.overloaded:
        return -1.0
    return min(one.attainment - one.attainment_goal for one in found.classes)


def cheaper_fleets(instance: Instance, cost: float, looks: int) -> Tried:
    """Try every fleet of one pool or two that costs less; the most promising setting of each first, then the second."""
    ranked = [settings for engines in every_fleet(instance, cost) if (settings := _settings(instance, engines))]
    ranked.sort(key=lambda settings: -settings[0][0])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*ranked))
    fleets = [pair[1] for pair in turns if pair is not None]
    best: Fleet | None = None
    looked = 0
    for fleet in fleets:
        if best is not None and fleet_cost(instance, fleet) >= fleet_cost(instance, best) * CHEAPER:
            continue
        if looked == looks:
            return Tried(best, looked, len(fleets), capped=True)
        looked += 1
        best = fleet if _keeps_its_goals(instance, fleet) else best
    return Tried(best, looked, len(fleets), capped=False)


def every_fleet(instance: Instance, cost: float) -> Iterator[Fleet]:
    """The fleets of one pool or two that cost less, with as many engines as do, and with some setting."""
    shapes, talks = range(len(instance.tables.shapes)), instance.tables.talks
    for shape in shapes:
        yield from _largest(instance, Fleet((_pool(instance, Role.COLOCATED, shape),)), 0, cost)
    for first, second in itertools.product(shapes, shapes):
        if talks[first, second]:
            pair = Fleet((_pool(instance, Role.PREFILL, first), _pool(instance, Role.DECODE, second)))
            yield from _largest_pairs(instance, pair, cost)


def _largest_pairs(instance: Instance, pair: Fleet, cost: float) -> Iterator[Fleet]:
    """With every number of prefill engines, the most decode engines beside them; none that another has all of."""
    before: Fleet | None = None
    for count in range(1, MANY + 1):
        now = next(_largest(instance, with_replicas(pair, 0, count), 1, cost), None)
        if before is not None and (now is None or now.pools[1].replicas < before.pools[1].replicas):
            yield before
        if now is None:
            return
        before = now


def _largest(instance: Instance, fleet: Fleet, index: int, cost: float) -> Iterator[Fleet]:
    """The fleet with as many engines in one pool as cost less; none where not even one does."""
    most = 0
    while most < MANY:
        more = with_replicas(fleet, index, most + 1)
        if fleet_cost(instance, more) >= cost * CHEAPER or not allowed(instance, more):
            break
        most += 1
    if most:
        yield with_replicas(fleet, index, most)


def _pool(instance: Instance, role: Role, shape: int) -> FleetPool:
    """One engine that serves all of its stage, with the largest settings."""
    tables, spares = instance.tables, instance.problem.constraints.spare_replicas
    seqs = prefill_seqs(instance, shape, -1) if role is Role.PREFILL else tables.seqs.size - 1
    chunk = tables.chunks.size - 1 if role is not Role.DECODE else 0
    return FleetPool(f"{role.value}-1", role, shape, seqs, chunk, 1, spares, np.ones(instance.flows.isl.size))


def _settings(instance: Instance, fleet: Fleet) -> list[tuple[float, Fleet]]:
    """The fleet with every setting, and what the formulas promise of it [share of the goal]; best first.

    Empty where the formulas promise too little of large batch limits with any chunk.
    """
    limits = instance.tables.limits.tolist()
    large = _variants(instance, fleet, [limits[len(limits) // 2 - 1], limits[-1]])
    if max((evaluate(instance, one).goal_share for one in large), default=0.0) < PROMISING:
        return []
    every = _variants(instance, fleet, limits)
    return sorted(((evaluate(instance, one).goal_share, one) for one in every), key=lambda row: -min(row[0], 1.0))


def _variants(instance: Instance, fleet: Fleet, limits: Sequence[int]) -> list[Fleet]:
    """The fleet with some batch limits and every chunk in its pools, as far as its engines can have them."""
    choices = []
    for pool in fleet.pools:
        roomy = np.flatnonzero(instance.tables.roomy[pool.shape]).tolist()
        chunks = [pool.chunk] if pool.role is Role.DECODE else roomy
        seqs = [pool.seqs] if pool.role is Role.PREFILL else limits
        choices.append([replace(pool, seqs=one, chunk=chunk) for one, chunk in itertools.product(seqs, chunks)])
    return [one for one in map(Fleet, itertools.product(*choices)) if valid(instance, one)]


def _keeps_its_goals(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet keeps every goal at the lower end of its interval, by longer and longer runs."""
    for seed, (requests, short) in enumerate((SHORT, LONG)):
        if margin(judge(instance, fleet, requests=requests, seed=FRESH_SEED + 1 + seed)) < -short:
            return False
    return judge(instance, fleet, requests=PROOF, seed=FRESH_SEED + 3, replications=2).proven


def described(instance: Instance, fleet: Fleet) -> str:
    """Engines and settings in a line: batch limit / chunk."""
    return fleet_line(engine_pools(instance, fleet), limits=True)


HEAD = (
    "problem",
    "model",
    "engine",
    "formula $/h",
    "proven $/h",
    "fresh attainment (95 %)",
    "goal",
    "CPU s",
    "cheaper",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--exhaustive", action="store_true", help="try every simple fleet that costs less")
    parser.add_argument("--looks", type=int, default=300, help="cheaper fleets that are simulated for a problem")
    arguments = parser.parse_args()
    looks = arguments.looks if arguments.exhaustive else 0
    rows, skipped = [], 0
    for number in range(arguments.first, arguments.first + arguments.problems):
        try:
            rows.append(row_of(number, arguments.seed, looks))
        except InputError as reason:
            skipped += 1
            print(f"{number}: left out, {reason}"[:160], file=sys.stderr)
        else:
            print("; ".join(rows[-1].cells), file=sys.stderr, flush=True)
    print_table([HEAD, *(row.cells for row in rows)])
    held = sum(row.miss <= 0.0 for row in rows)
    print(f"\n{held} of {len(rows)} hold on fresh requests (no plan counts as held); {skipped} left out")
    if looks:
        found = [row.cheaper for row in rows if row.cheaper is not None]
        by = f", at most {1.0 - min(found):.1%}" if found else ""
        capped = sum(row.capped for row in rows)
        print(f"cheaper fleets found in {len(found)} of {len(rows)}{by}; not all were looked at in {capped}")
    if held < 0.9 * len(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
