"""Tuning of a fleet that holds: whether it can be asked for, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from costmodel.errors import InputError
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans.plan_simulation import TunedFleet, Tuning
from optimizer.verification.bench import Bench, Verdict
from optimizer.verification.judge import Outcome
from optimizer.verification.record import tuned_fleet, tuning_record
from optimizer.verification.tune import JUDGED, NOTABLE, SAMPLER, Look, Wish, front, tail_of, tuned
from optimizer.verification.verify import Lean, without_waste
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


def with_rivals(bench: Bench, winner: Verdict, known: Tuning, stopped: Callable[[], bool]) -> Tuning:
    """The front with the fleets of the comparison that cost more than the winner and keep their goals.

    A comparison simulates briefly, so those that no other of them beats are judged in full runs, as looks are.
    """
    looked = {_same(row) for row in known.front}
    held = {key: one for key, one in bench.verdicts.items() if one.held}
    rivals = [one for one in bench.verdicts.values() if one.cost > winner.cost and _keeps_its_goals(one)]
    others = [one for one in rivals if _same(_row(bench.instance, one)) not in looked]
    best = front(Look(one.fleet, one.cost, tail_of(bench.instance, one.judgement)) for one in others)[:JUDGED]
    full = replace(bench, verdicts=held)
    judged = [full.verdict(look.fleet) for look in best if not stopped()]
    sure = [_row(bench.instance, one) for one in (winner, *judged)]
    # full runs come last, as they say more of a tail than a look
    told = {_same(row): row for row in (*known.front, *sure) if row.tail <= 1.0}
    return known.model_copy(update={"compared": len(judged), "front": unbeaten(told.values())})


def _row(instance: Instance, found: Verdict) -> TunedFleet:
    """The row of a fleet as it was judged."""
    return tuned_fleet(instance, Look(found.fleet, found.cost, tail_of(instance, found.judgement)), found)


def _keeps_its_goals(found: Verdict) -> bool:
    return found.held or (found.judgement.held and not found.stuck and not found.replayed)


def _same(row: TunedFleet) -> tuple[object, ...]:
    """What equal fleets share."""
    return tuple(zip(row.pools, row.served, strict=True))


def unbeaten(rows: Iterable[TunedFleet]) -> list[TunedFleet]:
    """Fleets that no other beats in both cost and tail, cheapest first.

    What holds in full runs is beaten only by what does so too: of others it is not sure that they keep their goals.
    """
    kept: list[TunedFleet] = []
    for row in sorted(rows, key=lambda one: (one.cost_usd_per_hour, one.tail)):
        sure = row.outcome == Outcome.MEETS
        rivals = [one.tail for one in kept if one.outcome == Outcome.MEETS or not sure]
        if not rivals or row.tail <= min(rivals) - NOTABLE:
            kept.append(row)
    return kept
