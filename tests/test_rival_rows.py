"""The comparison as simulated: no kind of fleet loses for an error of the formulas about its cheapest fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from costmodel.engine import Parallelism
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance, make_settings
from optimizer.plans.plan import Status
from optimizer.plans.proof import Proof
from optimizer.recommend import rival_rows
from optimizer.recommend.rival_rows import (
    MOST_LOOKS,
    _cheapest_confirmed,
    _cheapest_of,
    _leaner,
    _row,
    compared,
)
from optimizer.recommend.search import FormulaResult
from optimizer.search.alternatives import Kind, Rival, rival_row
from optimizer.verification.bench import Verdict, fleet_key
from tests.optimizer_cases import instance_of, offer, problem
from tests.small_fleets import apart, replicas, small
from tests.test_verified_search import Oracle, mending

APART = Kind("disaggregated_only", "disaggregated only", colocated=False)


def of_type(instance: Instance, name: str, *counts: int) -> Fleet:
    """Prefill and decode engines of one GPU of a type."""
    tables, alone = instance.tables, Parallelism()
    shape = next(
        number
        for number, one in enumerate(tables.shapes)
        if one.parallelism == alone and instance.problem.offers[int(tables.offer[number])].accelerator.name == name
    )
    return Fleet(tuple(replace(pool, shape=shape) for pool in apart(instance, *counts).pools))


def cheapest(bench: Any, *fleets: Fleet) -> Verdict:
    found = _cheapest_of(bench, fleets)
    assert found is not None
    return found


def test_a_rival_that_misses_gets_other_settings_before_a_dearer_one_is_shown() -> None:
    instance = small()
    bench: Any = Oracle(instance, (3, 1))
    first, dearer, mended = apart(instance, 2, 1), apart(instance, 4, 2), apart(instance, 3, 1)

    with mending(lambda _, missed: [mended] if missed.fleet is first else []):
        assert cheapest(bench, first, dearer).fleet is mended
    assert len(bench.verdicts) == 2


@pytest.mark.parametrize("needed", [2, 3, 5])
def test_a_rival_with_too_few_engines_gets_more(needed: int) -> None:
    bench: Any = Oracle(small(), (needed, 1))
    found = cheapest(bench, apart(bench.instance, 1, 1))
    assert found.held
    assert replicas(found.fleet) == (needed, 1)


def test_of_a_kind_that_nothing_mends_the_cheapest_is_told_to_miss() -> None:
    bench: Any = Oracle(small(), (90, 1))
    found = cheapest(bench, apart(bench.instance, 1, 1), apart(bench.instance, 3, 1))
    assert not found.held
    assert replicas(found.fleet) == (1, 1)
    assert len(bench.verdicts) <= MOST_LOOKS


def test_what_holds_gives_up_what_it_can_spare_but_is_never_looked_for_below_the_recommended() -> None:
    instance = small()
    bench: Any = Oracle(instance, (2, 1))
    rich = bench.verdict(apart(instance, 5, 2))
    lean = _leaner(bench, rich, APART, 0.0)
    assert lean.held
    assert lean.cost <= fleet_cost(instance, apart(instance, 2, 1))
    assert all(APART.has(instance, one.fleet) for one in bench.verdicts.values())
    bench = Oracle(instance, (1, 1))
    bar = fleet_cost(instance, apart(instance, 3, 2))
    assert _leaner(bench, rich, APART, bar).cost >= bar
    assert all(one.cost >= bar for one in bench.verdicts.values())


def confirming(least: int) -> Callable[..., Verdict]:
    """A last word that refutes fleets of fewer engines than `least`, as fresh requests do."""

    def confirmed_once(bench: Any, chosen: Verdict, number: int, *, most: int) -> Verdict:
        held = sum(replicas(chosen.fleet)) >= least
        told = replace(chosen, held=held, confirmation=number)
        bench.verdicts[fleet_key(chosen.fleet)] = told
        return told

    return confirmed_once


@pytest.mark.parametrize(("least", "engines"), [(2, (1, 1)), (3, (2, 1))])
def test_a_rival_is_put_to_fresh_requests_like_the_winner(
    monkeypatch: pytest.MonkeyPatch, least: int, engines: tuple[int, int]
) -> None:
    """What these refute is no rival, so that no row costs less than a search for its kind alone would find."""
    monkeypatch.setattr(rival_rows, "confirmed_once", confirming(least))
    bench: Any = Oracle(small(), (1, 1))
    rivals = [apart(bench.instance, *counts) for counts in ((1, 1), (2, 1))]
    found = _cheapest_confirmed(bench, rivals, None, 0.0)
    assert found is not None
    assert (found.held, found.confirmation > 0, replicas(found.fleet)) == (True, True, engines)


def test_a_rival_for_which_no_time_is_left_is_said_not_to_be_confirmed() -> None:
    bench: Any = Oracle(small(), (1, 1))
    first, last = apart(bench.instance, 1, 1), apart(bench.instance, 3, 1)
    bench.verdict(last)
    bench.late = lambda: True
    found = _cheapest_confirmed(bench, [last], None, 0.0)
    assert found is not None
    row = rival_row(bench.instance, "other_engines", "others", last, fleet_cost(bench.instance, first))
    shown = _row(bench.instance, row, found, fleet_cost(bench.instance, first))
    assert (shown.simulated, shown.confirmed) == (True, False)
    assert shown.why_not.endswith("not confirmed by simulation, for want of time")


def test_the_fleet_of_another_kind_stands_for_a_kind_whose_own_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest fleet of H100 alone misses; the best disaggregated one is of H100, so it is the best of both."""
    monkeypatch.setattr(rival_rows, "confirmed_once", confirming(0))
    instance = instance_of(problem(offers=(offer("H100"), offer("A100-80"))))
    every = make_settings(instance)
    bench: Any = Oracle(instance, (2, 1))
    winner, misses, holds = of_type(instance, "A100-80", 2, 1), apart(instance, 1, 1), apart(instance, 2, 1)
    none = {"status": Status.INFEASIBLE, "cost_usd_per_hour": None, "why_not": "no fleet of this kind meets the SLOs"}
    rows = {
        "H100 only": Rival(
            rival_row(instance, "single_type", "H100 only", misses, 1.0).model_copy(update=none), misses
        ),
        APART.label: Rival(rival_row(instance, APART.kind, APART.label, holds, 1.0), holds),
    }
    bench.volume, proof = 1.0, Proof(Status.FEASIBLE, None, None)
    first = Rival(rival_row(instance, "recommended", "recommended", winner, 1.0), winner)
    result = FormulaResult(instance, every, proof, rivals=(first, *rows.values()))
    told = {row.label: row for row in compared(result, bench, bench.verdict(winner), proof)}
    assert told["H100 only"].cost_usd_per_hour == pytest.approx(fleet_cost(instance, holds))
    assert told["H100 only"].status is Status.FEASIBLE
    assert told["H100 only"].why_not.startswith("costs")
    assert told["H100 only"].pools == engine_pools(instance, holds)
    assert told[APART.label].pools == told["recommended"].pools  # the recommended one is of this kind itself
