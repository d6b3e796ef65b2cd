"""Plans what people serve in 2026 (benchmarks/flagships): simulates each plan, writes its deployment, prints a table.

    python benchmarks/flagships.py [--effort quick|standard] [--json] [NAME ...]

NAME: of a problem, such as gpt-oss-120b; default: all. The table is Markdown: fleet, price, the share of requests that
meet the SLO with its 95 % interval, what the prefix cache finds, the first target that runs it, and CPU
seconds of planning. Exits with 1 where a plan does not meet its SLO or no target takes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from optimizer.plans.plan import Plan  # noqa: E402 -- run as a script, the repository is found first
from pdplan import InputError, deploy, optimize  # noqa: E402
from reports.deploy.files import planned_target  # noqa: E402
from reports.fleets import fleet_words  # noqa: E402
from reports.question import has_fleet  # noqa: E402
from reports.text import percent  # noqa: E402
from search_spaces.problem import TARGETS  # noqa: E402

PROBLEMS = ROOT / "benchmarks" / "flagships"
HEAD = ("problem", "fleet", "$/h", "meet the SLO", "prefix hits", "deploys to", "CPU s")


def accepting_target(plan: Plan) -> tuple[str, str]:
    """The first target that writes files for the plan, its own before others; and the first refusal, if all refuse."""
    own = planned_target(plan)
    others = [target.name for target in TARGETS if plan.engine in target.engines and target.name != own]
    refusals = []
    for name in (own, *others):
        with tempfile.TemporaryDirectory() as folder:
            try:
                deploy(plan, Path(folder) / name, target=name)
            except InputError as error:
                refusals.append(f"{name}: {error}")
            else:
                return name, ""
    return "", refusals[0]


def row_of(path: Path, effort: str) -> dict[str, Any]:
    """The plan of one problem in figures."""
    start = time.process_time()
    plan = optimize(path, effort=effort)
    seconds = time.process_time() - start
    if not has_fleet(plan):
        return {"problem": path.stem, "status": str(plan.status), "cpu_s": seconds}
    target, refusal = accepting_target(plan)
    simulation, cache = plan.simulation, plan.prefix_cache
    classes = [] if simulation is None else simulation.classes
    return {
        "problem": path.stem,
        "status": str(plan.status),
        "fleet": fleet_words(plan),
        "usd_per_hour": plan.cost_usd_per_hour,
        "attainment": plan.attainment,
        "interval": [min(row.attainment_low for row in classes), min(row.attainment_high for row in classes)]
        if classes
        else None,
        "meets": all(row.attainment_low >= row.attainment_goal for row in classes),
        "prefix_hits": None
        if cache is None
        else cache.sustained
        if simulation is None
        else simulation.prefix_hit_share,
        "prefix_hits_at_best": None if cache is None else cache.at_best,
        "target": target,
        "refusal": refusal,
        "remarks": [*plan.price_remarks, *plan.warnings],
        "cpu_s": seconds,
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "fleet" not in row:
        return f"| {row['problem']} | none: {row['status']} | | | | | {row['cpu_s']:.0f} |"
    low_high = (
        f" ({percent(row['interval'][0])} to {percent(row['interval'][1])})" if row["interval"] else ", by formula"
    )
    hits = (
        "" if row["prefix_hits"] is None else f"{percent(row['prefix_hits'])} of {percent(row['prefix_hits_at_best'])}"
    )
    cells = (
        row["problem"],
        row["fleet"],
        f"{row['usd_per_hour']:,.2f}",
        f"{percent(row['attainment'])}{low_high}",
        hits,
        row["target"] or f"none: {row['refusal']}",
        f"{row['cpu_s']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a row for each problem, and below the table what each plan warns of."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--effort", default="standard", choices=["quick", "standard", "thorough"])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    paths = sorted(PROBLEMS.glob("*.yaml"))
    unknown = set(asked.names) - {path.stem for path in paths}
    if unknown:
        parser.error(f"no such problem: {', '.join(sorted(unknown))}; known: {', '.join(path.stem for path in paths)}")
    if not asked.json:
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    rows = []
    for path in paths:
        if not asked.names or path.stem in asked.names:
            rows.append(row_of(path, asked.effort))
            if not asked.json:
                print(line(rows[-1]), flush=True)
    if asked.json:
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(["", *(f"- {row['problem']}: {remark}" for row in rows for remark in row.get("remarks", ()))]))
    sys.exit(0 if all(row.get("target") and row["meets"] for row in rows) else 1)


if __name__ == "__main__":
    main()
