"""From what was chosen to what is recommended: tuning takes nothing back, and rivals get the same care."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.plans.plan import Status
from optimizer.plans.plan_simulation import Tuning
from optimizer.plans.proof import Proof
from optimizer.recommend import proven
from optimizer.recommend.judged import proof_of
from optimizer.recommend.proven import TUNED, Solved
from optimizer.verification.bench import Bench, Verdict
from optimizer.verification.tune import Wish
from optimizer.verification.verify import Lean
from tests.small_fleets import apart, small
from tests.test_verified_search import Oracle

RECORD = Tuning(sampler="none", objectives=["cost"], looks=1, improved=True, front=[])


@pytest.mark.parametrize("confirms", [True, False])
def test_a_tuned_fleet_takes_the_place_of_the_confirmed_one_only_if_it_is_confirmed_too(
    monkeypatch: pytest.MonkeyPatch, confirms: bool
) -> None:
    instance = small()
    bench: Any = Oracle(instance, (1, 1))
    start, better = (Lean(bench.verdict(apart(instance, *counts)), ()) for counts in ((2, 2), (1, 2)))
    asked: list[tuple[list[int], int]] = []

    def tuned_to(bench: Bench, lean: Lean, fleets: Sequence[Fleet], wish: Wish, stopped: Callable[[], bool]) -> Any:
        return better, RECORD

    def confirmed(bench: Bench, chosen: Verdict, numbers: Iterator[int], least: int) -> Verdict:
        asked.append((list(itertools.islice(numbers, 2)), least))
        return replace(chosen, held=confirms, confirmation=7)

    monkeypatch.setattr(proven, "with_tuning", tuned_to)
    monkeypatch.setattr(proven, "confirmed", confirmed)
    numbers = iter((7, 8))
    lean, record = proven._tuned(bench, start, [], lambda: False, numbers, tune=Wish(), least=4)
    assert asked == [([7, 8], 4)]
    assert record.improved is confirms
    assert lean.winner.fleet is (better if confirms else start).winner.fleet
    assert [what for what, _ in lean.others] == ([] if confirms else [TUNED])


def test_a_tuned_fleet_for_which_no_confirmation_is_left_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = small()
    bench: Any = Oracle(instance, (1, 1))
    start, better = (Lean(bench.verdict(apart(instance, *counts)), ()) for counts in ((2, 2), (1, 2)))
    monkeypatch.setattr(proven, "with_tuning", lambda *_: (better, RECORD))
    lean, record = proven._tuned(bench, start, [], lambda: False, iter(()), tune=Wish(), least=2)
    assert lean is start
    assert not record.improved


@pytest.mark.parametrize(("chosen", "known"), [(2, True), (1, False)])
def test_no_bound_over_few_pools_is_told_beside_a_cheaper_fleet_by_formula(chosen: int, known: bool) -> None:
    """The bound is what two prefill engines cost; a fleet of one that missed when simulated was none of those."""
    instance = small()
    bench: Any = Oracle(instance, (3, 1))
    bound = fleet_cost(instance, apart(instance, 2, 1))
    fleet, winner = apart(instance, chosen, 1), bench.verdict(apart(instance, 3, 1))
    solved: Any = Solved(instance, None, fleet, Proof(Status.FEASIBLE, bound, 0.0, 1.0, bound), 1.0, ())  # type: ignore[arg-type]
    found = proof_of(solved, winner, 1.0)
    assert found.bound == pytest.approx(bound if known else 1.0)
