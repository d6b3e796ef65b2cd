"""Plans what people serve this year, each problem of benchmarks/current by simulation, and prints a table.

    python benchmarks/current_plans.py [--effort quick|standard] [--json] [NAME ...]

NAME: of a problem, such as gpt-oss-120b-h100; default: all. Exits with 1 where a plan does not meet its SLO.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pdplan import optimize  # noqa: E402 -- run as a script, the repository is found first
from reports.words import fleet_words, has_fleet  # noqa: E402

PROBLEMS = ROOT / "benchmarks" / "current"


def row_of(path: Path, effort: str) -> dict[str, Any]:
    """The plan of one problem in figures."""
    start = time.process_time()
    plan = optimize(path, effort=effort)
    return {
        "problem": path.stem,
        "fleet": fleet_words(plan) if has_fleet(plan) else "",
        "usd_per_hour": plan.cost_usd_per_hour,
        "attainment": plan.attainment,
        "goodput_rps": plan.goodput_rps,
        "demand_rps": plan.demand_rps,
        "simulated": plan.simulated,
        "status": str(plan.status),
        "remarks": [*plan.price_remarks, *plan.warnings],
        "cpu_s": time.process_time() - start,
    }


def line(row: dict[str, Any]) -> str:
    """A row to read, with what the plan warns of below it."""
    if not row["fleet"]:
        return f"{row['problem']:<26} no fleet: {row['status']}, {row['cpu_s']:.0f} CPU-s"
    how = "simulated" if row["simulated"] else "by formula"
    text = (
        f"{row['problem']:<26} ${row['usd_per_hour']:>8.2f}/h  {row['attainment']:>7.1%} meet the SLO ({how}), "
        f"{row['goodput_rps']:>6.2f} req/s of {row['demand_rps']:g} asked, {row['cpu_s']:.0f} CPU-s  {row['fleet']}"
    )
    return "\n".join([text, *(f"{'':<28}{remark}" for remark in row["remarks"])])


def main() -> None:
    """Print a row for each problem."""
    parser = argparse.ArgumentParser(description="Plans of what people serve this year.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--effort", default="standard", choices=["quick", "standard", "thorough"])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    paths = [path for path in sorted(PROBLEMS.glob("*.yaml")) if not asked.names or path.stem in asked.names]
    rows = []
    for path in paths:
        row = row_of(path, asked.effort)
        rows.append(row)
        if not asked.json:
            print(line(row), flush=True)
    if asked.json:
        print(json.dumps(rows, indent=2))
    sys.exit(0 if all(row["fleet"] and row["status"] in {"optimal", "feasible"} for row in rows) else 1)


if __name__ == "__main__":
    main()
