"""Tuning of a fleet that holds: whether it can be asked for, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.errors import InputError
from optimizer.fleets.fleet import Fleet
from optimizer.plans.plan_simulation import Tuning
from optimizer.verification.simulation_record import tuning_record
from optimizer.verification.tune import SAMPLER, Wish, tuned
from optimizer.verification.verdict import Bench
from optimizer.verification.waste import Lean, without_waste
from search_spaces.problem import Goal, Problem

from .level import Level


def wish_of(problem: Problem, level: Level, wish: Wish | None) -> Wish | None:
    """How a fleet is tuned: as it is wished, else by the level; None: not at all.

    Raises InputError for a front where nothing is tuned.
    """
    if wish is None:
        return Wish() if level is Level.THOROUGH else None
    goal = problem.objective.goal
    if level is Level.QUICK:
        raise InputError("--front: its fleets are simulated, but --effort is quick; allowed: standard, thorough")
    if goal is not Goal.MIN_COST:
        raise InputError(f"--front: cost against tail needs a demand to meet: objective min_cost, not {goal.value}")
    return wish


def with_tuning(
    bench: Bench, lean: Lean, rivals: Sequence[Fleet], wish: Wish, stopped: Callable[[], bool]
) -> tuple[Lean, Tuning]:
    """The winner with its knobs tuned, again without waste, and what was looked at; rivals: see `without_waste`."""
    found = tuned(bench, lean.winner, stopped, wish)
    improved = found.winner is not lean.winner
    record = tuning_record(bench.instance, found, SAMPLER, wish, improved)
    if improved:
        again = without_waste(bench, found.winner, rivals, stopped)
        lean = Lean(again.winner, again.one_less, (*lean.others, *again.others))
    return lean, record
