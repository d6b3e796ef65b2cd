"""What `optimize` answers to many problems, to be compared before and after a change of the search.

    python benchmarks/pins.py record FILE [--only TEXT] [--jobs 1]
    python benchmarks/pins.py compare BEFORE AFTER

Problems: 60 drawn at random (`drawn_problems`), 10 of them at ten times the rate and with five GPU types, every entry
of `problems.PROBLEMS`, the goals of goodput, pools per class, all for fleets that no target need run; and every
deployment target. `record` plans each at --effort quick (by formula) and standard (simulated), simulates the second in
RUNS runs that it has not seen, and adds a line of JSON to FILE: cost, bound, floor, status, pools, CPU seconds, and by
how much it misses on fresh requests. What FILE holds already is not planned again.

`compare` prints every problem whose cost or status differs, then the mean change of the cost, how many hold on fresh
requests, and the CPU seconds. Exit code 1 where a cost rose by more than DEARER though the fleet of before holds on
fresh requests, where costs rose on average, or where fewer hold.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.drawn_problems import GPUS, LITTLE, SMALL, drawn  # noqa: E402 -- the repository is found first
from benchmarks.fresh_requests import on_fresh_requests  # noqa: E402
from benchmarks.problems import PROBLEMS, TWO_CLASSES, Posed, problem_of  # noqa: E402
from costmodel.errors import InputError  # noqa: E402
from optimizer.loads.effort import Level  # noqa: E402
from optimizer.plans.plan import Plan  # noqa: E402
from optimizer.recommend.optimize import optimize  # noqa: E402
from search_spaces.problem import TARGETS  # noqa: E402

DRAWN, LARGE, TYPES, TIMES = 60, 10, 5, 10.0
"""Problems that are drawn, of those that are made larger, and their GPU types and factor on the rate."""
RUNS = 4
"""Fresh runs of a simulated fleet."""
DEARER = 0.005
"""Share by which a cost may rise [1]."""
GOALS = {
    "goodput, chat": ("chat", {"objective": "max_goodput", "constraints.budget": "40"}),
    "goodput, code": ("code", {"objective": "max_goodput", "constraints.max_gpus": "16"}),
    "per dollar, chat": ("chat", {"objective": "{goal: max_goodput_per_dollar, min_volume: 1}"}),
    "per dollar, long context": ("long-context", {"objective": "{goal: max_goodput_per_dollar, min_volume: 0.5}"}),
    "per class, chat": ("chat", {"slo": TWO_CLASSES, "constraints.pools": "per_class"}),
    "per class, code": ("code", {"slo": TWO_CLASSES.replace("1s", "3s"), "constraints.pools": "per_class"}),
}
Row = dict[str, Any]


def larger(number: int) -> Posed:
    """A drawn problem at TIMES the rate, with TYPES GPU types."""
    example, changes = drawn(number)
    random = np.random.default_rng([number, TYPES])
    able = [gpu for gpu in GPUS if changes["model.name"] in SMALL or gpu not in LITTLE]
    gpus = random.choice(able, TYPES, replace=False)
    rate = float(changes["workload.request_rate"]) * TIMES
    more = {"accelerators": f"[{', '.join(map(str, gpus))}]", "workload.request_rate": f"{rate:.3g}"}
    return example, changes | more


def cases() -> dict[str, Posed]:
    """Every problem by its name."""
    posed = {f"drawn {number}": drawn(number) for number in range(DRAWN)}
    posed |= {f"larger {number}": larger(DRAWN + number) for number in range(LARGE)}
    posed |= PROBLEMS | GOALS
    posed = {name: (example, changes | {"target": "none"}) for name, (example, changes) in posed.items()}
    for target in TARGETS:
        for name in ("chat", "code"):
            example, changes = PROBLEMS[name]
            posed[f"{target.name}, {name}"] = example, changes | {"target": target.name, "engine": target.engines[0]}
    return posed


def planned(posed: Posed, level: Level) -> tuple[Row, Plan | None]:
    """What a plan says, and the plan; the reason where there is none."""
    start = time.process_time()
    try:
        plan = optimize(problem_of(posed), level=level)
    except InputError as error:  # the model fits nowhere, or no engine keeps a limit however idle it is
        return {"status": "refused", "why": str(error)}, None
    pools = [
        f"{pool.replicas} x {pool.accelerator} TP{pool.tensor_parallel} PP{pool.pipeline_parallel} {pool.role} "
        f"{pool.max_num_seqs}/{pool.max_num_batched_tokens}"
        for pool in plan.pools
    ]
    said = {
        "status": plan.status.value,
        "cost": plan.cost_usd_per_hour,
        "floor": plan.floor_usd_per_hour,
        "bound": plan.bound_usd_per_hour,
        "goodput": plan.goodput_rps,
        "cpu_s": round(time.process_time() - start, 2),
        "pools": pools,
    }
    return said, plan


def recorded(name: str) -> Row:
    """The line of a problem."""
    posed = cases()[name]
    quick, _ = planned(posed, Level.QUICK)
    standard, plan = planned(posed, Level.STANDARD)
    row: Row = {"name": name, "quick": quick, "standard": standard}
    if plan is not None and plan.simulation is not None and plan.cost_usd_per_hour is not None:
        fresh = on_fresh_requests(plan, plan.simulation, RUNS)
        row["fresh"] = {"miss": round(fresh.miss, 6), "words": " of ".join(fresh.words)}
    return row


def record(path: Path, only: str, jobs: int) -> None:
    """Add the lines that are missing."""
    done = {row["name"] for row in read(path)} if path.exists() else set()
    names = [name for name in cases() if only in name and name not in done]
    with path.open("a") as file, multiprocessing.Pool(jobs, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(recorded, names):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{row['name']}: {shown(row['quick'])} by formula, {shown(row['standard'])}", flush=True)


def read(path: Path) -> list[Row]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def shown(said: Row) -> str:
    """Cost and status in words."""
    cost = said.get("cost")
    return f"{'none' if cost is None else f'${cost:.2f}'} {said['status']}"


def change(before: Row, after: Row) -> float | None:
    """By how much a plan is dearer; for a goal of goodput, per request served; None where either has no fleet [1]."""
    if before.get("cost") is None or after.get("cost") is None:
        return None
    return float(after["cost"] / before["cost"] - 1.0)


def per_request(row: Row, effort: str) -> Row:
    """The row's plan with the cost of a request in place of that of an hour, where goodput is the goal."""
    said: Row = row[effort]
    goal = row["name"].startswith(("goodput", "per dollar"))
    return said | {"cost": said["cost"] / said["goodput"]} if goal and said.get("cost") else said


