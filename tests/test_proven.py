"""From what was chosen to what is recommended: tuning takes nothing back, and rivals get the same care."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from optimizer.fleets.fleet import fleet_cost
from optimizer.plans.plan import Status
from optimizer.plans.proof import Proof
from optimizer.plans.records import Tuning
from optimizer.recommend import search
from optimizer.recommend.search import TUNED, Brake, Effort, FormulaResult, Level, proof_of
from optimizer.search.alternatives import Rival
from optimizer.verification.bench import Bench, Verdict
from optimizer.verification.tune import Wish
from optimizer.verification.verify import SearchResult
from tests.small_fleets import apart, small
from tests.test_verified_search import Oracle

RECORD = Tuning(sampler="none", objectives=["cost"], looks=1, improved=True, front=[])


def tuned_to(better: SearchResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tuning find a fleet from which nothing can go."""
    monkeypatch.setattr(search, "tuned", lambda *_: better)
    monkeypatch.setattr(search, "tuning_record", lambda *_: RECORD)
    monkeypatch.setattr(search, "without_waste", lambda _, result, *rest: replace(result, winner=better.winner))


@pytest.mark.parametrize("confirms", [True, False])
def test_a_tuned_fleet_takes_the_place_of_the_confirmed_one_only_if_it_is_confirmed_too(
    monkeypatch: pytest.MonkeyPatch, confirms: bool
) -> None:
    instance = small()
    bench: Any = Oracle(instance, (1, 1))
    start, better = (SearchResult(bench.verdict(apart(instance, *counts))) for counts in ((2, 2), (1, 2)))
    asked: list[tuple[list[int], int]] = []

    def confirmed(bench: Bench, chosen: Verdict, numbers: Iterator[int], least: int) -> Verdict:
        asked.append((list(itertools.islice(numbers, 2)), least))
        return replace(chosen, held=confirms, confirmation=7)

    tuned_to(better, monkeypatch)
    monkeypatch.setattr(search, "confirmed", confirmed)
    numbers = iter((7, 8))
    effort = Effort(Level.THOROUGH, Brake())
    lean = search._tuned(bench, start, start.winner, [], effort, Wish(), numbers)
    assert asked == [([7, 8], 4)]
    assert lean.tuning.improved is confirms
    assert lean.winner.fleet is (better if confirms else start).winner.fleet
    assert [what for what, _ in lean.others] == ([] if confirms else [TUNED])


def test_a_tuned_fleet_for_which_no_confirmation_is_left_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = small()
    bench: Any = Oracle(instance, (1, 1))
    start, better = (SearchResult(bench.verdict(apart(instance, *counts))) for counts in ((2, 2), (1, 2)))
    tuned_to(better, monkeypatch)
    lean = search._tuned(bench, start, start.winner, [], Effort(Level.STANDARD, Brake()), Wish(), iter(()))
    assert lean.winner is start.winner
    assert not lean.tuning.improved


@pytest.mark.parametrize(("chosen", "known"), [(2, True), (1, False)])
def test_no_bound_over_few_pools_is_told_beside_a_cheaper_fleet_by_formula(chosen: int, known: bool) -> None:
    """The bound is what two prefill engines cost; a fleet of one that missed when simulated was none of those."""
    instance = small()
    bench: Any = Oracle(instance, (3, 1))
    bound = fleet_cost(instance, apart(instance, 2, 1))
    fleet, winner = apart(instance, chosen, 1), bench.verdict(apart(instance, 3, 1))
    proof = Proof(Status.FEASIBLE, bound, 0.0, 1.0, bound)
    found = proof_of(FormulaResult(instance, proof, rivals=(Rival((fleet,)),)), winner, 1.0)
    assert found.bound == pytest.approx(bound if known else 1.0)
