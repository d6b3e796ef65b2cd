"""The plan of a problem whose limits physics forbids: no fleet, and the least that is possible."""

from __future__ import annotations

from datetime import UTC, datetime

from optimizer.fleets.binding import binding
from optimizer.fleets.build_plan import build_plan, provenance
from optimizer.fleets.fleet import Fleet
from optimizer.loads.diagnose import floors
from optimizer.loads.instance import make_instance
from optimizer.plans.plan import Plan, RunInfo, Status
from optimizer.plans.proof import Proof
from search_spaces.engines import load_engine_overhead
from search_spaces.problem import Problem


def plan_below_floor(problem: Problem) -> Plan:
    """The infeasible plan, nothing searched, in which every limit below its floor stands in the way.

    For programs, which read a plan wherever `optimize()` is sound input without an answer.
    """
    instance = make_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
    rows = []
    for floor in floors(instance):
        slo = problem.slos[floor.k]
        sentence = f"{floor.limit.upper()}: {floor.why}."
        rows.append(binding(floor.limit, slo.name, floor.least, slo.limit(floor.limit), "s", sentence))
    run = RunInfo(created=datetime.now(tz=UTC).isoformat(timespec="seconds"), command="", timings_s={})
    return build_plan(
        instance,
        Fleet(()),
        bars=[],
        proof=Proof(Status.INFEASIBLE, None, None),
        volume=0.0,
        alternatives=[],
        shortfalls=sorted(rows, key=lambda row: row.slack),
        origin=provenance(instance, {}, run),
    )
