"""Problems that several benchmarks pose: an example of the repository, and what is set otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.build_plan import fleet_of_plan
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance, make_instance
from search_spaces.loader import load_problem
from search_spaces.problem import Problem

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TWO_CLASSES = (
    "[{name: fast, share: 0.3, ttft: 1s, tpot: 30ms, percentile: p95}, "
    "{name: slow, share: 0.7, ttft: 5s, tpot: 80ms, percentile: p90}]"
)
MEMORY = {
    "model.name": "DeepSeek-V3",
    "workload.request_rate": "8",
    "workload.burstiness": "1",
    "workload.max_tokens": "20000",
    "workload.lengths": "{histogram: [{isl: 2000, osl: 800, share: 0.7}, {isl: 16000, osl: 1200, share: 0.3}]}",
    "slo": "{ttft: 3s, tpot: 60ms, percentile: p90}",
    "accelerators": "[H200, B200, H100, MI300X]",
}
Posed = tuple[str, dict[str, str]]
PROBLEMS: dict[str, Posed] = {
    "chat": ("chat", {}),
    "code": ("code", {}),
    "long context": ("long-context", {}),
    "MoE": ("code", {"model.name": "Qwen3-30B-A3B", "workload.request_rate": "40"}),
    "bursty, CV 3": ("chat", {"workload.burstiness": "3"}),
    "two SLO classes": ("chat", {"slo": TWO_CLASSES}),
    "mixed GPUs": ("chat", {"accelerators": "[L40S, A100-80, H100, H200, B200]", "workload.request_rate": "30"}),
    "tiny budget": ("chat", {"model.name": "Llama-3.1-8B", "workload.request_rate": "2", "constraints.budget": "3"}),
    "huge rate": ("chat", {"workload.request_rate": "200"}),
    "memory": ("chat", MEMORY),
    "infeasible": ("chat", {"workload.request_rate": "20", "constraints.max_gpus": "4"}),
}
"""Name: example, and what is set otherwise."""


def problem_of(posed: Posed) -> Problem:
    """The problem as `pdplan optimize EXAMPLE --set KEY=VALUE ...` reads it."""
    example, changes = posed
    return load_problem(EXAMPLES / f"{example}.yaml", changes)


def instance_of(posed: Posed) -> Instance:
    """The problem with expected step times."""
    problem = problem_of(posed)
    return make_instance(problem)


def equal_engines(instance: Instance, shape: int, seats: int, budget: int, engines: int) -> Fleet:
    """Colocated engines of one shape that serve everything, with a batch limit [request] and a token budget [token]."""
    tables, everything = instance.tables, np.ones(instance.flows.isl.size)
    seqs, chunk = int(np.searchsorted(tables.seqs, seats)), int(np.searchsorted(tables.chunks, budget))
    return Fleet((FleetPool("all", Role.COLOCATED, shape, seqs, chunk, engines, 0, everything),))


def by_formula(posed: Posed) -> tuple[Instance, Fleet]:
    """The problem with expected step times, and the fleet that the formulas choose for it, unsimulated."""
    from optimizer.loads.effort import Level
    from optimizer.recommend.optimize import optimize

    return fleet_of_plan(optimize(problem_of(posed), level=Level.QUICK), EXAMPLES)
