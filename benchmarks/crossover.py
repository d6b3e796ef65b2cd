"""Where disaggregation begins to pay: output tokens per second and GPU by the TPOT limit, for either kind of fleet.

    python benchmarks/crossover.py ../shared/data [--gpu H200] [--engine trtllm] [--ttft 10]

DeepSeek-R1 in FP8, 8192 tokens in and 1024 out, drawn as the benchmark draws them, uniformly from 80 to 100 % of that.
Per limit: the best engine that the serving engine can be told to be, at the highest rate at which the median request is
in time by the formulas of `optimizer.fleets.evaluate`; disaggregated, the best whole numbers of prefill and of decode
engines in fleets of at most so many GPUs: in a small fleet one of the two roles idles where the limit leaves the other
little to do. The second figures of a size are those of prefill engines without attention data parallelism, as all
measured fleets had by their recipes (`serving_layouts`).
Beside it the best measured row within the limit (serving/closed_loop.csv, fixed concurrency) of the same model and
GPU, of any engine and fleet size. As these rows stand at few concurrencies, far apart, and the best of either kind come
from different engines, the last lines compare like with like: each disaggregated row with the colocated rows of its own
engine, interpolated at its TPOT; and the same fleet, at the same TPOT, by the formulas.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving_layouts import LABELLED_MODELS, PRECISION, Degrees, as_run, degrees, gpu_of  # noqa: E402

from costmodel.engine import Parallelism, Role  # noqa: E402
from costmodel.metric import limits_of  # noqa: E402
from costmodel.workload import Workload  # noqa: E402
from optimizer.fleets.evaluate import evaluate  # noqa: E402
from optimizer.fleets.fleet import Fleet, FleetPool, largest_load  # noqa: E402
from optimizer.loads.instance import Instance, make_instance  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.measurements import MeasuredRun, Workers, read_measurements  # noqa: E402
from search_spaces.models import load_model  # noqa: E402
from search_spaces.problem import Offer, Problem, SearchSpace, Slo  # noqa: E402

LIMITS = (0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06)
"""TPOT limits [s]."""
AMPLE = 4096
"""Engines of the role that is not looked at."""
ISL, OSL, LEAST = 8192, 1024, 0.8
"""Nominal lengths, and the shortest drawn as a share of them."""
TOKENS = OSL * (1.0 + LEAST) / 2.0
"""Mean output [token]."""


def problem_of(model: Path, gpu: str, engine: str, slo: Slo, widest: int) -> Problem:
    """The question for one limit: the median request within TTFT and TPOT."""
    accelerator = load_catalog().accelerator(gpu)
    parts = np.linspace(LEAST, 1.0, 5)
    everything = Workload(
        parts * ISL, np.full(parts.size, OSL * parts.mean()), np.full(parts.size, 1.0 / parts.size), 1.0
    )
    return Problem(
        name="crossover",
        model=load_model(str(model)),
        weight_dtype="fp8",
        kv_dtype="fp8",
        workload=replace(everything, max_tokens=ISL + OSL),
        slos=(slo,),
        offers=(Offer(accelerator, accelerator.price.usd_per_hour),),
        space=SearchSpace(
            roles=(Role.PREFILL, Role.DECODE, Role.COLOCATED),
            tensor_parallel=(1, 2, 4, 8),
            pipeline_parallel=(1,),
            expert_parallel=(1, 8, 16),
            data_parallel=(1, 2, 4, 8, 16),
            max_num_seqs=(4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
            max_num_batched_tokens=(1024, 4096, 16384, 65536),
            max_gpus_per_engine=widest,
        ),
        engine=engine,
    )


def pool_of(role: Role, shape: int, seqs: int, chunk: int, replicas: int) -> FleetPool:
    """One pool that serves all there is."""
    return FleetPool(role.value, role, shape, seqs, chunk, replicas, 0, np.ones(5))


@dataclass(frozen=True, slots=True)
class Engine:
    """A setting: requests per second of one engine within the limits, its GPUs, how it is split, and its words."""

    rate: float
    gpus: float
    split: Parallelism
    words: str = "none"

    @property
    def per_gpu(self) -> float:
        """Requests per second and GPU."""
        return self.rate / self.gpus


def words_of(instance: Instance, pool: FleetPool) -> str:
    """Degrees and limits of a pool's engines."""
    split = instance.tables.shapes[pool.shape].parallelism
    limits = f" {instance.tables.seqs[pool.seqs]:.0f}" if pool.role is not Role.PREFILL else ""
    chunk = f"/{instance.tables.chunks[pool.chunk]:.0f}" if pool.role is Role.COLOCATED else ""
    return f"TP{split.tensor} EP{split.expert} DP{split.data}{limits}{chunk}"


