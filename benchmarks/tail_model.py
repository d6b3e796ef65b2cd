"""The formulas' tails of TTFT and TPOT against the simulator, on pools of every kind.

    python benchmarks/tail_model.py [--full | --light | --chunked | --held-out [--seed 20261122]] [--engine vllm]
                                    [--requests N] [--balancing least-tokens] [--only KIND] [--json FILE]

Each case is one pool of engines at a stated utilisation (of its prompt servers; of its slots or KV memory for decode),
under the policy of its engine; steps are read off the batches of the standard preset and smaller ones. Where roles are
apart, the other side of the fleet is made so large that it hardly queues. TTFT is without what no load changes
(`ServingPolicy.fixed_ttft`), beside which errors in the rest would look smaller. Runs are added until quantiles are
settled. Prints P50, P90 and P99 predicted over simulated for each case, then by kind the mean absolute error and the
share of cases within 5 % (P90) and 10 % (P99), and of those that are not further off than chance in the simulated
quantile explains (two standard errors). `--held-out` takes pools drawn at random instead, of other models, GPUs and
lengths; `--full` pools whose batches are full for a part of the time; `--light` engines that mostly idle; `--chunked`
prefill engines with small chunks; `--engine sglang` has prompts go first and alone; `--balancing least-requests` has a
least-requests router, which the formulas do not know.
Fleets that fall behind in the simulation have no quantiles to compare; they are named and left out of the means.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
from tail_cases import CASES, CHUNKED_CASES, FULL_CASES, LIGHT_CASES, Case, drawn_cases, lengths_of

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.engine import Role  # noqa: E402
from costmodel.metric import limits_of  # noqa: E402
from costmodel.simulator.metrics import percentiles, steady  # noqa: E402
from optimizer.fleets.evaluate import evaluate  # noqa: E402
from optimizer.fleets.fleet import Fleet, FleetPool, prefill_seqs  # noqa: E402
from optimizer.loads.instance import LINK_UTILIZATION, Instance, make_instance  # noqa: E402
from optimizer.plans.records import QUANTILES  # noqa: E402
from optimizer.verification.judge import Judgement  # noqa: E402
from optimizer.verification.simulated_plan import judge  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import ENGINES  # noqa: E402
from search_spaces.models import load_model  # noqa: E402
from search_spaces.problem import Balancing, Constraints, Objective, Offer, Problem, SearchSpace, Slo  # noqa: E402
from search_spaces.search_space import SEQS_FACTOR, Span, sizes  # noqa: E402

SHOWN = {"p50": 0, "p90": 1, "p99": 3}
"""Quantiles shown, as indices into `evaluate.QUANTILES`."""
GOALS = {"p90": 0.05, "p99": 0.10}
GOALED = ("ttft p90", "ttft p99", "tpot p90", "tpot p99")
HELD_OUT, HELD_OUT_SEED = 60, 20261122
"""How many pools `--held-out` draws, and the seed of the draw."""
SETTLED, MOST_RUNS = 0.25, 32
"""Runs are doubled until the standard errors of all quantiles are below this share of the goals, or are so many."""
BATCHES = 8
"""Parts of each run whose quantiles tell how much chance there is in them."""
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def problem_of(case: Case) -> Problem:
    """A problem whose space is the case's engine, and one stage of as many GPUs, at one request per second."""
    accelerator = load_catalog().accelerator(case.gpu)
    space = SearchSpace(
        roles=(Role.PREFILL, Role.DECODE, Role.COLOCATED),
        tensor_parallel=tuple(sorted({case.tensor, case.tensor * case.pipeline})),
        pipeline_parallel=tuple(sorted({1, case.pipeline})),
        expert_parallel=(1,),
        data_parallel=(1,),
        max_num_seqs=(1, 2, 4, *sizes(Span(low=8, high=case.seqs), SEQS_FACTOR)),
        max_num_batched_tokens=(case.chunk,),
        max_gpus_per_engine=8,
    )
    return Problem(
        name=case.name,
        model=load_model(case.model),
        weight_dtype="bf16",
        kv_dtype="bf16",
        workload=replace(lengths_of(case.mix), burstiness=case.cv),
        slos=(Slo("default", limits_of(ttft=10.0, tpot=0.1), 0.9),),
        offers=(Offer(accelerator, accelerator.price.usd_per_hour),),
        space=space,
        objective=Objective(),
        engine_changes={case.engine: {"arrival_ms": 0.0, "handover_ms": 0.0}},
        constraints=Constraints(balancing=case.balancing),
        engine=case.engine,
    )


