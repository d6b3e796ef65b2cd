"""Splitwise's clusters: what one dollar and one watt of A100 and H100 machines serve, apart or together.

    python benchmarks/splitwise_case.py ../shared/data [--rate 70]

Patel et al. 2024 (ISCA): Llama-2-70B in 16 bit on machines of 8 GPUs, Azure's traces of 2023 for conversation and code,
machine costs 8 x $2.21/h (A100) and 8 x $4.76/h (H100), power 24.8 and 44 units. For each kind of cluster our fleet
search finds the one that serves --rate for the least cost, and for the least power; at equal cost (power) a cluster
serves more in the inverse proportion. Limits: their P90, three times the idle A100's TTFT of a prompt as long as 90 %
are, and 1.5 times its TPOT; theirs are slowdowns of each request, by its own length. Host times: fitted to their own
decode steps (benchmarks/vllm_2023.py).

Exit code 1 where the direction of their result is not ours: H100 for prompts with A100 for tokens beats clusters of one
type in which every engine does both, and prompts take a larger share of the machines for code than for conversation.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.vllm_2023 import engine_changes, host_times  # noqa: E402
from costmodel.engine import EngineConfig, EngineOverhead, Parallelism, Role  # noqa: E402
from costmodel.metric import limits_of  # noqa: E402
from costmodel.step import StepLoad, step_time_one  # noqa: E402
from costmodel.workload import Workload  # noqa: E402
from optimizer.fleets.fleet import Fleet, fleet_cost  # noqa: E402
from optimizer.loads.instance import ROLES, Instance, make_instance  # noqa: E402
from optimizer.search.search import FleetSearch, evaluated, unmixed  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_engine_memory  # noqa: E402
from search_spaces.loader import load_problem  # noqa: E402
from search_spaces.models import load_model  # noqa: E402
from search_spaces.problem import Billing, Offer, Problem, SearchSpace, Slo  # noqa: E402

MACHINE = 8
"""GPUs."""
COST = {"A100-80": 2.21, "H100": 4.76}
"""Of one GPU [$/h]."""
POWER = {"A100-80": 24.8 / MACHINE, "H100": 44.0 / MACHINE}
"""Of one GPU, in the units of their scripts."""
TRACES = {"conversation": "chat", "code": "code"}
"""Name there, and of the example whose lengths are those of the trace."""
KINDS: dict[str, tuple[str | None, str | None, str | None]] = {
    "Baseline-A100": (None, None, "A100-80"),
    "Baseline-H100": (None, None, "H100"),
    "Splitwise-AA": ("A100-80", "A100-80", None),
    "Splitwise-HH": ("H100", "H100", None),
    "Splitwise-HA": ("H100", "A100-80", None),
    "Splitwise-AH": ("A100-80", "H100", None),
}
"""Kind: GPU of the prompt, the token and the colocated machines. Theirs has no AH."""
SPACE = SearchSpace(
    roles=(Role.PREFILL, Role.DECODE, Role.COLOCATED),
    tensor_parallel=(MACHINE,),
    pipeline_parallel=(1,),
    expert_parallel=(1,),
    data_parallel=(1,),
    max_num_seqs=(8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    max_num_batched_tokens=(2048,),
)
TTFT_SLOWDOWN, TPOT_SLOWDOWN, SHARE = 3.0, 1.5, 0.9
THEIR_RATIOS = {"conversation": (25 / 26, 45 / 25), "code": (55 / 15, 35 / 5)}
"""Prompt over token machines, least and most of the clusters that they simulated at equal power or cost."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cheapest cluster of a kind: cost or power, and machines for prompts, tokens and both; None: none found."""

    amount: float
    prompt: int
    token: int
    both: int


def lengths_of(trace: str, rate: float) -> Workload:
    """Lengths of one of Azure's traces, Poisson arrivals."""
    known = load_problem(ROOT / "examples" / f"{TRACES[trace]}.yaml").workload
    return replace(known, request_rate=rate, burstiness=1.0, prefix_hit_share=0.0)


def limits(load: Workload, overhead: EngineOverhead) -> Slo:
    """Their P90 limits from an idle A100 machine of ours."""
    order = np.argsort(load.isl)
    prompt = float(load.isl[order][np.searchsorted(np.cumsum(load.share[order]), SHARE)])
    gpu, split, memory = load_catalog().accelerator("A100-80"), Parallelism(MACHINE), load_engine_memory("vllm")
    config = EngineConfig(gpu, Role.COLOCATED, split, "bf16", "bf16", 512, 16384, 16384, memory)
    model = load_model("Llama-2-70B")
    ttft, tpot = (
        float(step_time_one(model, config, overhead, step).total[0, 0])
        for step in (StepLoad.prefill(prompt), StepLoad.decode(1.0, prompt))
    )
    return Slo("p90", limits_of(ttft=TTFT_SLOWDOWN * ttft, tpot=TPOT_SLOWDOWN * tpot), SHARE)