def engines_of(instance: Instance, role: Role) -> list[Engine]:
    """The best setting in a role of each shape that the serving engine can be told to have."""
    tables, found = instance.tables, []
    every_seqs = tables.limits.tolist() if role is not Role.PREFILL else (0,)
    every_chunk = range(tables.chunks.size) if role is Role.COLOCATED else (tables.chunks.size - 1,)
    for shape, each in enumerate(tables.shapes):
        if not runs(instance.problem.engine, each.parallelism):
            continue
        best = Engine(0.0, float(tables.gpus[shape]), each.parallelism)
        for chunk, seqs in product(every_chunk, every_seqs):
            pool = pool_of(role, shape, seqs, chunk, 1)
            rate = most(instance, completed(instance, pool))
            if rate > best.rate:
                best = replace(best, rate=rate, words=words_of(instance, pool))
        found.append(best)
    return found


def runs(engine: str, split: Parallelism) -> bool:
    """Whether the engine can be told so: TensorRT-LLM's attention is data-parallel over all ranks or over none."""
    return engine != "trtllm" or 1 in (split.tensor, split.data)


def most(instance: Instance, fleet: Fleet) -> float:
    """Highest rate at which the goal holds [1/s]."""
    return largest_load(lambda volume: evaluate(instance, fleet, volume).holds)