def fleet_of(instance: Instance, case: Case) -> Fleet:
    """The pool under test, with ample engines for the other role where there is one.

    Those have one pipeline stage, as no engine receives KV into several.
    """
    everything = np.ones(instance.flows.isl.size)
    last = instance.tables.seqs.size - 1
    splits = [shape.parallelism for shape in instance.tables.shapes]
    own = next(
        index for index, split in enumerate(splits) if (split.tensor, split.pipeline) == (case.tensor, case.pipeline)
    )
    single = next(
        index
        for index, split in enumerate(splits)
        if (split.tensor, split.pipeline) == (case.tensor * case.pipeline, 1)
    )

    def pool(role: Role, replicas: int) -> FleetPool:
        shape = own if role is case.role else single
        seqs = prefill_seqs(instance, shape, -1) if role is Role.PREFILL else last
        return FleetPool(role.value, role, shape, seqs, 0, replicas, 0, everything)

    if case.role is Role.COLOCATED:
        return Fleet((pool(Role.COLOCATED, case.servers),))
    volume = volume_at(instance, pool(case.role, case.servers), case.utilization)
    other = Role.DECODE if case.role is Role.PREFILL else Role.PREFILL
    ample = 1
    while use_of(instance, pool(other, ample), volume) > (0.5 if other is Role.DECODE else 0.2) and ample < 512:
        ample *= 2
    pools = {case.role: pool(case.role, case.servers), other: pool(other, ample)}
    return Fleet((pools[Role.PREFILL], pools[Role.DECODE]))


def use_of(instance: Instance, pool: FleetPool, volume: float) -> float:
    """Utilisation of a pool at a multiple of the demand: of its prompt servers, or of slots and KV memory [1].

    Prompts count as if each were computed alone, on a colocated engine beside a full batch. Of its network cards a
    decode pool uses what plans may, at most (`LINK_UTILIZATION`).
    """
    tables, rate = instance.tables, instance.flows.rate * pool.route * volume
    use = 0.0
    if pool.role is not Role.PREFILL:
        prompts = () if pool.role is Role.COLOCATED else (replace(pool, role=Role.PREFILL, replicas=4096),)
        state = evaluate(instance, Fleet((*prompts, pool)), volume).states[-1]
        use = max(state.running / float(tables.seqs[pool.seqs]), state.memory)
    if pool.role is Role.DECODE:
        moved = float(rate @ tables.kv_transferred[pool.shape])
        return max(use, moved / (LINK_UTILIZATION * pool.replicas * float(tables.links[pool.shape])))
    at = (pool.shape, pool.seqs, pool.chunk)
    alone = tables.prefill_time[pool.shape, pool.chunk]
    seconds = alone if pool.role is Role.PREFILL else tables.chunk_count[at] * tables.mixed_base[at]
    lanes = pool.replicas * float(tables.pipeline[pool.shape] * tables.ranks[pool.shape])
    return max(use, float(rate @ seconds) / lanes)


def volume_at(instance: Instance, pool: FleetPool, utilization: float) -> float:
    """Multiple of the demand at which a pool is so busy (bisection)."""
    low, high = 0.0, 1e-3
    while use_of(instance, pool, high) < utilization and high < 1e9:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if use_of(instance, pool, middle) < utilization else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Row:
    """Predicted and simulated quantiles of a case [s], keyed by "ttft p90" and the like; noise: standard errors."""

    kind: str
    name: str
    predicted: dict[str, float]
    simulated: dict[str, float]
    noise: dict[str, float]
    overloaded: bool

    def misses(self, what: str) -> bool:
        """Whether the error exceeds the goal by more than two standard errors of the simulated quantile."""
        return abs(self.error(what)) > GOALS[what[-3:]] + 2.0 * self.noise[what] / self.simulated[what]

    @property
    def settled(self) -> bool:
        """Whether chance in the simulated quantiles is small beside the goals."""
        return all(self.noise[what] <= SETTLED * GOALS[what[-3:]] * self.simulated[what] for what in GOALED)

    def error(self, what: str) -> float:
        """Predicted over simulated, less one [1]."""
        return self.predicted[what] / max(self.simulated[what], 1e-12) - 1.0


def row_of(case: Case, requests: int, runs: int) -> Row:
    """Predict and simulate one case."""
    problem = problem_of(case)
    instance = make_instance(problem)
    fleet = fleet_of(instance, case)
    tested = next(pool for pool in fleet.pools if pool.role is case.role)
    volume = volume_at(instance, tested, case.utilization)
    predicted = evaluate(instance, fleet, volume)
    found = judge(instance, fleet, requests=requests, seed=1, volume=volume, replications=runs)
    one = found.classes[0]
    row = Row(
        kind=case.kind,
        name=case.name,
        predicted=_named(predicted.ttft[0], predicted.tpot[0]),
        simulated=_named(astuple(one.ttft_s), astuple(one.tpot_s)),
        noise=_noise(found),
        overloaded=found.overload.overloaded,
    )
    return row if row.overloaded or row.settled or runs >= MOST_RUNS else row_of(case, requests, 2 * runs)


