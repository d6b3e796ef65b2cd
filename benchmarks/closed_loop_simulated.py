"""The simulator beside the closed-loop formula, both against measured TTFT and TPOT of colocated vLLM and SGLang.

    python benchmarks/closed_loop_simulated.py               every row
    python benchmarks/closed_loop_simulated.py --sample 100  so many rows, drawn with a fixed seed
    python benchmarks/closed_loop_simulated.py --ratios      also simulated / formula by engine, GPU, model, concurrency

Data: serving/closed_loop.csv in PDPLAN_DATA, else ../shared/data. Each row is simulated as it was measured: all users
send at once, each sends its next request when one ends, ten requests per user in all, lengths uniform between the
shortest and the nominal one, means over all requests (the first wave is one
in ten of them). The formula is what `pdplan validate` predicts. Engine, memory,
token budget and every law of a step are those of the formula, and so is what no step accounts for (`simulated_means`);
concurrency is rounded to whole requests per engine.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.engine_arrays import engine_arrays, first_token_factor  # noqa: E402
from costmodel.queues.steady_state import MANY_WAVES, ClosedLoad, WorkerPools, closed_loop, engine_times, look_wait  # noqa: E402
from costmodel.simulator.fleet import UNLIMITED, Limits, SimulatedPool  # noqa: E402
from costmodel.simulator.run import simulate  # noqa: E402
from costmodel.simulator.steps import cost_steps  # noqa: E402
from costmodel.step import StepLoad, step_time  # noqa: E402
from costmodel.workload import make_trace  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import SUPPORT, load_serving_policy  # noqa: E402
from search_spaces.enumeration import block_tokens  # noqa: E402
from search_spaces.measured_engines import MeasuredDeployment, Predicted, batches_of, deployments_of, predict_serving  # noqa: E402
from search_spaces.measurements import SCRIPTS, read_measurements, read_scripts, with_settings  # noqa: E402

Array = NDArray[np.float64]
ENGINES = ("sglang", "vllm")
SEED = 1
QUANTITIES = ("ttft", "tpot")


@dataclass(frozen=True)
class Compared:
    """One row: TTFT and TPOT [s] measured, by formula and simulated."""

    deployment: MeasuredDeployment
    measured: tuple[float, float]
    formula: tuple[float, float]
    simulated: tuple[float, float]


def engine_pool(deployment: MeasuredDeployment, users: int, longest: int) -> SimulatedPool:
    """The simulator's engine of a measured deployment, for so many users and requests of up to `longest` tokens."""
    policy, ranks = load_serving_policy(deployment.engine), deployment.prefill.parallelism.data
    seqs = max(users, deployment.prefill.parallelism.pipeline)
    budget = max(deployment.token_budget * ranks, seqs)
    config = replace(
        deployment.prefill, max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=max(longest, budget)
    )
    block = block_tokens(deployment.engine, deployment.model)
    held = deployment.fits * (deployment.isl + deployment.osl / 2.0)
    return SimulatedPool(
        role=config.role,
        steps=cost_steps(deployment.model, config, policy.overhead),
        policy=SUPPORT[deployment.engine].scheduler,
        limits=Limits(
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            long_prefill_threshold=budget // ranks if ranks > 1 else UNLIMITED,
            kv_blocks=int(held / block) if math.isfinite(held) else UNLIMITED,
            block_size=block,
        ),
        pipeline=config.parallelism.pipeline,
        first_token=first_token_factor(deployment.model, config.accelerator, config.role),
    )


def lengths(mean: float, spread: float, places: Array) -> NDArray[np.int64]:
    """Lengths evenly spread about a mean [token]; places: of each request in the range, 0 (longest) to 1."""
    longest = mean / (1.0 - spread / 2.0)
    return np.maximum(np.rint(longest * (1.0 - spread * places)), 1.0).astype(np.int64)


def simulated_means(deployment: MeasuredDeployment, closed: ClosedLoad) -> tuple[float, float]:
    """Mean TTFT and TPOT of the benchmark's run, in which all users start at once [s].

    What no step of the engine accounts for is the formula's: the way to the engine, what launching a prompt's kernels
    takes beyond them, and the wait for the scheduler's next look at its queue (`look_wait`).
    """
    policy = load_serving_policy(deployment.engine)
    arrays = engine_arrays(deployment.model, [deployment.prefill], policy.overhead)
    times, single = engine_times(deployment.model, arrays, arrays, policy, closed), np.ones((1, 1))
    pools = WorkerPools(single, single, 0.0 * single, np.array([[deployment.fits]]), apart=False)
    steady = closed_loop(times, policy, closed, pools)
    kernels = step_time(deployment.model, arrays, StepLoad.prefill(closed.isl)).total * arrays.first_token
    late = look_wait(closed.looks, steady.decode_step, steady.tpot * times.tokens_per_step)
    outside = policy.fixed_ttft(False) + float((np.maximum(steady.prefill - kernels, 0.0) + late)[0, 0])
    users = max(1, round(deployment.concurrency))
    size = round(users * MANY_WAVES)
    places = np.random.default_rng([SEED, deployment.row.line]).random((2, size))
    isl, osl = (
        lengths(float(mean[0, 0]), deployment.spread, place)
        for mean, place in zip((closed.isl, closed.osl), places, strict=True)
    )
    pool = replace(engine_pool(deployment, users, int((isl + osl).max())), fixed_ttft=outside)
    result = simulate(replace(make_trace(np.zeros(size), isl, osl), concurrency=users), (pool,))
    return float(np.mean(result.ttft)), float(np.mean(result.tpot[osl > 1]))