def differing(pairs: list[tuple[Row, Row]], effort: str) -> Iterator[str]:
    """Problems whose cost or status differs."""
    for before, after in pairs:
        one, other = before[effort], after[effort]
        dearer = change(per_request(before, effort), per_request(after, effort))
        if shown(one) != shown(other):
            by = "" if dearer is None else f" ({dearer:+.1%})"
            yield f"  {before['name']}: {shown(one)} -> {shown(other)}{by}"
            yield f"      {'; '.join(one.get('pools', []))} -> {'; '.join(other.get('pools', []))}"


def compare(before: Path, after: Path) -> int:
    """Print what differs; 1 where the rule is broken."""
    first, second = ({row["name"]: row for row in read(path)} for path in (before, after))
    pairs = [(first[name], second[name]) for name in first if name in second]
    broken = False
    for effort in ("quick", "standard"):
        print(f"{effort}, {len(pairs)} problems")
        print("\n".join(differing(pairs, effort)))
        changes = [change(per_request(*some), per_request(*others)) for some, others in _each(pairs, effort)]
        known = [one for one in changes if one is not None]
        seconds = [sum(row[effort].get("cpu_s", 0.0) for row in rows) for rows in zip(*pairs, strict=True)]
        print(f"  cost {statistics.fmean(known):+.2%} on average, {max(known):+.1%} at most;", end=" ")
        print(f"CPU seconds {seconds[0]:.0f} -> {seconds[1]:.0f}, {seconds[0] / max(seconds[1], 1e-9):.1f} times less")
        broken |= statistics.fmean(known) > 0.0
    held = [sum(holds(row) for row in rows) for rows in zip(*pairs, strict=True)]
    simulated = [sum("fresh" in row for row in rows) for rows in zip(*pairs, strict=True)]
    print(f"hold on fresh requests: {held[0]} of {simulated[0]} -> {held[1]} of {simulated[1]}")
    worse = [
        one["name"]
        for one, other in pairs
        if holds(one) and (change(per_request(one, "standard"), per_request(other, "standard")) or 0.0) > DEARER
    ]
    lost = [one["name"] for one, other in pairs if "cost" in one["standard"] and lost_fleet(one, other)]
    print(f"dearer than by {DEARER:.1%}, though the fleet of before holds: {', '.join(worse) or 'none'}")
    print(f"with a fleet before and none now: {', '.join(lost) or 'none'}")
    return int(broken or bool(worse) or bool(lost) or held[1] / max(simulated[1], 1) < held[0] / max(simulated[0], 1))


def lost_fleet(before: Row, after: Row) -> bool:
    """Whether there was a fleet that holds on fresh requests, and there is none."""
    return before["standard"]["cost"] is not None and holds(before) and after["standard"].get("cost") is None


def _each(pairs: list[tuple[Row, Row]], effort: str) -> list[tuple[tuple[Row, str], tuple[Row, str]]]:
    return [((one, effort), (other, effort)) for one, other in pairs]


def holds(row: Row) -> bool:
    """Whether the plan keeps its goals on fresh requests."""
    return "fresh" in row and row["fresh"]["miss"] <= 0.0


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked = parser.add_subparsers(dest="command", required=True)
    add: Callable[..., argparse.ArgumentParser] = asked.add_parser
    recording = add("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--only", default="")
    recording.add_argument("--jobs", type=int, default=1)
    comparing = add("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare(arguments.before, arguments.after)
    record(arguments.file, arguments.only, arguments.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
