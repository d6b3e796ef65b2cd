"""What the chunk of a prompt does to a fleet: latencies, goodput and cost against `max_num_batched_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.fleets.build_plan import quantiles
from optimizer.fleets.evaluate import bisection, evaluate, holds_at
from optimizer.fleets.fleet import Fleet, fleet_cost, with_replicas
from optimizer.loads.instance import Instance, Progress, silent
from optimizer.plans.records import SimulatedLatencies
from optimizer.verification.bench import make_bench
from optimizer.verification.record import latencies
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .answer import Answer, Case, Effort, answer, break_of, is_simple

CHUNKS: Final = "search.max_num_batched_tokens"
MOST_TIMES: Final = 8
"""As many replicas as the fleet has, beyond which none are counted for a chunk that needs more."""


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A fleet whose engines that take prompts have one chunk [token].

    classes: attainment [1] and quantiles [s] of each SLO class; outcome: whether they meet, miss or are undecided;
    simulated: whether both come from a simulation, else by formula; goodput: the highest rate within the SLOs by
    formula [1/s]; replicas, cost: of the first pool that takes prompts, and of the whole fleet [$/h], where as many of
    them are bought as meet the SLO by formula; None where MOST_TIMES as many do not.
    """

    chunk: int
    classes: tuple[SimulatedLatencies, ...]
    outcome: str
    simulated: bool
    goodput: float
    replicas: int | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class ChunkCurve:
    """The cheapest fleet, the role of its engines that take prompts, the chunk of the first, and what each chunk does.

    without_memory: chunks beside which the engines have no memory for a request.
    """

    problem: Problem
    answer: Answer
    role: Role
    own: int
    rows: tuple[ChunkRow, ...]
    without_memory: tuple[int, ...]


def chunk_curve(
    problem: Problem,
    base: Path,
    chunks: Sequence[int],
    *,
    simulated: bool = True,
    progress: Progress = silent,
) -> ChunkCurve | Answer:
    """The curve over some chunks and the fleet's own; where there is no fleet, the answer that says why.

    All engines that take prompts get each chunk in turn; everything else stays, so that the curve is of the chunk
    alone. A small chunk splits a prompt into more steps; a large one makes the tokens of running requests wait for it.
    base: folder of the files that the problem names. Raises InputError where a chunk is out of range, or the least cost
    with pools that all classes share is not what the problem asks for.
    """
    if not is_simple(problem):
        raise InputError("--chunk is for the least cost with pools that all classes share")
    sizes = sorted({*problem.space.max_num_batched_tokens, *chunks})
    problem = scenario_problem(problem, Scenario("", {CHUNKS: sizes}), base)
    best = answer(problem, Effort.FULL, simulated=simulated)
    if best.case is None:
        return best
    case = replace(best.case, instance=replace(best.case.instance, problem=problem))
    tables, takers = case.instance.tables, [pool for pool in case.fleet.pools if pool.role is not Role.DECODE]
    own = int(tables.chunks[takers[0].chunk])
    curve_sizes = sorted({*chunks, own})
    places = {size: int(np.flatnonzero(tables.chunks == size)[0]) for size in curve_sizes}
    fitting = [
        size for size in curve_sizes if all(tables.roomy[pool.shape, pool.seqs, places[size]] for pool in takers)
    ]
    rows = []
    for number, size in enumerate(fitting):
        progress(f"chunk of {size:,} tokens", number / len(fitting))
        pools = [pool if pool.role is Role.DECODE else replace(pool, chunk=places[size]) for pool in case.fleet.pools]
        with_chunk = replace(case, key=f"{case.key} {size}", fleet=Fleet(tuple(pools)))
        rows.append(_chunk_row(size, with_chunk, simulated=simulated))
    return ChunkCurve(problem, best, takers[0].role, own, tuple(rows), tuple(sorted({*curve_sizes} - {*fitting})))


def _chunk_row(size: int, case: Case, *, simulated: bool) -> ChunkRow:
    """What one chunk makes of the fleet."""
    instance, fleet = case.instance, case.fleet
    first = next(number for number, pool in enumerate(fleet.pools) if pool.role is not Role.DECODE)
    if simulated:
        judgement = make_bench(instance).verdict(fleet).judgement
        classes, outcome = tuple(map(latencies, judgement.classes)), judgement.outcome.value
    else:
        evaluation = evaluate(instance, fleet)
        outcome = "meets" if evaluation.holds else "misses"
        classes = tuple(
            SimulatedLatencies(
                name=slo.name,
                attainment=float(evaluation.attainment[k]),
                ttft_s=quantiles(evaluation.ttft[k]),
                tpot_s=quantiles(evaluation.tpot[k]),
            )
            for k, slo in enumerate(instance.problem.slos)
        )
    goodput = break_of(case)[0] * instance.problem.workload.request_rate
    enough = _fewest_replicas(instance, fleet, first)
    replicas = None if enough is None else enough.pools[first].replicas
    cost = None if enough is None else fleet_cost(instance, enough)
    return ChunkRow(size, classes, outcome, simulated, goodput, replicas, cost)


def _fewest_replicas(instance: Instance, fleet: Fleet, index: int) -> Fleet | None:
    """The fleet with as few replicas in one pool as meet the SLO by formula; None where too many are needed."""

    def misses(count: int) -> bool:
        return not holds_at(instance, with_replicas(fleet, index, count))

    most = MOST_TIMES * fleet.pools[index].replicas
    count = bisection(0, most + 1, misses)[1]
    return None if count > most else with_replicas(fleet, index, count)
