"""How often the 95 % interval of a fleet's attainment holds the long-run value: 40 problems, 25 seeds each.

    python benchmarks/interval_coverage.py [--seeds 25] [--long 4] [--only NAME]

Eight fleets, each under five demands: arrivals with coefficient of variation 1 and 2 at 80 % and at 95 % of about the
goodput that the formulas expect of Poisson arrivals (`Case.full`), and with 3 at 70 %. A seed stands for one judgement:
two full runs, as long as the search makes them (`Bench.full`), and the interval of the class with the least room
(`metrics.share_of`). The long-run value is the share of all other requests: those of the other seeds, and of `--long`
runs of LONG requests that have seeds of their own.

A row per fleet and demand: attainment, requests of a full run, half width on average, and how many of the seeds'
intervals hold the value, lie above it (too good: what a plan must not be) and below it. Then the same by demand, by
fleet and of all. A few CPU-minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_requests import FRESH_SEED, print_table  # noqa: E402 -- the repository is found first
from benchmarks.problems import EXAMPLES  # noqa: E402
from costmodel.engine import Role  # noqa: E402
from costmodel.simulator.metrics import steady, within  # noqa: E402
from optimizer.fleets.evaluate import goodput_volume  # noqa: E402
from optimizer.fleets.fleet import Fleet, FleetPool  # noqa: E402
from optimizer.loads.instance import Instance, make_instance  # noqa: E402
from optimizer.verification.bench import make_bench  # noqa: E402
from optimizer.verification.judge import Run, judge_runs  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402

LONG = 200_000
"""Requests of a long run."""
REASONING = ROOT / "tests" / "problems"
SHORT = (
    "{histogram: [{isl: 20, osl: 60, share: 0.3}, {isl: 60, osl: 300, share: 0.5}, {isl: 800, osl: 600, share: 0.2}]}"
)
BATCH = "{histogram: [{isl: 300, osl: 900, share: 0.6}, {isl: 4000, osl: 4000, share: 0.4}]}"
Engines = tuple[Role, str, int, int, int, int]
"""Role, GPU, tensor parallel, replicas, batch limit, token budget."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload file, what is set otherwise, and the engines that serve it.

    full: rate that counts as all that they serve, over the goodput by formula under Poisson arrivals [1].
    """

    file: Path
    changes: dict[str, str]
    engines: tuple[Engines, ...]
    full: float = 1.0


@dataclass(frozen=True, slots=True)
class Covered:
    """What the seeds of one fleet under one demand came to: shares of all [1]; length: of a full run."""

    fleet: str
    demand: str
    attainment: float
    length: int
    half: float
    held: float
    above: float
    below: float


CASES = {
    "chat, handed over": Case(
        EXAMPLES / "chat.yaml",
        {},
        ((Role.PREFILL, "H100", 2, 2, 64, 8192), (Role.DECODE, "H200", 2, 1, 256, 2048)),
    ),
    "chat, colocated": Case(EXAMPLES / "chat.yaml", {}, ((Role.COLOCATED, "H200", 2, 3, 256, 2048),)),
    "code, handed over": Case(
        EXAMPLES / "code.yaml", {}, ((Role.PREFILL, "H100", 1, 5, 64, 8192), (Role.DECODE, "H200", 1, 1, 256, 2048))
    ),
    "long context": Case(EXAMPLES / "long-context.yaml", {}, ((Role.COLOCATED, "H200", 4, 3, 64, 8192),)),
    "short answers, 8B": Case(
        EXAMPLES / "chat.yaml",
        {"model.name": "Llama-3.1-8B", "workload.lengths": SHORT, "slo": "{ttft: 300ms, tpot: 15ms, percentile: p95}"},
        ((Role.COLOCATED, "H100", 1, 1, 256, 2048),),
    ),
    "long answers, 32B": Case(
        EXAMPLES / "chat.yaml",
        {"model.name": "Qwen3-32B", "workload.lengths": BATCH, "slo": "{ttft: 3s, tpot: 40ms, percentile: p99}"},
        ((Role.COLOCATED, "H200", 2, 4, 128, 8192),),
        1.05,
    ),
    "reasoning, gpt-oss-120b": Case(
        REASONING / "reasoning-gpt-oss-120b.yaml", {}, ((Role.COLOCATED, "B200", 1, 3, 512, 8192),), 1.05
    ),
    "reasoning, Qwen3-32B": Case(
        REASONING / "reasoning-qwen3-32b.yaml", {}, ((Role.COLOCATED, "H200", 2, 5, 128, 8192),), 1.05
    ),
}
DEMANDS = ((1.0, 0.8), (2.0, 0.8), (3.0, 0.7), (1.0, 0.95), (2.0, 0.95))
"""Coefficient of variation of the arrivals, and rate as a share of all that the engines serve (`Case.full`)."""


def fleet_under(case: Case, burstiness: float) -> tuple[Instance, Fleet]:
    """The fleet of a case in an instance with arrivals of that coefficient of variation."""
    problem = load_problem(case.file, case.changes | {"workload.burstiness": str(burstiness)})
    instance = make_instance(problem)
    return instance, Fleet(tuple(_pool(instance, *engines) for engines in case.engines))


def _pool(instance: Instance, role: Role, gpu: str, tensor: int, replicas: int, seats: int, budget: int) -> FleetPool:
    tables, offers = instance.tables, instance.problem.offers
    shape = next(
        number
        for number, one in enumerate(tables.shapes)
        if offers[one.offer].accelerator.name == gpu
        and one.parallelism.tensor == tensor
        and one.parallelism.data * one.parallelism.pipeline * one.parallelism.expert == 1
    )
    seqs, chunk = int(np.searchsorted(tables.seqs, seats)), int(np.searchsorted(tables.chunks, budget))
    everything = np.ones(instance.flows.isl.size)
    return FleetPool(f"{role}-1", role, shape, min(seqs, tables.seqs.size - 1), chunk, replicas, 0, everything)


def covered(name: str, case: Case, demand: tuple[float, float], seeds: int, long: int) -> Covered:
    """Judge one fleet under one demand with so many seeds."""
    burstiness, load = demand
    instance, fleet = fleet_under(case, burstiness)
    bench = make_bench(instance, load * case.full * goodput_volume(*fleet_under(case, 1.0)))
    part = bench.part(fleet)
    assert part.parts == 1
    length = part.full
    bench.seed = FRESH_SEED
    good, count = np.zeros(seeds + 1), np.zeros(seeds + 1)
    ends = []
    for seed in range(seeds):
        judgement = judge_runs(instance, part.engines, part.runs(length, 2 * seed, 2 * seed + 2))
        worst = min(judgement.classes, key=lambda item: item.attainment)
        ends.append((worst.attainment_low, worst.attainment_high))
        good[seed], count[seed] = worst.attainment * worst.counted, worst.counted
    limits = instance.problem.slos[0].limits
    for number in range(long):
        run = Run.of(part.drawn(LONG, 10_000 + number), part.engines)
        outcome = within(run.result, limits)[steady(run.result)]
        good[-1], count[-1] = good[-1] + outcome.sum(), count[-1] + outcome.size
    low, high = np.array(ends).T
    truth = (good.sum() - good[:-1]) / (count.sum() - count[:-1])
    return Covered(
        fleet=name,
        demand=f"CV {burstiness:.0f}, {load:.0%}",
        attainment=float(good.sum() / count.sum()),
        length=length,
        half=float((high - low).mean() / 2.0),
        held=float(((low <= truth) & (truth <= high)).mean()),
        above=float((low > truth).mean()),
        below=float((high < truth).mean()),
    )


def rows(cases: list[Covered]) -> Iterator[tuple[str, ...]]:
    yield "fleet", "demand", "attainment", "requests of a run", "half width", "hold", "above", "below"
    for one in cases:
        figures = f"{one.attainment:.2%}", f"{one.length:,}", f"{one.half:.2%}"
        yield one.fleet, one.demand, *figures, *(f"{share:.0%}" for share in (one.held, one.above, one.below))


def summary(cases: list[Covered]) -> Iterator[tuple[str, ...]]:
    groups: dict[str, list[Covered]] = defaultdict(list)
    for one in cases:
        for group in (one.demand, one.fleet, "all"):
            groups[group].append(one)
    yield "class", "problems", "intervals that hold", "above", "below"
    for group, members in sorted(groups.items(), key=lambda item: item[0] == "all"):
        shares = (float(np.mean([getattr(one, name) for one in members])) for name in ("held", "above", "below"))
        yield group, str(len(members)), *(f"{share:.1%}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--long", type=int, default=4)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    start, found = time.process_time(), list[Covered]()
    for name, case in CASES.items():
        for demand in DEMANDS if arguments.only in name else ():
            found.append(covered(name, case, demand, arguments.seeds, arguments.long))
            print(
                *list(rows(found[-1:]))[1],
                f"{time.process_time() - start:.0f} CPU-s",
                sep="; ",
                file=sys.stderr,
                flush=True,
            )
    print_table(list(rows(found)))
    print()
    print_table(list(summary(found)))
    print(f"\n{time.process_time() - start:.0f} CPU-seconds")


if __name__ == "__main__":
    main()
