"""Where mixed and disaggregated fleets pay, and where they are refused.

    python benchmarks/heterogeneity.py

Plans (proven by simulation) one problem in which prompts on one GPU type and tokens on another cost less than any fleet
of a single type, one in which long prompts on one and short ones on another do, and one in which colocated engines of
one type cost least; prints the plan's own words on each alternative, and what was simulated in time. Exit code 1 where
one comes out the other way.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SMALL = {"model.name": "Llama-3.1-8B", "workload.request_rate": "2"}
TWO_LENGTHS = {
    "model.name": "Llama-3.1-8B",
    "workload.request_rate": "13",
    "workload.burstiness": "1",
    "workload.lengths": "{histogram: [{isl: 300, osl: 100, share: 0.7}, {isl: 6000, osl: 200, share: 0.3}]}",
    "slo.ttft": "1s",
    "accelerators": "[H100, L40S]",
    "search": "{roles: [colocated], tensor_parallel: [1]}",
}
CASES: dict[str, tuple[dict[str, str], str]] = {
    "chat, Llama-3.1-70B at 10 req/s": ({}, "mixed"),
    "300 and 6,000 tokens, Llama-3.1-8B at 13 req/s": (TWO_LENGTHS, "mixed"),
    "chat, Llama-3.1-8B at 2 req/s": (SMALL, "colocated"),
}
"""Name: what is set otherwise in examples/chat.yaml, and the kind of fleet that is expected to win."""


def main() -> int:
    from optimizer.recommend.optimize import optimize
    from reports.fleets import fleet_line
    from reports.verdict import headlines
    from search_spaces.loader import load_problem

    wrong = 0
    for name, (changes, expected) in CASES.items():
        plan = optimize(load_problem(ROOT / "examples" / "chat.yaml", changes))
        roles = {pool.role for pool in plan.pools}
        kind = (
            "mixed" if len(plan.gpus) > 1 else "colocated" if roles == {"colocated"} else "single type, disaggregated"
        )
        wrong += kind != expected
        print(f"{name}: {kind} wins, {plan.alternatives[0].attainment or 0.0:.1%} in time. {headlines(plan)[0]}")
        for row in plan.alternatives:
            if row.kind != "recommended" and row.cost_usd_per_hour is not None:
                print(
                    f"  {row.label}: ${row.cost_usd_per_hour:.2f}/h, {fleet_line(row.pools)}, "
                    f"{row.attainment or 0.0:.1%} in time. {row.why_not}"
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
