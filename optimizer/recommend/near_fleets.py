"""Fleets that come near where none holds by formula: simulated all the same, as no formula says that there is none.

Near are the cheapest fleets within the limits that hold by formula once the latency limits are looser, or the rate is
lower. They and their repairs are judged against what was asked for.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.workload import scale_rate
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.error_bars import planned_instance
from optimizer.fleets.fleet import Fleet
from optimizer.loads.diagnose import with_looser_slos
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late
from optimizer.plans.proof import proof_of_judged
from optimizer.rivals.alternatives import Rival, recommended
from optimizer.verification.bench import Key, fleet_key
from search_spaces.problem import Goal, Problem

from .nearest_miss import by_formula
from .proven import Solved

LOOSER = (1.25, 2.0)
"""Factors on all latency limits; predictions are off by less than the second [1]."""
LESS = (0.8, 0.5)
"""Factors on the request rate [1]."""


def with_near_fleets(solved: Solved, late: Late) -> Solved:
    """What was found, with the near fleets in place of the one that holds; as it was where there are none.

    Where the least cost is asked for alone: other goals choose the rate that they serve.
    """
    instance = solved.instance
    fleets = near_fleets(instance, late) if instance.problem.objective.goal is Goal.MIN_COST else []
    if not fleets:
        return solved
    rivals = []
    for fleet in fleets:
        proof = proof_of_judged(None, solved.proof.floor, fleet_cost(instance, fleet))
        rivals.append(Rival(recommended(instance, fleet, proof, 1.0), fleet))
    return replace(solved, fleet=fleets[0], volume=1.0, rivals=tuple(rivals))


def near_fleets(instance: Instance, late: Late) -> list[Fleet]:
    """Fleets within the limits that hold by formula of an easier problem, each once."""
    problem, fleets = instance.problem, dict[Key, Fleet]()
    easier = [with_looser_slos(problem, factor) for factor in LOOSER] + [_at_rate(problem, factor) for factor in LESS]
    for relaxed in easier:
        held = None if late() else by_formula(planned_instance(relaxed, instance.overhead), late)
        if held is not None:
            fleets.setdefault(fleet_key(held.fleet), held.fleet)
    return list(fleets.values())


def _at_rate(problem: Problem, factor: float) -> Problem:
    """The same problem at a multiple of its request rate."""
    return replace(problem, workload=scale_rate(problem.workload, factor))
