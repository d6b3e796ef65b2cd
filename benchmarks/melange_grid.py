"""Mélange's grid: which of two GPUs gives more tokens per dollar for which request, A10G or A100.

    python benchmarks/melange_grid.py [../shared/data] [--tpot 120ms]

Griggs et al. 2024 (melange-release, docs/index.md, plot 1): Llama-2-7B on vLLM, A10G at $1.01/h, A100-80GB at $3.67/h.
Each cell is the advantage of the A10G in tokens per dollar, +72 where it gives 72 % more, and that of the A100 with a
minus. What they measured within 5 % of a tie has no sign to miss: such cells are marked = and counted apart where ours
leans the other way by more. Two readings of "the maximum generation throughput each GPU type achieves":

- Saturated: the cheapest fleet of one type by the fleet search's own columns, at a rate of thousands of engines, for
  requests of one length. The plot has no latency limit (their plot 6 is the one that varies it); --tpot sets one.
- Their script: melange/profiling/benchmark-launcher.sh, as published, sends 10 requests at 1 to 32 per second and
  divides their tokens by the time until the last is done; the simulator does the same at 32 per second.

Mélange measured with a vLLM of 2023, whose host took far longer over each step than today's. With DATA the grids are
computed for three host times: the catalog's; vLLM on one GPU as DistServe fitted it; vLLM on 2 to 8 GPUs as Splitwise
measured it (benchmarks/vllm_2023.py; none is fitted to this grid). Exit code 1 where the saturated grid of the last
(without DATA: of today) has fewer than 30 of 36 cells right or tied.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.reference.policies import VLLM_V0  # noqa: E402
from benchmarks.studies.common import engine_pool, poisson_trace  # noqa: E402
from benchmarks.vllm_2023 import engine_changes, host_times, one_gpu_host_times  # noqa: E402
from costmodel.engine import EngineConfig, EngineOverhead, Parallelism, Role  # noqa: E402
from costmodel.metric import limits_of  # noqa: E402
from costmodel.simulator.run import simulate  # noqa: E402
from costmodel.simulator.steps import cost_steps  # noqa: E402
from costmodel.workload import Workload  # noqa: E402
from optimizer.fleets.fleet import fleet_cost  # noqa: E402
from optimizer.loads.instance import make_instance  # noqa: E402
from optimizer.search.search import evaluated, unmixed  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_engine_memory, load_serving_policy  # noqa: E402
from search_spaces.models import load_model  # noqa: E402
from search_spaces.problem import Offer, Problem, SearchSpace, Slo  # noqa: E402
from search_spaces.quantities import Kind, parse  # noqa: E402

ISL = (25, 100, 250, 500, 1000, 2000)
OSL = (25, 100, 250, 500, 1000, 2000)
PUBLISHED = (
    (72, 52, 20, 17, 13, 11),
    (52, 25, 15, 1, 1, -4),
    (28, 11, 2, 1, -8, -13),
    (12, 2, 1, -4, -17, -21),
    (-6, -10, -11, -11, -18, -20),
    (-8, -10, -13, -17, -18, -38),
)
"""Rows: OSL, columns: ISL [%]."""
PRICES = {"A10G": 1.01, "A100-80": 3.67}
"""As in the example of Mélange's repository [$/h]."""
BAND = 5.0
"""A difference up to here is a tie [%]."""
ENOUGH = 30
"""Cells that must be right or tied."""
REQUESTS, RATE, RUNS = 10, 32.0, 3
"""Of one run of their script: requests, and the highest of its rates [1/s]; ours are repeated with other arrivals."""
SEQS, BUDGET = 256, 4096
"""Requests and prompt tokens in a step of vLLM as it came in 2023: whole prompts, up to the model's context."""
ENGINES = 2_000
"""Engines to aim at, so that whole numbers do not show."""
SPACE = SearchSpace(
    roles=(Role.COLOCATED,),
    tensor_parallel=(1,),
    pipeline_parallel=(1,),
    expert_parallel=(1,),
    data_parallel=(1,),
    max_num_seqs=(8, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    max_num_batched_tokens=(512, 2048, 8192),
)


def cost_of(gpu: str, isl: int, osl: int, tpot: float, overhead: EngineOverhead, rate: float) -> float:
    """The cheapest fleet of one GPU type for requests of one length [$/h]; infinity where none is in time."""
    one = np.array([1.0])
    problem = Problem(
        name="melange",
        model=load_model("Llama-2-7B"),
        weight_dtype="bf16",
        kv_dtype="bf16",
        workload=Workload(isl * one, osl * one, one, request_rate=rate, max_tokens=isl + osl),
        slos=(Slo("median", limits_of(ttft=60.0, tpot=tpot), 0.5),),
        offers=(Offer(load_catalog().accelerator(gpu), PRICES[gpu]),),
        space=SPACE,
        engine_changes=engine_changes(overhead),
    )
    instance = make_instance(problem)
    fleet = unmixed(evaluated(instance))
    return fleet_cost(instance, fleet) if fleet.pools else np.inf


def advantage(isl: int, osl: int, tpot: float, overhead: EngineOverhead) -> float:
    """How many more tokens per dollar the A10G gives than the A100; below zero, the A100 than the A10G [%]."""
    rate = 10.0
    small, large = (cost_of(gpu, isl, osl, tpot, overhead, rate) for gpu in PRICES)
    rate *= ENGINES / max(min(small / PRICES["A10G"], large / PRICES["A100-80"]), 1.0)
    small, large = (cost_of(gpu, isl, osl, tpot, overhead, rate) for gpu in PRICES)
    return _percent(large / small)


def _percent(ratio: float) -> float:
    """How many times as many tokens per dollar the A10G gives, as Mélange writes it [%]."""
    return 100.0 * (ratio - 1.0) if ratio >= 1.0 else -100.0 * (1.0 / ratio - 1.0)


def measured(isl: int, osl: int, overhead: EngineOverhead) -> float:
    """The advantage of the A10G as their script would measure it [%]."""
    small, large = (tokens_per_second(gpu, isl, osl, overhead) / PRICES[gpu] for gpu in PRICES)
    return _percent(small / large)


def tokens_per_second(gpu: str, isl: int, osl: int, overhead: EngineOverhead) -> float:
    """Output tokens over the time until the last of a few requests is done, mean of the runs [1/s]."""
    model, accelerator = load_model("Llama-2-7B"), load_catalog().accelerator(gpu)
    memory = load_engine_memory("vllm")
    config = EngineConfig(accelerator, Role.COLOCATED, Parallelism(1), "bf16", "bf16", SEQS, BUDGET, BUDGET, memory)
    steps = cost_steps(model, config, overhead)
    engine = engine_pool(
        model, Role.COLOCATED, VLLM_V0, gpu=accelerator, seqs=SEQS, budget=BUDGET, longest=BUDGET, steps=steps
    )
    lengths = np.full(REQUESTS, isl), np.full(REQUESTS, osl)
    done = [simulate(poisson_trace(lengths, RATE, seed), (engine,)).finish.max() for seed in range(RUNS)]
    return REQUESTS * osl / float(np.mean(done))


def verdict(ours: float, theirs: float) -> str:
    """Blank: the same sign; "=": theirs is a tie, and ours another sign; "!": the wrong sign."""
    if ours * theirs > 0.0:
        return " "
    return "=" if abs(theirs) <= BAND else "!"


def grid(cell: Callable[[int, int], float]) -> list[list[float]]:
    """Our advantage in every cell [%]."""
    return [[cell(isl, osl) for isl in ISL] for osl in OSL]


def show(ours: list[list[float]]) -> int:
    """Print a grid beside the published one; cells that are right or tied."""
    print("OSL \\ ISL " + "".join(f"{isl:>14}" for isl in ISL))
    marks = ""
    for osl, mine, theirs in zip(OSL, ours, PUBLISHED, strict=True):
        row = [verdict(a, b) for a, b in zip(mine, theirs, strict=True)]
        marks += "".join(row)
        cells = [f"{a:+.0f} / {b:+d}{mark}" for a, b, mark in zip(mine, theirs, row, strict=True)]
        print(f"{osl:>9} " + "".join(f"{cell:>14}" for cell in cells))
    print(f"{marks.count(' ')} of {len(marks)} the same sign, {marks.count('=')} ties, {marks.count('!')} wrong")
    return marks.count(" ") + marks.count("=")


def both(tpot: float, overhead: EngineOverhead) -> int:
    """Print the grids of both readings; cells of the saturated one that are right or tied."""
    print(f"\nhost: {overhead.step * 1e3:.1f} ms a step, {overhead.per_request * 1e6:.0f} us a request in it")
    print("saturated: ours / theirs, + A10G, - A100 [%]; ! where the sign differs, = where theirs is a tie")
    right = show(grid(lambda isl, osl: advantage(isl, osl, tpot, overhead)))
    print(f"their script: {REQUESTS} requests at {RATE:.0f} per second")
    show(grid(lambda isl, osl: measured(isl, osl, overhead)))
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="the data folder")
    parser.add_argument("--tpot", default="10s", help="limit of the median time per output token; the default is none")
    arguments = parser.parse_args()
    tpot = parse(arguments.tpot, Kind.DURATION)
    hosts = [load_serving_policy("vllm").overhead]
    if arguments.data:
        hosts += [one_gpu_host_times(arguments.data), host_times(arguments.data)]
    right = [both(tpot, host) for host in hosts]
    return 0 if right[-1] >= ENOUGH else 1


if __name__ == "__main__":
    raise SystemExit(main())