def instance_of(load: Workload, prices: dict[str, float], overhead: EngineOverhead) -> Instance:
    """The search's instance: whole machines at what they cost, or draw."""
    problem = Problem(
        name="splitwise",
        model=load_model("Llama-2-70B"),
        weight_dtype="bf16",
        kv_dtype="bf16",
        workload=load,
        slos=(limits(load, overhead),),
        offers=tuple(
            Offer(load_catalog().accelerator(name), price, billing=Billing.GPU) for name, price in prices.items()
        ),
        space=SPACE,
        engine_changes=engine_changes(overhead),
    )
    return make_instance(problem)


def mask(known: FleetSearch, kind: str) -> NDArray[np.bool_]:
    """Engines of one kind of cluster."""
    instance, settings = known.instance, known.settings
    names = np.array([offer.accelerator.name for offer in instance.problem.offers])
    gpu = names[instance.tables.offer[settings.shape]]
    allowed = dict(zip((Role.PREFILL, Role.DECODE, Role.COLOCATED), KINDS[kind], strict=True))
    return np.array(
        [allowed[ROLES[role]] == name for role, name in zip(settings.role, gpu, strict=True)], dtype=np.bool_
    )


def cheapest(known: FleetSearch, kind: str) -> Outcome | None:
    """The cheapest cluster of a kind that holds by the formulas."""
    fleet = unmixed(FleetSearch.of(known.instance, known.settings.take(mask(known, kind))))
    if not fleet.pools:
        return None
    roles = (Role.PREFILL, Role.DECODE, Role.COLOCATED)
    return Outcome(fleet_cost(known.instance, fleet), *(_machines(fleet, role) for role in roles))


def _machines(fleet: Fleet, role: Role) -> int:
    return sum(pool.replicas for pool in fleet.of(role))


def compared(trace: str, rate: float, prices: dict[str, float], overhead: EngineOverhead) -> dict[str, Outcome]:
    """The cheapest cluster of every kind that can serve the trace."""
    known = evaluated(instance_of(lengths_of(trace, rate), prices, overhead))
    found = {kind: cheapest(known, kind) for kind in KINDS}
    return {kind: one for kind, one in found.items() if one is not None}


def report(trace: str, budget: str, found: dict[str, Outcome]) -> bool:
    """Print one comparison; whether H100 prompt and A100 token machines beat both clusters of colocated engines."""
    base = min(one.amount for kind, one in found.items() if kind.startswith("Baseline"))
    print(f"\n{trace}, at equal {budget}: throughput over the better baseline, machines")
    for kind, one in found.items():
        machines = (
            f"{one.both} machines" if one.both else f"{one.prompt} P + {one.token} T = {one.prompt / one.token:.2f}"
        )
        print(f"  {kind:14} {base / one.amount:5.2f} x   {machines}")
    mixed = found["Splitwise-HA"].amount if "Splitwise-HA" in found else np.inf
    alike = [kind for kind in ("Splitwise-AA", "Splitwise-HH") if kind in found]
    against = ", ".join(f"{found[kind].amount / mixed:.2f} x {kind}" for kind in alike)
    print(f"  HA beats both baselines: {mixed < base}; it serves {against}")
    return bool(mixed < base)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data folder")
    parser.add_argument("--rate", type=float, default=70.0, help="requests per second")
    arguments = parser.parse_args()
    overhead = host_times(arguments.data, MACHINE)
    print(f"host: {overhead.step * 1e3:.1f} ms a step, {overhead.per_request * 1e6:.0f} us a request in it")
    right, ratios = [], {}
    for budget, prices in (("cost", COST), ("power", POWER)):
        for trace in TRACES:
            found = compared(trace, arguments.rate, prices, overhead)
            right.append(report(trace, budget, found))
            ratios[budget, trace] = {k: one.prompt / one.token for k, one in found.items() if one.token}
    for budget in ("cost", "power"):
        here = {trace: ratios[budget, trace] for trace in TRACES}
        shared = [kind for kind in here["conversation"] if kind in here["code"]]
        told = ", ".join(f"{kind[-2:]} {here['conversation'][kind]:.2f} -> {here['code'][kind]:.2f}" for kind in shared)
        print(f"\nprompt : token machines, conversation -> code, at equal {budget}: {told}")
        right += [here["code"][kind] > here["conversation"][kind] for kind in shared]
    low, high = THEIR_RATIOS["conversation"], THEIR_RATIOS["code"]
    print(f"theirs: {low[0]:.1f} to {low[1]:.1f} -> {high[0]:.1f} to {high[1]:.1f}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
