"""Where mixed and disaggregated fleets pay, and where they are refused.

    python benchmarks/heterogeneity.py

Plans (proven by simulation) one problem in which prompts on one GPU type and tokens on another cost less than any fleet
of a single type, and one in which colocated engines cost least; prints the plan's own words on each alternative. Exit
code 1 where either comes out the other way.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PDPLAN_SIMULATOR", "python")

SMALL = {"model.name": "Llama-3.1-8B", "workload.request_rate": "2"}
CASES: dict[str, tuple[dict[str, str], str]] = {
    "chat, Llama-3.1-70B at 10 req/s": ({}, "mixed"),
    "chat, Llama-3.1-8B at 2 req/s": (SMALL, "colocated"),
}
"""Name: what is set otherwise in examples/chat.yaml, and the kind of fleet that is expected to win."""


def main() -> int:
    from optimizer.recommend.optimize import optimize
    from reports.verdict import verdict
    from search_spaces.loader import load_problem

    wrong = 0
    for name, (changes, expected) in CASES.items():
        plan = optimize(load_problem(ROOT / "examples" / "chat.yaml", changes))
        roles = {pool.role for pool in plan.pools}
        kind = (
            "mixed" if len(plan.gpus) > 1 else "colocated" if roles == {"colocated"} else "single type, disaggregated"
        )
        wrong += kind != expected
        print(f"{name}: {kind} wins. {verdict(plan)}")
        for row in plan.alternatives:
            if row.kind != "recommended" and row.cost_usd_per_hour is not None:
                print(f"  {row.label}: ${row.cost_usd_per_hour:.2f}/h, {', '.join(row.pools)}. {row.why_not}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