def _noise(found: Judgement) -> dict[str, float]:
    """Standard errors of the simulated quantiles, from those of `BATCHES` parts of each run in order of arrival [s]."""
    ttft, tpot = [], []
    for run in found.runs:
        counted = np.flatnonzero(steady(run.result))
        for part in np.array_split(counted, BATCHES):
            several = part[run.demand.trace.osl[part] > 1]
            ttft.append(percentiles(run.result.ttft[part], QUANTILES))
            tpot.append(percentiles(run.result.tpot[several], QUANTILES))
    parts = len(found.runs) * BATCHES
    spread = (np.std(values, axis=0, ddof=1) / np.sqrt(parts) for values in (ttft, tpot))
    return _named(*spread)


def _named(ttft: Sequence[float] | FloatArray, tpot: Sequence[float] | FloatArray) -> dict[str, float]:
    pairs = {"ttft": ttft, "tpot": tpot}
    return {f"{name} {label}": float(values[index]) for name, values in pairs.items() for label, index in SHOWN.items()}


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Errors by kind: mean absolute error and share of the cases within the goal."""
    behind = [row for row in rows if row.overloaded]
    rows = [row for row in rows if not row.overloaded]
    kinds = list(dict.fromkeys(row.kind for row in rows))
    yield f"{'kind':34} {'pools':>5}   " + "   ".join(
        f"{what:>8}: mean |error|, within, but for noise" for what in GOALED
    )
    for kind in [*kinds, "all"]:
        mine = [row for row in rows if kind in ("all", row.kind)]
        cells = []
        for what in GOALED:
            errors = np.abs([row.error(what) for row in mine])
            within = float((errors <= GOALS[what[-3:]]).mean())
            noisy = 1.0 - float(np.mean([row.misses(what) for row in mine]))
            cells.append(f"{100 * errors.mean():>19.1f} %  {100 * within:>4.0f} %  {100 * noisy:>11.0f} %")
        yield f"{kind:34} {len(mine):>5}   " + "   ".join(cells)
    yield from (f"fell behind in the simulation, left out: {row.kind}: {row.name}" for row in behind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, help="of each run")
    parser.add_argument("--runs", type=int, default=4, help="runs of each case at least, with seeds of their own")
    parser.add_argument("--full", action="store_true", help="pools with full batches instead of the chosen ones")
    parser.add_argument("--light", action="store_true", help="engines that mostly idle instead")
    parser.add_argument("--chunked", action="store_true", help="prefill engines with small chunks instead")
    parser.add_argument("--held-out", action="store_true", help="pools drawn at random instead of the chosen ones")
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED, help="of the draw")
    parser.add_argument("--balancing", choices=[one.value for one in Balancing], default="least-tokens")
    parser.add_argument("--engine", choices=ENGINES, default="vllm", help="whose scheduler the engines have")
    parser.add_argument("--only", default="", help="cases whose kind or name contains this")
    parser.add_argument("--json", type=Path, help="write predicted and simulated quantiles there")
    arguments = parser.parse_args()
    rows = []
    print("predicted / simulated - 1 [%]        ttft p50   p90   p99    tpot p50   p90   p99")
    chosen = (
        FULL_CASES
        if arguments.full
        else LIGHT_CASES
        if arguments.light
        else CHUNKED_CASES
        if arguments.chunked
        else CASES
    )
    chosen = drawn_cases(HELD_OUT, arguments.seed) if arguments.held_out else chosen
    balancing = Balancing(arguments.balancing)
    for case in (replace(one, engine=arguments.engine, balancing=balancing) for one in chosen):
        if arguments.only not in f"{case.kind} {case.name}":
            continue
        start = time.process_time()
        row = row_of(case, arguments.requests, arguments.runs)
        rows.append(row)
        cells = " ".join(f"{100 * row.error(what):>6.1f}" for what in row.predicted)
        flag = "  OVERLOADED" if row.overloaded else "".join(f"  {what}!" for what in GOALED if row.misses(what))
        print(f"{cells}   {row.kind}: {row.name} ({time.process_time() - start:.1f} CPU-s){flag}", flush=True)
    print("\n" + "\n".join(summary(rows)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
