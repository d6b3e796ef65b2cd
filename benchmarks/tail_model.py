"""The formulas' tails of TTFT and TPOT against the simulator, on pools of every kind.

    python benchmarks/tail_model.py [--requests 60000] [--only KIND] [--json FILE]

Each case is one pool of engines at a stated utilisation (of its prompt servers; of its slots or KV memory for decode),
under the policy of its engine. Where roles are apart, the other side of the fleet is made so large that it hardly
queues. Prints P50, P90 and P99 predicted over simulated for each case, then by kind the mean absolute error and the
share of cases within 5 % (P90) and 10 % (P99). Fleets that fall behind in the simulation have no quantiles to compare;
they are named and left out of the means.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.engine import Role  # noqa: E402
from costmodel.workload import Workload  # noqa: E402
from optimizer.fleets.evaluate import evaluate, predict_misses  # noqa: E402
from optimizer.fleets.fleet import Fleet, FleetPool  # noqa: E402
from optimizer.loads.instance import Instance, make_instance  # noqa: E402
from optimizer.verification.judge import judge  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_engine_overhead  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402
from search_spaces.models import load_model  # noqa: E402
from search_spaces.problem import Constraints, Objective, Offer, Problem, SearchSpace, Slo  # noqa: E402

MIXES = {"fixed": ((2000.0, 200.0, 1.0),), "two": ((500.0, 300.0, 0.7), (6000.0, 100.0, 0.3))}
"""Lengths of our own beside those of the examples: (isl, osl, share)."""
SHOWN = {"p50": 0, "p90": 1, "p99": 3}
"""Quantiles shown, as indices into `evaluate.QUANTILES`."""
GOALS = {"p90": 0.05, "p99": 0.10}


@dataclass(frozen=True, slots=True)
class Case:
    """One pool under test; scv is the coefficient of variation of the gaps between arrivals (not squared)."""

    role: Role
    mix: str
    model: str
    gpu: str
    tensor: int
    pipeline: int
    servers: int
    utilization: float
    cv: float
    seqs: int = 128
    chunk: int = 8192
    engine: str = "vllm"

    @property
    def kind(self) -> str:
        """Role, arrivals, and whether the engine is a pipeline."""
        return f"{self.role}{', pipelined' if self.pipeline > 1 else ''}, {'bursty' if self.cv > 1.0 else 'Poisson'}"

    @property
    def name(self) -> str:
        """Its settings in one line."""
        split = f"TP{self.tensor}" + (f"PP{self.pipeline}" if self.pipeline > 1 else "")
        limits = f"{self.seqs}/{self.chunk}" if self.role is not Role.PREFILL else f"{self.chunk}"
        return (
            f"{self.servers:>2}x {self.gpu} {split} {limits} {self.engine} {self.model} {self.mix} "
            f"CV {self.cv:g} at {self.utilization:g}"
        )


PREFILL, DECODE, COLOCATED = Role.PREFILL, Role.DECODE, Role.COLOCATED
SMALL, MIDDLE, LARGE = "Llama-3.1-8B", "Qwen3-32B", "Llama-3.1-70B"
CASES = (
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.3, 1.0),
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.6, 1.0),
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.8, 1.0),
    Case(PREFILL, "chat", LARGE, "H100", 4, 1, 1, 0.5, 1.0),
    Case(PREFILL, "chat", LARGE, "H100", 4, 1, 2, 0.7, 1.0),
    Case(PREFILL, "chat", LARGE, "H200", 2, 1, 4, 0.7, 1.0),
    Case(PREFILL, "chat", LARGE, "H200", 2, 1, 8, 0.8, 1.0),
    Case(PREFILL, "chat", SMALL, "A100-80", 1, 1, 16, 0.85, 1.0),
    Case(PREFILL, "chat", SMALL, "L40S", 1, 1, 64, 0.9, 1.0),
    Case(PREFILL, "code", MIDDLE, "H100", 2, 1, 1, 0.6, 1.0),
    Case(PREFILL, "code", MIDDLE, "H100", 2, 1, 3, 0.8, 1.0),
    Case(PREFILL, "code", MIDDLE, "L40S", 4, 1, 6, 0.75, 1.0),
    Case(PREFILL, "code", MIDDLE, "A100-80", 2, 1, 12, 0.9, 1.0),
    Case(PREFILL, "long-context", LARGE, "H200", 4, 1, 2, 0.5, 1.0),
    Case(PREFILL, "long-context", LARGE, "B200", 2, 1, 4, 0.7, 1.0),
    Case(PREFILL, "two", SMALL, "H100", 1, 1, 2, 0.85, 1.0, chunk=2048),
    Case(PREFILL, "chat", LARGE, "H100", 4, 1, 2, 0.5, 2.0),
    Case(PREFILL, "chat", LARGE, "H200", 2, 1, 8, 0.7, 2.0),
    Case(PREFILL, "code", MIDDLE, "H100", 2, 1, 4, 0.6, 3.0),
    Case(PREFILL, "code", MIDDLE, "L40S", 4, 1, 16, 0.8, 3.0),
    Case(PREFILL, "fixed", SMALL, "H100", 1, 1, 1, 0.6, 2.0),
    Case(PREFILL, "long-context", LARGE, "H200", 4, 1, 4, 0.6, 2.0),
    Case(PREFILL, "chat", LARGE, "H100", 2, 2, 2, 0.6, 1.0),
    Case(PREFILL, "long-context", LARGE, "H200", 2, 2, 2, 0.6, 1.0),
    Case(DECODE, "chat", LARGE, "H100", 4, 1, 1, 0.5, 1.0),
    Case(DECODE, "chat", LARGE, "H200", 2, 1, 4, 0.7, 1.0),
    Case(DECODE, "chat", LARGE, "H200", 2, 1, 16, 0.85, 1.0, seqs=64),
    Case(DECODE, "code", MIDDLE, "A100-80", 2, 1, 2, 0.6, 1.0, seqs=64),
    Case(DECODE, "fixed", SMALL, "H100", 1, 1, 1, 0.3, 1.0),
    Case(DECODE, "two", SMALL, "L40S", 1, 1, 8, 0.7, 1.0, seqs=48),
    Case(DECODE, "long-context", LARGE, "H200", 4, 1, 4, 0.6, 1.0, seqs=64),
    Case(DECODE, "chat", LARGE, "H200", 2, 1, 4, 0.6, 2.0),
    Case(DECODE, "code", MIDDLE, "A100-80", 2, 1, 4, 0.5, 3.0, seqs=64),
    Case(DECODE, "chat", SMALL, "H100", 1, 1, 2, 0.5, 3.0),
    Case(DECODE, "chat", LARGE, "H100", 2, 2, 2, 0.6, 1.0, seqs=64),
    Case(COLOCATED, "fixed", SMALL, "H100", 1, 1, 1, 0.3, 1.0, chunk=2048),
    Case(COLOCATED, "fixed", SMALL, "H100", 1, 1, 1, 0.6, 1.0, chunk=2048),
    Case(COLOCATED, "chat", LARGE, "H100", 4, 1, 1, 0.5, 1.0, chunk=2048),
    Case(COLOCATED, "chat", LARGE, "H200", 2, 1, 4, 0.4, 1.0, chunk=1024),
    Case(COLOCATED, "chat", LARGE, "H200", 2, 1, 8, 0.6, 1.0, chunk=8192),
    Case(COLOCATED, "chat", LARGE, "H200", 4, 1, 4, 0.7, 1.0, chunk=512),
    Case(COLOCATED, "code", MIDDLE, "H100", 2, 1, 2, 0.6, 1.0, seqs=64, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "A100-80", 2, 1, 8, 0.8, 1.0, seqs=64, chunk=4096),
    Case(COLOCATED, "code", MIDDLE, "L40S", 4, 1, 32, 0.7, 1.0, seqs=32, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "H200", 4, 1, 2, 0.5, 1.0, seqs=32, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "B200", 4, 1, 4, 0.7, 1.0, seqs=64, chunk=8192),
    Case(COLOCATED, "two", SMALL, "A100-80", 1, 1, 3, 0.7, 1.0, chunk=1024),
    Case(COLOCATED, "chat", LARGE, "H200", 2, 1, 4, 0.4, 2.0, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "H100", 2, 1, 4, 0.6, 3.0, seqs=64, chunk=2048),
    Case(COLOCATED, "chat", SMALL, "H100", 1, 1, 2, 0.5, 3.0, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "A100-80", 2, 1, 16, 0.7, 2.0, seqs=64, chunk=2048),
    Case(COLOCATED, "chat", LARGE, "H100", 2, 2, 2, 0.4, 1.0, seqs=64, chunk=1024),
    Case(COLOCATED, "chat", LARGE, "H200", 1, 4, 1, 0.5, 1.0, seqs=256, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "H100", 1, 2, 2, 0.6, 1.0, seqs=64, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "H200", 1, 4, 2, 0.4, 1.0, seqs=64, chunk=2048),
    Case(COLOCATED, "long-context", LARGE, "H200", 1, 4, 2, 0.6, 1.0, seqs=256, chunk=2048),
    Case(COLOCATED, "code", MIDDLE, "H100", 1, 2, 4, 0.5, 2.0, seqs=64, chunk=2048),
)
"""Pools of every role, engine size, mix of lengths and burstiness; 1 to 64 servers, busy from 0.3 to 0.9."""


@cache
def lengths_of(mix: str) -> Workload:
    """The workload of an example, or lengths of our own, at one request per second."""
    if mix in MIXES:
        isl, osl, share = (np.array(column) for column in zip(*MIXES[mix], strict=True))
        return Workload(isl, osl, share, request_rate=1.0, max_tokens=8192)
    return replace(load_problem(ROOT / "examples" / f"{mix}.yaml").workload, request_rate=1.0)


def problem_of(case: Case) -> Problem:
    """A problem whose space is the case's engine alone, at one request per second."""
    accelerator = load_catalog().accelerator(case.gpu)
    space = SearchSpace(
        roles=(Role.PREFILL, Role.DECODE, Role.COLOCATED),
        tensor_parallel=(case.tensor,),
        pipeline_parallel=(case.pipeline,),
        expert_parallel=(1,),
        data_parallel=(1,),
        max_num_seqs=tuple(sorted({8, 32, case.seqs // 2, case.seqs})),
        max_num_batched_tokens=(case.chunk,),
        max_gpus_per_engine=8,
    )
    return Problem(
        name=case.name,
        model=load_model(case.model),
        weight_dtype="bf16",
        kv_dtype="bf16",
        workload=replace(lengths_of(case.mix), burstiness=case.cv),
        slos=(Slo("default", 10.0, 0.1, 0.9),),
        offers=(Offer(accelerator, accelerator.price.usd_per_hour),),
        space=space,
        objective=Objective(),
        constraints=Constraints(),
        engine=case.engine,
    )


def fleet_of(instance: Instance, case: Case) -> Fleet:
    """The pool under test, with ample engines for the other role where there is one."""
    everything = np.ones(instance.flows.isl.size)
    last = instance.tables.seqs.size - 1

    def pool(role: Role, replicas: int) -> FleetPool:
        return FleetPool(role.value, role, 0, 0 if role is Role.PREFILL else last, 0, replicas, 0, everything)

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

    Prompts count as if each were computed alone, on a colocated engine beside a full batch.
    """
    tables, rate = instance.tables, instance.flows.rate * pool.route * volume
    use = 0.0
    if pool.role is not Role.PREFILL:
        prompts = () if pool.role is Role.COLOCATED else (replace(pool, role=Role.PREFILL, replicas=4096),)
        state = predict_misses(instance, Fleet((*prompts, pool)), volume).states[-1]
        use = max(state.running / float(tables.seqs[pool.seqs]), state.memory)
    if pool.role is Role.DECODE:
        return use
    at = (pool.shape, pool.seqs, pool.chunk)
    alone = tables.prefill_time[pool.shape]
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
    """Predicted and simulated quantiles of a case [s], keyed by "ttft p90" and the like."""

    kind: str
    name: str
    predicted: dict[str, float]
    simulated: dict[str, float]
    overloaded: bool

    def error(self, what: str) -> float:
        """Predicted over simulated, less one [1]."""
        return self.predicted[what] / max(self.simulated[what], 1e-12) - 1.0


def row_of(case: Case, requests: int, runs: int) -> Row:
    """Predict and simulate one case."""
    problem = problem_of(case)
    instance = make_instance(problem, load_engine_overhead(problem.engine))
    fleet = fleet_of(instance, case)
    tested = next(pool for pool in fleet.pools if pool.role is case.role)
    volume = volume_at(instance, tested, case.utilization)
    predicted = evaluate(instance, fleet, volume)
    found = judge(instance, fleet, requests=requests, seed=1, volume=volume, replications=runs)
    one = found.classes[0]
    return Row(
        kind=case.kind,
        name=case.name,
        predicted=_named(predicted.ttft[0], predicted.tpot[0]),
        simulated=_named(one.ttft, one.tpot),
        overloaded=found.overload.overloaded,
    )


def _named(ttft: Sequence[float], tpot: Sequence[float]) -> dict[str, float]:
    pairs = {"ttft": ttft, "tpot": tpot}
    return {f"{name} {label}": float(values[index]) for name, values in pairs.items() for label, index in SHOWN.items()}


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Errors by kind: mean absolute error and share of the cases within the goal."""
    behind = [row for row in rows if row.overloaded]
    rows = [row for row in rows if not row.overloaded]
    kinds = list(dict.fromkeys(row.kind for row in rows))
    yield f"{'kind':34} {'pools':>5}   " + "   ".join(
        f"{what:>8}: mean |error|, within" for what in ("ttft p90", "ttft p99", "tpot p90", "tpot p99")
    )
    for kind in [*kinds, "all"]:
        mine = [row for row in rows if kind in ("all", row.kind)]
        cells = []
        for what in ("ttft p90", "ttft p99", "tpot p90", "tpot p99"):
            errors = np.abs([row.error(what) for row in mine])
            within = float((errors <= GOALS[what[-3:]]).mean())
            cells.append(f"{100 * errors.mean():>19.1f} %  {100 * within:>4.0f} %")
        yield f"{kind:34} {len(mine):>5}   " + "   ".join(cells)
    yield from (f"fell behind in the simulation, left out: {row.kind}: {row.name}" for row in behind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=60_000, help="of each run")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case, with seeds of their own")
    parser.add_argument("--only", default="", help="cases whose kind or name contains this")
    parser.add_argument("--json", type=Path, help="write predicted and simulated quantiles there")
    arguments = parser.parse_args()
    rows = []
    print("predicted / simulated - 1 [%]        ttft p50   p90   p99    tpot p50   p90   p99")
    for case in CASES:
        if arguments.only not in f"{case.kind} {case.name}":
            continue
        start = time.process_time()
        row = row_of(case, arguments.requests, arguments.runs)
        rows.append(row)
        cells = " ".join(f"{100 * row.error(what):>6.1f}" for what in row.predicted)
        flag = "  OVERLOADED" if row.overloaded else ""
        print(f"{cells}   {row.kind}: {row.name} ({time.process_time() - start:.1f} CPU-s){flag}", flush=True)
    print("\n" + "\n".join(summary(rows)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