def compared(sample: int | None) -> list[Compared]:
    """All rows of the two engines, or a sample of them."""
    folder, catalog = data_folder(), load_catalog()
    _, rows = read_measurements(folder / "serving" / "closed_loop.csv")
    rows = with_settings(rows, read_scripts(folder / "serving" / SCRIPTS))
    models = folder / "models"
    predicted = {each.line: each for each in predict_serving(rows, catalog, models).predicted}
    chosen = [
        each
        for each in deployments_of(rows, catalog, models)[0]
        if each.row.line in predicted and each.decode is None and each.engine in ENGINES
    ]
    if sample is not None and sample < len(chosen):
        chosen = random.Random(SEED).sample(chosen, sample)
    found = []
    for number, each in enumerate(chosen):
        if sys.stderr.isatty():
            print(f"\r{number}/{len(chosen)}", end="", file=sys.stderr)
        found.append(_compared(each, predicted[each.row.line]))
    return found


def _compared(deployment: MeasuredDeployment, row: Predicted) -> Compared:
    values = [row.values[name] for name in QUANTITIES]
    measured, formula = ((ttft, tpot) for ttft, tpot in zip(*((v.measured, v.predicted) for v in values), strict=True))
    (batch,) = batches_of([deployment])
    return Compared(deployment, measured, formula, simulated_means(deployment, batch.load))


def figures(rows: Sequence[Compared], of: Callable[[Compared], tuple[float, float]]) -> str:
    """Median error and bias of TTFT and TPOT."""
    parts = []
    for k, name in enumerate(QUANTITIES):
        error = np.array([of(row)[k] / row.measured[k] - 1.0 for row in rows])
        parts.append(f"{name.upper()} {np.median(np.abs(error)):6.1%} bias {np.median(error):+6.1%}")
    return "   ".join(parts)


def show_errors(rows: Sequence[Compared]) -> None:
    """A line for the formula and one for the simulator, by engine and spread of lengths, and in all."""
    groups: dict[tuple[str, str], list[Compared]] = {
        (engine, name): [] for engine in ENGINES for name in ("equal", "spread")
    }
    for row in rows:
        groups[row.deployment.engine, "spread" if row.deployment.spread else "equal"].append(row)
    for (engine, spread), members in [*groups.items(), (("all", "all"), list(rows))]:
        for name, of in (("formula", lambda row: row.formula), ("simulator", lambda row: row.simulated)):
            if members:
                print(f"{engine:<7} {spread:<7} {len(members):>4} rows  {name:<10} {figures(members, of)}")


def show_ratios(rows: Sequence[Compared]) -> None:
    """Mean simulated / formula, by engine and each of GPU, model and concurrency."""
    keys: dict[str, Callable[[MeasuredDeployment], object]] = {
        "engine": lambda _: "any",
        "GPU": lambda each: each.prefill.accelerator.name,
        "model": lambda each: each.model.name,
        "requests": lambda each: f"<= {2 ** math.ceil(math.log2(max(each.concurrency, 1.0))):>3}",
    }
    for what, key in keys.items():
        groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
        for row in rows:
            groups[row.deployment.engine, str(key(row.deployment))].append(row)
        print(f"\n{what:<34} rows  TTFT  TPOT  (mean simulated / formula)")
        for (engine, value), members in sorted(groups.items()):
            ratios = [np.mean([row.simulated[k] / row.formula[k] for row in members]) for k in (0, 1)]
            print(f"{engine:<8} {value:<24} {len(members):>5}  {ratios[0]:4.2f}  {ratios[1]:4.2f}")


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="rows; default: all")
    parser.add_argument("--ratios", action="store_true", help="also simulated / formula")
    arguments = parser.parse_args()
    rows = compared(arguments.sample)
    show_errors(rows)
    if arguments.ratios:
        show_ratios(rows)


if __name__ == "__main__":
    main()