def best_pair(prompts: list[Engine], decodes: list[Engine], gpus: int) -> tuple[float, str]:
    """Most requests per second and GPU of whole prefill and decode engines on at most `gpus` GPUs, and which."""
    best, words = 0.0, "none"
    for one, two in product(prompts, decodes):
        for p, d in product(range(1, gpus // int(one.gpus) + 1), range(1, gpus // int(two.gpus) + 1)):
            used = p * one.gpus + d * two.gpus
            rate = min(p * one.rate, d * two.rate) / used
            if used <= gpus and rate > best:
                best, words = rate, f"{p}x {one.words} -> {d}x {two.words}"
    return best, words


def completed(instance: Instance, pool: FleetPool) -> Fleet:
    """The pool with ample engines of the other role, where there is one."""
    if pool.role is Role.COLOCATED:
        return Fleet((pool,))
    tables = instance.tables
    quickest = int(np.argmin(tables.prefill_time[:, -1].mean(axis=1)))
    decoding = int(np.argmin(tables.decode_base[:, 0]))
    if pool.role is Role.PREFILL:
        return Fleet((pool, pool_of(Role.DECODE, decoding, 0, 0, AMPLE)))
    return Fleet((pool_of(Role.PREFILL, quickest, 0, tables.chunks.size - 1, AMPLE), pool))


@dataclass(frozen=True, slots=True)
class Found:
    """The best engines for a TPOT limit: colocated, and of each shape in either role."""

    mixed: Engine
    prompts: list[Engine]
    decodes: list[Engine]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked at every limit: model, GPU, serving engine, TTFT limit [s] and GPUs of an engine at most."""

    model: Path
    gpu: str
    engine: str
    ttft: float
    widest: int

    def at(self, limit: float) -> Found:
        """The best engines at a TPOT limit [s]."""
        slo = Slo("default", limits_of(ttft=self.ttft, tpot=limit), 0.5)
        problem = problem_of(self.model, self.gpu, self.engine, slo, self.widest)
        instance = make_instance(problem)
        mixed = max(engines_of(instance, Role.COLOCATED), key=lambda engine: engine.per_gpu)
        return Found(mixed, engines_of(instance, Role.PREFILL), engines_of(instance, Role.DECODE))


@dataclass(frozen=True, slots=True)
class Row:
    """A measured deployment: TPOT [s], output tokens per second and GPU, and its workers; decode: None if colocated."""

    mode: str
    engine: str
    gpus: int
    tpot: float
    tokens: float
    prefill: Workers
    decode: Workers | None


def measured(data: Path, gpu: str) -> Iterator[Row]:
    """The measured rows of the model, lengths and precision, with the prefill workers that they were run with."""
    for row in map(as_run, read_measurements(data / "serving" / "closed_loop.csv")[1]):
        if not isinstance(row, MeasuredRun) or row.model not in LABELLED_MODELS or row.concurrency is None:
            continue
        if gpu_of(row) != gpu.lower() or (row.isl, row.osl, row.precision) != (ISL, OSL, PRECISION):
            continue
        ttft, tpot = row.scored
        rate = row.concurrency / (ttft + tpot * (TOKENS - 1.0))
        yield Row(row.mode, row.engine, row.gpus, tpot, rate * TOKENS / row.gpus, row.prefill, row.decode)


def best_measured(rows: list[Row], mode: str, limit: float) -> float:
    """Most output tokens per second and GPU of the rows within the limit; 0 without any."""
    return max((row.tokens for row in rows if row.mode == mode and row.tpot <= limit), default=0.0)


def beside(rows: list[Row], row: Row) -> float | None:
    """What the colocated rows of the row's engine reach at its TPOT, where they reach so far [token/s per GPU]."""
    own = sorted((one.tpot, one.tokens) for one in rows if (one.mode, one.engine) == ("colocated", row.engine))
    if row.decode is None or not own or not own[0][0] <= row.tpot <= own[-1][0]:
        return None
    tpots, tokens = (np.array(values) for values in zip(*own, strict=True))
    return float(np.interp(row.tpot, tpots, np.maximum.accumulate(tokens)))


def like_with_like(rows: list[Row], question: Question) -> Iterator[str]:
    """Each disaggregated row over the colocated ones of its engine at its TPOT; and the same by the formulas."""
    told: set[tuple[object, ...]] = set()
    for row in sorted(rows, key=lambda row: row.tpot):
        other = beside(rows, row)
        key = (row.engine, row.prefill, row.decode, round(row.tpot, 4))
        if other is None or row.decode is None or key in told:
            continue
        told.add(key)
        ours = ""
        if row.engine == question.engine:
            found = question.at(row.tpot)
            rate = fleet_rate(found, row.prefill, row.decode) / row.gpus
            ours = f", by the formulas {TOKENS * rate:>4.0f} over {TOKENS * found.mixed.per_gpu:>4.0f} = "
            ours += f"{rate / max(found.mixed.per_gpu, 1e-12):.2f}"
        yield (
            f"  {row.engine} {row.prefill.count}+{row.decode.count} workers {1e3 * row.tpot:>5.1f} ms "
            f"{row.tokens:>4.0f} over {other:>4.0f} = {row.tokens / other:.2f}{ours}"
        )


def fleet_rate(found: Found, prefill: Workers, decode: Workers) -> float:
    """Requests per second of a fleet of these workers [1/s]; 0 where the space lacks one of them."""
    sides = ((found.prompts, prefill), (found.decodes, decode))
    return min(
        side.count * max((one.rate for one in engines if split_of(one) == degrees(side)), default=0.0)
        for engines, side in sides
    )


def split_of(engine: Engine) -> Degrees:
    """Tensor, data and expert ranks of an engine."""
    return engine.split.tensor, engine.split.data, engine.split.expert


def share(tokens: float, colocated: float) -> str:
    """Output per GPU, and its ratio to that of colocated engines."""
    return f"{tokens:>4.0f} {tokens / max(colocated, 1e-12):.2f}"


def conclusion(limits: list[float], ratios: list[list[float]], sizes: list[int]) -> str:
    """From which limit on disaggregation pays, for each fleet size."""
    parts = []
    for size, own in zip(sizes, zip(*ratios, strict=True), strict=True):
        below = [limit for limit, ratio in zip(limits, own, strict=True) if ratio < 1.0]
        pays = f"above {1e3 * max(below):.0f} ms" if below else "at every limit"
        parts.append(f"{size} GPUs: disaggregation pays {pays}, at most {max(own):.2f} times")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="deepseek-ai/DeepSeek-R1", help="folder under models/")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--engine", default="trtllm")
    parser.add_argument("--ttft", type=float, default=10.0, help="TTFT limit [s]")
    parser.add_argument("--limits", type=float, nargs="*", default=LIMITS, help="TPOT limits [s]")
    parser.add_argument("--gpus", type=int, nargs="*", default=(16, 32, 64), help="of a fleet, at most")
    parser.add_argument("--widest", type=int, default=8, help="GPUs of an engine, as in the measurements")
    arguments = parser.parse_args()
    config = arguments.data / "models" / arguments.model / "config.json"
    rows = list(measured(arguments.data, arguments.gpu))
    question = Question(config, arguments.gpu, arguments.engine, arguments.ttft, arguments.widest)
    sizes = "  ".join(f"{gpus:>3} GPUs ratio" for gpus in arguments.gpus)
    ratios = []
    print(f"output tokens/s per GPU: colocated; disaggregated and its ratio at most {sizes} | measured the same")
    for limit in arguments.limits:
        found = question.at(limit)
        one = TOKENS * found.mixed.per_gpu
        split = [prompt for prompt in found.prompts if prompt.split.data == 1]
        pairs = [[best_pair(some, found.decodes, gpus) for some in (found.prompts, split)] for gpus in arguments.gpus]
        ratios.append([TOKENS * pair / max(one, 1e-12) for (pair, _), _ in pairs])
        cells = "  ".join(" ".join(share(TOKENS * pair, one) for pair, _ in both) for both in pairs)
        seen = [best_measured(rows, mode, limit) for mode in ("colocated", "disaggregated")]
        print(
            f"TPOT {1e3 * limit:>3.0f} ms {one:>5.0f}  {cells} | {seen[0]:>4.0f} {seen[1]:>4.0f} "
            f"{seen[1] / max(seen[0], 1e-12):>5.2f}   [{found.mixed.words}; {pairs[0][0][1]}]",
            flush=True,
        )
    print(conclusion(list(arguments.limits), ratios, list(arguments.gpus)))
    print("measured, disaggregated over colocated of the same engine at the same TPOT:")
    for line in like_with_like(rows, question):
        print(line, flush=True)


if __name__ == "__main__":
    main()
